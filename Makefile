# computron: see README.md. The two commands are `make demo` and `make check`.
#
#   make                 build/computrond, build/computron, build/libcomputron.a
#   make demo            three real models from a device that holds one
#   make check           everything that CI runs
#   make check-long      what takes too long for that: all of e2e under ASan and TSan, chaos, fuzzing
#   make check-unit      the programs of tests/unit (TESTS="a b" picks some)
#   make check-e2e       the daemon from outside (TESTS= likewise)
#   make check-asan      unit and end-to-end tests under ASan and UBSan
#   make check-tsan      the same under TSan
#   make check-ref       the reference in tests/ref against transformers (PyPI, in a venv)
#   make check-mutants   planted faults, each of which a test must catch (needs nothing built)
#   make check-fuzz      the parsers' fuzz targets (FUZZ_SECONDS=60 of search each; 0: inputs alone)
#   make bench           stage beside fio on a disk made of memory (as root)
#   make bench-swap      the bars of switches, uplinks and first tokens (five minutes, alone on the machine)
#   make check-kmod      the module on real kernels in QEMU (more in tests/kmod/kmod.mk)
#   make sim-report      the scheduler against its bars: tools/sim-report.md (TRACES=DIR holds servegen)
#   make lint            formatting, folder arrows, length of files, scripts
#   make kmod           computron.ko in kmod/ (KDIR=/lib/modules/RELEASE/build picks the kernel)
#   make dkms-install   its sources to /usr/src, for dkms to build (DESTDIR=)
#   make deps            installs what all of this needs (tools/install-deps)
#
# VARIANT=release (default; of the check-* targets: debug) | debug (assertions, poison on drop)
#   | asan | tsan | fuzz (libFuzzer with ASan and UBSan; clang) | cover (gcov)
# WERROR=0 lets warnings pass, BUILD_ROOT=DIR builds there, CC=clang with clang.

VARIANT ?= release
ifeq ($(origin CC),default)
CC := $(if $(filter fuzz,$(VARIANT)),clang,gcc)
endif
BUILD_ROOT ?= build
ifeq ($(VARIANT),release)
BUILD := $(BUILD_ROOT)
else
BUILD := $(BUILD_ROOT)/$(VARIANT)
endif

PKGS := jansson libmicrohttpd libfyaml liburing libpcre2-8 libxxhash libcurl
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS := $(shell pkg-config --libs $(PKGS) 2>/dev/null)
# The serial OpenBLAS: ranks are the threads. Debian keeps it beside the threaded one.
MULTIARCH := $(shell $(CC) -print-multiarch 2>/dev/null)
BLAS_DIR := /usr/lib/$(MULTIARCH)/openblas-serial
BLAS_CFLAGS := -isystem /usr/include/$(MULTIARCH)/openblas-serial
BLAS_LIBS := -L$(BLAS_DIR) -Wl,-rpath,$(BLAS_DIR) -lopenblas

OPT_release := -O2
OPT_debug := -O2 -DCTN_DEBUG
# gcc's flow analysis sees ghosts in instrumented code.
OPT_sanitizer := -Wno-format-truncation -Wno-maybe-uninitialized -fno-omit-frame-pointer
OPT_asan := -O1 -DCTN_DEBUG -fsanitize=address,undefined -fno-sanitize-recover=undefined \
	$(OPT_sanitizer)
OPT_tsan := -O1 -DCTN_DEBUG -fsanitize=thread $(OPT_sanitizer)

OPT_fuzz := -O1 -DCTN_DEBUG -fsanitize=fuzzer-no-link,address,undefined \
	-fno-sanitize-recover=undefined -fno-omit-frame-pointer
OPT_cover := -O0 -DCTN_DEBUG --coverage

WERROR ?= 1
WARN := -Wall -Wextra $(if $(filter 1,$(WERROR)),-Werror) -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
	-Wno-unused-parameter
CFLAGS ?= -g
ALL_CFLAGS := -std=c11 -D_GNU_SOURCE $(WARN) $(OPT_$(VARIANT)) $(CFLAGS) -fno-math-errno -pthread -MMD -MP \
	-Iuruntime -Ikmod/include/uapi -I. $(PKG_CFLAGS) $(BLAS_CFLAGS)
ALL_LDFLAGS := $(OPT_$(VARIANT)) $(LDFLAGS) -pthread
LIBS := $(PKG_LIBS) $(BLAS_LIBS) -lunistring -lm -ldl

