/* The emulated NVML: the functions, names and structures that nvidia-ml-py looks up.
 *
 * Structure layouts and constants follow NVIDIA's published NVML API reference. What is not here
 * makes the binding raise NVMLError_FunctionNotFound, as an older driver would.
 */
#include "emulator.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int nvmlReturn_t;
typedef void *nvmlDevice_t;

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    ARGUMENT_VERSION_MISMATCH = 25,
};

enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEM, CLOCK_VIDEO, CLOCK_COUNT };
enum { VALUE_UNSIGNED_INT = 1, VALUE_UNSIGNED_LONG_LONG = 3 };
enum {
    FIELD_TOTAL_ENERGY = 83,
    FIELD_POWER_AVERAGE = 185,
    FIELD_POWER_INSTANT = 186,
    FIELD_POWER_MIN_LIMIT = 187,
    FIELD_POWER_MAX_LIMIT = 188,
    FIELD_POWER_DEFAULT_LIMIT = 189,
    FIELD_POWER_CURRENT_LIMIT = 190,
    FIELD_POWER_REQUESTED_LIMIT = 192,
};
enum { REASON_IDLE = 1, REASON_CLOCK_SETTING = 2, REASON_POWER_CAP = 4 };
enum { SAMPLES_KEPT = 120 };

#define DRIVER_VERSION "580.00-emulated"
#define NVML_VERSION "13.580.00-emulated"
#define CUDA_VERSION 13000

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} nvmlPciInfo_t;

typedef union {
    double d;
    unsigned ui;
    unsigned long ul;
    unsigned long long ull;
    long long sll;
} nvmlValue_t;

typedef struct {
    uint32_t field_id, scope_id;
    int64_t timestamp, latency_microseconds;
    int value_type;
    nvmlReturn_t result;
    nvmlValue_t value;
} nvmlFieldValue_t;

typedef struct {
    unsigned long long timestamp;
    nvmlValue_t value;
} nvmlSample_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned gpu, memory;
} nvmlUtilization_t;

typedef struct {
    unsigned pid;
    unsigned long long used_memory;
    unsigned gpu_instance, compute_instance;
} nvmlProcessInfo_t;

typedef struct {
    unsigned version;
    unsigned scope;
    unsigned milliwatts;
} nvmlPowerValue_v2_t;

typedef struct {
    unsigned version;
    unsigned sensor;
    int celsius;
} nvmlTemperature_v1_t;

typedef struct {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
    unsigned gpu_instance_slices, compute_instance_slices;
    unsigned long long memory_mebibytes;
} nvmlDeviceAttributes_t;

/* A handle points at one of these bytes: row of the board, column 0 for the board itself and 1 on
 * for its MIG instances. Valid in every state, and checkable without touching memory. */
static char handles[MAX_BOARDS][1 + MAX_SLICES];
static int initialized;

struct target {
    struct state *state;
    struct board *board;
    struct slice *slice; /* NULL for a whole board */
    int index;
};

static int begin(const char *function)
{
    struct state *state = state_get();

    if (state == NULL || __atomic_load_n(&initialized, __ATOMIC_RELAXED) == 0)
        return UNINITIALIZED;
    return fault_due(state, function, ANY_BOARD);
}

static int begin_on(const char *function, nvmlDevice_t device, struct target *target)
{
    uintptr_t offset = (uintptr_t)device - (uintptr_t)handles;
    uintptr_t row = offset / sizeof handles[0], column = offset % sizeof handles[0];
    struct state *state = state_get();

    if (state == NULL || __atomic_load_n(&initialized, __ATOMIC_RELAXED) == 0)
        return UNINITIALIZED;
    if (offset >= sizeof handles || row >= state->board_count)
        return INVALID_ARGUMENT;
    target->state = state;
    target->board = &state->boards[row];
    target->index = (int)row;
    if (column > target->board->spec.slice_count)
        return INVALID_ARGUMENT;
    target->slice = column > 0 ? &target->board->spec.slices[column - 1] : NULL;
    return fault_due(state, function, (int)row);
}

/* First lines of a function on a device; the second form refuses MIG instances. A call that a fault
 * says to ignore reports success and does nothing. */
