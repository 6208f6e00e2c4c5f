// SPDX-License-Identifier: MIT
/* The pager: loads, drops, failures. */
#include "pager_fixture.h"

#include <signal.h>

/* ---- tests ------------------------------------------------------------------------------ */

static void test_load_stages_once_and_drop_gives_all_back(void)
{
	struct ctn_pager_model_stats s;
	struct ctn_device_ledger l;
	struct ctn_err err = {0};
	struct rig rig;

	rig_open(&rig, "host,mem=256M", "plain", 128 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, big_model(), 1, 1, &err), 0);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 1, &err), 0);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 2, &err), -EBUSY);
	CU_ASSERT_EQUAL(ctn_pager_drop(rig.pager, 0), -EBUSY);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.loaded[0], 1);
	CU_ASSERT(rig.staged >= rig.ckpt[0]->bytes);
	CU_ASSERT(rig.staged <= rig.ckpt[0]->bytes + rig.plan[0]->part_count * 4 * CTN_IO_ALIGN);
	CU_ASSERT_EQUAL(rig.moved, rig.ckpt[0]->bytes);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 3, &err), -EALREADY);
	ctn_pager_model_stats(rig.pager, 0, &s);
	CU_ASSERT_EQUAL(s.host_bytes, rig.ckpt[0]->bytes);
	CU_ASSERT_EQUAL(s.device_bytes, rig.ckpt[0]->bytes);
	CU_ASSERT_EQUAL(s.device_total, rig.ckpt[0]->bytes);
	ctn_pager_device_ledger(rig.pager, 0, &l);
	CU_ASSERT_EQUAL(l.resident, ctn_pager_rank_bytes(rig.pager, 0, 0));
	CU_ASSERT_EQUAL(ctn_pager_drop(rig.pager, 0), 0);
	expect_empty_device(&rig);

	/* From the pool: no byte is read from disk. */
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 4, &err), 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.loaded[0], 2);
	CU_ASSERT_EQUAL(rig.staged, 0);
	CU_ASSERT_EQUAL(rig.moved, rig.ckpt[0]->bytes);
	rig_close(&rig);
}

static void test_reservation_is_all_or_nothing(void)
{
	struct ctn_err err = {0};
	struct rig rig;

	/* Room for one of the three only. */
	rig_open(&rig, "host,mem=1792K", "plain", 64 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, sample("llama-stories260k"), 1, 1, &err), 0);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, sample("opt-tinystories"), 1, 1, &err), 1);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 1, &err), 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 1, 2, &err), -ENOSPC);
	CU_ASSERT_EQUAL(ctn_pager_active(rig.pager), 0);
	CU_ASSERT_EQUAL(ctn_pager_check(rig.pager, &err), 0);
	CU_ASSERT_EQUAL(ctn_pager_drop(rig.pager, 0), 0);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 1, 3, &err), 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.loaded[1], 1);
	rig_close(&rig);
}

static uint64_t payload_of(const struct ctn_rank_plan *rank, uint32_t layers)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < layers; i++) {
		for (uint32_t k = 0; k < rank->shards[i].piece_count; k++)
			bytes += rank->shards[i].pieces[k].payload;
	}
	return bytes;
}

/* What a cancelled load has left on its device, by layers; all counts must say the same. */
static uint32_t expect_kept(struct rig *rig)
{
	const struct ctn_rank_plan *rank = &rig->plan[0]->ranks[0];
	uint32_t kept = ctn_pager_kept_layers(rig->pager, 0, 0);
	struct ctn_device_ledger l;
	struct ctn_pager_model_stats s;
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < kept; i++)
		bytes += ctn_pager_layer_bytes(rig->pager, 0, 0, i);
	ctn_pager_device_ledger(rig->pager, 0, &l);
	CU_ASSERT_EQUAL(l.resident, bytes);
	CU_ASSERT_EQUAL(l.free, l.total - bytes);
	ctn_pager_model_stats(rig->pager, 0, &s);
	CU_ASSERT_EQUAL(s.device_bytes, payload_of(rank, kept));
	return kept;
}

