/* What the compiled decision of the policy `joulery` is given. Every figure and table comes from
 * Python, in this order (binding.py); shapes are as there, rows one after another. */
#ifndef JOULERY_RECURRING_DECIDE_H
#define JOULERY_RECURRING_DECIDE_H

#include <stdint.h>

#define JOULERY_API __attribute__((visibility("default")))

/* More batch sizes or limits than this are left to Python. */
#define JOULERY_MOST_ARMS 64
#define JOULERY_MOST_LIMITS 64
/* Room for outcomes of a run. */
#define JOULERY_MOST_NODES 16

/* A function at equal steps, straight in between and level beyond (normal.py). */
typedef struct {
    double first;         /* position of the first value, in steps */
    double steps;         /* per unit, a power of two */
    int64_t count;
    const double *values; /* (count,) */
} JouleryTable;

/* How a policy is tuned, and what all policies share. */
typedef struct {
    /* joulery.py */
    double horizon, dearest_try, trial_runs;
    double scouts, patience, slice_seconds, probe_share, probe_variance;
    int64_t train, probe; /* kinds of action */
    int64_t why_first, why_best, why_try, why_probe, why_unreached, why_scout, why_heir;
    /* outlook.py, profiles.py, limit_choice.py */
    double spare_epoch, spare_errors;
    double borrowed_share, borrowed_variance;
    double settled_variance, least_disturbance;
    /* planning.py: outcomes of a run, the cheapest first; the first `nodes` of each count */
    int64_t nodes;
    double node[JOULERY_MOST_NODES], weight[JOULERY_MOST_NODES], left[JOULERY_MOST_NODES];
    double stop[JOULERY_MOST_NODES];
    double tail_mean[JOULERY_MOST_NODES], tail_variance[JOULERY_MOST_NODES];
    JouleryTable excess, log_repeats;
} JouleryRules;

/* What is believed of every lane; arrays of Python, to be read only. */
typedef struct {
    int64_t lanes, arms, limits;
    double noise_runs, noise_scatter;                  /* expected: comparisons, and their sum */
    const double *epochs_mean, *epochs_covariance;     /* (lanes, arms), (lanes, arms, arms) */
    const double *cost_mean, *cost_covariance;         /* likewise */
    const double *runs, *under_way;                    /* (lanes, arms) */
    const double *scatter, *compared;                  /* (lanes,) */
    const double *logs, *precision;                    /* (lanes, arms, 2, limits), (.., limits) */
    const double *log_sizes;                           /* (lanes, arms), to the base 2 */
    const double *log_most_epochs;                     /* (lanes,) */
    const double *joule_weight, *second_weight;        /* (lanes,) */
    const int64_t *default_arm;                        /* (lanes,) */
    const uint8_t *valid, *informed;                   /* (lanes, arms), (lanes,) */
} JouleryBeliefs;

/* Decide for `count` lanes.
 *
 * `actions` holds kind, arm, limit and why as int64_t (count,) each, then the ceiling as double
 * (count,), then the limits to measure as bytes (count, limits). In the place of the kind stands
 * before which lane is meant, in that of the ceiling the word that its random numbers are made of
 * (draws.py), a uint64_t. Returns 0; anything else if one of the lanes has to be decided in
 * Python: then none of it means anything. */
JOULERY_API int joulery_decide(const JouleryRules *rules, const JouleryBeliefs *beliefs,
                               int64_t count, void *actions);

#endif
