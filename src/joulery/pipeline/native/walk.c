/* Walk the whole frontier of iteration time against cost, exactly.
 *
 * The dual of the convex time-cost problem is a flow from the start of the iteration to its end.
 * The flow through an instruction is its marginal cost of time; the more flows, the faster it must
 * run, so an instruction is a bundle of parallel arcs, one for each vertex of its hull: the arc's
 * length is the vertex's time, its capacity the change of slope there. The flow from start to end
 * is the marginal cost of iteration time, and the longest path that can still carry flow is the
 * iteration time at which more begins to pay. Sending flow along longest paths, one after another,
 * therefore visits every vertex of the frontier from the slowest to the fastest iteration.
 *
 * Nodes are the starts and ends of instructions; their potentials are the schedule. `reached` is
 * the set of nodes that tight residual arcs connect with the start. As the iteration shrinks,
 * reached nodes stand still and all others move with its end, so the next event is the least slack
 * of the arcs that leave the set. Times of nodes outside are stored relative to the end: nothing
 * needs to be touched while they move, and the heap's keys (the iteration time at which an arc
 * becomes tight) stay valid. All numbers are integers, so ties are exact.
 */
#include "native.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    int32_t other;    /* the node at the far end */
    int32_t residual; /* residual arc from here to there; the one back is residual ^ 1 */
} Neighbour;

typedef struct {
    int64_t at;      /* its time, from the start if reached, else from the end */
    int64_t queued;  /* largest key in the heap for it */
    int32_t parent;  /* residual arc that reached it */
    int32_t first;   /* of its neighbours */
} Node;

typedef struct {
    int64_t time;
    int32_t node;
} Event;

typedef struct {
    int64_t length; /* negative for backward ones */
    int64_t room;   /* what it can still carry */
} Residual;

typedef struct {
    const JouleryGraph *graph;
    int32_t nodes, arcs, source, sink;
    int32_t *tail;        /* of each residual arc */
    Residual *arc;        /* two for each arc: forward, backward */
    int32_t *ahead;       /* instruction: vertex that carries the next unit of flow ... */
    int32_t *behind;      /* ... and the one that carried the last, -1 without flow */
    Neighbour *neighbours;
    Node *node;
    char *reached;
    Event *heap;
    size_t heap_size, heap_room;
    int32_t *stack;       /* reached nodes whose neighbours are still to be looked at */
    int32_t *likely;      /* the same, where hints lead on */
    int32_t *hint;        /* residual arc by which flow last went on from the node, or -1 */
    int32_t depth, likely_depth;
    char *pending;
    int32_t *removed;
    int32_t removed_count;
    int32_t *touched;
    char *is_touched;
    int32_t touched_count;
    signed char *rate;    /* of each instruction's duration with the iteration time */
    int64_t end, flow;
    JouleryWalk *walk;
    int failed;
} Walker;

static const int64_t NEVER = INT64_MIN;

