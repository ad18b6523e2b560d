/* The bytes of a table of arrays, which table.c writes and read_table.c reads.
 *
 * Note [A table of arrays]
 *   Bytes, one record after the other, in the byte order of the machine:
 *
 *     u32 number of records
 *     record   u8 place, u8 character of the dtype, u8 dimensions, u8 1 if it has the shape before
 *              i64 for each dimension, unless it has
 *     then     IN_TABLE    the bytes of the array
 *              IN_PACK     nothing: its bytes follow those of the array before in the same pack
 *              FIRST       a handle: the first array of a new pack
 *              IN_BLOCK    a handle: the array has a block of its own
 *              AS_BEFORE   u32: the same object as that record
 *
 *   A *pack* is a block with the bytes of many small private arrays, for which the message has no
 *   room. The receiver copies them out into private memory, so that one array does not keep the
 *   memory of all. A handle follows the opcode that pickle would write, so that a message that
 *   cannot be read has its blocks freed (mp-core's receive.c). */
#ifndef MP_TABLE_H
#define MP_TABLE_H
#include "native.h"

enum place { IN_TABLE, IN_PACK, FIRST, IN_BLOCK, AS_BEFORE };

/* SHORT_BINBYTES and the length of a handle */
#define MP_HANDLE_OPCODE ((const unsigned char[2]){'C', MPSHM_HANDLE_SIZE})

typedef struct {
    unsigned char place, ch, nd, same_shape;
} record;

enum {
    FEW = 16,       /* arrays that are left to pickle */
    PACK = 1 << 18, /* bytes of a pack, unless it is known better */
};

typedef struct {
    PyObject_HEAD int number; /* of this table in its message */
    unsigned left;            /* arrays left to pickle so far */
    uint32_t count;
    unsigned char *data;
    size_t used, room;
    int nd; /* the shape of the last array, -1 before the first */
    npy_intp dims[NPY_MAXDIMS];
    mpshm_block pack;
    size_t packed;      /* bytes used in it */
    size_t pack_nbytes; /* the size of the next one */
} Table;

#endif
