/* SPDX-License-Identifier: MIT */
/*
 * The simulator: the daemon's scheduler (uruntime/sched, the same code) under a virtual clock.
 * Private to tools. Times are nanoseconds from the start of the run.
 *
 * What is simulated: devices, one link each that serves loads in order; models at tp x pp, rank
 * (t, p) on device p * tp + t, all ranks of one size; a pool of host memory, which may lack some
 * of the models, with one disk before it. A request makes --tokens tokens, and takes part in a step
 * for each. A step is a batch of up to max_batch requests that were admitted and in no step; it
 * goes through pp stages of batch_s / pp each, whatever its size; a stage occupies its devices,
 * first come first served over all models. So a batch takes batch_s and one may start per
 * batch_s / pp. A stage of a model that is being loaded starts as early as its layers, which arrive
 * evenly, allow it to run through without a break.
 */
#ifndef CTN_TOOLS_SIM_H
#define CTN_TOOLS_SIM_H

#include "base/base.h"

#define CTN_SIM_MAX_DEVICES 64
#define CTN_SIM_MAX_NAMED   64 /* models with a priority or a pin of their own */

/* ---- what is simulated: sim_setup.c ----------------------------------------------------- */

struct ctn_sim_cluster {
	uint32_t devices;
	double link_bytes_per_s; /* of each device */
	double load_overhead_s;  /* of each load, on the link */
	double batch_s;
	uint64_t device_bytes;    /* 0: by --resident or --resident-bytes */
	uint64_t workspace_bytes; /* of a rank that has its weights, or gets them */
	uint64_t kv_bytes;        /* of a request on a rank */
	bool parallel_steps;      /* steps of several models on a device do not slow each other, as
				   * where a device only emulates computing */
	double disk_bytes_per_s;  /* into the pool */
	uint64_t host_bytes;      /* of the pool; 0: it holds every model */
	/* Of models in turn, or fewer: the others have priority 0 and are not pinned. */
	int32_t priorities[CTN_SIM_MAX_NAMED];
	bool pinned[CTN_SIM_MAX_NAMED];
};

/* `spec`: "4xa100-pcie4" or a YAML file with the fields of the struct. */
int ctn_sim_cluster_parse(const char *spec, struct ctn_sim_cluster *cluster, struct ctn_err *err);

struct ctn_sim_model {
	uint64_t rank_bytes;
	uint32_t rank_layers;
	int32_t priority;
	bool pinned;
};

#define CTN_SIM_MAX_LAYERS 64 /* of a rank */
/* `spec`: "opt-13b" or "bytes=SIZE[,SIZE...][,layers=N]", sizes of models in turn, each spread
 * evenly over so many layers a rank. */
int ctn_sim_models_parse(const char *spec, uint32_t tp, uint32_t pp, struct ctn_sim_model *models,
			 uint32_t count, struct ctn_err *err);
/* Bytes of OPT-13B on its fullest rank: the 2023 system's layout, embedding and head whole on
 * every rank that has them. */
uint64_t ctn_sim_opt13b_rank_bytes(uint32_t tp, uint32_t pp);

/* ---- random numbers: sim_random.c ------------------------------------------------------- */

struct ctn_sim_random {
	uint64_t state[4];
};

/* Streams of one seed are independent. */
void ctn_sim_random_init(struct ctn_sim_random *r, uint64_t seed, uint64_t stream);
uint64_t ctn_sim_random_u64(struct ctn_sim_random *r);
/* In [0, 1). */
double ctn_sim_random_uniform(struct ctn_sim_random *r);
/* Of mean 1. */
double ctn_sim_random_gamma(struct ctn_sim_random *r, double shape);
double ctn_sim_random_weibull(struct ctn_sim_random *r, double shape);

/* ---- arrivals: sim_workload.c, sim_servegen.c ------------------------------------------- */

struct ctn_sim_arrival {
	uint64_t at_ns;
	uint32_t model;
	double deadline_s; /* after its arrival; 0: none */
};

/* Ordered by time. */
struct ctn_sim_workload {
	struct ctn_sim_arrival *arrivals;
	size_t count, cap;
	uint32_t models;
	bool mixed_sizes; /* its models are of the four sizes of `servegen` unless told otherwise */
	uint64_t end_ns;
};

/*
 * gamma:rates=R,R...[,cv=CV,CV...]  a model a rate; gaps of a gamma distribution; the last cv
 *                                   holds for the rest
 * gamma:models=N,rate=R[,cv=CV][,zipf=S]
 *                                   R requests/s over N models, by popularity 1/k^S
 * azure:FILE,models=N[,zipf=S]      times of the file, models drawn by popularity
 * servegen:DIR,rate=R               a client a model; all rates times one factor, so that their
 *                                   mean over the trace is R
 * csv:FILE                          lines "seconds,model number[,deadline]": the deadline in
 *                                   seconds after its arrival
 *
 * `hours` 0: one for gamma, else all of the trace. The first gap of a gamma stream is cut at a
 * uniform place: streams of the same rate are not in step.
 */
int ctn_sim_workload_parse(const char *spec, double hours, uint64_t seed,
			   struct ctn_sim_workload *w, struct ctn_err *err);
void ctn_sim_workload_free(struct ctn_sim_workload *w);
/* For those who make arrivals: -ENOMEM. Sorted later. */
int ctn_sim_workload_add(struct ctn_sim_workload *w, double at_s, uint32_t model, double deadline_s,
			 struct ctn_err *err);
