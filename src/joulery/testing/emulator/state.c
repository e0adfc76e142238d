/* Where the shared state lives, what time it is there, and which faults are due. */
#define _GNU_SOURCE
#include "emulator.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define WALL_STEP_SECONDS 1e-3

static struct state *mapped;
static pthread_mutex_t mapping_mutex = PTHREAD_MUTEX_INITIALIZER;

static int64_t nanoseconds(clockid_t id)
{
    struct timespec now;

    clock_gettime(id, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static struct state *map(int descriptor)
{
    void *address =
        mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);

    return address == MAP_FAILED ? NULL : address;
}

static struct state *map_existing(const char *path)
{
    struct state *state = NULL;
    struct stat status;
    int descriptor = open(path, O_RDWR | O_CLOEXEC);

    if (descriptor < 0)
        return NULL;
    if (fstat(descriptor, &status) == 0 && status.st_size == (off_t)sizeof(struct state))
        state = map(descriptor);
    close(descriptor);
    if (state != NULL && (state->magic != STATE_MAGIC || state->size != sizeof(struct state))) {
        munmap(state, sizeof(struct state));
        state = NULL;
    }
    return state;
}

/* The state of this process, found through the environment unless one was opened. */
struct state *state_get(void)
{
    struct state *state = __atomic_load_n(&mapped, __ATOMIC_ACQUIRE);
    const char *path;

    if (state != NULL)
        return state;
    pthread_mutex_lock(&mapping_mutex);
    path = getenv("JOULERY_EMULATOR_STATE");
    if (mapped == NULL && path != NULL)
        __atomic_store_n(&mapped, map_existing(path), __ATOMIC_RELEASE);
    state = mapped;
    pthread_mutex_unlock(&mapping_mutex);
    return state;
}

/* Never unmaps what was there: another thread may still be reading it. */
EXPORT int emulator_open(const char *path)
{
    struct state *state = map_existing(path);

    if (state == NULL)
        return -1;
    __atomic_store_n(&mapped, state, __ATOMIC_RELEASE);
    return 0;
}

EXPORT void emulator_close(void)
{
    __atomic_store_n(&mapped, NULL, __ATOMIC_RELEASE);
}

static void init_board(struct board *board, const struct spec *spec)
{
    board->spec = *spec;
    board->limit_watts = spec->default_watts;
    board->base_since = -INFINITY;
    board->reset_due = INFINITY;
    board->freeze_due = INFINITY;
    board_resettle(board, 0);
}

/* A new state file with these boards; its time starts now, or is held at zero. */
EXPORT int emulator_create(const char *path, uint32_t count, const struct spec *specs,
                           uint32_t time_held)
{
    pthread_mutexattr_t attributes;
    struct state *state = NULL;
    int descriptor;
    uint32_t i;

    if (count > MAX_BOARDS)
        return -1;
    descriptor = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (descriptor < 0)
        return -1;
    if (ftruncate(descriptor, sizeof(struct state)) == 0)
        state = map(descriptor);
    close(descriptor);
    if (state == NULL)
        return -1;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&state->mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    state->born_nanoseconds = nanoseconds(CLOCK_MONOTONIC);
    state->time_held = time_held;
    state->wall_offset = 1e-9 * (double)nanoseconds(CLOCK_REALTIME);
    state->board_count = count;
    for (i = 0; i < count; i++)
        init_board(&state->boards[i], &specs[i]);
    state->size = sizeof(struct state);
    state->magic = STATE_MAGIC;
    munmap(state, sizeof(struct state));
    return 0;
}

/* A holder that died mid-change leaves at worst one segment half written; go on. */
void state_lock(struct state *state)
{
    if (pthread_mutex_lock(&state->mutex) == EOWNERDEAD)
        pthread_mutex_consistent(&state->mutex);
}

void state_unlock(struct state *state)
{
    pthread_mutex_unlock(&state->mutex);
}

double state_now(const struct state *state)
{
    if (state->time_held)
        return state->held_now;
    return 1e-9 * (double)(nanoseconds(CLOCK_MONOTONIC) - state->born_nanoseconds);
}

/* Kept until the wall clock steps, so that one refresh has one stamp however often it is asked. */
double state_wall_offset(struct state *state)
{
    double offset;

    if (state->time_held)
        return state->wall_offset;
    offset = 1e-9 * (double)nanoseconds(CLOCK_REALTIME) - state_now(state);
    if (fabs(offset - state->wall_offset) > WALL_STEP_SECONDS)
        state->wall_offset = offset;
    return state->wall_offset;
}

/* Stop time at its present value, for tests that turn it by hand. */
EXPORT double emulator_hold_time(double wall_seconds)
{
    struct state *state = state_get();
    double now;

    state_lock(state);
    now = state_now(state);
    state->held_now = now;
    state->wall_offset = wall_seconds - now;
    state->time_held = 1;
    state_unlock(state);
    return now;
}

EXPORT void emulator_advance(double seconds)
{
    struct state *state = state_get();

    state_lock(state);
    state->held_now += seconds;
    state_unlock(state);
}

EXPORT void emulator_release_time(void)
{
    struct state *state = state_get();

    state_lock(state);
    if (state->time_held) {
        state->born_nanoseconds = nanoseconds(CLOCK_MONOTONIC) - llround(1e9 * state->held_now);
        state->time_held = 0;
    }
    state_unlock(state);
}

EXPORT double emulator_now(void)
{
    return state_now(state_get());
}

static int matches(const struct fault *fault, const char *function, int board)
{
    size_t length = strlen(fault->function);

    if (fault->board != ANY_BOARD && fault->board != board)
        return 0;
    if (length > 0 && fault->function[length - 1] == '*')
        return strncmp(fault->function, function, length - 1) == 0;
    return strcmp(fault->function, function) == 0;
}

static void wait_for(double seconds, int busy)
{
    int64_t end = nanoseconds(CLOCK_MONOTONIC) + llround(1e9 * seconds);
    struct timespec until = {end / 1000000000, end % 1000000000};

    if (seconds <= 0)
        return;
    if (!busy) {
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
            ;
        return;
    }
    while (nanoseconds(CLOCK_MONOTONIC) < end)
        ;
}

/* Count the call, wait where told to, and say which error is due; 0 for none. */
int fault_due(struct state *state, const char *function, int board)
{
    double now, slept = 0, burnt = 0;
    int code = 0;
    uint32_t i;

    state_lock(state);
    state->calls++;
    now = state->fault_count > 0 ? state_now(state) : 0;
    for (i = 0; i < state->fault_count; i++) {
        struct fault *fault = &state->faults[i];

        if (fault->calls_left == 0 || fault->since > now || !matches(fault, function, board))
            continue;
        if (fault->calls_left > 0)
            fault->calls_left--;
        *(fault->busy ? &burnt : &slept) += fault->delay_seconds;
        if (code == 0)
            code = fault->code;
    }
    state_unlock(state);
    wait_for(slept, 0);
    wait_for(burnt, 1);
    return code;
}
