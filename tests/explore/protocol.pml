/* The protocol of claim, commit, hint and sweep, small enough for Spin to visit every state.
 *
 * docs/explanation/protocol.md maps each step to the code. One `atomic` block is one request to the store, or a step
 * that nobody else can see. A process that is killed is one that is never scheduled again; a driver that is started
 * again goes back to its beginning. Which processes there are, and which rule is left out on purpose, say macros:
 *
 *   WITH_B  WITH_SWEEP  WITH_READER  WITH_BACK  WITH_KEEPER  WITH_HOUR       who is at work
 *   NO_STAMP  NO_LATE_CHECK  NO_LOOK_AFTER_RACE  NO_REPLAY  NO_READ_AGAIN    rules of writers, left out
 *   NO_HINT_MOVE  NO_CLAIMS  NO_FLOOR  NO_PIN  TORN                          rules of sweeps, savepoints, commits
 *
 * AFTER_B lets the sweep wait until driver B has ended, and LOST and LIVES say how many answers are lost, and how often
 * a driver is started again.
 */
#ifndef LOST
#define LOST 0
#endif
#ifndef LIVES
#define LIVES 0
#endif
#define PLACES 12
#define NONE 15
#define BIT(n) (1 << (n))

#define FREE 0
#define CLAIM 1
#define COMMIT 2

/* What lies in the store: the entries of the log, the objects of commits, the hint, the floor, a pin and a marker. */
byte kind[PLACES];
byte stamp[PLACES];          /* of the attempt that made the entry */
byte names[PLACES];          /* of a claim: the newest commit; of a commit: its epoch */
byte goes_on[PLACES];        /* of a claim: the commit that it continues, if that is not the newest */
short data = 0;              /* one object for each commit, by its place */
byte hint = NONE;
byte floor = 0;
bit pin = 0;
short marked = 0;            /* commits that are savepoints */

/* What no process knows: the log as it was made, what its commits need and hold, and what was acknowledged. */
byte ends = 0;               /* the log has so many places */
byte made[PLACES];           /* stamp of the entry that is part of the log */
byte made_kind[PLACES];
byte newest = NONE;
short needs[PLACES];         /* of a commit: objects, by the places of the commits that made them */
byte holds[PLACES];          /* of a commit: batches, one bit each */
byte acknowledged = 0;
byte epoch = 0;
byte now = 0;                /* hours */
byte when[PLACES];           /* when the entry was made */
byte stamps = 0;
byte lost = LOST;            /* so many answers may be lost */
byte lives = LIVES;          /* so often a driver may be started again */
bit went_back = 0;
byte drivers = 0;            /* so many have ended */

inline append(p, k, s, n, g) {
    kind[p] = k; stamp[p] = s; names[p] = n; goes_on[p] = g; when[p] = now;
    if
    :: p < ends -> skip                          /* a stray: an entry of the log was swept from there */
    :: else ->
        assert(p == ends);                       /* ONE: the log has no gap */
        made[p] = s; made_kind[p] = k; ends = ends + 1;
        if
        :: k == CLAIM ->
            assert(n == newest);                 /* NO_GOING_BACK: a claim names the newest commit */
            epoch = epoch + 1;
            if :: g != NONE -> went_back = 1; acknowledged = holds[g] :: else fi
        :: else -> newest = p
        fi
    fi
}

/* Everything that can be opened is whole. */
inline check_whole() {
    byte c = 0;
    do
    :: c < ends ->
        if
        :: made_kind[c] == COMMIT && kind[c] == COMMIT && stamp[c] == made[c] &&
           (c >= floor || c == newest || (marked & BIT(c))) ->
            assert((needs[c] & ~data) == 0)      /* SWEPT */
        :: else
        fi;
        c = c + 1
    :: else -> break
    od;
    assert(newest == NONE || kind[newest] == COMMIT);
    assert(ends == 0 || kind[ends - 1] != FREE);
    c = 0
}

