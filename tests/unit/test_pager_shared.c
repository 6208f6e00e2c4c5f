// SPDX-License-Identifier: MIT
/*
 * Device frames: tails of models that go and come back, and frames that fine-tunes of one base
 * share. What a device holds is compared with the files, not with what the pager believes.
 */
#include "manifest_fixture.h"
#include "pager_fixture.h"

/* Under the sanitizers a part of the rounds. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

static const struct gen_model base = {GEN_BIG(3, 1500)};

static char *base_folder(void)
{
	return copy_folder(gen_write(&base));
}

/* ---- what is there, by other means ------------------------------------------------------- */

/* Bytes of the file that stand at `offset` of a part's frame. */
static const char *file_bytes(const struct ctn_part *part, char **files, uint64_t offset)
{
	for (uint32_t i = 0; i < part->run_count; i++) {
		const struct ctn_run *run = &part->runs[i];

		if (offset >= run->frame_offset && offset < run->frame_offset + run->bytes)
			return files[run->file] + run->file_offset + offset - run->frame_offset;
	}
	CU_FAIL_FATAL("a rectangle outside the runs");
	return NULL;
}

static bool piece_is(const struct ctn_plan *plan, char **files, const struct ctn_piece *piece,
		     const uint8_t *device)
{
	for (uint32_t k = 0; k < piece->rect_count; k++) {
		const struct ctn_rect *rect = &piece->rects[k];

		for (uint64_t row = 0; row < rect->height; row++) {
			const char *src = file_bytes(&plan->parts[rect->part], files,
						     rect->src_offset + row * rect->src_pitch);

			if (memcmp(device + rect->dst_offset + row * rect->dst_pitch, src,
				   rect->width) != 0)
				return false;
		}
	}
	return true;
}

/* True if the first `layers` shards of each rank hold the bytes of the model's files. */
static bool holds_files(struct rig *rig, uint32_t model, uint32_t layers)
{
	const struct ctn_plan *plan = rig->plan[model];
	const struct ctn_checkpoint *ckpt = plan->ckpt;
	char **files = calloc(ckpt->file_count, sizeof(*files));
	bool ok = true;
	size_t len;

	for (uint32_t f = 0; f < ckpt->file_count; f++)
		CU_ASSERT_EQUAL_FATAL(
			ctn_read_file(ckpt->files[f].path, SIZE_MAX - 1, &files[f], &len, NULL), 0);
	for (uint32_t r = 0; r < plan->rank_count; r++) {
		const struct ctn_rank_plan *rank = &plan->ranks[r];
		void *const *const *at = ctn_pager_pieces(rig->pager, model, r);

		for (uint32_t i = 0; i < CTN_MIN(layers, rank->layer_count); i++) {
			for (uint32_t k = 0; k < rank->shards[i].piece_count; k++)
				ok &= piece_is(plan, files, &rank->shards[i].pieces[k], at[i][k]);
		}
	}
	for (uint32_t f = 0; f < ckpt->file_count; f++)
		free(files[f]);
	free(files);
	return ok;
}

static bool by_bytes(const struct ctn_piece *a, const struct ctn_piece *b)
{
	return a->kind == b->kind && a->bytes == b->bytes;
}

/* Bytes that the pieces of attention in a rank's first layers take on a device and bring from host
 * memory. */
static void attention(struct rig *rig, uint32_t model, uint32_t layers, uint64_t *charged,
		      uint64_t *payload)
{
	const struct ctn_plan *plan = rig->plan[model];

	*charged = *payload = 0;
	for (uint32_t r = 0; r < plan->rank_count; r++) {
		uint64_t granule = ctn_device_props(rig->devices[r % rig->device_count])->granule;

		for (uint32_t i = 0; i < CTN_MIN(plan->ranks[r].layer_count, layers); i++) {
			const struct ctn_shard *s = &plan->ranks[r].shards[i];

			for (uint32_t k = 0; k < s->piece_count; k++) {
				CU_ASSERT(by_bytes(&s->pieces[k],
						   &rig->plan[0]->ranks[r].shards[i].pieces[k]));
				if (s->pieces[k].kind != CTN_PART_ATTENTION)
					continue;
				*charged += ctn_align_up(s->pieces[k].bytes, granule);
				*payload += s->pieces[k].payload;
			}
		}
	}
}

