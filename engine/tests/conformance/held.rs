//! Commits that are held: other transactions see them as committed, and snapshots leave them out
//! until they are done. Histories with random delays, and each rule by itself, with a fault that
//! breaks it.

use crate::client::{Client, Mood};
use crate::load::{assert_serializable, policies, run, Load};
use crate::steps;
use crate::world::{Jitter, Row, World, PARTITIONS, WIDTH};
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::csn::{Csn, SlotId};
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::lock::Mode;
use mixedcc_engine::open::{Kept, Seen};
use mixedcc_engine::platform::{Outcome, Platform, Queue, WaitFor};
use mixedcc_engine::retire::RetireQueue;
use mixedcc_engine::shared::Adopter;
use mixedcc_engine::txn::{How, OpenEnd};
use mixedcc_engine::{Error, Level, Policy, Protocol, ProtocolSet, RecordRef, Txn};
use std::ops::Bound::{Excluded, Included};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[test]
fn histories_with_delays_before_done() {
    for p in Protocol::ALL {
        for &policy in policies(ProtocolSet::of(p)) {
            let mut l = Load::new(&[ProtocolSet::of(p)], policy, 7000 + 10 * p.index() as u64 + policy as u64);
            (l.holds, l.commits) = (50, 1000);
            let (h, counts) = run(&l);
            assert_serializable(&h, &counts, l.seed);
        }
    }
}

#[test]
fn histories_with_delays_between_pairs_of_protocols() {
    for a in Protocol::ALL {
        for b in Protocol::ALL.into_iter().skip(a.index() + 1) {
            let both = ProtocolSet::mediated(a, b);
            let mut l = Load::new(&[both, ProtocolSet::of(a), both, ProtocolSet::of(b)], Policy::Wait, 7100);
            (l.seed, l.holds, l.commits, l.spans) = (l.seed + 10 * a.index() as u64 + b.index() as u64, 50, 1000, 20);
            let (h, counts) = run(&l);
            assert_serializable(&h, &counts, l.seed);
        }
    }
}

pub fn world(p: Protocol) -> &'static World {
    Box::leak(Box::new(World::new(&[ProtocolSet::of(p)], Policy::Wait, 4)))
}

pub const FINE: &str = "nobody is in the way";

