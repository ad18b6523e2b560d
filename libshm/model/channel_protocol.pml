/* The protocol of channel.pml, step by step as in channel/ring_lock.c, wakeup.c, send.c, receive.c and waiting.c. */

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
    wakeup_write(tail + 1);
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
       d_step { WRITTEN_BEFORE -> tail++; begun = tail; complete[message] = (a_kind == WHOLE || parts_written == PARTS) };
       STEP;
       d_step { part_wanted = false; asleep_for_part = false };
       wakeup_write(tail)
#else
       wakeup_write(tail + 1);
       if
       :: !broken -> publish()
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
    :: lock_write(me, TO_WRITE);
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
    lock_write(me, TO_WRITE);
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
       :: !alive -> STEP; repair(TO_CHECK); unlock_write()
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

/* Wait until the ring has a record, or `at_end`. */
inline wait_for_record(me)
{
    at_end = false;
    do
    :: !EMPTY -> at_end = false; break
    :: else ->
       if
       :: read_lock == NOBODY ->
          look(me);
          if
          :: !EMPTY -> at_end = false; break
          :: else -> if :: at_end -> break :: else fi
          fi;
          /* poll() on the descriptor */
          if
          :: d_step { bytes > 0 || writing_ends == 0 -> at_end = (writing_ends == 0) }
          :: KILLED
          fi
       :: read_lock != NOBODY && !EMPTY -> at_end = false; break
       fi
    od
}

/* With a program that selects: arm the wake-up as soon as the ring is empty. */
inline settle(me)
{
    do
    :: EMPTY && begun == head && (written || doubt) ->
#ifdef SETTLE_GIVES_UP
       if
       :: write_lock != NOBODY -> break
       :: write_lock == NOBODY -> look(me)
       fi
#else
       if
       :: read_lock == NOBODY -> look(me)
       :: read_lock != NOBODY -> break
       fi
#endif
    :: else -> break
    od
}
