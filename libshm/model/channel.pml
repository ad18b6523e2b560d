/* A channel, for spin: writers, readers, kills, on Arm.
 *
 *   writers  send messages that fit into one record and, if LARGE, one that passes in parts
 *   readers  receive until the end of the file; with SELECT the first one waits for its descriptor only; with CLOSE=n
 *            each closes its end after n messages, and the last one takes what nobody can read any more (native/unread.c)
 *   keeper   has a writing end, as each process that has a queue does, until no message is unread
 *
 * Up to KILLS writers and readers are killed, each before any of its steps and while it sleeps. A step is one atomic
 * operation, system call or access to a record in channel/ring.c, send.c, receive.c, waiting.c and wakeup.c, in the order of
 * those files. A spin is left out, since it only looks earlier. The memory model is Arm's; references.pml explains it.
 *
 * A sleep on a futex has a limit, because a death does not wake it. Here the limit is reached only after a kill and when a look
 * would find something, so a sleeper whose wake-up was lost sleeps for ever. A wait for write_lock looks at the ring in between,
 * since the holder may be a writer of a large message.
 *
 * Checked: messages are whole, in the order of their writer, and received once; a message is lost only with a reader that
 * was killed; a message that was sent is received or taken by the reader that closes last; no place is written over before it was read; no wake-up is lost; nobody waits for ever.
 *
 * Seeded faults: PUBLISH_FIRST (tail moves before the record is written), RELAXED_TAIL and RELAXED_HEAD (a store that does not
 * release, on Arm only), CHECK_BEFORE_FLAG (a sleeper looks at the ring before it says that it will sleep), SLEEP_ON_COUNT (a
 * sleeper waits for tail or head to change and not for its flag: the waker may clear the flag in between),
 * ARM_WITHOUT_LOCK (a reader that has seen an empty ring arms the wake-up after it gave write_lock back), BYTE_LAST (the
 * wake-up byte is written after the message is published), ABORTED_TWICE (a repair that was interrupted takes a second place),
 * NO_BYTE_REPAIR (the state of the wake-up of a killed holder is believed), CLOSES_UNSEEN (a writer does not look under
 * write_lock whether an end was closed). */

#ifndef KILLS
#define KILLS 1
#endif
#ifndef WRITERS
#define WRITERS 2
#endif
#ifndef READERS
#define READERS 1
#endif
#ifndef SMALL
#define SMALL 1 /* messages in one record of each writer */
#endif
#ifndef LARGE
#define LARGE 1 /* the first writer begins with a large message */
#endif
#ifndef SELECT
#define SELECT 0
#endif

#ifndef CLOSE
#define CLOSE 9
#endif

#define PLACES 4
#define PARTS 2                       /* MORE records of a large message */
#define EACH 3                        /* message numbers of a writer; number 0 is the large one */
#define MESSAGES 7                    /* and a number for ABORTED records */
#define NO_MESSAGE 6

#include "ring.pml"

/* ---- lock.c, wakeup.c ---- */

inline repair()
{
    if
    :: repairs ->
#ifndef NO_BYTE_REPAIR
       d_step { wakeup = (bytes > 0 -> WRITTEN : ARMED) };
       STEP;
#endif
       abort_message();
       repairs = false
    :: else
    fi
}

/* mpshm__ring_repair: end a message whose writer died or gave up. */
inline abort_message()
{
    if
#ifdef ABORTED_TWICE
    :: large ->
#else
    :: large && ROOM >= 0 -> /* the kept place has no ABORTED record of an earlier attempt */
#endif
       write(ABORTED, NO_MESSAGE);
       STEP;
       publish(ABORTED, NO_MESSAGE);
       STEP
    :: else
    fi;
    large = false;
    STEP
}

/* Under write_lock: tell sleeping readers. `broken` when there are none any more. */
inline wakeup_write()
{
    if
    :: wakeup == ARMED ->
       wakeup = WRITTEN;
       STEP;
       if
       :: atomic { reading_ends > 0 -> bytes++ }
       :: reading_ends == 0 -> wakeup = ARMED; broken = true
       fi;
       STEP
    :: else
    fi
}

