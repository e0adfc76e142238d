/* What a board draws and shows. No formula of clocks and volts lives here: the driver gives a table
 * of (clock, seconds, watts, busy watts) for the load, and this file looks up, interpolates and integrates.
 */
#include "emulator.h"

#include <math.h>
#include <string.h>

/* The highest clock within the limit, between two rows where the limit binds; a lock takes away the
 * rows above it. */
static struct row settle(const struct board *board)
{
    const struct row *rows = board->rows, *below, *above;
    uint32_t count = 0, within = 0;
    double cap = INFINITY, share;
    struct row found;

    if (board->locked_hertz > 0)
        cap = board->locked_hertz;
    if (board->application_hertz > 0 && board->application_hertz < cap)
        cap = board->application_hertz;
    while (count < board->row_count && rows[count].hertz <= cap)
        count++;
    if (count == 0)
        count = 1;
    while (within < count && rows[within].busy_watts <= board->limit_watts)
        within++;
    if (within == count)
        return rows[count - 1];
    if (within == 0)
        return rows[0];
    below = &rows[within - 1];
    above = &rows[within];
    share = (board->limit_watts - below->busy_watts) / (above->busy_watts - below->busy_watts);
    found.hertz = below->hertz + share * (above->hertz - below->hertz);
    found.seconds = below->seconds + share * (above->seconds - below->seconds);
    found.watts = fmin(board->limit_watts, below->watts + share * (above->watts - below->watts));
    found.busy_watts = board->limit_watts;
    return found;
}

/* First-order lag towards a constant target, exactly. */
static void hold(double target, double lag, double seconds, double *watts, double *joules)
{
    double gone;

    if (lag <= 0) {
        *joules += target * seconds;
        *watts = target;
        return;
    }
    gone = -expm1(-seconds / lag);
    *joules += target * seconds + (*watts - target) * lag * gone;
    *watts = target + (*watts - target) * (1 - gone);
}

static double cycle_seconds(const struct segment *segment)
{
    double total = 0;
    uint32_t i;

    for (i = 0; i < segment->phase_count; i++)
        total += segment->phases[i].seconds;
    return total;
}

/* Through the phases from the segment's offset on, for at most one cycle. */
static void walk(const struct segment *segment, double lag, double seconds, double *watts,
                 double *joules)
{
    double skip = segment->offset_seconds;
    uint32_t i, count = segment->phase_count;

    for (i = 0; i <= 2 * count && seconds > 0; i++) {
        const struct phase *phase = &segment->phases[i % count];
        double stay = phase->seconds - skip;

        if (stay <= 0) {
            skip -= phase->seconds;
            continue;
        }
        skip = 0;
        if (stay > seconds)
            stay = seconds;
        hold(phase->watts, lag, stay, watts, joules);
        seconds -= stay;
    }
}

/* Whole cycles at once: one cycle maps power p to a*p + b and adds c + d*p joules, so any number of
 * them is a geometric series. */
static void whole_cycles(const struct segment *segment, double lag, double cycles, double *watts,
                         double *joules)
{
    double cycle = cycle_seconds(segment), b = 0, c = 0, gone, settled, all_gone;

    walk(segment, lag, cycle, &b, &c);
    if (lag <= 0) {
        *joules += cycles * c;
        *watts = b;
        return;
    }
    gone = -expm1(-cycle / lag);
    settled = b / gone;
    all_gone = -expm1(-cycles * cycle / lag);
    *joules += cycles * (c + lag * gone * settled) + lag * (*watts - settled) * all_gone;
    *watts = settled + (*watts - settled) * (1 - all_gone);
}

static const struct segment *segment_before(const struct board *board, double when)
{
    uint64_t kept = board->segment_total < MAX_SEGMENTS ? board->segment_total : MAX_SEGMENTS;
    uint64_t back;
    const struct segment *segment = NULL;

    for (back = 1; back <= kept; back++) {
        segment = &board->segments[(board->segment_total - back) % MAX_SEGMENTS];
        if (segment->since <= when)
            break;
    }
    return segment;
}

struct shown board_at(const struct board *board, double when)
{
    const struct segment *segment = segment_before(board, when);
    double seconds = when - segment->since, lag = board->spec.lag_seconds, cycle, cycles;
    struct shown result = {when, segment->joules, segment->watts};

