/* The engine's functions on platforms without shared memory.
 *
 * The engine depends on features that only Linux has: sealed memfds, sockets that keep message
 * boundaries and carry descriptors, locks that belong to an open file description (F_OFD_SETLK),
 * holes in shared mappings, /proc. Until another platform has a tested substitute for each of
 * them, every call fails with -ENOSYS. Calls that release, free or list have nothing to do and
 * succeed. */
#include <errno.h>
#include <string.h>

#include "mpshm.h"

int mpshm_block_allocate(int strategy, uint64_t nbytes, int flags, mpshm_block *out)
{
    (void)strategy, (void)nbytes, (void)flags, (void)out;
    return -ENOSYS;
}

int mpshm_block_send(const mpshm_block *block, int flags, unsigned char *handle)
{
    (void)block, (void)flags, (void)handle;
    return -ENOSYS;
}

int mpshm_handle_info(const unsigned char *handle, size_t len, uint64_t *nbytes)
{
    (void)handle, (void)len, (void)nbytes;
    return -ENOSYS;
}

int mpshm_handle_alive(const unsigned char *handle, size_t len)
{
    (void)handle, (void)len;
    return 0;
}

int mpshm_block_read(const unsigned char *handle, size_t len, void *data, uint64_t nbytes)
{
    (void)handle, (void)len, (void)data, (void)nbytes;
    return -ENOSYS;
}

int mpshm_block_discard(const unsigned char *handle, size_t len)
{
    (void)handle, (void)len;
    return -ENOSYS;
}

int mpshm_block_receive(const unsigned char *handle, size_t len, int flags, mpshm_block *out)
{
    (void)handle, (void)len, (void)flags, (void)out;
    return -ENOSYS;
}

void mpshm_block_release(mpshm_block *block)
{
    (void)block;
}

int mpshm_block_strategy(const mpshm_block *block)
{
    (void)block;
    return -ENOSYS;
}

int mpshm_block_others(const mpshm_block *block)
{
    (void)block;
    return -ENOSYS;
}

void mpshm_block_revoke(const mpshm_block *block)
{
    (void)block;
}

int mpshm_block_find(const void *address, int flags, mpshm_block *out)
{
    (void)address, (void)flags, (void)out;
    return -ENOENT;
}

int mpshm_channel_create(int duplex, mpshm_channel **ends)
{
    (void)duplex, (void)ends;
    return -ENOSYS;
}

int mpshm_channel_open(int object, int side, mpshm_channel **out)
{
    (void)object, (void)side, (void)out;
    return -ENOSYS;
}

int mpshm_channel_open_other(mpshm_channel *end, mpshm_channel **out)
{
    (void)end, (void)out;
    return -ENOSYS;
}

void mpshm_channel_close(mpshm_channel *end)
{
    (void)end;
}

int mpshm_channel_object(mpshm_channel *end)
{
    (void)end;
    return -ENOSYS;
}

int mpshm_channel_unread(int object, mpshm_unread *out)
{
    (void)object, (void)out;
    return -EOPNOTSUPP;
}

uint64_t mpshm_channel_count(void)
{
    return 0;
}

const mpshm_taking *mpshm_notes(void)
{
    return NULL;
}

void mpshm_taken_end(uint64_t number)
{
    (void)number;
}

int mpshm_channel_send(mpshm_channel *end, int fd, const void *data, uint64_t nbytes,
                       int64_t timeout_ns, const mpshm_waiter *waiter)
{
    (void)end, (void)fd, (void)data, (void)nbytes, (void)timeout_ns, (void)waiter;
    return -ENOSYS;
}

int mpshm_channel_receive(mpshm_channel *end, int fd, int64_t timeout_ns,
                          const mpshm_waiter *waiter)
{
    (void)end, (void)fd, (void)timeout_ns, (void)waiter;
    return -ENOSYS;
}

int mpshm_channel_take(mpshm_channel *end, int fd, const mpshm_waiter *waiter)
{
    (void)end, (void)fd, (void)waiter;
    return -ENOSYS;
}

