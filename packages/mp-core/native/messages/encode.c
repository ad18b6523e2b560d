/* Encode a message without a pickler, which costs a few microseconds, and more than all else of a
 * small message.
 *
 *   atoms (numbers, text, None, ...)               written here
 *   functions, classes                             their names are written by names.c
 *   plain objects                                  class and __dict__, see objects.c
 *   times, enums, named tuples, deques, slots ...  what their reduction calls, see objects.c
 *   objects that a number or text makes            a call of their class, as of NumPy's scalars
 *   tuples, lists and dicts of them                written here, also if one occurs twice
 *   sets of atoms, and of tuples of them           likewise
 *   arrays and large bytes in these                written by their codecs
 *   all else                                       ForkingPickler
 *
 *   PROTO 4 | items, each before the opcode of its container | STOP
 *   PROTO 5 | likewise, with names | STOP
 *
 * Any unpickler reads the pickle. A program that registers a reducer of its own for a type gets its
 * reducer; one that changes ForkingPickler otherwise gets all objects but those of codecs and
 * atoms. One that replaces its loads, perhaps by an unpickler that finds only some names, is given
 * the pickles with names, which the protocol tells before anything is received.
 *
 * Note [A survey and a pass that writes]
 *   To begin a message and give up would copy large arrays twice. So a survey walks over the object
 *   first. It changes nothing: it writes atoms and opcodes into a plan (plan.c), and asks the codec
 *   of each other object where its memory is. If an object needs a pickler, the plan is dropped.
 *   Otherwise one pass copies the bytes of the plan and lets the codecs write their objects in
 *   between.
 *
 *   The survey of an object may execute Python, and to copy an array may release the GIL, so
 *   another thread may change a list, dict or array meanwhile. The pass does not look at containers
 *   again. A codec looks at its object again, and leaves one that has changed to the pickler, as
 *   the survey does with a dict of another size. If a message is not written to its end, its
 *   handles are discarded.
 *
 *   A container, array, or text of more than 64 bytes gets a number in the pickle's memo, and is
 *   written once; so is a shorter one after the first 64. Two arrays over one block are left to a
 *   pickler: they have one Block when they arrive. So is a tuple that contains itself.
 *
 *   Many small private objects go into packs (packs.c). A message that does need a pickler leaves
 *   its objects of codecs to the same survey and pass from the 17th on (object_table.c).
 *
 * Note [Asking ahead]
 *   A survey that gives up has written in vain. So before a long list, and when it has met many
 *   objects, it asks some of the others whether they need a pickler. Without this, a dict of a
 *   hundred thousand numbers and a DataFrame would take twice as long as by a pickler alone. */
#include <string.h>

#include "memory/memory.h"
#include "messages/messages.h"
#include "messages/objects.h"
#include "messages/plan.h"

enum {
    DEPTH = 6,      /* of containers and plain objects */
    MANY = 256,     /* objects, and */
    LONG = 1000,    /* items, after which Note [Asking ahead] asks */
    CROWD = 16,     /* with more objects of codecs, small ones may go into a pack */
    REPEATED = 64,  /* bytes of a text that is written as often as it occurs, */
    FEW_TEXTS = 64, /* and how many of them */
    UNKNOWN = -1,
};

static int shares_nothing; /* see only_atoms() */

/* ---- the bytes ---- */

static inline char *room_for(mp_writer *to, size_t nbytes)
{
    if (to->room - to->used < nbytes)
        return mp_writer_room(to, nbytes);
    to->used += nbytes;
    return to->data + to->used - nbytes;
}

/* 1 when written, 0 for an object that needs a pickler, -1 with an exception; so are all below. */
static inline int put(mp_writer *to, const void *bytes, size_t nbytes)
{
    char *at = room_for(to, nbytes);

    if (at == NULL)
        return -1;
    memcpy(at, bytes, nbytes);
    return 1;
}

static int put_opcode(mp_writer *to, char opcode)
{
    return put(to, &opcode, 1);
}

/* LONG1 of as many times eight bytes as it takes. */
static int put_long(mp_writer *to, PyObject *object)
{
    enum { WORD = 8, MOST = 31 * WORD };
    PyObject *rest = Py_NewRef(object), *shift = PyLong_FromLong(8 * WORD);
    char data[2 + MOST + WORD] = "\x8a", *at = data + 2;
    int overflow = 1;

    while (overflow != 0 && shift != NULL && at < data + 2 + MOST) {
        long long last = PyLong_AsLongLongAndOverflow(rest, &overflow);
        uint64_t word = overflow ? PyLong_AsUnsignedLongLongMask(rest) : (uint64_t)last;
        at = mp_put_little_endian(at, word, WORD);
        PyObject *next = overflow ? PyNumber_Rshift(rest, shift) : Py_NewRef(rest);
        Py_DECREF(rest);
        rest = next;
        if (rest == NULL)
            break;
    }
    Py_XDECREF(rest);
    Py_XDECREF(shift);
    data[1] = (char)(at - data - 2);
    return PyErr_Occurred() ? -1 : overflow ? 0 : put(to, data, (size_t)(at - data));
}

