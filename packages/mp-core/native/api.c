/* The capsule mp_core.sharing.backend.c_api: the table of C functions described in mp_core.h. */
#include "memory/memory.h"
#include "messages/messages.h"
#include "messages/objects.h"
#include "messages/plan.h"
#include "timeline/timeline.h"

static void device_memory(uint64_t began, uint64_t nbytes, int is_sent)
{
    mp_timeline_span(began, 0, MP_PICKLE, is_sent ? MP_INTO : 0, nbytes, 0);
}

static const mp_core_api api = {
    .version = MP_CORE_API_VERSION,
    .strategy = &mp_strategy,
    .block_type = &mp_block_type,
    .block_allocate = mpshm_block_allocate,
    .block_write = mpshm_block_write,
    .block_release = mpshm_block_release,
    .heap_allocate = mpshm_heap_allocate,
    .heap_free = mpshm_heap_free,
    .heap_resize = mpshm_heap_resize,
    .set_fork_private = mpshm_set_fork_private,
    .block_find = mp_block_find,
    .heap_block_at = mp_heap_block_at,
    .wrap = mp_wrap,
    .goes_by_value = mp_goes_by_value,
    .message_has_room = mp_message_has_room,
    .make_handle = mp_make_handle,
    .count_copied = mp_count_copied,
    .receive = mp_receive,
    .receive_block = mp_receive_block,
    .size_of_copy = mp_size_of_copy,
    .read_copy = mp_read_copy,
    .refuse = mp_refuse,
    .register_codec = mp_register_codec,
    .register_constructor = mp_register_constructor,
    .writer_room = mp_writer_room,
    .write_pack = mp_write_pack,
    .read_pack = mp_read_pack,
    .write_block = mp_write_block,
    .read_block = mp_read_block,
    .memo_add = mp_memo_add,
    .memo_take = mp_memo_take,
    .lease_sign = mp_lease_sign,
    .lease_owner_lives = mp_lease_owner_lives,
    .lease_end = mp_lease_end,
    .block_others = mpshm_block_others,
    .block_revoke = mpshm_block_revoke,
    .release_place = mp_release_place,
    .make_global = mp_make_global,
    .copy_begins = mp_timeline_begin,
    .copy_ends = mp_timeline_copied,
    .device_memory = device_memory,
};

PyObject *mp_api_capsule(void)
{
    return PyCapsule_New((void *)&api, MP_CORE_API, NULL);
}
