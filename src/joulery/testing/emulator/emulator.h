/* The shared state of the emulated boards, and what the three source files share.
 *
 * One file, mapped by every process that uses the boards, holds everything that can change. A
 * robust process-shared mutex guards it. Times are seconds since the state's birth on
 * CLOCK_MONOTONIC, so that doubles keep nanoseconds.
 */
#ifndef JOULERY_EMULATOR_H
#define JOULERY_EMULATOR_H

#include <pthread.h>
#include <stdint.h>

enum {
    MAX_BOARDS = 16,
    MAX_STATES = 1024,
    MAX_CLOCKS = 512,
    MAX_PHASES = 8,
    MAX_SEGMENTS = 256,
    MAX_PROCESSES = 32,
    MAX_SLICES = 8,
    MAX_FAULTS = 64,
};

#define STATE_MAGIC 0x4a4f554c45525931ull
#define ANY_BOARD (-1)
#define IGNORED (-1) /* a fault's code: report success, do nothing */

/* A MIG instance. */
struct slice {
    char uuid[96];
    char profile[32];
    uint32_t compute_slices;
    uint32_t memory_mebibytes;
};

/* What never changes about a board; written once, mirrored by board.py. */
struct spec {
    char name[96];
    char uuid[96];
    char serial[32];
    double idle_watts, min_watts, max_watts, default_watts;
    double period_seconds, phase_seconds, lag_seconds, noise;
    /* The sensor: mean over window_seconds before a refresh (0: the power then), filtered. */
    double window_seconds, sensor_lag_seconds, gain, offset_watts;
    double counter_start_joules;
    uint64_t memory_bytes;
    uint32_t pci_domain, pci_bus, pci_device, pci_device_id, pci_subsystem_id;
    uint32_t architecture, capability_major, capability_minor, brand;
    uint32_t stamped, has_counter, has_power_fields, averages_power;
    uint32_t counts_looks, unused; /* the counter adds up what the sensor looks at */
    uint32_t memory_megahertz, idle_celsius, hot_celsius;
    uint32_t total_slices, slice_count;
    struct slice slices[MAX_SLICES];
    uint32_t clock_count;
    uint32_t padding;
    double clocks_hertz[MAX_CLOCKS]; /* ascending */
};

/* One row of the table that the driver writes for a load. */
struct row {
    double hertz, seconds, watts, busy_watts; /* the limit acts on busy_watts */
};

/* Part of a repeating pattern: watts held for a while. */
struct phase {
    double watts, seconds;
};

/* A stretch of time with one target; everything within it follows in closed form. */
struct segment {
    double since, joules, watts, steps; /* at the start */
    double target_watts, step_seconds;  /* step_seconds 0: no work is done */
    double offset_seconds;              /* into the pattern, at the start */
    uint32_t phase_count;
    struct phase phases[MAX_PHASES];
};

/* What the counter and the power sensor showed at a refresh. */
struct shown {
    double tick, joules, watts;
};

struct process {
    uint32_t pid;
    uint64_t memory_bytes;
};

struct board {
    struct spec spec;
    double limit_watts;
    double locked_hertz, application_hertz; /* 0: free */
    uint32_t persistent;
    uint32_t row_count;
    struct row rows[MAX_STATES];
    uint32_t pattern_count;
    struct phase pattern[MAX_PHASES]; /* factor of the settled watts, seconds at full clock */
    struct row settled;
    uint32_t utilisation_percent;
    uint64_t segment_total; /* ever begun; the ring keeps the last MAX_SEGMENTS */
    struct segment segments[MAX_SEGMENTS];
    struct shown held; /* at the last refresh before the newest segment */
    struct shown looked; /* what the sensor made of it: at its last refresh so far */
    double followed_watts;
    double base_joules, base_before_joules, base_since; /* counter resets */
    double reset_due, freeze_due;
    uint32_t frozen;
    struct shown frozen_shown;
    uint32_t process_count;
    struct process processes[MAX_PROCESSES];
};

struct fault {
    char function[80]; /* a C name, or a prefix that ends in '*' */
    int32_t board;
    int32_t code;       /* an NVML error, IGNORED, or 0 to only delay */
    int64_t calls_left; /* negative: for ever */
    double since;
    double delay_seconds;
    uint32_t busy; /* burn the delay instead of sleeping it */
};

struct state {
    uint64_t magic, size;
    pthread_mutex_t mutex;
    int64_t born_nanoseconds;
    uint32_t time_held;
    double held_now;
    double wall_offset; /* seconds since 1970 when the state's time is 0 */
    uint32_t board_count, fault_count;
    uint64_t calls;
    struct fault faults[MAX_FAULTS];
    struct board boards[MAX_BOARDS];
};

#define HIDDEN __attribute__((visibility("hidden")))
#define EXPORT __attribute__((visibility("default")))

/* state.c */
HIDDEN struct state *state_get(void);
HIDDEN void state_lock(struct state *state);
HIDDEN void state_unlock(struct state *state);
HIDDEN double state_now(const struct state *state);
HIDDEN double state_wall_offset(struct state *state);
HIDDEN int fault_due(struct state *state, const char *function, int board);

/* board.c; the caller holds the lock */
HIDDEN void board_begin(struct board *board, double now);
HIDDEN void board_resettle(struct board *board, double now);
HIDDEN struct shown board_at(const struct board *board, double when);
HIDDEN double board_steps(const struct board *board, double when);
HIDDEN struct shown board_shown(struct board *board, double now);
HIDDEN double board_counter_joules(struct board *board, double now, double *tick);
HIDDEN double board_sensor_watts(struct board *board, double now, double *tick);
HIDDEN double board_mean_watts(struct board *board, double now, double *tick);
HIDDEN double board_noisy(const struct board *board, double watts, double tick);
HIDDEN double board_last_tick(const struct board *board, double now);

#endif
