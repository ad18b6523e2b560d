/* A channel, for spin: writers, readers, kills, on Arm.
 *
 *   writers  send messages that fit into one record and, if LARGE, one that passes in parts
 *   readers  receive until the end of the file; with SELECT the first one only waits for its descriptor; with CLOSE=n
 *            each closes its end after n messages, and the last one takes what nobody can read any more (native/unread.c)
 *   keeper   has a writing end, as each process that has a queue does, until no message is unread
 *
 * Up to KILLS writers and readers are killed, each before any of its steps and while it sleeps. A step is one atomic
 * operation, system call or access to a record in channel/ring.c, send.c, receive.c, waiting.c and wakeup.c, in the order of
 * those files. A spin is left out, since it only looks earlier. The memory model is Arm's; references.pml explains it.
 *
 * A sleep on a futex has a limit, because a death does not wake it. Here the limit is reached only after a kill and when a look
 * would find something, so a sleeper whose wake-up was lost sleeps for ever. A wait for read_lock looks at the ring in between,
 * since the holder may be a reader of a large message.
 *
 * Checked: messages are whole, in the order of their writer, and received once; a message is lost only with a reader that
 * was killed; a message that was sent is received or taken by the reader that closes last;
 * a descriptor that is readable has a message for its only reader; no place is written over before it was read; no wake-up is lost; nobody waits for ever.
 *
 * Seeded faults: PUBLISH_FIRST (tail moves before the record is written), RELAXED_TAIL and RELAXED_HEAD (a store that does not
 * release, on Arm only), CHECK_BEFORE_FLAG (a sleeper looks at the ring before it says that it will sleep), SLEEP_ON_COUNT (a
 * sleeper waits for tail or head to change and not for its flag: the waker may clear the flag in between),
 * ARM_UNCOMPARED (a reader arms without comparing what it has seen), SETTLE_GIVES_UP (it does not arm while a writer has
 * write_lock), BYTE_LAST (the wake-up byte is written after the message is published), ABORTED_TWICE (a repair that was
 * interrupted takes a second place), NO_BYTE_REPAIR (the byte of a killed writer is taken to be there), NO_DOUBT (a byte too
 * many is not looked for), CLOSES_UNSEEN (a writer does not look under
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
#define MESSAGES (NO_MESSAGE + 1)
#if WRITERS > 2
#define NO_MESSAGE 9 /* the number for ABORTED records */
#else
#define NO_MESSAGE 6
#endif

#include "ring.pml"
#include "channel_wakeup.pml"
#include "channel_protocol.pml"

/* ---- the processes ---- */

#define LOCALS                                                                                               \
    bool repairs, broken, has_room, alive, got, at_end;                                                      \
    bool was, done, rr, ww, wd, wp;                                                                          \
    byte parts, m, seen, known, count, wb

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
       settle(me);
       do
       :: /* select() on the descriptor */
          if
          :: d_step { bytes > 0 || writing_ends == 0 -> at_end = (writing_ends == 0) }
          :: KILLED
          fi;
          look(me);
          take(me);
          if
          :: got -> goto received_one
          :: else -> if :: at_end -> goto over :: else fi
          fi;
          /* The descriptor was readable: there was a message, unless a process is about to publish that of a dead one. */
          assert(READERS > 1 || !CALM && LARGE || !EMPTY || doubt && begun != tail)
       od
    :: else
    fi;
    do
    :: wait_for_record(me);
       if :: at_end -> goto over :: else fi;
       take(me);
       if :: got -> break :: else fi
    od;
received_one:
    if :: SELECT -> settle(me) :: else fi;
    count++;
    if :: count < CLOSE -> goto next :: else fi;
    /* close the end, and take the rest if it was the last one */
    d_step { writing_ends++; reading_ends-- };
    STEP;
    closes++;
    STEP;
    lock_write(me, TO_CLOSE); /* mpshm_channel_stop_reading */
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
        if :: WRITERS > 2 -> run writer(2) :: else fi;
        run reader(WRITERS, SELECT);
        if :: READERS > 1 -> run reader(WRITERS + 1, false) :: else fi
    }
}
