/* The order in which a broker acts, and in which it may die (docs/design/0012 and 0014). A step of the core is followed
 * by the fds into the fd store, the commit to the ledger, and then the effects that others see. Two clients share one
 * unit, so that one waits.
 *
 * The broker may die before and after each of these, CRASHES times. Its memory and the messages sent to it are lost
 * then, and any reply that it had sent may be lost. The next broker begins with the ledger and the fd store. A client
 * without an answer sends its call again, by the call's number. Asserted:
 *
 *   exclusion         at most one client uses the unit
 *   fd store          a client that uses has its fd in the fd store, and so has the ledger's holder when a broker begins
 *   conservation      at the end no client holds, and nothing is in the fd store
 *   no lost wake-up   no client waits at the end (no invalid end state)
 *   no lost release   the other client would wait
 *
 * DIES: a client may end while it waits or uses. The broker is notified, and looks for ended clients when it begins.
 *
 * Faults, each of which the checker must find:
 *
 *   EFFECT_FIRST   an effect is visible before its step is persisted
 *   REPLY_FIRST    the same, only for the reply to a release
 *   DROP_FIRST     an fd leaves the fd store before the ledger has recorded it
 *   PUT_LAST       an fd enters the fd store after the reply
 *   NO_ANSWERS     the ledger has no answers
 *   NO_LOOK        a broker that begins does not look for ended clients (with DIES)
 */
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef CRASHES
#define CRASHES 2
#endif

#define NOBODY 2

mtype = { ACQUIRE, RELEASE, GONE };

/* The ledger: the owner of the unit, the client that waits, and the last answered call of each client. */
byte persisted_holder = NOBODY;
bit persisted_waits[2];
byte persisted_answered[2];

/* With the supervisor. */
bit fd_store[2];

byte epoch;
bit idle;
byte users;
byte done;
bit dead[2];

chan ask = [4] of { mtype, byte, byte };
chan reply[2] = [1] of { byte };

proctype Client(byte id) {
  byte number;
  byte seen;
  byte got;

next:
  if
  :: number == 2 * ROUNDS -> goto over
  :: else -> number++
  fi;
send:
  atomic {
    seen = epoch;
    if
    :: number % 2 == 1 -> ask!ACQUIRE(id, number)
    :: else -> ask!RELEASE(id, number)
    fi
  };
  if
  :: atomic { reply[id]?got -> assert(got == number) }
  :: atomic { epoch != seen && empty(reply[id]) -> goto send }
#ifdef DIES
  :: atomic { number % 2 == 1 && !dead[1 - id] -> dead[id] = 1; ask!GONE(id, 0); goto over }
#endif
  fi;
  if
  :: number % 2 == 1 ->
     atomic { users++; assert(users == 1) };
     assert(fd_store[id]);
#ifdef DIES
     if
     :: skip
     :: atomic { !dead[1 - id] -> users--; dead[id] = 1; ask!GONE(id, 0); goto over }
     fi;
#endif
     users--
  :: else -> skip
  fi;
  goto next;
over:
  done++
}

