# Included by the Makefile: the module on real kernels in QEMU. See tests/kmod/README.md.
#
#   make check-kmod         Debian's 6.1 and its newest 6.12 (KERNELS="6.1" picks, PROGRAMS="ioctl" likewise)

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

.PHONY: kmod-programs check-kmod run-kmod
kmod-programs: $(KMOD_PROGRAMS) $(KMOD_SELF)
check-kmod:
	$(SUB) VARIANT=$(CHECK_VARIANT) run-kmod
run-kmod: kmod-programs
	@$(RUN) --timeout 900 tests/kmod/check-self

-include $(wildcard $(BUILD)/tests/kmod/*.d $(BUILD)/tests/kmod/lib/*.d)
