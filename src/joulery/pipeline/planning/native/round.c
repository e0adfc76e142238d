/* Choose clocks that the hardware has, near wanted durations, within the deadline.
 *
 * First the error is diffused: in the order of the schedule each instruction takes the slower of
 * the two hull vertices around its wanted duration if it still ends in time, else the faster one,
 * and what it leaves over is there for those behind it. "In time" is the latest end with which the
 * wanted durations of all that follows meet the deadline, so the iteration can never be late. Then
 * sweeps back and forth spend the remaining slack where it saves the most joules per second first.
 * All of this is tried in several ways, and the cheapest outcome is kept.
 *
 * The slack that remains may be a little too short for a large saving. So at last instructions are
 * made faster one by one, the slack spent without them, and what comes out cheaper is kept.
 */
#include "native.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SWEEPS = 8, QUICK_SWEEPS = 4, BACKWARD = 1, ALL_POINTS = 2 };
/* Each sweep asks for rates of saving this much smaller than the sweep before, the last for any. */
static const double FADE = 0.6, QUICK_FADE = 0.3;
/* Sums of many seconds carry rounding errors. First what ends at the deadline to the last digits
 * counts as in time; should the sum then be late after all, plans stay clear of it. */
static const double ALLOWANCES[] = {1e-12, -1e-13, -1e-11, -1e-9, -1e-7, -1e-5};

/* What can be tried, the most useful first: durations of an iteration shortened by that share, and
 * how to round them. A slightly shorter iteration leaves slack, which is spent where it saves most. */
typedef struct {
    double share;
    int how;
} Try;
static const Try TRIES[] = {
    {1.0, BACKWARD},              {1.0, 0},
    {0.995, BACKWARD},            {0.998, BACKWARD},
    {0.995, 0},                   {0.998, 0},
    {1.0, BACKWARD | ALL_POINTS}, {1.0, ALL_POINTS},
    {0.995, BACKWARD | ALL_POINTS}, {0.998, BACKWARD | ALL_POINTS},
    {0.995, ALL_POINTS},          {0.998, ALL_POINTS},
    {0.99, BACKWARD},             {0.99, 0},
    {0.99, BACKWARD | ALL_POINTS}, {0.99, ALL_POINTS},
};
enum { MOST_TRIES = sizeof TRIES / sizeof *TRIES };
/* How much a plan may cost to find, by effort: instructions visited by tries, the fewest tries, and
 * instructions visited by trials of faster ones. Quick plans take microseconds, usual ones about a
 * millisecond, thorough ones some more. Fewer trials than a handful find nothing. */
typedef struct {
    int32_t visits, fewest, trial_visits;
    int sweeps;
    double fade;
} Effort;
static const Effort EFFORTS[] = {
    {0, 1, 0, QUICK_SWEEPS, QUICK_FADE},
    {6144, 2, 3000, SWEEPS, FADE},
    {0, MOST_TRIES, 400000, SWEEPS, FADE},
};
enum { FEWEST_TRIALS = 4 };

typedef struct {
    const JouleryClocks *clocks;
    double deadline;
    double *durations; /* seconds of each instruction as now chosen */
    double *start; /* earliest */
    double *end;   /* latest */
    int32_t *choice;
    int32_t held; /* instruction that gets no slack, or -1 */
} Rounding;

static double earliest_start(const Rounding *r, const double *durations, int32_t i) {
    const JouleryClocks *c = r->clocks;
    double start = 0.0;
    for (int32_t k = c->first_before[i]; k < c->first_before[i + 1]; k++) {
        double ready = r->start[c->before[k]] + durations[c->before[k]] + c->before_seconds[k];
        if (ready > start) start = ready;
    }
    return start;
}

static double latest_end(const Rounding *r, const double *durations, int32_t i) {
    const JouleryClocks *c = r->clocks;
    double end = r->deadline;
    for (int32_t k = c->first_after[i]; k < c->first_after[i + 1]; k++) {
        double due = r->end[c->after[k]] - durations[c->after[k]] - c->after_seconds[k];
        if (due < end) end = due;
    }
    return end;
}

static void find_starts(Rounding *r, const double *durations) {
    for (int32_t k = 0; k < r->clocks->instructions; k++) {
        int32_t i = r->clocks->order[k];
        r->start[i] = earliest_start(r, durations, i);
    }
}

static void find_ends(Rounding *r, const double *durations) {
    for (int32_t k = r->clocks->instructions - 1; k >= 0; k--) {
        int32_t i = r->clocks->order[k];
        r->end[i] = latest_end(r, durations, i);
    }
}

static void choose(Rounding *r, int32_t i, int32_t point) {
    r->choice[i] = point;
    r->durations[i] = r->clocks->seconds[point];
}