static int put_int(mp_writer *to, PyObject *object)
{
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    char data[MP_NUMBER];

    return overflow ? put_long(to, object)
                    : put(to, data, (size_t)(mp_put_number(data, value) - data));
}

enum { FLOAT = 9 };

/* BINFLOAT: eight bytes, the highest first. */
static inline char *append_float(char *at, PyObject *object)
{
    double value = PyFloat_AsDouble(object);
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    *at = 'G';
    for (int i = 0; i < 8; i++)
        at[1 + i] = (char)(bits >> 8 * (7 - i));
    return at + FLOAT;
}

static int put_float(mp_writer *to, PyObject *object)
{
    char data[FLOAT];

    return put(to, data, (size_t)(append_float(data, object) - data));
}

static inline PyObject *item_of(PyObject *object, int is_tuple, Py_ssize_t i)
{
    return is_tuple ? PyTuple_GetItem(object, i) : PyList_GetItem(object, i);
}

/* The numbers from that item on, of which long lists are mostly made, up to `end`: the item after
 * them, or -1. No code of Python runs meanwhile. */
static Py_ssize_t put_numbers(mp_writer *to, PyObject *object, int is_tuple, Py_ssize_t i,
                              Py_ssize_t end)
{
    enum { SOME = 32 };
    int is_number = 1;

    while (is_number && i < end) {
        Py_ssize_t some = end - i < SOME ? end - i : SOME, last = i + some;
        PyObject *item = item_of(object, is_tuple, i);
        if (!PyLong_CheckExact(item) && !PyFloat_CheckExact(item))
            return i;
        char *at = room_for(to, (size_t)some * MP_NUMBER), *first = at;
        if (at == NULL)
            return -1;
        while (is_number && i < last) {
            int overflow = 0;
            item = item_of(object, is_tuple, i);
            if (PyLong_CheckExact(item)) {
                long long value = PyLong_AsLongLongAndOverflow(item, &overflow);
                if (!overflow)
                    at = mp_put_number(at, value);
            } else if (PyFloat_CheckExact(item)) {
                at = append_float(at, item);
            } else {
                is_number = 0;
            }
            is_number = is_number && !overflow;
            i += is_number;
        }
        to->used -= (size_t)some * MP_NUMBER - (size_t)(at - first);
    }
    return i;
}

/* The length in one byte after the first opcode, or in four after the second; and the bytes. */
static int put_sized(mp_writer *to, const char opcodes[2], const char *data, Py_ssize_t nbytes)
{
    if (data == NULL || nbytes > MP_LONGEST_UTF8) {
        PyErr_Clear(); /* half of a surrogate pair has no UTF-8: pickle has a way to write it */
        return 0;
    }
    int width = nbytes > UINT8_MAX ? 4 : 1;
    char *at = room_for(to, (size_t)(1 + width + nbytes));
    if (at == NULL)
        return -1;
    *at++ = opcodes[width == 4];
    at = mp_put_little_endian(at, (uint64_t)nbytes, width);
    memcpy(at, data, (size_t)nbytes);
    return 1;
}

static int put_atom(mp_writer *to, PyObject *object)
{
    if (PyLong_CheckExact(object))
        return put_int(to, object);
    if (PyFloat_CheckExact(object))
        return put_float(to, object);
    if (object == Py_None)
        return put_opcode(to, 'N');
    if (object == Py_True || object == Py_False)
        return put_opcode(to, object == Py_True ? '\x88' : '\x89');
    Py_ssize_t n = 0;
    if (PyUnicode_CheckExact(object)) {
        const char *text = PyUnicode_AsUTF8AndSize(object, &n);
        return put_sized(to, "\x8cX", text, n);
    }
    if (PyBytes_CheckExact(object))
        return put_sized(to, "CB", PyBytes_AsString(object), PyBytes_Size(object));
    return 0;
}

/* ---- the survey ---- */

static int look_at(mp_survey *s, PyObject *object, int depth);

