/* The next action of the policy `joulery` for jobs whose objective is their cost.
 *
 * The same steps as outlook.py, planning.py, profiles.py and limit_choice.py take on arrays, in the
 * same order, one lane at a time; those files say why. Batch sizes that only pad a row are left out
 * from the start. Nothing is kept between calls and nothing but the actions is written. */
#include "decide.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define ARMS JOULERY_MOST_ARMS
#define LIMITS JOULERY_MOST_LIMITS
#define NODES JOULERY_MOST_NODES
#define STEP 4 /* divides NODES */
#define LOTS 0 /* stream of random numbers (joulery.py) */

typedef const JouleryRules Rules;
typedef const JouleryBeliefs Beliefs;

/* Whole runs of each batch size that does not pad the row (outlook.py, planning.py). */
typedef struct {
    int n;
    int64_t arm[ARMS];                       /* position among all batch sizes */
    double log_epochs[ARMS], log_cost[ARMS]; /* to the target; of an epoch */
    double under_way[ARMS];
    double mean[ARMS], variance[ARMS];       /* of the logarithm of a run's cost */
    double covariance[ARMS * ARMS];          /* (n, n), of those means */
    double noise;
    bool unproven;
    int best;
    double log_expected[ARMS], expected[ARMS], least; /* the least of all, proven or not */
} View;

/* What running a batch size next is worth (planning.py). */
typedef struct {
    double value; /* cost saved, over this and the recurrences to come; NaN if beyond reason */
    double stop;  /* where to stop it, in standard deviations above the mean */
} Worth;

/* Which batch size is trained next. */
typedef struct {
    int at; /* among those of the view */
    bool tries;
    double stop; /* of a try */
    double best_cost, cap, ceiling;
    int64_t why;
} Choice;

/* An epoch of one batch size under each limit (profiles.py). */
typedef struct {
    double log_seconds[LIMITS], log_watts[LIMITS], log_cost[LIMITS]; /* NaN where not known */
    double variance[LIMITS]; /* of either */
    double dearest_rate;     /* joules of cost per second; 0 where nothing is known */
} Epoch;

/* What a training does with limits (limit_choice.py). */
typedef struct {
    int64_t hold; /* -1 leaves it to the profile */
    double extra; /* what measuring adds, in slices */
} Held;

static double smaller(double a, double b) { return a < b ? a : b; }

static double larger(double a, double b) { return a > b ? a : b; }

static double square(double a) { return a * a; }

static double looked_up(const JouleryTable *table, double z)
{
    double position = z * table->steps - table->first;
    if (isnan(position))
        return position;
    if (position <= 0.0)
        return table->values[0];
    if (position >= (double)(table->count - 1))
        return table->values[table->count - 1];
    int64_t at = (int64_t)position;
    const double *value = table->values + at;
    double start = ((double)at + table->first) / table->steps;
    return (value[1] - value[0]) * table->steps * (z - start) + value[0];
}

/* The covariance once trainings under way have ended: of those few, by Cholesky's method. */
static bool foresee(View *view)
{
    int n = view->n, busy = 0;
    int who[ARMS];
    double root[ARMS];
    for (int i = 0; i < n; i++)
        if (view->under_way[i] > 0.0) {
            root[busy] = sqrt(view->under_way[i] / view->noise);
            who[busy++] = i;
        }
    if (!busy)
        return true;
    double factor[ARMS * ARMS], told[ARMS * ARMS]; /* (busy, busy), (busy, n) */
    for (int i = 0; i < busy; i++) {
        const double *own = view->covariance + who[i] * n;
        for (int j = 0; j <= i; j++) {
            double left = root[i] * own[who[j]] * root[j] + (i == j);
            for (int k = 0; k < j; k++)
                left -= factor[i * busy + k] * factor[j * busy + k];
            if (i == j && !(left > 0.0))
                return false;
            factor[i * busy + j] = i == j ? sqrt(left) : left / factor[j * busy + j];
        }
        for (int a = 0; a < n; a++) {
            double left = root[i] * own[a];
            for (int k = 0; k < i; k++)
                left -= factor[i * busy + k] * told[k * n + a];
            told[i * n + a] = left / factor[i * busy + i];
        }
    }
    for (int i = 0; i < busy; i++)
        for (int a = 0; a < n; a++)
            for (int b = 0; b < n; b++)
                view->covariance[a * n + b] -= told[i * n + a] * told[i * n + b];
    return true;
}

