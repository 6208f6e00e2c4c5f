// SPDX-License-Identifier: MIT
#include "base/base.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

int ctn_mailbox_init(struct ctn_mailbox *box)
{
	box->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (box->fd < 0)
		return -errno;
	pthread_mutex_init(&box->lock, NULL);
	box->head = NULL;
	box->tail = &box->head;
	return 0;
}

void ctn_mailbox_destroy(struct ctn_mailbox *box)
{
	CTN_ASSERT(!box->head);
	pthread_mutex_destroy(&box->lock);
	close(box->fd);
}

void ctn_mailbox_wake(struct ctn_mailbox *box)
{
	uint64_t one = 1;

	/* It fails only when the counter is full: then the descriptor is readable anyway. */
	if (write(box->fd, &one, sizeof(one)) < 0)
		CTN_ASSERT(errno == EAGAIN);
}

void ctn_mailbox_post(struct ctn_mailbox *box, struct ctn_mail *mail)
{
	mail->next = NULL;
	pthread_mutex_lock(&box->lock);
	*box->tail = mail;
	box->tail = &mail->next;
	/* Under the lock: once the owner has taken the last mail it may destroy the box. */
	ctn_mailbox_wake(box);
	pthread_mutex_unlock(&box->lock);
}

void ctn_mailbox_take(struct ctn_mailbox *box)
{
	struct ctn_mail *mail;
	uint64_t count;

	if (read(box->fd, &count, sizeof(count)) < 0)
		CTN_ASSERT(errno == EAGAIN);
	pthread_mutex_lock(&box->lock);
	mail = box->head;
	box->head = NULL;
	box->tail = &box->head;
	pthread_mutex_unlock(&box->lock);
	while (mail) {
		struct ctn_mail *next = mail->next;

		mail->take(mail);
		mail = next;
	}
}