/* The slowest point that fits, but none beyond the hull vertex that follows the wanted duration. */
static int32_t nearest(const JouleryClocks *c, int32_t i, double wanted, double room, int how) {
    int32_t first = c->first_point[c->curve_of[i]], last = c->first_point[c->curve_of[i] + 1];
    int32_t best = first;
    for (int32_t p = first; p < last && c->seconds[p] <= room; p++) {
        if (c->on_hull[p] || how & ALL_POINTS) best = p;
        if (c->on_hull[p] && c->seconds[p] >= wanted * (1.0 - 1e-9)) break;
    }
    return best;
}

static void diffuse(Rounding *r, const double *wanted, int how) {
    int32_t n = r->clocks->instructions;
    if (how & BACKWARD) find_starts(r, wanted);
    else find_ends(r, wanted);
    for (int32_t k = 0; k < n; k++) {
        int32_t i = r->clocks->order[how & BACKWARD ? n - 1 - k : k];
        if (how & BACKWARD) r->end[i] = latest_end(r, r->durations, i);
        else r->start[i] = earliest_start(r, r->durations, i);
        choose(r, i, nearest(r->clocks, i, wanted[i], r->end[i] - r->start[i], how));
    }
}

/* The slowest point that fits and saves at least `rate` joules for each second. */
static int32_t slower(const JouleryClocks *c, int32_t i, int32_t now, double room,
                      double rate) {
    int32_t last = c->first_point[c->curve_of[i] + 1], best = now;
    for (int32_t p = now + 1; p < last && c->seconds[p] <= room; p++)
        if (c->cost[now] - c->cost[p] >= rate * (c->seconds[p] - c->seconds[now])) best = p;
    return best;
}

static double best_rate(const Rounding *r) {
    const JouleryClocks *c = r->clocks;
    double best = 0.0;
    for (int32_t i = 0; i < c->instructions; i++) {
        int32_t p = r->choice[i];
        if (p + 1 == c->first_point[c->curve_of[i] + 1]) continue;
        double saved = (c->cost[p] - c->cost[p + 1]) / (c->seconds[p + 1] - c->seconds[p]);
        if (saved > best) best = saved;
    }
    return best;
}

static void spend(Rounding *r, int sweeps, double fade) {
    int32_t n = r->clocks->instructions;
    double rate = best_rate(r);
    for (int sweep = 0; sweep < sweeps; sweep++) {
        int backward = sweep & 1;
        rate = sweep == sweeps - 1 ? 0.0 : rate * fade;
        if (backward) find_starts(r, r->durations);
        else find_ends(r, r->durations);
        for (int32_t k = 0; k < n; k++) {
            int32_t i = r->clocks->order[backward ? n - 1 - k : k];
            if (backward) r->end[i] = latest_end(r, r->durations, i);
            else r->start[i] = earliest_start(r, r->durations, i);
            if (i == r->held) continue;
            double room = r->end[i] - r->start[i];
            choose(r, i, slower(r->clocks, i, r->choice[i], room, rate));
        }
    }
}

static double total_cost(const Rounding *r) {
    double sum = 0.0;
    for (int32_t i = 0; i < r->clocks->instructions; i++) sum += r->clocks->cost[r->choice[i]];
    return sum;
}

static double find_end(Rounding *r) {
    double end = 0.0;
    find_starts(r, r->durations);
    for (int32_t i = 0; i < r->clocks->instructions; i++)
        if (r->start[i] + r->durations[i] > end) end = r->start[i] + r->durations[i];
    return end;
}

/* Whether one way leads to a plan within the deadline. */
static int try_one(Rounding *r, const double *wanted, double deadline, int how, const Effort *e) {
    for (size_t k = 0; k < sizeof ALLOWANCES / sizeof *ALLOWANCES; k++) {
        r->deadline = deadline * (1.0 + ALLOWANCES[k]);
        diffuse(r, wanted, how);
        spend(r, e->sweeps, e->fade);
        if (find_end(r) <= deadline) return 1;
    }
    return 0;
}

/* The durations of an iteration between two samples. */
static void mix(const JouleryClocks *c, double seconds, double *wanted) {
    int32_t low = 0, high = c->samples - 1;
    while (high - low > 1) {
        int32_t middle = (low + high) / 2;
        if (c->sample_seconds[middle] <= seconds) low = middle;
        else high = middle;
    }
    double span = c->sample_seconds[high] - c->sample_seconds[low];
    double share = span > 0.0 ? (seconds - c->sample_seconds[low]) / span : 0.0;
    share = share < 0.0 ? 0.0 : share > 1.0 ? 1.0 : share;
    const double *a = c->sample_durations + (size_t)low * (size_t)c->instructions;
    const double *b = c->sample_durations + (size_t)high * (size_t)c->instructions;
    for (int32_t i = 0; i < c->instructions; i++) wanted[i] = a[i] + share * (b[i] - a[i]);
}