/* MEMOIZE the object that was written last. */
static int memoize(mp_survey *s, uint32_t at)
{
    mp_plan_number(&s->plan, at);
    return put_opcode(&s->plan.bytes, '\x94');
}

/* BINGET or LONG_BINGET of an object that was written before. */
static int put_repeated(mp_survey *s, uint32_t at)
{
    uint32_t number;

    if (!mp_plan_repeats(&s->plan, at, &number))
        return 0;
    mp_writer *to = &s->plan.bytes;
    char *at_number = room_for(to, MP_MEMO_GET);
    if (at_number == NULL)
        return -1;
    to->used = (size_t)(mp_put_memo_get(at_number, number) - to->data);
    return 1;
}

/* The items of a tuple; or those of a list, with APPENDS and MARK between its parts, so that a
 * reader needs no second list of all of them. */
static int look_at_items(mp_survey *s, PyObject *object, int is_tuple, int depth)
{
    Py_ssize_t i = 0, end = LONG;

    for (;;) {
        Py_ssize_t n = is_tuple ? PyTuple_Size(object) : PyList_Size(object);
        i = put_numbers(&s->plan.bytes, object, is_tuple, i, is_tuple || n < end ? n : end);
        if (i < 0 || i >= n)
            return i < 0 ? -1 : 1;
        if (!is_tuple && i == end) {
            end += LONG;
            if (put(&s->plan.bytes, "e(", 2) < 0)
                return -1;
            continue;
        }
        PyObject *item = Py_NewRef(item_of(object, is_tuple, i++));
        int rc = look_at(s, item, depth);
        Py_DECREF(item);
        if (rc != 1)
            return rc;
    }
}

static int look_at_tuple(mp_survey *s, PyObject *object, uint32_t at, int depth)
{
    static const char close[] = {')', '\x85', '\x86', '\x87'}; /* EMPTY_TUPLE, TUPLE1, ... */
    mp_writer *to = &s->plan.bytes;
    Py_ssize_t n = PyTuple_Size(object);
    int rc = n > 3 ? put_opcode(to, '(') : 1;

    if (rc == 1)
        rc = look_at_items(s, object, 1, depth);
    if (rc == 1)
        rc = put_opcode(to, n > 3 ? 't' : close[n]);
    return rc == 1 ? memoize(s, at) : rc;
}

/* EMPTY_LIST, MEMOIZE, MARK, items, APPENDS */
static int look_at_list(mp_survey *s, PyObject *object, uint32_t at, int depth)
{
    mp_plan_number(&s->plan, at);
    int rc = put(&s->plan.bytes, "]\x94(", 3);

    if (rc == 1)
        rc = look_at_items(s, object, 0, depth);
    return rc == 1 ? put_opcode(&s->plan.bytes, 'e') : rc;
}

/* The names of attributes are the same in each plain object of a class. */
static int look_at_key(mp_survey *s, PyObject *key)
{
    uint32_t at;

    if (!mp_is_atom(key) || mp_is_large(key))
        return 0;
    if (s->plain == NULL || !PyUnicode_CheckExact(key))
        return look_at(s, key, 0);
    int rc = mp_plan_object(&s->plan, key, &at);
    if (rc == 1)
        rc = put_atom(&s->plan.bytes, key);
    else if (rc == 0)
        return put_repeated(s, at);
    return rc == 1 ? memoize(s, at) : rc;
}

/* EMPTY_DICT, MEMOIZE, MARK, keys and values, SETITEMS */
static int look_at_dict(mp_survey *s, PyObject *object, uint32_t at, int depth)
{
    Py_ssize_t size = PyDict_Size(object), position = 0;
    PyObject *key, *value;

    mp_plan_number(&s->plan, at);
    int rc = put(&s->plan.bytes, "}\x94(", 3);
    while (rc == 1 && PyDict_Next(object, &position, &key, &value)) {
        Py_INCREF(value);
        rc = look_at_key(s, key);
        if (rc == 1)
            rc = look_at(s, value, depth);
        Py_DECREF(value);
        if (rc == 1 && PyDict_Size(object) != size)
            rc = 0;
    }
    return rc == 1 ? put_opcode(&s->plan.bytes, 'u') : rc;
}

/* Large bytes go through a block: ForkingPickler does that where this file does not. */
static int is_light(PyObject *object)
{
    return mp_is_atom(object) && !mp_is_large(object);
}

/* EMPTY_SET, MEMOIZE, MARK, items, ADDITEMS; or MARK, items, FROZENSET, MEMOIZE. The receiver asks
 * each item for its hash, so only those are written whose hash runs no code of the program. */