/* One layer after the other is on its way, 8 pieces ahead; the load is cancelled at ten moments. */
static void test_a_cancelled_load_keeps_what_has_arrived(void)
{
	uint32_t partly = 0, layers, kept;
	struct ctn_err err = {0};
	struct rig rig;

	rig_open(&rig, "host,mem=256M,link=400M", "plain", 128 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, write_big(16, 300, 0), 1, 1, &err), 0);
	layers = rig.plan[0]->ranks[0].layer_count;
	for (uint32_t i = 0; i < 10; i++) {
		struct pollfd pfd = {.fd = ctn_pager_fd(rig.pager), .events = POLLIN};

		CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 2 * i, &err), 0);
		for (uint32_t k = 0; k < i; k++) {
			if (poll(&pfd, 1, 20) > 0)
				ctn_pager_dispatch(rig.pager);
		}
		if (ctn_pager_active(rig.pager) == 0)
			break;
		ctn_pager_cancel(rig.pager, 0);
		CU_ASSERT_FATAL(settle(&rig));
		CU_ASSERT_EQUAL(rig.failed[0], i + 1);
		CU_ASSERT_EQUAL(rig.err.code, -ECANCELED);
		kept = expect_kept(&rig);
		partly += kept > 0 && kept < layers;
		/* The next load moves the rest alone. */
		if (kept < layers) {
			CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 2 * i + 1, &err), 0);
			CU_ASSERT_FATAL(settle(&rig));
			CU_ASSERT_EQUAL(rig.moved,
					rig.ckpt[0]->bytes -
						payload_of(&rig.plan[0]->ranks[0], kept));
		}
		CU_ASSERT_EQUAL(expect_kept(&rig), layers);
		CU_ASSERT_EQUAL(ctn_pager_drop(rig.pager, 0), 0);
		expect_empty_device(&rig);
		/* Half the times the pool is cold again. */
		if (i % 2)
			ctn_pager_drop_host(rig.pager, 0, UINT64_MAX);
	}
	CU_ASSERT(partly >= 3);
	rig_close(&rig);
}

/* All of it was with the link already: it is all there, and may be used without another load. */
static void test_cancelled_too_late(void)
{
	struct ctn_stream *stream;
	struct ctn_err err = {0};
	struct rig rig;

	rig_open(&rig, "host,mem=16M,link=5M", "plain", 16 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, sample("llama-stories260k"), 1, 1, &err), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_stream_new(rig.devices[0], &stream), 0);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 1, &err), 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(ctn_pager_drop(rig.pager, 0), 0);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 2, &err), 0);
	ctn_pager_cancel(rig.pager, 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.failed[0], 1);
	CU_ASSERT_EQUAL_FATAL(expect_kept(&rig), rig.plan[0]->ranks[0].layer_count);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 3, &err), -EALREADY);
	ctn_pager_use(rig.pager, 0);
	for (uint32_t i = 0; i < rig.plan[0]->ranks[0].layer_count; i++)
		CU_ASSERT_EQUAL(ctn_pager_wait_layer(rig.pager, 0, 0, i, stream), 0);
	CU_ASSERT_EQUAL(ctn_stream_sync(stream), 0);
	ctn_pager_unuse(rig.pager, 0);
	ctn_stream_free(stream);
	rig_close(&rig);
}

