/* Tables of other libraries by Arrow's C stream, on their way out: their buffers in one memory.
 *
 * Note [A packed stream]
 *   polars and others offer their columns as a stream of chunks (__arrow_c_stream__). Its buffers
 *   are copied into one block, or into bytes if they are few. A layout says where they are. It
 *   consists of numbers of 8 bytes in the byte order of the machine, and texts:
 *
 *     layout   schema, number of chunks, array ...
 *     schema   flags, format, name, metadata, number of children, schema ..., 0 or 1, dictionary
 *     text     bytes with the final zero (0: no text), the bytes, padding to 8
 *     array    length, nulls, offset, number of buffers, (position or a value below 0, bytes) ...,
 *              number of children, array ..., 0 or 1, dictionary
 *
 *   The receiver (arrow_unpack.c) offers them as a stream again. The memory is always a copy for
 *   one receiver, also if it came from a block: a library may write into a column that nobody else
 *   in its process uses (polars does for `series[0] = 1`).
 *
 * Note [Only what the slice has]
 *   A slice of a column refers to the buffers of the whole. Only its own part is sent: offsets are
 *   moved to begin at zero, and the texts of a column of views are gathered if they are less than
 *   half of its buffers. Bits are copied from a byte on, so an array begins up to 7 elements early
 *   and has this number as its offset. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "messages/arrow.h"
#include "messages/messages.h"
#include "messages/plan.h"

typedef struct {
    enum { COPY, REBASE_32, REBASE_64, GATHER } how;
    const char *from;
    int64_t count, at; /* count: bytes, offsets, or views */
    const char *valid; /* GATHER: the bitmap, or NULL; the buffers; where the texts begin */
    const void *const *texts;
    int64_t texts_at;
} piece;

typedef struct {
    mp_writer layout;
    piece *pieces;
    size_t count, room;
    int64_t nbytes; /* of the memory */
} packer;

typedef struct {
    int32_t length;
    char first[4];
    int32_t buffer, offset;
} view;

enum { SHORT_TEXT = 12 }; /* it is in its view */

/* The functions put_...() and add_piece() return 1; 0 for a table that cannot be packed (a type
 * that is unknown, too deep, an array unlike its schema), which is pickled as usual then; -1 with
 * an exception. */

static int put_number(packer *p, int64_t number)
{
    char *at = mp_writer_room(&p->layout, sizeof(number));

    if (at == NULL)
        return -1;
    memcpy(at, &number, sizeof(number));
    return 1;
}

static int put_text(packer *p, const char *text, size_t nbytes)
{
    size_t padded = (nbytes + 1 + 7) & ~(size_t)7;

    if (text == NULL)
        return put_number(p, 0);
    if (put_number(p, (int64_t)nbytes + 1) < 0)
        return -1;
    char *at = mp_writer_room(&p->layout, padded);
    if (at == NULL)
        return -1;
    memset(at + nbytes, 0, padded - nbytes);
    memcpy(at, text, nbytes);
    return 1;
}

static size_t size_of_metadata(const char *metadata)
{
    int32_t pairs, length;
    size_t at = sizeof(pairs);

    if (metadata == NULL)
        return 0;
    memcpy(&pairs, metadata, sizeof(pairs));
    for (int64_t i = 0; i < 2 * (int64_t)pairs; i++) {
        memcpy(&length, metadata + at, sizeof(length));
        at += sizeof(length) + (size_t)length;
    }
    return at;
}

static int put_schema(packer *p, const arrow_schema *s, int depth)
{
    if (depth == ARROW_DEPTH)
        return 0;
    int rc = put_number(p, s->flags);
    if (rc > 0)
        rc = put_text(p, s->format, strlen(s->format));
    if (rc > 0)
        rc = put_text(p, s->name, s->name ? strlen(s->name) : 0);
    if (rc > 0)
        rc = put_text(p, s->metadata, size_of_metadata(s->metadata));
    if (rc > 0)
        rc = put_number(p, s->n_children);
    for (int64_t i = 0; rc > 0 && i < s->n_children; i++)
        rc = put_schema(p, s->children[i], depth + 1);
    if (rc > 0)
        rc = put_number(p, s->dictionary != NULL);
    return rc > 0 && s->dictionary != NULL ? put_schema(p, s->dictionary, depth + 1) : rc;
}

/* Reserve bytes of the memory, and write their position. */
static int put_place(packer *p, int64_t nbytes, int64_t *at)
{
    *at = (p->nbytes + ARROW_ALIGNMENT - 1) & ~(int64_t)(ARROW_ALIGNMENT - 1);
    p->nbytes = *at + nbytes;
    return put_number(p, *at) < 0 || put_number(p, nbytes) < 0 ? -1 : 1;
}

