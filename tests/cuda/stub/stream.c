/* Test code (stub driver): streams. Work runs in the calling thread; if it must wait, a thread
 * continues it.
 *
 * The legacy default stream (0 and 1) waits for earlier work on the blocking streams of its device,
 * and they wait for its work.
 */
#define _GNU_SOURCE
#include "stub.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct stream {
    struct stream *next;
    int device;
    unsigned flags; /* 1: non-blocking */
    bool legacy, gone;
    struct op *first, **last;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static struct stream *streams, defaults[MAX_DEVICES], per_thread[MAX_DEVICES];
static uint64_t order;
static bool engine;

static struct stream *resolve(CUstream handle)
{
    uint64_t value = (uint64_t)handle;
    if (value > 2)
        return handle;
    if (!current())
        return NULL;
    struct stream *stream =
        value == 2 ? &per_thread[current()->device] : &defaults[current()->device];
    if (!stream->last) {
        stream->device = current()->device;
        stream->legacy = value != 2;
        stream->last = &stream->first;
        stream->next = streams;
        streams = stream;
    }
    return stream;
}

static bool known(struct stream *stream)
{
    for (struct stream *s = streams; s; s = s->next)
        if (s == stream)
            return !s->gone;
    return false;
}

/* Do the other streams let the first operation of *stream* run? */
static bool its_turn(struct stream *stream, uint64_t at)
{
    if (stream->flags & 1)
        return true;
    for (struct stream *s = streams; s; s = s->next)
        if (s != stream && s->device == stream->device && !(s->flags & 1) &&
            (stream->legacy || s->legacy) && s->first && s->first->order < at)
            return false;
    return true;
}

static bool touches_nothing(uint64_t at, uint64_t size, bool device)
{
    struct range *range = find_range(at);
    if (!range)
        return device;
    uint64_t end = (uint64_t)range->at + range->size;
    /* a read may cross adjacent mappings of virtual memory */
    while (end < at + size && range && range->kind == VIRTUAL_MEMORY && (range = find_range(end)))
        end = (uint64_t)range->at + range->size;
    return at + size > end;
}

/* Run the operation. Return false if it must wait. */
static bool run(struct stream *stream, struct op *op)
{
    (void)stream;
    struct event *event = &state->events[op->index];
    switch (op->kind) {
    case COPY:
        if (touches_nothing(op->to, op->size, false) || touches_nothing(op->from, op->size, false))
            violation("process %d copies %lu bytes beyond an allocation", me.pid,
                      (unsigned long)op->size);
        else
            memmove((void *)op->to, (void *)op->from, op->size);
        return true;
    case FILL:
        if (touches_nothing(op->to, op->size, true))
            violation("process %d writes %lu bytes beyond an allocation", me.pid,
                      (unsigned long)op->size);
        else
            memset((void *)op->to, (int)op->value, op->size);
        return true;
    case RECORD:
        lock_state();
        if (event->serial == op->serial && event->completed < op->value)
            event->completed = op->value;
        unlock_state();
        return true;
    case WAIT:
        return __atomic_load_n(&event->serial, __ATOMIC_SEQ_CST) != op->serial ||
               __atomic_load_n(&event->completed, __ATOMIC_SEQ_CST) >= op->value ||
               !alive(event->recorder);
    case GATE:
        return __atomic_load_n(&state->gates[op->index], __ATOMIC_SEQ_CST) != 0;
    case CALL:
        op->call(op->argument);
        return true;
    case FREE:
        free_range(op->range);
        return true;
    }
    return true;
}

/* Run all operations that can run. Return whether any are left. Call it under the lock. */
static bool progress(void)
{
    bool moved = true, left = true;
    while (moved) {
        moved = left = false;
        for (struct stream **at = &streams; *at;) {
            struct stream *stream = *at;
            while (stream->first && its_turn(stream, stream->first->order) &&
                   run(stream, stream->first)) {
                struct op *done = stream->first;
                stream->first = done->next;
                if (!stream->first)
                    stream->last = &stream->first;
                free(done);
                moved = true;
            }
            if (stream->first)
                left = true;
            if (stream->gone && !stream->first) {
                *at = stream->next;
                free(stream);
            } else
                at = &stream->next;
        }
    }
    return left;
}

static void *run_engine(void *unused)
{
    (void)unused;
    struct timespec pause = {0, 500000};
    pthread_mutex_lock(&lock);
    for (;;) {
        if (!progress())
            pthread_cond_wait(&work, &lock);
        else {
            pthread_mutex_unlock(&lock);
            nanosleep(&pause, NULL);
            pthread_mutex_lock(&lock);
        }
    }
    return NULL;
}