/* What runs cost, and the best among the batch sizes that have reached the target, if any has. */
static bool look(Rules *rules, Beliefs *beliefs, int64_t row, View *view)
{
    int64_t arms = beliefs->arms, first = row * arms;
    const double *epochs = beliefs->epochs_covariance + first * arms;
    const double *cost = beliefs->cost_covariance + first * arms;
    bool proven[ARMS];
    int n = 0;
    view->noise = (beliefs->noise_scatter + beliefs->scatter[row]) /
                  (beliefs->noise_runs + beliefs->compared[row]);
    view->unproven = true;
    for (int64_t a = 0; a < arms; a++)
        if (beliefs->valid[first + a]) {
            proven[n] = beliefs->runs[first + a] > 0.0;
            view->unproven &= !proven[n];
            view->arm[n++] = a;
        }
    view->n = n;
    for (int i = 0; i < n; i++) {
        int64_t a = view->arm[i];
        view->log_epochs[i] = beliefs->epochs_mean[first + a];
        view->log_cost[i] = beliefs->cost_mean[first + a];
        view->under_way[i] = beliefs->under_way[first + a];
        /* A run that fails has to be repeated. */
        double z = (beliefs->log_most_epochs[row] - view->log_epochs[i]) /
                   sqrt(epochs[a * arms + a] + view->noise);
        view->mean[i] =
            view->log_epochs[i] + view->log_cost[i] + looked_up(&rules->log_repeats, z);
        for (int j = 0; j < n; j++) {
            int64_t at = a * arms + view->arm[j];
            view->covariance[i * n + j] = epochs[at] + cost[at];
        }
    }
    if (!foresee(view))
        return false;
    double least = INFINITY;
    view->best = 0;
    for (int i = 0; i < n; i++) {
        view->variance[i] = view->covariance[i * n + i] + view->noise;
        double charge = view->mean[i] + 0.5 * view->variance[i];
        if ((proven[i] || view->unproven) && charge < least) {
            least = charge;
            view->best = i;
        }
    }
    return n > 0;
}

/* What whole runs are expected to cost; whether that can be reckoned with. */
static bool expect(View *view)
{
    double least = INFINITY;
    for (int i = 0; i < view->n; i++) {
        view->log_expected[i] = view->mean[i] + 0.5 * square(sqrt(view->variance[i]));
        view->expected[i] = exp(view->log_expected[i]);
        least = smaller(view->log_expected[i], least);
        if (!isfinite(view->expected[i]))
            return false;
    }
    view->least = exp(least);
    return true;
}

/* Log cost of the best run, once `run` has ended at each of the first nodes, or was stopped there.
 *
 * Worked out for whole steps of nodes, so that the compiler does several at once. */
static void learn(Rules *rules, const View *view, int run, int64_t nodes, double *restrict ended,
                  double *restrict stopped)
{
    int n = view->n;
    const double *covariance = view->covariance + run * n;
    double own = covariance[run];
    double trial = sqrt(own + view->noise / rules->trial_runs);
    for (int k = 0; k < NODES; k++)
        ended[k] = stopped[k] = INFINITY;
    for (int other = 0; other < n; other++) {
        double tilt = covariance[other] / trial;
        double bow = 0.5 * square(tilt);
        double settled = view->log_expected[other] - bow;
        for (int64_t from = 0; from < nodes; from += STEP)
            for (int64_t k = from; k < from + STEP; k++) {
                double end = tilt * rules->node[k] + settled;
                double stop = bow * rules->tail_variance[k] + settled + tilt * rules->tail_mean[k];
                ended[k] = end < ended[k] ? end : ended[k];
                stopped[k] = stop < stopped[k] ? stop : stopped[k];
            }
    }
}