#define ON_DEVICE(device)                                                                          \
    struct target on;                                                                              \
    int refused = begin_on(__func__, device, &on);                                                 \
    if (refused != SUCCESS)                                                                        \
    return refused == IGNORED ? SUCCESS : refused
#define ON_BOARD(device)                                                                           \
    ON_DEVICE(device);                                                                             \
    if (on.slice != NULL)                                                                          \
    return NOT_SUPPORTED
#define FOR_HANDLE                                                                                 \
    struct state *state = state_get();                                                             \
    if (state == NULL || initialized == 0)                                                         \
    return UNINITIALIZED
#define ON_SYSTEM                                                                                  \
    int refused = begin(__func__);                                                                 \
    if (refused != SUCCESS)                                                                        \
    return refused == IGNORED ? SUCCESS : refused

/* A function that writes one value, and another name of a function. */
#define GETTER(begin, name, type, value)                                                           \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, type *out)                                       \
    {                                                                                              \
        begin(device);                                                                             \
        *out = (type)(value);                                                                      \
        return SUCCESS;                                                                            \
    }
#define ALIAS(name, function) EXPORT __typeof__(function) name __attribute__((alias(#function)))

static nvmlReturn_t give_text(char *out, unsigned length, const char *text)
{
    if (out == NULL)
        return INVALID_ARGUMENT;
    if (strlen(text) >= length)
        return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return SUCCESS;
}

static unsigned milli(double value)
{
    return (unsigned)floor(value * 1e3 + 0.5);
}

static unsigned megahertz(double hertz)
{
    return (unsigned)floor(hertz * 1e-6 + 1e-6);
}

/* Start and system */

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    struct state *state = state_get();
    int code;

    (void)flags;
    if (state == NULL)
        return DRIVER_NOT_LOADED;
    code = fault_due(state, __func__, ANY_BOARD);
    if (code == SUCCESS)
        __atomic_add_fetch(&initialized, 1, __ATOMIC_RELAXED);
    return code;
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

ALIAS(nvmlInit, nvmlInit_v2);

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    ON_SYSTEM;
    __atomic_sub_fetch(&initialized, 1, __ATOMIC_RELAXED);
    return SUCCESS;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t code)
{
    static _Thread_local char text[40];

    snprintf(text, sizeof text, "emulated error %d", code);
    return text;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    ON_SYSTEM;
    return give_text(version, length, DRIVER_VERSION);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    ON_SYSTEM;
    return give_text(version, length, NVML_VERSION);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    ON_SYSTEM;
    *version = CUDA_VERSION;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    ON_SYSTEM;
    *version = CUDA_VERSION;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    char path[32], text[1024];
    FILE *file;
    size_t got;
    ON_SYSTEM;

    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    file = fopen(path, "r");
    if (file == NULL)
        return NOT_FOUND;
    got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[got] = 0;
    text[strcspn(text, "\n")] = 0;
    return give_text(name, length, text);
}

/* Who is there */

static void bus_id(const struct spec *spec, int legacy, char *out, size_t length)
{
    snprintf(out, length, legacy ? "%04X:%02X:%02X.0" : "%08X:%02X:%02X.0", spec->pci_domain,
             spec->pci_bus, spec->pci_device);
}

/* Asking for the handle of a lost board fails, as on a real one. */
static nvmlReturn_t give_handle(const char *function, int row, int column, nvmlDevice_t *device)
{
    int code = fault_due(state_get(), function, row);

    if (code == SUCCESS)
        *device = &handles[row][column];
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    ON_SYSTEM;
    *count = state_get()->board_count;
    return SUCCESS;
}

ALIAS(nvmlDeviceGetCount, nvmlDeviceGetCount_v2);

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    FOR_HANDLE;
    if (index >= state->board_count)
        return INVALID_ARGUMENT;
    return give_handle(__func__, (int)index, 0, device);
}