static int look_at_set(mp_survey *s, PyObject *object, uint32_t at, int depth)
{
    enum { TUPLES = 2 };
    int is_frozen = Py_TYPE(object) == &PyFrozenSet_Type, rc;
    PyObject *items = PySequence_Tuple(object); /* as they are at one moment */

    if (items == NULL)
        return -1;
    if (!is_frozen)
        mp_plan_number(&s->plan, at);
    rc = is_frozen ? put_opcode(&s->plan.bytes, '(') : put(&s->plan.bytes, "\x8f\x94(", 3);
    for (Py_ssize_t i = 0, n = PyTuple_Size(items); rc == 1; i++) {
        i = put_numbers(&s->plan.bytes, items, 1, i, n);
        if (i < 0 || i >= n) {
            rc = i < 0 ? -1 : 1;
            break;
        }
        PyObject *item = PyTuple_GetItem(items, i);
        rc = mp_is_made_of(is_light, item, TUPLES, PY_SSIZE_T_MAX) ? look_at(s, item, depth) : 0;
    }
    Py_DECREF(items);
    if (rc == 1)
        rc = put_opcode(&s->plan.bytes, is_frozen ? '\x91' : '\x90');
    return rc == 1 && is_frozen ? memoize(s, at) : rc;
}

/* The first of the codecs of a type, from this one on, that stands for the type's reducer; or
 * NULL. */
static const mp_codec *current_codec(mp_survey *s, const mp_codec *codec)
{
    while (codec != NULL && codec != s->current && !mp_codec_is_current(codec))
        codec = mp_codec_after(codec);
    if (codec != NULL)
        s->current = codec;
    return codec;
}

/* Ask the codec, which writes the object later, and then those after it. */
static int look_by_codec(mp_survey *s, PyObject *object, const mp_codec *codec)
{
    mp_entry *entry = NULL;
    int rc = 0;

    while (rc == 0 && codec != NULL) {
        if (entry != NULL)
            mp_plan_drop_entry(&s->plan);
        entry = mp_plan_entry(&s->plan, object, codec);
        if (entry == NULL)
            return -1;
        entry->may_pack = s->is_crowded || s->plan.entry_count > CROWD;
        entry->may_view = s->may_view != 0;
        rc = codec->survey(entry);
        if (rc == 0)
            codec = codec == &mp_large_codec ? NULL : current_codec(s, mp_codec_after(codec));
    }
    if (rc == 1 && entry->shared != NULL && entry->codec->is_out_of_band)
        mp_plan_shared(&s->plan, entry);
    if (rc == 1 && entry->is_view)
        rc = mp_plan_block(&s->plan, entry);
    else if (rc == 1 && entry->memory != NULL)
        rc = mp_plan_memory(&s->plan, entry->memory);
    if (rc == 1 && entry->in_pack)
        rc = mp_plan_pack(&s->plan, entry, s->pack_room);
    return rc;
}

/* The codec that writes the object, or NULL. */
static const mp_codec *codec_of(mp_survey *s, PyObject *object)
{
    if (mp_is_large(object))
        return s->may_share ? &mp_large_codec : NULL;
    return s->may_share ? current_codec(s, mp_codec_of(object)) : NULL;
}

static int needs_pickler(mp_survey *s, PyObject *object, int depth, int *room);

/* Whether one of the first items of a list, tuple or dict, or the last, needs a pickler: many are
 * alike. Python code may run in between. */
static int some_need_pickler(mp_survey *s, PyObject *object, int depth, int *room)
{
    enum { SOME = 16 };
    int is_dict = PyDict_CheckExact(object), is_tuple = PyTuple_CheckExact(object), needs = 0;
    PyObject *item;
    Py_ssize_t n = PyObject_Size(object), at = 0;

    for (int i = 0; needs == 0 && i < SOME && i < n && PyObject_Size(object) == n; i++) {
        if (!is_dict)
            item = item_of(object, is_tuple, i < SOME - 1 ? i : n - 1);
        else if (!PyDict_Next(object, &at, NULL, &item))
            break;
        Py_INCREF(item);
        needs = needs_pickler(s, item, depth, room);
        Py_DECREF(item);
    }
    return needs;
}

/* 1 if the object, or what is in it, certainly needs a pickler; at most `room` objects are
 * asked. */
