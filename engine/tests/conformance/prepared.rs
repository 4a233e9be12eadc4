//! Transactions that are prepared, and finished later: histories, how others meet them, and
//! transactions over two engines.

use crate::client::{Client, Mood};
use crate::load::{assert_serializable, find_anomaly, policies, run, Load};
use crate::spans::encode;
use crate::steps::{session, Meanwhile};
use crate::switches::{judge, Plan};
use crate::world::{Jitter, Rng, World, WIDTH};
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::csn::State;
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::open::Seen;
use mixedcc_engine::platform::StopEvent;
use mixedcc_engine::range::Looked;
use mixedcc_engine::retire::RetireQueue;
use mixedcc_engine::txn::{KeptChange, OpenEnd, Scan};
use mixedcc_engine::{Error, Policy, Protocol, ProtocolSet, Txn};
use std::ops::Bound::Included;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const FINE: &str = "nobody is in the way";

#[test]
fn histories_with_prepared_transactions() {
    for p in Protocol::ALL {
        for &policy in policies(ProtocolSet::of(p)) {
            let mut l = Load::new(&[ProtocolSet::of(p)], policy, 7500 + 10 * p.index() as u64 + policy as u64);
            (l.prepares, l.commits, l.spans, l.leaves) = (40, 1000, 15, true);
            let (h, counts) = run(&l);
            assert_serializable(&h, &counts, l.seed);
        }
    }
}

#[test]
fn histories_with_prepared_and_held_transactions_between_pairs() {
    for a in Protocol::ALL {
        for b in Protocol::ALL.into_iter().skip(a.index() + 1) {
            let both = ProtocolSet::mediated(a, b);
            let mut l = Load::new(&[both, ProtocolSet::of(a), both, ProtocolSet::of(b)], Policy::Wait, 7600);
            (l.seed, l.prepares, l.commits) = (l.seed + 10 * a.index() as u64 + b.index() as u64, 40, 1000);
            (l.spans, l.holds, l.leaves) = (15, 20, true);
            let (h, counts) = run(&l);
            assert_serializable(&h, &counts, l.seed);
        }
    }
}

#[test]
fn switches_under_prepared_transactions() {
    judge(Policy::Wait, 7700, |l: &mut Load, _: &mut Plan| (l.prepares, l.spans, l.leaves) = (40, 10, true));
}

/// Demands an anomaly.
fn finds(fault: Fault, tune: impl Fn(&mut Load)) {
    let load = |seed| {
        let mut l = Load::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, seed).serializable_only();
        (l.fault, l.commits, l.prepares, l.yields) = (Some(fault), 1000, 50, 60);
        tune(&mut l);
        l
    };
    let v = find_anomaly(load, 40).unwrap_or_else(|| panic!("{fault:?} was not found"));
    eprintln!("{v}");
}

#[test]
fn guards_ignored_by_commits() {
    finds(Fault::GuardIgnored, |_| {});
}

#[test]
fn guards_ignored_by_prepared_transactions() {
    finds(Fault::GuardsOverlap, |_| {});
}

#[test]
fn guards_that_end_before_the_csn() {
    finds(Fault::GuardEndsEarly, |_| {});
}

#[test]
fn guards_that_begin_after_the_validation() {
    finds(Fault::GuardLate, |_| {});
}

fn world(p: Protocol) -> &'static World {
    Box::leak(Box::new(World::new(&[ProtocolSet::of(p)], Policy::Wait, 4)))
}