static void test_a_pool_of_the_host_window_pages_everything(void)
{
	struct ctn_err err = {0};
	struct ctn_plan *plan;
	struct ctn_checkpoint *ckpt;
	uint64_t window;
	struct rig rig;

	CU_ASSERT_EQUAL_FATAL(ctn_checkpoint_open(big_model(), &ckpt, &err), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_plan_build(ckpt, 1, 1, &plan, &err), 0);
	window = plan->host_window;
	CU_ASSERT(window < plan->host_bytes);
	ctn_plan_free(plan);
	ctn_checkpoint_close(ckpt);

	rig_open(&rig, "host,mem=256M", "plain", window);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, big_model(), 1, 1, &err), 0);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, sample("gpt2-tinystories"), 1, 1, &err), 1);
	for (uint32_t i = 0; i < 6; i++) {
		CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, i % 2, i, &err), 0);
		CU_ASSERT_FATAL(settle(&rig));
		CU_ASSERT_EQUAL(ctn_pager_drop(rig.pager, i % 2), 0);
	}
	CU_ASSERT_EQUAL(rig.loaded[0], 3);
	CU_ASSERT_EQUAL(rig.loaded[1], 3);
	CU_ASSERT(rig.host_needs > 0);
	rig_close(&rig);

	/* A segment of 2 MiB less is refused, with both figures. */
	rig_open(&rig, "host,mem=256M", "plain", window - CTN_EXTENT_ALIGN);
	CU_ASSERT_EQUAL(rig_add(&rig, big_model(), 1, 1, &err), -ENOSPC);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "pool is too small"));
	rig_close(&rig);
}

static void loads_in_a_small_pool(const char *const *dirs)
{
	struct ctn_err err = {0};
	struct rig rig;

	rig_open(&rig, "host,mem=512M,link=400M", "plain", 24 * CTN_MIB);
	for (int m = 0; m < 3; m++)
		CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dirs[m], 1, 1, &err), m);
	for (uint32_t round = 0; round < 10; round++) {
		for (uint32_t m = 0; m < 3; m++)
			CU_ASSERT_EQUAL(
				ctn_pager_load(rig.pager, (m + round) % 3, round * 3 + m, &err), 0);
		CU_ASSERT_FATAL(settle(&rig));
		for (uint32_t m = 0; m < 3; m++) {
			CU_ASSERT_EQUAL(rig.loaded[m], round + 1);
			CU_ASSERT_EQUAL(ctn_pager_drop(rig.pager, m), 0);
		}
	}
	expect_empty_device(&rig);
	rig_close(&rig);
}

static void test_two_loads_in_a_small_pool_never_wait_for_each_other(void)
{
	char *other[4];

	/* The fourth and fifth have the bytes of the first, which they share on the device. */
	for (unsigned int i = 0; i < 4; i++)
		other[i] = strdup(write_big(3, 1500, i < 2 ? i + 1 : 0));
	loads_in_a_small_pool((const char *[]){big_model(), other[0], other[1]});
	loads_in_a_small_pool((const char *[]){big_model(), other[2], other[3]});
	for (int i = 0; i < 4; i++)
		free(other[i]);
}

static void test_models_of_the_same_files_share_frames(void)
{
	struct ctn_err err = {0};
	struct rig rig;

	rig_open(&rig, "host,mem=512M", "plain", 128 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, big_model(), 1, 1, &err), 0);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, big_model(), 1, 1, &err), 1);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 1, &err), 0);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 1, 2, &err), 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.loaded[0], 1);
	CU_ASSERT_EQUAL(rig.loaded[1], 1);
	/* Together they have read the files once. */
	{
		struct ctn_pager_move_stats s;

		ctn_pager_move_stats(rig.pager, CTN_PAGER_STAGE, &s);
		CU_ASSERT_EQUAL(s.ok, rig.plan[0]->part_count);
	}
	rig_close(&rig);
}

static void test_lost_frames_are_ordinary_drops(void)
{
	struct ctn_err err = {0};
	struct rig rig;

	rig_open(&rig, "host,mem=512M", "lossy", 128 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, big_model(), 1, 1, &err), 0);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, sample("gpt2-tinystories"), 1, 1, &err), 1);
	ctn_pool_lossy_set(rig.pool, 7, 3);
	for (uint32_t i = 0; i < 40; i++) {
		CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, i % 2, i, &err), 0);
		CU_ASSERT_FATAL(settle(&rig));
		CU_ASSERT_EQUAL(ctn_pager_drop(rig.pager, i % 2), 0);
	}
	CU_ASSERT_EQUAL(rig.loaded[0] + rig.loaded[1], 40);
	ctn_pool_lossy_set(rig.pool, 0, 0);
	rig_close(&rig);
}