static int needs_pickler(mp_survey *s, PyObject *object, int depth, int *room)
{
    if (mp_is_atom(object) || depth == 0 || --*room < 0)
        return 0;
    if (PyList_CheckExact(object) || PyTuple_CheckExact(object) || PyDict_CheckExact(object))
        return some_need_pickler(s, object, depth - 1, room);
    if (Py_TYPE(object) == &PySet_Type || Py_TYPE(object) == &PyFrozenSet_Type ||
        codec_of(s, object) != NULL || mp_has_name(object) || mp_constructor_of(object) != NULL)
        return 0;
    int way = mp_way_of(object);
    PyObject *state = way == MP_PLAIN ? mp_state_of(object) : NULL;
    int needs = way == MP_BY_PICKLER;
    if (state != NULL)
        needs = some_need_pickler(s, state, depth - 1, room);
    Py_XDECREF(state);
    return PyErr_Occurred() ? -1 : needs;
}

/* 1 if the message needs a pickler, see Note [Asking ahead]: it is asked once. */
static int message_needs_pickler(mp_survey *s)
{
    PyObject *root = s->root;
    int room = 64;

    s->root = NULL;
    return root == NULL ? 0 : needs_pickler(s, root, DEPTH, &room);
}

/* 1 if a list has few texts many times, as a column of categories has, which pickle writes
 * faster. */
static int repeats_texts(PyObject *object)
{
    enum { SOME = 16 };
    Py_ssize_t n = PyList_CheckExact(object) ? PyList_Size(object) : 0;
    int repeats = 0;

    for (Py_ssize_t i = 1; !repeats && i < SOME && i < n; i++) {
        PyObject *item = PyList_GetItem(object, i);
        for (Py_ssize_t k = 0; PyUnicode_CheckExact(item) && !repeats && k < i; k++)
            repeats = PyList_GetItem(object, k) == item;
    }
    return repeats;
}

static int look_at_container(mp_survey *s, PyObject *object, uint32_t at, int depth)
{
    int was_crowded = s->is_crowded, rc = 0;
    Py_ssize_t n = PyObject_Size(object);

    if (n > LONG)
        rc = repeats_texts(object) ? 1 : message_needs_pickler(s);
    if (rc != 0)
        return rc < 0 ? -1 : 0;
    if (n > CROWD)
        s->is_crowded = 1;
    rc = PyTuple_CheckExact(object)  ? look_at_tuple(s, object, at, depth)
         : PyDict_CheckExact(object) ? look_at_dict(s, object, at, depth)
         : PyList_CheckExact(object) ? look_at_list(s, object, at, depth)
                                     : look_at_set(s, object, at, depth);
    s->is_crowded = was_crowded;
    return rc;
}

/* Whether names may be written: a program may have changed ForkingPickler to see all objects. */
static int may_name(mp_survey *s)
{
    if (s->is_standard == UNKNOWN)
        s->is_standard = shares_nothing ? 0 : mp_pickler_is_standard();
    return s->is_standard == 1;
}

/* A function or class; it is in the plan as the object at that position. */
static int look_at_name(mp_survey *s, PyObject *object, uint32_t at)
{
    int rc = mp_put_name(&s->plan.bytes, object);

    if (rc != 1)
        return rc;
    s->has_names = 1;
    return memoize(s, at);
}

/* The same, or its number if it was written before. */
static int look_at_known_name(mp_survey *s, PyObject *object)
{
    uint32_t at;
    int rc = mp_plan_object(&s->plan, object, &at);

    return rc == 1 ? look_at_name(s, object, at) : rc == 0 ? put_repeated(s, at) : rc;
}

static int look_at_class_of(mp_survey *s, PyObject *object)
{
    return look_at_known_name(s, (PyObject *)Py_TYPE(object));
}

/* class, one or two atoms, TUPLE1 or TUPLE2, REDUCE */
static int look_at_call(mp_survey *s, PyObject *object, PyObject *(*args_of)(PyObject *),
                        uint32_t at)
{
    PyObject *reducer = mp_reducer_of(Py_TYPE(object));
    PyObject *args = reducer == NULL && !PyErr_Occurred() ? args_of(object) : NULL;

    if (args == NULL)
        return PyErr_Occurred() ? -1 : 0;
    Py_ssize_t n = PyTuple_Size(args);
    int rc = mp_is_made_of(is_light, args, 1, 2) && n > 0 ? look_at_class_of(s, object) : 0;
    for (Py_ssize_t i = 0; rc == 1 && i < n; i++)
        rc = put_atom(&s->plan.bytes, PyTuple_GetItem(args, i));
    Py_DECREF(args);
    if (rc == 1)
        rc = put(&s->plan.bytes, n == 1 ? "\x85R" : "\x86R", 2);
    return rc == 1 ? memoize(s, at) : rc;
}

