// SPDX-License-Identifier: MIT OR GPL-2.0
#include <linux/string.h>

#define CREATE_TRACE_POINTS
#include "trace.h"