static void test_a_changed_file_fails_the_load_by_name(void)
{
	const char *dir = strdup(write_big(2, 300, 0));
	struct ctn_err err = {0};
	char path[PATH_MAX];
	struct rig rig;

	rig_open(&rig, "host,mem=512M", "plain", 128 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, 1, 1, &err), 0);
	gen_path(path, dir, "model.safetensors");
	CU_ASSERT_EQUAL_FATAL(truncate(path, 1 << 20), 0);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 1, &err), 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.failed[0], 1);
	CU_ASSERT_PTR_NOT_NULL(strstr(rig.err.msg, "model.safetensors"));
	expect_empty_device(&rig);
	free((char *)dir);
	rig_close(&rig);
}

static void test_layers_can_be_waited_for_one_by_one(void)
{
	struct waiter first = {.layer = 0}, last = {.layer = 4};
	struct ctn_err err = {0};
	pthread_t a, b;
	struct rig rig;

	/* 19 MB over 50 MB/s: the last layer comes long after the first. */
	rig_open(&rig, "host,mem=256M,link=50M", "plain", 128 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, big_model(), 1, 1, &err), 0);
	first.rig = last.rig = &rig;
	CU_ASSERT_EQUAL_FATAL(ctn_stream_new(rig.devices[0], &first.stream), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_stream_new(rig.devices[0], &last.stream), 0);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 1, &err), 0);
	ctn_pager_use(rig.pager, 0);
	pthread_create(&a, NULL, wait_main, &first);
	pthread_create(&b, NULL, wait_main, &last);
	CU_ASSERT_FATAL(settle(&rig));
	pthread_join(a, NULL);
	pthread_join(b, NULL);
	CU_ASSERT_EQUAL(first.rc, 0);
	CU_ASSERT_EQUAL(last.rc, 0);
	/* Layers 1 to 4 are 16 MB, at least 300 ms. */
	CU_ASSERT(last.ended_ns - first.ended_ns > 200000000);
	ctn_pager_unuse(rig.pager, 0);
	ctn_stream_free(first.stream);
	ctn_stream_free(last.stream);
	rig_close(&rig);
}

static void test_a_failed_load_wakes_waiters_and_keeps_memory_in_use(void)
{
	struct waiter w = {.layer = 4};
	struct ctn_device_ledger l;
	struct ctn_err err = {0};
	pthread_t t;
	struct rig rig;

	rig_open(&rig, "host,mem=256M,link=20M", "plain", 128 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, big_model(), 1, 1, &err), 0);
	w.rig = &rig;
	CU_ASSERT_EQUAL_FATAL(ctn_stream_new(rig.devices[0], &w.stream), 0);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 1, &err), 0);
	ctn_pager_use(rig.pager, 0);
	pthread_create(&t, NULL, wait_main, &w);
	ctn_pager_cancel(rig.pager, 0);
	pthread_join(t, NULL);
	CU_ASSERT_EQUAL(w.rc, -EIO);
	/* A step still runs: no FAILED, and what was under way keeps its memory. */
	for (int i = 0; i < 20; i++) {
		struct pollfd pfd = {.fd = ctn_pager_fd(rig.pager), .events = POLLIN};

		if (poll(&pfd, 1, 10) > 0)
			ctn_pager_dispatch(rig.pager);
	}
	CU_ASSERT_EQUAL(rig.failed[0], 0);
	ctn_pager_unuse(rig.pager, 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.failed[0], 1);
	ctn_pager_device_ledger(rig.pager, 0, &l);
	CU_ASSERT_EQUAL(l.free, l.total);
	ctn_stream_free(w.stream);
	rig_close(&rig);
}