ALIAS(nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2);

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    uint32_t i, j;
    FOR_HANDLE;

    for (i = 0; i < state->board_count; i++) {
        const struct spec *spec = &state->boards[i].spec;

        if (strcmp(spec->uuid, uuid) == 0)
            return give_handle(__func__, (int)i, 0, device);
        for (j = 0; j < spec->slice_count; j++)
            if (strcmp(spec->slices[j].uuid, uuid) == 0)
                return give_handle(__func__, (int)i, 1 + (int)j, device);
    }
    return NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    uint32_t i;
    FOR_HANDLE;

    for (i = 0; i < state->board_count; i++)
        if (strcmp(state->boards[i].spec.serial, serial) == 0)
            return give_handle(__func__, (int)i, 0, device);
    return NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
    unsigned domain = 0, bus, slot;
    uint32_t i;
    FOR_HANDLE;

    if (sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(id, "%x:%x", &bus, &slot) != 2)
            return INVALID_ARGUMENT;
    }
    for (i = 0; i < state->board_count; i++) {
        const struct spec *spec = &state->boards[i].spec;

        if (spec->pci_domain == domain && spec->pci_bus == bus && spec->pci_device == slot)
            return give_handle(__func__, (int)i, 0, device);
    }
    return NOT_FOUND;
}

ALIAS(nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2);

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
    char text[160];
    ON_DEVICE(device);

    if (on.slice != NULL)
        snprintf(text, sizeof text, "%s MIG %s", on.board->spec.name, on.slice->profile);
    else
        snprintf(text, sizeof text, "%s", on.board->spec.name);
    return give_text(name, length, text);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    ON_DEVICE(device);
    return give_text(uuid, length, on.slice != NULL ? on.slice->uuid : on.board->spec.uuid);
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length)
{
    ON_BOARD(device);
    return give_text(serial, length, on.board->spec.serial);
}

GETTER(ON_DEVICE, nvmlDeviceGetIndex, unsigned,
       on.slice != NULL ? (unsigned)(on.slice - on.board->spec.slices) : (unsigned)on.index)
GETTER(ON_BOARD, nvmlDeviceGetMinorNumber, unsigned, on.index)
GETTER(ON_DEVICE, nvmlDeviceGetBrand, int, on.board->spec.brand)
GETTER(ON_DEVICE, nvmlDeviceGetArchitecture, unsigned, on.board->spec.architecture)

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ON_DEVICE(device);
    *major = (int)on.board->spec.capability_major;
    *minor = (int)on.board->spec.capability_minor;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    const struct spec *spec;
    ON_BOARD(device);

    spec = &on.board->spec;
    memset(info, 0, sizeof *info);
    bus_id(spec, 1, info->bus_id_legacy, sizeof info->bus_id_legacy);
    bus_id(spec, 0, info->bus_id, sizeof info->bus_id);
    info->domain = spec->pci_domain;
    info->bus = spec->pci_bus;
    info->device = spec->pci_device;
    info->pci_device_id = spec->pci_device_id;
    info->pci_subsystem_id = spec->pci_subsystem_id;
    return SUCCESS;
}

ALIAS(nvmlDeviceGetPciInfo_v2, nvmlDeviceGetPciInfo_v3);

/* Energy and power */

static int64_t stamp_of(const struct target *on, double now, double tick)
{
    double when = on->board->spec.stamped ? tick : now;

    return (int64_t)llround((state_wall_offset(on->state) + when) * 1e6);
}

static unsigned long long counter_millijoules(const struct target *on, double now, double *tick)
{
    /* The slack keeps a value that rounding left a hair short of a whole millijoule. */
    return (unsigned long long)floor(board_counter_joules(on->board, now, tick) * 1e3 + 1e-6);
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device,
                                                        unsigned long long *millijoules)
{
    double tick;
    ON_BOARD(device);

    if (!on.board->spec.has_counter)
        return NOT_SUPPORTED;
    state_lock(on.state);
    *millijoules = counter_millijoules(&on, state_now(on.state), &tick);
    state_unlock(on.state);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts)
{
    double tick, now;
    ON_BOARD(device);

    state_lock(on.state);
    now = state_now(on.state);
    *milliwatts = milli(on.board->spec.averages_power ? board_mean_watts(on.board, now, &tick)
                                                      : board_sensor_watts(on.board, now, &tick));
    state_unlock(on.state);
    return SUCCESS;
}

static double limit_field(const struct board *board, uint32_t field)
{
    switch (field) {
    case FIELD_POWER_MIN_LIMIT: return board->spec.min_watts;
    case FIELD_POWER_MAX_LIMIT: return board->spec.max_watts;
    case FIELD_POWER_DEFAULT_LIMIT: return board->spec.default_watts;
    case FIELD_POWER_CURRENT_LIMIT:
    case FIELD_POWER_REQUESTED_LIMIT: return board->limit_watts;
    default: return -1;
    }
}

