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
 * Nodes are the starts and ends of instructions; their potentials are the schedule. As the
 * iteration shrinks, each node either stays or moves with the end. That is optimal as long as no
 * tight arc with room leads from a node that stays to one that moves. When one becomes tight, all
 * that it holds back must stay, or all that holds its tail must move: both are searched in turns,
 * and the smaller set changes sides. If one search finds the end and the other the start, flow is
 * sent instead. Most nodes are neither held by the start nor by the end, and are left alone.
 *
 * Times of moving nodes are stored relative to the end: nothing needs to be touched while they
 * move, and the heap's keys (the iteration time at which an arc becomes tight) stay valid. All
 * numbers are integers, so ties are exact.
 */
#include "native.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A residual arc at one of its ends. */
typedef struct {
    int64_t length; /* CLOSED while it has no room */
    int32_t other;  /* the node at the far end */
    int32_t arc;    /* its number; the arc back is arc ^ 1 */
} Link;

typedef struct {
    int64_t time;
    int32_t node;
} Event;

/* One of two searches along tight arcs: ahead to the end, or back to the start. */
typedef struct {
    int32_t *seen, *stack;
    Event *later; /* what becomes of the border, should the nodes seen change sides */
    int32_t count, depth, waiting;
    int32_t stamp, goal;
    int found;
} Search;

typedef struct {
    const JouleryGraph *graph;
    int32_t nodes, arcs, source, sink;
    int32_t *tail;    /* of each residual arc */
    int64_t *room;    /* of each residual arc: what it can still carry */
    int32_t *place;   /* of each residual arc, among the links of its tail */
    int32_t *vertex_ahead;  /* instruction: vertex that carries the next unit of flow ... */
    int32_t *vertex_behind; /* ... and the one that carried the last, -1 without flow */
    int64_t *through;       /* instruction: its flow */
    int32_t *first;   /* node: of its links */
    Link *out, *in;   /* residual arcs from the node, and to it, in one order */
    int64_t *at;      /* node: its time, from the start if it stays, else from the end */
    int64_t *queued;  /* node: largest key in the heap for it */
    char *stays;
    int32_t *stamp;   /* node: the search that last saw it ... */
    int32_t *by;      /* ... and the residual arc by which */
    int32_t *hint;    /* node: residual arc by which flow last went, or -1 */
    Search ahead, back;
    int32_t stamps;
    Event *heap;
    size_t heap_size, heap_room;
    int64_t end, fastest, flow;
    JouleryFrontier *found;
    size_t sample_room;
    int failed;
} Walker;

/* Nodes that one search looks at before it is the other's turn. */
enum { TURN = 16 };

static const int64_t NEVER = INT64_MIN;
/* Below any time, and far enough from overflow. */
static const int64_t CLOSED = -(INT64_C(1) << 60);