    if (seconds <= 0) {
        result.tick = segment->since;
        return result;
    }
    if (segment->phase_count == 0) {
        hold(segment->target_watts, lag, seconds, &result.watts, &result.joules);
        return result;
    }
    cycle = cycle_seconds(segment);
    cycles = floor(seconds / cycle);
    if (cycles > 0)
        whole_cycles(segment, lag, cycles, &result.watts, &result.joules);
    walk(segment, lag, seconds - cycles * cycle, &result.watts, &result.joules);
    return result;
}

double board_steps(const struct board *board, double when)
{
    const struct segment *segment = segment_before(board, when);

    if (segment->step_seconds <= 0)
        return segment->steps;
    return segment->steps + (when - segment->since) / segment->step_seconds;
}

double board_last_tick(const struct board *board, double now)
{
    double period = board->spec.period_seconds, phase = board->spec.phase_seconds, count;

    if (period <= 0)
        return now;
    count = floor((now - phase) / period);
    /* Rounding may name a refresh that is still a hair ahead. */
    return phase + period * (phase + period * count <= now ? count : count - 1);
}

static struct shown refreshed_at(const struct board *board, double now)
{
    uint64_t kept = board->segment_total < MAX_SEGMENTS ? board->segment_total : MAX_SEGMENTS;
    double oldest = board->segments[(board->segment_total - kept) % MAX_SEGMENTS].since;
    double tick = board_last_tick(board, now);

    return tick < oldest ? board->held : board_at(board, tick);
}

/* Whether the sensor shows anything else than the power at its refresh. */
static int is_slow(const struct spec *spec)
{
    return spec->period_seconds > 0 && (spec->window_seconds > 0 || spec->sensor_lag_seconds > 0);
}

/* What counter and sensor make of it. */
static struct shown shown_at(const struct board *board, double now)
{
    struct shown shown = refreshed_at(board, now);
    const struct spec *spec = &board->spec;

    if (spec->counts_looks)
        shown.joules = board->looked.joules;
    else
        shown.joules = spec->gain * shown.joules + spec->offset_watts * fmax(0, shown.tick);
    if (is_slow(spec))
        shown.watts = board->looked.watts;
    shown.watts = fmax(0, spec->gain * shown.watts + spec->offset_watts);
    return shown;
}

static double mean_before(const struct board *board, double when, double seconds)
{
    struct shown start = board_at(board, when - seconds), end = board_at(board, when);

    /* Before the first moment it was as at that moment. */
    if (start.tick > when - seconds)
        start.joules -= start.watts * (start.tick - (when - seconds));
    return seconds > 0 ? (end.joules - start.joules) / seconds : end.watts;
}

/* Let the sensor refresh up to a moment; it stays behind by its own ticks until the next read. */
static void look(struct board *board, double now)
{
    const struct spec *spec = &board->spec;
    double period = spec->period_seconds, window = spec->window_seconds, watts, tick;

    if (!is_slow(spec))
        return;
    for (tick = board->looked.tick + period; tick <= now + 1e-9; tick += period) {
        watts = mean_before(board, tick, window);
        board->followed_watts +=
            (watts - board->followed_watts) * period / (period + spec->sensor_lag_seconds);
        watts = mean_before(board, tick, fmin(window, period));
        board->looked.joules += period * (spec->gain * watts + spec->offset_watts);
        board->looked.watts = board->followed_watts;
        board->looked.tick = tick;
    }
}

/* Resets and freezes take effect at their own time, at the next read. */
static void apply_due(struct board *board, double now)
{
    if (board->freeze_due <= now) {
        board->frozen_shown = shown_at(board, board->freeze_due);
        board->frozen = 1;
        board->freeze_due = INFINITY;
    }
    if (board->reset_due <= now) {
        board->base_before_joules = board->base_joules;
        board->base_joules =
            board->spec.gain * board_at(board, board->reset_due).joules +
            board->spec.offset_watts * board->reset_due + board->spec.counter_start_joules;
        board->base_since = board->reset_due;
        board->reset_due = INFINITY;
    }
}

