// SPDX-License-Identifier: MIT
/* Device memory that is not weights: KV blocks, workspace, communication buffers. */
#include "pager/state.h"

#include <errno.h>
#include <stdlib.h>
#include <utlist.h>

int ctn_claim_new(struct ctn_pager *p, uint32_t device, enum ctn_claim_kind kind,
		  uint64_t max_bytes, struct ctn_claim **claim)
{
	struct ctn_claim *c = calloc(1, sizeof(*c));
	int rc;

	if (!c)
		return -ENOMEM;
	c->pager = p;
	c->device = device;
	c->kind = kind;
	c->max_bytes = ctn_align_up(CTN_MAX(max_bytes, (uint64_t)1), p->devices[device].granule);
	rc = ctn_device_reserve(p->devices[device].dev, c->max_bytes, &c->va);
	if (rc) {
		free(c);
		return rc;
	}
	DL_APPEND(p->claims, c);
	*claim = c;
	return 0;
}

void ctn_claim_free(struct ctn_claim *c)
{
	if (!c)
		return;
	ctn_claim_resize(c, 0);
	ctn_device_unreserve(c->pager->devices[c->device].dev, c->va, c->max_bytes);
	DL_DELETE(c->pager->claims, c);
	free(c);
}

void *ctn_claim_addr(const struct ctn_claim *c)
{
	return c->va;
}

int ctn_claim_resize(struct ctn_claim *c, uint64_t bytes)
{
	struct ctn_pager *p = c->pager;
	struct ctn_device *dev = p->devices[c->device].dev;
	int rc;

	bytes = ctn_align_up(bytes, p->devices[c->device].granule);
	CTN_ASSERT(bytes <= c->max_bytes);
	if (bytes > c->bytes) {
		rc = ctn_device_map(dev, (uint8_t *)c->va + c->bytes, bytes - c->bytes);
		if (rc)
			return rc;
	} else if (bytes < c->bytes) {
		ctn_device_unmap(dev, (uint8_t *)c->va + bytes, c->bytes - bytes, p->poison);
	}
	pager_claim_bytes(c, bytes);
	return 0;
}
