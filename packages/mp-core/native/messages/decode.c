/* Decode a message: the pickles that encode.c writes, without an unpickler.
 *
 * Every other pickle goes to Python's unpickler, even if it starts the same way. The unpickler also
 * says what is wrong with a damaged message. But a handle can be received once: after the first, an
 * error is final here, and the handles that were not received are discarded as by loads(): damage,
 * or a function that this process cannot import.
 *
 * A pickle is a program for a stack and a memo. */
#include <string.h>

#include "memory/memory.h"
#include "messages/messages.h"
#include "messages/objects.h"
#include "messages/plan.h"
#include "timeline/timeline.h"

enum { PROTO = 2, DEEPEST = 8, FEW = 32 };

/* Objects in a row, each of which it holds. */
typedef struct {
    PyObject **items;
    size_t count, room;
    PyObject *few[FEW];
} row;

typedef struct {
    row stack, memo;
    int mark_count, has_names;
    mp_usual usual;
    size_t marks[DEEPEST];
} machine;

static void begin_row(row *r)
{
    r->items = r->few;
    r->count = 0;
    r->room = FEW;
}

static void end_row(row *r)
{
    while (r->count > 0)
        Py_DECREF(r->items[--r->count]);
    if (r->items != r->few)
        PyMem_Free(r->items);
}

static int more_room(row *r)
{
    PyObject **more = PyMem_Malloc(4 * r->room * sizeof(*more));

    if (more == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(more, r->items, r->count * sizeof(*more));
    if (r->items != r->few)
        PyMem_Free(r->items);
    r->items = more;
    r->room *= 4;
    return 0;
}

/* Take over the reference to the object, which may be NULL: 0 or -1. */
static inline int append(row *r, PyObject *object)
{
    if (object == NULL)
        return -1;
    if (r->count == r->room && more_room(r) < 0) {
        Py_DECREF(object);
        return -1;
    }
    r->items[r->count++] = object;
    return 0;
}

static PyObject *take_float(mp_reader *from)
{
    const unsigned char *at = mp_take(from, 8);
    uint64_t bits = 0;
    double value;

    for (int i = 0; at != NULL && i < 8; i++)
        bits = bits << 8 | at[i];
    memcpy(&value, &bits, sizeof(value));
    return at ? PyFloat_FromDouble(value) : NULL;
}

/* No longer ones are written here. */
static PyObject *take_sized(mp_reader *from, int width, PyObject *(*make)(const char *, Py_ssize_t))
{
    const unsigned char *at = mp_take(from, (size_t)width);
    uint64_t n = at ? mp_little_endian(at, width) : 0;

    at = at == NULL || n > MP_LONGEST_UTF8 ? NULL : mp_take(from, n);
    return at ? make((const char *)at, (Py_ssize_t)n) : NULL;
}

/* The object of an opcode that makes one; NULL, perhaps without an exception. */
static PyObject *made(mp_reader *from, unsigned char opcode)
{
    switch (opcode) {
    case 'G':
        return take_float(from);
    case 'N':
        return Py_NewRef(Py_None);
    case 0x88:
        return Py_NewRef(Py_True);
    case 0x89:
        return Py_NewRef(Py_False);
    case 0x8c:
        return take_sized(from, 1, PyUnicode_FromStringAndSize);
    case 'X':
        return take_sized(from, 4, PyUnicode_FromStringAndSize);
    case 'C':
        return take_sized(from, 1, PyBytes_FromStringAndSize);
    case 'B':
        return take_sized(from, 4, PyBytes_FromStringAndSize);
    case ')':
        return PyTuple_New(0);
    case ']':
        return PyList_New(0);
    case '}':
        return PyDict_New();
    case 0x8f:
        return PySet_New(NULL);
    default:
        return NULL;
    }
}

static int push_mark(machine *m)
{
    if (m->mark_count == DEEPEST)
        return -1;
    m->marks[m->mark_count++] = m->stack.count;
    return 0;
}

/* No opcode reaches below it. */
static size_t last_mark(const machine *m)
{
    return m->mark_count == 0 ? 0 : m->marks[m->mark_count - 1];
}

/* Replace the last `n` objects by a tuple of them. */
static int close_tuple(machine *m, size_t n)
{
    row *stack = &m->stack;
    PyObject *tuple = stack->count < last_mark(m) + n ? NULL : PyTuple_New((Py_ssize_t)n);

    if (tuple == NULL)
        return -1;
    stack->count -= n;
    for (size_t i = 0; i < n; i++)
        PyTuple_SetItem(tuple, (Py_ssize_t)i, stack->items[stack->count + i]);
    return append(stack, tuple);
}

static int close_marked_tuple(machine *m)
{
    if (m->mark_count == 0)
        return -1;
    size_t first = m->marks[--m->mark_count];
    return close_tuple(m, m->stack.count - first);
}

/* Give the object what came after the last mark, as an unpickler does: by extend(), or item by
 * item. */
static int give(PyObject *into, PyObject **items, size_t n, int are_pairs)
{
    int rc = 0;

    for (size_t i = 0; are_pairs && rc == 0 && i < n; i += 2)
        rc = PyObject_SetItem(into, items[i], items[i + 1]);
    if (are_pairs)
        return rc;
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; list != NULL && i < n; i++)
        PyList_SetItem(list, (Py_ssize_t)i, Py_NewRef(items[i]));
    PyObject *none = list ? PyObject_CallMethod(into, "extend", "(O)", list) : NULL;
    Py_XDECREF(list);
    Py_XDECREF(none);
    return none == NULL ? -1 : 0;
}