LIB_SRC := $(filter-out uruntime/daemon/%,$(wildcard uruntime/*/*.c)) $(wildcard kernels/cpu/*.c)
DAEMON_SRC := $(wildcard uruntime/daemon/*.c)
TOOL_SRC := $(wildcard tools/*.c)
UNIT_SRC := $(wildcard tests/unit/test_*.c)
UNIT := $(UNIT_SRC:tests/unit/%.c=$(BUILD)/tests/unit/%)
# The server's programs stand on test doubles: objects in front of the library take the place of
# its members.
SERVER_UNIT := $(filter $(BUILD)/tests/unit/test_server%,$(UNIT))
SERVER_UNIT_SRC := $(addprefix tests/unit/,http_fixture.c fake_engine.c fake_tokenizer.c)
# These stand on a pretended kernel module.
FAKE_KMOD_UNIT := $(foreach u,$(UNIT),$(if $(filter %_kmod %_kmod_open,$(notdir $u)),$u))
FAKE_KMOD_SRC := $(addprefix tests/unit/,fake_kmod.c fake_kmod_frames.c)
# And these on the module's files that touch no memory.
KMOD_PURE_UNIT := $(filter $(BUILD)/tests/unit/test_kmod_%,$(UNIT))
KMOD_PURE_SRC := $(addprefix kmod/,units.c frames.c order.c)

comma := ,
obj = $(1:%.c=$(BUILD)/obj/%.o)
LIB := $(BUILD)/libcomputron.a
# What the tools are made of, but for main: tests link it.
TOOL_LIB := $(BUILD)/libtools.a
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

$(TOOL_LIB): $(call obj,$(filter-out tools/computron.c,$(TOOL_SRC)))
	@rm -f $@
	@ar rcs $@ $^

$(BUILD)/computron: $(call obj,tools/computron.c) $(TOOL_LIB) $(LIB)
	@echo "LD $@"
	@$(CC) $(ALL_LDFLAGS) $^ -o $@ $(LIBS)

$(SERVER_UNIT): $(call obj,$(SERVER_UNIT_SRC))
$(FAKE_KMOD_UNIT): $(call obj,$(FAKE_KMOD_SRC))
$(KMOD_PURE_UNIT): $(call obj,$(KMOD_PURE_SRC))
$(BUILD)/tests/unit/%: $(BUILD)/obj/tests/unit/%.o $(BUILD)/obj/tests/unit/main.o $(TOOL_LIB) $(LIB)
	@mkdir -p $(@D)
	@echo "LD $@"
	@$(CC) $(ALL_LDFLAGS) $(UNIT_FLAGS) $(filter %.o,$^) $(filter %.a,$^) -o $@ $(LIBS) -lcunit

# What the library asks of the C library and of the kernel, and a test makes fail.
$(BUILD)/tests/unit/test_pager_faults: UNIT_FLAGS := $(addprefix -Wl$(comma)--wrap=,\
	malloc calloc realloc reallocarray strdup open fopen fstat fcntl pread poll eventfd \
	epoll_create1 epoll_ctl mmap mremap mprotect madvise memfd_create ftruncate \
	pthread_create syscall prctl getrlimit posix_fadvise access io_uring_queue_init \
	io_uring_get_probe_ring io_uring_register_buffers_sparse \
	io_uring_register_buffers_update_tag io_uring_submit_and_wait)

# The fuzz targets: with libFuzzer, else with a main that runs inputs that are there.
FUZZ := $(patsubst tests/fuzz/%.c,$(BUILD)/tests/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_SHARED := tests/fuzz/fuzz.c tests/fuzz/checkpoint.c uruntime/daemon/options.c uruntime/daemon/config.c
ifeq ($(VARIANT),fuzz)
FUZZ_FLAGS := -fsanitize=fuzzer
$(BUILD)/tests/fuzz/fuzz_checkpoint_header: $(call obj,tests/fuzz/mutate_checkpoint_header.c)
else
FUZZ_SHARED += tests/fuzz/replay.c
FUZZ_FLAGS := $(addprefix -Wl$(comma)--wrap=,malloc calloc realloc reallocarray strdup strndup)
endif
$(BUILD)/tests/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(call obj,$(FUZZ_SHARED)) $(LIB)
	@mkdir -p $(@D)
	@echo "LD $@"
	@$(CC) $(ALL_LDFLAGS) $(FUZZ_FLAGS) $(filter %.o,$^) $(filter %.a,$^) -o $@ $(LIBS)

.PHONY: unit fuzz
fuzz: $(FUZZ)
unit: $(UNIT)
.SECONDARY: $(call obj,$(UNIT_SRC) $(SERVER_UNIT_SRC) $(FAKE_KMOD_SRC) $(KMOD_PURE_SRC) tests/unit/main.c $(wildcard tests/fuzz/*.c))

# ---- the kernel module, which has a make and a compiler of its own

.PHONY: kmod
kmod:
	+@$(MAKE) --no-print-directory -C kmod $(if $(KDIR),KDIR=$(KDIR)) modules

.PHONY: dkms-install
dkms-install:
	@dkms/install $(DESTDIR)

# ---- the commands of people ---------------------------------------------------------------

CHECK_VARIANT := $(if $(filter file,$(origin VARIANT)),debug,$(VARIANT))
SUB = +@$(MAKE) --no-print-directory

.PHONY: deps
deps:
	@tools/install-deps

.PHONY: demo
demo:
	@tools/install-deps build demo
	$(SUB) VARIANT=release WERROR=0 -j$(JOBS) all
	@tools/demo $(BUILD_ROOT)

.PHONY: check check-long lint
check:
	@tools/install-deps
	@BUILD_ROOT="$(BUILD_ROOT)" CC="$(CC)" tests/check $(STAGES)
check-long:
	@tools/install-deps
	@BUILD_ROOT="$(BUILD_ROOT)" CC="$(CC)" tests/check long
lint:
	@tests/run tools/lint

# 18 workloads of an hour over 10 seeds, and the rest: some minutes on one core.
.PHONY: sim-report
sim-report:
	$(SUB) VARIANT=release all
	tools/sim-report --build $(BUILD_ROOT) $(if $(TRACES),--traces $(TRACES)) --svg tools/sim-report.svg >tools/sim-report.md.new; \
		rc=$$?; mv tools/sim-report.md.new tools/sim-report.md; exit $$rc

JOBS ?= $(shell nproc)
E2E := $(filter-out %/harness.py,$(sort $(wildcard tests/e2e/*.py)))
# Seconds for one program of e2e.
E2E_LIMIT ?= $(if $(filter asan tsan,$(VARIANT)),900,300)
# TESTS="pool evict" picks the programs whose name holds one of the words.
pick = $(strip $(if $(TESTS),$(foreach t,$(TESTS),$(foreach f,$1,$(if $(findstring $t,$(notdir $f)),$f))),$1))
RUN = tests/run --build $(BUILD) $(RUNFLAGS)

.PHONY: check-unit check-e2e check-asan check-tsan check-mutants check-fuzz run-unit run-e2e
check-unit:
	$(SUB) VARIANT=$(CHECK_VARIANT) run-unit
check-e2e:
	$(SUB) VARIANT=$(CHECK_VARIANT) run-e2e
check-asan:
	$(SUB) VARIANT=asan run-unit
	$(SUB) VARIANT=asan run-e2e
check-tsan:
	$(SUB) VARIANT=tsan run-unit
	$(SUB) VARIANT=tsan run-e2e
FUZZ_SECONDS ?= 60
check-mutants:
	@tests/run --timeout 600 tests/mutants/run
check-fuzz:
	@FUZZ_SECONDS=$(FUZZ_SECONDS) BUILD_ROOT=$(BUILD_ROOT) tests/run --timeout 7200 tests/fuzz/run
# UNIT_SKIP="test_sched%" leaves out programs.
run-unit: unit
	@$(RUN) $(filter-out $(addprefix $(BUILD)/tests/unit/,$(UNIT_SKIP)),$(call pick,$(UNIT)))
run-e2e: all
	@$(RUN) --timeout $(E2E_LIMIT) $(call pick,$(E2E))

VENV := .venv
$(VENV)/.ready: tests/ref/requirements.txt
	@/usr/bin/python3 -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.PHONY: check-ref
check-ref: $(VENV)/.ready
	@tests/ref/check_self.py
	@tests/ref/check_golden.py
	@$(VENV)/bin/python tests/ref/check_transformers.py

# The stage beside fio on a disk made of memory, and its table of methods and providers (as root).
.PHONY: bench bench-swap
bench:
	$(SUB) VARIANT=release -j$(JOBS) all
	@BUILD_ROOT=$(BUILD_ROOT) tools/bench-ram
bench-swap:
	$(SUB) VARIANT=release -j$(JOBS) all
	@BUILD_ROOT=$(BUILD_ROOT) tools/bench-bars

.PHONY: clean
clean:
	rm -rf $(BUILD_ROOT)

include tests/kmod/kmod.mk

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
