/* Shared by the C files of the module mp_cuda._native. */
#ifndef MP_CUDA_NATIVE_H
#define MP_CUDA_NATIVE_H
#include "mp_core.h"

/* core.c: mp-core's table, copied when the module is imported. */
extern mp_core_api mp_core;
int mp_load_core(void);

/* ---- hooks.c: what the C code calls or reads of the Python modules ---- */

typedef struct {
    PyObject *latest;    /* {id of an object: its last Source} */
    PyObject *mappings;  /* {key of an allocation: Mapping}, those that are open */
    PyObject *lingering; /* {Mapping: References}, those without arrays */
    PyObject *events;    /* {process and handle: Event}, those of other processes that are open */
    PyObject *made;      /* {handle: Event}, those of this process */
    PyObject *tasks;     /* the queue of what finalizers have left */
    PyObject *array_type, *close_type;
    PyObject *receive_table, *rebuild; /* which pickles name */
    PyObject *take_back;               /* (offers): of a message that is not sent */

    /* (array, Export or None, receivers, fallback) -> (Source, address of the first element) */
    PyObject *describe;
    PyObject *new_export;        /* () */
    PyObject *make_event;        /* (device) -> Event or None */
    PyObject *open_event;        /* (device, Reference, handle) -> Event or None */
    PyObject *open_memory;       /* (References, key, extra) -> Received */
    PyObject *skip_memory;       /* (key, extra): it is open already */
    PyObject *owner_is_gone;     /* (key): raises */
    PyObject *receive_reference; /* (offers): raises, if they were received or revoked */
    PyObject *own_sent; /* (serial) -> (what it keeps, {key: (address, bytes, device)}), or None */
    PyObject *own_is_gone;   /* (): raises */
    PyObject *context;       /* (device) -> number of its primary context */
    PyObject *start_driver;  /* () */
    PyObject *driver_failed; /* (function, code): raises */
    PyObject *in_feeder;     /* () -> whether a queue's thread runs */
    PyObject *plain_dtype;   /* (dtype) -> its three numbers, or None if there is more to it */
    PyObject *dtype_of;      /* (three numbers) -> dtype */
    PyObject *taken_apart;   /* (object) -> (kind, array, extra), or None for its own reducer */
    PyObject *rebuild_kind;  /* (kind, extra, array) -> object */
    PyObject *wake;          /* (): run the tasks */
} mp_hooks;

extern mp_hooks mp_hook;

static inline PyObject *mp_call(PyObject *function, PyObject *argument)
{
    return PyObject_CallFunctionObjArgs(function, argument, NULL);
}

PyObject *mp_py_set_hooks(PyObject *, PyObject *args, PyObject *names);

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
void mp_forget_driver(void); /* in a forked child */
PyObject *mp_py_buffer_id(PyObject *, PyObject *args);
PyObject *mp_py_pointer_attributes(PyObject *, PyObject *args);
PyObject *mp_py_address_range(PyObject *, PyObject *args);
PyObject *mp_py_memory_handle(PyObject *, PyObject *args);
PyObject *mp_py_open_memory(PyObject *, PyObject *args);
PyObject *mp_py_close_memory(PyObject *, PyObject *args);
PyObject *mp_py_free_memory(PyObject *, PyObject *args);
PyObject *mp_py_destroy_events(PyObject *, PyObject *args);
PyObject *mp_py_synchronize(PyObject *, PyObject *device);

/* ---- array.c ---- */

typedef struct {
    PyObject_HEAD PyObject *shape, *strides, *dtype, *owner;
    uint64_t ptr, stream; /* stream 0: none is known */
    int device;
    char readonly;
} mp_array;

int mp_add_array_type(PyObject *module);
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
/* Make the array of a layout; NULL with an exception. The memory has the address and size, and the
 * owner keeps it; dtype is NULL unless the layout does not say it. */
PyObject *mp_array_of(const void *layout, size_t nbytes, uint64_t base, uint64_t size, int device,
                      PyObject *owner, PyObject *dtype);