/* class, EMPTY_TUPLE, NEWOBJ, MEMOIZE, dict, BUILD */
static int look_at_plain(mp_survey *s, PyObject *object, uint32_t at, int depth)
{
    PyObject *state = mp_state_of(object);

    if (state == NULL)
        return PyErr_Occurred() ? -1 : 0;
    s->plain = Py_TYPE(object);
    int rc = look_at_class_of(s, object);
    if (rc == 1)
        rc = put(&s->plan.bytes, ")\x81", 2);
    if (rc == 1)
        rc = memoize(s, at);
    if (rc == 1 && PyDict_Size(state) > 0) {
        rc = look_at(s, state, depth);
        if (rc == 1)
            rc = put_opcode(&s->plan.bytes, 'b');
    }
    Py_DECREF(state);
    return rc;
}

/* MARK, items, APPENDS; or MARK, keys and values, SETITEMS */
static int look_at_given(mp_survey *s, PyObject *list, int are_pairs, int depth)
{
    Py_ssize_t n = list == NULL ? 0 : PyList_Size(list);
    int rc = n > 0 ? put_opcode(&s->plan.bytes, '(') : 1;

    for (Py_ssize_t i = 0; rc == 1 && i < n; i++) {
        PyObject *item = PyList_GetItem(list, i);
        if (are_pairs) {
            rc = PyTuple_CheckExact(item) && PyTuple_Size(item) == 2
                     ? look_at_key(s, PyTuple_GetItem(item, 0))
                     : 0;
            item = rc == 1 ? PyTuple_GetItem(item, 1) : NULL;
        }
        if (rc == 1)
            rc = look_at(s, item, depth);
    }
    return rc == 1 && n > 0 ? put_opcode(&s->plan.bytes, are_pairs ? 'u' : 'e') : rc;
}

/* A function that Cython has compiled, whose type each package has for itself. */
static int is_of_cython(PyObject *function)
{
    PyObject *name = PyType_GetName(Py_TYPE(function));
    int is =
        name != NULL && PyUnicode_CompareWithASCIIString(name, "cython_function_or_method") == 0;

    Py_XDECREF(name);
    return is;
}

/* class or function, arguments, REDUCE or NEWOBJ, MEMOIZE; what the object gets; state, BUILD */
static int look_at_reduced(mp_survey *s, PyObject *object, uint32_t at, int depth)
{
    mp_reduction made;
    int rc = mp_reduce(object, &made);

    if (rc == 1) {
        s->reduced = Py_TYPE(object);
        rc =
            mp_has_name(made.function) || PyType_Check(made.function) || is_of_cython(made.function)
                ? look_at_known_name(s, made.function)
                : 0;
    }
    if (rc == 1)
        rc = look_at(s, made.args, depth);
    if (rc == 1)
        rc = put_opcode(&s->plan.bytes, made.makes_new ? '\x81' : 'R');
    if (rc == 1)
        rc = memoize(s, at);
    if (rc == 1)
        rc = look_at_given(s, made.items, 0, depth - 1);
    if (rc == 1)
        rc = look_at_given(s, made.pairs, 1, depth - 1);
    if (rc == 1 && made.state != NULL) {
        rc = look_at(s, made.state, depth);
        if (rc == 1)
            rc = put_opcode(&s->plan.bytes, 'b');
    }
    mp_end_reduction(&made);
    return rc;
}

/* An object that is no container, text, or object of a codec. */
static int look_at_other(mp_survey *s, PyObject *object, uint32_t at, int depth)
{
    if (mp_has_name(object))
        return look_at_name(s, object, at);
    PyObject *(*args_of)(PyObject *) = mp_constructor_of(object);
    if (args_of != NULL)
        return look_at_call(s, object, args_of, at);
    if (depth == 0)
        return 0;
    PyTypeObject *kind = Py_TYPE(object);
    int way = kind == s->plain ? MP_PLAIN : kind == s->reduced ? MP_REDUCED : mp_way_of(object);
    return way == MP_PLAIN     ? look_at_plain(s, object, at, depth)
           : way == MP_REDUCED ? look_at_reduced(s, object, at, depth)
                               : way;
}