/* Under write_lock, with an empty ring. */
inline arm()
{
    if
    :: wakeup == WRITTEN ->
       d_step { bytes = (bytes > 0 -> bytes - 1 : 0) };
       STEP;
       wakeup = ARMED;
       STEP
    :: else
    fi
}

/* ---- send.c ---- */

inline put(a_kind, message)
{
#ifndef CLOSES_UNSEEN
    if
    :: known != closes ->
       if
       :: d_step { reading_ends > 0 -> known = closes }
       :: reading_ends == 0 -> broken = true
       fi
    :: else
    fi;
#endif
#ifdef PUBLISH_FIRST
    wakeup_write();
    if
    :: !broken ->
       d_step { tail++; complete[message] = (a_kind == WHOLE || a_kind == MORE && parts == PARTS) };
       STEP;
       d_step { kind[AT(tail - 1)] = a_kind; payload[AT(tail - 1)] = message };
       part_wanted = false;
       asleep_for_part = false
    :: else
    fi
#else
    if
    :: !broken ->
       write(a_kind, message);
       STEP;
#ifdef BYTE_LAST
       publish(a_kind, message);
       wakeup_write()
#else
       wakeup_write();
       if
       :: !broken -> publish(a_kind, message)
       :: else
       fi
#endif
    :: else
    fi
#endif
}

inline wait_for_room(me)
{
    do
    :: broken -> break
    :: !broken ->
#ifdef CHECK_BEFORE_FLAG
       if :: ROOM >= 1 -> break :: else fi;
       room_wanted = true;
#else
#ifdef SLEEP_ON_COUNT
       seen = head;
#endif
       room_wanted = true;
       STEP;
       if :: ROOM >= 1 -> break :: else fi;
#endif
       if
       :: reading_ends == 0 -> broken = true
       :: else ->
#ifdef SLEEP_ON_COUNT
          d_step { asleep_for_room[me] = (head == seen) };
#else
          d_step { asleep_for_room[me] = room_wanted };
#endif
          if
          :: !asleep_for_room[me]
          :: d_step { reading_ends == 0 || !CALM && (ROOM >= 1 || !room_wanted) -> asleep_for_room[me] = false }
          :: KILLED
          fi;
          if :: ROOM >= 1 -> break :: else fi
       fi
    od
}

inline send_small(me, message)
{
    do
    :: lock_write(me);
       has_room = ROOM >= 1;
       if
       :: has_room -> put(WHOLE, message); STEP
       :: else
       fi;
       unlock_write();
       if :: has_room || broken -> break :: else fi;
       wait_for_room(me);
       if :: broken -> break :: else fi
    od
}

inline send_large(me, message)
{
    lock_write(me);
    wait_for_room(me);
    if
    :: !broken ->
       large = true;
       STEP;
       put(FIRST, message);
       do
       :: !broken && parts < PARTS ->
          wait_for_room(me);
          if :: !broken -> parts++; put(MORE, message) :: else fi
       :: else -> break
       od;
       STEP;
       if
       :: broken -> abort_message()
       :: else -> large = false; STEP
       fi
    :: else
    fi;
    unlock_write()
}

/* ---- receive.c, waiting.c ---- */

