/* The protocol of common/wire/permit_slot.h, between a broker (daemon/core/permits/permit_pool_cached.cc) and its
 * processes.
 *
 * Every step on a slot is one step of the model. The checker tries every order of the steps of all processes, as
 * sequentially consistent atomics allow. Asserted:
 *
 *   exclusion         at most CAP processes use a permit
 *   conservation      after every request of the broker, the permits out are those cached and those held
 *   no lost wake-up   no process waits at the end (no invalid end state)
 *
 * Variants:
 *
 *   STOPS      a process may be halted for ever right after it has put its permit back; then the broker polls the slots
 *   DIES       a process may end while it uses a permit, and the broker is notified
 *   REVOKES    a permit is revoked while its holder continues
 *
 * Faults, each of which the checker must find:
 *
 *   NO_SECOND_READ, READ_FIRST   of the process
 *   TAKE_FIRST, NO_CAS           of the broker
 *   BLIND_PUT                    the process puts back a permit that is no longer its own (with REVOKES)
 *   NO_LOOK                      the broker does not poll (with STOPS)
 */
#ifndef CLIENTS
#define CLIENTS 3
#endif
#ifndef CAP
#define CAP 2
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif

#define NONE 0
#define IDLE 1
#define USED 2

mtype = { ACQUIRE, RELEASE, LOOK, GONE };

/* The shared page of each process. */
byte slot[CLIENTS];
bit waiting[CLIENTS];

/* Requests to the broker and its grants: whether the permit may be cached. */
chan ask = [CLIENTS * 2] of { mtype, byte };
chan granted[CLIENTS] = [1] of { bit };

byte users;
/* A process uses a revoked permit, and may continue until the end of that use. */
bit overrun;
bit revoked;
byte halted;

proctype Client(byte id) {
  byte rounds;
  bit cached;
  bit seen;
  bit notified;

again:
  if
  :: rounds == ROUNDS -> goto done
  :: rounds < ROUNDS -> rounds++
  fi;

  /* Take() */
  cached = 0;
  if
  :: slot[id] == IDLE ->
     if
     :: waiting[id] == 0 ->
        atomic { if :: slot[id] == IDLE -> slot[id] = USED; cached = 1 :: else -> skip fi }
     :: else -> skip
     fi
  :: else -> skip
  fi;
  if
  :: cached -> skip
  :: else -> ask!ACQUIRE(id); granted[id]?cached
  fi;

  atomic { users++; assert(users <= CAP + overrun) };
#ifdef DIES
  if
  :: skip
  :: atomic { users--; ask!GONE(id); goto done }
  fi;
#endif
  atomic { users--; if :: id == 0 -> overrun = 0 :: else -> skip fi };

  if
  :: !cached -> ask!RELEASE(id)
  :: cached ->
     /* Put() */
#ifdef READ_FIRST
     seen = waiting[id];
#endif
     atomic {
       if
#ifdef BLIND_PUT
       :: true -> slot[id] = IDLE; notified = 0
#else
       :: slot[id] == USED -> slot[id] = IDLE; notified = 0
       :: else -> notified = 1
#endif
       fi
     };
#ifdef STOPS
     if
     :: skip
     :: atomic { halted < CLIENTS - 1 -> halted++; goto stop }
     fi;
#endif
#ifndef READ_FIRST
     seen = waiting[id];
#endif
#ifdef NO_SECOND_READ
     seen = 0;
#endif
     if
     :: notified -> skip
     :: !notified && seen -> ask!LOOK(id)
     :: else -> skip
     fi
  fi;
  goto again;

#ifdef STOPS
stop:
#endif
done:
  skip
}