/* What running a batch size next is worth, and where to stop it (planning.py). */
static Worth weigh(Rules *rules, const View *view, int run)
{
    double cost[NODES], ended[NODES], stopped[NODES];
    double restart = view->expected[view->best], now = view->least;
    double most = view->expected[run] <= restart ? INFINITY : rules->dearest_try * restart;
    double spread = sqrt(view->variance[run]);
    double per_run = rules->horizon / rules->trial_runs, sum = 0.0;
    int64_t nodes = 1;
    cost[0] = exp(spread * rules->node[0] + view->mean[run]);
    /* Later nodes are dearer still, so the first that is too dear ends it; but where even the
     * cheapest outcome is, stopping at once is all that is left. */
    for (; nodes < rules->nodes; nodes++) {
        cost[nodes] = exp(spread * rules->node[nodes] + view->mean[run]);
        if (cost[nodes] > most)
            break;
    }
    learn(rules, view, run, nodes, ended, stopped);
    Worth worth = {.value = -INFINITY};
    for (int64_t k = 0; k < nodes; k++) {
        sum += ((now - exp(ended[k])) * per_run - cost[k]) * rules->weight[k];
        double halted = (now - exp(stopped[k])) * per_run - cost[k] - restart;
        double value = sum + restart + halted * rules->left[k];
        if (value > worth.value) {
            worth.value = value;
            worth.stop = rules->stop[k];
        }
    }
    if (!isfinite(cost[nodes - 1]))
        worth.value = NAN;
    return worth;
}

static bool measured(Beliefs *beliefs, int64_t row, int64_t arm)
{
    const double *precision = beliefs->precision + (row * beliefs->arms + arm) * beliefs->limits;
    for (int64_t limit = 0; limit < beliefs->limits; limit++)
        if (precision[limit] > 0.0)
            return true;
    return false;
}

/* As in draws.py. */
static uint64_t mix(uint64_t seed, uint64_t counter)
{
    uint64_t word = seed + (counter + 1) * 0x9E3779B97F4A7C15u;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
    return word ^ (word >> 31);
}

/* In [0, 1). */
static double uniform(uint64_t word, uint64_t stream)
{
    return (double)(mix(mix(word, stream), 0) >> 11) * 0x1p-53;
}

/* What to run while no batch size has reached the target. */
static void choose_before_success(Rules *rules, Beliefs *beliefs, int64_t row, uint64_t word,
                                  const View *view, Choice *choice)
{
    bool blank = true, informed = beliefs->informed[row];
    int usual = 0, cheapest = 0, scout = -1;
    double total = 0.0;
    for (int i = 0; i < view->n; i++) {
        blank = blank && !measured(beliefs, row, view->arm[i]);
        total += view->under_way[i];
        if (view->arm[i] == beliefs->default_arm[row])
            usual = i;
        if (view->expected[i] < view->expected[cheapest])
            cheapest = i;
    }
    int main = blank && !informed ? usual : cheapest;
    double scouts = total - view->under_way[main];
    double most = rules->dearest_try * view->expected[main];
    for (int i = 0; i < view->n; i++)
        if (view->expected[i] < most && view->under_way[i] == 0.0 &&
            (scout < 0 || view->expected[i] < view->expected[scout]))
            scout = i;
    double lots = 2.0 * uniform(word, LOTS);
    choice->at = scout >= 0 && scouts + lots < rules->scouts * total ? scout : main;
    if (!blank)
        choice->why = rules->why_unreached;
    else if (informed)
        choice->why = rules->why_heir;
    else
        choice->why = choice->at == usual ? rules->why_first : rules->why_scout;
}

/* Whole epochs and a bit, at which a run is stopped. */
static double ceiling(Rules *rules, Beliefs *beliefs, int64_t row, const View *view,
                      const Choice *choice)
{
    int at = choice->at;
    int64_t arm = view->arm[at];
    double epoch = exp(view->log_cost[at]), most = choice->cap;
    double sure = beliefs->cost_covariance[((row * beliefs->arms) + arm) * beliefs->arms + arm];
    if (choice->tries) {
        double far = choice->stop * sqrt(view->variance[at]);
        most = smaller(exp(view->log_epochs[at] + far) * epoch, most);
    }
    double spare = exp(rules->spare_errors * sqrt(sure));
    return (ceil(most / epoch) + rules->spare_epoch) * epoch * spare;
}