static void test_claims_and_ranks_share_the_ledger(void)
{
	struct ctn_device_ledger l;
	struct ctn_claim *claim;
	struct ctn_err err = {0};
	struct rig rig;
	uint64_t granule;

	rig_open(&rig, "host:4,mem=64M", "plain", 128 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, big_model(), 2, 2, &err), 0);
	granule = ctn_device_props(rig.devices[0])->granule;
	CU_ASSERT_EQUAL_FATAL(ctn_claim_new(rig.pager, 2, CTN_CLAIM_KV, 128 * CTN_MIB, &claim), 0);
	CU_ASSERT_EQUAL(ctn_claim_resize(claim, 1), 0);
	memset(ctn_claim_addr(claim), 1, 1);
	ctn_pager_device_ledger(rig.pager, 2, &l);
	CU_ASSERT_EQUAL(l.claims[CTN_CLAIM_KV], granule);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 1, &err), 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.loaded[0], 1);
	for (uint32_t d = 0; d < 4; d++) {
		ctn_pager_device_ledger(rig.pager, d, &l);
		CU_ASSERT_EQUAL(l.resident, ctn_pager_rank_bytes(rig.pager, 0, d));
	}
	/* More than there is leaves it as it was. */
	CU_ASSERT_EQUAL(ctn_claim_resize(claim, 100 * CTN_MIB), -ENOSPC);
	CU_ASSERT_EQUAL(ctn_pager_check(rig.pager, &err), 0);
	ctn_claim_free(claim);
	rig_close(&rig);
}

static void test_digests_of_frames_are_those_of_their_bytes(void)
{
	struct ctn_frame_info infos[64];
	struct ctn_err err = {0};
	struct rig rig;
	size_t n;

	rig_open(&rig, "host,mem=256M", "plain", 128 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, big_model(), 1, 1, &err), 0);
	for (uint32_t i = 0; i < 5; i++) {
		CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, i, &err), 0);
		CU_ASSERT_FATAL(settle(&rig));
		CU_ASSERT_EQUAL(ctn_pager_drop(rig.pager, 0), 0);
	}
	n = ctn_pool_list(rig.pool, infos, 64);
	CU_ASSERT_EQUAL(n, rig.plan[0]->part_count);
	for (size_t i = 0; i < n; i++) {
		const struct ctn_extent *extents;
		struct ctn_digest digest;
		uint32_t count;

		CU_ASSERT_EQUAL_FATAL(ctn_pool_lease(rig.pool, infos[i].ref), 0);
		CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(rig.pool, infos[i].ref, &extents, &count),
				      0);
		for (uint32_t p = 0; p < rig.plan[0]->part_count; p++) {
			const struct ctn_part *part = &rig.plan[0]->parts[p];

			if (memcmp(&part->key, &infos[i].key, sizeof(part->key)) != 0)
				continue;
			ctn_part_digest(rig.ckpt[0], part, extents, count, &digest);
			CU_ASSERT_EQUAL(memcmp(&digest, &infos[i].digest, sizeof(digest)), 0);
		}
		ctn_pool_release(rig.pool, infos[i].ref);
	}
	rig_close(&rig);
}

CTN_TESTS("pager", CTN_TEST(test_load_stages_once_and_drop_gives_all_back),
	  CTN_TEST(test_reservation_is_all_or_nothing),
	  CTN_TEST(test_a_cancelled_load_keeps_what_has_arrived), CTN_TEST(test_cancelled_too_late),
	  CTN_TEST(test_a_pool_of_the_host_window_pages_everything),
	  CTN_TEST(test_two_loads_in_a_small_pool_never_wait_for_each_other),
	  CTN_TEST(test_models_of_the_same_files_share_frames),
	  CTN_TEST(test_lost_frames_are_ordinary_drops),
	  CTN_TEST(test_a_changed_file_fails_the_load_by_name),
	  CTN_TEST(test_layers_can_be_waited_for_one_by_one),
	  CTN_TEST(test_a_failed_load_wakes_waiters_and_keeps_memory_in_use),
	  CTN_TEST(test_claims_and_ranks_share_the_ledger),
	  CTN_TEST(test_digests_of_frames_are_those_of_their_bytes))