/// A transaction that adds 1 to a row, and has come to the wait for its flush.
fn hold_update(w: &'static World, slot: u16, r: &Recorder, key: i64) -> Client<'static> {
    let mut c = Client::new(w, slot, r.session(), 7);
    c.begin(Mood::Serializable);
    assert!(c.update(key, false).expect(FINE));
    hold(&mut c);
    c
}

fn hold(c: &mut Client) {
    c.t.prepare_locks(&c.p).expect(FINE);
    c.t.prepare_decide(&c.p, true, &|_, _| {}).expect(FINE);
    c.t.mark_committed();
    c.t.settle();
    c.t.rest();
}

fn finish(c: &mut Client) {
    c.t.done();
    c.t.finish(&c.p);
}

/// A transaction at REPEATABLE READ with its snapshot.
pub fn reader(w: &'static World, slot: u16) -> (Txn, Jitter, Kept) {
    let (mut t, p) = (Txn::new(w.e, slot), Jitter::new(w, slot, 7));
    t.begin(Level::Snapshot, w.ident());
    let kept = snapshot(&mut t);
    (t, p, kept)
}

/// A snapshot, with a list only if it must have one.
pub fn snapshot(t: &mut Txn) -> Kept {
    if let Some(now) = t.take_quiet() {
        return Seen::prefix(now).keep();
    }
    let mut list = Vec::new();
    let (upto, floor) = t.take_seen(&mut list);
    Kept { upto, floor, excluded: list.into_iter().map(|x| x.0).collect() }
}

pub fn value(w: &World, t: &mut Txn, p: &Jitter, seen: Seen<'_>, key: i64) -> Option<i64> {
    let rows = w.records(key).into_iter().filter_map(|r| match t.peek_snapshot(r, seen) {
        Some(found) => found,
        None => t.read_snapshot(p, r, seen).expect("a read"),
    });
    rows.map(|v| Row::read(v).value).next()
}

/// With a fault of this thread on.
fn with<R>(fault: Option<Fault>, f: impl FnOnce() -> R) -> R {
    faults::set(fault);
    let r = f();
    faults::set(None);
    r
}

/// Neither fails without a fault, nor is overlooked with it.
pub fn finds(fault: Fault, is_right: impl Fn() -> bool) {
    assert!(with(None, &is_right), "without a fault");
    assert!(!with(Some(fault), &is_right), "{fault:?} was not found");
}

#[test]
fn a_snapshot_shows_a_commit_when_it_is_done() {
    for p in Protocol::ALL {
        let (w, r) = (world(p), Recorder::new());
        let mut writer = hold_update(w, 0, &r, 0);
        let (mut before, pb, kept) = reader(w, 1);
        assert_eq!(kept.excluded.len(), 1);
        assert_eq!(value(w, &mut before, &pb, kept.seen(), 0), Some(100), "it is not done");
        let mut t = Client::new(w, 2, r.session(), 7);
        t.begin(Mood::ReadOnly);
        assert_eq!(t.get(0).expect(FINE).map(|r| r.value), Some(101), "a serializable snapshot is a prefix");
        assert!(t.t.depends_on_open());
        finish(&mut writer);
        assert!(!t.t.depends_on_open());
        t.commit().expect(FINE);
        assert_eq!(value(w, &mut before, &pb, kept.seen(), 0), Some(100), "its snapshot is the same");
        before.abort();
        let (mut after, pa, kept) = reader(w, 1);
        assert_eq!((kept.upto, kept.excluded.len()), (kept.floor, 0));
        assert_eq!(value(w, &mut after, &pa, kept.seen(), 0), Some(101));
        after.abort();
    }
}

/// A snapshot that leaves a commit out needs what the commit has replaced, although its pin is
/// later than the commit.
#[test]
fn what_a_commit_has_replaced_stays_for_those_who_leave_it_out() {
    finds(Fault::RetiresBeforeDone, || {
        let (w, r) = (world(Protocol::Occ), Recorder::new());
        let mut writer = hold_update(w, 0, &r, 0);
        w.e.tick(); // another commit
        let (mut t, p, kept) = reader(w, 1);
        let drain = |slot| RetireQueue::drain(&w.e, slot, w.e.refresh_min_pin(&p), usize::MAX);
        drain(0);
        finish(&mut writer);
        drain(0);
        let stays = RetireQueue::len(&w.e, 0) == 1;
        if stays {
            assert_eq!(value(w, &mut t, &p, kept.seen(), 0), Some(100));
        }
        t.abort();
        w.e.tick();
        drain(0);
        assert_eq!(RetireQueue::len(&w.e, 0), 0, "without the snapshot it is freed");
        stays
    });
}

/// A reader that leaves out the delete of a row, after that is done. Others have committed since.
fn beside_a_delete(then: impl Fn(&'static World, &mut Txn, &Jitter, Seen<'_>, RecordRef) -> bool) -> bool {
    let (w, r) = (world(Protocol::Occ), Recorder::new());
    let of_key = w.records(0)[0];
    let mut writer = Client::new(w, 0, r.session(), 7);
    writer.begin(Mood::Serializable);
    assert!(writer.delete(0, false, false).expect(FINE));
    hold(&mut writer);
    w.e.tick();
    let (mut t, p, kept) = reader(w, 1);
    finish(&mut writer);
    w.e.tick();
    let right = then(w, &mut t, &p, kept.seen(), of_key);
    t.abort();
    w.e.tick();
    assert!(w.table.is_dead(of_key.rec, w.e.refresh_min_floor(&p)), "no snapshot needs the row");
    right
}

#[test]
fn a_deleted_row_is_not_dead_while_a_snapshot_leaves_its_delete_out() {
    finds(Fault::DeadByPins, || {
        beside_a_delete(|w, t, p, seen, r| {
            let lives = !w.table.is_dead(r.rec, w.e.refresh_min_floor(p));
            assert_eq!(value(w, t, p, seen, 0), Some(100));
            assert!(w.e.pin_oldest(2).floor < seen.upto && w.e.now() > seen.upto, "an index build must know");
            w.e.unpin(2);
            lives
        })
    });
}

#[test]
fn a_look_at_columns_goes_below_a_tombstone_that_is_left_out() {
    finds(Fault::PastByPin, || beside_a_delete(|_, t, _, _, r| t.any_row(r.rec).is_some()));
}

#[test]
fn an_importer_has_the_list_of_the_exporter() {
    let (w, r) = (world(Protocol::Occ), Recorder::new());
    let mut writer = hold_update(w, 0, &r, 0);
    let (mut exporter, _, kept) = reader(w, 1);
    w.e.show(1, kept.seen(), Adopter::Importer);
    finish(&mut writer);
    w.e.tick();
    let ident = w.e.slots[1].ident.load(mixedcc_engine::primitive::Ordering::SeqCst);
    assert_eq!(w.e.adopt_pin(2, 1, ident + 1, Adopter::Importer), None, "another transaction");
    let adopted = w.e.adopt_pin(2, 1, ident, Adopter::Importer).expect("the exporter runs");
    assert_eq!((adopted.upto, &adopted.excluded), (kept.upto, &kept.excluded));
    exporter.abort();
    let (mut t, p) = (Txn::new(w.e, 2), Jitter::new(w, 2, 7));
    t.begin(Level::Snapshot, w.ident());
    t.adopt_seen(adopted.seen(), false);
    RetireQueue::drain(&w.e, 0, w.e.refresh_min_pin(&p), usize::MAX);
    assert_eq!(value(w, &mut t, &p, adopted.seen(), 0), Some(100), "its pin keeps what the exporter saw");
    t.abort();
    assert_eq!(w.e.adopt_pin(2, 1, ident, Adopter::Importer), None, "the exporter has ended");
}

#[test]
fn a_worker_alone_adopts_the_snapshot_of_a_statement() {
    let (w, r) = (world(Protocol::Occ), Recorder::new());
    let mut writer = hold_update(w, 0, &r, 0);
    let (mut leader, _, kept) = reader(w, 1);
    w.e.show(1, kept.seen(), Adopter::Worker);
    let ident = w.e.slots[1].ident.load(mixedcc_engine::primitive::Ordering::SeqCst);
    assert_eq!(w.e.adopt_pin(2, 1, ident, Adopter::Importer), None, "the snapshot ends with its statement");
    let adopted = w.e.adopt_pin(2, 1, ident, Adopter::Worker).expect("the leader shows it");
    assert_eq!((adopted.upto, &adopted.excluded), (kept.upto, &kept.excluded));
    w.e.hide(1);
    assert_eq!(w.e.adopt_pin(3, 1, ident, Adopter::Worker), None, "the statement has ended");
    leader.abort();
    finish(&mut writer);
    w.e.tick();
    let (mut t, p) = (Txn::new(w.e, 2), Jitter::new(w, 2, 7));
    t.begin(Level::Snapshot, w.ident());
    t.adopt_seen(adopted.seen(), false);
    RetireQueue::drain(&w.e, 0, w.e.refresh_min_pin(&p), usize::MAX);
    assert_eq!(value(w, &mut t, &p, adopted.seen(), 0), Some(100), "its pin keeps what the leader sees");
    t.abort();
}

/// *B* reads a row of *A*, which is not done, and writes another one.
#[test]
fn a_transaction_depends_on_what_it_has_read() {
    finds(Fault::DependsForgotten, || {
        let mut right = true;
        for p in Protocol::ALL {
            let (w, r) = (world(p), Recorder::new());
            let mut a = hold_update(w, 0, &r, 0);
            let mut b = Client::new(w, 1, r.session(), 7);
            b.begin(Mood::Serializable);
            if p == Protocol::Occ {
                assert_eq!(b.get(0).expect(FINE).map(|r| r.value), Some(101), "logged commits are read");
                assert!(b.update(WIDTH, false).expect(FINE));
                b.t.prepare_locks(&b.p).expect(FINE);
                right &= b.t.depends_on_open();
            }
            finish(&mut a);
            right &= !b.t.depends_on_open();
            b.abort();
        }
        right
    });
}

/// Many commits are folded into one number.
/// A frozen transaction (INV-FROZEN) reads a prefix of the commits, and waits for those that it has
/// read.
#[test]
fn a_frozen_transaction_depends_on_what_it_has_read() {
    let waits = || {
        let (w, r) = (world(Protocol::Occ), Recorder::new());
        let mut writer = hold_update(w, 0, &r, 0);
        let mut t = Client::new(w, 1, r.session(), 7);
        t.begin(Mood::Serializable);
        t.t.freeze_from_start();
        assert_eq!(t.get(2).expect(FINE).map(|r| r.value), Some(100));
        assert!(!t.t.depends_on_open(), "it has not read that yet");
        assert_eq!(t.get(0).expect(FINE).map(|r| r.value), Some(101));
        assert!(t.t.is_frozen());
        let waits = t.t.depends_on_open();
        finish(&mut writer);
        assert!(!t.t.depends_on_open());
        t.commit().expect(FINE);
        waits
    };
    finds(Fault::DependsForgotten, waits);
}

#[test]
fn a_look_by_a_prefix_depends_on_what_it_has_read() {
    let (w, r) = (world(Protocol::Occ), Recorder::new());
    let mut writer = hold_update(w, 0, &r, 0);
    let (mut t, p) = (Txn::new(w.e, 1), Jitter::new(w, 1, 7));
    t.begin(Level::Snapshot, w.ident());
    let seen = Seen::prefix(t.take_prefix(&mut Vec::new()).0);
    assert_eq!(value(w, &mut t, &p, seen, WIDTH), Some(100));
    assert!(!t.has_depends(), "the commit is not of this row");
    assert_eq!(value(w, &mut t, &p, seen, 0), Some(101));
    assert!(t.depends_on_open());
    finish(&mut writer);
    assert!(!t.depends_on_open());
    t.abort();
}

#[test]
fn a_transaction_may_depend_on_very_many_commits() {
    let (w, r) = (world(Protocol::Occ), Recorder::new());
    let mut first = hold_update(w, 0, &r, 0);
    let mut b = Client::new(w, 1, r.session(), 7);
    b.begin(Mood::Serializable);
    b.get(0).expect(FINE);
    for _ in 0..100 {
        let mut a = hold_update(w, 2, &r, WIDTH);
        // It fails: what it has read has changed since.
        if b.get(WIDTH).is_err() {
            b.abort();
            b.begin(Mood::Serializable);
            b.get(0).expect(FINE);
            b.get(WIDTH).expect(FINE);
        }
        finish(&mut a);
    }
    let mut a = hold_update(w, 2, &r, WIDTH + 2);
    b.abort();
    b.begin(Mood::ReadOnly);
    assert_eq!(b.get(0).expect(FINE).map(|r| r.value), Some(101));
    assert!(b.t.depends_on_open());
    finish(&mut first);
    assert!(!b.t.depends_on_open(), "it has not read the other one");
    finish(&mut a);
    b.commit().expect(FINE);
}

/// *A* counts up a row. *B* reads it and writes what it has read into another row. No snapshot
/// shows what *B* has written without what it has read, and none shows it before it is done.
fn followers(fault: Option<Fault>, seed: u64) -> bool {
    let (w, r) = (World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 4), Recorder::new());
    let (over, whole) = (AtomicBool::new(false), AtomicBool::new(true));
    let shown = AtomicU64::new(0);
    let start = Instant::now();
    std::thread::scope(|s| {
        let (w, over, whole, shown) = (&w, &over, &whole, &shown);
        for slot in 0..2 {
            let session = r.session();
            s.spawn(move || {
                faults::set(fault);
                let mut c = Client::new(w, slot, session, seed + slot as u64);
                (c.holds, c.faulty) = (if slot == 0 { 100 } else { 0 }, fault.is_some());
                while !over.load(Ordering::Relaxed) {
                    c.begin(Mood::Serializable);
                    let ends = if slot == 0 { c.add(0, 1, false).map(|_| ()) } else { copy(&mut c) };
                    match ends.and_then(|()| c.commit()) {
                        Ok(()) => {}
                        Err(_) => c.abort(),
                    }
                }
                faults::set(None);
            });
        }
        s.spawn(move || {
            faults::set(fault);
            let (mut t, p) = (Txn::new(w.e, 2), Jitter::new(w, 2, seed));
            let enough = |n: u64| n > 300 || start.elapsed() > Duration::from_secs(2);
            while whole.load(Ordering::Relaxed) && !enough(shown.load(Ordering::Relaxed)) {
                t.begin(Level::Snapshot, w.ident());
                let kept = snapshot(&mut t);
                let a = value(w, &mut t, &p, kept.seen(), 0);
                let b = value(w, &mut t, &p, kept.seen(), WIDTH);
                if b > a {
                    whole.store(false, Ordering::Relaxed);
                }
                shown.fetch_add(u64::from(!kept.excluded.is_empty()), Ordering::Relaxed);
                t.abort();
            }
            faults::set(None);
            over.store(true, Ordering::Relaxed);
        });
    });
    whole.into_inner()
}

