/* Test code (stub driver): the state that all processes of a test share, and injected faults. */
#define _GNU_SOURCE
#include "stub.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct state *state;
struct process me;
static const char *folder;

enum { EXITING = 4 }; /* PF_EXITING of the kernel, in the flags of a process */

static uint64_t started(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = 0;
    char *field = strrchr(text, ')');
    if (!field || field[2] == 'Z' || field[2] == 'X')
        return 0;
    for (int i = 0; field && i < 20; i++) {
        field = strchr(field + 1, ' ');
        /* Killed, and not a zombie yet: its files are closed before that, by which others know of its death. */
        if (i == 6 && field && strtoul(field, NULL, 10) & EXITING)
            return 0;
    }
    return field ? strtoull(field, NULL, 10) : 0;
}

bool same(struct process a, struct process b)
{
    return a.pid == b.pid && a.start == b.start;
}

bool alive(struct process who)
{
    return same(who, me) || (who.pid && started(who.pid) == who.start);
}

void lock_state(void)
{
    if (pthread_mutex_lock(&state->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&state->lock);
}

void unlock_state(void)
{
    pthread_mutex_unlock(&state->lock);
}

void count(enum counter which)
{
    __atomic_add_fetch(&state->counters[which], 1, __ATOMIC_SEQ_CST);
}

struct calls *calls_of(const char *function)
{
    struct calls *found = NULL;
    lock_state();
    for (int i = 0; i < MAX_FUNCTIONS && !found; i++) {
        struct calls *calls = &state->calls[i];
        if (!calls->function[0])
            snprintf(calls->function, sizeof calls->function, "%s", function);
        if (!strcmp(calls->function, function))
            found = calls;
    }
    unlock_state();
    return found ? found : &state->calls[MAX_FUNCTIONS - 1];
}

void violation(const char *format, ...)
{
    char path[512], text[256];
    count(VIOLATIONS);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text - 1, format, args);
    va_end(args);
    text[n++] = '\n';
    snprintf(path, sizeof path, "%s/violations.log", folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0) {
        if (write(fd, text, (size_t)n) != n)
            count(VIOLATIONS);
        close(fd);
    }
}

CUresult open_state(void)
{
    me = (struct process){getpid(), started(getpid())};
    if (state)
        return SUCCESS;
    folder = getenv("MP_CUDA_STUB_FOLDER");
    char path[512];
    if (!folder || snprintf(path, sizeof path, "%s/state", folder) >= (int)sizeof path - 16)
        return NO_DEVICE;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return NO_DEVICE;
    flock(fd, LOCK_EX); /* the first process initialises it */
    struct stat st;
    bool created = fstat(fd, &st) == 0 && st.st_size == 0;
    if (created && ftruncate(fd, sizeof *state))
        return NO_DEVICE;
    struct state *seen = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (seen != MAP_FAILED && created) {
        pthread_mutexattr_t how;
        pthread_mutexattr_init(&how);
        pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&seen->lock, &how);
        seen->next_serial = seen->next_pool = 1;
    }
    flock(fd, LOCK_UN); /* the mapping keeps the file open, and would keep the lock */
    close(fd);
    if (seen == MAP_FAILED)
        return NO_DEVICE;
    state = seen;
    return SUCCESS;
}

static int files[MAX_DEVICES];

/* Open the file of a device's memory, when the driver is initialised: the tests check for open
 * descriptors later. */
void open_device(int physical)
{
    char path[512];
    snprintf(path, sizeof path, "%s/device%d", folder, physical);
    files[physical] = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

int device_file(int physical)
{
    return files[physical];
}

static pthread_mutex_t faults_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char function[64];
    int code;
    long left;
} faults[16];

/* Make the next *times* calls of *function* fail with *code*. An empty name clears all faults. */
PUBLIC void mpstub_fail(const char *function, int code, long times)
{
    pthread_mutex_lock(&faults_lock);
    for (int i = 0; i < 16; i++) {
        if (!function[0])
            faults[i].function[0] = 0;
        else if (!faults[i].function[0] || !strcmp(faults[i].function, function)) {
            snprintf(faults[i].function, sizeof faults[i].function, "%s", function);
            faults[i].code = code;
            faults[i].left = times;
            break;
        }
    }
    pthread_mutex_unlock(&faults_lock);
}

__attribute__((constructor)) static void faults_from_environment(void)
{
    const char *asked = getenv("MP_CUDA_STUB_FAIL");
    while (asked && *asked) {
        char function[64];
        int code = 0, used = 0;
        long times = 1L << 40;
        if (sscanf(asked, "%63[^:]:%d%n", function, &code, &used) < 2)
            return;
        asked += used;
        if (*asked == ':')
            times = strtol(asked + 1, (char **)&asked, 10);
        if (*asked == ',')
            asked++;
        mpstub_fail(function, code, times);
    }
}