int ctn_sim_servegen(const char *dir, double rate, double hours, uint64_t seed,
		     struct ctn_sim_workload *w, struct ctn_err *err);

/* ---- runs: sim_world.c, sim_2023.c ------------------------------------------------------ */

struct ctn_sim_setup {
	struct ctn_sim_cluster cluster;
	uint32_t tp, pp;
	uint32_t max_batch;
	uint64_t device_bytes;
	uint64_t host_bytes; /* of the pool; 0: it holds every model */
	uint32_t tokens;     /* of a request, a step each */
	bool without_pauses, without_load_ahead, without_stage_ahead;
	uint64_t seed;
	const struct ctn_sim_model *models; /* as many as the workload has */
	const struct ctn_sim_workload *workload;
};

struct ctn_sim_result {
	const char *policy;
	double *latency_s; /* by arrival; negative: refused */
	size_t count;
	uint64_t swaps; /* loads */
	uint64_t bytes_loaded;
	double load_s;            /* sum over loads: from the first byte that its link carries */
	uint64_t decisions;       /* calls of sched */
	uint64_t end_ns;          /* when the last request ended */
	uint64_t predicted_loads; /* that ended */
	double predicted_off_s;   /* sum of the absolute errors of their expected seconds */
	double ttft_s;            /* sum */
	uint64_t late;            /* answered after their deadline */
	uint64_t bytes_staged, bytes_ahead; /* from disk; of these, ahead of requests */
	/* Requests that wait for the load of their model: how long links carried nothing meanwhile,
	 * by the loads that began up to and with theirs; the most of these. So long others may run
	 * on while they wait. */
	double turn_wait_s;
};

void ctn_sim_result_free(struct ctn_sim_result *r);

/* Runs one policy: one of sched's, clairvoyant, computron2023-c, computron2023-s or resident.
 * -ENOENT. */
int ctn_sim_run(const struct ctn_sim_setup *setup, const char *policy, struct ctn_sim_result *r,
		struct ctn_err *err);

/* sched in a world of devices and links; `free_loads`: a load takes no time and is not counted. */
int ctn_sim_run_sched(const struct ctn_sim_setup *setup, const char *policy, bool free_loads,
		      struct ctn_sim_result *r, struct ctn_err *err);
/* The 2023 system: see sim_2023.c. */
int ctn_sim_run_2023(const struct ctn_sim_setup *setup, bool serial, struct ctn_sim_result *r,
		     struct ctn_err *err);

/* ---- a heap of events: sim_heap.c ------------------------------------------------------- */

struct ctn_sim_event {
	uint64_t at_ns;
	uint64_t order; /* of equal times, the first pushed comes first */
	uint32_t type;
	uint32_t what;
};

struct ctn_sim_heap {
	struct ctn_sim_event *events;
	size_t count, cap;
	uint64_t pushed;
	bool failed; /* an allocation did; later pushes do nothing */
};

void ctn_sim_heap_push(struct ctn_sim_heap *h, uint64_t at_ns, uint32_t type, uint32_t what);
/* The earliest; the heap is not empty. */
struct ctn_sim_event ctn_sim_heap_pop(struct ctn_sim_heap *h);
void ctn_sim_heap_free(struct ctn_sim_heap *h);

/* ---- figures: sim_figures.c, sim_output.c, sim_svg.c ------------------------------------ */

struct ctn_sim_figures {
	double mean_s, p50_s, p95_s, p99_s, max_s;
	double ttft_mean_s;
	double mean_load_s; /* load seconds a request */
	double fairness;    /* Jain's index of the models' mean slowdowns; 1: all the same */
	uint64_t served, refused;
	double *sorted_s; /* the latencies; owned */
	uint32_t models;  /* of the following */
	double model_max_s[CTN_SIM_MAX_NAMED];
};

/* Slowdown: latency over batch_s. Percentiles by nearest rank. */
int ctn_sim_figures(const struct ctn_sim_setup *setup, const struct ctn_sim_result *r,
		    struct ctn_sim_figures *f, struct ctn_err *err);
void ctn_sim_figures_free(struct ctn_sim_figures *f);

int ctn_sim_print_json(const struct ctn_sim_result *r, const struct ctn_sim_figures *f,
		       uint32_t count, struct ctn_err *err);
void ctn_sim_print_table(const struct ctn_sim_result *r, const struct ctn_sim_figures *f,
			 uint32_t count);
/* Share of requests over latency, a column a step of a logarithmic axis. */
void ctn_sim_print_cdf(const struct ctn_sim_result *r, const struct ctn_sim_figures *f,
		       uint32_t count);
int ctn_sim_write_svg(const char *path, const struct ctn_sim_result *r,
		      const struct ctn_sim_figures *f, uint32_t count, struct ctn_err *err);

/* ---- calibration: sim_calibrate.c ------------------------------------------------------- */

struct ctn_sim_calibration {
	uint32_t tp, pp;
	double published_s, model_s;
	bool load;  /* else offload */
	bool bound; /* within 12 ms by the cost model; the others print what is left */
};

#define CTN_SIM_CALIBRATIONS 12
/* The 2023 system's offload and load seconds beside a cost model of three figures. */
void ctn_sim_calibrate(struct ctn_sim_calibration rows[CTN_SIM_CALIBRATIONS]);

#endif