struct shown board_shown(struct board *board, double now)
{
    look(board, now);
    apply_due(board, now);
    return board->frozen ? board->frozen_shown : shown_at(board, now);
}

double board_counter_joules(struct board *board, double now, double *tick)
{
    struct shown shown = board_shown(board, now);
    double base =
        shown.tick >= board->base_since ? board->base_joules : board->base_before_joules;

    *tick = shown.tick;
    return shown.joules + board->spec.counter_start_joules - base;
}

/* The same tick of the same board always errs the same way. */
double board_noisy(const struct board *board, double watts, double tick)
{
    uint64_t mixed;

    if (board->spec.noise <= 0)
        return watts;
    mixed = (uint64_t)llround(tick * 1e6) ^ ((uint64_t)board->spec.pci_bus << 48);
    mixed += 0x9e3779b97f4a7c15ull;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebull;
    mixed ^= mixed >> 31;
    return watts * (1 + board->spec.noise * (2 * ((double)(mixed >> 11) * 0x1p-53) - 1));
}

double board_sensor_watts(struct board *board, double now, double *tick)
{
    struct shown shown = board_shown(board, now);

    *tick = shown.tick;
    return board_noisy(board, shown.watts, shown.tick);
}

/* Over the last second, or what there is of it. */
double board_mean_watts(struct board *board, double now, double *tick)
{
    struct shown end = board_shown(board, now);
    struct shown start = board_at(board, end.tick > 1 ? end.tick - 1 : 0);
    double watts;

    *tick = end.tick;
    if (board->frozen || end.tick <= start.tick)
        return board_noisy(board, end.watts, end.tick);
    watts = mean_before(board, end.tick, fmin(1, end.tick));
    return board_noisy(board, board->spec.gain * watts + board->spec.offset_watts, end.tick);
}

/* Start a new segment that continues the old one's energy, power and work. */
void board_begin(struct board *board, double now)
{
    struct segment *segment = &board->segments[board->segment_total % MAX_SEGMENTS];
    struct shown here = {now, 0, board->spec.idle_watts};
    double steps = 0;

    if (board->segment_total == 0) {
        board->held = here;
        board->held.tick = board_last_tick(board, now);
        board->looked = board->held;
        board->followed_watts = here.watts;
    } else {
        look(board, now);
        apply_due(board, now);
        board->held = refreshed_at(board, now);
        here = board_at(board, now);
        steps = board_steps(board, now);
    }
    memset(segment, 0, sizeof *segment);
    segment->since = now;
    segment->joules = here.joules;
    segment->watts = here.watts;
    segment->steps = steps;
    segment->target_watts = board->spec.idle_watts;
    board->segment_total++;
}

/* Look up where the load settles now, and go on from there; a pattern keeps its place. */
void board_resettle(struct board *board, double now)
{
    const struct segment *old = NULL;
    double progress = 0, old_cycle, stretch;
    struct segment *segment;
    uint32_t i;

    if (board->segment_total > 0)
        old = segment_before(board, now);
    if (old != NULL && old->phase_count > 0 && old->phase_count == board->pattern_count) {
        old_cycle = cycle_seconds(old);
        progress = fmod(old->offset_seconds + now - old->since, old_cycle) / old_cycle;
    }
    board_begin(board, now);
    segment = &board->segments[(board->segment_total - 1) % MAX_SEGMENTS];
    if (board->row_count == 0) {
        board->settled.hertz = board->spec.clock_count ? board->spec.clocks_hertz[0] : 0;
        board->settled.seconds = 0;
        board->settled.watts = board->settled.busy_watts = board->spec.idle_watts;
        return;
    }
    board->settled = settle(board);
    segment->target_watts = board->settled.watts;
    segment->step_seconds = board->settled.seconds;
    segment->phase_count = board->pattern_count;
    stretch = board->rows[board->row_count - 1].seconds > 0
                  ? board->settled.seconds / board->rows[board->row_count - 1].seconds
                  : 1;
    for (i = 0; i < board->pattern_count; i++) {
        segment->phases[i].watts = board->pattern[i].watts * board->settled.watts;
        segment->phases[i].seconds = board->pattern[i].seconds * stretch;
    }
    if (board->pattern_count > 0)
        segment->offset_seconds = progress * cycle_seconds(segment);
}