static int add_piece(packer *p, piece added)
{
    if (p->count == p->room) {
        size_t room = p->room ? 2 * p->room : 32;
        piece *more = PyMem_Realloc(p->pieces, room * sizeof(*more));
        if (more == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        p->pieces = more;
        p->room = room;
    }
    p->pieces[p->count++] = added;
    return 1;
}

/* A buffer as it is; an empty one has a place as well, since not every reader takes a NULL. */
static int put_buffer(packer *p, const void *from, int64_t nbytes)
{
    piece added = {.how = COPY, .from = from, .count = nbytes};

    if (put_place(p, nbytes, &added.at) < 0)
        return -1;
    return nbytes > 0 ? add_piece(p, added) : 1;
}

static int put_no_buffer(packer *p)
{
    return put_number(p, ARROW_NONE) < 0 || put_number(p, 0) < 0 ? -1 : 1;
}

static int64_t offset_at(const char *offsets, int64_t i, int is_long)
{
    int64_t number = 0;
    int32_t short_number = 0;

    if (offsets != NULL && is_long)
        memcpy(&number, offsets + i * 8, 8);
    else if (offsets != NULL)
        memcpy(&short_number, offsets + i * 4, 4);
    return is_long ? number : short_number;
}

/* The `count` + 1 offsets, moved to begin at zero. Without any there are no elements. */
static int put_offsets(packer *p, const char *offsets, int64_t count, int is_long)
{
    static const int64_t none = 0;
    piece added = {.how = is_long ? REBASE_64 : REBASE_32,
                   .from = offsets ? offsets : (const char *)&none,
                   .count = count + 1};

    if (put_place(p, added.count * (is_long ? 8 : 4), &added.at) < 0)
        return -1;
    return add_piece(p, added);
}

static int is_valid(const char *bitmap, int64_t i)
{
    return bitmap == NULL || (bitmap[i / 8] >> (i % 8) & 1);
}

/* The number of buffers and each of them, for `count` views: the bitmap first. */
static int put_views(packer *p, const arrow_array *a, const char *valid, const char *views,
                     int64_t count)
{
    int64_t texts = a->n_buffers - 3, all = 0, used = 0;
    const int64_t *sizes = texts > 0 ? a->buffers[a->n_buffers - 1] : NULL;

    for (int64_t i = 0; i < texts; i++)
        all += sizes[i];
    for (int64_t i = 0; i < count && texts > 0; i++) {
        view v;
        memcpy(&v, views + i * (int64_t)sizeof(v), sizeof(v));
        if (v.length > SHORT_TEXT && is_valid(valid, i))
            used += v.length;
    }
    int gather = texts > 0 && used < all / 2 && used < INT32_MAX;
    int64_t sent = gather ? 1 : texts < 0 ? 0 : texts;
    if (put_number(p, sent + 3) < 0 ||
        (valid ? put_buffer(p, valid, (count + 7) / 8) : put_no_buffer(p)) < 0)
        return -1;
    piece added = {.how = gather ? GATHER : COPY,
                   .from = views,
                   .count = gather ? count : count * (int64_t)sizeof(view),
                   .valid = valid,
                   .texts = a->buffers + 2};
    int rc = put_place(p, count * (int64_t)sizeof(view), &added.at);
    if (rc > 0 && gather)
        rc = put_place(p, used, &added.texts_at);
    if (rc > 0 && count > 0)
        rc = add_piece(p, added);
    for (int64_t i = 0; rc > 0 && !gather && i < texts; i++)
        rc = put_buffer(p, a->buffers[2 + i], sizes[i]);
    if (rc > 0)
        rc = put_number(p, ARROW_SIZES);
    return rc > 0 ? put_number(p, 0) : rc;
}

/* The bytes of an element of a type whose elements have one size, or 0. */
static int64_t width_of(const char *format)
{
    static const struct {
        const char *format;
        int width;
    } widths[] = {{"c", 1},   {"C", 1},   {"s", 2},   {"S", 2},   {"e", 2},   {"i", 4},
                  {"I", 4},   {"f", 4},   {"l", 8},   {"L", 8},   {"g", 8},   {"tdD", 4},
                  {"tdm", 8}, {"tts", 4}, {"ttm", 4}, {"ttu", 8}, {"ttn", 8}, {"tDs", 8},
                  {"tDm", 8}, {"tDu", 8}, {"tDn", 8}, {"tiM", 4}, {"tiD", 8}, {"tin", 16}};

    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
        if (strcmp(format, widths[i].format) == 0)
            return widths[i].width;
    if (strncmp(format, "ts", 2) == 0)
        return 8;
    if (strncmp(format, "w:", 2) == 0)
        return atoll(format + 2);
    if (strncmp(format, "d:", 2) == 0) {
        const char *comma = strchr(format, ',');
        comma = comma ? strchr(comma + 1, ',') : NULL;
        return comma ? atoll(comma + 1) / 8 : 16;
    }
    return 0;
}

static int put_array(packer *, const arrow_schema *, const arrow_array *, int64_t, int64_t, int);

static int put_children(packer *p, const arrow_schema *s, const arrow_array *a, int64_t begin,
                        int64_t count, int depth)
{
    int rc = put_number(p, a->n_children);

    for (int64_t i = 0; rc > 0 && i < a->n_children; i++)
        rc = put_array(p, s->children[i], a->children[i], begin, count, depth + 1);
    return rc;
}

/* What follows the offset of an array in the layout, for elements [begin, begin + count). `begin`
 * counts from the start of the buffers: the offset is in it. */
static int put_elements(packer *p, const arrow_schema *s, const arrow_array *a, int64_t begin,
                        int64_t count, int depth)
{
    const char *f = s->format, *valid = NULL, *data = NULL;
    int64_t width = width_of(f);
    int is_struct = strcmp(f, "+s") == 0, is_fixed_list = strncmp(f, "+w:", 3) == 0, rc;

    if (strcmp(f, "n") == 0)
        return put_number(p, 0) < 0 ? -1 : put_children(p, s, a, 0, 0, depth);
    if (a->null_count != 0 && a->n_buffers > 0 && a->buffers[0] != NULL)
        valid = (const char *)a->buffers[0] + begin / 8;
    if (a->n_buffers > 1)
        data = a->buffers[1];
    if (strcmp(f, "vu") == 0 || strcmp(f, "vz") == 0) {
        data = data ? data + begin * (int64_t)sizeof(view) : NULL;
        rc = put_views(p, a, valid, data, data ? count : 0);
        return rc > 0 ? put_children(p, s, a, 0, 0, depth) : rc;
    }
    int is_text = strchr("uUzZ", f[0]) != NULL && f[1] == '\0';
    int is_list = strcmp(f, "+l") == 0 || strcmp(f, "+L") == 0 || strcmp(f, "+m") == 0;
    int is_bits = strcmp(f, "b") == 0, is_long = f[0] == 'U' || f[0] == 'Z' || f[1] == 'L';
    if (!is_struct && !is_fixed_list && !is_text && !is_list && !is_bits && width <= 0)
        return 0;
    if (put_number(p, is_struct || is_fixed_list ? 1
                      : is_text                  ? 3
                                                 : 2) < 0 ||
        (valid ? put_buffer(p, valid, (count + 7) / 8) : put_no_buffer(p)) < 0)
        return -1;
    if (is_struct)
        return put_children(p, s, a, begin, count, depth);
    if (is_fixed_list) {
        int64_t size = atoll(f + 3);
        return put_children(p, s, a, begin * size, count * size, depth);
    }
    if (is_bits || width > 0) {
        rc = is_bits ? put_buffer(p, data + begin / 8, (count + 7) / 8)
                     : put_buffer(p, data + begin * width, count * width);
        return rc > 0 ? put_children(p, s, a, 0, 0, depth) : rc;
    }
    const char *offsets = data ? data + begin * (is_long ? 8 : 4) : NULL;
    count = offsets ? count : 0;
    int64_t from = offset_at(offsets, 0, is_long), to = offset_at(offsets, count, is_long);
    if (put_offsets(p, offsets, count, is_long) < 0)
        return -1;
    if (is_list)
        return put_children(p, s, a, from, to - from, depth);
    rc = put_buffer(p, to > from ? (const char *)a->buffers[2] + from : NULL, to - from);
    return rc > 0 ? put_children(p, s, a, 0, 0, depth) : rc;
}

/* Elements [begin, begin + count) of an array. */
static int put_array(packer *p, const arrow_schema *s, const arrow_array *a, int64_t begin,
                     int64_t count, int depth)
{
    int64_t first = a->offset + begin, early = first % 8;
    int64_t nulls = begin == 0 && count == a->length ? a->null_count : a->null_count == 0 ? 0 : -1;

    if (depth == ARROW_DEPTH || s->n_children != a->n_children ||
        (s->dictionary == NULL) != (a->dictionary == NULL))
        return 0;
    int rc = put_number(p, count);
    if (rc > 0)
        rc = put_number(p, nulls);
    if (rc > 0)
        rc = put_number(p, early);
    if (rc > 0)
        rc = put_elements(p, s, a, first - early, count + early, depth);
    if (rc > 0)
        rc = put_number(p, a->dictionary != NULL);
    if (rc > 0 && a->dictionary != NULL)
        rc = put_array(p, s->dictionary, a->dictionary, 0, a->dictionary->length, depth + 1);
    return rc;
}

/* ---- copying ---- */

static void gather(const piece *g, char *memory)
{
    int32_t used = 0;

    for (int64_t i = 0; i < g->count; i++) {
        view v;
        memcpy(&v, g->from + i * (int64_t)sizeof(v), sizeof(v));
        if (!is_valid(g->valid, i)) {
            v = (view){0};
        } else if (v.length > SHORT_TEXT) {
            memcpy(memory + g->texts_at + used, (const char *)g->texts[v.buffer] + v.offset,
                   (size_t)v.length);
            v.buffer = 0;
            v.offset = used;
            used += v.length;
        }
        memcpy(memory + g->at + i * (int64_t)sizeof(v), &v, sizeof(v));
    }
}

static void copy_pieces(const packer *p, char *memory)
{
    for (size_t i = 0; i < p->count; i++) {
        const piece *from = p->pieces + i;
        int is_long = from->how == REBASE_64;
        if (from->how == COPY)
            memcpy(memory + from->at, from->from, (size_t)from->count);
        else if (from->how == GATHER)
            gather(from, memory);
        else
            for (int64_t k = 0; k < from->count; k++) {
                int64_t moved =
                    offset_at(from->from, k, is_long) - offset_at(from->from, 0, is_long);
                int32_t short_moved = (int32_t)moved;
                if (is_long)
                    memcpy(memory + from->at + k * 8, &moved, 8);
                else
                    memcpy(memory + from->at + k * 4, &short_moved, 4);
            }
    }
}

/* The memory with all buffers: bytes for fewer than `least`, a Block, or -errno. */
static PyObject *copied(const packer *p, int64_t least)
{
    mpshm_block block;

    if (p->nbytes < least) {
        PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)p->nbytes);
        if (bytes != NULL) {
            memset(PyBytes_AsString(bytes), 0, (size_t)p->nbytes); /* the gaps */
            copy_pieces(p, PyBytes_AsString(bytes));
        }
        return bytes;
    }
    int rc = mp_allocate(mp_strategy, (uint64_t)p->nbytes, 0, &block);
    if (rc < 0)
        return PyLong_FromLong(rc);
    Py_BEGIN_ALLOW_THREADS
    copy_pieces(p, block.data);
    Py_END_ALLOW_THREADS
    mp_count_copied((uint64_t)p->nbytes);
    return mp_wrap(mp_block_type, &block);
}

