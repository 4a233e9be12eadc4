//! A waiter gets its turn (INV-TURN): newcomers stay behind one that has waited for a holder in
//! vain, for each kind of lock; they pass where the waiter comes to wait for them; and no newcomer
//! stays behind a waiter that has given up.

use crate::client::{Client, Mood};
use crate::spans::{borrowed, encode};
use crate::world::{Jitter, PanicAt, World, PARTITIONS, WIDTH};
use mixedcc_engine::checker::{Recorder, Session};
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::lock::Mode;
use mixedcc_engine::range::Looked;
use mixedcc_engine::txn::{How, OpenEnd, Scan};
use mixedcc_engine::{Error, Policy, Protocol, ProtocolSet};
use std::cell::{Cell, RefCell};
use std::ops::Bound;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::rc::Rc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Step = fn(&mut Client) -> Result<(), Error>;
type Start = (Mood, Step);

/// Transactions that overlap, and one that waits for their lock.
#[derive(Clone, Copy)]
struct Kind {
    what: &'static str,
    protocol: Protocol,
    /// What the overlapping ones do.
    holds: Start,
    /// What the waiter has done before, if it holds the lock in a weaker mode.
    before: Option<Step>,
    wants: Start,
    /// Only one at a time can hold it: the next one takes it as soon as it is free.
    alone: bool,
}

fn read(c: &mut Client) -> Result<(), Error> {
    c.get(0).map(|_| ())
}
fn write(c: &mut Client) -> Result<(), Error> {
    c.update(0, false).map(|_| ())
}
fn share(c: &mut Client) -> Result<(), Error> {
    lock(c, Mode::Share)
}
fn key_share(c: &mut Client) -> Result<(), Error> {
    lock(c, Mode::KeyShare)
}
fn update(c: &mut Client) -> Result<(), Error> {
    lock(c, Mode::Update)
}
fn lock(c: &mut Client, mode: Mode) -> Result<(), Error> {
    let r = c.w.records(0)[0];
    c.statement();
    c.t.lock_row(&c.p, r, mode, How::Wait).map(|_| ())
}
fn nothing(_: &mut Client) -> Result<(), Error> {
    Ok(())
}
/// A key in the first range that this client alone inserts.
fn insert(c: &mut Client) -> Result<(), Error> {
    let key = c.private_key(0, 1);
    if c.get(key)?.is_some() {
        return c.delete(key, false, false).map(|_| ());
    }
    c.insert(key).map(|_| ())
}
/// The first range as a whole.
fn scan(c: &mut Client) -> Result<(), Error> {
    c.statement();
    let at: Vec<_> = (0..PARTITIONS).map(|p| c.w.touch(p)).collect();
    let hi = Bound::Excluded(encode(0, 3 * WIDTH));
    let s = Scan {
        at: &at,
        lo: Bound::Unbounded,
        hi: borrowed(&hi),
        open: OpenEnd::No,
        snapshot: None,
        looked: Looked::ALL,
    };
    c.t.begin_scan(&c.p, c.w.index_ranges(0).expect("active ranges"), &s).map(|_| ())
}

const KINDS: &[Kind] = {
    use Mood::{ReadCommitted as Rc, Serializable as Ser};
    use Protocol::{PartCc, TwoPhase};
    let two =
        Kind { what: "", protocol: TwoPhase, holds: (Ser, read), before: None, wants: (Ser, write), alone: false };
    &[
        Kind { what: "a writer behind readers", ..two },
        Kind { what: "a reader that becomes a writer", before: Some(read), ..two },
        Kind { what: "a writer of another level", wants: (Rc, write), ..two },
        Kind { what: "FOR UPDATE behind FOR SHARE", holds: (Rc, share), wants: (Rc, update), ..two },
        Kind {
            what: "FOR UPDATE after FOR KEY SHARE",
            holds: (Rc, key_share),
            before: Some(key_share),
            wants: (Rc, update),
            ..two
        },
        Kind {
            what: "FOR UPDATE behind FOR SHARE, occ",
            protocol: Protocol::Occ,
            holds: (Rc, share),
            wants: (Rc, update),
            ..two
        },
        Kind { what: "a writer behind writers", holds: (Ser, write), alone: true, ..two },
        Kind { what: "an insert behind scans of its range", holds: (Ser, scan), wants: (Ser, insert), ..two },
        Kind { what: "a scan behind inserts into its range", holds: (Ser, insert), wants: (Ser, scan), ..two },
        Kind { what: "a partition", protocol: PartCc, holds: (Ser, write), alone: true, ..two },
    ]
};

