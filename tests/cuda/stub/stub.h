/* Test code: a stub in place of the CUDA driver. It moves bytes in host memory and is not a GPU.
 *
 * It enforces the rules that the tests check: which process may open which memory, which imports
 * must be closed before memory is freed, and which work a stream waits for. It counts each broken
 * rule as a violation and writes a line to `violations.log`.
 *
 *     <folder>/state       counters, allocations, imports and events; mapped by all processes
 *     <folder>/device<N>   the memory of device N: sparse, offsets are never reused
 *
 * MP_CUDA_STUB_FOLDER    the folder (must be set)
 * MP_CUDA_STUB_STRICT    1: opening an allocation twice is an error
 * MP_CUDA_STUB_DEVICES   number of devices (2)
 * MP_CUDA_STUB_EVENTS    interprocess events that a process may have (4096, as on an H100)
 * MP_CUDA_STUB_FAIL      function:code[:times],... makes these calls fail
 * MP_CUDA_STUB_LACKS     a function that this driver does not have
 * MP_CUDA_STUB_VERSION   the version of CUDA (13000)
 */
#ifndef STUB_H
#define STUB_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PUBLIC __attribute__((visibility("default")))

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct local_event *CUevent;

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    MAP_FAILED_ = 205,
    ALREADY_MAPPED = 208,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    NOT_SUPPORTED = 801,
};

enum {
    MAX_DEVICES = 8,
    MAX_ALLOCATIONS = 8192,
    MAX_IMPORTS = 16384,
    MAX_EVENTS = 8192,
    MAX_FUNCTIONS = 128,
    GATES = 64
};
enum { MAGIC = 0x42555453 };
enum { BLOCK = 2 << 20 };

enum counter {
    ALLOCS,
    FREES,
    OPENS,
    CLOSES,
    EVENTS_MADE,
    EVENTS_GONE,
    EVENT_OPENS,
    EVENT_CLOSES,
    VIOLATIONS,
    COUNTERS
};

enum kind { DEVICE_MEMORY, POOL_MEMORY, MANAGED_MEMORY, PINNED_MEMORY, VIRTUAL_MEMORY };

struct process {
    pid_t pid;
    uint64_t start;
};

struct allocation {
    uint64_t serial; /* 0: the entry is free */
    uint64_t block, block_size, offset, size;
    int device, kind;
    uint32_t pool;
    struct process owner;
};

struct import {
    uint64_t serial;
    uint32_t index, count;
    bool event;
    struct process by;
};

struct event {
    uint64_t serial, recorded, completed;
    unsigned flags;
    bool destroyed;
    struct process owner, recorder;
};

/* How often all processes have called a function. */
struct calls {
    char function[48];
    uint64_t count;
};

struct state {
    uint64_t ready;
    pthread_mutex_t lock; /* robust: its holder may be killed */
    struct calls calls[MAX_FUNCTIONS];
    uint64_t counters[COUNTERS];
    uint64_t next_serial, next_offset[MAX_DEVICES];
    uint32_t next_pool;
    uint32_t most_imports; /* entries from there on were never used */
    uint32_t gates[GATES];
    struct allocation allocations[MAX_ALLOCATIONS];
    struct import imports[MAX_IMPORTS];
    struct event events[MAX_EVENTS];
};

struct context {
    int device; /* physical */
    int retained;
};

/* A range of device memory in this process, allocated here or imported. */
struct range {
    struct range *next;
    char *at, *mapping;
    uint64_t size, mapping_size, serial;
    uint32_t index;
    int device, kind, opens;
    uint32_t pool;
    bool imported, exportable;
    struct block *block;
};

/* state.c */
extern struct state *state;
extern struct process me;
void lock_state(void);
void unlock_state(void);
void count(enum counter which);
struct calls *calls_of(const char *function);
void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool alive(struct process who);
bool same(struct process a, struct process b);
CUresult open_state(void);
void open_device(int physical);
int device_file(int physical);
CUresult fault(const char *function);
uint32_t open_imports(bool event, uint32_t index, uint64_t serial);
CUresult add_import(bool event, uint32_t index, uint64_t serial);
void drop_import(bool event, uint32_t index, uint64_t serial);

/* context.c */
/* Count a call. It fails if the driver is not initialised, after a fork, or by a fault. `calls` is
 * the function's own. */
CUresult enter(const char *function, struct calls **calls);
CUcontext current(void);
int physical_of(CUdevice ordinal);
CUdevice ordinal_of(int physical);

/* memory.c */
struct range *find_range(CUdeviceptr pointer);
struct range *find_import(uint32_t index, uint64_t serial);
CUresult allocate(CUdeviceptr *out, size_t size, int device, enum kind kind, uint32_t pool);
CUresult free_range(struct range *range);
CUresult map_import(CUdeviceptr *out, uint32_t index, uint64_t serial, int kind);
void remember_range(struct range *range);
void forget_range(struct range *range);
extern pthread_mutex_t ranges_lock;

/* ipc.c */
void *pool_handle(uint32_t number);

/* stream.c */
enum op_kind { COPY, FILL, RECORD, WAIT, GATE, CALL, FREE };
struct op {
    struct op *next;
    enum op_kind kind;
    uint64_t order, from, to, size, value, serial;
    uint32_t index;
    void (*call)(void *);
    void *argument;
    struct range *range;
};
CUresult enqueue(CUstream stream, struct op op);
CUresult drain(CUstream stream);
CUresult drain_device(int device);
bool idle(CUstream stream);
void stop_engine(void);

/* Each entry point begins with ENTER and is listed in table.c. */
#define ENTER                                                                                      \
    do {                                                                                           \
        static struct calls *calls_;                                                               \
        CUresult bad_ = enter(__func__, &calls_);                                                  \
        if (bad_)                                                                                  \
            return bad_;                                                                           \
    } while (0)

#endif