static uint64_t resident(struct rig *rig)
{
	uint64_t sum = 0;

	for (uint32_t d = 0; d < rig->device_count; d++) {
		struct ctn_device_ledger l;

		ctn_pager_device_ledger(rig->pager, d, &l);
		CU_ASSERT_EQUAL(l.loading + l.draining, 0);
		sum += l.resident;
	}
	return sum;
}

static uint64_t all_bytes(struct rig *rig, uint32_t model)
{
	uint64_t sum = 0;

	for (uint32_t r = 0; r < rig->plan[model]->rank_count; r++)
		sum += ctn_pager_rank_bytes(rig->pager, model, r);
	return sum;
}

static void load(struct rig *rig, uint32_t model)
{
	uint32_t before = rig->loaded[model];
	struct ctn_err err = {0};

	CU_ASSERT_EQUAL_FATAL(ctn_pager_load(rig->pager, model, 1, &err), 0);
	CU_ASSERT_FATAL(settle(rig));
	CU_ASSERT_EQUAL_FATAL(rig->loaded[model], before + 1);
}

/* ---- tails ------------------------------------------------------------------------------- */

/* Bytes of the shards of a rank from layer `first` on: as they are charged, as they are moved. */
static void tail_bytes(struct rig *rig, uint32_t rank, uint32_t first, uint64_t *charged,
		       uint64_t *payload)
{
	const struct ctn_rank_plan *plan = &rig->plan[0]->ranks[rank];
	uint64_t granule = ctn_device_props(rig->devices[rank % rig->device_count])->granule;

	*charged = *payload = 0;
	for (uint32_t i = first; i < plan->layer_count; i++) {
		for (uint32_t k = 0; k < plan->shards[i].piece_count; k++) {
			*charged += ctn_align_up(plan->shards[i].pieces[k].bytes, granule);
			*payload += plan->shards[i].pieces[k].payload;
		}
	}
}

static void tails_at(uint32_t tp, uint32_t pp)
{
	uint64_t charged, payload, all, sum = 0;
	struct ctn_err err = {0};
	char *dir = base_folder();
	struct rig rig;

	rig_open(&rig, "host:4,mem=128M", "plain", 128 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, tp, pp, &err), 0);
	all = all_bytes(&rig, 0);
	load(&rig, 0);
	for (uint32_t r = 0; r < tp * pp; r++) {
		for (uint32_t keep = 0; keep <= rig.plan[0]->ranks[r].layer_count; keep++) {
			struct ctn_pager_move_stats before, after;

			tail_bytes(&rig, r, keep, &charged, &payload);
			ctn_pager_move_stats(rig.pager, CTN_PAGER_DROP_DEVICE, &before);
			CU_ASSERT_EQUAL(ctn_pager_drop_tail(rig.pager, 0, r, keep), 0);
			ctn_pager_move_stats(rig.pager, CTN_PAGER_DROP_DEVICE, &after);
			CU_ASSERT_EQUAL(after.bytes - before.bytes, charged);
			CU_ASSERT_EQUAL(resident(&rig), all - charged);
			CU_ASSERT_EQUAL(ctn_pager_check(rig.pager, &err), 0);
			if (!charged) {
				CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 1, &err), -EALREADY);
				continue;
			}
			load(&rig, 0);
			CU_ASSERT_EQUAL(rig.moved, payload);
			CU_ASSERT_EQUAL(resident(&rig), all);
		}
	}
	CU_ASSERT(holds_files(&rig, 0, UINT32_MAX));
	/* Of all ranks at once, another length of each. */
	for (uint32_t r = 0; r < tp * pp; r++) {
		CU_ASSERT_EQUAL(ctn_pager_drop_tail(rig.pager, 0, r, r % 3), 0);
		tail_bytes(&rig, r, r % 3, &charged, &payload);
		sum += payload;
	}
	load(&rig, 0);
	CU_ASSERT_EQUAL(rig.moved, sum);
	CU_ASSERT(holds_files(&rig, 0, UINT32_MAX));
	rig_close(&rig);
	free(dir);
}