static void push_event(Walker *w, int64_t time, int32_t node) {
    if (time <= w->queued[node] || time < w->fastest) return;
    w->queued[node] = time;
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

/* Where the node stands, seen from the start of the iteration. */
static int64_t position(const Walker *w, int32_t node) {
    return w->stays[node] ? w->at[node] : w->at[node] + w->end;
}

/* The latest iteration time at which an arc from a node that stays holds the node back. */
static int64_t next_hold(const Walker *w, int32_t node, int32_t *by) {
    int64_t best = NEVER, at = w->at[node];
    for (int32_t k = w->first[node]; k < w->first[node + 1]; k++) {
        const Link *link = w->in + k;
        if (!w->stays[link->other] || link->length == CLOSED) continue;
        int64_t time = w->at[link->other] + link->length - at;
        if (time > best) {
            best = time;
            *by = link->arc;
        }
    }
    return best;
}

static void begin(Walker *w, Search *s, int32_t node, int32_t goal) {
    s->stamp = ++w->stamps;
    s->found = node == goal;
    s->goal = goal;
    s->waiting = 0;
    s->count = s->depth = 1;
    s->seen[0] = s->stack[0] = node;
    w->stamp[node] = s->stamp;
}

static int note(Walker *w, Search *s, const Link *link) {
    w->stamp[link->other] = s->stamp;
    w->by[link->other] = link->arc;
    s->seen[s->count++] = link->other;
    return s->found = link->other == s->goal;
}

/* Look at one more node that moves: what it holds back moves no more either, if it must stay. */
static void step_ahead(Walker *w) {
    Search *s = &w->ahead;
    int32_t here = s->stack[--s->depth], likely = -1, hint = w->hint[here];
    int64_t at = w->at[here];
    for (int32_t k = w->first[here]; k < w->first[here + 1]; k++) {
        const Link *link = w->out + k;
        int32_t far = link->other;
        if (w->stays[far] || w->stamp[far] == s->stamp) continue;
        int64_t slack = w->at[far] - at - link->length;
        if (slack > 0) {
            if (w->end - slack > w->queued[far])
                s->later[s->waiting++] = (Event){w->end - slack, far};
            continue;
        }
        if (note(w, s, link)) return;
        if (hint == link->arc) likely = far;
        else s->stack[s->depth++] = far;
    }
    if (likely >= 0) s->stack[s->depth++] = likely;
}

/* Look at one more node that stays: what holds it must move, too, if it must. */
static void step_back(Walker *w) {
    Search *s = &w->back;
    int32_t here = s->stack[--s->depth], likely = -1, hint = w->hint[here];
    int64_t at = w->at[here], least = INT64_MAX;
    for (int32_t k = w->first[here]; k < w->first[here + 1]; k++) {
        const Link *link = w->in + k;
        int32_t far = link->other;
        if (!w->stays[far] || w->stamp[far] == s->stamp) continue;
        int64_t slack = at - w->at[far] - link->length;
        if (slack > 0) {
            if (slack < least) least = slack;
            continue;
        }
        if (note(w, s, link)) return;
        if (hint == link->arc) likely = far;
        else s->stack[s->depth++] = far;
    }
    if (least < w->end) s->later[s->waiting++] = (Event){w->end - least, here};
    if (likely >= 0) s->stack[s->depth++] = likely;
}

/* All nodes seen by a search that did not find its goal change sides. */
static void change_sides(Walker *w, const Search *s, int stay) {
    int64_t shift = stay ? w->end : -w->end;
    for (int32_t k = 0; k < s->count; k++) {
        int32_t v = s->seen[k];
        w->stays[v] = (char)stay;
        w->at[v] += shift;
    }
    for (int32_t k = 0; k < s->waiting; k++)
        if (!w->stays[s->later[k].node]) push_event(w, s->later[k].time, s->later[k].node);
}

/* Write an arc's length, or that it is closed, where searches see it. */
static void set_length(Walker *w, int32_t arc, int64_t length) {
    w->out[w->place[arc]].length = length;
    w->in[w->place[arc ^ 1]].length = length;
}

/* Move `amount` of flow through an instruction, at most what is left on the current vertex. */
static void shift_vertex(Walker *w, int32_t i, int32_t backward, int64_t amount) {
    const JouleryGraph *g = w->graph;
    const int64_t *time = g->vertex_time + g->first_vertex[g->curve_of[i]];
    const int64_t *room = g->vertex_room + g->first_vertex[g->curve_of[i]];
    int32_t *on = backward ? &w->vertex_behind[i] : &w->vertex_ahead[i];
    int32_t *off = backward ? &w->vertex_ahead[i] : &w->vertex_behind[i];
    int32_t give = 2 * i + backward, take = give ^ 1, used = *on;
    w->through[i] += backward ? -amount : amount;
    w->room[take] = *off == used ? w->room[take] + amount : amount;
    *off = used;
    set_length(w, take, backward ? time[used] : -time[used]);
    if ((w->room[give] -= amount) > 0) return;
    *on = used + (backward ? -1 : 1);
    w->room[give] = *on < 0 ? 0 : room[*on];
    set_length(w, give, *on < 0 ? CLOSED : backward ? -time[*on] : time[*on]);
}

/* Send flow along one arc; whether that fills it. */
static int carry(Walker *w, int32_t arc, int64_t amount) {
    int full = w->room[arc] == amount;
    if (arc < 2 * w->graph->instructions) {
        shift_vertex(w, arc >> 1, arc & 1, amount);
    } else if (arc & 1) {
        w->room[arc] -= amount;
        if (full) set_length(w, arc, CLOSED);
    } else {
        if (w->room[arc ^ 1] == 0) set_length(w, arc ^ 1, -w->out[w->place[arc]].length);
        w->room[arc ^ 1] += amount;
    }
    return full;
}

/* Send as much flow as fits along what both searches found; 0 if any amount fits. */
static int augment(Walker *w, int32_t arc) {
    int64_t amount = w->room[arc];
    int32_t from = w->tail[arc], to = w->tail[arc ^ 1];
    for (int32_t v = w->source; v != from; v = w->tail[w->by[v] ^ 1])
        if (w->room[w->by[v]] < amount) amount = w->room[w->by[v]];
    for (int32_t v = w->sink; v != to; v = w->tail[w->by[v]])
        if (w->room[w->by[v]] < amount) amount = w->room[w->by[v]];
    if (amount >= JOULERY_UNBOUNDED / 2) return 0;
    w->flow += amount;
    int ended_back = 0, ended_ahead = 0;
    for (int32_t v = w->source, next; v != from; v = next) {
        int32_t used = w->by[v];
        next = w->tail[used ^ 1];
        int full = carry(w, used, amount);
        w->hint[next] = full ? -1 : used;
        ended_back |= full;
    }
    for (int32_t v = w->sink, next; v != to; v = next) {
        int32_t used = w->by[v];
        next = w->tail[used];
        int full = carry(w, used, amount);
        w->hint[next] = full ? -1 : used;
        ended_ahead |= full;
    }
    if (ended_back) begin(w, &w->back, from, w->source);
    if (ended_ahead) begin(w, &w->ahead, to, w->sink);
    return carry(w, arc, amount) ? 2 : 1;
}

/* A tight arc leads from a node that stays to one that moves: one joins the other; 0 at the end. */
static int settle(Walker *w, int32_t arc) {
    begin(w, &w->ahead, w->tail[arc ^ 1], w->sink);
    begin(w, &w->back, w->tail[arc], w->source);
    for (;;) {
        for (int k = 0; k < TURN && !w->ahead.found; k++) {
            if (w->ahead.depth == 0) {
                change_sides(w, &w->ahead, 1);
                return 1;
            }
            step_ahead(w);
        }
        for (int k = 0; k < TURN && !w->back.found; k++) {
            if (w->back.depth == 0) {
                change_sides(w, &w->back, 0);
                return 1;
            }
            step_back(w);
        }
        if (w->ahead.found && w->back.found) {
            int sent = augment(w, arc);
            if (sent != 1) return sent;
        }
    }
}

/* Settle all that holds the node back at this time; 0 at the fastest iteration. */
static int release_node(Walker *w, int32_t node) {
    while (!w->failed && !w->stays[node]) {
        int32_t by = -1;
        int64_t time = next_hold(w, node, &by);
        if (time < w->end) {
            push_event(w, time, node);
            return 1;
        }
        if (!settle(w, by)) return 0;
    }
    return 1;
}

/* Cost of a duration by the curve. */
static double cost_of(const JouleryGraph *g, int32_t curve, double seconds) {
    int32_t low = g->first_hull[curve], high = g->first_hull[curve + 1] - 1;
    if (seconds >= g->hull_seconds[low]) return g->hull_cost[low];
    while (high - low > 1) {
        int32_t middle = (low + high) / 2;
        if (g->hull_seconds[middle] > seconds) low = middle;
        else high = middle;
    }
    if (seconds <= g->hull_seconds[high]) return g->hull_cost[high];
    double slope = (g->hull_cost[high] - g->hull_cost[low]) /
                   (g->hull_seconds[high] - g->hull_seconds[low]);
    return g->hull_cost[low] + slope * (seconds - g->hull_seconds[low]);
}

/* The least that cost and time come to if a second is worth so many watts. */
static double least_at(const JouleryGraph *g, int32_t curve, double watts) {
    int32_t low = g->first_hull[curve], high = g->first_hull[curve + 1] - 1;
    while (low < high) {
        int32_t middle = (low + high) / 2; /* the slower end of an edge */
        double saved = watts * (g->hull_seconds[middle] - g->hull_seconds[middle + 1]);
        if (g->hull_cost[middle + 1] - g->hull_cost[middle] < saved) low = middle + 1;
        else high = middle;
    }
    return g->hull_cost[low] + watts * g->hull_seconds[low];
}

/* Room for the durations of one more sample. */
static double *next_sample(Walker *w) {
    JouleryFrontier *found = w->found;
    size_t n = (size_t)w->graph->instructions;
    if (found->samples == w->sample_room) {
        size_t room = w->sample_room ? 2 * w->sample_room : 64;
        void *sample = realloc(found->sample, room * sizeof(JoulerySample));
        if (sample) found->sample = sample;
        void *durations = realloc(found->durations, room * n * sizeof(double));
        if (durations) found->durations = durations;
        if (!sample || !durations) return NULL;
        w->sample_room = room;
    }
    return found->durations + n * found->samples++;
}

/* Write down this iteration: durations, what they cost, and what the flow proves to be needed.
 * Durations are whole units below 2**53, so that they and their sums are exact. */
static int write_sample(Walker *w) {
    const JouleryGraph *g = w->graph;
    double cost = 0.0, bound = 0.0;
    double *durations = next_sample(w);
    if (!durations) return 0;
    for (int32_t i = 0; i < g->instructions; i++) {
        int32_t curve = g->curve_of[i];
        int64_t units = position(w, 2 * i + 1) - position(w, 2 * i);
        int64_t slowest = g->vertex_time[g->first_vertex[curve]];
        double seconds = (double)(units < slowest ? units : slowest) * g->unit_seconds;
        double watts = (double)w->through[i] * g->unit_watts;
        durations[i] = seconds;
        cost += cost_of(g, curve, seconds);
        bound += least_at(g, curve, watts) - watts * seconds;
    }
    w->found->sample[w->found->samples - 1] =
        (JoulerySample){(double)w->end * g->unit_seconds, (double)w->flow * g->unit_watts, cost, bound};
    return 1;
}

/* Whether a straight line since the last sample could be too far off. */
static int is_due(const Walker *w) {
    const JouleryFrontier *found = w->found;
    if (found->samples == 0) return 1;
    const JoulerySample *last = found->sample + found->samples - 1;
    double gone = last->seconds - (double)w->end * w->graph->unit_seconds;
    double rise = (double)w->flow * w->graph->unit_watts - last->watts;
    return 0.25 * gone * rise > w->graph->joules;
}

static void run(Walker *w) {
    push_event(w, w->end, w->sink);
    while (!w->failed) {
        if (w->heap_size == 0) {
            w->failed = 2;
            break;
        }
        Event event = pop_event(w);
        if (event.time != w->queued[event.node]) continue;
        w->queued[event.node] = NEVER;
        if (w->stays[event.node]) continue;
        int32_t by = -1;
        int64_t time = next_hold(w, event.node, &by);
        if (time < event.time) {
            push_event(w, time, event.node);
            continue;
        }
        if (event.time < w->end) {
            if (is_due(w) && !write_sample(w)) w->failed = 1;
            w->end = event.time;
        }
        if (!release_node(w, event.node)) break;
    }
    if (!w->failed && !write_sample(w)) w->failed = 1;
}

/* When the last instruction ends if each is as slow, or as fast, as it can be and starts early. */
static int64_t place_nodes(Walker *w, int slow) {
    const JouleryGraph *g = w->graph;
    w->at[w->source] = 0;
    for (int32_t k = 0; k < g->instructions; k++) {
        int32_t i = g->order[k], start = 2 * i, curve = g->curve_of[i];
        int64_t earliest = 0;
        for (int32_t j = w->first[start]; j < w->first[start + 1]; j++) {
            const Link *link = w->in + j;
            if (link->arc & 1 || link->arc < 2 * g->instructions) continue;
            int64_t time = w->at[link->other] + link->length;
            if (time > earliest) earliest = time;
        }
        w->at[start] = earliest;
        w->at[start + 1] =
            earliest + g->vertex_time[slow ? g->first_vertex[curve] : g->first_vertex[curve + 1] - 1];
    }
    int64_t end = 0;
    for (int32_t j = w->first[w->sink]; j < w->first[w->sink + 1]; j++)
        if (w->at[w->in[j].other] > end) end = w->at[w->in[j].other];
    return end;
}

/* Everything as slow and as early as it can be: the far end of the frontier. */
static void place(Walker *w) {
    w->fastest = place_nodes(w, 0);
    w->end = place_nodes(w, 1);
    memset(w->stays, 1, (size_t)w->nodes);
    w->stays[w->sink] = 0;
    w->at[w->sink] = 0;
    for (int32_t v = 0; v < w->nodes; v++) {
        w->hint[v] = -1;
        w->queued[v] = NEVER;
    }
}

static void connect(Walker *w, const int32_t *from, const int32_t *to, const int64_t *length) {
    for (int32_t a = 0; a < w->arcs; a++) {
        w->tail[2 * a] = from[a];
        w->tail[2 * a + 1] = to[a];
        w->first[from[a] + 1]++;
        w->first[to[a] + 1]++;
    }
    for (int32_t v = 0; v < w->nodes; v++) w->first[v + 1] += w->first[v];
    int32_t *next = w->by;
    memcpy(next, w->first, (size_t)w->nodes * sizeof(int32_t));
    /* Backward arcs first: what is pushed last is looked at first, and the end lies ahead. */
    for (int32_t a = 0; a < w->arcs; a++) w->place[2 * a + 1] = next[to[a]]++;
    for (int32_t a = 0; a < w->arcs; a++) w->place[2 * a] = next[from[a]]++;
    for (int32_t a = 0; a < 2 * w->arcs; a++) {
        int64_t open = a & 1 ? CLOSED : length[a >> 1];
        w->out[w->place[a]] = (Link){open, w->tail[a ^ 1], a};
        w->in[w->place[a ^ 1]] = (Link){open, w->tail[a], a};
    }
}

/* Instructions first, then what the caller calls edges, then arcs from the start and to the end. */
static int lay_out(Walker *w) {
    const JouleryGraph *g = w->graph;
    int32_t n = g->instructions, arcs = n;
    int32_t *from = malloc((size_t)w->arcs * sizeof(int32_t));
    int32_t *to = malloc((size_t)w->arcs * sizeof(int32_t));
    int64_t *length = calloc((size_t)w->arcs, sizeof(int64_t));
    char *led = calloc((size_t)n, 1), *followed = calloc((size_t)n, 1);
    int fine = from && to && length && led && followed;
    if (fine) {
        for (int32_t i = 0; i < n; i++) {
            const int32_t first = g->first_vertex[g->curve_of[i]];
            from[i] = 2 * i;
            to[i] = 2 * i + 1;
            length[i] = g->vertex_time[first];
            w->room[2 * i] = g->vertex_room[first];
            w->vertex_ahead[i] = 0;
            w->vertex_behind[i] = -1;
        }
        for (int32_t e = 0; e < g->edges; e++, arcs++) {
            from[arcs] = 2 * g->edge_from[e] + 1;
            to[arcs] = 2 * g->edge_to[e];
            length[arcs] = g->edge_time[e];
            w->room[2 * arcs] = JOULERY_UNBOUNDED;
            followed[g->edge_from[e]] = led[g->edge_to[e]] = 1;
        }
        for (int32_t i = 0; i < n; i++) {
            if (!led[i]) {
                from[arcs] = w->source;
                to[arcs] = 2 * i;
                w->room[2 * arcs++] = JOULERY_UNBOUNDED;
            }
            if (!followed[i]) {
                from[arcs] = 2 * i + 1;
                to[arcs] = w->sink;
                w->room[2 * arcs++] = JOULERY_UNBOUNDED;
            }
        }
        w->arcs = arcs;
        connect(w, from, to, length);
    }
    free(from);
    free(to);
    free(length);
    free(led);
    free(followed);
    return fine;
}

static int allocate_search(Search *s, size_t nodes, size_t links) {
    s->seen = malloc(nodes * sizeof(int32_t));
    s->stack = malloc(nodes * sizeof(int32_t));
    s->later = malloc(links * sizeof(Event));
    return s->seen && s->stack && s->later;
}

static int allocate(Walker *w) {
    size_t nodes = (size_t)w->nodes, arcs = (size_t)w->arcs;
    size_t n = (size_t)w->graph->instructions;
    w->tail = malloc(2 * arcs * sizeof(int32_t));
    w->room = calloc(2 * arcs, sizeof(int64_t));
    w->place = malloc(2 * arcs * sizeof(int32_t));
    w->vertex_ahead = malloc(n * sizeof(int32_t));
    w->vertex_behind = malloc(n * sizeof(int32_t));
    w->through = calloc(n, sizeof(int64_t));
    w->first = calloc(nodes + 1, sizeof(int32_t));
    w->out = malloc(2 * arcs * sizeof(Link));
    w->in = malloc(2 * arcs * sizeof(Link));
    w->at = malloc(nodes * sizeof(int64_t));
    w->queued = malloc(nodes * sizeof(int64_t));
    w->stays = malloc(nodes);
    w->stamp = calloc(nodes, sizeof(int32_t));
    w->by = malloc(nodes * sizeof(int32_t));
    w->hint = malloc(nodes * sizeof(int32_t));
    return w->tail && w->room && w->place && w->vertex_ahead && w->vertex_behind && w->through &&
           w->first && w->out && w->in && w->at && w->queued && w->stays && w->stamp && w->by && w->hint &&
           allocate_search(&w->ahead, nodes, 2 * arcs) &&
           allocate_search(&w->back, nodes, 2 * arcs);
}

static void release(Walker *w) {
    void *owned[] = {w->tail, w->room, w->place, w->vertex_ahead, w->vertex_behind, w->through,
                     w->first, w->out, w->in, w->at, w->queued, w->stays, w->stamp, w->by, w->hint,
                     w->heap,
                     w->ahead.seen, w->ahead.stack, w->ahead.later,
                     w->back.seen, w->back.stack, w->back.later};
    for (size_t k = 0; k < sizeof owned / sizeof *owned; k++) free(owned[k]);
}

JOULERY_API void joulery_free(JouleryFrontier *found) {
    if (!found) return;
    free(found->sample);
    free(found->durations);
    free(found);
}

JOULERY_API JouleryFrontier *joulery_walk(const JouleryGraph *graph) {
    Walker w = {.graph = graph};
    w.nodes = 2 * graph->instructions + 2;
    w.source = w.nodes - 2;
    w.sink = w.nodes - 1;
    w.arcs = 3 * graph->instructions + graph->edges;
    w.found = calloc(1, sizeof(JouleryFrontier));
    if (!w.found || !allocate(&w) || !lay_out(&w)) {
        w.failed = 1;
    } else {
        place(&w);
        run(&w);
    }
    release(&w);
    if (!w.failed) return w.found;
    joulery_free(w.found);
    return NULL;
}