/* Which batch size to train next, and how far to go with it; -1 if figures are beyond reason. */
static Choice choose(Rules *rules, Beliefs *beliefs, int64_t row, uint64_t word, const View *view)
{
    int best = view->best;
    Choice choice = {.at = best, .why = rules->why_best};
    double log_best = view->log_epochs[best] + view->log_cost[best];
    choice.best_cost = exp(log_best + 0.5 * square(sqrt(view->variance[best])));
    double dearest = rules->dearest_try * choice.best_cost;
    if (view->unproven) {
        choose_before_success(rules, beliefs, row, word, view, &choice);
        choice.cap = INFINITY; /* there is nothing to fall back on, so nothing is stopped */
    } else {
        double highest = -INFINITY;
        for (int i = 0; i < view->n; i++) {
            /* Runs that overlap cannot learn from one another: one try at a time. */
            if (i != best && (view->under_way[i] > 0.0 || exp(view->log_cost[i]) > dearest))
                continue;
            Worth worth = weigh(rules, view, i);
            if (!isfinite(worth.value))
                return (Choice){.at = -1};
            if (worth.value > highest) {
                highest = worth.value;
                choice.at = i;
                choice.stop = worth.stop;
            }
        }
        choice.tries = choice.at != best;
        choice.cap = choice.tries ? dearest : rules->patience * choice.best_cost;
        if (choice.tries)
            choice.why = rules->why_try;
    }
    choice.ceiling = ceiling(rules, beliefs, row, view, &choice);
    return choice;
}

/* Joules of cost per second. */
static double rate(Beliefs *beliefs, int64_t row, double log_watts)
{
    return exp(log_watts) * beliefs->joule_weight[row] + beliefs->second_weight[row];
}

/* The closest batch size whose limits were compared; the first where none were. */
static int64_t lender(Beliefs *beliefs, int64_t row, int64_t arm)
{
    int64_t first = row * beliefs->arms, limits = beliefs->limits, found = 0;
    int64_t count[ARMS], fullest = limits < 2 ? limits : 2;
    for (int64_t a = 0; a < beliefs->arms; a++) {
        const double *precision = beliefs->precision + (first + a) * limits;
        count[a] = 0;
        for (int64_t limit = 0; limit < limits; limit++)
            count[a] += precision[limit] > 0.0;
        if (count[a] > fullest)
            fullest = count[a];
    }
    double nearest = INFINITY;
    for (int64_t a = 0; a < beliefs->arms; a++) {
        double away = fabs(beliefs->log_sizes[first + a] - beliefs->log_sizes[first + arm]);
        if (count[a] >= fullest && away < nearest) {
            nearest = away;
            found = a;
        }
    }
    return found;
}

/* Fill in the limits that were not measured, as another batch size lends them, at this one's
 * level; how a limit hurts there is not quite how it hurts here. */
static void borrow(Rules *rules, Beliefs *beliefs, int64_t row, int64_t arm, Epoch *epoch)
{
    int64_t limits = beliefs->limits, first = row * beliefs->arms;
    int64_t from = lender(beliefs, row, arm);
    const double *lent = beliefs->logs + (first + from) * 2 * limits;
    const double *has = beliefs->precision + (first + arm) * limits;
    const double *lends = beliefs->precision + (first + from) * limits;
    double cost[LIMITS], least = INFINITY, longer = 0.0, stronger = 0.0, both = 0.0;
    for (int64_t i = 0; i < limits; i++) {
        if (!(lends[i] > 0.0))
            continue;
        cost[i] = lent[i] + log(rate(beliefs, row, lent[limits + i]));
        least = smaller(cost[i], least);
        if (has[i] > 0.0) {
            longer += epoch->log_seconds[i] - lent[i];
            stronger += epoch->log_watts[i] - lent[limits + i];
            both += 1.0;
        }
    }
    for (int64_t i = 0; i < limits; i++) {
        if (has[i] > 0.0 || !(lends[i] > 0.0))
            continue;
        double hurt = rules->borrowed_share * (cost[i] - least);
        epoch->log_seconds[i] = lent[i] + longer / larger(both, 1.0);
        epoch->log_watts[i] = lent[limits + i] + stronger / larger(both, 1.0);
        epoch->variance[i] = 1.0 / lends[i] + (rules->borrowed_variance + square(hurt));
    }
}