fn client(w: &'static World, slot: u16, r: &Recorder, mood: Mood) -> Client<'static> {
    let mut c = Client::new(w, slot, r.session(), 7);
    c.begin(mood);
    c
}

fn value(c: &mut Client, key: i64) -> Option<i64> {
    c.get(key).expect(FINE).map(|r| r.value)
}

/// A prepared transaction that has left its thread, with its slot.
fn left(w: &'static World, r: &Recorder, key: i64) {
    let mut kept = client(w, 0, r, Mood::Serializable);
    assert!(kept.get(key + 2).expect(FINE).is_some());
    assert!(kept.update(key, false).expect(FINE) && kept.insert(key + 1).expect(FINE));
    assert!(kept.delete(key + 4, false, false).expect(FINE));
    kept.prepare().expect(FINE);
    kept.t.hand_over(3);
    kept.log().leave_session();
    kept.p.threads.slot = 3;
    // The thread goes on in its new slot.
    kept.begin(Mood::ReadCommitted);
    assert_eq!(value(&mut kept, key), Some(100));
    assert!(kept.update(3 * WIDTH, false).expect(FINE));
    kept.commit().expect(FINE);
}

#[test]
fn another_thread_finishes_what_was_prepared() {
    for (p, commits) in Protocol::ALL.into_iter().flat_map(|p| [(p, true), (p, false)]) {
        let (w, r) = (world(p), Recorder::new());
        let (of_key, deleted) = (w.records(0)[0], w.records(4)[0]);
        let before = deleted.rec.head();
        left(w, &r, 0);
        let guards = &w.table.map().partitions()[0];
        assert!(!guards.admits(w.e.now() + 1), "it guards what it has read");
        assert_eq!(w.e.kept_slots().collect::<Vec<_>>(), [0]);
        let ended = AtomicBool::new(false);
        std::thread::scope(|s| {
            let waits = s.spawn(|| {
                let mut c = client(w, 1, &r, Mood::ReadCommitted);
                assert!(c.update(0, false).expect(FINE));
                assert!(ended.load(Ordering::SeqCst), "the row is locked");
                c.commit().expect(FINE);
            });
            std::thread::sleep(Duration::from_millis(10));
            ended.store(true, Ordering::SeqCst);
            let mut t = Txn::take_over(w.e, 0).expect("it was left");
            assert!(Txn::take_over(w.e, 0).is_none(), "it is taken once");
            if commits {
                t.decide_prepared();
                t.publish(&Jitter::new(w, 0, 1));
            } else {
                t.abort();
            }
            waits.join().expect("the writer");
        });
        assert_eq!(deleted.rec.head() == before, !commits, "it is linked, or unlinked");
        assert!(of_key.rec.lock.held_by(0).is_none() && guards.admits(w.e.now() + 1));
        assert_eq!((w.e.kept_slots().count(), w.e.word(0).state()), (0, State::Idle));
        let mut after = client(w, 2, &r, Mood::Serializable);
        let new = if commits { [Some(102), Some(0)] } else { [Some(101), None] };
        assert_eq!([0, 1].map(|key| value(&mut after, key)), new, "{p:?}");
        after.commit().expect(FINE);
    }
}

/// Others go on to the older version, and see the new one when it is committed, whatever the
/// order of the numbers.
#[test]
fn readers_pass_over_what_a_prepared_transaction_has_written() {
    for (p, commits) in Protocol::ALL.into_iter().flat_map(|p| [(p, true), (p, false)]) {
        let (w, r) = (world(p), Recorder::new());
        let mut kept = client(w, 0, &r, Mood::ReadCommitted);
        assert!(kept.update(0, false).expect(FINE) && kept.delete(2, false, false).expect(FINE));
        assert!(kept.insert(1).expect(FINE));
        kept.prepare().expect(FINE);
        let old = [Some(100), None, Some(100)];
        let new = if commits { [Some(101), Some(0), None] } else { old };
        let mut before = client(w, 1, &r, Mood::RepeatableRead);
        assert_eq!([0, 1, 2].map(|key| value(&mut before, key)), old);
        if p == Protocol::Occ {
            let mut reader = client(w, 2, &r, Mood::Serializable);
            assert_eq!([0, 1, 2].map(|key| value(&mut reader, key)), old);
            assert!(reader.update(4, false).expect(FINE));
            reader.commit().expect("it has read what is committed");
        }
        if commits {
            kept.commit_prepared();
        } else {
            kept.abort();
        }
        assert_eq!([0, 1, 2].map(|key| value(&mut before, key)), old, "its snapshot is the same");
        before.abort();
        let mut after = client(w, 2, &r, Mood::Serializable);
        assert_eq!([0, 1, 2].map(|key| value(&mut after, key)), new);
        after.commit().expect(FINE);
    }
}

/// A writer of what a prepared transaction has read waits for it.
#[test]
fn writers_wait_for_guards() {
    for (p, mood) in [(Protocol::Occ, Mood::Serializable), (Protocol::Occ, Mood::ReadCommitted)] {
        let (w, r) = (world(p), Recorder::new());
        let mut kept = client(w, 0, &r, Mood::Serializable);
        assert_eq!(value(&mut kept, 0), Some(100));
        assert!(kept.update(WIDTH, false).expect(FINE));
        kept.prepare().expect(FINE);
        let mut elsewhere = client(w, 1, &r, mood);
        assert!(elsewhere.update(3 * WIDTH, false).expect(FINE));
        elsewhere.commit().expect("nothing there is guarded");
        let over = AtomicBool::new(false);
        std::thread::scope(|s| {
            let writer = s.spawn(|| {
                let mut c = client(w, 2, &r, mood);
                assert!(c.update(0, false).expect(FINE));
                c.commit().expect("it has waited");
                over.load(Ordering::SeqCst)
            });
            std::thread::sleep(Duration::from_millis(20));
            assert!(!writer.is_finished(), "the row is guarded");
            over.store(true, Ordering::SeqCst);
            kept.commit_prepared();
            assert!(writer.join().expect("the writer"), "it did not wait");
        });
    }
}

/// A prepared transaction that has read a partition, and another one that writes it.
#[test]
fn prepared_transactions_exclude_each_other() {
    let (w, r) = (world(Protocol::Occ), Recorder::new());
    for (first, second) in [(0, WIDTH), (WIDTH, 0)] {
        let mut a = client(w, 0, &r, Mood::Serializable);
        assert!(a.get(0).expect(FINE).is_some() && a.update(WIDTH, false).expect(FINE));
        a.prepare().expect(FINE);
        let mut b = client(w, 1, &r, Mood::Serializable);
        assert!(b.get(second).expect(FINE).is_some() && b.update(first + 2, false).expect(FINE));
        let failed = b.prepare();
        assert!(matches!(failed, Err(Error::Abort { reason: AbortReason::Prepared, .. })), "{failed:?}");
        b.abort();
        a.commit_prepared();
    }
}

/// What others replace meanwhile is freed.
#[test]
fn a_prepared_transaction_keeps_no_memory_of_others() {
    for p in Protocol::ALL {
        let (w, r) = (world(p), Recorder::new());
        let mut kept = client(w, 0, &r, Mood::Serializable);
        assert!(kept.update(0, false).expect(FINE));
        kept.prepare().expect(FINE);
        let mut c = Client::new(w, 1, r.session(), 7);
        for _ in 0..10 {
            c.begin(Mood::ReadCommitted);
            assert!(c.update(3 * WIDTH, false).expect(FINE));
            c.commit().expect(FINE);
        }
        w.e.tick();
        RetireQueue::drain(&w.e, 1, w.e.refresh_min_pin(&c.p), usize::MAX);
        assert_eq!(RetireQueue::len(&w.e, 1), 0, "{p:?}");
        kept.commit_prepared();
    }
}

/// A commit that takes its CSN before a prepared transaction is finished, and looks at the guards
/// after that.
#[test]
fn a_guard_says_with_which_csn_it_ended() {
    let fails = |fault| {
        let (w, r) = (world(Protocol::Occ), Recorder::new());
        faults::set(fault);
        let mut writer = client(w, 1, &r, Mood::Serializable);
        assert!(writer.update(0, false).expect(FINE));
        let mut kept = client(w, 0, &r, Mood::Serializable);
        assert!(kept.get(0).expect(FINE).is_some() && kept.update(WIDTH, false).expect(FINE));
        kept.prepare().expect(FINE);
        let guards = &w.table.map().partitions()[0];
        let at = w.e.now() + 1;
        kept.commit_prepared();
        faults::set(None);
        // A CSN that was taken before that of the prepared transaction.
        let failed = !guards.admits(at - 1);
        assert!(guards.admits(at + 1), "later commits pass");
        writer.commit().expect(FINE);
        failed
    };
    assert!(fails(None) && !fails(Some(Fault::GuardForgotten)));
}

/// Below SERIALIZABLE a scan of a range is a predicate too, and names no partitions.
#[test]
fn the_ranges_of_a_snapshot_are_guarded() {
    let guards = |fault| {
        let (w, r) = (world(Protocol::Occ), Recorder::new());
        let mut kept = client(w, 0, &r, Mood::ReadCommitted);
        assert!(kept.update(0, false).expect(FINE));
        w.activate(&kept.p, 0, 0, &[2], 16).expect("memory for ranges");
        let ranges = w.index_ranges(0).expect("made just now");
        let (lo, hi) = (encode(0, 0), encode(0, WIDTH));
        let scan = Scan {
            at: &[],
            lo: Included(&lo),
            hi: Included(&hi),
            open: OpenEnd::No,
            snapshot: Some(Seen::prefix(w.e.now())),
            looked: Looked::ALL,
        };
        kept.t.begin_scan(&kept.p, ranges, &scan).expect("a scan");
        faults::set(fault);
        kept.prepare().expect(FINE);
        faults::set(None);
        let free = w.table.map().partitions().iter().filter(|p| p.admits(u64::MAX >> 16)).count();
        kept.commit_prepared();
        free == 0
    };
    assert!(guards(None) && !guards(Some(Fault::GuardTooNarrow)));
}

/// One row of each engine.
const A: i64 = 0;
const B: i64 = WIDTH;

/// A transaction over two engines that reads both rows and adds 1 to one of them: what it has
/// read, if it has committed. Its halves are finished in any order.
fn over_both<'a>(one: &mut Client<'a>, other: &mut Client<'a>, rng: &mut Rng) -> Result<Option<(i64, i64)>, Error> {
    one.begin(Mood::Serializable);
    other.begin(Mood::Serializable);
    let seen = (read(one, A)?, read(other, B)?);
    let (c, key) = if rng.percent(50) { (&mut *one, A) } else { (&mut *other, B) };
    assert!(c.update(key, rng.percent(50))?);
    let first = rng.percent(50);
    for half in [first, !first] {
        if half { &mut *one } else { &mut *other }.prepare()?;
    }
    if rng.percent(10) {
        return Ok(None);
    }
    let first = rng.percent(50);
    for half in [first, !first] {
        std::thread::sleep(Duration::from_micros(rng.below(100)));
        if half { &mut *one } else { &mut *other }.commit_prepared();
    }
    Ok(Some(seen))
}