static void fill_field(const struct target *on, double now, nvmlFieldValue_t *field)
{
    double tick = now, watts = 0;

    field->latency_microseconds = 0;
    field->result = SUCCESS;
    field->value.ull = 0;
    field->value_type = VALUE_UNSIGNED_INT;
    if (field->field_id == FIELD_TOTAL_ENERGY && on->board->spec.has_counter) {
        field->value_type = VALUE_UNSIGNED_LONG_LONG;
        field->value.ull = counter_millijoules(on, now, &tick);
        field->timestamp = stamp_of(on, now, tick);
        return;
    }
    if (!on->board->spec.has_power_fields || field->scope_id != 0) {
        field->result = NOT_SUPPORTED;
    } else if (field->field_id == FIELD_POWER_INSTANT) {
        watts = board_sensor_watts(on->board, now, &tick);
    } else if (field->field_id == FIELD_POWER_AVERAGE) {
        watts = board_mean_watts(on->board, now, &tick);
    } else {
        watts = limit_field(on->board, field->field_id);
        field->result = watts < 0 ? NOT_SUPPORTED : SUCCESS;
    }
    field->value.ui = watts < 0 ? 0 : milli(watts);
    field->timestamp = stamp_of(on, now, tick);
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count,
                                             nvmlFieldValue_t *values)
{
    double now;
    int i;
    ON_BOARD(device);

    if (count < 1 || values == NULL)
        return INVALID_ARGUMENT;
    state_lock(on.state);
    now = state_now(on.state);
    for (i = 0; i < count; i++)
        fill_field(&on, now, &values[i]);
    state_unlock(on.state);
    return SUCCESS;
}

/* Power at each refresh after a moment, oldest first. */
EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, int type, unsigned long long since,
                                         int *value_type, unsigned *count, nvmlSample_t *samples)
{
    double now, tick, period, offset;
    unsigned i, room, found = 0;
    ON_BOARD(device);

    if (type != 0)
        return NOT_SUPPORTED;
    *value_type = VALUE_UNSIGNED_INT;
    if (samples == NULL) {
        *count = SAMPLES_KEPT;
        return SUCCESS;
    }
    room = *count < SAMPLES_KEPT ? *count : SAMPLES_KEPT;
    state_lock(on.state);
    now = state_now(on.state);
    offset = state_wall_offset(on.state);
    period = on.board->spec.period_seconds > 0 ? on.board->spec.period_seconds : 0.1;
    tick = board_shown(on.board, now).tick;
    for (i = room; i-- > 0;) {
        double when = tick - i * period;
        unsigned long long stamp = (unsigned long long)llround((offset + when) * 1e6);

        if (when < 0 || stamp <= since)
            continue;
        samples[found].timestamp = stamp;
        samples[found].value.ull = 0;
        samples[found].value.ui = milli(board_noisy(on.board, board_at(on.board, when).watts, when));
        found++;
    }
    state_unlock(on.state);
    *count = found;
    return found > 0 ? SUCCESS : NOT_FOUND;
}

/* Power limits */

GETTER(ON_BOARD, nvmlDeviceGetPowerManagementMode, int, 1)
GETTER(ON_BOARD, nvmlDeviceGetPowerManagementLimit, unsigned, milli(on.board->limit_watts))
GETTER(ON_BOARD, nvmlDeviceGetEnforcedPowerLimit, unsigned, milli(on.board->limit_watts))
GETTER(ON_BOARD, nvmlDeviceGetPowerManagementDefaultLimit, unsigned,
       milli(on.board->spec.default_watts))

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device,
                                                                 unsigned *least, unsigned *most)
{
    ON_BOARD(device);
    *least = milli(on.board->spec.min_watts);
    *most = milli(on.board->spec.max_watts);
    return SUCCESS;
}

static nvmlReturn_t set_limit(const struct target *on, unsigned milliwatts)
{
    if (milliwatts < milli(on->board->spec.min_watts) ||
        milliwatts > milli(on->board->spec.max_watts))
        return INVALID_ARGUMENT;
    state_lock(on->state);
    on->board->limit_watts = milliwatts * 1e-3;
    board_resettle(on->board, state_now(on->state));
    state_unlock(on->state);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned milliwatts)
{
    ON_BOARD(device);
    return set_limit(&on, milliwatts);
}