/// Sets the second row to the value of the first one.
fn copy(c: &mut Client) -> Result<(), Error> {
    let from = c.get(0)?.expect("a row").value;
    let to = c.get(WIDTH)?.expect("a row").value;
    c.add(WIDTH, from - to, false).map(|_| ())
}

#[test]
fn no_snapshot_shows_a_commit_without_what_it_has_read() {
    assert!(followers(None, 1));
    for fault in [Fault::DependsForgotten, Fault::DoneTooEarly] {
        assert!((0..20).any(|seed| !followers(Some(fault), seed)), "{fault:?} was not found");
    }
}

/// Memory of ranges is kept by pins alone, and a commit that waits has none.
#[test]
fn a_held_commit_has_nothing_that_lies_in_ranges() {
    let (w, r) = (steps::world(Protocol::TwoPhase, Policy::Wait, &[10, 20, 30], 16), Recorder::new());
    let mut c = steps::session(&w, &r, 0);
    c.begin(Mood::Serializable);
    steps::begin_scan(&mut c, 0, Included(4), Excluded(30), OpenEnd::No).expect(FINE);
    assert!(c.insert(WIDTH + 15).expect(FINE) && c.update(0, false).expect(FINE));
    let set = steps::ranges(&w, 0).current();
    let held = || (0..set.len()).filter(|no| set.range(*no).lock.held_by(0).is_some()).count();
    assert!(held() > 0);
    hold(&mut c);
    assert_eq!((held(), w.e.is_pinned(0)), (0, false));
    assert!(w.records(0)[0].rec.lock.held_by(0).is_some(), "rows stay locked until it is done");
    finish(&mut c);
    assert!(w.records(0)[0].rec.lock.is_free());
}