static int look_at(mp_survey *s, PyObject *object, int depth)
{
    Py_ssize_t n = PyUnicode_CheckExact(object) ? PyUnicode_GetLength(object)
                   : PyBytes_CheckExact(object) ? PyBytes_Size(object)
                                                : 0;
    int may_repeat = n <= REPEATED && (n == 0 || s->texts++ < FEW_TEXTS);
    if (may_repeat && mp_is_atom(object))
        return put_atom(&s->plan.bytes, object);
    int needs = s->objects++ == MANY ? message_needs_pickler(s) : 0;
    if (needs != 0)
        return needs < 0 ? -1 : 0;
    int is_tuple = PyTuple_CheckExact(object);
    if (is_tuple && PyTuple_Size(object) == 0) /* one object, wherever it occurs */
        return depth > 0 ? put_opcode(&s->plan.bytes, ')') : 0;
    int is_container = is_tuple || PyList_CheckExact(object) || PyDict_CheckExact(object) ||
                       Py_TYPE(object) == &PySet_Type || Py_TYPE(object) == &PyFrozenSet_Type;
    int is_text = n > 0 && n <= MP_LONGEST;
    const mp_codec *codec = is_container || is_text ? NULL : codec_of(s, object);
    int is_other = !is_container && !is_text && codec == NULL;
    if (is_container && depth == 0)
        return 0;
    if (is_other && !may_name(s))
        return PyErr_Occurred() ? -1 : 0;
    uint32_t at;
    int rc = mp_plan_object(&s->plan, object, &at);
    if (rc != 1)
        return rc == 0 ? put_repeated(s, at) : rc;
    if (is_container)
        return look_at_container(s, object, at, depth - 1);
    if (is_other)
        return look_at_other(s, object, at, depth);
    rc = is_text ? put_atom(&s->plan.bytes, object) : look_by_codec(s, object, codec);
    return rc == 1 ? memoize(s, at) : rc;
}

void mp_begin_survey(mp_survey *s, int may_share)
{
    mp_begin_plan(&s->plan);
    s->may_share = may_share;
    s->may_view = 1;
    s->is_crowded = 0;
    s->pack_room = 0;
    s->objects = s->texts = 0;
    s->current = NULL;
    s->plain = s->reduced = NULL;
    s->is_standard = UNKNOWN;
    s->root = NULL;
    s->has_names = 0;
}

/* ---- the pass that writes ---- */

static PyObject *bytes_of(const mp_writer *from)
{
    return PyBytes_FromStringAndSize(from->data, (Py_ssize_t)from->used);
}

/* The bytes of the plan with the pickles of the entries. NULL, perhaps without an exception. */
static PyObject *written(const mp_plan *plan)
{
    mp_writer to;
    size_t from = 0;
    int rc = 1;

    if (plan->entry_count == 0)
        return bytes_of(&plan->bytes);
    mp_begin_writing(&to);
    for (uint32_t i = 0; rc == 1 && i < plan->entry_count; i++) {
        const mp_entry *entry = &plan->entries[i];
        rc = put(&to, plan->bytes.data + from, entry->at - from);
        from = entry->at;
        if (rc == 1)
            rc = entry->codec->write(entry, &to);
    }
    if (rc == 1)
        rc = put(&to, plan->bytes.data + from, plan->bytes.used - from);
    PyObject *data = rc == 1 ? bytes_of(&to) : NULL;
    mp_end_writing(&to);
    return data;
}

/* Write a message that is one object of a codec, as most are. Nothing comes after the object, so it
 * is written behind the bytes of the plan. */
static int put_alone(mp_survey *s, PyObject *object, const mp_codec *codec)
{
    int rc = look_by_codec(s, object, codec);

    if (rc == 1)
        rc = s->plan.entries[0].codec->write(&s->plan.entries[0], &s->plan.bytes);
    return rc == 1 ? put_opcode(&s->plan.bytes, '.') : rc;
}

/* The message may have another reference to what keeps the memory, which pickle's memo finds. */
static int is_kept_elsewhere(const mp_entry *entry)
{
    enum { OF_OBJECT_AND_PLACE = 2 };

    return entry->place.keeper != NULL && Py_REFCNT(entry->place.keeper) != OF_OBJECT_AND_PLACE;
}

int mp_write_one(mp_survey *s, PyObject *object, int only_out_of_band)
{
    mp_plan *plan = &s->plan;
    mp_pack *pack = plan->packs;
    mp_shared *shared = plan->shared;
    size_t used = plan->bytes.used, packed = pack != NULL ? pack->nbytes : 0;
    uint32_t entries = plan->entry_count;
    Py_ssize_t handles = mp_message_handles();
    const mp_codec *codec = codec_of(s, object);

    while (only_out_of_band && codec != NULL && !codec->is_out_of_band)
        codec = current_codec(s, mp_codec_after(codec));
    if (codec == NULL)
        return 0;
    int rc = look_by_codec(s, object, codec);
    const mp_entry *entry = &plan->entries[plan->entry_count - 1];
    if (rc == 1)
        rc = is_kept_elsewhere(entry) ? 0 : entry->codec->write(entry, &plan->bytes);
    if (plan->entry_count > entries)
        mp_plan_drop_entry(plan);
    if (rc == 1)
        return 1;
    plan->bytes.used = used;
    if (plan->shared != shared)
        mp_plan_drop_shared(plan);
    if (plan->packs != pack)
        mp_plan_drop_pack(plan);
    else if (pack != NULL)
        pack->nbytes = packed;
    mp_message_take_back(handles);
    return rc;
}

