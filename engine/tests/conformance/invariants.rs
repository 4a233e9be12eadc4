//! What holds after every transaction, however it ended: nothing is locked, pending or registered.

use crate::client::{Client, Mood};
use crate::memory::live;
use crate::world::{initial_keys, Jitter, PanicAt, Rng, Row, World, PARTITIONS, WIDTH};
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::csn::State;
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::lock::Mode;
use mixedcc_engine::open::Seen;
use mixedcc_engine::platform::StopEvent;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::record::{REC_DEAD, REC_FREE, REC_USED};
use mixedcc_engine::threads::{Block, Threads};
use mixedcc_engine::txn::How;
use mixedcc_engine::{Error, Level, Policy, Protocol, ProtocolSet, Table, Txn};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

/// All single protocols and all mediated pairs.
pub fn all_sets() -> Vec<ProtocolSet> {
    let p = Protocol::ALL;
    let pairs = (0..p.len()).flat_map(|b| (0..b).map(move |a| ProtocolSet::mediated(p[a], p[b])));
    p.into_iter().map(ProtocolSet::of).chain(pairs).collect()
}

const EVENTS: [StopEvent; 9] = [
    StopEvent::CommitLock,
    StopEvent::CommitRegister,
    StopEvent::CommitLink,
    StopEvent::CommitPrepare,
    StopEvent::CommitValidate,
    StopEvent::CommitDecided,
    StopEvent::LockWait,
    StopEvent::Read,
    StopEvent::Write,
];

/// Nothing of any transaction is left.
pub fn assert_quiet(w: &World, what: &str) {
    for p in w.table.map().partitions() {
        assert!(p.lock.is_free(), "{what}: a partition is locked");
        assert!(p.ring.list().is_finished(), "{what}: a registration is open");
        assert!(p.admits(w.e.now() + 1), "{what}: a partition is guarded");
    }
    let mut free = 0;
    for no in 0..w.table.len() {
        let r = w.table.record(no).expect("its number exists");
        free += usize::from(r.state.load(Ordering::SeqCst) == REC_FREE);
        assert!(r.lock.is_free(), "{what}: record {no} is locked");
        assert_eq!(r.writer.load(Ordering::SeqCst), 0, "{what}: record {no} has a writer");
        let v = r.head();
        match r.state.load(Ordering::SeqCst) {
            REC_USED => {
                assert!(!v.is_null(), "{what}: record {no} is reserved");
                // SAFETY: no thread retires anything while the test looks.
                let v = unsafe { &*v };
                assert!(v.csn().is_some(), "{what}: record {no} has the pending version {:?}", v.stamp());
            }
            REC_DEAD | REC_FREE => assert!(v.is_null(), "{what}: record {no} is dead and has a version"),
            s => panic!("{what}: record {no} is in state {s}"),
        }
    }
    assert_eq!(free, w.table.free_numbers(), "{what}: INV-RUN: numbers are lost");
    for slot in 0..w.e.slots.len() as u16 {
        assert_eq!(w.e.word(slot).state(), State::Idle, "{what}: slot {slot}");
        assert!(!w.e.is_pinned(slot), "{what}: slot {slot} is pinned");
    }
}

/// All rows, as a transaction that starts now sees them.
fn contents(w: &World) -> Vec<(i64, i64)> {
    let mut t = Txn::new(w.e, w.slots);
    let p = Jitter::new(w, w.slots, 1);
    t.begin(Level::Snapshot, w.ident());
    let csn = w.e.now();
    let rows = w.snapshot(&mut t, &p, csn, 0, PARTITIONS as i64 * WIDTH).expect("a snapshot");
    t.abort();
    rows.into_iter().map(|r| (r.key, r.value)).collect()
}

/// A transaction with every kind of write.
fn everything(c: &mut Client, mood: Mood) -> Result<(), Error> {
    c.begin(mood);
    c.scan(0)?;
    c.update(0, false)?;
    c.update(0, true)?;
    c.insert(1)?;
    c.delete(2, true, false)?;
    c.delete(1002, false, false)?;
    c.insert(1003)?;
    c.update(1003, false)?;
    c.insert(1005)?;
    c.delete(1005, false, false)?;
    c.savepoint();
    c.relocate(2000, 2001, true)?;
    c.update(2002, true)?;
    c.savepoint();
    c.insert(2003)?;
    c.update(0, true)?;
    c.end_savepoint(true);
    c.end_savepoint(false);
    c.savepoint();
    c.relocate(3000, 3001, false)?;
    c.end_savepoint(true);
    c.get(3001)?;
    c.commit()
}