/* Put the objects after the last mark into the list, dict or set before it, or the object that has
 * been made by a call. */
static int close_container(machine *m, mp_reader *from, unsigned char opcode)
{
    row *stack = &m->stack;
    size_t first = m->mark_count == 0 ? 0 : m->marks[--m->mark_count], n = stack->count - first;
    PyObject *into = first <= last_mark(m) ? NULL : stack->items[first - 1];
    int rc = 0, is_dict = opcode == 'u', is_list = opcode == 'e';
    int is_exact = into != NULL && (is_dict   ? PyDict_CheckExact(into)
                                    : is_list ? PyList_CheckExact(into)
                                              : Py_TYPE(into) == &PySet_Type);

    if (into == NULL || (is_dict && n % 2 != 0) ||
        (!is_exact && (!m->has_names || !(is_dict || is_list))))
        return -1;
    if (!is_exact) {
        rc = give(into, stack->items + first, n, is_dict);
        if (rc < 0)
            from->received = 1;
    }
    for (size_t i = first; is_exact && rc == 0 && i < stack->count; i += is_dict ? 2 : 1)
        rc = is_dict   ? PyDict_SetItem(into, stack->items[i], stack->items[i + 1])
             : is_list ? PyList_Append(into, stack->items[i])
                       : PySet_Add(into, stack->items[i]);
    while (stack->count > first)
        Py_DECREF(stack->items[--stack->count]);
    return rc;
}

/* Replace the objects after the last mark by a frozenset of them. */
static int close_frozenset(machine *m)
{
    row *stack = &m->stack;

    if (close_marked_tuple(m) < 0)
        return -1;
    PyObject *items = stack->items[--stack->count], *set = PyFrozenSet_New(items);
    Py_DECREF(items);
    return append(stack, set);
}

/* Replace the last two objects by what `make` makes of them. If it raises, Python code may have run
 * that must not run again. */
static int make_of_two(machine *m, mp_reader *from, PyObject *(*make)(PyObject *, PyObject *))
{
    row *stack = &m->stack;

    if (stack->count < last_mark(m) + 2)
        return -1;
    PyObject *second = stack->items[--stack->count], *first = stack->items[--stack->count];
    PyObject *made = make(first, second);
    Py_DECREF(first);
    Py_DECREF(second);
    if (made == NULL && PyErr_Occurred())
        from->received = 1;
    return append(stack, made);
}

