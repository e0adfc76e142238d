/* A small libhlml.so: cards whose state is a file that the test writes, as support/hlml.py lays it out. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, NOT_FOUND = 6, ALREADY_INITIALIZED = 5, DRIVER_NOT_LOADED = 9 };
/* Functions that a test may have fail, in the order of FUNCTIONS. */
enum {
    HANDLE, NAME, UUID, SERIAL, MODULE, ENERGY, POWER, RANGE, DEFAULT, LIMIT, SET, LOAD, CLOCK, TEMPERATURE, THROTTLES,
    FUNCTIONS
};

struct card {
    unsigned long long millijoules, throttles;
    unsigned module, milliwatts, lowest, highest, standard, limit, keeps_limit, percent, megahertz, celsius;
    char name[32], uuid[64], serial[32];
    int codes[FUNCTIONS];
};

struct state {
    int init_code;
    unsigned count;
    struct card cards[8];
};

static struct state *state;

int hlml_init(void)
{
    const char *path = getenv("HLML_EMULATOR_STATE");
    int file = path ? open(path, O_RDWR) : -1;
    int again = state != NULL;
    if (file < 0) {
        state = NULL;
        return DRIVER_NOT_LOADED;
    }
    state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (state->init_code)
        return state->init_code;
    return again ? ALREADY_INITIALIZED : SUCCESS;
}

int hlml_device_get_count(unsigned *count)
{
    if (!state)
        return UNINITIALIZED;
    *count = state->count;
    return SUCCESS;
}

int hlml_device_get_handle_by_index(unsigned index, struct card **device)
{
    if (index >= state->count)
        return NOT_FOUND;
    *device = &state->cards[index];
    return (*device)->codes[HANDLE];
}

#define TEXT(symbol, field, function)                                                                        \
    int symbol(struct card *card, char *text, unsigned size)                                                 \
    {                                                                                                        \
        strncpy(text, card->field, size);                                                                    \
        return card->codes[function];                                                                        \
    }
#define NUMBER(symbol, type, field, function)                                                                \
    int symbol(struct card *card, type *number)                                                              \
    {                                                                                                        \
        *number = card->field;                                                                               \
        return card->codes[function];                                                                        \
    }
#define SELECTED(symbol, field, function)                                                                    \
    int symbol(struct card *card, unsigned kind, unsigned *number)                                           \
    {                                                                                                        \
        *number = kind == 0 ? card->field : 0;                                                               \
        return card->codes[function];                                                                        \
    }

TEXT(hlml_device_get_name, name, NAME)
TEXT(hlml_device_get_uuid, uuid, UUID)
TEXT(hlml_device_get_serial, serial, SERIAL)
NUMBER(hlml_device_get_module_id, unsigned, module, MODULE)
NUMBER(hlml_device_get_total_energy_consumption, unsigned long long, millijoules, ENERGY)
NUMBER(hlml_device_get_power_usage, unsigned, milliwatts, POWER)
NUMBER(hlml_device_get_power_management_default_limit, unsigned, standard, DEFAULT)
NUMBER(hlml_device_get_power_management_limit, unsigned, limit, LIMIT)
NUMBER(hlml_device_get_current_clocks_throttle_reasons, unsigned long long, throttles, THROTTLES)
SELECTED(hlml_device_get_clock_info, megahertz, CLOCK)
SELECTED(hlml_device_get_temperature, celsius, TEMPERATURE)

int hlml_device_get_power_management_limit_constraints(struct card *card, unsigned *lowest, unsigned *highest)
{
    *lowest = card->lowest;
    *highest = card->highest;
    return card->codes[RANGE];
}

int hlml_device_set_power_management_limit(struct card *card, unsigned limit)
{
    if (!card->codes[SET] && !card->keeps_limit)
        card->limit = limit;
    return card->codes[SET];
}

int hlml_device_get_utilization_rates(struct card *card, unsigned *rates)
{
    rates[0] = card->percent;
    rates[1] = 0;
    return card->codes[LOAD];
}