/// Runs `everything` with a failure or an unwinding; true if it took place.
fn with_failure(w: &World, mood: Mood, at: Option<StopEvent>, unwind: Option<PanicAt>, prepares: bool) -> bool {
    let recorder = Recorder::new();
    let mut c = Client::new(w, 0, recorder.session(), 1);
    c.prepares = if prepares { 100 } else { 0 };
    c.p.threads.fail_at.set(at);
    c.p.panic_at.set(unwind);
    let r = catch_unwind(AssertUnwindSafe(|| everything(&mut c, mood)));
    let happened = match r {
        Ok(Ok(())) => false,
        Ok(Err(e)) => {
            assert_eq!(e, Error::Injected);
            true
        }
        Err(p) => {
            assert!(p.is::<PanicAt>(), "another panic: {p:?}");
            true
        }
    };
    c.abort();
    happened
}

#[test]
fn failures_at_every_event_leave_nothing_behind() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<PanicAt>() {
            hook(info);
        }
    }));
    for set in all_sets() {
        for mood in [Mood::Serializable, Mood::ReadCommitted, Mood::RepeatableRead] {
            for event in EVENTS {
                for (unwind, prepares) in [(false, false), (true, false), (false, true), (true, true)] {
                    let what = format!("{} {mood:?} {event:?} unwinding {unwind}, {prepares}", set.name());
                    let w = World::new(&[set], Policy::Wait, 1);
                    let before = contents(&w);
                    let fail = (!unwind).then_some(event);
                    let happened = with_failure(&w, mood, fail, unwind.then_some(PanicAt::Event(event)), prepares);
                    let expected = event != StopEvent::LockWait
                        && (event != StopEvent::Read || mood == Mood::Serializable)
                        && !(prepares && matches!(event, StopEvent::CommitPrepare | StopEvent::CommitDecided));
                    assert_eq!(happened, expected, "{what}");
                    assert_quiet(&w, &what);
                    assert_eq!(contents(&w) == before, happened, "{what}: all or nothing");
                    assert!(!with_failure(&w, mood, None, None, prepares), "{what}: the slot is of use afterwards");
                    assert_quiet(&w, &what);
                }
            }
        }
    }
}

/// Another transaction is in the way: failures of the wait.
#[test]
fn failures_of_waits_leave_nothing_behind() {
    for set in all_sets() {
        for mood in [Mood::Serializable, Mood::ReadCommitted] {
            for at in [PanicAt::Event(StopEvent::LockWait), PanicAt::EnterQueue, PanicAt::WaitFor] {
                let what = format!("{} {mood:?} {at:?}", set.name());
                let w = World::new(&[set], Policy::Wait, 2);
                let recorder = Recorder::new();
                let mut holder = Client::new(&w, 0, recorder.session(), 1);
                holder.begin(Mood::ReadCommitted);
                holder.update(0, false).expect("nobody is in the way");
                let mut c = Client::new(&w, 1, recorder.session(), 1);
                c.p.panic_at.set(Some(at));
                let r = catch_unwind(AssertUnwindSafe(|| {
                    c.begin(mood);
                    c.insert(1)?;
                    c.savepoint();
                    c.update(2, false)?;
                    c.update(0, false)?;
                    c.commit()
                }));
                assert!(r.is_err_and(|p| p.is::<PanicAt>()), "{what}: it did not wait");
                c.abort();
                holder.commit().expect("nobody is in the way");
                assert_quiet(&w, &what);
                assert_eq!(contents(&w)[0], (0, 101), "{what}");
            }
        }
    }
}

