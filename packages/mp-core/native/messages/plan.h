/* What is known of a message before it is written: its plan, and the survey that makes it. */
#ifndef MP_PLAN_H
#define MP_PLAN_H
#include "memory/memory.h"

/* ---- writer.c ---- */

void mp_begin_writing(mp_writer *to);
void mp_end_writing(mp_writer *to);
/* Return memory for `nbytes` more; NULL with an exception. */
char *mp_writer_room(mp_writer *to, size_t nbytes);

/* ---- plan.c ---- */

/* An object of a message, which the plan holds, or the memory of one. */
typedef struct {
    const void *key;
    uint32_t number; /* in the memo of the pickle */
} mp_seen;

enum { MP_FEW_ENTRIES = 16, MP_FEW_SEEN = 16 };

typedef struct {
    mp_writer bytes;
    mp_entry *entries;
    mp_seen *seen;
    mp_pack *packs;        /* the last one */
    mp_shared *shared;     /* likewise */
    uint32_t *slots, mask; /* of a hash table of `seen`, NULL as long as there are few */
    uint32_t entry_count, entry_room, seen_count, seen_room, numbers;
    mp_entry few_entries[MP_FEW_ENTRIES];
    mp_seen few_seen[MP_FEW_SEEN];
} mp_plan;

void mp_begin_plan(mp_plan *plan);
/* Give back all that it holds. */
void mp_end_plan(mp_plan *plan);
/* Return a new entry, which belongs at the end of the plan's bytes; NULL with an exception. The
 * plan has to hold the object already. */
mp_entry *mp_plan_entry(mp_plan *plan, PyObject *object, const mp_codec *codec);
/* Take the last entry back, with its place and what it holds; its pack, what it shares and its
 * bytes stay. */
void mp_plan_drop_entry(mp_plan *plan);
/* Find room in a pack for the entry: 1, or -1 with an exception. A pack has `room` bytes, or with 0
 * as many as are found before it is written. */
int mp_plan_pack(mp_plan *plan, mp_entry *entry, size_t room);
/* Give the block of a view its number: 1; 0 if the block is in the message as another object; -1
 * with an exception. */
int mp_plan_block(mp_plan *plan, mp_entry *entry);
/* Number what the entry shares, if it is new. */
void mp_plan_shared(mp_plan *plan, mp_entry *entry);
/* Take the last one back, with its number. */
void mp_plan_drop_shared(mp_plan *plan);
/* Finish all that the objects share: 0, or -1 with an exception. */
int mp_plan_finish(mp_plan *plan);
/* Take the last pack back, with its number. */
void mp_plan_drop_pack(mp_plan *plan);
/* Return 1 and hold an object that is new, 0 for one that was seen, -1 with an exception; `at` is
 * its position. */
int mp_plan_object(mp_plan *plan, PyObject *object, uint32_t *at);
/* Return 1 for memory that is new, 0 for memory that was seen, -1 with an exception. */
int mp_plan_memory(mp_plan *plan, const void *memory);
/* Give the object at that position the next number in the memo. */
void mp_plan_number(mp_plan *plan, uint32_t at);
/* Return 1 if the object at that position has a number, otherwise 0. */
int mp_plan_repeats(const mp_plan *plan, uint32_t at, uint32_t *number);

/* ---- packs.c ---- */

int mp_setup_packs(PyObject *module);
int mp_write_pack(mp_pack *pack, mp_writer *to);
const char *mp_read_pack(mp_reader *from, uint64_t *nbytes);
int mp_write_block(const mp_entry *entry, mp_writer *to);
PyObject *mp_read_block(mp_reader *from);

/* ---- atoms.c ---- */

/* 1 for a number, a text, bytes or None. */
int mp_is_atom(PyObject *object);
/* 1 for a leaf, or a tuple or list of at most `most` such, nested at most `depth` times. */
int mp_is_made_of(int (*leaf)(PyObject *), PyObject *object, int depth, Py_ssize_t most);

/* ---- encode.c ---- */

enum {
    MP_WITHOUT_NAMES = 4, /* the protocol of a pickle without names, */
    MP_WITH_NAMES = 5,    /* and with */
    MP_LONGEST = 4096,    /* text, in characters, or bytes */
    MP_LONGEST_UTF8 = 4 * MP_LONGEST,
};

/* What is known of a message that is being surveyed. */
typedef struct {
    mp_plan plan;
    int may_share;
    int may_view;
    int is_crowded;          /* a container with many items: they may go into a pack */
    size_t pack_room;        /* of each pack, or 0 */
    uint32_t objects, texts; /* those that are no short atoms, and short texts, so far */
    PyObject *root;          /* the message, until it was asked ahead */
    const mp_codec *current; /* the last one of which the reducer is the one it stands for */
    PyTypeObject *plain;     /* the class of the plain object that was seen last, */
    PyTypeObject *reduced;   /* and of the reduced one */
    int is_standard;         /* the pickler, or -1 as long as nobody has asked */
    int has_names;           /* written so far */
} mp_survey;

void mp_begin_survey(mp_survey *s, int may_share);
/* Survey one more object, which occurs once, and write it at once, at the end of the plan's bytes:
 * 1; 0 for one that needs its reducer, and nothing has changed; -1 with an exception. With
 * `only_out_of_band` it asks only the codecs whose objects are always out of band. */
int mp_write_one(mp_survey *s, PyObject *object, int only_out_of_band);

/* Return the pickle of an object that needs no ForkingPickler, and a list of its handles or NULL;
 * otherwise NULL, perhaps with an exception. Without `may_share` it is one that multiprocessing
 * alone would make. */
PyObject *mp_encode(PyObject *object, int may_share, PyObject **handles);
/* Return the Message that ForkingPickler.dumps makes of an object; without a survey of its own if
 * one has found that a pickler is needed. */
PyObject *mp_forking_pickle(PyObject *object, int by_value, int is_surveyed);

#endif