fn world(protocol: Protocol, policy: Policy) -> &'static World {
    let w = World::new(&[ProtocolSet::of(protocol)], policy, 5);
    let p = Jitter::new(&w, w.slots, 1);
    w.activate(&p, w.slots, 0, &[3 * WIDTH], 64).expect("room for ranges");
    Box::leak(Box::new(w))
}

/// A client whose platform knows its own waits only.
fn client(w: &'static World, slot: u16, session: Session) -> Client<'static> {
    let mut c = Client::new(w, slot, session, 7 + slot as u64);
    c.p = Jitter::of(w.e, Arc::default(), slot, 11 + slot as u64);
    c
}

fn begin(c: &mut Client, (mood, step): Start) -> Result<(), Error> {
    c.begin(mood);
    step(c)
}

/// Begins with a step; true if it had to stand back, and gave up.
fn stands_back(c: &mut Client, start: Start) -> bool {
    c.p.panic_at.set(Some(PanicAt::StandBack));
    let got = catch_unwind(AssertUnwindSafe(|| begin(c, start)));
    c.p.panic_at.set(None);
    match got {
        Err(at) => {
            assert_eq!(at.downcast_ref(), Some(&PanicAt::StandBack));
            c.abort();
            true
        }
        Ok(done) => {
            done.expect("nobody is in its way");
            false
        }
    }
}

/// Two clients that hold a lock in turns.
struct InTurns {
    kind: Kind,
    /// The second one holds it.
    clients: [Client<'static>; 2],
}

impl InTurns {
    /// The next one takes the lock, if it can, and the one before it ends. (An insert may fail for
    /// another's.)
    fn go_on(&mut self) {
        let [next, holder] = &mut self.clients;
        let end = |c: &mut Client| c.commit().unwrap_or_else(|_| c.abort());
        if self.kind.alone {
            end(holder);
        }
        let went = !stands_back(next, self.kind.holds);
        if !self.kind.alone {
            end(holder);
        }
        if went {
            self.clients.swap(0, 1);
        }
    }
}

/// How often a waiter sleeps until it has its lock, while others hold it in turns; as many as
/// `most` if it gives up then.
fn sleeps_of(kind: Kind, most: u32) -> u32 {
    let (w, recorder) = (world(kind.protocol, Policy::Wait), Recorder::new());
    let mut waiter = client(w, 0, recorder.session());
    let mut clients = [client(w, 1, recorder.session()), client(w, 2, recorder.session())];
    begin(&mut clients[1], kind.holds).expect("nobody is in its way");
    begin(&mut waiter, (kind.wants.0, kind.before.unwrap_or(nothing))).expect("nobody is in its way");
    let others = Rc::new(RefCell::new(InTurns { kind, clients }));
    let sleeps = Rc::new(Cell::new(0));
    let count = sleeps.clone();
    *waiter.p.sleeps.borrow_mut() = Some(Box::new(move |_| {
        count.set(count.get() + 1);
        if count.get() == most {
            std::panic::panic_any(PanicAt::WaitFor);
        }
        others.borrow_mut().go_on();
    }));
    match catch_unwind(AssertUnwindSafe(|| kind.wants.1(&mut waiter))) {
        Ok(got) => {
            got.expect("its turn");
            waiter.commit().expect("nobody was in its way");
        }
        Err(at) => assert_eq!(at.downcast_ref(), Some(&PanicAt::WaitFor), "{}", kind.what),
    }
    drop(waiter); // with the others, which abort
    let range = w.index_ranges(0).expect("active ranges").current().range(0);
    let partitions = w.table.map().partitions().iter().map(|p| &p.lock);
    let all = w.records(0).into_iter().map(|r| &r.rec.lock).chain(partitions).chain([&range.lock]);
    assert!(all.into_iter().all(|l| l.is_free()), "{}: a lock or a mark is left", kind.what);
    sleeps.get()
}

#[test]
fn a_writer_behind_overlapping_readers_gets_its_turn() {
    const LONG: u32 = 30;
    for kind in KINDS {
        assert_eq!(sleeps_of(*kind, LONG), 2, "{}", kind.what);
        faults::set(Some(Fault::MarkIgnored));
        let starves = sleeps_of(*kind, LONG);
        faults::set(None);
        assert_eq!(starves, LONG, "{}: the fault", kind.what);
    }
}

/// While the lock is free only the mark keeps the next transaction away.
#[test]
fn a_mark_survives_the_end_of_the_last_holder() {
    let alone = KINDS.iter().filter(|k| k.alone);
    for kind in alone {
        faults::set(Some(Fault::ReleaseForgetsMark));
        let starves = sleeps_of(*kind, 30);
        faults::set(None);
        assert_eq!(starves, 30, "{}: the fault", kind.what);
    }
}

/// A waiter that has marked a lock gives up, in whatever way: newcomers do not stay behind, and
/// nothing is left.
fn gives_up(kind: Kind, savepoint: bool) -> bool {
    let (w, recorder) = (world(kind.protocol, Policy::Wait), Recorder::new());
    let mut waiter = client(w, 0, recorder.session());
    let mut clients = [client(w, 1, recorder.session()), client(w, 2, recorder.session())];
    begin(&mut clients[1], kind.holds).expect("nobody is in its way");
    begin(&mut waiter, (kind.wants.0, kind.before.unwrap_or(nothing))).expect("nobody is in its way");
    if savepoint {
        waiter.savepoint();
    }
    let others = Rc::new(RefCell::new(InTurns { kind, clients }));
    let (sleeps, theirs) = (Cell::new(0), others.clone());
    *waiter.p.sleeps.borrow_mut() = Some(Box::new(move |_| {
        sleeps.set(sleeps.get() + 1);
        if sleeps.get() == 2 {
            std::panic::panic_any(PanicAt::WaitFor);
        }
        theirs.borrow_mut().go_on();
    }));
    let end = catch_unwind(AssertUnwindSafe(|| kind.wants.1(&mut waiter)));
    assert_eq!(end.expect_err("it gives up").downcast_ref(), Some(&PanicAt::WaitFor));
    if savepoint {
        waiter.end_savepoint(false);
    } else {
        waiter.abort();
    }
    let holds = !kind.alone && kind.before.is_none();
    if holds {
        assert!(!stands_back(&mut others.borrow_mut().clients[0], kind.holds), "{}: nobody waits", kind.what);
    }
    waiter.abort();
    drop((waiter, others)); // they abort
    w.records(0)[0].rec.lock.is_free()
        && w.table.map().partitions().iter().all(|p| p.lock.is_free())
        && w.index_ranges(0).expect("active ranges").current().range(0).lock.is_free()
}

#[test]
fn nobody_stays_behind_a_waiter_that_has_given_up() {
    for kind in KINDS {
        for savepoint in [false, true] {
            assert!(gives_up(*kind, savepoint), "{}, savepoint {savepoint}", kind.what);
        }
        if kind.before.is_none() {
            faults::set(Some(Fault::MarkLeftBehind));
            let left = !gives_up(*kind, false);
            faults::set(None);
            assert!(left, "{}: the fault", kind.what);
        }
    }
}

fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::yield_now();
    }
}