/// A transaction that sleeps for the partition of an insert holds a version that is in no record
/// yet.
#[test]
fn an_insert_that_does_not_come_back_leaves_no_version_behind() {
    let w = World::new(&[ProtocolSet::of(Protocol::PartCc)], Policy::Wait, 2);
    let recorder = Recorder::new();
    let mut holder = Client::new(&w, 0, recorder.session(), 1);
    holder.begin(Mood::ReadCommitted);
    holder.update(0, false).expect("nobody is in the way");
    let mut c = Client::new(&w, 1, recorder.session(), 1);
    let mut bytes = Vec::new();
    for at in [PanicAt::WaitFor, PanicAt::EnterQueue, PanicAt::WaitFor, PanicAt::Event(StopEvent::Write)] {
        c.begin(Mood::ReadCommitted);
        c.p.panic_at.set(Some(at));
        // The last one is in a partition that is free.
        let key = if at == PanicAt::Event(StopEvent::Write) { WIDTH + 1 } else { 1 };
        let r = catch_unwind(AssertUnwindSafe(|| c.insert(key)));
        assert!(r.is_err_and(|p| p.is::<PanicAt>()), "{at:?}");
        c.abort();
        bytes.push(live(&w));
    }
    assert_eq!(bytes, vec![bytes[0]; 4], "the first one has made room in the queue of retired memory");
}

#[test]
fn a_reader_that_unwinds_while_it_waits_for_a_commit() {
    for set in all_sets() {
        let w = World::new(&[set], Policy::Wait, 2);
        let recorder = Recorder::new();
        let mut writer = Client::new(&w, 0, recorder.session(), 1);
        writer.begin(Mood::ReadCommitted);
        writer.update(0, false).expect("nobody is in the way");
        writer.t.prepare(&writer.p, &|_, _| {}).expect("nothing to validate");
        let mut reader = Client::new(&w, 1, recorder.session(), 1);
        reader.begin(Mood::ReadOnly);
        reader.p.panic_at.set(Some(PanicAt::Pause));
        let r = catch_unwind(AssertUnwindSafe(|| reader.get(0).map(|r| r.is_some())));
        assert!(r.is_err_and(|p| p.is::<PanicAt>()), "a snapshot at or after the CSN must wait for the outcome");
        reader.abort();
        writer.abort();
        assert_quiet(&w, &set.name());
        assert_eq!(contents(&w)[0], (0, 100));
    }
}

/// A lock that was upgraded in nested savepoints goes back step by step.
#[test]
fn upgraded_locks_go_back() {
    for set in all_sets() {
        for level in [Level::Snapshot, Level::Serializable] {
            let w = World::new(&[set], Policy::Wait, 1);
            let p = Jitter::new(&w, 0, 1);
            let mut t = Txn::new(w.e, 0);
            t.begin(level, w.ident());
            let r = w.records(0)[0];
            let reads_are_locked = set.locks_reads() && level == Level::Serializable;
            let modes = [Mode::KeyShare, Mode::Share, Mode::NoKeyUpdate, Mode::Update];
            for (i, m) in modes.into_iter().enumerate() {
                t.set_depth(i as u32 + 1);
                p.threads.tag.set(i as u32 * 10);
                t.lock_record(&p, r, m, How::Wait, false).expect("nobody is in the way");
                assert_eq!(r.rec.lock.held_by(0).map(|h| h.mode), Some(m));
            }
            for depth in (2..=4).rev() {
                t.abort_sub(depth);
                let mode = modes[depth as usize - 2];
                let mode = if reads_are_locked { mode.max(Mode::Share) } else { mode };
                assert_eq!(r.rec.lock.held_by(0).map(|h| h.mode), Some(mode), "{} {level:?}", set.name());
            }
            t.abort();
            assert_quiet(&w, &set.name());
        }
    }
}

