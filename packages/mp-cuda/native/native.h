/* Shared by the C files of the module mp_cuda._native. */
#ifndef MP_CUDA_NATIVE_H
#define MP_CUDA_NATIVE_H
#include <stddef.h>
#include <time.h>

#include "mp_core.h"

/* core.c: mp-core's table, copied when the module is imported. */
extern mp_core_api mp_core;
int mp_load_core(void);

/* ---- hooks.c: what the C code calls or reads of the Python modules ---- */

typedef struct {
    PyObject *in_use; /* {type: function (object) -> whether the program uses it} */
    PyObject *events; /* {process and handle: Event}, those of other processes that are open */
    PyObject *made;   /* {handle: Event}, those of this process */
    PyObject *tasks;  /* the queue of what finalizers have left */
    PyObject *array_type;
    PyObject *receive_table, *rebuild; /* which pickles name */
    PyObject *no_fork;                 /* a lock that keeps other threads from a fork */

    /* (array, low, high, what the driver says of its first byte, or None for memory of another
     * process's pool, receivers, fallback) -> (handle, extra) of a pool, or a copy of the array */
    PyObject *describe;
    PyObject *order;                /* (device, before, after): let the stream `after` wait */
    PyObject *open_pool;            /* (device, handle, extra) -> (address, state) */
    PyObject *skip_pool;            /* (extra): it is open already */
    PyObject *close_pool;           /* (device, address, state) -> code of the driver */
    PyObject *owner_is_gone;        /* (key): raises */
    PyObject *not_opened;           /* (key, code): raises */
    PyObject *not_received;         /* (how many offers): raises */
    PyObject *own_is_gone;          /* (): raises */
    PyObject *stays_open;           /* (code): logs that the driver refuses to close memory */
    PyObject *make_event;           /* (device) -> Event or None */
    PyObject *open_event;           /* (device, Reference, handle) -> Event or None */
    PyObject *context;              /* (device) -> number of its primary context */
    PyObject *uuid_of, *ordinal_of; /* of a device */
    PyObject *memory_of;            /* (device) -> bytes */
    PyObject *start_driver;         /* () */
    PyObject *driver_failed;        /* (function, code): raises */
    PyObject *in_feeder;            /* () -> whether a queue's thread runs */
    PyObject *plain_dtype;  /* (dtype) -> its three numbers, or None if there is more to it */
    PyObject *dtype_of;     /* (three numbers) -> dtype */
    PyObject *taken_apart;  /* (object) -> (kind, array, extra), or None for its own reducer */
    PyObject *rebuild_kind; /* (kind, extra, array) -> object */
    PyObject *wake;         /* (): do what finalizers have left */
    PyObject *wake_watch;   /* (): look at exports and mappings every 50 ms */
} mp_hooks;

extern mp_hooks mp_hook;
int mp_add_hooks(PyObject *module);

static inline PyObject *mp_call(PyObject *function, PyObject *argument)
{
    return PyObject_CallFunctionObjArgs(function, argument, NULL);
}

/* ---- driver.c ---- */

enum { MP_DEVICES = 64, MP_CUDA_HANDLE = 64, MP_LEGACY = 1 };

/* Begin to call the driver on a device, whose context is current until mp_driver_end. -1 with an
 * exception. */
typedef struct {
    int is_pushed;
} mp_context;
int mp_driver_begin(int device, mp_context *context);
void mp_driver_end(const mp_context *context);
/* 0, or -1 with an exception. */
int mp_record(void *event, uint64_t stream);
int mp_wait(void *event, uint64_t stream);
int mp_synchronize(uint64_t stream);
int mp_synchronize_device(void);

/* What the driver says of a pointer; what it does not say is 0. */
typedef struct {
    uint64_t type, buffer_id, is_managed, device, is_legacy, handle_types, pool;
    uint64_t base, nbytes;
    unsigned char handle[MP_CUDA_HANDLE]; /* for memory that such a handle opens */
} mp_pointer;
enum { MP_HOST = 1 };

/* The driver's number of the allocation there, 0 if there is none. -1 with an exception. */
int mp_buffer_id(int device, uint64_t pointer, uint64_t *number);
int mp_ask_pointer(int device, uint64_t pointer, mp_pointer *to);
/* Open memory: 0; the driver's code if it refuses; -1 with an exception. */
int mp_open_handle(int device, const void *handle, uint64_t *pointer);
/* Close memory, which puts the driver's codes into the place of the addresses: 0, or -1 with an
 * exception. */
