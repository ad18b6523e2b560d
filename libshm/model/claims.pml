/* The claims of a channel, for spin: a pool, one worker, kills and stops.
 *
 *   pool     sends numbered tasks, takes some back at any time, and reads results; when the worker has died it reads
 *            what is left, takes back what was not begun, and knows which task the worker was running
 *   worker   receives the tasks in order, claims each, begins it, and sends its result before it claims the next
 *
 * The worker is killed before any of its steps, or stopped there for as long as the pool likes: a stop is nothing but other
 * processes that run meanwhile. A step is one atomic operation of channel/claims.c, or one message in a ring, which
 * channel.pml has checked. All of them acquire and release, so the order of memory is not modelled again.
 *
 * Checked: each task is begun once, by the worker or by whom the pool gives it to; a task with a result has not failed; no
 * task is left over; and after a death at most one task is lost, which the worker had begun.
 *
 * Seeded faults: CLAIM_UNCOMPARED and TAKE_UNCOMPARED (the word is read, compared and then stored), LATE_RESULT (the worker
 * claims the next task before it sends a result), DRAIN_FIRST (the pool reads the last results before it knows of the death),
 * TAKE_RECEIVED (the pool takes back what the worker has not received, and not what it has not claimed). */

#ifndef KILLS
#define KILLS 1
#endif
#define TASKS 4

byte claimed = 0;  /* the word */
byte sent = 0, received = 0;
bool result[TASKS]; /* in the ring of results */
byte kills = KILLS;
bool killed = false, ended = false;

/* ---- for the checks ---- */

byte begun[TASKS];  /* how often, by whomever */
bool here[TASKS];   /* the pool has it again */
bool answered[TASKS];

#define STEP                                                                                                 \
    if                                                                                                       \
    :: atomic { kills > 0 -> kills--; goto dead }                                                            \
    :: true                                                                                                  \
    fi

active proctype worker()
{
    byte number, seen;
    bool mine;
#ifdef LATE_RESULT
    byte before = TASKS;
#endif

    do
    :: received < sent ->
       STEP;
       d_step { number = received; received++ };
       STEP;
#ifdef CLAIM_UNCOMPARED
       seen = claimed;
       STEP;
       mine = seen == number;
       if
       :: mine -> claimed = number + 1
       :: else
       fi;
#else
       d_step {
           mine = claimed == number;
           if
           :: mine -> claimed = number + 1
           :: else
           fi
       };
#endif
       STEP;
       if
       :: mine ->
          begun[number]++;
          assert(begun[number] == 1);
#ifdef LATE_RESULT
          STEP;
          if
          :: before < TASKS -> result[before] = true
          :: else
          fi;
          before = number;
          if
          :: number == TASKS - 1 -> result[number] = true
          :: else
          fi
#else
          STEP;
          result[number] = true
#endif
       :: else
       fi
    :: received == TASKS -> break
    od;
    ended = true;
    goto done;
dead:
    killed = true;
done:
    skip
}

#define READ(n) answered[n] = answered[n] || result[n]
#define READ_RESULTS d_step { READ(0); READ(1); READ(2); READ(3) }

/* Whom the pool gives it to begins it. */
#define AGAIN(n, from, until)                                                                                \
    if                                                                                                       \
    :: from <= n && n < until -> here[n] = true; begun[n]++; assert(begun[n] == 1)                           \
    :: else                                                                                                  \
    fi
#define HAS_AGAIN(from, until)                                                                               \
    d_step { AGAIN(0, from, until); AGAIN(1, from, until); AGAIN(2, from, until); AGAIN(3, from, until) }

inline take_back(until)
{
    first = claimed;
    do
    :: first >= until -> break
    :: else ->
#ifdef TAKE_RECEIVED
       d_step { first = received; claimed = until };
       HAS_AGAIN(first, until);
       break
#endif
#ifdef TAKE_UNCOMPARED
       claimed = until;
       HAS_AGAIN(first, until);
       break
#else
       d_step {
           if
           :: claimed == first -> claimed = until; exchanged = true
           :: else -> first = claimed; exchanged = false
           fi
       };
       if
       :: exchanged -> HAS_AGAIN(first, until); break
       :: else
       fi
#endif
    od
}

active proctype pool()
{
    byte first, until, i, lost;
    bool exchanged;

    do
    :: sent < TASKS && !killed -> sent++
    :: sent > 0 && !killed && !ended ->
       select(until : 1 .. TASKS);
       if
       :: until <= sent -> take_back(until)
       :: else
       fi
    :: !killed -> READ_RESULTS
#ifdef DRAIN_FIRST
    :: true -> READ_RESULTS; if :: killed -> break :: else fi
#else
    :: killed -> READ_RESULTS; break
#endif
    :: ended -> READ_RESULTS; break
    od;
    take_back(sent);
    lost = 0;
    i = 0;
    do
    :: i < sent ->
       if
       :: !here[i] && !answered[i] ->
          assert(!result[i]);
          assert(killed);
          lost++
       :: else
       fi;
       assert(here[i] || answered[i] || killed);
       i++
    :: else -> break
    od;
    assert(lost <= 1)
}