/* Under read_lock, with a large message begun: `alive` is false when no further record will come. */
inline wait_for_part(me)
{
    alive = true;
    do
    :: !EMPTY -> break
    :: else ->
#ifdef CHECK_BEFORE_FLAG
       part_wanted = true;
#else
#ifdef SLEEP_ON_COUNT
       seen = tail;
#endif
       part_wanted = true;
       STEP;
       if :: !EMPTY -> break :: else fi;
#endif
#ifdef SLEEP_ON_COUNT
       d_step { asleep_for_part = (tail == seen) };
#else
       d_step { asleep_for_part = part_wanted };
#endif
       if
       :: !asleep_for_part
       :: d_step { !CALM && (!EMPTY || write_lock == NOBODY || !part_wanted) -> asleep_for_part = false }
       :: KILLED
       fi;
       if :: !EMPTY -> break :: else fi;
       /* mpshm__writer_is_at_work */
       d_step {
           alive = write_lock != NOBODY;
           if
           :: !alive -> TAKE_WRITE_LOCK(me)
           :: else
           fi
       };
       if
       :: !alive -> STEP; repair(); unlock_write()
       :: else
       fi;
       if :: !alive && EMPTY -> break :: else -> alive = true fi
    od
}

#define IS_REST (!EMPTY && (kind[AT(head)] == MORE || kind[AT(head)] == ABORTED))

/* Take the oldest message if there is one: `got`. */
inline take(me)
{
    got = false;
    lock_read(me);
    STEP;
    do
    :: IS_REST -> drop()
    :: EMPTY -> break
    :: !EMPTY && !IS_REST ->
       d_step {
           m = payload[AT(head)];
           parts = (kind[AT(head)] == FIRST -> 0 : PARTS);
           assert(kind[AT(head)] != NOTHING && m != NO_MESSAGE);
           assert(!taken[m] && m + 1 > latest[m / EACH]);
       };
       copy(m);
       d_step { READ_BEFORE -> head++; taken[m] = true; latest[m / EACH] = m + 1 };
       STEP;
       head_moved();
       do
       :: parts == PARTS -> got = true; break
       :: parts < PARTS && !EMPTY && kind[AT(head)] == MORE ->
          assert(payload[AT(head)] == m);
          copy(m);
          drop();
          parts++
       :: parts < PARTS && !EMPTY && kind[AT(head)] != MORE -> break
       :: parts < PARTS && EMPTY ->
          wait_for_part(me);
          if :: !alive -> break :: else fi
       od;
       if
       :: got -> break
       :: else -> assert(!complete[m])
       fi
    od;
    if
    :: got -> d_step { received[m]++; assert(received[m] == 1 && complete[m]) }
    :: else
    fi;
    unlock_read();
    d_step { m = 0; parts = 0 }
}

/* 0 becomes 1 message in the ring, or `at_end`. */
inline wait_for_record(me)
{
    at_end = false;
    do
    :: !EMPTY -> break
    :: else ->
       if
       :: d_step { write_lock == NOBODY -> TAKE_WRITE_LOCK(me) };
          STEP;
          repair();
#ifdef ARM_WITHOUT_LOCK
          alive = EMPTY;
          unlock_write();
          STEP;
          if :: alive -> arm() :: else fi;
#else
          if :: EMPTY -> arm() :: else fi;
          unlock_write();
          if :: !EMPTY -> break :: else fi;
#endif
          /* poll() on the descriptor */
          if
          :: d_step { bytes > 0 || writing_ends == 0 -> at_end = (writing_ends == 0) }
          :: KILLED
          fi;
          if
          :: !EMPTY -> at_end = false; break
          :: else -> if :: at_end -> break :: else fi
          fi
       :: write_lock != NOBODY && !EMPTY -> break
       fi
    od
}

/* With a program that selects: arm the wake-up as soon as the ring is empty. */
inline settle(me)
{
    if
    :: EMPTY && wakeup == WRITTEN ->
       if
       :: d_step { write_lock == NOBODY -> TAKE_WRITE_LOCK(me) };
          STEP;
          repair();
          if :: EMPTY -> arm() :: else fi;
          unlock_write()
       :: d_step { write_lock != NOBODY && large } /* a message is under way */
       fi
    :: else
    fi
}

#define RECORDS (tail - head)
#define IS_ABORTED                                                                                           \
    (RECORDS >= 2 && kind[AT(head + 1)] != MORE ||                                                           \
     RECORDS >= 3 && kind[AT(head + 1)] == MORE && kind[AT(head + 2)] != MORE)

