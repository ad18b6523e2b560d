/* The protocol of references.pml, step by step as in reference/reference.c and reference/message.c. */

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
