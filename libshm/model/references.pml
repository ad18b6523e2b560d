/* References to one block, for spin: send, receive, release, free, reap and reuse, with kills, on Arm.
 *
 *   owner   slot 0: sends messages 0 and 1, releases, takes the freed block from the remote-free list,
 *           allocates it again, releases it
 *   A       slot 1: receives message 0, sends message 2 of the same block, releases
 *   B       slot 2: receives message 1, with its slot or by value
 *   C       slot 3: receives message 2, or message 0 again (a replayed handle)
 *   reaper  clears the holder bits of killed processes, and may be killed in the middle itself
 *
 * Up to KILLS processes are killed, each before any of its steps. A step is one atomic operation of
 * reference/reference.c, reference/message.c and reference/block.c, in the order of those files.
 *
 * The memory model is Arm's. Armv8 is multi-copy atomic: a store becomes visible to all other processors
 * at once, so only the order in which a processor performs its own operations is left to chance.
 * Sequentially consistent operations compile to acquiring loads and releasing stores, which Armv8 keeps
 * in order; tools/model.py checks the compiler's output for that. Plain reads and writes of the block's
 * bytes and relaxed stores go into the window of their processor: the process `processor` performs them
 * at any later time, but not after the next releasing store. A fault can take the release away.
 *
 * Checked: a reader never sees the bytes of another life; a block is freed only without references and
 * messages, and once in each life; a block that nobody references is not left alive.
 *
 * With EXPIRY, the manager may also find, at any time after the first message was sent, that the deadline of all
 * messages has passed, and frees the block as reference/message_timeout.c says: messages in the mask do not count then. They
 * are lost, but a reader still never sees the bytes of another life. The receivers' own look at the deadline is left out.
 *
 * Seeded faults, each of which violates an assertion: NO_VERSION, NO_LIVE_CHECK, CLEAR_BEFORE_HOLD,
 * RELAXED_RELEASE, NO_REAPER_FREE, EXPIRY_OF_COUNTED (a free does not look at in_flight_overflow, on which a reader by value
 * relies). HOLDERS_FIRST changes the order of the checks before a free; it violates
 * none, since the version alone protects against what happens between the checks. */

#ifndef KILLS
#define KILLS 1
#endif

#ifndef FORWARD
#define FORWARD 1 /* A sends message 2 */
#endif
#ifndef SECOND
#define SECOND 1 /* the owner sends message 1, to B */
#endif
#ifndef THIRD
#define THIRD 1 /* C receives */
#endif

#define BITS 2 /* bits of the in-flight mask; further messages are counted in the overflow */
#define SLOTS 4
#define MESSAGES 3
#define BIT(n) (1 << (n))

#include "memory.pml"
#include "protocol.pml"

/* ---- the processes ---- */

#define LOCALS                                                                                               \
    bool ok, got, won;                                                                                       \
    byte seen_generation, seen_version, handle_generation, from, place

#define END(me)                                                                                              \
    d_step { ended[me] = true };                                                                             \
    goto over;                                                                                               \
dead:                                                                                                        \
    skip;                                                                                                    \
    d_step { reads[me] = false; referencing = referencing & ~BIT(me); killed[me] = true; ended[me] = true }; \
over:                                                                                                        \
    skip

active proctype owner()
{
    LOCALS;
    send(0, 0, 1);
    STEP(0);
#if SECOND
    send(0, 1, 1);
    STEP(0);
#endif
    release(0);
    if
    :: d_step { listed -> listed = false; taken = true };
       /* allocate, block.c: relaxed stores, the own bit, then the state */
       STEP(0);
       d_step { zeroing = true; holders = 0 };
       STEP(0);
       hold(0);
       STEP(0);
       d_step { seen_generation = generation };
       d_step {
           RELEASING(0) -> generation = seen_generation; version = 0; live = true; taken = false;
           referencing = referencing | BIT(0)
       };
       STEP(0);
       d_step { writes = true };
       STEP(0);
       READ(0, 2);
       release(0)
    :: ended[1] && ended[2] && ended[3] && !listed
    fi;
    END(0)
}

active proctype A()
{
    LOCALS;
    if
    :: message[0].sent ->
       receive(1, 0);
       if
       :: got ->
          STEP(1);
          READ(1, message[0].life);
#if FORWARD
          send(1, 2, message[0].life);
          STEP(1);
#endif
          READ(1, message[0].life);
          release(1)
       :: else
       fi
    :: ended[0] && !message[0].sent
    fi;
    END(1)
}

active proctype B()
{
    LOCALS;
#if SECOND
    if
    :: message[1].sent ->
       if
       :: receive(2, 1);
          if
          :: got -> STEP(2); READ(2, message[1].life); release(2)
          :: else
          fi
       :: receive_by_value(2, 1)
       fi
    :: ended[0] && !message[1].sent
    fi;
#endif
    END(2)
}

active proctype C()
{
    LOCALS;
    byte m;
#if THIRD
    if
    :: message[2].sent -> m = 2
    :: message[0].sent -> m = 0
    :: ended[0] && ended[1] && !message[2].sent -> goto nothing
    fi;
    receive(3, m);
    if
    :: got -> STEP(3); READ(3, message[m].life); release(3)
    :: else
    fi;
nothing:
    skip;
#endif
    END(3)
}

active proctype reaper()
{
    LOCALS;
    byte p;
#ifdef EXPIRY
    bool expired;
#endif
again:
    if
#ifdef EXPIRY
    :: message[0].sent && !expired ->
       expired = true;
       free_expired(4);
       goto again
#endif
    :: killed[0] && !reaped[0] -> p = 0
    :: killed[1] && !reaped[1] -> p = 1
    :: killed[2] && !reaped[2] -> p = 2
    :: killed[3] && !reaped[3] -> p = 3
    :: ended[0] && ended[1] && ended[2] && ended[3] &&
       (!killed[0] || reaped[0]) && (!killed[1] || reaped[1]) && (!killed[2] || reaped[2]) &&
       (!killed[3] || reaped[3]) -> goto over
    fi;
    d_step { holders = holders & ~BIT(p) };
    STEP(4);
#ifndef NO_REAPER_FREE
    try_free(4);
#endif
    d_step { reaped[p] = true };
    goto again;
dead: /* its successor reaps again */
    goto again;
over:
    skip;
    d_step {
        assert(!live || in_flight != 0 || overflow != 0); /* a block that nobody references is free */
        assert(kills < KILLS || live || listed);          /* and in a list, if nobody was killed */
        assert(kills < KILLS || travelling == 0 || live)
    }
}