static PyObject *called(PyObject *function, PyObject *args)
{
    return PyTuple_CheckExact(args) ? PyObject_CallObject(function, args) : NULL;
}

/* Give the object before it the state that is the last object. */
static int build(machine *m, mp_reader *from)
{
    row *stack = &m->stack;

    if (stack->count < last_mark(m) + 2)
        return -1;
    PyObject *state = stack->items[--stack->count];
    int rc = mp_set_state(stack->items[stack->count - 1], state, &m->usual);
    Py_DECREF(state);
    if (rc < 0)
        from->received = 1;
    return rc == 1 ? 0 : -1;
}

/* Give the last object the next number in the memo. */
static int memoize(machine *m)
{
    const row *stack = &m->stack;

    return stack->count == last_mark(m)
               ? -1
               : append(&m->memo, Py_NewRef(stack->items[stack->count - 1]));
}

PyObject *mp_memo_add(mp_reader *from, PyObject *object)
{
    return append(from->memo, object) == 0 ? object : NULL;
}

PyObject *mp_memo_take(mp_reader *from)
{
    const row *memo = from->memo;
    const unsigned char *opcode = mp_take(from, 1);
    int width = opcode == NULL ? 0 : *opcode == 'h' ? 1 : *opcode == 'j' ? 4 : 0;
    const unsigned char *at = width == 0 ? NULL : mp_take(from, (size_t)width);
    uint64_t number = at ? mp_little_endian(at, width) : UINT64_MAX;

    return number < memo->count ? memo->items[number] : NULL;
}

/* LONG1 of two words or more. */
static PyObject *take_long(mp_reader *from)
{
    enum { WORD = 8 };
    const unsigned char *head = mp_take(from, 2), *at = head ? mp_take(from, head[1]) : NULL;
    size_t n = at == NULL || head[1] % WORD != 0 ? 0 : head[1] / WORD;
    PyObject *shift = n > 0 ? PyLong_FromLong(8 * WORD) : NULL, *value = NULL;

    for (size_t i = n; shift != NULL && i-- > 0;) {
        uint64_t word = mp_little_endian(at + WORD * i, WORD);
        if (i == n - 1) {
            value = PyLong_FromLongLong((int64_t)word);
            continue;
        }
        PyObject *high = value ? PyNumber_Lshift(value, shift) : NULL;
        PyObject *low = PyLong_FromUnsignedLongLong(word);
        Py_XDECREF(value);
        value = high && low ? PyNumber_Or(high, low) : NULL;
        Py_XDECREF(high);
        Py_XDECREF(low);
    }
    Py_XDECREF(shift);
    return value;
}

/* 1 if a name comes: two texts and STACK_GLOBAL. */
static int is_name_next(const mp_reader *from)
{
    enum { TEXTS = 2, HEAD = 2 };
    const unsigned char *at = from->at;

    for (int i = 0; i < TEXTS; i++) {
        if (from->end - at < HEAD || *at != 0x8c || from->end - at < HEAD + at[1])
            return 0;
        at += HEAD + at[1];
    }
    return at < from->end && *at == 0x93;
}

/* A long number, or the object of a codec, whose pickle begins with a name. */
static PyObject *read_object(mp_reader *from)
{
    int64_t value;

    if (*from->at != 0x8c)
        return mp_take_number(from, &value) ? PyLong_FromLongLong(value) : take_long(from);
    if (!is_name_next(from))
        return NULL;
    PyObject *object = mp_read_by_codec(from);
    return object != NULL || PyErr_Occurred() ? object : mp_read_large(from);
}

/* An opcode of a pickle with names: 0 or -1; 1 for another opcode. */
static int step_with_names(machine *m, mp_reader *from, unsigned char opcode)
{
    switch (opcode) {
    case 0x93:
        return make_of_two(m, from, mp_find_name);
    case 0x81:
        return make_of_two(m, from, mp_new_object);
    case 'R':
        return make_of_two(m, from, called);
    case 'b':
        return build(m, from);
    default:
        return 1;
    }
}