/// A platform to which another authority has told the outcome of commits.
struct Told<'a>(&'a Jitter, Csn);

impl Platform for Told<'_> {
    fn wait_for(&self, w: WaitFor) -> Result<(), Error> {
        self.0.wait_for(w)
    }
    fn enter_queue(&self, q: Queue) -> Result<(), Error> {
        self.0.enter_queue(q)
    }
    fn leave_queue(&self, q: Queue) {
        self.0.leave_queue(q);
    }
    fn pause(&self, _: u32) -> Result<(), Error> {
        panic!("nobody waits for an outcome that is known")
    }
    fn lock_tag(&self) -> u32 {
        0
    }
    fn quiescent(&self, _: SlotId) -> bool {
        false
    }
    fn outcome(&self, _: SlotId, csn: Csn) -> Outcome {
        if csn == self.1 {
            Outcome::Committed
        } else {
            Outcome::Open
        }
    }
}

/// A commit waits for its standby, and has committed for all others: its word is *committing*.
#[test]
fn a_commit_that_waits_for_its_standby_is_read_and_not_waited_for() {
    let (w, r) = (world(Protocol::Occ), Recorder::new());
    let mut a = Client::new(w, 0, r.session(), 7);
    a.begin(Mood::Serializable);
    assert!(a.update(0, false).expect(FINE));
    let mut old = Txn::new(w.e, 1);
    old.begin(Level::Serializable, w.ident());
    let record = w.records(0)[0];
    let quiet = Jitter::new(w, 1, 7);
    old.read(&quiet, record, false).expect(FINE);
    old.validate_at_commit();
    a.t.prepare_locks(&a.p).expect(FINE);
    a.t.prepare_decide(&a.p, true, &|_, _| {}).expect(FINE);
    a.t.let_go_early();
    let csn = w.e.open_commit(0);
    assert!(csn != 0);
    let told = Told(&quiet, csn);
    // A snapshot that shows it, as it has ended for PostgreSQL.
    let (mut t, _, kept) = reader(w, 2);
    let seen = Seen { excluded: &[], ..kept.seen() };
    let found = t.read_snapshot(&told, record, seen).expect("no wait").expect("a row");
    assert_eq!(Row::read(found).value, 101);
    let found = t.read_snapshot(&told, record, kept.seen()).expect("no wait").expect("a row");
    assert_eq!(Row::read(found).value, 100, "one that leaves it out");
    t.abort();
    // A serializable transaction that reads it depends on it.
    t.begin(Level::Serializable, w.ident());
    let found = t.read(&told, record, false).expect("no wait").expect("a row");
    assert_eq!(Row::read(found).value, 101);
    assert!(t.depends_on_open());
    t.abort();
    // One that has read what it replaces fails.
    assert!(old.prepare(&told, &|_, _| {}).is_err());
    old.abort();
    w.e.await_commits(&told, 3, w.table.id).expect("no wait");
    a.t.mark_committed();
    a.t.settle();
    a.t.rest();
    finish(&mut a);
    assert_eq!(w.e.done_upto().0, w.e.done_upto().1);
}