static void test_a_tail_goes_and_comes_back_alone(void)
{
	if (!SANITIZED)
		tails_at(1, 1);
	tails_at(2, 2);
}

static void test_what_is_left_can_be_read_while_the_tail_comes(void)
{
	struct waiter w[5];
	pthread_t threads[5];
	struct ctn_err err = {0};
	char *dir = base_folder();
	uint64_t start;
	struct rig rig;

	/* Layers 3 and 4 are 11 MB: they take more than 100 ms. */
	rig_open(&rig, "host,mem=256M,link=100M", "plain", 128 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, 1, 1, &err), 0);
	load(&rig, 0);
	CU_ASSERT_EQUAL(ctn_pager_drop_tail(rig.pager, 0, 0, 3), 0);
	start = ctn_now_ns();
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 2, &err), 0);
	ctn_pager_use(rig.pager, 0);
	CU_ASSERT_EQUAL(ctn_pager_drop_tail(rig.pager, 0, 0, 0), -EBUSY);
	for (uint32_t i = 0; i < 5; i++) {
		w[i] = (struct waiter){.rig = &rig, .layer = i};
		CU_ASSERT_EQUAL_FATAL(ctn_stream_new(rig.devices[0], &w[i].stream), 0);
		pthread_create(&threads[i], NULL, wait_main, &w[i]);
	}
	for (uint32_t i = 0; i < 3; i++) {
		pthread_join(threads[i], NULL);
		CU_ASSERT_EQUAL(w[i].rc, 0);
	}
	/* Nothing was dispatched since the load began: what they needed was there. */
	CU_ASSERT_EQUAL(rig.loaded[0], 1);
	CU_ASSERT(holds_files(&rig, 0, 3));
	CU_ASSERT_FATAL(settle(&rig));
	for (uint32_t i = 3; i < 5; i++) {
		pthread_join(threads[i], NULL);
		CU_ASSERT_EQUAL(w[i].rc, 0);
	}
	CU_ASSERT(w[4].ended_ns - start > 100000000);
	CU_ASSERT_EQUAL(ctn_pager_drop_tail(rig.pager, 0, 0, 0), -EBUSY);
	ctn_pager_unuse(rig.pager, 0);
	for (uint32_t i = 0; i < 5; i++)
		ctn_stream_free(w[i].stream);
	rig_close(&rig);
	free(dir);
}

/* ---- shared frames ----------------------------------------------------------------------- */

static void share_at(uint32_t tp, uint32_t pp, bool manifests)
{
	uint64_t charged, payload, whole;
	struct ctn_err err = {0};
	char *dirs[8] = {base_folder()};
	struct rig rig;

	rig_open(&rig, "host:4,mem=256M", "plain", 256 * CTN_MIB);
	for (uint32_t i = 0; i < 8; i++) {
		if (i)
			dirs[i] = tuned_folder(dirs[0], i - 1);
		if (manifests)
			write_manifest(dirs[i]);
		CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dirs[i], tp, pp, &err), (int)i);
	}
	ctn_pager_find_shared(rig.pager);
	/* Only manifests tell beforehand. */
	CU_ASSERT_EQUAL(rig.shared > 0, manifests);
	whole = all_bytes(&rig, 0);
	attention(&rig, 0, UINT32_MAX, &charged, &payload);
	CU_ASSERT(payload < rig.ckpt[0]->bytes / 2);
	load(&rig, 0);
	CU_ASSERT_EQUAL(resident(&rig), whole);
	for (uint32_t i = 1; i < 8; i++) {
		load(&rig, i);
		CU_ASSERT_EQUAL(rig.moved, payload);
		CU_ASSERT_EQUAL(resident(&rig), whole + i * charged);
	}
	for (uint32_t i = 0; i < 8; i++)
		CU_ASSERT(holds_files(&rig, i, UINT32_MAX));
	/* From one to another: what differs goes and comes, the rest stays. */
	for (uint32_t i = 0; i < 8; i++) {
		CU_ASSERT_EQUAL(ctn_pager_drop(rig.pager, i), 0);
		CU_ASSERT_EQUAL(resident(&rig), whole + 6 * charged);
		CU_ASSERT(holds_files(&rig, (i + 1) % 8, UINT32_MAX));
		load(&rig, i);
		CU_ASSERT_EQUAL(rig.moved, payload);
		CU_ASSERT(holds_files(&rig, i, UINT32_MAX));
	}
	/* The last one takes all with it. */
	for (uint32_t i = 0; i < 8; i++) {
		CU_ASSERT_EQUAL(resident(&rig), whole + (7 - i) * charged);
		CU_ASSERT_EQUAL(ctn_pager_drop(rig.pager, i), 0);
	}
	CU_ASSERT_EQUAL(resident(&rig), 0);
	rig_close(&rig);
	for (uint32_t i = 0; i < 8; i++)
		free(dirs[i]);
}

