# Included by the Makefile: the module on real kernels in QEMU. See tests/kmod/README.md.
#
#   make check-kmod         Debian's 6.1 and its newest 6.12 (KERNELS="6.1" picks, PROGRAMS="ioctl" likewise)
#   make check-kmod-matrix  5.10 of bullseye and the newest of sid, each built by its own compiler
#   make check-kmod-debug   a kernel that checks itself (KASAN, lockdep, kmemleak, fault injection)

KMOD_CFLAGS := -std=c11 -D_GNU_SOURCE $(WARN) -O2 -g -static -pthread -MMD -MP -Ikmod/include/uapi -Itests/kmod/lib
KMOD_LIB := $(patsubst tests/kmod/lib/%.c,$(BUILD)/tests/kmod/lib/%.o,$(wildcard tests/kmod/lib/*.c))
KMOD_PROGRAMS := $(patsubst tests/kmod/programs/%.c,$(BUILD)/tests/kmod/%,$(wildcard tests/kmod/programs/*.c))
KMOD_SELF := $(patsubst tests/kmod/self/%.c,$(BUILD)/tests/kmod/%,$(wildcard tests/kmod/self/*.c))

$(BUILD)/tests/kmod/lib/%.o: tests/kmod/lib/%.c
	@mkdir -p $(@D)
	@$(CC) $(KMOD_CFLAGS) -c $< -o $@
$(KMOD_PROGRAMS): $(BUILD)/tests/kmod/%: tests/kmod/programs/%.c $(KMOD_LIB)
	@echo "CC $<"
	@$(CC) $(KMOD_CFLAGS) $< $(KMOD_LIB) -o $@ -luring
# These two say themselves what they say, or nothing.
KMOD_BARE := $(addprefix $(BUILD)/tests/kmod/self_,short silent)
$(KMOD_SELF): $(BUILD)/tests/kmod/%: tests/kmod/self/%.c $(KMOD_LIB)
	@echo "CC $<"
	@$(CC) $(KMOD_CFLAGS) $< $(if $(filter $@,$(KMOD_BARE)),,$(KMOD_LIB)) -o $@

# Programs of tests/unit that run in the guest as well (image.py).
KMOD_UNIT := $(addprefix $(BUILD)/tests/unit/,test_pool_kmod test_pool_kmod_open test_pager_kmod)

.PHONY: kmod-programs kmod-unit check-kmod check-kmod-matrix check-kmod-debug run-kmod
kmod-programs: $(KMOD_PROGRAMS) $(KMOD_SELF)
kmod-unit: $(KMOD_UNIT)
check-kmod:
	$(SUB) VARIANT=$(CHECK_VARIANT) run-kmod
run-kmod: kmod-programs all kmod-unit
	@$(RUN) --timeout 3000 tests/kmod/check-self tests/kmod/check-delivery tests/kmod/check-kernels
check-kmod-matrix:
	@tools/install-deps kmod-matrix
	$(SUB) VARIANT=$(CHECK_VARIANT) kmod-programs all kmod-unit
	@KERNELS="bullseye sid" tests/run --build $(BUILD_ROOT)/$(CHECK_VARIANT) --timeout 3600 tests/kmod/check-kernels
check-kmod-debug:
	@tools/install-deps kmod-debug
	$(SUB) VARIANT=$(CHECK_VARIANT) kmod-programs all kmod-unit
	@KERNELS=debug KMOD_FUZZ_SECONDS=$(or $(KMOD_FUZZ_SECONDS),600) \
		tests/run --build $(BUILD_ROOT)/$(CHECK_VARIANT) --timeout 14400 tests/kmod/check-kernels

-include $(wildcard $(BUILD)/tests/kmod/*.d $(BUILD)/tests/kmod/lib/*.d)
