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
} JouleryGraph;

/* Below this iteration time, down to the next vertex, cost rises by `flow` per unit of time. */
typedef struct {
    int64_t time, flow;
} JouleryVertex;

/* From this iteration time down the pieces from `first` on hold. */
typedef struct {
    int64_t time;
    size_t first;
} JouleryMoment;

/* An instruction durations intercept + rate * T, at most its slowest, until its next piece. */
typedef struct {
    int64_t intercept;
    int32_t rate;
} JouleryLine;

/* One iteration on the frontier: its durations are apart. Joules are above the slowest's. */
typedef struct {
    double seconds, watts; /* a second less costs this much more */
    double joules;         /* what the durations need ... */
    double bound;          /* ... and what no others go below */
} JoulerySample;

/* The curves as they are, where those of the graph are coarser for the sake of speed. */
typedef struct {
    const int32_t *first;   /* (curves + 1,) into the two below, slowest vertex first */
    const double *seconds;
    const double *watts;    /* of the edge to the next faster vertex */
    double unit_seconds, unit_watts;
    double joules;          /* a line between two samples may be off by this much */
} JouleryTruth;

typedef struct {
    int32_t instructions;
    size_t vertices, moments, pieces;
    size_t vertex_room, moment_room, piece_room;
    JouleryVertex *vertex;
    JouleryMoment *moment;
    int64_t *intercept;   /* of each piece */
    int32_t *owner;       /* of each piece: 4 * instruction + rate + 1 */
    int64_t *slowest;     /* (instructions,) */
    JouleryLine *keyframe; /* (keyframes, instructions), the lines that hold after each stretch */
    size_t keyframes, stretch;
    int64_t augmentations;
    size_t samples, sample_room;
    JoulerySample *sample;
    float *durations; /* (samples, instructions), seconds */
} JouleryWalk;

JOULERY_API JouleryWalk *joulery_walk(const JouleryGraph *graph);
JOULERY_API JouleryWalk *joulery_sample(const JouleryGraph *graph, const JouleryTruth *truth);
JOULERY_API void joulery_free(JouleryWalk *walk);
JOULERY_API int joulery_durations(const JouleryWalk *walk, int64_t time, int64_t *duration);

int joulery_write_piece(JouleryWalk *walk, int64_t time, int64_t duration, int32_t owner, int rate);
int joulery_write_vertex(JouleryWalk *walk, int64_t time, int64_t flow);
int joulery_write_keyframes(JouleryWalk *walk);
float *joulery_next_sample(JouleryWalk *walk);

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
} JouleryClocks;

JOULERY_API int joulery_round(const JouleryClocks *clocks, const double *wanted, double deadline,
                              int32_t attempts, int32_t *choice, double *start);
JOULERY_API int joulery_improve(const JouleryClocks *clocks, double deadline, int32_t trials,
                                int32_t *choice, double *start);

#endif