/* The numbers that come next, of which long lists are mostly made. */
static int take_numbers(machine *m, mp_reader *from)
{
    int64_t value;
    int rc = -1;

    while (mp_take_number(from, &value) &&
           (rc = append(&m->stack, PyLong_FromLongLong(value))) == 0)
        ;
    return rc;
}

static int step(machine *m, mp_reader *from)
{
    unsigned char opcode = *from->at;

    switch (opcode) {
    case 'h':
    case 'j':
        return append(&m->stack, Py_XNewRef(mp_memo_take(from)));
    case 'K':
    case 'M':
    case 'J':
        return take_numbers(m, from);
    case 0x8a:
    case 0x8c: {
        PyObject *object = read_object(from);
        if (object != NULL || PyErr_Occurred())
            return append(&m->stack, object);
        break;
    }
    default:
        break;
    }
    from->at++;
    switch (opcode) {
    case '(':
        return push_mark(m);
    case 't':
        return close_marked_tuple(m);
    case 0x85:
    case 0x86:
    case 0x87:
        return close_tuple(m, opcode - 0x84);
    case 'e':
    case 'u':
    case 0x90:
        return close_container(m, from, opcode);
    case 0x91:
        return close_frozenset(m);
    case 0x94:
        return memoize(m);
    default: {
        int rc = m->has_names ? step_with_names(m, from, opcode) : 1;
        return rc == 1 ? append(&m->stack, made(from, opcode)) : rc;
    }
    }
}

/* The object, or NULL, perhaps with an exception. */
static PyObject *run(mp_reader *from, int has_names)
{
    machine m;
    int rc = 0;

    begin_row(&m.stack);
    begin_row(&m.memo);
    m.mark_count = 0;
    m.has_names = has_names;
    m.usual = (mp_usual){NULL, 0};
    from->memo = &m.memo;
    while (rc == 0 && from->at < from->end && *from->at != '.')
        rc = step(&m, from);
    int complete = rc == 0 && from->at < from->end && m.stack.count == 1 && m.mark_count == 0;
    PyObject *object = complete ? Py_NewRef(m.stack.items[0]) : NULL;
    end_row(&m.stack);
    end_row(&m.memo);
    return object;
}

/* The protocol of a pickle that encode.c may have written, or 0. */
static int protocol_of(const unsigned char *bytes, Py_ssize_t nbytes)
{
    if (nbytes < PROTO + 2 || bytes[0] != 0x80 || bytes[PROTO] == 0x95)
        return 0; /* a pickler writes FRAME first */
    return bytes[1] == MP_WITH_NAMES || bytes[1] == MP_WITHOUT_NAMES ? bytes[1] : 0;
}

/* The object of a pickle, or NULL: without an exception for one that an unpickler may try. With
 * `asked` the program has called ForkingPickler.loads for it. */
static PyObject *read_pickle(const unsigned char *bytes, Py_ssize_t nbytes, int asked)
{
    int protocol = protocol_of(bytes, nbytes), has_names = protocol == MP_WITH_NAMES;

    if (protocol == 0 || (has_names && !asked && mp_unpickler_is_standard() != 1))
        return NULL;
    mp_reader from = {.at = bytes + PROTO, .end = bytes + nbytes};
    PyObject *object = run(&from, has_names);
    if (object == NULL && !from.received)
        PyErr_Clear();
    else if (object == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "the message is damaged: it ends in its middle, or "
                                          "has what no message of this kind has");
    return object;
}

/* The same, of any bytes. */
static PyObject *read_plain(PyObject *data, int asked)
{
    Py_buffer view;

    if (PyBytes_CheckExact(data))
        return read_pickle((const unsigned char *)PyBytes_AsString(data), PyBytes_Size(data),
                           asked);
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) {
        PyErr_Clear(); /* the unpickler says what is wrong */
        return NULL;
    }
    PyObject *object = read_pickle(view.buf, view.len, asked);
    PyBuffer_Release(&view);
    return object;
}

