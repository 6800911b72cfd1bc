/* The protocol of common/wire/take_up.h, between a broker (daemon/core/permits/take_up.cc) and its processes.
 *
 * Every step on a word is one step of the model. A process may be halted, for ever or for a while, between the arrival
 * of a grant and its take-up: the checker tries every order of steps. Asserted:
 *
 *   exclusion         at most CAP processes use a unit
 *   conservation      the units that are out are those granted and not yet released or withdrawn
 *   no lost wake-up   no process waits at the end (no invalid end state)
 *
 * Variants:
 *
 *   STOPS      a process may be halted for ever before it takes a grant up
 *   RESTARTS   the broker may die after a withdrawal that it has not persisted; the next broker finds the word withdrawn
 *
 * Faults, each of which the checker must find:
 *
 *   LATE              the process uses a withdrawn grant
 *   READ_THEN_WRITE   of the process
 *   BLIND             the broker withdraws a grant that was taken up
 *   NO_WITHDRAWAL     with STOPS
 */
#ifndef CLIENTS
#define CLIENTS 3
#endif
#ifndef CAP
#define CAP 1
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif

#define NONE 0
#define GRANTED 1
#define TAKEN 2
#define WITHDRAWN 3

mtype = { ACQUIRE, RELEASE };

/* The word of each process, which has one request at a time. */
byte word[CLIENTS];
chan ask = [CLIENTS * 2] of { mtype, byte };
/* Answers that the process has not read. */
chan answer[CLIENTS] = [1] of { bit };

byte users;
byte halted;

proctype Client(byte id) {
  byte rounds;
  byte seen;

again:
  if
  :: rounds == ROUNDS -> goto done
  :: rounds < ROUNDS -> rounds++
  fi;

send:
  ask!ACQUIRE(id);
  answer[id]?_;
#ifdef STOPS
  if
  :: skip
  :: atomic { halted < CLIENTS - 1 -> halted++; goto done }
  fi;
#endif

  /* Take() */
#ifdef READ_THEN_WRITE
  seen = word[id];
  if
  :: seen == GRANTED -> word[id] = TAKEN
  :: else -> word[id] = NONE
  fi;
#else
  atomic {
    seen = word[id];
    if
    :: seen == GRANTED -> word[id] = TAKEN
    :: else -> word[id] = NONE
    fi
  };
#endif
#ifndef LATE
  if
  :: seen == GRANTED -> skip
  :: else -> goto send
  fi;
#endif

  atomic { users++; assert(users <= CAP) };
  atomic { users--; ask!RELEASE(id) };
  goto again;

done:
  skip
}

proctype Broker() {
  byte c;
  byte i;
  byte out;
  byte waiting;
  bit wants[CLIENTS];
  bit granted[CLIENTS];

end_idle:
  do
  :: ask?ACQUIRE(c) ->
     atomic {
#ifdef LATE
       /* The process releases what it used, and may ask again before the broker reads the release. */
       if :: wants[c] -> skip :: else -> wants[c] = 1; waiting++ fi
#else
       assert(!wants[c] && !granted[c]);
       wants[c] = 1; waiting++
#endif
     }
  :: ask?RELEASE(c) ->
     atomic {
       if :: granted[c] -> granted[c] = 0; out-- :: else -> skip fi
     }
  /* Grants a unit to any process that waits. */
  :: atomic {
       out < CAP && waiting > 0 ->
       if :: wants[0] -> i = 0 :: wants[1] -> i = 1 :: wants[CLIENTS - 1] -> i = CLIENTS - 1 fi;
       wants[i] = 0; waiting--; granted[i] = 1; out++;
       word[i] = GRANTED;
       answer[i]!1
     }
#ifndef NO_WITHDRAWAL
  /* A grant is late, and another process waits. */
  :: atomic {
       waiting > 0 && out == CAP ->
       if
       :: granted[0] -> i = 0
       :: granted[1] -> i = 1
       :: granted[CLIENTS - 1] -> i = CLIENTS - 1
       :: else -> goto end_idle
       fi
     };
     atomic {
       if
#ifdef BLIND
       :: granted[i] && word[i] != NONE ->
#else
       :: granted[i] && word[i] == GRANTED ->
#endif
          word[i] = WITHDRAWN;
#ifdef RESTARTS
          if
          :: granted[i] = 0; out--
          /* The broker dies here. The next broker finds WITHDRAWN, unless the process has cleared the word. */
          :: goto restart
          fi
#else
          granted[i] = 0; out--
#endif
       :: else -> skip
       fi
     }
#endif
  od;

#ifdef RESTARTS
restart:
  /* A process that found the withdrawal asks the next broker again, and gets the first answer again. */
  if
  :: atomic { word[i] == WITHDRAWN -> granted[i] = 0; out-- }; goto end_idle
  :: atomic { word[i] == NONE && ask??[ACQUIRE, eval(i)] -> skip }; goto replay
  fi;
replay:
  /* The answer is final now: no word contradicts it. */
  atomic { ask??ACQUIRE, eval(i); word[i] = GRANTED; answer[i]!1 };
  goto end_idle;
#endif
}

init {
  byte n;
  atomic {
    run Broker();
    do
    :: n < CLIENTS -> run Client(n); n++
    :: else -> break
    od
  }
}