EXPORT nvmlReturn_t nvmlDeviceSetPowerManagementLimit_v2(nvmlDevice_t device,
                                                         nvmlPowerValue_v2_t *value)
{
    ON_BOARD(device);
    if (value->version != (sizeof *value | 2u << 24))
        return ARGUMENT_VERSION_MISMATCH;
    if (value->scope != 0)
        return NOT_SUPPORTED;
    return set_limit(&on, value->milliwatts);
}

/* Clocks */

static nvmlReturn_t give_clocks(unsigned *count, unsigned *clocks, unsigned length,
                                const double *ascending_hertz)
{
    unsigned i;

    if (clocks == NULL || *count < length) {
        *count = length;
        return length > 0 ? INSUFFICIENT_SIZE : SUCCESS;
    }
    for (i = 0; i < length; i++)
        clocks[i] = megahertz(ascending_hertz[length - 1 - i]);
    *count = length;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned *count,
                                                       unsigned *clocks)
{
    double hertz;
    ON_BOARD(device);

    hertz = 1e6 * on.board->spec.memory_megahertz;
    return give_clocks(count, clocks, 1, &hertz);
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned memory,
                                                         unsigned *count, unsigned *clocks)
{
    ON_BOARD(device);
    if (memory != on.board->spec.memory_megahertz)
        return NOT_FOUND;
    return give_clocks(count, clocks, on.board->spec.clock_count, on.board->spec.clocks_hertz);
}

static double highest_hertz(const struct board *board)
{
    return board->spec.clock_count ? board->spec.clocks_hertz[board->spec.clock_count - 1] : 0;
}

/* The highest supported clock whose whole megahertz are within the request. */
static double snap(const struct board *board, unsigned request)
{
    double found = board->spec.clock_count ? board->spec.clocks_hertz[0] : 0;
    uint32_t i;

    for (i = 0; i < board->spec.clock_count; i++)
        if (megahertz(board->spec.clocks_hertz[i]) <= request)
            found = board->spec.clocks_hertz[i];
    return found;
}

static void cap_clock(const struct target *on, double *cap, double hertz)
{
    state_lock(on->state);
    *cap = hertz;
    board_resettle(on->board, state_now(on->state));
    state_unlock(on->state);
}

EXPORT nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned least, unsigned most)
{
    ON_BOARD(device);
    if (least > most || most == 0)
        return INVALID_ARGUMENT;
    cap_clock(&on, &on.board->locked_hertz, snap(on.board, most));
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device)
{
    ON_BOARD(device);
    cap_clock(&on, &on.board->locked_hertz, 0);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, unsigned least,
                                                    unsigned most)
{
    ON_BOARD(device);
    return least > most || most < on.board->spec.memory_megahertz ? INVALID_ARGUMENT : SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device)
{
    ON_BOARD(device);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, unsigned memory,
                                                    unsigned graphics)
{
    ON_BOARD(device);
    if (memory != on.board->spec.memory_megahertz)
        return INVALID_ARGUMENT;
    cap_clock(&on, &on.board->application_hertz, snap(on.board, graphics));
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceResetApplicationsClocks(nvmlDevice_t device)
{
    ON_BOARD(device);
    cap_clock(&on, &on.board->application_hertz, 0);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, int type,
                                                          unsigned *clock)
{
    ON_BOARD(device);
    *clock = type == CLOCK_MEM ? on.board->spec.memory_megahertz
                               : megahertz(highest_hertz(on.board));
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, int type, unsigned *clock)
{
    double hertz;
    ON_BOARD(device);

    hertz = on.board->application_hertz > 0 ? on.board->application_hertz : highest_hertz(on.board);
    *clock = type == CLOCK_MEM ? on.board->spec.memory_megahertz : megahertz(hertz);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int type, unsigned *clock)
{
    ON_BOARD(device);
    if (type < 0 || type >= CLOCK_COUNT)
        return INVALID_ARGUMENT;
    *clock = type == CLOCK_MEM ? on.board->spec.memory_megahertz
                               : megahertz(highest_hertz(on.board));
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned *clock)
{
    ON_BOARD(device);
    if (type < 0 || type >= CLOCK_COUNT)
        return INVALID_ARGUMENT;
    state_lock(on.state);
    *clock = type == CLOCK_MEM ? on.board->spec.memory_megahertz
                               : megahertz(on.board->settled.hertz);
    state_unlock(on.state);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, int type, int id, unsigned *clock)
{
    ON_BOARD(device);
    if (type < 0 || type >= CLOCK_COUNT || id != 0)
        return NOT_SUPPORTED;
    return nvmlDeviceGetClockInfo(device, type, clock);
}

GETTER(ON_BOARD, nvmlDeviceGetPerformanceState, int, on.board->row_count > 0 ? 0 : 8)

static unsigned long long slow_reasons(const struct board *board)
{
    double locked = board->locked_hertz > 0 ? board->locked_hertz : board->application_hertz;

    if (board->row_count == 0)
        return REASON_IDLE;
    if (board->settled.busy_watts >= board->limit_watts)
        return REASON_POWER_CAP;
    return locked > 0 && locked < highest_hertz(board) ? REASON_CLOCK_SETTING : 0;
}

GETTER(ON_BOARD, nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long,
       slow_reasons(on.board))
GETTER(ON_BOARD, nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, slow_reasons(on.board))
GETTER(ON_BOARD, nvmlDeviceGetSupportedClocksEventReasons, unsigned long long,
       REASON_IDLE | REASON_CLOCK_SETTING | REASON_POWER_CAP)

/* Telemetry */

GETTER(ON_BOARD, nvmlDeviceGetPersistenceMode, int, on.board->persistent)

EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, int mode)
{
    ON_BOARD(device);
    on.board->persistent = mode != 0;
    return SUCCESS;
}