/// At any point of a held commit the transaction can abort, but for the last steps.
#[test]
fn an_aborted_commit_is_not_open() {
    let (w, r) = (world(Protocol::Occ), Recorder::new());
    let mut a = Client::new(w, 0, r.session(), 7);
    for early in [false, true] {
        a.begin(Mood::Serializable);
        assert!(a.update(0, false).expect(FINE));
        a.t.prepare_locks(&a.p).expect(FINE);
        a.t.prepare_decide(&a.p, true, &|_, _| {}).expect(FINE);
        if early {
            a.t.let_go_early();
        }
        assert!(w.e.open_commit(0) != 0);
        a.abort();
        let (now, done) = w.e.done_upto();
        assert_eq!((w.e.open_commit(0), now), (0, done));
    }
    a.begin(Mood::Serializable);
    assert_eq!(a.get(0).expect(FINE).map(|r| r.value), Some(100));
    assert!((0..PARTITIONS).all(|p| a.scan(p).is_ok()));
    a.commit().expect(FINE);
}

/// *A* has inserted row 40, and another authority has decided about its commit: it has no pin. A
/// writer below SERIALIZABLE, for which it has ended, replaces the row and is about to commit.
fn replaced_undecided() -> bool {
    let (w, r) = (world(Protocol::Occ), Recorder::new());
    let mut a = Client::new(w, 0, r.session(), 7);
    a.begin(Mood::Serializable);
    assert!(a.insert(40).expect(FINE));
    undecided(&mut a);
    let record = w.records(40)[0];
    let quiet = Jitter::new(w, 1, 7);
    let told = Told(&quiet, w.e.open_commit(0));
    let mut b = Txn::new(w.e, 1);
    b.begin(Level::Snapshot, w.ident());
    let found = b.lock_for_write(&told, record, Mode::NoKeyUpdate, How::Wait, true).expect("no wait");
    let base = found.expect("a row").0;
    let version = b.new_version(0, 64, 0).expect("room");
    b.update(record, Some(base), version, 1);
    let waits = b.depends_on_open();
    b.abort();
    a.t.mark_committed();
    a.t.settle();
    finish(&mut a);
    waits
}

