/* The wake-up byte of channel.pml, and the repair after a process that died: channel/wakeup.c and ring_lock.c. */

#define TO_WRITE 0
#define TO_CHECK 1 /* a reader that has read_lock */
#define TO_CLOSE 2

/* A compare-and-exchange of `wakeup`: `done` if it is what was loaded. */
#define LOAD d_step { !writes -> wb = begun; ww = written; wd = doubt; wp = published }
#define SAME (begun == wb && written == ww && doubt == wd && published == wp)

inline repair(how)
{
    if
    :: repairs ->
       do
       :: true ->
          LOAD;
          if
          :: wb == tail -> break
          :: wb != tail && wp -> break
          :: wb != tail && !wp ->
             done = (how == TO_CHECK && bytes > 0);
             d_step {
                 if
                 :: SAME && how == TO_WRITE ->
                    written = true;
#ifndef NO_DOUBT
                    doubt = true;
#endif
                    done = true
                 :: SAME && done -> published = true
                 :: SAME && how != TO_WRITE && !done -> begun = tail; written = false; doubt = true; done = true
                 :: !SAME -> done = false
                 fi
             };
             STEP;
             if
             :: done -> break
             :: else
             fi
          fi
       od;
#ifndef NO_BYTE_REPAIR
       if
       :: atomic { how == TO_WRITE && wb != tail && !wp && reading_ends > 0 -> bytes++ }; STEP
       :: else
       fi;
#endif
       if
       :: begun != tail -> publish(); STEP
       :: else
       fi;
       d_step { done = false; wb = 0; ww = false; wd = false; wp = false };
       abort_message();
       repairs = false
    :: else
    fi
}

/* mpshm__abort_message: end a message whose writer died or gave up. */
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
       d_step { begun = tail + 1; published = false };
       STEP;
       publish();
       STEP
    :: else
    fi;
    large = false;
    STEP
}

/* Under write_lock: tell sleeping readers. `broken` when there are none any more. */
inline wakeup_write(to)
{
    d_step { was = written; begun = to; written = true; published = false };
    STEP;
    if
    :: !was ->
       if
       :: atomic { reading_ends > 0 -> bytes++ }
       :: reading_ends == 0 -> d_step { begun = tail; written = false; published = false }; broken = true
       fi;
       STEP
    :: else
    fi
}

/* Under read_lock, with an empty ring. */
inline arm()
{
    do
    :: true ->
       LOAD;
       if
       :: wb == head && ww ->
          d_step {
#ifdef ARM_UNCOMPARED
              done = true;
#else
              done = SAME;
#endif
              if
              :: done -> written = false; published = false
              :: else
              fi
          };
          STEP;
          if
          :: done -> d_step { bytes = (bytes > 0 -> bytes - 1 : 0) }; STEP
          :: else
          fi
       :: wb == head && !ww && wd -> /* take_surplus */
          if
          :: bytes > 0 ->
             if
             :: begun == head && !written -> bytes--; STEP
             :: else -> break
             fi
          :: bytes == 0 ->
             d_step {
                 if
                 :: begun == head && !written -> doubt = false
                 :: else
                 fi
             };
             STEP
          fi
       :: wb == head && !ww && !wd -> break
       :: wb != head -> /* publish_begun */
          done = bytes > 0;
          if
          :: wb > tail && ww && !wd && (wp || done) ->
             d_step {
                 done = (wp || SAME);
                 if
                 :: done && !wp -> published = true
                 :: else
                 fi
             };
             STEP;
             d_step {
                 if
                 :: done && tail + 1 == wb ->
                    tail = wb;
                    if
                    :: IS_LAST(AT(tail - 1)) -> complete[payload[AT(tail - 1)]] = true
                    :: else
                    fi
                 :: else
                 fi
             };
             STEP
          :: else
          fi;
          break
       fi
    od;
    skip;
    d_step { done = false; wb = 0; ww = false; wd = false; wp = false }
}

/* Publish what was begun, or arm. */
inline look(me)
{
    lock_read(me);
    if :: EMPTY -> arm() :: else fi;
    unlock_read()
}