/* LogReader.end: from the hint forward; the hint is read again; without a use for it, a listing. `e`: the end. */
inline find_end(h, e, again) {
    again = 1;
    do
    :: atomic { again -> h = hint; e = h; again = 0 };
        if
        :: h == NONE ->
            atomic {
                e = PLACES - 1;
                do :: e > 0 && kind[e] == FREE -> e = e - 1 :: else -> break od;
                if :: kind[e] == FREE -> e = NONE :: else fi
            }
        :: else ->
            do
            :: atomic { (e + 1 < PLACES && kind[e + 1] != FREE) -> e = e + 1 }
            :: atomic { !(e + 1 < PLACES && kind[e + 1] != FREE) -> break }
            od;
            atomic {
                if
                :: kind[e] == FREE -> again = 1  /* the hinted one was swept */
                :: else
                fi
            };
#ifndef NO_READ_AGAIN
            atomic { if :: hint != h -> again = 1 :: else fi }
#endif
        fi
    :: else -> break
    od;
    h = 0
}

proctype Driver(bit merges; byte back) {
    byte h, e, at, base, mine, before, batch, contact, sent;
    bit again, ours;
open:
    base = NONE; mine = NONE;
look:
    contact = now;
    find_end(h, e, again);
    atomic {                                     /* load the end: Job.look */
        if
        :: e == NONE -> before = NONE
        :: e != NONE && kind[e] == CLAIM -> before = names[e]
        :: e != NONE && kind[e] == COMMIT -> before = e
        :: else -> goto open                     /* swept meanwhile */
        fi;
#ifdef NO_LOOK_AFTER_RACE
        if :: base == NONE -> base = before :: else fi;
#else
        base = before;
#endif
        if :: back != NONE -> base = back :: else fi;
        at = (e == NONE -> 0 : e + 1)
    };
    if :: at >= PLACES -> goto stopped :: else fi;
    /* LogWriter.claim: put-if-absent */
    atomic { sent = now;
        stamps = stamps + 1; mine = stamps;
        if
        :: kind[at] == FREE -> append(at, CLAIM, mine, before, (back == NONE -> NONE : back)); ours = 1
        :: else -> ours = 0
        fi };
    if :: !ours -> goto look :: else fi;
#ifndef NO_LATE_CHECK
    if
    :: now != contact -> find_end(h, e, again); if :: e != at -> goto stopped :: else fi
    :: else
    fi;
#endif
    atomic { assert(made[at] == mine); contact = sent };  /* NO_GOING_BACK: what was opened is the end of the log */
    if
    :: back != NONE -> atomic { if :: floor > back -> goto stopped :: else fi }  /* after the claim: Job.claim */
    :: else
    fi;
    atomic {                                     /* the next batch that Spark delivers; replay.decide */
        batch = 1;
        do :: (acknowledged & batch) -> batch = batch << 1 :: else -> break od;
        ours = (base != NONE && (holds[base] & batch))
    };
#ifndef NO_REPLAY
    if :: ours -> goto told :: else fi;
#endif
    at = at + 1;
    if :: at >= PLACES -> goto stopped :: else fi;
#ifndef TORN
    atomic { if :: kind[at] == FREE -> data = data | BIT(at) :: else fi };  /* the change set is uploaded */
#endif
    /* LogWriter.create: put-if-absent; its answer may be lost, and is settled by reading back */
    atomic { sent = now;
        stamps = stamps + 1; mine = stamps;
        if
        :: kind[at] == FREE ->
            if
            :: at == ends ->
                assert(base == NONE || !(holds[base] & batch));  /* TWICE */
                needs[at] = BIT(at) | ((merges || base == NONE) -> 0 : needs[base]);
                holds[at] = batch | (base == NONE -> 0 : holds[base]);
                assert(went_back || (acknowledged & ~holds[at]) == 0)  /* ACKNOWLEDGED */
            :: else
            fi;
            append(at, COMMIT, mine, made[at - 1], NONE);
            ours = 1;
#ifndef TORN
            check_whole()
#endif
        :: else -> ours = 0
        fi };
#ifdef TORN
    atomic { if :: ours -> data = data | BIT(at) :: else fi };  /* only now: wrong */
#endif
    if
    :: lost > 0 -> lost = lost - 1; ours = 0     /* no answer: who made what lies there? */
    :: true
    fi;
    atomic {
        if
        :: !ours ->
#ifdef NO_STAMP
            ours = (kind[at] != FREE)
#else
            ours = (kind[at] != FREE && stamp[at] == mine)
#endif
        :: else
        fi
    };
    if :: !ours -> goto stopped :: else fi;      /* FencedError, OutcomeUnknownError */
#ifndef NO_LATE_CHECK
    if
    :: now != contact ->
        find_end(h, e, again);
        atomic {                                 /* LogReader.is_stray */
            if
            :: e == at && stamp[e] == mine
            :: e != at && at + 1 < PLACES && kind[at + 1] == CLAIM && names[at + 1] == at
            :: else -> goto stopped
            fi
        }
    :: else
    fi;
#endif
told:
    if
    :: lives > 0 -> lives = lives - 1; goto open /* killed before Spark was told */
    :: true
    fi;
    atomic {
        assert(at < ends && made[at] == mine);   /* ONE: what is acknowledged, or was opened, is part of the log */
        acknowledged = acknowledged | batch;
        assert(went_back || newest == NONE || (acknowledged & ~holds[newest]) == 0)  /* ACKNOWLEDGED */
    };
    atomic { if :: now == sent && kind[at] == COMMIT -> hint = at :: else fi };  /* LogWriter.write_hint */
stopped:
    drivers = drivers + 1
}