static char paused[64];
static int paused_at;

/* Make the calls of *function* in this process wait for a gate. An empty name pauses none. */
PUBLIC void mpstub_pause(const char *function, int gate)
{
    pthread_mutex_lock(&faults_lock);
    snprintf(paused, sizeof paused, "%s", function);
    paused_at = gate;
    pthread_mutex_unlock(&faults_lock);
}

CUresult fault(const char *function)
{
    CUresult result = SUCCESS;
    pthread_mutex_lock(&faults_lock);
    bool waits = !strcmp(paused, function);
    int gate = paused_at;
    pthread_mutex_unlock(&faults_lock);
    while (waits && !__atomic_load_n(&state->gates[gate], __ATOMIC_SEQ_CST))
        usleep(100);
    pthread_mutex_lock(&faults_lock);
    for (int i = 0; i < 16 && faults[i].function[0]; i++)
        if (faults[i].left > 0 && !strcmp(faults[i].function, function)) {
            faults[i].left--;
            result = faults[i].code;
            if (result == -SIGKILL) /* a death in the middle of the call */
                kill(getpid(), SIGKILL);
        }
    pthread_mutex_unlock(&faults_lock);
    return result;
}

/* Count the imports of live processes and remove those of dead ones. Call it under the lock. */
uint32_t open_imports(bool event, uint32_t index, uint64_t serial)
{
    uint32_t open = 0;
    for (uint32_t i = 0; i < state->most_imports; i++) {
        struct import *import = &state->imports[i];
        if (!import->serial || import->event != event || import->index != index ||
            import->serial != serial)
            continue;
        if (alive(import->by))
            open += import->count;
        else {
            state->counters[event ? EVENT_CLOSES : CLOSES] += import->count;
            import->serial = 0;
        }
    }
    return open;
}

CUresult add_import(bool event, uint32_t index, uint64_t serial)
{
    struct import *room = NULL;
    for (uint32_t i = 0; i < state->most_imports; i++) {
        struct import *import = &state->imports[i];
        if (!import->serial) {
            if (!room)
                room = import;
        } else if (import->event == event && import->index == index && import->serial == serial &&
                   same(import->by, me)) {
            room = import;
            break;
        }
    }
    if (!room && state->most_imports < MAX_IMPORTS)
        room = &state->imports[state->most_imports++];
    if (!room)
        return OUT_OF_MEMORY;
    if (!room->serial)
        *room = (struct import){.serial = serial, .index = index, .event = event, .by = me};
    room->count++;
    count(event ? EVENT_OPENS : OPENS);
    return SUCCESS;
}

void drop_import(bool event, uint32_t index, uint64_t serial)
{
    for (uint32_t i = 0; i < state->most_imports; i++) {
        struct import *import = &state->imports[i];
        if (import->serial == serial && import->event == event && import->index == index &&
            same(import->by, me)) {
            count(event ? EVENT_CLOSES : CLOSES);
            if (--import->count == 0)
                import->serial = 0;
            return;
        }
    }
    violation("process %d closes an import that it has not opened", me.pid);
}

/* ---- called by the tests ---- */

PUBLIC uint64_t mpstub_counter(int which)
{
    if (open_state() || which < 0 || which >= COUNTERS)
        return UINT64_MAX;
    lock_state();
    for (uint32_t i = 0; i < state->most_imports; i++)
        if (state->imports[i].serial)
            open_imports(state->imports[i].event, state->imports[i].index,
                         state->imports[i].serial);
    for (uint32_t i = 0; i < MAX_ALLOCATIONS; i++) { /* a process's memory ends with it */
        struct allocation *entry = &state->allocations[i];
        if (entry->serial && !alive(entry->owner) && !open_imports(false, i, entry->serial)) {
            entry->serial = 0;
            state->counters[FREES]++;
        }
    }
    uint64_t value = state->counters[which];
    unlock_state();
    return value;
}

/* How often all processes have called a function. */
PUBLIC uint64_t mpstub_calls(const char *function)
{
    return open_state() ? UINT64_MAX
                        : __atomic_load_n(&calls_of(function)->count, __ATOMIC_RELAXED);
}

PUBLIC void mpstub_open_gate(int gate)
{
    __atomic_store_n(&state->gates[gate], 1, __ATOMIC_SEQ_CST);
}
PUBLIC void mpstub_close_gate(int gate)
{
    __atomic_store_n(&state->gates[gate], 0, __ATOMIC_SEQ_CST);
}