int mp_close_handles(int device, uint64_t *pointers, size_t n);
/* 1 when the device has done all its work; 0 if a stream is being captured into a graph, whose work
 * has not begun; -1 with an exception. */
int mp_device_is_idle(int device);
/* The 16 bytes that identify a device in every process: 0, or -1 with an exception; and the
 * reverse, -1 with an exception. */
int mp_uuid_of(int device, unsigned char *uuid);
int mp_ordinal_of(const unsigned char *uuid);
void mp_forget_driver(void); /* in a forked child */
int mp_add_driver(PyObject *module);

/* ---- array.c ---- */

typedef struct {
    PyObject_HEAD
    PyObject *shape, *strides, *dtype, *owner;
    uint64_t ptr, stream; /* stream 0: none is known */
    int device;
    char readonly;
} mp_array;

int mp_add_array(PyObject *module);
/* 1 if it is an mp_cuda.DeviceArray. */
int mp_is_array(PyObject *object);

/* An array in a message: this, the lengths of its axes and, unless they are those of C order, the
 * strides. */
typedef struct {
    uint32_t number; /* of what its export keeps for it */
    uint16_t row;    /* of its memory in the table */
    uint8_t nd, flags, code, unused;
    uint16_t bits, lanes, more; /* `more` is 0 */
    int64_t offset;             /* from the begin of the memory */
} mp_layout;
enum { MP_READONLY = 1, MP_STRIDED = 2, MP_OTHER_DTYPE = 4, MP_AXES = 64, MP_NO_ROW = UINT16_MAX };

typedef struct {
    mp_layout head;
    int64_t dims[2 * MP_AXES];
    size_t nbytes;     /* of the bytes in the message */
    int64_t low, high; /* the bytes of the array, from its first element */
} mp_described;

/* Describe an array: 0, or -1 with an exception. */
int mp_describe_array(const mp_array *array, mp_described *to);
/* Read the head of a layout: -1 with an exception if it is damaged. */
int mp_read_layout(const void *layout, size_t nbytes, mp_layout *head);
/* Make the array of a layout that has this head; NULL with an exception. The memory has the address
 * and size, and the owner keeps it; dtype is NULL unless the layout does not say it. */
PyObject *mp_array_of(const mp_layout *head, const void *layout, uint64_t base, uint64_t size,
                      int device, PyObject *owner, PyObject *dtype);
PyObject *mp_damaged(const char *what);

/* As time.monotonic(). */
static inline double mp_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
/* Leave an object to a queue, or without one call the function; an exception that is set stays. */
void mp_leave_to(PyObject *queue, PyObject *object);

/* ---- events.c ---- */

typedef struct {
    PyObject_HEAD
    void *event;
    PyObject *task; /* NULL, or what is left to the queue of tasks at its end */
    int device;
    unsigned char handle[MP_CUDA_HANDLE];
} mp_event;

extern PyObject *mp_event_type;
int mp_add_events(PyObject *module);
/* Take an event from the pool: NULL without one, perhaps with an exception. */
mp_event *mp_take_event(int device);
/* Return one, and the reference to it, that no stream waits for. */
void mp_return_event(mp_event *event);
void mp_forget_events(void);

/* ---- reference.c ---- */

enum { MP_SLOTS = 14, MP_NO_SLOT = 0, MP_NONCE = 8 };

/* A list, or a member of one, or neither: then `next` is NULL. */
typedef struct mp_link {
    struct mp_link *next, *before;
} mp_link;

static inline void mp_append(mp_link *list, mp_link *link)
{
    link->next = list;
    link->before = list->before;
    list->before->next = link;
    list->before = link;
}

static inline void mp_take_out(mp_link *link)
{
    if (link->next == NULL)
        return;
    link->next->before = link->before;
    link->before->next = link->next;
    link->next = NULL;
}

#define MP_OF(type, member, link) ((type *)((char *)(link) - offsetof(type, member)))

typedef struct mp_memory mp_memory;

