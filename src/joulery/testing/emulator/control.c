/* What the Python driver calls to work the boards; every function takes the lock itself. */
#include "emulator.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

EXPORT uint64_t emulator_spec_size(void)
{
    return sizeof(struct spec);
}

static struct board *locked_board(struct state **state, uint32_t index)
{
    *state = state_get();
    if (*state == NULL || index >= (*state)->board_count)
        return NULL;
    state_lock(*state);
    return &(*state)->boards[index];
}

/* First lines of a function on a board, which is locked from here on. */
#define ON_BOARD(index)                                                                            \
    struct state *state;                                                                           \
    struct board *board = locked_board(&state, index);                                             \
    if (board == NULL)                                                                             \
    return -1

/* Rows ascending in clock; pattern of (factor, seconds at full clock). */
EXPORT int emulator_set_load(uint32_t index, uint32_t row_count, const struct row *rows,
                             uint32_t pattern_count, const struct phase *pattern,
                             uint32_t utilisation_percent)
{
    if (row_count > MAX_STATES || pattern_count > MAX_PHASES)
        return -1;
    ON_BOARD(index);
    if (row_count > 0)
        memcpy(board->rows, rows, row_count * sizeof *rows);
    if (pattern_count > 0)
        memcpy(board->pattern, pattern, pattern_count * sizeof *pattern);
    board->row_count = row_count;
    board->pattern_count = pattern_count;
    board->utilisation_percent = utilisation_percent;
    board_resettle(board, state_now(state));
    state_unlock(state);
    return 0;
}

/* Ground truth now: joules and steps since birth, watts, and where the load settled. */
EXPORT int emulator_truth(uint32_t index, double *out)
{
    struct shown here;
    double now;
    ON_BOARD(index);

    now = state_now(state);
    here = board_at(board, now);
    out[0] = here.joules;
    out[1] = here.watts;
    out[2] = board_steps(board, now);
    out[3] = board->settled.hertz;
    out[4] = board->settled.seconds;
    out[5] = board->settled.watts;
    out[6] = board->settled.busy_watts;
    out[7] = board->limit_watts;
    out[8] = now;
    state_unlock(state);
    return 0;
}

/* What the counter and the sensor show, before rounding: joules, watts, time of the refresh. */
EXPORT int emulator_shown(uint32_t index, double *out)
{
    double now;
    ON_BOARD(index);

    now = state_now(state);
    out[0] = board_counter_joules(board, now, &out[2]);
    out[1] = board_sensor_watts(board, now, &out[2]);
    state_unlock(state);
    return 0;
}

/* Put the administrator's knobs where a test wants them, without rights. */
EXPORT int emulator_set_limit(uint32_t index, double watts)
{
    ON_BOARD(index);
    board->limit_watts = watts;
    board_resettle(board, state_now(state));
    state_unlock(state);
    return 0;
}

EXPORT int emulator_set_processes(uint32_t index, uint32_t count, const struct process *processes)
{
    if (count > MAX_PROCESSES)
        return -1;
    ON_BOARD(index);
    if (count > 0)
        memcpy(board->processes, processes, count * sizeof *processes);
    board->process_count = count;
    state_unlock(state);
    return 0;
}

EXPORT int emulator_reset_counter(uint32_t index, double after_seconds)
{
    ON_BOARD(index);
    board->reset_due = state_now(state) + after_seconds;
    state_unlock(state);
    return 0;
}

EXPORT int emulator_freeze_counter(uint32_t index, double after_seconds)
{
    ON_BOARD(index);
    board->freeze_due = state_now(state) + after_seconds;
    state_unlock(state);
    return 0;
}

EXPORT int emulator_thaw_counter(uint32_t index)
{
    ON_BOARD(index);
    board->frozen = 0;
    board->freeze_due = INFINITY;
    state_unlock(state);
    return 0;
}

EXPORT int emulator_add_fault(const struct fault *fault, double after_seconds)
{
    struct state *state = state_get();
    int added = -1;

    if (state == NULL)
        return -1;
    state_lock(state);
    if (state->fault_count < MAX_FAULTS) {
        state->faults[state->fault_count] = *fault;
        state->faults[state->fault_count].since = state_now(state) + after_seconds;
        state->fault_count++;
        added = 0;
    }
    state_unlock(state);
    return added;
}

EXPORT void emulator_clear_faults(void)
{
    struct state *state = state_get();

    if (state == NULL)
        return;
    state_lock(state);
    state->fault_count = 0;
    state_unlock(state);
}

/* NVML calls of all processes. */
EXPORT uint64_t emulator_calls(void)
{
    struct state *state = state_get();

    return state == NULL ? 0 : state->calls;
}

/* Whether the lock still guards: it does not once its holder died and it was not repaired. */
EXPORT int emulator_lock_works(void)
{
    struct state *state = state_get();
    int works = state != NULL && pthread_mutex_lock(&state->mutex) == 0;

    if (works)
        state_unlock(state);
    return works;
}

/* Die as a process that is killed in the middle of a call does, with the lock in its hand. */
EXPORT void emulator_die_holding_lock(void)
{
    struct state *state = state_get();

    if (state != NULL)
        state_lock(state);
    _exit(9);
}