/* `got` tells whether the ring has a message, or one that is under way. */
inline has_message(me)
{
    got = false;
    if
    :: !EMPTY ->
       lock_read(me);
       STEP;
       do
       :: IS_REST -> drop()
       :: EMPTY -> break
       :: !EMPTY && kind[AT(head)] == WHOLE -> got = true; break
       :: !EMPTY && kind[AT(head)] == FIRST ->
          d_step {
              alive = write_lock != NOBODY;
              if
              :: !alive -> TAKE_WRITE_LOCK(me)
              :: else
              fi
          };
          if
          :: !alive -> STEP; repair(); unlock_write()
          :: else
          fi;
          if
          :: IS_ABORTED -> drop()
          :: else -> got = true; break
          fi
       od;
       unlock_read();
       alive = false
    :: else
    fi
}

/* ---- the processes ---- */

#define LOCALS                                                                                               \
    bool repairs, broken, has_room, alive, got, at_end;                                                      \
    byte parts, m, seen, known, count

proctype writer(byte me)
{
    LOCALS;
    if
    :: LARGE && me == 0 ->
       send_large(me, me * EACH);
       d_step { parts = 0; broken = false };
       STEP
    :: else
    fi;
    m = 0;
    do
    :: m < SMALL -> m++; send_small(me, me * EACH + m); STEP
    :: m == SMALL -> break
    od;
    goto over;
dead:
    skip;
    atomic { free_locks(me); if :: asleep_for_room[me] -> asleep_for_room[me] = false :: else fi };
over:
    skip;
    d_step { writing_ends--; writers_ended++ }
}

proctype reader(byte me; bool selects)
{
    LOCALS;
next:
    if
    :: selects ->
       do
       :: has_message(me);
          if :: got -> break :: else fi;
          settle(me);
          /* select() on the descriptor */
          if
          :: d_step { bytes > 0 || writing_ends == 0 -> at_end = (writing_ends == 0) }
          :: KILLED
          fi;
          if :: at_end && EMPTY -> goto over :: else fi
       od
    :: else
    fi;
    do
    :: wait_for_record(me);
       if :: at_end -> goto over :: else fi;
       take(me);
       if :: got -> break :: else fi
    od;
    if :: selects -> settle(me) :: else fi;
    count++;
    if :: count < CLOSE -> goto next :: else fi;
    /* close the end, and take the rest if it was the last one */
    d_step { writing_ends++; reading_ends-- };
    STEP;
    closes++;
    STEP;
    lock_write(me); /* mpshm_channel_stop_reading */
    unlock_write();
    if
    :: reading_ends == 0 ->
       do
       :: take(me);
          if :: got -> STEP :: else -> break fi
       od
    :: else
    fi;
    skip;
    d_step { writing_ends--; readers_ended++ };
    goto gone;
dead:
    skip;
    atomic {
        free_locks(me);
        readers_killed++;
        if
        :: count >= CLOSE -> writing_ends--; readers_ended++; goto gone /* it had closed its end */
        :: else
        fi
    };
over:
    skip;
    d_step { reading_ends--; readers_ended++ };
gone:
    skip
}

active proctype keeper()
{
    if
    :: writers_ended == WRITERS && (reading_ends == 0 || !ANY_UNREAD)
    :: timeout -> stuck = true; assert(!stuck) /* nobody can go on, and a message is unread */
    fi;
    writing_ends--;
    readers_ended == READERS;
    assert(!CALM || !ANY_UNREAD);
    assert(LOST(0) + LOST(1) + LOST(2) + LOST(3) + LOST(4) + LOST(5) <= readers_killed)
}

init
{
    atomic {
        run writer(0);
        if :: WRITERS > 1 -> run writer(1) :: else fi;
        run reader(WRITERS, SELECT);
        if :: READERS > 1 -> run reader(WRITERS + 1, false) :: else fi
    }
}
