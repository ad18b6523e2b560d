/* The plan of a message: what the survey has found, for the one pass that writes.
 *
 *   bytes      the pickle, as far as it is made of atoms and the opcodes of containers
 *   entries    each object that a codec writes, with its place in memory and its position in `bytes`
 *   seen       each object whose identity matters, with its number in the pickle's memo; and the
 *              memory of the entries
 *   packs      the blocks for small private memory for which the message has no room (packs.c)
 *
 * The plan holds every object in `seen`: another thread may drop one from its list, and an object
 * that is made next may have its address.
 */
#include <string.h>

#include "memory/memory.h"
#include "messages/messages.h"
#include "messages/plan.h"

enum { UNNUMBERED = UINT32_MAX, MEMORY = UINT32_MAX - 1 };

/* The key of a block that has a number; an object has an even address. */
static const void *block_key(const mpshm_block *block)
{
    return (const char *)block->data + 1;
}

static int is_block(const void *key)
{
    return ((uintptr_t)key & 1) != 0;
}

void mp_begin_plan(mp_plan *plan)
{
    mp_begin_writing(&plan->bytes);
    plan->entries = plan->few_entries;
    plan->seen = plan->few_seen;
    plan->entry_count = plan->seen_count = plan->numbers = 0;
    plan->entry_room = MP_FEW_ENTRIES;
    plan->seen_room = MP_FEW_SEEN;
    plan->slots = NULL;
    plan->packs = NULL;
    plan->shared = NULL;
}

void mp_end_plan(mp_plan *plan)
{
    while (plan->packs != NULL)
        mp_plan_drop_pack(plan);
    while (plan->entry_count > 0)
        mp_plan_drop_entry(plan);
    while (plan->shared != NULL)
        mp_plan_drop_shared(plan);
    for (uint32_t i = 0; i < plan->seen_count; i++)
        if (plan->seen[i].number != MEMORY && !is_block(plan->seen[i].key))
            Py_DECREF((PyObject *)plan->seen[i].key);
    if (plan->entries != plan->few_entries)
        PyMem_Free(plan->entries);
    if (plan->seen != plan->few_seen)
        PyMem_Free(plan->seen);
    PyMem_Free(plan->slots);
    mp_end_writing(&plan->bytes);
}

/* ---- entries ---- */