static void test_fine_tunes_cost_what_they_change(void)
{
	share_at(2, 2, true);
	share_at(2, 1, false);
	if (SANITIZED)
		return;
	share_at(1, 1, true);
	share_at(1, 1, false);
}

static void test_another_placement_shares_nothing(void)
{
	struct ctn_err err = {0};
	char *dir = base_folder();
	struct rig rig;

	write_manifest(dir);
	rig_open(&rig, "host:2,mem=256M", "plain", 256 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, 1, 1, &err), 0);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, 2, 1, &err), 1);
	ctn_pager_find_shared(rig.pager);
	load(&rig, 0);
	load(&rig, 1);
	CU_ASSERT(holds_files(&rig, 0, UINT32_MAX));
	CU_ASSERT(holds_files(&rig, 1, UINT32_MAX));
	/* But for norms, which every rank has whole, and which lie with larger pieces. */
	CU_ASSERT_EQUAL(resident(&rig), all_bytes(&rig, 0) + all_bytes(&rig, 1));
	rig_close(&rig);
	free(dir);
}

/* The same parts on the same device, of which each rank has the other half. */
static void test_ranks_that_changed_places_share_no_halves(void)
{
	struct ctn_err err = {0};
	char *dir = base_folder();
	struct rig rig;

	write_manifest(dir);
	rig_open(&rig, "host:2,mem=256M", "plain", 256 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add_from(&rig, dir, 2, 1, 0, &err), 0);
	CU_ASSERT_EQUAL_FATAL(rig_add_from(&rig, dir, 2, 1, 1, &err), 1);
	ctn_pager_find_shared(rig.pager);
	load(&rig, 0);
	load(&rig, 1);
	CU_ASSERT(holds_files(&rig, 0, UINT32_MAX));
	CU_ASSERT(holds_files(&rig, 1, UINT32_MAX));
	rig_close(&rig);
	free(dir);
}

/* Two loads want the same frames, and one of them ends early: at any moment, in any order. */
static void test_a_load_that_ends_hands_on_what_others_wait_for(void)
{
	char *dirs[2] = {base_folder(), NULL};
	uint64_t charged, payload;
	struct ctn_err err = {0};
	struct rig rig;

	dirs[1] = tuned_folder(dirs[0], 0);
	write_manifest(dirs[0]);
	write_manifest(dirs[1]);
	rig_open(&rig, "host,mem=256M,link=200M", "plain", 128 * CTN_MIB);
	for (uint32_t i = 0; i < 2; i++)
		CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dirs[i], 1, 1, &err), (int)i);
	ctn_pager_find_shared(rig.pager);
	for (uint32_t round = 0; round < 40; round += SANITIZED ? 3 : 1) {
		uint32_t first = round % 2, ends = round / 2 % 2;
		struct pollfd pfd = {.fd = ctn_pager_fd(rig.pager), .events = POLLIN};

		/* The second has the smaller ticket every other time. */
		CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, first, 10, &err), 0);
		CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, !first, round % 3 ? 20 : 5, &err), 0);
		for (uint32_t k = 0; k < round / 4; k++) {
			if (poll(&pfd, 1, 20) > 0)
				ctn_pager_dispatch(rig.pager);
		}
		ctn_pager_cancel(rig.pager, ends);
		CU_ASSERT_FATAL(settle(&rig));
		CU_ASSERT(holds_files(&rig, !ends, UINT32_MAX));
		/* It keeps what has arrived of its own, and shares the rest. */
		attention(&rig, ends, ctn_pager_kept_layers(rig.pager, ends, 0), &charged,
			  &payload);
		CU_ASSERT_EQUAL(resident(&rig), all_bytes(&rig, 0) + charged);
		ctn_pager_drop(rig.pager, 0);
		ctn_pager_drop(rig.pager, 1);
		rig.loaded[0] = rig.loaded[1] = 0;
		expect_empty_device(&rig);
		if (round % 5 == 4)
			ctn_pager_drop_host(rig.pager, 0, UINT64_MAX);
	}
	rig_close(&rig);
	free(dirs[0]);
	free(dirs[1]);
}

