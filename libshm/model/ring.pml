/* The memory of channel.pml: a ring of records, its locks and flags, the pipe, what the assertions know, and the window
 * in which an Arm processor delays its plain reads and writes. STEP is a place where a process may be killed. */

mtype = { NOTHING, WHOLE, FIRST, MORE, ABORTED };
#define NOBODY 9

/* ---- shared memory ---- */

byte tail = 0, head = 0; /* records since the ring was made */
mtype kind[PLACES];
byte payload[PLACES]; /* the message that it belongs to */
byte begun = 0; /* `wakeup` of wakeup.c is these four, changed by one compare-and-exchange */
bool written = false, doubt = false, published = false;
bool large = false, part_wanted = false, room_wanted = false;
byte closes = 0; /* how often a reader has closed its end */
byte write_lock = NOBODY, read_lock = NOBODY;
bool write_dead = false, read_dead = false; /* the last holder of the lock died */

/* ---- the kernel ---- */

byte bytes = 0;                                                /* in the pipe */
byte writing_ends = WRITERS + 1, reading_ends = READERS; /* the keeper has a writing end */
bool asleep_for_part = false;  /* the reader that has read_lock sleeps on a futex */
bool asleep_for_room[WRITERS]; /* writers sleep on a futex */

/* ---- for the checks ---- */

byte kills = KILLS;
bool complete[MESSAGES], taken[MESSAGES]; /* all records are published; a reader has begun to remove it */
byte received[MESSAGES];
byte latest[WRITERS];    /* the last message of a writer that was taken */
byte readers_killed = 0;
byte writers_ended = 0, readers_ended = 0;
bool stuck = false;
byte parts_written = 0; /* of the last large message */

#define EMPTY (head == tail)
#define ROOM (PLACES - 1 - (tail - head)) /* one place is kept for an ABORTED record */
#define AT(count) ((count) % PLACES)
#define CALM (kills == KILLS) /* nobody was killed */
#define UNREAD(m) (complete[m] && !taken[m])
#define ANY_UNREAD (UNREAD(0) || UNREAD(1) || UNREAD(2) || UNREAD(3) || UNREAD(4) || UNREAD(5))
#define LOST(m) (complete[m] && taken[m] && received[m] == 0)

/* A process may be killed after each of its stores, and while it sleeps. */
#define KILLED atomic { kills > 0 -> kills--; goto dead }
#if KILLS == 0
#define STEP skip
#else
#define STEP if :: KILLED :: true fi
#endif

/* ---- the window of a processor ---- */

bool writes = false; /* a record has been written but is not visible; only the holder of write_lock writes */
mtype writes_kind;
byte writes_message, writes_at;
bool reads = false; /* a payload is being read; only the holder of read_lock reads */
byte reads_message, reads_at;

#define PERFORM_WRITE kind[writes_at] = writes_kind; payload[writes_at] = writes_message; writes = false
#define PERFORM_READ assert(payload[reads_at] == reads_message); reads = false

active proctype processor()
{
end:
    do
    :: d_step { writes -> PERFORM_WRITE }
    :: d_step { reads -> PERFORM_READ }
    od
}

/* A store to tail or head releases: what its processor has written and read before has been performed. */
#ifdef RELAXED_TAIL
#define WRITTEN_BEFORE true
#else
#define WRITTEN_BEFORE !writes
#endif
#ifdef RELAXED_HEAD
#define READ_BEFORE true
#else
#define READ_BEFORE !reads
#endif

/* ---- locks: robust mutexes ---- */

/* `repairs` tells whether the last holder died. */
#define TAKE_WRITE_LOCK(me) write_lock = me; repairs = write_dead; write_dead = false

inline lock_write(me, how)
{
    d_step { write_lock == NOBODY -> TAKE_WRITE_LOCK(me) };
    STEP;
    repair(how)
}

/* Unlocking releases too. */
inline unlock_write()
{
    d_step { !writes -> write_lock = NOBODY }
}

inline lock_read(me)
{
    d_step { read_lock == NOBODY -> read_lock = me; rr = read_dead; read_dead = false };
    STEP;
    if
    :: rr -> doubt = true; rr = false; STEP
    :: else
    fi
}

inline unlock_read()
{
    d_step { !reads -> read_lock = NOBODY }
}

/* What the kernel does for a process that was killed. */
inline free_locks(me)
{
    if
    :: write_lock == me ->
       if /* a store on its way may be lost */
       :: writes && begun == tail -> PERFORM_WRITE
       :: begun == tail -> writes = false /* not after the exchange, which releases */
       :: begun != tail -> PERFORM_WRITE
       fi;
       write_lock = NOBODY;
       write_dead = true
    :: else
    fi;
    if
    :: read_lock == me -> read_lock = NOBODY; read_dead = true; asleep_for_part = false; reads = false
    :: else
    fi
}

/* ---- records: channel/ring.c ---- */

inline write(a_kind, message)
{
    d_step {
        !writes ->
        assert(tail - head < PLACES); /* nothing unread is written over */
        writes = true;
        writes_kind = a_kind;
        writes_message = message;
        parts_written = (a_kind == FIRST -> 0 : (a_kind == MORE -> parts_written + 1 : parts_written));
        writes_at = AT(tail)
    }
}

#define IS_LAST(at) (kind[at] == WHOLE || kind[at] == MORE && parts_written == PARTS)

/* A writer, or a process that repairs: the record up to `begun`, unless a reader has done it. */
inline publish()
{
    d_step {
        WRITTEN_BEFORE ->
        tail = begun;
        if
        :: writes && (writes_kind == WHOLE || writes_kind == MORE && parts_written == PARTS) ->
           complete[writes_message] = true
        :: !writes && IS_LAST(AT(tail - 1)) -> complete[payload[AT(tail - 1)]] = true
        :: else
        fi
    };
    STEP;
    if
    :: part_wanted ->
       part_wanted = false;
       STEP;
       asleep_for_part = false /* wakes */
    :: else
    fi
}

/* Wake writers, after head was moved. */
inline head_moved()
{
    STEP;
    if
    :: room_wanted && ROOM >= PLACES / 2 ->
       room_wanted = false;
       STEP;
       d_step { asleep_for_room[0] = false; asleep_for_room[WRITERS / 2] = false; asleep_for_room[WRITERS - 1] = false }
    :: else
    fi
}

inline drop()
{
    d_step { READ_BEFORE -> head++ };
    head_moved()
}

inline copy(message)
{
    d_step {
        if
        :: !reads -> reads = true; reads_message = message; reads_at = AT(head)
        :: reads -> assert(payload[AT(head)] == message) /* it overtakes the earlier one */
        fi
    }
}