CUresult enqueue(CUstream handle, struct op given)
{
    pthread_mutex_lock(&lock);
    struct stream *stream = resolve(handle);
    CUresult result = SUCCESS;
    if (!stream || !known(stream))
        result = stream ? INVALID_HANDLE : INVALID_CONTEXT;
    else {
        struct op *op = malloc(sizeof *op);
        *op = given;
        op->next = NULL;
        op->order = ++order;
        *stream->last = op;
        stream->last = &op->next;
        if (progress()) {
            pthread_t thread;
            if (!engine && !pthread_create(&thread, NULL, run_engine, NULL)) {
                pthread_detach(thread);
                engine = true;
            }
            pthread_cond_signal(&work);
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static bool pending(struct stream *stream, int device)
{
    pthread_mutex_lock(&lock);
    progress();
    bool left = false;
    for (struct stream *s = streams; s; s = s->next)
        if (s->first && (stream ? s == stream : s->device == device))
            left = true;
    pthread_mutex_unlock(&lock);
    return left;
}

CUresult drain(CUstream handle)
{
    struct timespec pause = {0, 200000};
    pthread_mutex_lock(&lock);
    struct stream *stream = resolve(handle);
    bool there = stream && known(stream);
    pthread_mutex_unlock(&lock);
    if (!there)
        return INVALID_HANDLE;
    while (pending(stream, 0))
        nanosleep(&pause, NULL);
    return SUCCESS;
}

CUresult drain_device(int device)
{
    struct timespec pause = {0, 200000};
    while (pending(NULL, device))
        nanosleep(&pause, NULL);
    return SUCCESS;
}

bool idle(CUstream handle)
{
    pthread_mutex_lock(&lock);
    struct stream *stream = resolve(handle);
    pthread_mutex_unlock(&lock);
    return !pending(stream, 0);
}

CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
    ENTER;
    (void)priority;
    if (!current())
        return INVALID_CONTEXT;
    struct stream *stream = calloc(1, sizeof *stream);
    stream->device = current()->device;
    stream->flags = flags;
    stream->last = &stream->first;
    pthread_mutex_lock(&lock);
    stream->next = streams;
    streams = stream;
    pthread_mutex_unlock(&lock);
    *out = stream;
    return SUCCESS;
}

CUresult cuStreamCreate(CUstream *out, unsigned flags)
{
    return cuStreamCreateWithPriority(out, flags, 0);
}

CUresult cuStreamDestroy_v2(CUstream handle)
{
    ENTER;
    pthread_mutex_lock(&lock);
    bool there = (uint64_t)handle > 2 && known(handle);
    if (there) {
        handle->gone = true; /* its earlier work still runs */
        progress();
    }
    pthread_mutex_unlock(&lock);
    return there ? SUCCESS : INVALID_HANDLE;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    ENTER;
    return drain(stream);
}

CUresult cuStreamQuery(CUstream stream)
{
    ENTER;
    return idle(stream) ? SUCCESS : NOT_READY;
}

CUresult cuStreamGetFlags(CUstream stream, unsigned *flags)
{
    ENTER;
    *flags = (uint64_t)stream > 2 ? stream->flags : 0;
    return SUCCESS;
}

CUresult cuStreamGetPriority(CUstream stream, int *priority)
{
    ENTER;
    (void)stream;
    *priority = 0;
    return SUCCESS;
}

CUresult cuStreamGetDevice(CUstream stream, CUdevice *device)
{
    ENTER;
    *device = ordinal_of((uint64_t)stream > 2 ? stream->device : current()->device);
    return SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    ENTER;
    (void)stream;
    *context = current();
    return SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
    ENTER;
    (void)stream;
    *status = 0;
    return SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream stream, void (*call)(void *), void *argument)
{
    ENTER;
    return enqueue(stream, (struct op){.kind = CALL, .call = call, .argument = argument});
}

/* Stop the stream until the gate is opened. The tests use this in place of a long kernel. */
PUBLIC CUresult mpstub_wait_gate(CUstream stream, int gate)
{
    ENTER;
    return enqueue(stream, (struct op){.kind = GATE, .index = (uint32_t)gate});
}

PUBLIC CUresult mpstub_fill(CUstream stream, CUdeviceptr to, unsigned char value, size_t n)
{
    return enqueue(stream, (struct op){.kind = FILL, .to = to, .value = value, .size = n});
}
