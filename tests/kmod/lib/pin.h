/* SPDX-License-Identifier: MIT */
/* The test-only module that pins pages and takes dma-bufs: tests/kmod/modules/ctn_test_pin.h. */
#ifndef PIN_H
#define PIN_H

#include "../modules/ctn_test_pin.h"

#include <stdbool.h>
#include <stdint.h>

/* Loads the module where it is not there yet; a file of its device. */
int must_pin_file(void);
/* 0 or a negative errno. */
int pin(int file, const void *at, uint64_t bytes, bool write);
void unpin(int file);

#endif
