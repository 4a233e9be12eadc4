//! Prepared transactions: guards against commits (INV-AHEAD), and the CSN of their log against the
//! look of a round (INV-LOOK). The tallies are the engine's own.

use crate::{fails, model};
use loom::sync::atomic::{AtomicU64, Ordering::SeqCst};
use loom::sync::Arc;
use loom::thread;
use mixedcc_engine::csn::{Csn, SlotWord, State};
use mixedcc_engine::durable::standby::{End, Ends};
use mixedcc_engine::open::TAKING;
use mixedcc_engine::partition::Tally;

/// The step that is left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Breaks {
    Nothing,
    /// The guard is raised after the validation.
    RaisesLate,
    /// The guard ends before the CSN.
    EndsEarly,
    /// The guard does not say with which CSN it ended.
    ForgetsCsn,
    /// The commit looks before it has its CSN.
    LooksEarly,
}

/// A row that a prepared transaction has read, and that a commit writes.
struct World {
    all: Tally,
    guard: Tally,
    clock: AtomicU64,
    linked: AtomicU64,
    word: AtomicU64,
}

impl World {
    fn new() -> Arc<World> {
        let (linked, word) = (AtomicU64::new(0), AtomicU64::new(SlotWord::new(1, 0, State::Active).0));
        Arc::new(World { all: Tally::default(), guard: Tally::default(), clock: AtomicU64::new(1), linked, word })
    }
    fn tick(&self) -> Csn {
        self.clock.fetch_add(1, SeqCst) + 1
    }
    fn set(&self, state: State, csn: Csn) {
        self.word.store(SlotWord::new(1, csn, state).0, SeqCst);
    }
    fn raise(&self) {
        self.all.enter();
        self.guard.enter();
    }
    fn lower(&self, csn: Csn) {
        self.guard.leave(csn);
        self.all.leave(csn);
    }
    fn admits(&self, csn: Csn) -> bool {
        self.all.admits(csn) || self.guard.admits(csn)
    }
    /// Is the row at `n` as it was read?
    fn validates(&self, n: Csn) -> bool {
        loop {
            if self.linked.load(SeqCst) == 0 {
                return true;
            }
            let w = SlotWord(self.word.load(SeqCst));
            match w.state() {
                State::Committed => return w.csn() > n,
                State::Committing if w.csn() <= n => thread::yield_now(),
                State::Preparing => thread::yield_now(),
                _ => return true,
            }
        }
    }
    /// A commit that writes the row: its CSN, if it succeeds.
    fn commit(&self, breaks: Breaks) -> Option<Csn> {
        let early = breaks == Breaks::LooksEarly;
        let admitted = early && self.admits(u64::MAX >> 16);
        self.linked.store(1, SeqCst);
        self.set(State::Preparing, 0);
        let csn = self.tick();
        self.set(State::Committing, csn);
        if admitted || !early && self.admits(csn) {
            self.set(State::Committed, csn);
            return Some(csn);
        }
        self.set(State::Aborted, 0);
        None
    }
    /// The prepared transaction, from PREPARE to its end: its CSN, if it was prepared.
    fn prepare_and_commit(&self, breaks: Breaks) -> Option<Csn> {
        let late = breaks == Breaks::RaisesLate;
        if !late {
            self.raise();
        }
        let n = self.tick();
        let valid = self.validates(n);
        if late {
            self.raise();
        }
        if !valid {
            self.lower(0);
            return None;
        }
        if breaks == Breaks::EndsEarly {
            self.lower(0);
            return Some(self.tick());
        }
        let csn = self.tick();
        self.lower(if breaks == Breaks::ForgetsCsn { 0 } else { csn });
        Some(csn)
    }
}

fn guarded(breaks: Breaks) {
    let w = World::new();
    let writer = thread::spawn({
        let w = w.clone();
        move || w.commit(breaks)
    });
    let prepared = w.prepare_and_commit(breaks);
    let wrote = writer.join().unwrap();
    if let (Some(prepared), Some(wrote)) = (prepared, wrote) {
        assert!(wrote > prepared, "what it has read was changed before its CSN");
    }
    assert_eq!((w.all.count(), w.guard.count()), (0, 0));
}

#[test]
fn what_a_prepared_transaction_has_read_stays() {
    model(|| guarded(Breaks::Nothing));
}

#[test]
fn each_step_of_the_guards_is_needed() {
    for breaks in [Breaks::RaisesLate, Breaks::EndsEarly, Breaks::ForgetsCsn, Breaks::LooksEarly] {
        assert!(fails(move || guarded(breaks)));
    }
}

/// Two transactions are prepared. Each has read what the other one writes.
fn overlapping(looks_first: bool) {
    let all: Arc<[[Tally; 2]; 2]> = Arc::default();
    let prepare = move |all: &[[Tally; 2]; 2], me: usize| {
        // It has read row `me`, and writes the other one.
        let (read, written) = (&all[me], &all[1 - me]);
        let raise = || {
            read[0].enter();
            written[1].enter();
        };
        let is_alone = |own: u64| read[1].count() == 0 && written[0].count() == 0 && own < 2;
        if looks_first {
            let alone = is_alone(0);
            raise();
            return alone;
        }
        raise();
        is_alone(1)
    };
    let other = thread::spawn({
        let all = all.clone();
        move || prepare(&all, 1)
    });
    let one = prepare(&all, 0);
    assert!(!(one && other.join().unwrap()), "both are prepared");
}

#[test]
fn of_two_that_overlap_one_is_prepared_at_most() {
    model(|| overlapping(false));
    assert!(fails(|| overlapping(true)));
}

