/* Test code (stub driver): events. They live in the shared state, so that every process can record
 * and wait. */
#define _GNU_SOURCE
#include "stub.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct local_event {
    uint64_t serial;
    uint32_t index;
    unsigned flags;
    bool imported;
};

struct event_handle {
    uint32_t magic, index;
    uint64_t serial;
    struct process owner;
    char rest[64 - 32];
};

enum { DISABLE_TIMING = 2, INTERPROCESS = 4 };

static int limit = -1, live; /* of interprocess events */

CUresult cuEventCreate(CUevent *out, unsigned flags)
{
    ENTER;
    if (!current())
        return INVALID_CONTEXT;
    if (flags > 7 || ((flags & INTERPROCESS) && !(flags & DISABLE_TIMING)))
        return INVALID_VALUE;
    if (limit < 0)
        limit = getenv("MP_CUDA_STUB_EVENTS") ? atoi(getenv("MP_CUDA_STUB_EVENTS")) : 4096;
    if (flags & INTERPROCESS && live >= limit)
        return OUT_OF_MEMORY;
    uint32_t index = MAX_EVENTS;
    lock_state();
    for (uint32_t i = 0; i < MAX_EVENTS && index == MAX_EVENTS; i++)
        if (!state->events[i].serial)
            index = i;
    for (uint32_t i = 0; i < MAX_EVENTS && index == MAX_EVENTS; i++)
        if (!alive(state->events[i].owner))
            index = i;
    if (index < MAX_EVENTS)
        state->events[index] =
            (struct event){.serial = state->next_serial++, .flags = flags, .owner = me};
    unlock_state();
    if (index == MAX_EVENTS)
        return OUT_OF_MEMORY;
    CUevent event = calloc(1, sizeof *event);
    *event =
        (struct local_event){.serial = state->events[index].serial, .index = index, .flags = flags};
    if (flags & INTERPROCESS)
        live++;
    count(EVENTS_MADE);
    *out = event;
    return SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event)
{
    ENTER;
    if (!event)
        return INVALID_HANDLE;
    lock_state();
    if (event->imported)
        drop_import(true, event->index, event->serial);
    else {
        uint32_t open = open_imports(true, event->index, event->serial);
        if (open)
            violation("process %d destroys an event that is open %u times elsewhere", me.pid, open);
        state->events[event->index].serial = 0;
        if (event->flags & INTERPROCESS)
            live--;
        count(EVENTS_GONE);
    }
    unlock_state();
    free(event);
    return SUCCESS;
}

static bool gone(CUevent event)
{
    if (state->events[event->index].serial == event->serial)
        return false;
    violation("process %d uses an event that its owner has destroyed", me.pid);
    return true;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    ENTER;
    if (!event || gone(event))
        return INVALID_HANDLE;
    lock_state();
    struct event *entry = &state->events[event->index];
    uint64_t value = ++entry->recorded;
    entry->recorder = me;
    unlock_state();
    return enqueue(stream, (struct op){.kind = RECORD,
                                       .index = event->index,
                                       .serial = event->serial,
                                       .value = value});
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
    (void)flags;
    return cuEventRecord(event, stream);
}

static bool complete(CUevent event, uint64_t value)
{
    struct event *entry = &state->events[event->index];
    return __atomic_load_n(&entry->completed, __ATOMIC_SEQ_CST) >= value || !alive(entry->recorder);
}

CUresult cuEventQuery(CUevent event)
{
    ENTER;
    if (!event || gone(event))
        return INVALID_HANDLE;
    idle(NULL);
    return complete(event, state->events[event->index].recorded) ? SUCCESS : NOT_READY;
}

CUresult cuEventSynchronize(CUevent event)
{
    ENTER;
    if (!event || gone(event))
        return INVALID_HANDLE;
    uint64_t value = state->events[event->index].recorded;
    struct timespec pause = {0, 200000};
    while (!complete(event, value))
        nanosleep(&pause, NULL);
    return SUCCESS;
}

CUresult cuEventElapsedTime_v2(float *ms, CUevent a, CUevent b)
{
    ENTER;
    if (!a || !b || ((a->flags | b->flags) & DISABLE_TIMING))
        return INVALID_HANDLE;
    *ms = 0.5f;
    return SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    ENTER;
    (void)flags;
    if (!event || gone(event))
        return INVALID_HANDLE;
    uint64_t value = state->events[event->index].recorded;
    return enqueue(
        stream,
        (struct op){.kind = WAIT, .index = event->index, .serial = event->serial, .value = value});
}

CUresult cuIpcGetEventHandle(struct event_handle *handle, CUevent event)
{
    ENTER;
    if (!event || event->imported || !(event->flags & INTERPROCESS))
        return INVALID_HANDLE;
    memset(handle, 0, sizeof *handle);
    *handle = (struct event_handle){
        .magic = MAGIC + 1, .index = event->index, .serial = event->serial, .owner = me};
    return SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent *out, struct event_handle handle)
{
    ENTER;
    if (!current())
        return INVALID_CONTEXT;
    if (handle.magic != MAGIC + 1 || handle.index >= MAX_EVENTS)
        return INVALID_VALUE;
    if (handle.owner.pid == me.pid)
        return INVALID_CONTEXT;
    lock_state();
    struct event *entry = &state->events[handle.index];
    /* The driver does not refuse the event of a process that has ended. */
    CUresult result = entry->serial == handle.serial ? SUCCESS : MAP_FAILED_;
    if (!result)
        result = add_import(true, handle.index, handle.serial);
    unsigned flags = entry->flags;
    unlock_state();
    if (result)
        return result;
    *out = calloc(1, sizeof **out);
    **out = (struct local_event){
        .serial = handle.serial, .index = handle.index, .flags = flags, .imported = true};
    return SUCCESS;
}