static void push_event(Walker *w, int64_t time, int32_t node) {
    if (time <= w->node[node].queued) return;
    w->node[node].queued = time;
    if (w->heap_size == w->heap_room) {
        size_t room = w->heap_room ? 2 * w->heap_room : 1024;
        Event *larger = realloc(w->heap, room * sizeof(Event));
        if (!larger) {
            w->failed = 1;
            return;
        }
        w->heap = larger;
        w->heap_room = room;
    }
    size_t hole = w->heap_size++;
    while (hole > 0 && w->heap[(hole - 1) / 2].time < time) {
        w->heap[hole] = w->heap[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    w->heap[hole] = (Event){time, node};
}

static Event pop_event(Walker *w) {
    Event top = w->heap[0];
    Event last = w->heap[--w->heap_size];
    size_t hole = 0, child;
    while ((child = 2 * hole + 1) < w->heap_size) {
        if (child + 1 < w->heap_size && w->heap[child + 1].time > w->heap[child].time) child++;
        if (w->heap[child].time <= last.time) break;
        w->heap[hole] = w->heap[child];
        hole = child;
    }
    w->heap[hole] = last;
    return top;
}

static void touch(Walker *w, int32_t node) {
    int32_t instruction = node >> 1;
    if (instruction < w->graph->instructions && !w->is_touched[instruction]) {
        w->is_touched[instruction] = 1;
        w->touched[w->touched_count++] = instruction;
    }
}

/* Where the node stands, seen from the start of the iteration. */
static int64_t position(const Walker *w, int32_t node) {
    return w->reached[node] ? w->node[node].at : w->node[node].at + w->end;
}

/* Note which durations change from here on, each once for all that happens at this time. */
static void write_pieces(Walker *w) {
    for (int32_t k = 0; k < w->touched_count && !w->failed; k++) {
        int32_t i = w->touched[k];
        w->is_touched[i] = 0;
        signed char rate = (signed char)(w->reached[2 * i] - w->reached[2 * i + 1]);
        if (rate == w->rate[i]) continue;
        w->rate[i] = rate;
        int64_t duration = position(w, 2 * i + 1) - position(w, 2 * i);
        w->failed = !joulery_write_piece(w->walk, w->end, duration, i, rate);
    }
    w->touched_count = 0;
}

/* Take the node into the reached set; what it reaches in turn is left to `flood`. */
static void reach(Walker *w, int32_t node, int32_t by) {
    w->reached[node] = 1;
    w->node[node].at += w->end;
    w->node[node].parent = by;
    touch(w, node);
    if (!w->pending[node]) {
        w->pending[node] = 1;
        if (w->hint[node] >= 0) w->likely[w->likely_depth++] = node;
        else w->stack[w->depth++] = node;
    }
}

/* How far the hints lead from here by tight arcs with room: the end, or where they fail. */
static int32_t hints_lead_to(const Walker *w, int32_t node) {
    while (node != w->sink && w->hint[node] >= 0) {
        Residual arc = w->arc[w->hint[node]];
        int32_t next = w->tail[w->hint[node] ^ 1];
        if (arc.room == 0 || position(w, next) - position(w, node) > arc.length) break;
        node = next;
    }
    return node;
}

/* Go the way that flow went to the end before, if it is still open; else forget it. */
static void follow_hints(Walker *w, int32_t node) {
    int32_t last = hints_lead_to(w, node);
    int open = last == w->sink;
    while (node != last) {
        int32_t by = w->hint[node];
        if (!open) w->hint[node] = -1;
        node = w->tail[by ^ 1];
        if (open && !w->reached[node]) reach(w, node, by);
    }
    if (!open) w->hint[last] = -1;
}

/* Of the last two instructions found, look first at the one that can carry more. */
static void wider_first(Walker *w) {
    int32_t *top = w->stack + w->depth - 1;
    int32_t last = top[0], other = top[-1];
    if ((last | other) & 1 || last >= w->source || other >= w->source) return;
    if (w->arc[last].room >= w->arc[other].room) return;
    top[0] = other;
    top[-1] = last;
}

/* Reach what tight arcs reach, depth first; pause when the end is found, most is then wasted. */
static void flood(Walker *w) {
    while (w->depth + w->likely_depth > 0 && !w->reached[w->sink]) {
        int32_t here = w->likely_depth > 0 ? w->likely[--w->likely_depth] : w->stack[--w->depth];
        w->pending[here] = 0;
        if (!w->reached[here]) continue;
        if (w->hint[here] >= 0) {
            follow_hints(w, here);
            if (w->reached[w->sink]) {
                w->pending[here] = 1;
                w->stack[w->depth++] = here;
                return;
            }
        }
        int64_t relative = w->node[here].at - w->end;
        int32_t before = w->depth;
        for (int32_t k = w->node[here].first; k < w->node[here + 1].first; k++) {
            Neighbour next = w->neighbours[k];
            if (w->reached[next.other] || w->arc[next.residual].room == 0) continue;
            int64_t slack = w->node[next.other].at - relative - w->arc[next.residual].length;
            if (slack > 0) push_event(w, w->end - slack, next.other);
            else reach(w, next.other, next.residual);
        }
        if (w->depth - before >= 2) wider_first(w);
    }
}

/* The latest iteration time at which an arc from the reached set holds the node back. */
static int64_t next_hold(const Walker *w, int32_t node, int32_t *by) {
    int64_t best = NEVER;
    for (int32_t k = w->node[node].first; k < w->node[node + 1].first; k++) {
        Neighbour next = w->neighbours[k];
        int32_t inward = next.residual ^ 1;
        if (!w->reached[next.other] || w->arc[inward].room == 0) continue;
        int64_t time = w->node[next.other].at + w->arc[inward].length - w->node[node].at;
        if (time > best) {
            best = time;
            *by = inward;
        }
    }
    return best;
}

/* Take a node and all that was reached through it out of the reached set. */
static void remove_subtree(Walker *w, int32_t node) {
    int32_t next = w->removed_count;
    w->reached[node] = 0;
    w->removed[w->removed_count++] = node;
    while (next < w->removed_count) {
        int32_t here = w->removed[next++];
        touch(w, here);
        w->node[here].at -= w->end;
        for (int32_t k = w->node[here].first; k < w->node[here + 1].first; k++) {
            Neighbour far = w->neighbours[k];
            if (w->reached[far.other] && w->node[far.other].parent == far.residual) {
                w->reached[far.other] = 0;
                w->removed[w->removed_count++] = far.other;
            }
        }
    }
}

/* Move `amount` of flow through an instruction, at most what is left on the current vertex. */
static void shift_vertex(Walker *w, int32_t i, int32_t backward, int64_t amount) {
    const JouleryGraph *g = w->graph;
    const int64_t *time = g->vertex_time + g->first_vertex[g->curve_of[i]];
    const int64_t *room = g->vertex_room + g->first_vertex[g->curve_of[i]];
    int32_t *on = backward ? &w->behind[i] : &w->ahead[i];
    int32_t *off = backward ? &w->ahead[i] : &w->behind[i];
    int64_t *give = &w->arc[2 * i + backward].room, *take = &w->arc[2 * i + 1 - backward].room;
    int32_t used = *on;
    *take = *off == used ? *take + amount : amount;
    *off = used;
    w->arc[2 * i + 1 - backward].length = backward ? time[used] : -time[used];
    if ((*give -= amount) > 0) return;
    *on = used + (backward ? -1 : 1);
    *give = *on < 0 ? 0 : room[*on];
    if (*on >= 0) w->arc[2 * i + backward].length = backward ? -time[*on] : time[*on];
}

/* Send as much flow as fits along the path that reached the end; 0 if any amount fits. */
static int augment(Walker *w) {
    int64_t amount = JOULERY_UNBOUNDED;
    for (int32_t v = w->sink; v != w->source; v = w->tail[w->node[v].parent])
        if (w->arc[w->node[v].parent].room < amount) amount = w->arc[w->node[v].parent].room;
    if (amount >= JOULERY_UNBOUNDED / 2) return 0;
    w->flow += amount;
    w->removed_count = 0;
    for (int32_t v = w->sink, before; v != w->source; v = before) {
        int32_t used = w->node[v].parent;
        before = w->tail[used];
        w->hint[before] = w->arc[used].room == amount ? -1 : used;
        if (used < 2 * w->graph->instructions) {
            int full = w->arc[used].room == amount;
            shift_vertex(w, used >> 1, used & 1, amount);
            if (full) remove_subtree(w, v);
        } else {
            if (!(used & 1)) {
                w->arc[used ^ 1].room += amount;
            } else {
                w->arc[used].room -= amount;
                if (w->arc[used].room == 0) remove_subtree(w, v);
            }
        }
    }
    for (int32_t k = 0; k < w->removed_count; k++) {
        int32_t v = w->removed[k], by = -1;
        if (w->reached[v]) continue;
        int64_t time = next_hold(w, v, &by);
        if (time == NEVER) continue;
        if (time >= w->end) reach(w, v, by);
        else push_event(w, time, v);
    }
    w->walk->augmentations++;
    return 1;
}

/* Move on to the next iteration time at which the reached set grows. */
static void advance(Walker *w) {
    while (!w->failed) {
        if (w->heap_size == 0) {
            w->failed = 2;
            return;
        }
        Event event = pop_event(w);
        if (event.time != w->node[event.node].queued) continue;
        w->node[event.node].queued = NEVER;
        if (w->reached[event.node]) continue;
        int32_t by = -1;
        int64_t time = next_hold(w, event.node, &by);
        if (time < event.time) {
            if (time != NEVER) push_event(w, time, event.node);
            continue;
        }
        if (event.time < w->end) {
            write_pieces(w);
            w->end = event.time;
        }
        reach(w, event.node, by);
        return;
    }
}

static void run(Walker *w) {
    int64_t written = 0;
    while (!w->failed) {
        flood(w);
        if (w->reached[w->sink]) {
            if (!augment(w)) break;
            continue;
        }
        if (w->flow != written && !joulery_write_vertex(w->walk, w->end, w->flow)) w->failed = 1;
        written = w->flow;
        advance(w);
    }
    write_pieces(w);
    if (!joulery_write_vertex(w->walk, w->end, w->flow)) w->failed = 1;
}

/* Everything as slow and as early as it can be: the far end of the frontier, all reached. */
static void place(Walker *w) {
    const JouleryGraph *g = w->graph;
    w->end = 0;
    memset(w->reached, 1, (size_t)w->nodes);
    for (int32_t v = 0; v < w->nodes; v++) {
        w->node[v].parent = -1;
        w->hint[v] = -1;
        w->node[v].queued = NEVER;
    }
    for (int32_t k = 0; k < g->instructions; k++) {
        int32_t i = g->order[k], start = 2 * i;
        int64_t earliest = 0;
        int32_t by = -1;
        for (int32_t j = w->node[start].first; j < w->node[start + 1].first; j++) {
            int32_t inward = w->neighbours[j].residual ^ 1;
            if (inward & 1 || inward < 2 * g->instructions) continue;
            int64_t time = w->node[w->neighbours[j].other].at + w->arc[inward].length;
            if (by < 0 || time > earliest) {
                earliest = time;
                by = inward;
            }
        }
        w->node[start].at = earliest;
        w->node[start].parent = by;
        w->node[start + 1].at = earliest + w->arc[2 * i].length;
        w->node[start + 1].parent = 2 * i;
    }
    for (int32_t j = w->node[w->sink].first; j < w->node[w->sink + 1].first; j++) {
        int64_t time = w->node[w->neighbours[j].other].at;
        if (w->node[w->sink].parent < 0 || time > w->node[w->sink].at) {
            w->node[w->sink].at = time;
            w->node[w->sink].parent = w->neighbours[j].residual ^ 1;
        }
    }
    w->end = w->node[w->sink].at;
}

static void connect(Walker *w, const int32_t *from, const int32_t *to) {
    for (int32_t a = 0; a < w->arcs; a++) {
        w->tail[2 * a] = from[a];
        w->tail[2 * a + 1] = to[a];
        w->node[from[a] + 1].first++;
        w->node[to[a] + 1].first++;
    }
    for (int32_t v = 0; v < w->nodes; v++) w->node[v + 1].first += w->node[v].first;
    int32_t *next = w->stack;
    for (int32_t v = 0; v < w->nodes; v++) next[v] = w->node[v].first;
    /* Backward arcs first: what is pushed last is looked at first, and the end lies ahead. */
    for (int32_t a = 0; a < w->arcs; a++)
        w->neighbours[next[to[a]]++] = (Neighbour){from[a], 2 * a + 1};
    for (int32_t a = 0; a < w->arcs; a++)
        w->neighbours[next[from[a]]++] = (Neighbour){to[a], 2 * a};
}

/* Instructions first, then what the caller calls edges, then arcs from the start and to the end. */
static int lay_out(Walker *w) {
    const JouleryGraph *g = w->graph;
    int32_t n = g->instructions, arcs = n;
    int32_t *from = malloc((size_t)w->arcs * sizeof(int32_t));
    int32_t *to = malloc((size_t)w->arcs * sizeof(int32_t));
    char *led = calloc((size_t)n, 1), *followed = calloc((size_t)n, 1);
    int fine = from && to && led && followed;
    if (fine) {
        for (int32_t i = 0; i < n; i++) {
            const int32_t first = g->first_vertex[g->curve_of[i]];
            from[i] = 2 * i;
            to[i] = 2 * i + 1;
            w->arc[2 * i].length = g->vertex_time[first];
            w->arc[2 * i].room = g->vertex_room[first];
            w->walk->slowest[i] = g->vertex_time[first];
            w->ahead[i] = 0;
            w->behind[i] = -1;
        }
        for (int32_t e = 0; e < g->edges; e++, arcs++) {
            from[arcs] = 2 * g->edge_from[e] + 1;
            to[arcs] = 2 * g->edge_to[e];
            w->arc[2 * arcs].length = g->edge_time[e];
            w->arc[2 * arcs + 1].length = -g->edge_time[e];
            w->arc[2 * arcs].room = JOULERY_UNBOUNDED;
            followed[g->edge_from[e]] = led[g->edge_to[e]] = 1;
        }
        for (int32_t i = 0; i < n; i++) {
            if (!led[i]) {
                from[arcs] = w->source;
                to[arcs] = 2 * i;
                w->arc[2 * arcs++].room = JOULERY_UNBOUNDED;
            }
            if (!followed[i]) {
                from[arcs] = 2 * i + 1;
                to[arcs] = w->sink;
                w->arc[2 * arcs++].room = JOULERY_UNBOUNDED;
            }
        }
        w->arcs = arcs;
        connect(w, from, to);
    }
    free(from);
    free(to);
    free(led);
    free(followed);
    return fine;
}

static int allocate(Walker *w) {
    size_t nodes = (size_t)w->nodes, arcs = (size_t)w->arcs;
    size_t n = (size_t)w->graph->instructions;
    w->tail = malloc(2 * arcs * sizeof(int32_t));
    w->arc = calloc(2 * arcs, sizeof(Residual));
    w->ahead = malloc(n * sizeof(int32_t));
    w->behind = malloc(n * sizeof(int32_t));
    w->node = calloc(nodes + 1, sizeof(Node));
    w->neighbours = malloc(2 * arcs * sizeof(Neighbour));
    w->reached = malloc(nodes);
    w->stack = malloc(nodes * sizeof(int32_t));
    w->removed = malloc(nodes * sizeof(int32_t));
    w->touched = malloc(n * sizeof(int32_t));
    w->is_touched = calloc(n, 1);
    w->pending = calloc(nodes, 1);
    w->likely = malloc(nodes * sizeof(int32_t));
    w->hint = malloc(nodes * sizeof(int32_t));
    w->rate = calloc(n, 1);
    w->walk->instructions = w->graph->instructions;
    w->walk->slowest = malloc(n * sizeof(int64_t));
    return w->tail && w->arc && w->ahead && w->behind && w->node &&
           w->neighbours && w->reached && w->stack &&
           w->removed && w->pending && w->likely && w->hint && w->touched && w->is_touched &&
           w->rate && w->walk->slowest;
}

static void release(Walker *w) {
    void *owned[] = {w->tail, w->arc, w->ahead, w->behind, w->node,
                     w->neighbours, w->reached, w->heap, w->stack,
                     w->removed, w->pending, w->likely, w->hint, w->touched, w->is_touched,
                     w->rate};
    for (size_t k = 0; k < sizeof owned / sizeof *owned; k++) free(owned[k]);
}

JOULERY_API JouleryWalk *joulery_walk(const JouleryGraph *graph) {
    Walker w = {.graph = graph};
    w.nodes = 2 * graph->instructions + 2;
    w.source = w.nodes - 2;
    w.sink = w.nodes - 1;
    w.arcs = 3 * graph->instructions + graph->edges;
    w.walk = calloc(1, sizeof(JouleryWalk));
    if (!w.walk || !allocate(&w) || !lay_out(&w)) {
        w.failed = 1;
    } else {
        place(&w);
        run(&w);
    }
    release(&w);
    if (!w.failed) w.failed = !joulery_write_keyframes(w.walk);
    if (!w.failed) return w.walk;
    joulery_forget(w.walk);
    return NULL;
}