GETTER(ON_BOARD, nvmlDeviceGetComputeMode, int, 0)
GETTER(ON_BOARD, nvmlDeviceGetDisplayMode, int, 0)
GETTER(ON_BOARD, nvmlDeviceGetDisplayActive, int, 0)

/* Server boards are cooled by their chassis. */
EXPORT nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned *percent)
{
    ON_BOARD(device);
    (void)percent;
    return NOT_SUPPORTED;
}

/* The driver model is a matter of Windows. */
EXPORT nvmlReturn_t nvmlDeviceGetDriverModel_v2(nvmlDevice_t device, int *current, int *pending)
{
    ON_BOARD(device);
    (void)current;
    (void)pending;
    return NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetC2cModeInfoV(nvmlDevice_t device, void *info)
{
    ON_BOARD(device);
    (void)info;
    return NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int error, int counter,
                                                unsigned long long *count)
{
    ON_DEVICE(device);
    (void)error;
    (void)counter;
    *count = 0;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, int counter, unsigned *value)
{
    ON_BOARD(device);
    (void)counter;
    *value = 0;
    return SUCCESS;
}

#define UNUSED_ENGINE(name)                                                                        \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned *percent, unsigned *microseconds)       \
    {                                                                                              \
        ON_BOARD(device);                                                                          \
        *percent = 0;                                                                              \
        *microseconds = 167000;                                                                    \
        return SUCCESS;                                                                            \
    }
UNUSED_ENGINE(nvmlDeviceGetEncoderUtilization)
UNUSED_ENGINE(nvmlDeviceGetDecoderUtilization)

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    ON_BOARD(device);
    rates->gpu = on.board->utilisation_percent;
    rates->memory = on.board->utilisation_percent / 2;
    return SUCCESS;
}

static int celsius(const struct target *on)
{
    const struct spec *spec = &on->board->spec;
    double watts;

    state_lock(on->state);
    watts = board_at(on->board, state_now(on->state)).watts;
    state_unlock(on->state);
    return (int)lround(spec->idle_celsius + (double)(spec->hot_celsius - spec->idle_celsius) *
                                                (watts - spec->idle_watts) /
                                                (spec->max_watts - spec->idle_watts));
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *degrees)
{
    ON_BOARD(device);
    if (sensor != 0)
        return INVALID_ARGUMENT;
    *degrees = (unsigned)celsius(&on);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *value)
{
    ON_BOARD(device);
    if (value->version != (sizeof *value | 1u << 24))
        return ARGUMENT_VERSION_MISMATCH;
    value->celsius = celsius(&on);
    return SUCCESS;
}