/* The cheapest outcome of all tries goes to `best`; the fastest points where none is in time. */
static void try_all(Rounding *r, double *wanted, double deadline, const Effort *e, int32_t *best) {
    int32_t n = r->clocks->instructions, tries = e->visits / n;
    double least = INFINITY, mixed = -1.0;
    tries = tries < e->fewest ? e->fewest : tries > MOST_TRIES ? MOST_TRIES : tries;
    for (int32_t i = 0; i < n; i++) best[i] = r->clocks->first_point[r->clocks->curve_of[i]];
    for (int32_t k = 0; k < tries; k++) {
        if (TRIES[k].share != mixed) mix(r->clocks, deadline * TRIES[k].share, wanted);
        mixed = TRIES[k].share;
        if (!try_one(r, wanted, deadline, TRIES[k].how, e)) continue;
        double cost = total_cost(r);
        if (cost >= least) continue;
        least = cost;
        memcpy(best, r->choice, (size_t)n * sizeof(int32_t));
    }
}

/* An instruction that could be some points faster, and what that costs. */
typedef struct {
    double cost;
    int32_t instruction, point;
} Candidate;

/* Points that an instruction is made faster by, at most. */
enum { MOST_FASTER = 4 };

static int cheaper(const void *one, const void *other) {
    const Candidate *a = one, *b = other;
    if (a->cost != b->cost) return a->cost < b->cost ? -1 : 1;
    int32_t first = a->instruction - b->instruction;
    return first ? first : a->point - b->point;
}

static int32_t find_candidates(const Rounding *r, Candidate *found) {
    const JouleryClocks *c = r->clocks;
    int32_t count = 0;
    for (int32_t i = 0; i < c->instructions; i++) {
        int32_t now = r->choice[i], first = c->first_point[c->curve_of[i]];
        for (int32_t p = now - 1; p >= first && p >= now - MOST_FASTER; p--)
            found[count++] = (Candidate){c->cost[p] - c->cost[now], i, p};
    }
    qsort(found, (size_t)count, sizeof *found, cheaper);
    return count;
}

static void choose_all(Rounding *r, const int32_t *choice) {
    for (int32_t i = 0; i < r->clocks->instructions; i++) choose(r, i, choice[i]);
}

/* Make one instruction faster, spend what that frees on others, then on all; the cost of that. */
static double try_faster(Rounding *r, Candidate candidate, double deadline) {
    choose(r, candidate.instruction, candidate.point);
    r->held = candidate.instruction;
    spend(r, QUICK_SWEEPS, QUICK_FADE);
    r->held = -1;
    spend(r, 2, 0.0);
    return find_end(r) <= deadline ? total_cost(r) : INFINITY;
}

/* Improve a plan that ends in time by at most `trials` of these. */
static void improve(Rounding *r, double deadline, int32_t trials, Candidate *candidate,
                    int32_t *choice) {
    size_t n = (size_t)r->clocks->instructions;
    r->deadline = deadline * (1.0 + ALLOWANCES[1]);
    choose_all(r, choice);
    double least = total_cost(r);
    int better = 1;
    while (better && trials > 0) {
        better = 0;
        int32_t count = find_candidates(r, candidate);
        for (int32_t k = 0; k < count && trials > 0; k++, trials--) {
            if (r->choice[candidate[k].instruction] <= candidate[k].point) continue;
            double cost = try_faster(r, candidate[k], deadline);
            if (cost < least - 1e-12 * fabs(least)) {
                least = cost;
                better = 1;
                memcpy(choice, r->choice, n * sizeof(int32_t));
            } else {
                choose_all(r, choice);
            }
        }
    }
}

/* For each deadline `choice` becomes a point per instruction, `start` when it starts; 0 without
 * memory. */
JOULERY_API int joulery_round(const JouleryClocks *clocks, const double *deadline, int32_t count,
                              int32_t effort, int32_t *choice, double *start) {
    size_t n = (size_t)clocks->instructions;
    const Effort *e = EFFORTS + effort;
    int32_t trials = e->trial_visits / clocks->instructions;
    double *seconds = malloc(3 * n * sizeof(double));
    int32_t *tried = malloc(n * sizeof(int32_t));
    Candidate *candidate = malloc(MOST_FASTER * n * sizeof(Candidate));
    int fine = seconds && tried && candidate;
    for (int32_t k = 0; fine && k < count; k++, choice += n, start += n) {
        Rounding r = {clocks, deadline[k], seconds, start, seconds + n, tried, -1};
        try_all(&r, seconds + 2 * n, deadline[k], e, choice);
        if (trials >= FEWEST_TRIALS) improve(&r, deadline[k], trials, candidate, choice);
        choose_all(&r, choice);
        find_starts(&r, r.durations);
    }
    free(seconds);
    free(tried);
    free(candidate);
    return fine;
}