/* ---- reading the stream ---- */

static void raise_stream_error(arrow_stream *stream, int rc)
{
    const char *why = stream->get_last_error(stream);

    PyErr_Format(PyExc_ValueError, "the Arrow stream failed: %s", why ? why : strerror(rc));
}

static PyObject *pack_chunks(packer *p, const arrow_schema *schema, const arrow_array *chunks,
                             int64_t count, int64_t least)
{
    int rc = put_schema(p, schema, 0);

    if (rc > 0)
        rc = put_number(p, count);
    for (int64_t i = 0; rc > 0 && i < count; i++)
        rc = put_array(p, schema, chunks + i, 0, chunks[i].length, 0);
    if (rc <= 0)
        return rc < 0 ? NULL : Py_NewRef(Py_None);
    PyObject *memory = copied(p, least);
    return memory == NULL ? NULL
                          : Py_BuildValue("y#NL", p->layout.data, (Py_ssize_t)p->layout.used,
                                          memory, (long long)p->nbytes);
}

/* pack_arrow(capsule, least) -> (layout, memory or -errno, bytes of the memory); None if the
 * table cannot be packed */
PyObject *mp_py_pack_arrow(PyObject *module, PyObject *args)
{
    PyObject *capsule, *packed = NULL;
    long long least;
    arrow_stream *stream = NULL;
    arrow_schema schema = {.release = NULL};
    arrow_array *chunks = NULL, next;
    int64_t count = 0, room = 0;
    packer p = {.pieces = NULL};

    if (!PyArg_ParseTuple(args, "OL:pack_arrow", &capsule, &least) ||
        (stream = PyCapsule_GetPointer(capsule, ARROW_STREAM)) == NULL)
        return NULL;
    mp_begin_writing(&p.layout);
    int rc = stream->get_schema(stream, &schema);
    while (rc == 0 && (rc = stream->get_next(stream, &next)) == 0 && next.release != NULL) {
        if (count == room) {
            arrow_array *more = PyMem_Realloc(chunks, (size_t)(room + 16) * 2 * sizeof(next));
            if (more == NULL) {
                next.release(&next);
                PyErr_NoMemory();
                break;
            }
            chunks = more;
            room = (room + 16) * 2;
        }
        chunks[count++] = next;
    }
    if (rc != 0)
        raise_stream_error(stream, rc);
    else if (!PyErr_Occurred())
        packed = pack_chunks(&p, &schema, chunks, count, least);
    for (int64_t i = 0; i < count; i++)
        chunks[i].release(chunks + i);
    if (schema.release != NULL)
        schema.release(&schema);
    PyMem_Free(chunks);
    PyMem_Free(p.pieces);
    mp_end_writing(&p.layout);
    return packed;
}
