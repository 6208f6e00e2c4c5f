# computron: see README.md. The two commands are `make demo` and `make check`.
#
#   make                 build/computrond, build/computron, build/libcomputron.a
#   make demo            three real models from a device that holds one
#   make check           everything that CI runs
#   make check-unit      the programs of tests/unit (TESTS="a b" picks some)
#   make check-e2e       the daemon from outside (TESTS= likewise)
#   make check-asan      unit and end-to-end tests under ASan and UBSan
#   make check-tsan      the same under TSan
#   make check-ref       the reference in tests/ref against transformers (PyPI, in a venv)
#   make lint            formatting, folder arrows, compiler warnings of gcc and clang
#
# VARIANT=release (default) | debug (assertions, poison on drop) | asan | tsan

VARIANT ?= release
ifeq ($(origin CC),default)
CC := gcc
endif
BUILD_ROOT ?= build
ifeq ($(VARIANT),release)
BUILD := $(BUILD_ROOT)
else
BUILD := $(BUILD_ROOT)/$(VARIANT)
endif

PKGS := jansson libmicrohttpd libfyaml liburing libpcre2-8 libxxhash
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS := $(shell pkg-config --libs $(PKGS) 2>/dev/null)
# The serial OpenBLAS: ranks are the threads. Debian keeps it beside the threaded one.
MULTIARCH := $(shell $(CC) -print-multiarch 2>/dev/null)
BLAS_DIR := /usr/lib/$(MULTIARCH)/openblas-serial
BLAS_CFLAGS := -isystem /usr/include/$(MULTIARCH)/openblas-serial
BLAS_LIBS := -L$(BLAS_DIR) -Wl,-rpath,$(BLAS_DIR) -lopenblas

OPT_release := -O2
OPT_debug := -O2 -DCTN_DEBUG
OPT_asan := -O1 -DCTN_DEBUG -fsanitize=address,undefined -fno-sanitize-recover=undefined \
	-fno-omit-frame-pointer
OPT_tsan := -O1 -DCTN_DEBUG -fsanitize=thread -fno-omit-frame-pointer

WARN := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
	-Wno-unused-parameter
CFLAGS ?= -g
ALL_CFLAGS := -std=c11 -D_GNU_SOURCE $(WARN) $(OPT_$(VARIANT)) $(CFLAGS) -fno-math-errno -pthread -MMD -MP \
	-Iuruntime -I. $(PKG_CFLAGS) $(BLAS_CFLAGS)
ALL_LDFLAGS := $(OPT_$(VARIANT)) $(LDFLAGS) -pthread
LIBS := $(PKG_LIBS) $(BLAS_LIBS) -lm -ldl

LIB_SRC := $(filter-out uruntime/daemon/%,$(wildcard uruntime/*/*.c)) $(wildcard kernels/cpu/*.c)
DAEMON_SRC := $(wildcard uruntime/daemon/*.c)
TOOL_SRC := $(wildcard tools/*.c)
UNIT_SRC := $(wildcard tests/unit/test_*.c)
UNIT := $(UNIT_SRC:tests/unit/%.c=$(BUILD)/tests/unit/%)

obj = $(1:%.c=$(BUILD)/obj/%.o)
LIB := $(BUILD)/libcomputron.a
BINS := $(if $(DAEMON_SRC),$(BUILD)/computrond) $(if $(TOOL_SRC),$(BUILD)/computron)

.PHONY: all
all: $(LIB) $(BINS)

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	@echo "CC $<"
	@$(CC) $(ALL_CFLAGS) -c $< -o $@

$(LIB): $(call obj,$(LIB_SRC))
	@rm -f $@
	@ar rcs $@ $^

$(BUILD)/computrond: $(call obj,$(DAEMON_SRC)) $(LIB)
	@echo "LD $@"
	@$(CC) $(ALL_LDFLAGS) $^ -o $@ $(LIBS)

$(BUILD)/computron: $(call obj,$(TOOL_SRC)) $(LIB)
	@echo "LD $@"
	@$(CC) $(ALL_LDFLAGS) $^ -o $@ $(LIBS)

$(BUILD)/tests/unit/%: $(BUILD)/obj/tests/unit/%.o $(BUILD)/obj/tests/unit/main.o $(LIB)
	@mkdir -p $(@D)
	@echo "LD $@"
	@$(CC) $(ALL_LDFLAGS) $^ -o $@ $(LIBS) -lcunit

.PHONY: unit
unit: $(UNIT)
.SECONDARY: $(call obj,$(UNIT_SRC) tests/unit/main.c)

.PHONY: clean
clean:
	rm -rf $(BUILD_ROOT)

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
