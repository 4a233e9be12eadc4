//! Which group of transactions fails or waits for which: see `groups.rs`.

use crate::client::{Client, Mood};
use crate::spans::{borrowed, encode};
use crate::world::{Jitter, World, WIDTH};
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::groups::{Conflict, Kind, Met};
use mixedcc_engine::range::Looked;
use mixedcc_engine::txn::{OpenEnd, Scan};
use mixedcc_engine::{Error, Policy, Protocol, ProtocolSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::{Duration, Instant};

fn world(protocol: Protocol) -> World {
    let w = World::new(&[ProtocolSet::of(protocol)], Policy::Wait, 2);
    let p = Jitter::new(&w, w.slots, 1);
    w.activate(&p, w.slots, 0, &[3 * WIDTH], 64).expect("room for ranges");
    w
}

/// A serializable transaction begins, of a group.
fn begin(c: &mut Client, group: u8) {
    c.begin(Mood::Serializable);
    c.t.set_group(group);
}

/// All that was counted: group, other, kind, failures, waits.
fn counted(w: &World) -> Vec<(u8, u8, Kind, u64, u64)> {
    let table = w.table.id;
    let seen = |c: Conflict| {
        let Met { table: of, other, kind } = c.met;
        assert_eq!(of, table);
        (c.group, other, kind, c.failures, c.waits)
    };
    let mut all: Vec<_> = w.e.shared.groups.conflicts().map(seen).collect();
    all.sort_by_key(|c| (c.0, c.1));
    all
}

fn fails(c: &mut Client, reason: AbortReason) {
    let end = c.commit();
    assert!(matches!(end, Err(Error::Abort { reason: why, .. }) if why == reason), "{end:?}, not {reason:?}");
    c.abort();
}

#[test]
fn a_failed_transaction_tells_whose_write_was_in_its_way() {
    for write in [false, true] {
        let w = world(Protocol::Occ);
        let recorder = Recorder::new();
        let (mut a, mut b) = (Client::new(&w, 0, recorder.session(), 1), Client::new(&w, 1, recorder.session(), 2));
        begin(&mut a, 1);
        if write {
            a.update(0, false).expect("a write");
        } else {
            a.get(0).expect("a read");
        }
        begin(&mut b, 2);
        b.update(0, false).expect("another write");
        b.commit().expect("it is the first");
        a.update(2, false).expect("a write elsewhere");
        a.commit().expect_err("what it has read is not there any more");
        a.abort();
        let kind = if write { Kind::WriteWrite } else { Kind::ReadWrite };
        assert_eq!(counted(&w), [(1, 2, kind, 1, 0)]);
        assert_eq!((w.e.shared.groups.ends(1), w.e.shared.groups.ends(2)), ((0, 1), (1, 0)));
    }
}

#[test]
fn so_does_one_that_has_scanned_a_range() {
    let w = world(Protocol::Occ);
    let recorder = Recorder::new();
    let (mut a, mut b) = (Client::new(&w, 0, recorder.session(), 1), Client::new(&w, 1, recorder.session(), 2));
    begin(&mut a, 5);
    a.statement();
    let at: Vec<_> = (0..2).map(|p| w.touch(p)).collect();
    let high = Excluded(encode(0, 3));
    let (open, looked) = (OpenEnd::No, Looked::ALL);
    let s = Scan { at: &at, lo: Unbounded, hi: borrowed(&high), open, snapshot: None, looked };
    let id = a.t.begin_scan(&a.p, w.index_ranges(0).expect("active ranges"), &s).expect("a scan");
    for (_, r) in w.scan(0, 2) {
        a.look_scanned(r, false, id).expect("a row");
    }
    begin(&mut b, 0);
    b.update(2, true).expect("a write that changes the range");
    b.commit().expect("it is the first");
    a.update(WIDTH, false).expect("a write elsewhere");
    a.commit().expect_err("what it has scanned has changed");
    a.abort();
    assert_eq!(counted(&w), [(5, 0, Kind::ReadWrite, 1, 0)], "the other transaction had no group");
}

#[test]
fn a_transaction_that_has_slept_tells_for_whom() {
    for (reads, kind) in [(false, Kind::WriteWrite), (true, Kind::ReadWrite)] {
        let w = world(Protocol::TwoPhase);
        let recorder = Recorder::new();
        let mut a = Client::new(&w, 0, recorder.session(), 1);
        begin(&mut a, 3);
        if reads {
            a.get(0).expect("a read");
        } else {
            a.update(0, false).expect("a write");
        }
        let waits = &w.table.map().partitions()[0].stats.waits;
        std::thread::scope(|s| {
            let waiter = s.spawn(|| {
                let mut b = Client::new(&w, 1, recorder.session(), 2);
                begin(&mut b, 4);
                b.update(0, false).expect("after the wait");
                b.commit().expect("nobody is in its way");
            });
            let start = Instant::now();
            while waits.all() == 0 {
                assert!(start.elapsed() < Duration::from_secs(60), "nobody sleeps");
                std::thread::yield_now();
            }
            a.commit().expect("nobody is in its way");
            waiter.join().expect("no panic");
        });
        assert_eq!(counted(&w), [(4, 3, kind, 0, 1)]);
    }
}

#[test]
fn without_groups_nothing_is_counted() {
    let w = world(Protocol::Occ);
    let recorder = Recorder::new();
    let (mut a, mut b) = (Client::new(&w, 0, recorder.session(), 1), Client::new(&w, 1, recorder.session(), 2));
    a.begin(Mood::Serializable);
    a.get(0).expect("a read");
    b.begin(Mood::Serializable);
    b.update(0, false).expect("a write");
    b.commit().expect("it is the first");
    a.update(2, false).expect("a write elsewhere");
    fails(&mut a, AbortReason::ReadChanged);
    assert_eq!(counted(&w), []);
}