proctype Sweep() {
    byte h, e, i, last, keep, low, begun;
    short there = 0, doomed = 0, old_data = 0, wanted = 0;
    bit again;
#ifdef AFTER_B
    (drivers > 0);
#endif
    begun = now;
    atomic {                                     /* list the log */
        i = 0; last = NONE;
        do
        :: i < PLACES -> if :: kind[i] != FREE -> there = there | BIT(i); last = i :: else fi; i = i + 1
        :: else -> break
        od
    };
    atomic {                                     /* list everything else: objects, markers and pins */
        old_data = data; wanted = marked | (pin -> BIT(3) : 0)
    };
    if :: last == NONE -> goto done :: else fi;
    atomic {
        if :: kind[last] == FREE -> goto done :: else fi;
        keep = (kind[last] == CLAIM -> names[last] : last);
        if :: kind[last] == CLAIM && goes_on[last] != NONE -> wanted = wanted | BIT(goes_on[last]) :: else fi;
        if :: keep == NONE -> goto done :: else fi;
        low = keep;                              /* plan_log: what is young stays, and all behind it */
        i = keep;
        do
        :: i > 0 && (there & BIT(i - 1)) && when[i - 1] == now -> i = i - 1; low = i
        :: else -> break
        od;
        i = 0;
        do
        :: i < low -> if :: (there & BIT(i)) && !(wanted & BIT(i)) && when[i] < now -> doomed = doomed | BIT(i) :: else fi; i = i + 1
        :: else -> break
        od;
        i = 0;                                   /* what the commits that stay point into */
        wanted = 0;
        do
        :: i < PLACES ->
            if
            :: (there & BIT(i)) && !(doomed & BIT(i)) && made_kind[i] == COMMIT -> wanted = wanted | needs[i]
            :: else
            fi;
            i = i + 1
        :: else -> break
        od;
        i = 0;                                   /* what no commit points into stays in the current epoch */
        do
        :: i < PLACES -> if :: !(there & BIT(i)) -> old_data = old_data & ~BIT(i) :: else fi; i = i + 1
        :: else -> break
        od;
        old_data = old_data & ~wanted
    };
    find_end(h, e, again);
    atomic { h = hint };
    if :: doomed == 0 && old_data == 0 -> goto done :: else fi;
    atomic { if :: low > floor -> floor = low :: else fi };          /* raise_floor */
#ifndef NO_HINT_MOVE
    atomic {                                     /* a hint below the floor is moved, if the look is not old */
        if
        :: h != NONE && h < low -> if :: now != begun -> goto done :: else -> hint = last fi
        :: else
        fi
    };
#endif
#ifndef NO_CLAIMS
    i = last + 1;                                /* wanted_again: claims made since, then pins and markers */
    do
    :: atomic { (i < PLACES && kind[i] != FREE) ->
           if :: kind[i] == CLAIM && goes_on[i] != NONE && goes_on[i] < low && (doomed & BIT(goes_on[i])) -> goto done :: else fi;
           i = i + 1 }
    :: atomic { !(i < PLACES && kind[i] != FREE) -> break }
    od;
#endif
#ifndef NO_PIN
    atomic { if :: (pin && (doomed & BIT(3))) || (marked & doomed) -> goto done :: else fi };
#endif
    i = 0;
    do                                           /* entries first, oldest first; then what they point into */
    :: atomic { i < PLACES -> if :: doomed & BIT(i) -> kind[i] = FREE; check_whole() :: else fi; i = i + 1 }
    :: else -> break
    od;
    i = 0;
    do
    :: atomic { i < PLACES -> if :: old_data & BIT(i) -> data = data & ~BIT(i); check_whole() :: else fi; i = i + 1 }
    :: else -> break
    od;
done:
    skip
}