proctype Broker() {
  byte crashes;
  mtype kind;
  byte id;
  byte number;
  byte i;
  /* The broker's memory. */
  byte holder;
  bit waits[2];
  byte answered[2];
  /* The call of each client that is connected; 0 for none. */
  byte line[2];
  /* The effects of the step: the client put into the fd store, the client dropped, the client notified. */
  bit puts[2];
  bit drops[2];
  bit notifies[2];

#define CRASH                                                        \
  if                                                                 \
  :: skip                                                            \
  :: crashes < CRASHES -> crashes++; goto crashed                    \
  fi
#define PUT(n) if :: puts[n] -> fd_store[n] = 1 :: else -> skip fi
#define DROP(n) if :: drops[n] -> fd_store[n] = 0 :: else -> skip fi
/* The reply to the client itself, or to the client that waited. */
#define NOTIFY(n)                                                    \
  if                                                                 \
  :: notifies[n] && !dead[n] -> reply[n]!answered[n]; notifies[n] = 0      \
  :: else -> skip                                                    \
  fi
#ifdef NO_ANSWERS
#define PERSIST_ANSWERS skip
#else
#define PERSIST_ANSWERS persisted_answered[0] = answered[0]; persisted_answered[1] = answered[1]
#endif
#define COMMIT                                                       \
  atomic {                                                           \
    persisted_holder = holder;                                       \
    persisted_waits[0] = waits[0]; persisted_waits[1] = waits[1];    \
    PERSIST_ANSWERS                                                  \
  }
/* The unit goes to `n`. */
#define GRANT(n)                                                     \
  holder = n; waits[n] = 0; puts[n] = 1; drops[n] = 0;               \
  answered[n] = line[n]; notifies[n] = 1; line[n] = 0
#define FREE(n) if :: holder == n -> holder = NOBODY; drops[n] = 1 :: else -> skip fi
/* The clients that wait and can be notified. */
#define SERVE                                                        \
  if                                                                 \
  :: holder == NOBODY && waits[0] && line[0] != 0 -> GRANT(0)        \
  :: holder == NOBODY && waits[1] && line[1] != 0 -> GRANT(1)        \
  :: else -> skip                                                    \
  fi

begin:
  atomic {
    holder = persisted_holder;
    waits[0] = persisted_waits[0]; waits[1] = persisted_waits[1];
    answered[0] = persisted_answered[0]; answered[1] = persisted_answered[1];
    line[0] = 0; line[1] = 0;
    puts[0] = 0; puts[1] = 0; drops[0] = 0; drops[1] = 0; notifies[0] = 0; notifies[1] = 0;
    /* A record whose fd is missing is a lease that is lost. */
    assert(holder == NOBODY || fd_store[holder]);
    /* An fd without a record is closed. */
    i = 0;
    do
    :: i < 2 -> if :: fd_store[i] && holder != i -> fd_store[i] = 0 :: else -> skip fi; i++
    :: else -> break
    od
  };
#if defined(DIES) && !defined(NO_LOOK)
  atomic {
    i = 0;
    do
    :: i < 2 -> if :: dead[i] -> waits[i] = 0; FREE(i) :: else -> skip fi; i++
    :: else -> break
    od
  };
  CRASH;
  COMMIT;
  CRASH;
  atomic { DROP(0); DROP(1); drops[0] = 0; drops[1] = 0 };
#endif

  idle = 1;
end_idle:
  if
  :: atomic { ask?kind, id, number -> idle = 0 }
  :: atomic { done < 2 && crashes < CRASHES -> crashes++; goto crashed }
  fi;
  /* One step of the core. */
  atomic {
    if
    :: kind != GONE && answered[id] == number -> notifies[id] = 1
    :: kind == ACQUIRE && answered[id] != number -> waits[id] = 1; line[id] = number
    :: kind == RELEASE && answered[id] != number -> FREE(id); answered[id] = number; notifies[id] = 1
    :: kind == GONE -> waits[id] = 0; line[id] = 0; FREE(id)
    fi;
    SERVE
  };
  CRASH;
#ifdef DROP_FIRST
  DROP(0); DROP(1); CRASH;
#endif
#ifndef PUT_LAST
  PUT(0); PUT(1); CRASH;
#endif
#ifdef EFFECT_FIRST
  NOTIFY(0); CRASH; NOTIFY(1); CRASH;
#endif
#ifdef REPLY_FIRST
  if :: kind == RELEASE -> NOTIFY(id) :: else -> skip fi; CRASH;
#endif
  COMMIT;
  CRASH;
  DROP(0); DROP(1); CRASH;
  NOTIFY(0); CRASH;
  NOTIFY(1); CRASH;
#ifdef PUT_LAST
  PUT(0); PUT(1); CRASH;
#endif
  atomic {
    puts[0] = 0; puts[1] = 0; drops[0] = 0; drops[1] = 0; notifies[0] = 0; notifies[1] = 0;
    idle = 1
  };
  goto end_idle;

crashed:
  atomic {
    idle = 0;
    do
    :: ask?kind, id, number
    :: empty(ask) -> break
    od;
    i = 0;
    do
    :: i < 2 ->
       if
       :: nempty(reply[i]) -> reply[i]?number
       :: skip
       fi;
       i++
    :: else -> break
    od;
    kind = 0; id = 0; number = 0; i = 0;
    epoch++
  };
  goto begin
}

/* The end of all clients. */
proctype Auditor() {
  atomic {
    done == 2 && idle && empty(ask) ->
    assert(persisted_holder == NOBODY && users == 0 && !fd_store[0] && !fd_store[1])
  }
}

init {
  atomic {
    run Broker();
    run Client(0);
    run Client(1);
    run Auditor()
  }
}