/* A reference of this process to the lease of a message, as its owner or a receiver. */
typedef struct {
    PyObject_HEAD
    mpshm_block block; /* data is NULL after release */
    uint64_t serial;
    PyObject *sent; /* NULL, or at the sender that receives its own message what it has sent */
    PyObject *held; /* NULL, or a list of the events that the owner keeps as long as the lease */
    mp_event *slots[MP_SLOTS];
    double sent_at; /* the last time, by time.monotonic() */
    uint32_t pid;
    unsigned char nonce[MP_NONCE];
    char is_sent; /* its owner has sent it once */

    mp_link link; /* of those that were received, or of exports */

    /* An export, see exports.c. */
    PyObject *keeps; /* a list of Sources; NULL when it has ended */
    mp_memory *last; /* the allocation that was kept last, or NULL */
} mp_reference;

int mp_add_references(PyObject *module);
PyObject *mp_new_reference(mpshm_block *block, uint32_t pid, const void *nonce, uint64_t serial);
void mp_release(mp_reference *reference);
void mp_forget_references(void);
volatile unsigned char *mp_flags(const mp_reference *reference);
enum { MP_SIGNATURE = 8 }; /* bytes before the flags, see lease.py of mp-core */
enum { MP_RECALLED = 0, MP_LINGERS = 1, MP_FIRST_SLOT = 2, MP_FLAGS = 16 };
int mp_is_recalled(const mp_reference *reference);
int mp_owner_lives(const mp_reference *reference);
int mp_has_ended(const mp_reference *reference);
/* Whether its owner may send it: it has not ended, and is not recalled. */
int mp_may_send(const mp_reference *reference);
/* Keep the event until the message's receiver waits for it, and take it over: the slot; MP_NO_SLOT,
 * and nothing has changed, if all are taken. */
int mp_keep_event(mp_reference *reference, mp_event *event);
/* The same as long as the lease: 0, or -1 with an exception. */
int mp_hold_event(mp_reference *reference, mp_event *event);
/* The lease has ended: no stream waits for its events, which go back to the pool. */
void mp_return_events(mp_reference *reference);
/* Receive one of the offers of a lease: NULL with an exception. */
PyObject *mp_receive_reference(PyObject *offers, uint32_t pid, const void *nonce, uint64_t serial);
/* This process, by its pid and a random number, so that a forked child is another. */
extern uint32_t mp_pid;
extern unsigned char mp_nonce[MP_NONCE];
int mp_is_me(uint32_t pid, const void *nonce);
int mp_renew_process(void);

/* ---- exports.c ---- */

/* An allocation of this process. */
struct mp_memory {
    PyObject_HEAD
    PyObject *key;
    uint64_t base, nbytes;
    size_t exports; /* how many have it */
    int device;
};

/* Memory that may be sent, with the object that keeps it; or of another process. */
typedef struct mp_source {
    PyObject_HEAD
    PyObject *leases;        /* a tuple of References: the export that keeps it, or others' */
    PyObject *owner;         /* NULL for memory of another process */
    struct mp_source *older; /* NULL, or in another export the same owner */
    mp_memory *memory;       /* NULL for memory of another process, and without any */
    PyObject *key, *extra;   /* extra may be NULL */
    uint64_t base, nbytes;
    uint32_t number; /* of the owner in its export */
    int device;
} mp_source;

enum { MP_ALL = UINT32_MAX }; /* the number of all that an export keeps */

int mp_add_exports(PyObject *module);
mp_memory *mp_new_memory(PyObject *key, uint64_t base, uint64_t nbytes, int device);
mp_source *mp_new_source(PyObject *leases, PyObject *key, uint64_t base, uint64_t nbytes,
                         int device);
/* A new export, which keeps nothing yet: NULL with an exception. */
mp_reference *mp_new_export(void);
/* Keep the owner, for its memory, until the export ends: a new reference. */
mp_source *mp_keep(mp_reference *export, PyObject *owner, mp_memory *memory, PyObject *extra);
/* The last source of an owner, borrowed; NULL, perhaps with an exception. */
mp_source *mp_latest_source(PyObject *owner);
/* Return a handle in flight, bytes; NULL with an exception, which is a ValueError if it has
 * ended. */
PyObject *mp_offer(mp_reference *reference);
/* Drop what an export keeps; an exception that is set stays. */
void mp_end_export(mp_reference *export);
/* (owners, Sources) of an export of this process, lists; None if it has ended. */
PyObject *mp_own_sent(uint64_t serial);
void mp_forget_exports(void);

