/* The memory of references.pml: one block, the messages, what the assertions know, and the window in which
 * an Arm processor delays its plain reads and writes. STEP is a place where a process may be killed. */

/* ---- shared memory: one block ---- */

bool live = true; /* state: generation | live | version, one word */
byte generation = 0;
byte version = 0;
byte in_flight = 0;
byte overflow = 0;
byte holders = BIT(0);
bool listed = false; /* in the remote-free list */
byte bytes = 1;      /* the content, which is the number of the block's life */

typedef handle { bool sent; byte generation; byte place; byte life };
handle message[MESSAGES];

/* ---- for the checks ---- */

byte kills = KILLS;
bool killed[SLOTS], reaped[SLOTS], ended[SLOTS];
byte referencing = BIT(0); /* processes that may use the block */
byte travelling = 0;       /* messages that a receiver can still receive */
byte stolen = 0;    /* a replayed handle took the bit of a message before its handle was written: DESIGN.md, Known limits */
bool taken = false;        /* the owner has the free block */

/* ---- the window of a processor ---- */

bool reads[SLOTS]; /* a read that has not been performed */
byte expected[SLOTS];
bool writes = false;  /* the owner's write of the bytes */
bool zeroing = false; /* the owner's relaxed stores in allocate */

active proctype processor()
{
end:
    do /* a processor reads what it has written */
    :: d_step { reads[0] && !writes -> assert(bytes == expected[0]); reads[0] = false }
    :: d_step { reads[1] -> assert(bytes == expected[1]); reads[1] = false }
    :: d_step { reads[2] -> assert(bytes == expected[2]); reads[2] = false }
    :: d_step { reads[3] -> assert(bytes == expected[3]); reads[3] = false }
    :: d_step { writes -> bytes = 2; writes = false }
    :: d_step { zeroing -> in_flight = 0; overflow = 0; zeroing = false }
    od
}

#define RELEASING(me) (!reads[me] && (me != 0 || (!writes && !zeroing)))
#ifdef RELAXED_RELEASE
#define RELEASING_HOLDER(me) true
#else
#define RELEASING_HOLDER(me) RELEASING(me)
#endif

/* A process may be killed after each of its stores. After a load has the same effect as before it. */
#if KILLS == 0
#define STEP(me) skip
#else
#define STEP(me)                                                                                             \
    if                                                                                                       \
    :: atomic { kills > 0 -> kills--; goto dead }                                                            \
    :: true                                                                                                  \
    fi
#endif

#define READ(me, life) d_step { !reads[me] -> reads[me] = true; expected[me] = life }