/* The object of a message that is being received. */
static PyObject *received(PyObject *data, PyObject *object)
{
    if (object == NULL)
        object = mp_receiving_failed(data);
    mp_receiving_end();
    return object;
}

PyObject *mp_unpickle_part(PyObject *data)
{
    return mp_set_up_pickling() == 0 ? PyObject_CallFunctionObjArgs(mp_plain_loads, data, NULL)
                                     : NULL;
}

PyObject *mp_decode_part(PyObject *data)
{
    PyObject *object = read_plain(data, 1);

    return object != NULL || PyErr_Occurred() ? object : mp_unpickle_part(data);
}

/* What the program's loads makes of it: looked up in each call, since packages replace it. */
static PyObject *loaded_by_program(PyObject *data)
{
    return PyObject_CallMethodObjArgs(mp_forking_pickler, mp_loads_name, data, NULL);
}

PyObject *mp_decode(PyObject *data)
{
    int is_standard = 0;

    if (PyBytes_CheckExact(data)) {
        mp_receiving_begin();
        PyObject *object = read_plain(data, 0);
        if (object != NULL || PyErr_Occurred())
            return received(data, object);
        /* Our own loads would read it once more; before the first message it is still to be set
         * up. */
        is_standard = mp_unpickle == NULL ? 0 : mp_unpickler_is_standard();
        if (is_standard == 1) {
            uint64_t began = mp_timeline_begin();
            object = received(data, mp_unpickle_part(data));
            mp_timeline_span(began, MP_LEAST_NS, MP_PICKLE, 0, 0, 0);
            return object;
        }
        mp_receiving_end();
    }
    return is_standard < 0 || mp_set_up_pickling() < 0 ? NULL : loaded_by_program(data);
}

/* plain_loads(bytes) -> the object of a pickle that has no handles */
PyObject *mp_py_plain_loads(PyObject *module, PyObject *data)
{
    PyObject *object = read_plain(data, 0);

    if (object != NULL || PyErr_Occurred())
        return object;
    /* A pickle with names is the program's to read, and not one that pickle.dumps has framed. */
    int protocol =
        PyBytes_CheckExact(data)
            ? protocol_of((const unsigned char *)PyBytes_AsString(data), PyBytes_Size(data))
            : 0;
    if (protocol == MP_WITH_NAMES && mp_unpickler_is_standard() != 1)
        return PyErr_Occurred() ? NULL : loaded_by_program(data);
    return mp_unpickle_part(data);
}

/* loads(data, /, **options): replaces pickle.loads in ForkingPickler */
PyObject *mp_py_loads(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    PyObject *object = NULL;
    uint64_t began = mp_timeline_begin();

    mp_receiving_begin();
    if (nargs == 1 && names == NULL) {
        int is_standard = mp_set_up_pickling() == 0 && mp_unpickle == mp_plain_loads;
        object = is_standard ? read_plain(args[0], 1) : NULL;
        if (object == NULL && !PyErr_Occurred())
            object = PyObject_CallFunctionObjArgs(mp_unpickle, args[0], NULL);
    } else {
        PyObject *options = PyDict_New(), *positional = PyTuple_New(nargs);
        int ok = options != NULL && positional != NULL;
        for (Py_ssize_t i = 0; ok && i < nargs; i++)
            ok = PyTuple_SetItem(positional, i, Py_NewRef(args[i])) == 0;
        for (Py_ssize_t i = 0; ok && names != NULL && i < PyTuple_Size(names); i++)
            ok = PyDict_SetItem(options, PyTuple_GetItem(names, i), args[nargs + i]) == 0;
        if (ok)
            object = PyObject_Call(mp_unpickle, positional, options);
        Py_XDECREF(options);
        Py_XDECREF(positional);
    }
    if (nargs > 0)
        object = received(args[0], object);
    else
        mp_receiving_end();
    mp_timeline_span(began, MP_LEAST_NS, MP_PICKLE, 0, 0, 0);
    return object;
}