/* ---- mappings.c ---- */

typedef struct mp_received mp_received;

/* Memory of another process, open here. */
typedef struct {
    PyObject_HEAD
    PyObject *key;
    uint64_t ptr, nbytes;
    mp_link received; /* those that have arrays */
    size_t users;     /* how many there are, or were and are not closed yet */
    PyObject *leases; /* that keep it while it lingers */
    PyObject *state;  /* of a pool; NULL for memory of a handle */
    mp_link link;     /* of those that linger, or are being closed */
    double last_used;
    int device;
    char must_close, is_refused; /* the driver has refused to close it */
} mp_mapping;

/* What the arrays of one message on one allocation share. */
struct mp_received {
    PyObject_HEAD
    struct mp_dropped *rest; /* NULL in a forked child */
    mp_link link;
};

extern PyObject *mp_received_type;
int mp_add_mappings(PyObject *module);
mp_mapping *mp_mapping_of(const mp_received *received);
PyObject *mp_leases_of(const mp_received *received);
/* Find memory of another process, or open it: a new reference to a Received; NULL with an
 * exception. */
PyObject *mp_map(PyObject *leases, PyObject *key, PyObject *extra);
/* The mapping in which an address is, borrowed; NULL if no other process owns that memory. */
mp_mapping *mp_mapping_at(int device, uint64_t pointer);
/* All leases of what was received on it, a tuple. */
PyObject *mp_all_leases(const mp_mapping *mapping);
/* With each message: of a stream of new arrays, which their sender drops at once, few stay open for
 * long. */
void mp_wake_if_recalled(void);
void mp_forget_mappings(void);

/* ---- describe.c ---- */

/* Find or export the memory of an array that has the bytes from low to high, from its first
 * element: a new reference. `export` is the one for what has none yet, or NULL. The address is set
 * if the array was copied. */
mp_source *mp_find_source(PyObject *array, int64_t low, int64_t high, mp_reference *export,
                          unsigned receivers, PyObject *fallback, uint64_t *address);
int mp_make_known(void);
void mp_forget_known(void);

/* ---- outgoing.c ---- */

int mp_add_outgoing(PyObject *module);

/* ---- holders.c ---- */

/* Count the allocation of that key as sent if it is this process's own, otherwise as held here; or
 * with a negative sign not. */
void mp_count(int device, PyObject *key, int is_own, int sign);
void mp_forget_holders(void);

/* ---- incoming.c ---- */

int mp_add_incoming(PyObject *module);
/* Read an array: NULL, perhaps with an exception, if there is none. */
PyObject *mp_read_array(mp_reader *from);
/* Names of functions in pickles. */
extern mp_global mp_names_table, mp_names_rebuild;
int mp_make_names(void);

/* ---- the table of a message, see outgoing.c ---- */

enum { MP_TABLE_VERSION = 4, MP_OFFER = MPSHM_HANDLE_SIZE };

typedef struct {
    uint32_t version;
    uint16_t leases, memories, events, unused;
} mp_table_head;

typedef struct {
    uint64_t serial;
    uint32_t pid;
    unsigned char nonce[MP_NONCE];
    uint32_t unused;
} mp_table_lease;

typedef struct {
    uint16_t lease, leases; /* the first one for the memory, and how many there are */
    uint16_t key_nbytes;
    uint16_t unused;
    uint32_t extra_nbytes;
    uint32_t unused_too;
} mp_table_memory; /* before key and extra */

typedef struct {
    uint16_t lease;  /* that keeps the event; its owner is the event's */
    uint16_t memory; /* one on the same device */
    uint16_t slot;
    uint16_t unused;
    unsigned char handle[MP_CUDA_HANDLE];
} mp_table_event;

/* The key of an allocation begins with these, and its handle follows: what tells it from every
 * other, and how to open it. The owner belongs to it, because a later process may have its pid and
 * handles; so does the driver's number of the allocation, because a later one may have its
 * address. */
typedef struct {
    uint32_t pid;
    unsigned char nonce[MP_NONCE];
    unsigned char uuid[16]; /* of the device */
    uint64_t buffer_id, nbytes;
    uint8_t transport;
} __attribute__((packed)) mp_key_head;
enum { MP_BY_HANDLE, MP_BY_POOL };

#endif