static nvmlMemory_t memory_of(const struct target *on)
{
    nvmlMemory_t memory = {on->board->spec.memory_bytes, 0, 0};
    uint32_t i;

    if (on->slice != NULL)
        memory.total = (unsigned long long)on->slice->memory_mebibytes << 20;
    state_lock(on->state);
    for (i = 0; i < on->board->process_count; i++)
        memory.used += on->board->processes[i].memory_bytes;
    state_unlock(on->state);
    if (memory.used > memory.total)
        memory.used = memory.total;
    memory.free = memory.total - memory.used;
    return memory;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ON_DEVICE(device);
    *memory = memory_of(&on);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    nvmlMemory_t plain;
    ON_DEVICE(device);

    if (memory->version != (sizeof *memory | 2u << 24))
        return ARGUMENT_VERSION_MISMATCH;
    plain = memory_of(&on);
    memory->total = plain.total;
    memory->reserved = 0;
    memory->free = plain.free;
    memory->used = plain.used;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ON_DEVICE(device);
    memory->total = 256ull << 20;
    memory->free = 255ull << 20;
    memory->used = 1ull << 20;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                            nvmlProcessInfo_t *processes)
{
    unsigned i, length;
    nvmlReturn_t result = SUCCESS;
    ON_DEVICE(device);

    state_lock(on.state);
    length = on.board->process_count;
    if (*count < length || (processes == NULL && length > 0)) {
        result = INSUFFICIENT_SIZE;
    } else {
        for (i = 0; i < length; i++) {
            processes[i].pid = on.board->processes[i].pid;
            processes[i].used_memory = on.board->processes[i].memory_bytes;
            processes[i].gpu_instance = processes[i].compute_instance = 0xffffffffu;
        }
    }
    *count = length;
    state_unlock(on.state);
    return result;
}

ALIAS(nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetComputeRunningProcesses_v3);

#define NO_PROCESSES(name)                                                                         \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *processes)   \
    {                                                                                              \
        ON_DEVICE(device);                                                                         \
        (void)processes;                                                                           \
        *count = 0;                                                                                \
        return SUCCESS;                                                                            \
    }
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, void *samples,
                                                    unsigned *count, unsigned long long since)
{
    ON_BOARD(device);
    (void)samples;
    (void)since;
    *count = 0;
    return NOT_FOUND;
}

/* MIG */

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    ON_BOARD(device);
    if (on.board->spec.total_slices == 0)
        return NOT_SUPPORTED;
    *current = *pending = on.board->spec.slice_count > 0;
    return SUCCESS;
}

GETTER(ON_BOARD, nvmlDeviceGetMaxMigDeviceCount, unsigned, on.board->spec.total_slices)

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index,
                                                        nvmlDevice_t *instance)
{
    ON_BOARD(device);
    if (index >= on.board->spec.slice_count)
        return NOT_FOUND;
    *instance = &handles[on.index][1 + index];
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device,
                                                                 nvmlDevice_t *parent)
{
    ON_DEVICE(device);
    if (on.slice == NULL)
        return INVALID_ARGUMENT;
    *parent = &handles[on.index][0];
    return SUCCESS;
}

GETTER(ON_DEVICE, nvmlDeviceIsMigDeviceHandle, unsigned, on.slice != NULL)

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id)
{
    ON_DEVICE(device);
    if (on.slice == NULL)
        return INVALID_ARGUMENT;
    *id = 7 + (unsigned)(on.slice - on.board->spec.slices);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id)
{
    ON_DEVICE(device);
    if (on.slice == NULL)
        return INVALID_ARGUMENT;
    *id = 0;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device,
                                               nvmlDeviceAttributes_t *attributes)
{
    ON_DEVICE(device);
    if (on.slice == NULL)
        return INVALID_ARGUMENT;
    memset(attributes, 0, sizeof *attributes);
    attributes->multiprocessors = 14 * on.slice->compute_slices;
    attributes->gpu_instance_slices = on.slice->compute_slices;
    attributes->compute_instance_slices = on.slice->compute_slices;
    attributes->memory_mebibytes = on.slice->memory_mebibytes;
    return SUCCESS;
}
