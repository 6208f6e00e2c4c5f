t(){ make VARIANT=debug build/debug/tests/unit/$1 >/dev/null 2>&1 || echo nocompile; build/debug/tests/unit/$1 2>/dev/null | grep "^not ok" || echo "NOT CAUGHT $2"; git checkout -q uruntime; }
sed -i 's/	if (pager_ahead_has_ended(p))\n		ctn_mailbox_wake/X/; /Else the last completion/,/if (pager/{/if (pager/d}' uruntime/pager/ahead.c; git diff --stat | cat; t test_pager_ahead wake
sed -i 's/	else if (missing)/	else/' uruntime/sched/learn.c; t test_sched_ahead missing
sed -i 's/m->state != CTN_SCHED_LOADING)$/m->state == CTN_SCHED_ABSENT)/' uruntime/sched/ahead.c; git diff --stat|cat; t test_sched_ahead state
sed -i 's/CTN_MIN(piece, room), now_ns/piece, now_ns/' uruntime/sched/ahead.c; git diff --stat|cat; t test_sched_ahead cap
sed -i 's/if (least >= most)/if (0)/' uruntime/sched/actions.c; t test_sched_ahead most