proctype Reader() {
    byte h, e, found, began, seen = 0;
    bit again;
    byte looks = 2;
    do
    :: looks > 0 ->
        looks = looks - 1;
        atomic { began = newest };
        find_end(h, e, again);
        atomic {
            if
            :: e == NONE || kind[e] == FREE -> found = NONE
            :: else -> found = (kind[e] == CLAIM -> names[e] : e)
            fi
        };
        if
        :: found == NONE
        :: else ->
            assert(began == NONE || found >= began);  /* NO_GOING_BACK */
            assert(found <= newest && found >= seen);
            seen = found;
            atomic {                             /* WHOLE_STATES: all of a commit of the log, or told that it was swept */
                if
                :: (needs[found] & ~data) == 0 -> assert(made_kind[found] == COMMIT)
                :: else -> assert(floor > found)
                fi
            }
        fi
    :: else -> break
    od
}

proctype Keeper() {                              /* Savepoints.keep, of commit 3 */
    byte low = 0;
    atomic { if :: kind[3] == COMMIT -> pin = 1 :: else -> goto done fi };
#ifndef NO_FLOOR
    atomic { low = floor };
    if :: low > 3 -> pin = 0; goto done :: else fi;
#endif
    atomic { marked = marked | BIT(3) };
    atomic { if :: kind[3] != COMMIT || (needs[3] & ~data) != 0 -> assert(false) :: else fi };  /* SWEPT */
    pin = 0;
done:
    skip
}

proctype Hour() { atomic { now = now + 1 } }

init {
    atomic {
        /* claim 0, commit 1, claim 2, commits 3 and 4, all an hour old; claim 5, commit 6; the hint names 1. */
        byte i = 0;
        do
        :: i < 7 ->
            stamps = stamps + 1;
            kind[i] = ((i == 0 || i == 2 || i == 5) -> CLAIM : COMMIT);
            stamp[i] = stamps; made[i] = stamps; made_kind[i] = kind[i]; goes_on[i] = NONE; when[i] = (i < 5 -> 0 : 1);
            names[i] = (i == 0 -> NONE : (i == 2 -> 1 : (i == 5 -> 4 : made[i - 1])));
            if
            :: kind[i] == COMMIT -> data = data | BIT(i); needs[i] = BIT(i); newest = i
            :: else
            fi;
            i = i + 1
        :: else -> break
        od;
        holds[1] = 1; holds[3] = 3; holds[4] = 7; holds[6] = 15;
        acknowledged = 15; ends = 7; hint = 1; epoch = 3; now = 1;
#ifndef WITH_KEEPER
        marked = BIT(3);
#endif
        run Driver(1, NONE);
#ifdef WITH_B
        run Driver(0, NONE);
#endif
#ifdef WITH_BACK
        run Driver(0, 1);
#endif
#ifdef WITH_SWEEP
        run Sweep();
#endif
#ifdef WITH_READER
        run Reader();
#endif
#ifdef WITH_KEEPER
        run Keeper();
#endif
#ifdef WITH_HOUR
        run Hour();
#endif
    }
}
