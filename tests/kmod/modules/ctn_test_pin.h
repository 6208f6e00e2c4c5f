/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * /dev/ctn_test_pin: pins user memory for long, as a GPU driver does for registered memory, and takes
 * dma-bufs as one does. What a file holds is let go by CTN_TEST_DROP, or with the file.
 */
#ifndef CTN_TEST_PIN_H
#define CTN_TEST_PIN_H

#include <linux/ioctl.h>
#include <linux/types.h>

struct ctn_test_pin {
	__u64 address;
	__u64 bytes;
	__u32 write;
	__u32 reserved;
};

struct ctn_test_dmabuf {
	__s32 fd;
	__u32 from_device; /* the device writes */
	__u32 segments;	   /* out */
	__u32 reserved;
	__u64 bytes; /* out: of all segments */
	__u64 least; /* out: of the smallest segment */
	__u64 first; /* out: the first eight bytes, read by way of vmap or the pages */
};

#define CTN_TEST_PIN	_IOW(0xDC, 0x40, struct ctn_test_pin)
#define CTN_TEST_DROP	_IO(0xDC, 0x41)
#define CTN_TEST_DMABUF _IOWR(0xDC, 0x42, struct ctn_test_dmabuf)

#endif