/// Transfers between accounts; every snapshot has the same sum, and what it showed stays.
fn bank(sets: &[ProtocolSet], policy: Policy, seed: u64) {
    eprintln!("seed {seed}");
    let w = World::new(sets, policy, 6);
    let sum = contents(&w).iter().map(|r| r.1).sum::<i64>();
    let keys: Vec<i64> = initial_keys().collect();
    let stop = AtomicBool::new(false);
    let recorder = Recorder::new();
    // So long, and until there were enough audits and transfers, however busy the machine is.
    let (end, latest) = (Instant::now() + Duration::from_millis(400), Instant::now() + Duration::from_secs(60));
    let (audits, transfers) = ([const { AtomicU64::new(0) }; 2], [const { AtomicU64::new(0) }; 4]);
    let above = |all: &[AtomicU64], least| all.iter().all(|n| n.load(Ordering::SeqCst) > least);
    let enough = || above(&audits, 10) && above(&transfers, 5);
    let under_way = || Instant::now() < end || !enough() && Instant::now() < latest;
    std::thread::scope(|s| {
        let writers = (0..4u16).map(|slot| {
            let (w, keys, session, under_way) = (&w, &keys, recorder.session(), &under_way);
            let done = &transfers[slot as usize];
            s.spawn(move || {
                let mut c = Client::new(w, slot, session, seed);
                let mut rng = Rng::new(seed + slot as u64);
                c.p.yields.set(20);
                let mood = if slot == 3 { Mood::ReadCommitted } else { Mood::Serializable };
                while under_way() {
                    let (a, b) = (rng.below(keys.len() as u64) as usize, rng.below(keys.len() as u64) as usize);
                    c.begin(mood);
                    match transfer(&mut c, keys[a], keys[b], &mut rng) {
                        Ok(()) => _ = done.fetch_add(1, Ordering::SeqCst),
                        Err(Error::Abort { .. } | Error::Deadlock) => c.abort(),
                        Err(e) => panic!("{e:?}"),
                    }
                }
                w.e.region.flush_slot(slot as usize);
            })
        });
        let writers: Vec<_> = writers.collect();
        let readers: Vec<_> = (4..6u16)
            .map(|slot| {
                let (w, stop, done) = (&w, &stop, &audits[slot as usize - 4]);
                s.spawn(move || audit(w, slot, sum, stop, done))
            })
            .collect();
        writers.into_iter().for_each(|t| t.join().expect("a writer"));
        stop.store(true, Ordering::SeqCst);
        readers.into_iter().for_each(|t| t.join().expect("a reader"));
    });
    assert!(enough(), "audits {audits:?}, transfers {transfers:?}: one starved");
    assert_eq!(contents(&w).iter().map(|r| r.1).sum::<i64>(), sum);
    assert_quiet(&w, "after the transfers");
}

fn transfer(c: &mut Client, a: i64, b: i64, rng: &mut Rng) -> Result<(), Error> {
    let amount = rng.below(9) as i64;
    assert!(c.add(a, -amount, rng.percent(50))? && c.add(b, amount, rng.percent(50))?, "an account is gone");
    c.commit()
}