/// Takes a commit to where another authority decides about it.
fn undecided(c: &mut Client) {
    c.t.prepare_locks(&c.p).expect(FINE);
    c.t.prepare_decide(&c.p, true, &|_, _| {}).expect(FINE);
    c.t.let_go_early();
    c.t.rest_undecided();
}

#[test]
fn a_writer_waits_for_the_commit_whose_unstamped_version_it_replaces() {
    finds(Fault::OpenForgotten, replaced_undecided);
}

/// A commit about which another authority decides has no pin. What it has registered, and what it
/// replaces, is there when it is decided, although boundaries of ranges have changed twice.
#[test]
fn an_undecided_commit_has_no_pin_and_loses_nothing() {
    for commits in [true, false] {
        let w: &World = Box::leak(Box::new(steps::world(Protocol::Occ, Policy::Wait, &[10, 20, 30], 16)));
        let r = Recorder::new();
        let mut c = steps::session(w, &r, 0);
        c.begin(Mood::Serializable);
        steps::begin_scan(&mut c, 0, Included(4), Excluded(30), OpenEnd::No).expect(FINE);
        assert!(c.insert(WIDTH + 15).expect(FINE) && c.update(0, false).expect(FINE));
        undecided(&mut c);
        assert!(!w.e.is_pinned(0) && w.e.open_commit(0) != 0);
        let (mut before, p, kept) = reader(w, 1);
        assert_eq!(value(w, &mut before, &p, kept.seen(), 0), Some(100), "it is not done");
        before.abort();
        if commits {
            c.t.mark_committed();
            c.t.settle();
            c.t.rest();
            finish(&mut c);
        } else {
            c.abort();
        }
        let (mut after, p, kept) = reader(w, 1);
        assert_eq!(value(w, &mut after, &p, kept.seen(), 0), Some(if commits { 101 } else { 100 }));
        after.abort();
    }
}