/* Everything that can happen to four models of one base, in an order that nobody chose. */
static void random_walk(uint64_t seed, bool manifests, const char *provider, uint64_t pool)
{
	uint64_t ticket = 0;
	struct ctn_err err = {0};
	char *dirs[4] = {base_folder()};
	struct rig rig;

	rig_open(&rig, "host:2,mem=64M,link=1G", provider, pool);
	for (uint32_t i = 0; i < 4; i++) {
		if (i)
			dirs[i] = tuned_folder(dirs[0], i - 1);
		if (manifests)
			write_manifest(dirs[i]);
		CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dirs[i], 2, 1, &err), (int)i);
	}
	if (strcmp(provider, "lossy") == 0)
		ctn_pool_lossy_set(rig.pool, seed, 10);
	for (uint32_t step = 0; step < 300; step++) {
		uint32_t m = (uint32_t)(gen_random(&seed) % 4);
		struct pollfd pfd = {.fd = ctn_pager_fd(rig.pager), .events = POLLIN};

		switch (gen_random(&seed) % 10) {
		case 0:
		case 1:
		case 2:
			ctn_pager_load(rig.pager, m, ++ticket, &err);
			break;
		case 3:
			ctn_pager_drop(rig.pager, m);
			break;
		case 4:
			ctn_pager_drop_tail(rig.pager, m, (uint32_t)(gen_random(&seed) % 2),
					    (uint32_t)(gen_random(&seed) % 5));
			break;
		case 5:
			ctn_pager_cancel(rig.pager, m);
			break;
		case 6:
			ctn_pager_drop_host(rig.pager, m, gen_random(&seed) % (16 * CTN_MIB));
			break;
		default:
			if (poll(&pfd, 1, 5) > 0)
				ctn_pager_dispatch(rig.pager);
			break;
		}
		CU_ASSERT_EQUAL_FATAL(ctn_pager_check(rig.pager, &err), 0);
	}
	CU_ASSERT_FATAL(settle(&rig));
	for (uint32_t i = 0; i < 4; i++) {
		if (ctn_pager_load(rig.pager, i, ++ticket, &err) != -EALREADY)
			CU_ASSERT_FATAL(settle(&rig));
		CU_ASSERT(holds_files(&rig, i, UINT32_MAX));
	}
	if (strcmp(provider, "lossy") == 0)
		ctn_pool_lossy_set(rig.pool, 0, 0);
	rig_close(&rig);
	for (uint32_t i = 0; i < 4; i++)
		free(dirs[i]);
}

static void test_any_order_of_moves_keeps_the_books(void)
{
	for (uint64_t seed = 1; seed <= (SANITIZED ? 1 : 3); seed++) {
		random_walk(seed, true, "plain", 128 * CTN_MIB);
		random_walk(seed, false, "plain", 32 * CTN_MIB);
		random_walk(seed, seed % 2, "lossy", 64 * CTN_MIB);
	}
}

CTN_TESTS("pager_shared", CTN_TEST(test_a_tail_goes_and_comes_back_alone),
	  CTN_TEST(test_what_is_left_can_be_read_while_the_tail_comes),
	  CTN_TEST(test_fine_tunes_cost_what_they_change),
	  CTN_TEST(test_another_placement_shares_nothing),
	  CTN_TEST(test_ranks_that_changed_places_share_no_halves),
	  CTN_TEST(test_a_load_that_ends_hands_on_what_others_wait_for),
	  CTN_TEST(test_any_order_of_moves_keeps_the_books))