/// The look of a round at a row without a CSN in memory, while a transaction that has written it is
/// prepared: the CSN of the older row is below that of the log.
fn look(links_late: bool, tells_late: bool) {
    let w = Arc::new([AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(1)]);
    let writer = thread::spawn({
        let w = w.clone();
        move || {
            let [linked, at, clock] = &*w;
            if !links_late {
                linked.store(1, SeqCst);
            }
            if !tells_late {
                at.store(TAKING, SeqCst);
            }
            let n = clock.fetch_add(1, SeqCst) + 1;
            linked.store(1, SeqCst);
            at.store(n, SeqCst);
            n
        }
    });
    let [linked, at, clock] = &*w;
    clock.fetch_add(1, SeqCst); // another commit
    let mut older = clock.load(SeqCst);
    while linked.load(SeqCst) == 1 {
        match at.load(SeqCst) {
            0 => break,
            TAKING => thread::yield_now(),
            n => {
                older = older.min(n - 1);
                break;
            }
        }
    }
    assert!(older < writer.join().unwrap(), "the older row would win");
}

#[test]
fn a_look_gives_nothing_a_csn_above_that_of_the_log() {
    model(|| look(false, false));
    assert!(fails(|| look(true, false)) && fails(|| look(false, true)));
}

/// What is broken in what standbys are told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tells {
    Right,
    /// The slot forgets before the end is noted.
    ForgetsFirst,
    /// The transaction has committed before its slot forgets.
    CommitsFirst,
    /// The ends are looked at before the slots.
    LooksAtEndsFirst,
    /// What is forgotten is not looked at.
    Forgotten,
}

/// Two prepared transactions with the ids 1 and 2, logged at 2 and 3, and the slots of them. The
/// ring has room for one end.
#[derive(Default)]
struct Slots {
    clock: AtomicU64,
    words: [AtomicU64; 2],
    logged: [AtomicU64; 2],
    ends: Ends<1>,
}

impl Slots {
    fn set(&self, i: usize, state: State, csn: Csn) {
        self.words[i].store(SlotWord::new(1, csn, state).0, SeqCst);
    }
    fn commit_prepared(&self, i: usize, tells: Tells) -> Csn {
        self.set(i, State::Preparing, 0);
        let ended = self.clock.fetch_add(1, SeqCst) + 1;
        self.set(i, State::Committing, ended);
        let logged = i as u64 + 2;
        let note = || self.ends.note(End { xid: i as u64 + 1, logged, ended, what: 0 });
        if tells != Tells::ForgetsFirst {
            note();
        }
        if tells == Tells::CommitsFirst {
            self.set(i, State::Committed, ended);
        }
        self.logged[i].store(0, SeqCst);
        if tells == Tells::ForgetsFirst {
            note();
        }
        self.set(i, State::Committed, ended);
        ended
    }
    /// What is told while another commit is under way at 4, or when that has ended.
    fn tell(&self, under_way: bool, tells: Tells) -> Option<(Csn, Vec<u64>)> {
        let mut upto = self.clock.load(SeqCst);
        for word in &self.words {
            let word = loop {
                match SlotWord(word.load(SeqCst)) {
                    w if w.state() == State::Preparing => thread::yield_now(),
                    w => break w,
                }
            };
            if word.state() == State::Committing {
                upto = upto.min(word.csn() - 1);
            }
        }
        if under_way {
            upto = upto.min(3);
        }
        let (mut open, mut early) = (Vec::new(), Vec::new());
        if tells == Tells::LooksAtEndsFirst {
            self.ends.look(&mut early);
        }
        for (i, logged) in self.logged.iter().enumerate() {
            let n = logged.load(SeqCst);
            if n != 0 && n <= upto {
                open.push(i as u64 + 1);
            }
        }
        let mut ends = Vec::new();
        let forgotten = self.ends.look(&mut ends);
        if tells == Tells::LooksAtEndsFirst {
            ends = early;
        }
        open.extend(ends.iter().filter(|end| end.is_open_at(upto)).map(|end| end.xid));
        open.sort_unstable();
        open.dedup();
        (upto >= forgotten || tells == Tells::Forgotten).then_some((upto, open))
    }
}

/// What is told is exact: also of those that have ended since the CSN that is told.
fn told(under_way: bool, tells: Tells) {
    let s = Arc::new(Slots::default());
    s.clock.store(4, SeqCst);
    (0..2).for_each(|i| {
        s.set(i, State::Active, 0);
        s.logged[i].store(i as u64 + 2, SeqCst);
    });
    let ender = thread::spawn({
        let s = s.clone();
        move || [0, 1].map(|i| s.commit_prepared(i, tells))
    });
    let told = s.tell(under_way, tells);
    let ended = ender.join().unwrap();
    if let Some((upto, open)) = told {
        let wanted: Vec<u64> = (0..2).filter(|i| upto < ended[*i as usize]).map(|i| i + 1).collect();
        assert_eq!(open, wanted, "at {upto}, with ends at {ended:?}");
    }
}

#[test]
fn standbys_are_told_exactly_what_is_open() {
    model(|| told(false, Tells::Right));
    model(|| told(true, Tells::Right));
}

#[test]
fn each_step_of_what_is_told_is_needed() {
    assert!(fails(|| told(true, Tells::ForgetsFirst)));
    assert!(fails(|| told(false, Tells::CommitsFirst)));
    assert!(fails(|| told(true, Tells::LooksAtEndsFirst)));
    assert!(fails(|| told(true, Tells::Forgotten)));
}