/* What is known of a batch size's epochs, measured or borrowed. */
static void believe(Rules *rules, Beliefs *beliefs, int64_t row, int64_t arm, Epoch *epoch)
{
    int64_t limits = beliefs->limits, at = row * beliefs->arms + arm;
    const double *logs = beliefs->logs + at * 2 * limits;
    const double *precision = beliefs->precision + at * limits;
    bool all = true;
    for (int64_t i = 0; i < limits; i++) {
        bool has = precision[i] > 0.0;
        epoch->log_seconds[i] = has ? logs[i] : NAN;
        epoch->log_watts[i] = has ? logs[limits + i] : NAN;
        epoch->variance[i] = has ? 1.0 / precision[i] : INFINITY;
        all = all && has;
    }
    if (!all)
        borrow(rules, beliefs, row, arm, epoch);
    epoch->dearest_rate = 0.0;
    for (int64_t i = 0; i < limits; i++) {
        double each = rate(beliefs, row, epoch->log_watts[i]);
        epoch->log_cost[i] = epoch->log_seconds[i] + log(each);
        epoch->dearest_rate = larger(each, epoch->dearest_rate); /* never NaN */
    }
}

/* Hold the cheapest limit by belief; measure others where that may pay. */
static Held hold(Rules *rules, const Epoch *epoch, int64_t limits, double share, uint8_t *measure)
{
    Held held = {.hold = -1};
    double least = INFINITY;
    for (int64_t i = 0; i < limits; i++)
        if (isfinite(epoch->log_cost[i]) && epoch->log_cost[i] < least) {
            least = epoch->log_cost[i];
            held.hold = i;
        }
    for (int64_t i = 0; i < limits; i++) {
        measure[i] = held.hold < 0;
        if (i == held.hold || !isfinite(epoch->log_cost[i]))
            continue;
        double excess = epoch->log_cost[i] - least, unsure = epoch->variance[i];
        double spread = sqrt(unsure + epoch->variance[held.hold]);
        double gain = rules->horizon * spread * looked_up(&rules->excess, excess / spread);
        double dearer = larger(expm1(smaller(excess, 1.0)), rules->least_disturbance);
        measure[i] = gain > share * dearer && unsure > rules->settled_variance;
        if (measure[i])
            held.extra += dearer;
    }
    return held;
}

/* Whether to find out in seconds what an epoch costs before trying a batch size. */
static bool pays_to_probe(Rules *rules, Beliefs *beliefs, int64_t row, int64_t arm,
                          const Choice *choice, double slice_cost)
{
    int64_t arms = beliefs->arms;
    return choice->tries && !measured(beliefs, row, arm) &&
           beliefs->cost_covariance[(row * arms + arm) * arms + arm] > rules->probe_variance &&
           slice_cost < rules->probe_share * choice->best_cost && slice_cost > 0.0;
}

int joulery_decide(Rules *rules, Beliefs *beliefs, int64_t count, void *actions)
{
    int64_t *kind = actions, *arm = kind + count, *limit = arm + count, *why = limit + count;
    double *ceilings = (double *)(why + count);
    uint8_t *measure = (uint8_t *)(ceilings + count);
    int64_t limits = beliefs->limits;
    if (beliefs->arms > ARMS || limits > LIMITS)
        return 1;
    for (int64_t i = 0; i < count; i++, measure += limits) {
        View view;
        Epoch epoch;
        int64_t row = kind[i];
        uint64_t word;
        memcpy(&word, ceilings + i, sizeof word);
        if (row < 0 || row >= beliefs->lanes || !look(rules, beliefs, row, &view) ||
            !expect(&view))
            return 1;
        Choice choice = choose(rules, beliefs, row, word, &view);
        if (choice.at < 0)
            return 1;
        arm[i] = view.arm[choice.at];
        believe(rules, beliefs, row, arm[i], &epoch);
        double slice_cost = rules->slice_seconds * epoch.dearest_rate;
        Held held = hold(rules, &epoch, limits, slice_cost / choice.best_cost, measure);
        kind[i] = rules->train;
        limit[i] = held.hold;
        why[i] = choice.why;
        ceilings[i] = smaller(choice.ceiling + held.extra * slice_cost, choice.cap);
        if (pays_to_probe(rules, beliefs, row, arm[i], &choice, slice_cost)) {
            kind[i] = rules->probe;
            limit[i] = -1;
            why[i] = rules->why_probe;
            ceilings[i] = INFINITY;
            for (int64_t l = 0; l < limits; l++)
                measure[l] = l == held.hold;
        }
    }
    return 0;
}