int mpshm_channel_next(mpshm_channel *end, int fd, const mpshm_waiter *waiter)
{
    (void)end, (void)fd, (void)waiter;
    return -ENOSYS;
}

int mpshm_channel_wait_any(mpshm_awaited_channel *channels, int n, const int *fds, int m,
                           unsigned char *readable, int64_t timeout_ns, const mpshm_waiter *waiter)
{
    (void)channels, (void)n, (void)fds, (void)m, (void)readable, (void)timeout_ns, (void)waiter;
    return -ENOSYS;
}

int mpshm_channel_claim(mpshm_channel *end, uint64_t number)
{
    (void)end, (void)number;
    return 0;
}

uint64_t mpshm_channel_take_back(mpshm_channel *end, uint64_t until)
{
    (void)end;
    return until;
}

uint64_t mpshm_channel_claimed(mpshm_channel *end)
{
    (void)end;
    return 0;
}

void mpshm_channel_forget_object(mpshm_channel *end)
{
    (void)end;
}

void mpshm_channel_wake_senders(mpshm_channel *end)
{
    (void)end;
}

int mpshm_channel_poll(mpshm_channel *end, int fd, int64_t timeout_ns, const mpshm_waiter *waiter)
{
    (void)end, (void)fd, (void)timeout_ns, (void)waiter;
    return -ENOSYS;
}

int mpshm_channel_stop_reading(mpshm_channel *end, int fd, const mpshm_waiter *waiter)
{
    (void)end, (void)fd, (void)waiter;
    return -ENOSYS;
}

int mpshm_channel_selectable(mpshm_channel *end, int fd, const mpshm_waiter *waiter)
{
    (void)end, (void)fd, (void)waiter;
    return -ENOSYS;
}

int mpshm_block_open(const mpshm_block *block, uint64_t *offset)
{
    (void)block, (void)offset;
    return -ENOSYS;
}

void mpshm_get_stats(mpshm_stats *out)
{
    memset(out, 0, sizeof(*out));
}

void mpshm_empty_cache(void)
{
}

int mpshm_heap_allocate(int strategy, uint64_t nbytes, int flags, void **out)
{
    (void)strategy, (void)nbytes, (void)flags, (void)out;
    return -ENOSYS;
}

int mpshm_heap_free(void *address)
{
    (void)address;
    return 0;
}

int mpshm_heap_resize(void *address, uint64_t nbytes, uint64_t *before)
{
    (void)address, (void)nbytes, (void)before;
    return -ENOENT;
}

int mpshm_block_at(const void *address, int flags, mpshm_block *out)
{
    (void)address, (void)flags, (void)out;
    return -ENOENT;
}

void mpshm_set_fork_private(int (*decide)(const void *data, uint64_t nbytes))
{
    (void)decide;
}

int mpshm_list(mpshm_info *entries, int room)
{
    (void)entries, (void)room;
    return 0;
}

int mpshm_own_session(unsigned char *id)
{
    (void)id;
    return -ENOSYS;
}

int mpshm_set_own_session(const unsigned char *id)
{
    (void)id;
    return -ENOSYS;
}

int mpshm_attach(void)
{
    return -ENOSYS;
}

int mpshm_open_for_child(int fds[2])
{
    fds[0] = fds[1] = -1;
    return -ENOSYS;
}

int mpshm_attach_with(const unsigned char *id, const int fds[2])
{
    (void)id, (void)fds;
    return -ENOSYS;
}

int mpshm_set_manager(const char *path)
{
    (void)path;
    return 0;
}

int mpshm_manager_run(int listener, int control, const char *folder)
{
    (void)listener, (void)control, (void)folder;
    return -ENOSYS;
}

int mpshm_list_processes(mpshm_session_info *sessions, int session_room, int *session_count,
                         mpshm_process_info *processes, int process_room, int *process_count)
{
    (void)sessions, (void)session_room, (void)processes, (void)process_room;
    *session_count = *process_count = 0;
    return 0;
}

void mpshm_set_message_timeout(uint64_t timeout_ns)
{
    (void)timeout_ns;
}

void mpshm_set_site(const char *text)
{
    (void)text;
}

const char *mpshm_refused_version(void)
{
    return "";
}