mp_entry *mp_plan_entry(mp_plan *plan, PyObject *object, const mp_codec *codec)
{
    if (plan->entry_count == plan->entry_room) {
        uint32_t room = 4 * plan->entry_room;
        mp_entry *more = PyMem_Malloc(room * sizeof(*more));
        if (more == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        memcpy(more, plan->entries, plan->entry_count * sizeof(*more));
        if (plan->entries != plan->few_entries)
            PyMem_Free(plan->entries);
        plan->entries = more;
        plan->entry_room = room;
    }
    mp_entry *entry = &plan->entries[plan->entry_count++];
    *entry = (mp_entry){
        .object = object, .codec = codec, .at = plan->bytes.used, .shared = plan->shared};
    return entry;
}

void mp_plan_drop_entry(mp_plan *plan)
{
    mp_entry *entry = &plan->entries[--plan->entry_count];

    mp_release_place(&entry->place);
    Py_CLEAR(entry->held);
}

/* ---- what objects share ---- */

void mp_plan_shared(mp_plan *plan, mp_entry *entry)
{
    mp_shared *known = plan->shared;

    while (known != NULL && known != entry->shared)
        known = known->before;
    if (known != NULL)
        return;
    entry->is_first = 1;
    entry->shared->before = plan->shared;
    entry->shared->number = plan->numbers++;
    plan->shared = entry->shared;
}

void mp_plan_drop_shared(mp_plan *plan)
{
    mp_shared *last = plan->shared;

    plan->shared = last->before;
    plan->numbers--;
    last->drop(last);
}

int mp_plan_finish(mp_plan *plan)
{
    int rc = 0;

    for (mp_shared *shared = plan->shared; rc == 0 && shared != NULL; shared = shared->before)
        rc = shared->finish(shared);
    return rc;
}

/* ---- packs ---- */

int mp_plan_pack(mp_plan *plan, mp_entry *entry, size_t room)
{
    enum { LARGEST = 1 << 24 };
    size_t most = room != 0 ? room : LARGEST;
    mp_pack *pack = plan->packs;

    if (pack == NULL || pack->nbytes + entry->nbytes > most) {
        pack = PyMem_Malloc(sizeof(*pack));
        if (pack == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        *pack = (mp_pack){.before = plan->packs, .number = plan->numbers++, .room = room};
        plan->packs = pack;
    }
    entry->pack = pack;
    entry->offset = (uint32_t)pack->nbytes;
    pack->nbytes += entry->nbytes;
    return 1;
}

void mp_plan_drop_pack(mp_plan *plan)
{
    mp_pack *pack = plan->packs;

    plan->packs = pack->before;
    plan->numbers--;
    if (pack->block.data != NULL)
        mpshm_block_release(&pack->block); /* its in-flight reference keeps it */
    PyMem_Free(pack);
}

/* ---- what was seen ---- */

/* The slot of a key: it has the position of the key plus 1, or 0 for a key that was not seen. */
static uint32_t *slot_of(const mp_plan *plan, const void *key)
{
    uint32_t at = (uint32_t)(((uintptr_t)key >> 4) * 0x9E3779B97F4A7C15u >> 32);

    for (at &= plan->mask; plan->slots[at] != 0; at = (at + 1) & plan->mask)
        if (plan->seen[plan->slots[at] - 1].key == key)
            break;
    return &plan->slots[at];
}

static int more_seen(mp_plan *plan)
{
    uint32_t room = 4 * plan->seen_room, slots = 2 * room;
    mp_seen *seen = PyMem_Malloc(room * sizeof(*seen));
    uint32_t *fresh = PyMem_Calloc(slots, sizeof(*fresh));

    if (seen == NULL || fresh == NULL) {
        PyMem_Free(seen);
        PyMem_Free(fresh);
        PyErr_NoMemory();
        return -1;
    }
    memcpy(seen, plan->seen, plan->seen_count * sizeof(*seen));
    if (plan->seen != plan->few_seen)
        PyMem_Free(plan->seen);
    PyMem_Free(plan->slots);
    plan->seen = seen;
    plan->seen_room = room;
    plan->slots = fresh;
    plan->mask = slots - 1;
    for (uint32_t i = 0; i < plan->seen_count; i++)
        *slot_of(plan, seen[i].key) = i + 1;
    return 0;
}

/* 1 for a new key, 0 for one that was seen; -1 with an exception. */
static int see(mp_plan *plan, const void *key, uint32_t number, uint32_t *at)
{
    uint32_t *slot = NULL, i = 0;

    if (plan->seen_count == plan->seen_room && more_seen(plan) < 0)
        return -1;
    if (plan->slots == NULL) {
        while (i < plan->seen_count && plan->seen[i].key != key)
            i++;
    } else {
        slot = slot_of(plan, key);
        i = *slot != 0 ? *slot - 1 : plan->seen_count;
    }
    *at = i;
    if (i < plan->seen_count)
        return 0;
    if (slot != NULL)
        *slot = i + 1;
    plan->seen[plan->seen_count++] = (mp_seen){key, number};
    return 1;
}

int mp_plan_object(mp_plan *plan, PyObject *object, uint32_t *at)
{
    int is_new = see(plan, object, UNNUMBERED, at);

    if (is_new == 1)
        Py_INCREF(object);
    return is_new;
}

int mp_plan_memory(mp_plan *plan, const void *memory)
{
    uint32_t at;
    return see(plan, memory, MEMORY, &at);
}

int mp_plan_block(mp_plan *plan, mp_entry *entry)
{
    const mpshm_block *block = &entry->place.block;
    uint32_t at;
    int rc = see(plan, block_key(block), plan->numbers, &at);

    if (rc == 1) {
        entry->is_first = 1;
        entry->number = plan->numbers++;
        return mp_plan_memory(plan, block->data);
    }
    entry->number = plan->seen[at].number;
    return rc == 0 ? 1 : -1;
}

void mp_plan_number(mp_plan *plan, uint32_t at)
{
    plan->seen[at].number = plan->numbers++;
}

int mp_plan_repeats(const mp_plan *plan, uint32_t at, uint32_t *number)
{
    *number = plan->seen[at].number;
    return *number < MEMORY;
}