fn audit(w: &World, slot: u16, sum: i64, stop: &AtomicBool, done: &AtomicU64) {
    let p = Jitter::new(w, slot, slot as u64);
    let mut t = Txn::new(w.e, slot);
    while !stop.load(Ordering::SeqCst) {
        t.begin(Level::Snapshot, w.ident());
        let csn = w.e.now();
        let first = w.snapshot(&mut t, &p, csn, 0, PARTITIONS as i64 * WIDTH).expect("a snapshot");
        assert_eq!(first.iter().map(|r| r.value).sum::<i64>(), sum, "a transfer is half visible");
        for _ in 0..3 {
            std::thread::yield_now();
            let again = w.snapshot(&mut t, &p, csn, 0, PARTITIONS as i64 * WIDTH).expect("a snapshot");
            assert_eq!(again, first, "a snapshot changed");
        }
        t.abort();
        done.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn snapshots_of_a_bank_are_whole() {
    for (i, set) in all_sets().into_iter().enumerate() {
        bank(&[set], Policy::ALL[i % 3], 70 + i as u64);
    }
    bank(&Protocol::ALL.map(ProtocolSet::of), Policy::Wait, 80);
}

/// Two writes of one commit, one seen and one not: found out at the next read, not only at commit.
#[test]
fn a_read_over_a_pending_commit_dooms_early() {
    let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 2);
    let recorder = Recorder::new();
    let mut writer = Client::new(&w, 0, recorder.session(), 1);
    writer.begin(Mood::Serializable);
    assert!(writer.update(0, false).expect("nobody is in the way") && writer.update(2, false).expect("nobody"));
    writer.t.prepare(&writer.p, &|_, _| {}).expect("a valid commit");
    let p = Jitter::new(&w, 1, 1);
    p.threads.freezes.set(false);
    let mut t = Txn::new(w.e, 1);
    t.begin(Level::Serializable, w.ident());
    let old = t.read(&p, w.records(0)[0], false).expect("not invalid yet").expect("a row");
    assert_eq!(Row::read(old).value, 100, "the outcome is open");
    writer.t.publish(&writer.p);
    let r = t.read(&p, w.records(2)[0], false);
    assert!(matches!(r, Err(Error::Abort { reason: AbortReason::ReadChanged, .. })), "{r:?}");
    t.abort();
    assert_quiet(&w, "after both");
}

/// A look-up that missed an insert which was validated as if it had been seen.
#[test]
fn a_predicate_added_late_dooms_early() {
    let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 2);
    let recorder = Recorder::new();
    let p = Jitter::new(&w, 1, 1);
    p.threads.freezes.set(false);
    let mut t = Txn::new(w.e, 1);
    t.begin(Level::Serializable, w.ident());
    let start = t.before_lookup(&p, w.touch(0)).expect("nobody is in the way");
    assert!(w.records(1).is_empty());
    let mut writer = Client::new(&w, 0, recorder.session(), 1);
    writer.begin(Mood::Serializable);
    assert!(writer.insert(1).expect("nobody") && writer.update(1000, false).expect("nobody"));
    writer.commit().expect("nobody is in the way");
    assert!(t.read(&p, w.records(1000)[0], false).expect("all is valid so far").is_some());
    t.add_predicate(w.touch(0), start);
    let r = t.read(&p, w.records(1)[0], false);
    assert!(matches!(r, Err(Error::Abort { reason: AbortReason::Phantom, .. })), "{r:?}");
    t.abort();
    assert_quiet(&w, "after both");
}

/// `wait_die`: a loser that tries again is older than all that came after its first try, so that it
/// does not lose to them; after its commit it starts anew.
#[test]
fn a_retry_keeps_its_age() {
    let w = World::new(&[ProtocolSet::of(Protocol::TwoPhase)], Policy::WaitDie, 3);
    let row = |key: i64| w.records(key)[0];
    let age = |slot: u16| w.e.slots[slot as usize].age.load(Ordering::SeqCst);
    let p: Vec<Jitter> = (0..3).map(|s| Jitter::new(&w, s, 1)).collect();
    let mut t: Vec<Txn> = (0..3).map(|s| Txn::new(w.e, s)).collect();
    let write = |t: &mut Txn, p: &Jitter, key: i64| {
        t.lock_for_write(p, row(key), Mode::NoKeyUpdate, How::Wait, false).map(|_| ())
    };
    t[0].begin(Level::Serializable, w.ident());
    write(&mut t[0], &p[0], 0).expect("nobody is in the way");
    t[1].begin(Level::Serializable, w.ident());
    write(&mut t[1], &p[1], 2).expect("nobody is in the way");
    let first = age(1);
    let died = |e: Result<(), Error>| matches!(e, Err(Error::Abort { reason: AbortReason::WaitDie, .. }));
    assert!(died(write(&mut t[1], &p[1], 0)), "the holder is older");
    t[1].abort();
    // Somebody else comes in between.
    t[2].begin(Level::Serializable, w.ident());
    write(&mut t[2], &p[2], 2).expect("nobody is in the way");
    t[1].begin(Level::Serializable, w.ident());
    write(&mut t[1], &p[1], 1000).expect("nobody is in the way");
    assert_eq!(age(1), first);
    assert!(died(write(&mut t[2], &p[2], 1000)), "the holder has retried and is older");
    assert!(died(write(&mut t[1], &p[1], 0)), "the oldest is older still");
    t[0].abort();
    // It waits for the younger one instead of losing to it: a wait that fails shows it.
    p[1].panic_at.set(Some(PanicAt::WaitFor));
    let waits = catch_unwind(AssertUnwindSafe(|| write(&mut t[1], &p[1], 2)));
    assert!(waits.is_err_and(|p| p.is::<PanicAt>()), "an older one waits for a younger one");
    t[2].abort();
    write(&mut t[1], &p[1], 2).expect("nobody is in the way");
    t[1].prepare(&p[1], &|_, _| {}).expect("nothing to validate");
    t[1].publish(&p[1]);
    for (commits, same) in [(true, false), (false, false)] {
        t[1].begin(Level::Serializable, w.ident());
        write(&mut t[1], &p[1], 0).expect("nobody is in the way");
        assert_eq!(age(1) == first, same, "a new transaction after a commit, or an abort of its own");
        if commits {
            t[1].prepare(&p[1], &|_, _| {}).expect("nothing to validate");
            t[1].publish(&p[1]);
        } else {
            t[1].abort();
        }
    }
    assert_quiet(&w, "ages");
}