proctype Broker() {
  byte c;
  byte i;
  byte out;
  bit wants[CLIENTS];
  bit lent[CLIENTS];
  bit held[CLIENTS];
  bit gone[CLIENTS];
  byte queued;
  bit wanted;
  bit took;

/* Grants what fits to any process that waits. */
#define SERVE                                                                              \
  do                                                                                       \
  :: atomic {                                                                              \
       out < CAP && queued > 0 ->                                                          \
       select_waiter;                                                                      \
       wants[i] = 0; queued--; out++;                                                      \
       if                                                                                  \
       :: lent[i] -> held[i] = 1; granted[i]!0                                             \
       :: else -> lent[i] = 1; slot[i] = USED; waiting[i] = wanted; granted[i]!1           \
       fi                                                                                  \
     }                                                                                     \
  :: else -> break                                                                         \
  od

#define select_waiter                                                                      \
  if :: wants[0] -> i = 0 :: wants[1] -> i = 1 :: wants[CLIENTS - 1] -> i = CLIENTS - 1 fi

/* IDLE -> NONE of process `n`. */
#ifdef NO_CAS
#define TAKE_BACK(n)                                                                       \
  took = 0;                                                                                \
  if                                                                                       \
  :: lent[n] && slot[n] == IDLE ->                                                         \
     slot[n] = NONE; took = 1; out--; lent[n] = 0                                          \
  :: else -> skip                                                                          \
  fi
#else
#define TAKE_BACK(n)                                                                       \
  took = 0;                                                                                \
  atomic {                                                                                 \
    if                                                                                     \
    :: lent[n] && slot[n] == IDLE -> slot[n] = NONE; took = 1; out--; lent[n] = 0          \
    :: else -> skip                                                                        \
    fi                                                                                     \
  }
#endif

#define NOTIFY(bit)                                                                        \
  c = 0;                                                                                   \
  do                                                                                       \
  :: c < CLIENTS -> if :: lent[c] -> waiting[c] = bit :: else -> skip fi; c++              \
  :: else -> break                                                                         \
  od

#define TAKE_ALL                                                                           \
  c = 0;                                                                                   \
  do                                                                                       \
  :: c < CLIENTS && queued > 0 -> TAKE_BACK(c); c++; SERVE                                 \
  :: else -> break                                                                         \
  od

end_idle:
  do
  :: ask?ACQUIRE(c) ->
     atomic { wants[c] = 1; queued++ };
     goto serve
  :: ask?RELEASE(c) ->
     atomic { assert(held[c]); held[c] = 0; out-- };
     goto serve
  :: ask?LOOK(c) ->
     TAKE_BACK(c);
     goto serve
  :: ask?GONE(c) ->
     /* The process is proved gone: the permit that it cached or held is back. */
     atomic {
       if :: lent[c] -> lent[c] = 0; slot[c] = NONE; out-- :: else -> skip fi;
       if :: held[c] -> held[c] = 0; out-- :: else -> skip fi;
       waiting[c] = 0
     };
     goto serve
#if defined(STOPS) && !defined(NO_LOOK)
  :: wanted && empty(ask) -> TAKE_ALL; goto serve
#endif
#ifdef REVOKES
  :: atomic { revoked == 0 && lent[0] ->
              revoked = 1; overrun = (slot[0] == USED); lent[0] = 0; slot[0] = NONE; out-- }; goto serve
#endif
  od;

serve:
  SERVE;
  if
  :: queued > 0 && !wanted ->
#ifdef TAKE_FIRST
     TAKE_ALL;
     if :: queued > 0 -> wanted = 1; NOTIFY(1) :: else -> skip fi
#else
     wanted = 1;
     NOTIFY(1);
     TAKE_ALL
#endif
  :: else -> skip
  fi;
  if
  :: queued == 0 && wanted -> wanted = 0; NOTIFY(0)
  :: else -> skip
  fi;
  atomic {
    i = 0; c = 0;
    do
    :: c < CLIENTS -> i = i + lent[c] + held[c]; c++
    :: else -> break
    od;
    assert(i == out && out <= CAP);
    i = 0; c = 0
  };
  goto end_idle
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