/// A commit that has ended its pin exports no snapshot: what the snapshot sees may be freed.
#[test]
fn a_commit_without_a_pin_exports_no_snapshot() {
    for decided in [false, true] {
        finds(Fault::ShownWithoutPin, || {
            let w = world(Protocol::Occ);
            let (mut t, p, kept) = reader(w, 0);
            w.e.show(0, kept.seen(), Adopter::Importer);
            let ident = w.e.slots[0].ident.load(mixedcc_engine::primitive::Ordering::SeqCst);
            let record = w.records(0)[0];
            let found = t.lock_for_write(&p, record, Mode::NoKeyUpdate, How::Wait, true).expect(FINE);
            let version = t.new_version(0, 64, 0).expect("room");
            t.update(record, found.map(|f| f.0), version, 1);
            t.prepare_locks(&p).expect(FINE);
            t.prepare_decide(&p, true, &|_, _| {}).expect(FINE);
            t.let_go_early();
            if decided {
                t.mark_committed();
                t.settle();
                t.rest();
            } else {
                t.rest_undecided();
            }
            assert!(!w.e.is_pinned(0));
            let adopted = w.e.adopt_pin(1, 0, ident, Adopter::Importer);
            w.e.unpin(1);
            if decided {
                t.done();
                t.finish(&p);
            } else {
                t.abort();
            }
            adopted.is_none()
        });
    }
}

/// Sets of ranges stay while a commit without a pin has registered in them.
#[test]
fn sets_stay_for_undecided_commits() {
    finds(Fault::SetsFreedEarly, || {
        let (w, r) = (steps::world(Protocol::Occ, Policy::Wait, &[10, 20, 30], 16), Recorder::new());
        let (mut c, other) = (steps::session(&w, &r, 0), steps::session(&w, &r, 2));
        c.begin(Mood::Serializable);
        assert!(c.update(0, false).expect(FINE));
        undecided(&mut c);
        let told = Told(&other.p, w.e.open_commit(0));
        let reap = || {
            w.e.tick();
            w.table.reap_ranges(&w.e, 2, w.e.refresh_min_pin(&other.p));
        };
        let ranges = steps::ranges(&w, 0);
        assert!(w.rebuild(&told, 2, 0, &[5], 16).expect("room"));
        reap(); // takes the old set out of use
        reap();
        let dead = ranges.dead_sets();
        assert!(dead == 1 || faults::on(Fault::SetsFreedEarly));
        c.t.mark_committed();
        c.t.settle();
        c.t.rest();
        finish(&mut c);
        reap();
        assert_eq!(ranges.dead_sets(), 0);
        dead == 1
    });
}

/// So do the ranges of an index that was dropped, which a commit without a pin has registered in.
#[test]
fn ranges_of_a_dropped_index_stay_for_undecided_commits() {
    finds(Fault::SetsFreedEarly, || {
        let (w, r) = (steps::world(Protocol::Occ, Policy::Wait, &[10, 20, 30], 16), Recorder::new());
        let (mut c, other) = (steps::session(&w, &r, 0), steps::session(&w, &r, 2));
        c.begin(Mood::Serializable);
        assert!(c.update(0, false).expect(FINE));
        undecided(&mut c);
        w.table.drop_ranges(&w.e, 2, steps::ranges(&w, 0).index);
        let reap = || {
            w.e.tick();
            w.table.reap_ranges(&w.e, 2, w.e.refresh_min_pin(&other.p));
        };
        reap();
        let dropped = w.table.dropped_ranges();
        c.t.mark_committed();
        c.t.settle();
        c.t.rest();
        finish(&mut c);
        reap();
        assert_eq!(w.table.dropped_ranges(), 0);
        dropped == 1
    });
}
