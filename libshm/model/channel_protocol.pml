/* The protocol of channel.pml, step by step as in channel/lock.c, wakeup.c, send.c, receive.c and waiting.c. */

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