fn slept(w: &World) -> u64 {
    w.table.map().partitions().iter().map(|p| p.stats.waits.all()).sum()
}

/// Does a newcomer that reads row 0 stay behind a waiter? Asked by one that does not wait.
fn is_marked(w: &'static World, recorder: &Recorder) -> bool {
    let mut c = client(w, 4, recorder.session());
    c.begin(Mood::ReadCommitted);
    c.statement();
    c.t.lock_row(&c.p, w.records(0)[0], Mode::Share, How::Try) == Err(Error::WouldBlock)
}

/// A process that is told to end in its sleep does not unwind: the end of its transaction takes the
/// mark back.
#[test]
fn a_mark_goes_with_a_process_that_does_not_unwind() {
    let (w, recorder) = (world(Protocol::TwoPhase, Policy::Wait), Recorder::new());
    let mut reader = client(w, 1, recorder.session());
    begin(&mut reader, (Mood::Serializable, read)).expect("nobody writes");
    let (session, txn) = (recorder.session(), Arc::new(AtomicPtr::new(std::ptr::null_mut())));
    let theirs = txn.clone();
    std::thread::spawn(move || {
        let c = Box::leak(Box::new(client(w, 0, session)));
        c.begin(Mood::Serializable);
        let (n, at) = (Cell::new(0), &raw mut c.t as usize);
        *c.p.sleeps.borrow_mut() = Some(Box::new(move |_| {
            n.set(n.get() + 1);
            while n.get() == 2 {
                theirs.store(at as *mut mixedcc_engine::Txn, Ordering::SeqCst);
                std::thread::park();
            }
        }));
        write(c)
    });
    until("it sleeps again", || !txn.load(Ordering::SeqCst).is_null());
    assert!(is_marked(w, &recorder));
    // SAFETY: its thread does nothing any more.
    unsafe { &mut *txn.load(Ordering::SeqCst) }.abort();
    assert!(!is_marked(w, &recorder));
    reader.commit().expect("it has only read");
    assert!(w.records(0)[0].rec.lock.is_free());
}