/* Read the head of a layout: -1 with an exception if it is damaged. */
int mp_read_layout(const void *layout, size_t nbytes, mp_layout *head);
PyObject *mp_damaged(const char *what);
/* Leave an object to a queue, or without one call the function; an exception that is set stays. */
void mp_leave_to(PyObject *queue, PyObject *object);

/* ---- events.c ---- */

typedef struct {
    PyObject_HEAD void *event;
    PyObject *task; /* NULL, or what is left to the queue of tasks at its end */
    int device;
    unsigned char handle[MP_CUDA_HANDLE];
} mp_event;

extern PyObject *mp_event_type;
int mp_add_event_type(PyObject *module);
/* Take an event from the pool: NULL without one, perhaps with an exception. */
mp_event *mp_take_event(int device);
/* Return one, and the reference to it, that no stream waits for. */
void mp_return_event(mp_event *event);
void mp_forget_events(void);
PyObject *mp_py_free_events(PyObject *, PyObject *);

/* ---- reference.c ---- */

enum { MP_SLOTS = 14, MP_NO_SLOT = 0, MP_NONCE = 8 };

/* A reference of this process to the lease of a message, as its owner or a receiver. */
typedef struct {
    PyObject_HEAD mpshm_block block; /* data is NULL after release */
    uint64_t serial;
    PyObject *sent; /* NULL, or at the sender that receives its own message what it has sent */
    PyObject *held; /* NULL, or a list of the events that the owner keeps as long as the lease */
    mp_event *slots[MP_SLOTS];
    double sent_at; /* the last time, by time.monotonic() */
    uint32_t pid;
    unsigned char nonce[MP_NONCE];
    char is_sent; /* its owner has sent it once */
} mp_reference;

extern PyObject *mp_reference_type;
int mp_add_reference_type(PyObject *module);
int mp_is_reference(PyObject *object);
PyObject *mp_new_reference(mpshm_block *block, uint32_t pid, const void *nonce, uint64_t serial);
volatile unsigned char *mp_flags(const mp_reference *reference);
enum { MP_RECALLED = 0, MP_LINGERS = 1, MP_FIRST_SLOT = 2, MP_FLAGS = 16 };
/* Whether its owner may send it: it has not ended, and is not recalled. */
int mp_may_send(const mp_reference *reference);
/* Return a handle in flight, bytes; NULL with an exception, which is a ValueError if it has ended. */
PyObject *mp_offer(mp_reference *reference);
/* Keep the event until the message's receiver waits for it, and take it over: the slot; MP_NO_SLOT,
 * and nothing has changed, if all are taken. */
int mp_keep_event(mp_reference *reference, mp_event *event);
/* The same as long as the lease: 0, or -1 with an exception. */
int mp_hold_event(mp_reference *reference, mp_event *event);
/* This process, by its pid and a random number. */
extern uint32_t mp_pid;
extern unsigned char mp_nonce[MP_NONCE];
PyObject *mp_py_set_process(PyObject *, PyObject *args);

/* ---- outgoing.c ---- */

int mp_add_source_type(PyObject *module);
PyObject *mp_py_use_codec(PyObject *, PyObject *args);
PyObject *mp_py_export_alone(PyObject *, PyObject *args);

/* ---- holders.c ---- */

/* Count the allocation of that key, of another process, as held, or with a negative sign not. */
void mp_count_held(int device, PyObject *key, int sign);
PyObject *mp_py_count_own(PyObject *, PyObject *args);
void mp_forget_holders(void);

/* ---- incoming.c ---- */

extern PyObject *mp_received_type;
int mp_add_incoming_types(PyObject *module);
PyObject *mp_py_receive_table(PyObject *, PyObject *args);
PyObject *mp_py_rebuild(PyObject *, PyObject *args);
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

/* The key of an allocation begins with these, see wire.py. */
typedef struct {
    uint32_t pid;
    unsigned char nonce[MP_NONCE];
    unsigned char uuid[16];
    uint64_t buffer_id, nbytes;
} __attribute__((packed)) mp_key_head;

#endif
