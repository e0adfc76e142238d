/* Remember how every duration changes along the frontier, and recall it at any iteration time. */
#include "native.h"

#include <stdlib.h>
#include <string.h>

/* A key frame after so many pieces per instruction: recalling costs about as much as copying. */
enum { PIECES_PER_KEYFRAME = 4 };

static int enlarge(void **memory, size_t count, size_t item) {
    void *larger = realloc(*memory, count * item);
    if (!larger) return 0;
    *memory = larger;
    return 1;
}

static size_t doubled(size_t room) { return room ? 2 * room : 1024; }

int joulery_write_vertex(JouleryWalk *walk, int64_t time, int64_t flow) {
    if (walk->vertices && walk->vertex[walk->vertices - 1].time == time) walk->vertices--;
    if (walk->vertices == walk->vertex_room) {
        size_t room = doubled(walk->vertex_room);
        if (!enlarge((void **)&walk->vertex, room, sizeof(JouleryVertex))) return 0;
        walk->vertex_room = room;
    }
    walk->vertex[walk->vertices++] = (JouleryVertex){time, flow};
    return 1;
}

/* Where the durations of one more sample go. */
float *joulery_next_sample(JouleryWalk *walk) {
    size_t n = (size_t)walk->instructions;
    if (walk->samples == walk->sample_room) {
        size_t room = walk->sample_room ? 2 * walk->sample_room : 64;
        if (!enlarge((void **)&walk->sample, room, sizeof(JoulerySample)) ||
            !enlarge((void **)&walk->durations, room * n, sizeof(float)))
            return NULL;
        walk->sample_room = room;
    }
    return walk->durations + n * walk->samples++;
}

static int write_moment(JouleryWalk *walk, int64_t time) {
    if (walk->moments && walk->moment[walk->moments - 1].time == time) return 1;
    if (walk->moments == walk->moment_room) {
        size_t room = doubled(walk->moment_room);
        if (!enlarge((void **)&walk->moment, room, sizeof(JouleryMoment))) return 0;
        walk->moment_room = room;
    }
    walk->moment[walk->moments++] = (JouleryMoment){time, walk->pieces};
    return 1;
}

int joulery_write_piece(JouleryWalk *walk, int64_t time, int64_t duration, int32_t owner,
                        int rate) {
    if (!write_moment(walk, time)) return 0;
    if (walk->pieces == walk->piece_room) {
        size_t room = doubled(walk->piece_room);
        if (!enlarge((void **)&walk->intercept, room, sizeof(int64_t)) ||
            !enlarge((void **)&walk->owner, room, sizeof(int32_t)))
            return 0;
        walk->piece_room = room;
    }
    walk->intercept[walk->pieces] = duration - rate * time;
    walk->owner[walk->pieces++] = 4 * owner + rate + 1;
    return 1;
}

static void replay(const JouleryWalk *walk, JouleryLine *line, size_t from, size_t to) {
    for (size_t k = from; k < to; k++)
        line[walk->owner[k] >> 2] = (JouleryLine){walk->intercept[k], (walk->owner[k] & 3) - 1};
}

int joulery_write_keyframes(JouleryWalk *walk) {
    size_t n = (size_t)walk->instructions;
    walk->stretch = PIECES_PER_KEYFRAME * n;
    walk->keyframes = walk->pieces / walk->stretch + 1;
    walk->keyframe = malloc(walk->keyframes * n * sizeof(JouleryLine));
    if (!walk->keyframe) return 0;
    for (size_t i = 0; i < n; i++) walk->keyframe[i] = (JouleryLine){walk->slowest[i], 0};
    for (size_t k = 1; k < walk->keyframes; k++) {
        JouleryLine *line = walk->keyframe + k * n;
        memcpy(line, line - n, n * sizeof(JouleryLine));
        replay(walk, line, (k - 1) * walk->stretch, k * walk->stretch);
    }
    return 1;
}

/* How many pieces hold at `time`: those of every moment at or above it. */
static size_t pieces_until(const JouleryWalk *walk, int64_t time) {
    size_t low = 0, high = walk->moments;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (walk->moment[middle].time >= time) low = middle + 1;
        else high = middle;
    }
    return low < walk->moments ? walk->moment[low].first : walk->pieces;
}

JOULERY_API int joulery_durations(const JouleryWalk *walk, int64_t time, int64_t *duration) {
    size_t n = (size_t)walk->instructions, until = pieces_until(walk, time);
    size_t frame = until / walk->stretch;
    JouleryLine *line = malloc(n * sizeof(JouleryLine));
    if (!line) return 0;
    memcpy(line, walk->keyframe + frame * n, n * sizeof(JouleryLine));
    replay(walk, line, frame * walk->stretch, until);
    for (size_t i = 0; i < n; i++) {
        int64_t durations = line[i].intercept + line[i].rate * time;
        duration[i] = durations < walk->slowest[i] ? durations : walk->slowest[i];
    }
    free(line);
    return 1;
}

JOULERY_API void joulery_free(JouleryWalk *walk) {
    if (!walk) return;
    free(walk->vertex);
    free(walk->moment);
    free(walk->intercept);
    free(walk->owner);
    free(walk->slowest);
    free(walk->keyframe);
    free(walk->sample);
    free(walk->durations);
    free(walk);
}