/// What the threads of a circle share: row 0 is read by `holder`, and marked by a waiter for its
/// end.
struct Circle {
    w: &'static World,
    recorder: Recorder,
}

impl Circle {
    /// Runs `newcomer`, which has done its first step and reads row 0, and `holder`, which has read
    /// row 0 and then does its own step; the holder is first if `holder_first`. All four must
    /// commit.
    fn run(&self, newcomer: Step, holder: Step, holder_first: bool, shared: bool) -> bool {
        let (w, recorder) = (self.w, &self.recorder);
        let client = |slot, session| match shared {
            true => Client::new(w, slot, session, 7),
            false => client(w, slot, session),
        };
        std::thread::scope(|s| {
            let mut early = client(1, recorder.session());
            begin(&mut early, (Mood::Serializable, read)).expect("nobody writes");
            let mut h = client(2, recorder.session());
            begin(&mut h, (Mood::Serializable, read)).expect("nobody writes");
            let mut n = client(3, recorder.session());
            begin(&mut n, (Mood::Serializable, newcomer)).expect("nobody is in its way");
            let session = recorder.session();
            let waiter = s.spawn(move || {
                let mut c = client(0, session);
                begin(&mut c, (Mood::Serializable, write))?;
                c.commit()
            });
            until("the waiter sleeps", || slept(w) == 1);
            early.commit().expect("it has only read");
            until("the waiter has marked the row", || is_marked(w, recorder));
            let asleep = slept(w);
            let holds = move |h: &mut Client| holder(h).and_then(|()| h.commit());
            let comes = move |n: &mut Client| read(n).and_then(|()| n.commit());
            let wait = || {
                until("the first of the two sleeps", || slept(w) > asleep);
                std::thread::sleep(Duration::from_millis(20)); // it is counted just before it is published
            };
            let ends = if holder_first {
                let held = Sent(h);
                let h = s.spawn(move || holds(&mut held.take()));
                wait();
                let got = comes(&mut n);
                drop(n);
                [got, h.join().expect("a thread")]
            } else {
                let came = Sent(n);
                let n = s.spawn(move || comes(&mut came.take()));
                wait();
                let got = holds(&mut h);
                drop(h);
                [n.join().expect("a thread"), got]
            };
            let waited = waiter.join().expect("a thread");
            ends.iter().all(Result::is_ok) && waited.is_ok()
        })
    }
}

/// A client that goes to another thread.
struct Sent(Client<'static>);
// SAFETY: one thread at a time has it.
unsafe impl Send for Sent {}
impl Sent {
    fn take(self) -> Client<'static> {
        self.0
    }
}

/// The newcomer has row 2, the holder wants it: in either order the newcomer passes, and none
/// fails. The platform knows nothing of it.
#[test]
fn a_newcomer_passes_where_the_waiter_waits_for_it() {
    let row2: Step = |c| c.update(2, false).map(|_| ());
    for holder_first in [false, true] {
        let circle = Circle { w: world(Protocol::TwoPhase, Policy::Wait), recorder: Recorder::new() };
        assert!(circle.run(row2, row2, holder_first, false), "holder first {holder_first}");
    }
}

/// The same where only the platform sees the wait for the newcomer: for a lock of its savepoint.
#[test]
fn a_newcomer_passes_where_only_the_platform_knows() {
    let in_savepoint: Step = |c| {
        c.savepoint();
        c.update(2, false).map(|_| ())
    };
    let circle = Circle { w: world(Protocol::TwoPhase, Policy::Wait), recorder: Recorder::new() };
    assert!(circle.run(in_savepoint, |c| c.update(2, false).map(|_| ()), true, true));
}