/// The counters of a transaction that touches more partitions than are looked at one by one.
#[test]
fn every_partition_of_many_is_counted() {
    const MANY: u32 = 300;
    let block = Block::new(16 << 20, 1).expect("memory for a block");
    let e = block.engine;
    let set = ProtocolSet::of(Protocol::Occ);
    let map = Table::new_map(&e, 0, MANY, 0, b"", set, Policy::Wait).expect("a map");
    let table = Table::create(&e, 0, [1, 2, 3, 4], map).expect("a table");
    let p = Threads::new(e, 0, Default::default());
    let mut t = Txn::new(e, 0);
    t.begin(Level::Serializable, 1);
    let insert = |t: &mut Txn, part: u32| {
        let v = t.new_version(part, 8, 0).expect("memory for a version");
        t.insert(&p, table, [part as u16, 0], v, 0, 0).expect("memory for a record")
    };
    // A partition is touched again after more others than are near, and after few.
    let rows: Vec<_> = (0..MANY).map(|i| insert(&mut t, i)).collect();
    for i in (0..MANY).rev().chain(0..MANY / 2) {
        insert(&mut t, i);
    }
    t.set_depth(2);
    insert(&mut t, MANY - 1);
    t.abort_sub(2);
    t.prepare(&p, &|_, _| {}).expect("nothing to validate");
    t.publish(&p);
    t.begin(Level::Snapshot, 2);
    for r in rows.iter().chain(&rows) {
        let csn = e.now();
        t.read_snapshot(&p, *r, Seen::prefix(csn)).expect("no failure");
    }
    t.prepare(&p, &|_, _| {}).expect("nothing to validate");
    t.publish(&p);
    for (i, part) in table.map().partitions().iter().enumerate() {
        let s = &part.stats;
        let counts = [s.sum(|s| &s.reads), s.sum(|s| &s.writes), s.sum(|s| &s.commits)];
        let writes = if (i as u32) < MANY / 2 { 3 } else { 2 };
        assert_eq!(counts, [2, writes, 2], "partition {i}");
    }
}

/// INV-RUN: however a transaction with inserts ends, the record numbers that it has taken and not
/// used are free again. Another one inserts meanwhile, so that there are gaps.
#[test]
fn record_numbers_that_were_not_used_come_back() {
    let ends: [fn(&mut Client); 4] = [
        |c| c.commit().expect("nobody is in the way"),
        |c| c.abort(),
        |c| {
            c.end_savepoint(true);
            c.abort();
        },
        |c| {
            c.end_savepoint(false);
            c.prepares = 100;
            c.commit().expect("nobody is in the way");
        },
    ];
    for (fault, end) in [None, Some(Fault::KeepsRuns)].into_iter().flat_map(|f| ends.map(|end| (f, end))) {
        let (w, recorder) = (World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 4), Recorder::new());
        let [mut c, mut other] = [0, 1].map(|slot| Client::new(&w, slot, recorder.session(), 5));
        [&mut c, &mut other].into_iter().for_each(|c| c.begin(Mood::Serializable));
        faults::set(fault);
        c.savepoint();
        for key in 0..5 {
            c.insert(3001 + 2 * key).expect("nobody is in the way");
            other.insert(1001 + 2 * key).expect("nobody is in the way");
        }
        end(&mut c);
        other.commit().expect("nobody is in the way");
        faults::set(None);
        let quiet = catch_unwind(AssertUnwindSafe(|| assert_quiet(&w, "at the end")));
        assert_eq!(quiet.is_ok(), fault.is_none(), "{fault:?}");
    }
}