/* The pickle of a message that is an atom, which needs no plan. */
static PyObject *atom(PyObject *object)
{
    mp_writer to;
    PyObject *data = NULL;

    mp_begin_writing(&to);
    int rc = put(&to, "\x80\x04", 2);
    if (rc == 1)
        rc = put_atom(&to, object);
    if (rc == 1 && put_opcode(&to, '.') == 1)
        data = bytes_of(&to);
    mp_end_writing(&to);
    return data;
}

/* The same for any other object that needs no ForkingPickler. */
static PyObject *planned(PyObject *object, int may_share, PyObject **handles)
{
    mp_message message;
    mp_survey s;
    PyObject *data = NULL;

    mp_message_enter(&message); /* what it says of sharing holds until the end */
    mp_begin_survey(&s, may_share && !mp_goes_by_value());
    s.root = object;
    mp_writer *bytes = &s.plan.bytes;
    int rc = put(bytes, "\x80\x04", 2);
    const mp_codec *codec = rc == 1 ? codec_of(&s, object) : NULL;
    if (codec != NULL) {
        if (put_alone(&s, object, codec) == 1)
            data = bytes_of(bytes);
    } else if (rc == 1 && look_at(&s, object, DEPTH) == 1 && put_opcode(bytes, '.') == 1) {
        if (s.has_names)
            bytes->data[1] = MP_WITH_NAMES;
        data = written(&s.plan);
    }
    if (data != NULL && mp_plan_finish(&s.plan) < 0)
        Py_CLEAR(data);
    *handles = mp_message_leave(&message);
    if (data == NULL) {
        mp_drop_handles(*handles);
        *handles = NULL;
    }
    mp_end_plan(&s.plan);
    return data;
}

PyObject *mp_encode(PyObject *object, int may_share, PyObject **handles)
{
    *handles = NULL;
    if (mp_set_up_pickling() < 0)
        return NULL;
    PyObject *data = mp_is_atom(object) ? atom(object) : NULL;
    if (data == NULL && !PyErr_Occurred())
        data = planned(object, may_share && !shares_nothing, handles);
    return data;
}

/* What this thread has surveyed in vain, while ForkingPickler.dumps is called for it. */
static _Thread_local PyObject *in_vain;

PyObject *mp_forking_pickle(PyObject *object, int by_value, int is_surveyed)
{
    /* Looked up in each call, since packages replace it. */
    PyObject *dumps =
        mp_set_up_pickling() == 0 ? PyObject_GetAttr(mp_forking_pickler, mp_dumps_name) : NULL;
    PyObject *args = dumps == NULL ? NULL : PyTuple_Pack(1, object), *before = in_vain;

    in_vain = is_surveyed ? object : NULL;
    PyObject *message = args == NULL ? NULL : mp_pickled(by_value, dumps, args);
    in_vain = before;
    Py_XDECREF(dumps);
    Py_XDECREF(args);
    return message;
}

/* ---- functions of the module ---- */

static PyObject *encoded_or_none(PyObject *object, int may_share)
{
    PyObject *handles, *data = mp_encode(object, may_share, &handles);

    mp_message_adopt(handles);
    if (data == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return data;
}

/* plain_pickle(object) -> bytes, or None for an object whose pickle needs a ForkingPickler; it is asked
 * first by ForkingPickler.dumps */
PyObject *mp_py_plain_pickle(PyObject *module, PyObject *object)
{
    if (object == in_vain) {
        in_vain = NULL;
        Py_RETURN_NONE;
    }
    return encoded_or_none(object, 1);
}

/* plain_data(object) -> bytes, or None for an object whose pickle needs a ForkingPickler or a handle */
PyObject *mp_py_plain_data(PyObject *module, PyObject *object)
{
    return encoded_or_none(object, 0);
}

/* only_atoms(on): leave all messages that may have memory to ForkingPickler.dumps, which the
 * program may have replaced to look at them */
PyObject *mp_py_only_atoms(PyObject *module, PyObject *on)
{
    shares_nothing = on == Py_True;
    Py_RETURN_NONE;
}
