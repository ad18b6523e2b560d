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

/* ---- reference.c ---- */

#ifdef NO_VERSION
#define SAME_VERSION true
#else
#define SAME_VERSION (version == seen_version)
#endif
#ifdef NO_LIVE_CHECK
#define SAME_STATE true
#else
#define SAME_STATE (live && generation == seen_generation && SAME_VERSION)
#endif

#define SEE_MESSAGES                                                                                     \
    if :: in_flight != 0 -> break :: else fi;                                                                \
    if :: overflow != 0 -> break :: else fi

#define SEE_HOLDERS                                                                                      \
    if :: holders != 0 -> break :: else fi

inline try_free(me)
{
    do
    :: atomic {
           if
           :: !live -> break
           :: else -> seen_generation = generation; seen_version = version
           fi
       };
#ifdef HOLDERS_FIRST
       SEE_HOLDERS;
       SEE_MESSAGES;
#else
       SEE_MESSAGES;
       SEE_HOLDERS;
#endif
       atomic {
           if
           :: SAME_STATE ->
              assert(live);
              assert(referencing == 0);
              assert(travelling == 0);
              generation++;
              version = 0;
              live = false;
              won = true
           :: else -> won = false
           fi
       };
       if
       :: won ->
          STEP(me);
          d_step { in_flight = 0 }; /* the link: the list has no other block */
          STEP(me);
          d_step { assert(!listed && !taken); listed = true; won = false };
          break
       :: else
       fi
    od;
    atomic { seen_generation = 0; seen_version = 0 } /* fewer states */
}

/* mpshm__free_expired: as try_free, but messages in the mask do not count. */
inline free_expired(me)
{
    do
    :: atomic {
           if
           :: !live -> break
           :: else -> seen_generation = generation; seen_version = version
           fi
       };
#ifndef EXPIRY_OF_COUNTED
       if :: overflow != 0 -> break :: else fi;
#endif
       SEE_HOLDERS;
       atomic {
           if
           :: SAME_STATE ->
              assert(live);
              assert(referencing == 0);
              generation++;
              version = 0;
              live = false;
              travelling = 0; /* they are lost */
              won = true
           :: else -> won = false
           fi
       };
       if
       :: won ->
          STEP(me);
          d_step { in_flight = 0 };
          STEP(me);
          d_step { assert(!listed && !taken); listed = true; won = false };
          break
       :: else
       fi
    od;
    atomic { seen_generation = 0; seen_version = 0 }
}

inline hold(me)
{
    d_step { RELEASING(me) -> holders = holders | BIT(me) }
}

inline release(me)
{
    d_step { RELEASING_HOLDER(me) -> holders = holders & ~BIT(me); referencing = referencing & ~BIT(me) };
    STEP(me);
    try_free(me)
}

/* ---- message.c ---- */

inline send(me, m, itslife)
{
    d_step { handle_generation = generation; from = version % BITS };
    d_step {
        RELEASING(me) ->
        if
        :: !(in_flight & BIT(from)) -> place = from
        :: else ->
           if
           :: !(in_flight & BIT(1 - from)) -> place = 1 - from
           :: else -> place = BITS
           fi
        fi;
        if
        :: place < BITS -> in_flight = in_flight | BIT(place)
        :: else -> overflow++
        fi
    };
    STEP(me);
    d_step { version++ };
    STEP(me);
    d_step {
        message[m].generation = handle_generation;
        message[m].place = place;
        message[m].life = itslife;
        message[m].sent = true;
        if
        :: stolen > 0 -> stolen--
        :: else -> travelling++
        fi;
        handle_generation = 0;
        from = 0;
        place = 0
    }
}

/* Clear the message's bit; `ok` tells whether it was set. */
inline clear_in_flight(m)
{
    d_step {
        if
        :: message[m].place < BITS ->
           ok = (in_flight & BIT(message[m].place)) != 0;
           in_flight = in_flight & ~BIT(message[m].place)
        :: else ->
           ok = overflow > 0;
           overflow = (ok -> overflow - 1 : 0)
        fi;
        if
        :: ok && travelling > 0 -> travelling--
        :: ok && travelling == 0 -> stolen++
        :: else
        fi
    }
}

inline count_version(m)
{
    d_step { ok = live && generation == message[m].generation; version++ }
}

/* Receive with a slot. `got` tells whether the process has a reference now. */
inline receive(me, m)
{
    got = false;
    if
    :: live && generation == message[m].generation ->
#ifdef CLEAR_BEFORE_HOLD
       clear_in_flight(m);
       STEP(me);
       hold(me);
       STEP(me);
       d_step { version++ };
#else
       hold(me);
       STEP(me);
       count_version(m);
       STEP(me);
       if :: ok -> clear_in_flight(m) :: else fi;
#endif
       if
       :: ok -> d_step { referencing = referencing | BIT(me); got = true; ok = false }
       :: else -> release(me)
       fi
    :: else
    fi
}

/* Receive without a slot: a message of its own keeps the block alive meanwhile. */
inline receive_by_value(me, m)
{
    if
    :: live && generation == message[m].generation ->
       d_step { overflow++ };
       STEP(me);
       d_step { version++ };
       STEP(me);
       d_step { ok = live && generation == message[m].generation };
       if
       :: ok ->
          ok = false;
          READ(me, message[m].life);
          d_step { RELEASING(me) };
          clear_in_flight(m);
          ok = false;
          STEP(me);
          d_step { overflow = (overflow > 0 -> overflow - 1 : 0) };
          STEP(me);
          try_free(me)
       :: else
       fi
    :: else
    fi
}

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
