//! What a transaction adds to the counters of the partitions that it touched.

use crate::client::{Client, Mood};
use crate::world::{World, WIDTH};
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::partition::{PartitionStats, Sample};
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::{Error, Policy, Protocol, ProtocolSet};
use std::time::{Duration, Instant};

/// Reads, writes, commits and nanoseconds, of all transactions.
fn sums(s: &PartitionStats) -> [u64; 4] {
    [s.sum(|s| &s.reads), s.sum(|s| &s.writes), s.sum(|s| &s.commits), s.sum(|s| &s.busy_ns)]
}

/// A world in which every transaction of the first slot is sampled, and the counters of its first
/// two partitions.
fn world(protocol: Protocol) -> World {
    let w = World::new(&[ProtocolSet::of(protocol)], Policy::Wait, 2);
    w.e.shared.sample_every.set(1);
    w.table.map().partitions().iter().for_each(|p| p.stats.reset());
    w
}

/// Runs something; the shortest and the longest time in nanoseconds that the transaction in it may
/// have taken, with one percent for differences between clocks.
fn timed<'w>(
    c: &mut Client<'w>,
    mood: Mood,
    f: impl FnOnce(&mut Client<'w>),
    end: impl FnOnce(&mut Client<'w>),
) -> (f64, f64) {
    let outer = Instant::now();
    c.begin(mood);
    let inner = Instant::now();
    f(c);
    std::thread::sleep(Duration::from_millis(20));
    let inner = inner.elapsed();
    end(c);
    (inner.as_nanos() as f64 * 0.99, outer.elapsed().as_nanos() as f64 * 1.01)
}

#[test]
fn a_commit_counts_its_accesses_and_its_time_in_each_partition() {
    for protocol in Protocol::ALL {
        for mood in [Mood::Serializable, Mood::ReadCommitted] {
            let w = world(protocol);
            let recorder = Recorder::new();
            let mut c = Client::new(&w, 0, recorder.session(), 1);
            let work = |c: &mut Client| {
                c.get(2).expect("a read");
                c.update(0, false).expect("a write");
                c.get(WIDTH).expect("a read elsewhere");
            };
            let (shortest, longest) = timed(&mut c, mood, work, |c| c.commit().expect("nobody is in the way"));
            let what = format!("{protocol:?} {mood:?}");
            for (no, writes) in [(0, 1), (1, 0)] {
                let stats = &w.table.map().partitions()[no].stats;
                let [reads, written, commits, busy_ns] = sums(stats);
                assert_eq!((written, commits), (writes, 1), "{what}, partition {no}");
                assert!(reads > 0, "{what}, partition {no}");
                assert!((shortest..=longest).contains(&(busy_ns as f64)), "{what}: {shortest} {busy_ns} {longest}");
                let s = stats.sampled.get();
                assert_eq!((s.txns, s.reads, s.writes, s.duration_ns), (1, reads, writes, busy_ns), "{what}");
                assert_eq!((s.multi, s.partitions, s.lost, s.turns), (1, 2, 0, 0), "{what}");
                let serializable = mood == Mood::Serializable;
                assert_eq!(s.serializable, serializable as u64, "{what}");
                assert_eq!(s.weak_writers, (!serializable && writes > 0) as u64, "{what}");
            }
            let untouched = &w.table.map().partitions()[2].stats;
            assert_eq!((sums(untouched), untouched.sampled.get()), ([0; 4], Sample::default()), "{what}");
        }
    }
}

#[test]
fn who_goes_back_by_its_own_will_counts_reads_only() {
    let w = world(Protocol::Occ);
    let recorder = Recorder::new();
    let mut c = Client::new(&w, 0, recorder.session(), 1);
    let work = |c: &mut Client| _ = c.update(0, false).expect("a write");
    timed(&mut c, Mood::Serializable, work, |c| c.abort());
    let stats = &w.table.map().partitions()[0].stats;
    let [reads, writes, commits, busy_ns] = sums(stats);
    assert!(reads > 0);
    assert_eq!((writes, commits, busy_ns), (0, 0, 0));
    assert_eq!(stats.sampled.get().txns, 0);
    assert_eq!(stats.all_aborts(), 0);
}

#[test]
fn an_attempt_that_others_made_fail_counts_the_time_that_was_lost() {
    let w = world(Protocol::Occ);
    let recorder = Recorder::new();
    let mut c = Client::new(&w, 0, recorder.session(), 1);
    let mut other = Client::new(&w, 1, recorder.session(), 2);
    let work = |c: &mut Client| {
        c.get(0).expect("a read");
        c.update(2, false).expect("a write");
        other.begin(Mood::Serializable);
        other.update(0, false).expect("a write");
        other.commit().expect("nobody is in its way");
        w.table.map().partitions()[0].stats.reset();
    };
    let (shortest, longest) = timed(&mut c, Mood::Serializable, work, |c| {
        assert!(matches!(c.commit(), Err(Error::Abort { .. })), "its read is not valid any more");
        c.abort();
    });
    let stats = &w.table.map().partitions()[0].stats;
    let [_, writes, commits, busy_ns] = sums(stats);
    assert_eq!((writes, commits), (0, 0));
    assert!((shortest..=longest).contains(&(busy_ns as f64)), "{shortest} {busy_ns} {longest}");
    let s = stats.sampled.get();
    assert_eq!((s.txns, s.lost, s.lost_ns, s.duration_ns), (0, 1, busy_ns, 0));
    assert_eq!(s.cpu_ns, s.lost_cpu_ns);
    assert_eq!(stats.all_aborts(), 1);
    assert_eq!(stats.aborts[AbortReason::ReadChanged as usize].load(Ordering::Relaxed), 1);

    // What follows is its repetition.
    timed(&mut c, Mood::Serializable, |c| _ = c.get(0).expect("a read"), |c| c.commit().expect("it has only read"));
    let s = stats.sampled.get();
    assert_eq!((s.txns, s.retries, s.lost), (1, 1, 1));
}
