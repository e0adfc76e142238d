/* What the compiled part of the pipeline planner is given, and what it gives back. */
#ifndef JOULERY_PIPELINE_NATIVE_H
#define JOULERY_PIPELINE_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#define JOULERY_API __attribute__((visibility("default")))

/* Capacity of an arc without bound; flows stay far below half of it. */
#define JOULERY_UNBOUNDED (INT64_C(1) << 61)

/* The problem in whole numbers: units of time, units of power. */
typedef struct {
    int32_t instructions, edges;
    const int32_t *curve_of;     /* (instructions,) */
    const int32_t *first_vertex; /* (curves + 1,) into the two below, slowest vertex first */
    const int64_t *vertex_time;  /* strictly falling within a curve */
    const int64_t *vertex_room;  /* positive; JOULERY_UNBOUNDED for the fastest */
    const int32_t *edge_from, *edge_to; /* (edges,) instructions */
    const int64_t *edge_time;
    const int32_t *order;        /* (instructions,), each after all that it waits for */
    /* The curves as they are; those in whole numbers may have coarser slopes, for speed. */
    const int32_t *first_hull;   /* (curves + 1,) into the two below, slowest vertex first */
    const double *hull_seconds, *hull_cost;
    double unit_seconds, unit_watts;
    double joules;               /* a line between two samples may be off by this much */
} JouleryGraph;

/* One iteration on the frontier; its durations are apart. */
typedef struct {
    double seconds, watts; /* a second less costs this much more */
    double joules;         /* what the durations need above waiting ... */
    double bound;          /* ... and what no others go below */
} JoulerySample;

typedef struct {
    size_t samples;        /* slowest first */
    JoulerySample *sample;
    double *durations;     /* (samples, instructions), seconds */
} JouleryFrontier;

JOULERY_API JouleryFrontier *joulery_walk(const JouleryGraph *graph);
JOULERY_API void joulery_free(JouleryFrontier *found);

/* The same problem in seconds and joules, with the clocks that the hardware has. */
typedef struct {
    int32_t instructions;
    const int32_t *order;
    const int32_t *first_before, *before; /* what each waits for, and the time between */
    const double *before_seconds;
    const int32_t *first_after, *after;
    const double *after_seconds;
    const int32_t *curve_of, *first_point;
    const double *seconds, *cost; /* of each point, fastest first within a curve */
    const uint8_t *on_hull;
    const double *sample_seconds;   /* (samples,), increasing */
    const double *sample_durations; /* (samples, instructions) */
    int32_t samples;
} JouleryClocks;

JOULERY_API int joulery_round(const JouleryClocks *clocks, const double *deadline, int32_t count,
                              int32_t effort, int32_t *choice, double *start);

#endif