fn read(c: &mut Client, key: i64) -> Result<i64, Error> {
    Ok(c.get(key)?.expect("the row stays").value)
}

/// The states that the transactions have seen. Each commit adds 1 to one of the two rows, so in a
/// serial order each sees more than the one before.
fn states(p: Protocol, fault: Option<Fault>, seed: u64) -> Vec<(i64, i64)> {
    const THREADS: u16 = 4;
    // Neither engine sees a deadlock over both of them.
    let policy = if matches!(p, Protocol::TwoPhase | Protocol::Mocc) { Policy::NoWait } else { Policy::Wait };
    let worlds = [(); 2].map(|()| World::new(&[ProtocolSet::of(p)], policy, THREADS));
    let (recorders, seen, commits) = ([(); 2].map(|()| Recorder::new()), Mutex::new(Vec::new()), AtomicU64::new(0));
    let until = Instant::now() + Duration::from_secs(10);
    std::thread::scope(|s| {
        for slot in 0..THREADS {
            let (worlds, recorders, seen, commits) = (&worlds, &recorders, &seen, &commits);
            s.spawn(move || {
                faults::set(fault);
                let mut rng = Rng::new(seed + slot as u64);
                let [mut one, mut other] =
                    [0, 1].map(|i| Client::new(&worlds[i], slot, recorders[i].session(), seed + i as u64));
                while commits.load(Ordering::Relaxed) < 400 && Instant::now() < until {
                    match over_both(&mut one, &mut other, &mut rng) {
                        Ok(Some(state)) => {
                            seen.lock().unwrap().push(state);
                            commits.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                        Ok(None) | Err(Error::Abort { .. } | Error::Deadlock) => {}
                        Err(e) => panic!("{e:?}"),
                    }
                    one.abort();
                    other.abort();
                }
                faults::set(None);
            });
        }
    });
    seen.into_inner().unwrap()
}

fn is_serial(mut states: Vec<(i64, i64)>) -> bool {
    assert!(states.len() > 50, "too few commits to say anything: {}", states.len());
    states.sort_by_key(|(a, b)| a + b);
    states.windows(2).all(|s| s[0] != s[1] && s[0].0 <= s[1].0 && s[0].1 <= s[1].1)
}

#[test]
fn transactions_over_two_engines_are_serializable() {
    for (i, p) in Protocol::ALL.into_iter().enumerate() {
        assert!(is_serial(states(p, None, 7800 + i as u64)), "{p:?}");
    }
}

#[test]
fn without_guards_transactions_over_two_engines_are_not() {
    assert!((0..10).any(|i| !is_serial(states(Protocol::Occ, Some(Fault::GuardsOverlap), 7900 + i))));
}

/// A prepared transaction has changed definitions, and no row. While a commit of before its end is
/// under way, standbys are told of no CSN from its PREPARE on: its files are in use.
#[test]
fn the_end_of_one_that_has_changed_definitions_only_is_noted() {
    let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 3);
    let r = Recorder::new();
    let (mut definer, mut other) = (session(&w, &r, 0), session(&w, &r, 1));
    definer.begin(Mood::Serializable);
    definer.t.keep_changes(vec![KeptChange::Made(w.table)]);
    definer.prepare().expect(FINE);
    let before = w.e.now();
    other.begin(Mood::Serializable);
    assert_eq!(other.update(2, false), Ok(true));
    let told = std::cell::Cell::new(None);
    {
        let definer = std::cell::RefCell::new(&mut definer);
        let p = Meanwhile::at(&other.p, StopEvent::CommitValidate, || {
            definer.borrow_mut().commit_prepared();
            told.set(w.e.stable_upto(&[]).map(|t| t.csn));
        });
        other.t.prepare(&p, &|_, _| {}).expect(FINE);
    }
    other.t.publish(&other.p);
    other.abort(); // the rest of its record is not wanted
    assert!(told.get().is_some_and(|csn| csn < before), "{:?}, {before}", told.get());
    assert_eq!(w.e.stable_upto(&[]).map(|t| t.csn), Some(w.e.now()));
}