/// Somebody has read row 0 and sleeps for row 2, which `n` has; a waiter has marked row 0. Must `n`
/// stand back from it?
#[test]
fn without_a_look_at_the_circle_it_would_stand_back_for_ever() {
    for fault in [None, Some(Fault::StandsBackForEver)] {
        let (w, recorder) = (world(Protocol::TwoPhase, Policy::Wait), Recorder::new());
        std::thread::scope(|s| {
            let mut n = client(w, 3, recorder.session());
            begin(&mut n, (Mood::Serializable, |c| c.update(2, false).map(|_| ()))).expect("nobody has it");
            let sessions = [recorder.session(), recorder.session()];
            let [a, b] = sessions;
            let holder = s.spawn(move || {
                let mut h = client(w, 1, a);
                begin(&mut h, (Mood::Serializable, read))?;
                h.update(2, false)?;
                h.commit()
            });
            until("the holder sleeps", || w.e.asleep() == 1);
            let waiter = s.spawn(move || {
                let mut c = client(w, 0, b);
                begin(&mut c, (Mood::Serializable, write))?;
                c.commit()
            });
            until("the row is marked", || is_marked(w, &recorder));
            until("the waiter sleeps again", || w.e.asleep() == 2);
            n.p.panic_at.set(Some(PanicAt::StandBack));
            faults::set(fault);
            let got = catch_unwind(AssertUnwindSafe(|| read(&mut n)));
            faults::set(None);
            n.abort();
            assert_eq!(got.is_ok(), fault.is_none(), "{fault:?}");
            holder.join().expect("a thread").expect("the newcomer has passed, or is gone");
            waiter.join().expect("a thread").expect("its turn");
        });
    }
}

/// A waiter for a row has marked it, and the transaction for which it waits does nothing. Below
/// SERIALIZABLE a lock of the key, as of a check of a foreign key, passes after some time.
#[test]
fn a_lock_of_the_key_stands_back_for_some_time_only() {
    let (w, recorder) = (world(Protocol::Occ, Policy::Wait), Recorder::new());
    let key = (Mood::ReadCommitted, key_share as Step);
    let mut clients = [1, 2, 3].map(|slot| client(w, slot, recorder.session()));
    begin(&mut clients[0], key).expect("nobody writes");
    let mut waiter = client(w, 0, recorder.session());
    waiter.begin(Mood::ReadCommitted);
    let clients = RefCell::new(clients);
    let n = Rc::new(Cell::new(0));
    let sleeps = n.clone();
    *waiter.p.sleeps.borrow_mut() = Some(Box::new(move |_| {
        sleeps.set(sleeps.get() + 1);
        let [a, b, c] = &mut *clients.borrow_mut();
        match sleeps.get() {
            1 => {
                begin(b, key).expect("nobody has marked it");
                a.commit().expect("it has only locked");
            }
            2 => {
                assert!(stands_back(c, key));
                begin(c, key).expect("it passes");
                b.commit().expect("it has only locked");
            }
            _ => c.commit().expect("it has only locked"),
        }
    }));
    update(&mut waiter).expect("its turn");
    waiter.commit().expect("nobody is in its way");
    assert_eq!(n.get(), 3);
}

/// `no_wait` fails where it would have to stand back, NOWAIT says that the row is locked,
/// `wait_die` stands back.
#[test]
fn policies_stand_back_as_they_wait() {
    for policy in Policy::ALL {
        let (w, recorder) = (world(Protocol::TwoPhase, policy), Recorder::new());
        let reader = (Mood::Serializable, read as Step);
        let mut clients = [1, 2, 3].map(|slot| client(w, slot, recorder.session()));
        begin(&mut clients[0], reader).expect("nobody writes");
        let mut waiter = client(w, 0, recorder.session());
        waiter.begin(Mood::ReadCommitted);
        let (n, got) = (Cell::new(0), Rc::new(Cell::new(None)));
        let seen = got.clone();
        let clients = RefCell::new(clients);
        *waiter.p.sleeps.borrow_mut() = Some(Box::new(move |_| {
            n.set(n.get() + 1);
            let [a, b, c] = &mut *clients.borrow_mut();
            if n.get() == 1 {
                begin(b, reader).expect("nobody has marked it");
                a.commit().expect("it has only read");
            } else {
                assert!(is_marked(w, &Recorder::new()), "NOWAIT");
                c.p.panic_at.set(Some(PanicAt::StandBack));
                c.p.threads.freezes.set(false);
                let got = catch_unwind(AssertUnwindSafe(|| begin(c, reader)));
                c.abort();
                seen.set(Some(got.map_err(|_| "stands back")));
                b.commit().expect("it has only read");
            }
        }));
        write(&mut waiter).expect("its turn");
        waiter.commit().expect("nobody is in its way");
        let got = got.take().expect("somebody came");
        match policy {
            Policy::NoWait => {
                assert!(matches!(got, Ok(Err(Error::Abort { reason: AbortReason::LockConflict, .. }))), "{got:?}");
            }
            _ => assert_eq!(got, Err("stands back"), "{policy:?}"),
        }
    }
}
