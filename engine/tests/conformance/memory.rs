//! Memory of written, undone, deleted and dropped rows comes back, and not before its possible
//! readers have ended.

use crate::client::{Client, Mood};
use crate::invariants::{all_sets, assert_quiet};
use crate::world::{initial_keys, Jitter, Row, World, PARTITIONS, WIDTH};
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::open::Seen;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::retire::RetireQueue;
use mixedcc_engine::{Level, Policy, Protocol, ProtocolSet, Table, Txn};

pub fn live(w: &World) -> usize {
    w.e.region.flush_slot(0);
    w.e.region.flush_slot(w.slots as usize);
    let u = w.e.region.usage();
    u.classes.iter().map(|c| c.live * c.object_bytes).sum::<usize>() + u.run_bytes
}

/// The memory of one piece more of a queue, whose pieces are filled across rounds.
const SEGMENT: usize = 1024;

/// One round of inserts, updates, deletes, aborts; then VACUUM, and everything is as it was.
fn round(w: &World, c: &mut Client) {
    let keys = || (0..PARTITIONS as i64).flat_map(|p| (10..60).map(move |i| p * WIDTH + i));
    for key in keys() {
        for outcome in [false, true] {
            c.begin(Mood::Serializable);
            assert!(c.insert(key).expect("nobody is in the way"));
            c.savepoint();
            assert!(c.update(key, false).expect("nobody is in the way"));
            c.end_savepoint(outcome);
            if outcome {
                c.commit().expect("nobody is in the way");
            } else {
                c.abort();
            }
        }
    }
    for key in keys() {
        c.begin(Mood::ReadCommitted);
        c.update(key, true).expect("nobody is in the way");
        c.commit().expect("nobody is in the way");
        c.begin(Mood::Serializable);
        assert!(c.delete(key, false, false).expect("nobody is in the way"));
        c.commit().expect("nobody is in the way");
    }
    // The clock has to move on past the last retirements.
    for _ in 0..2 {
        c.begin(Mood::ReadCommitted);
        c.update(0, true).expect("nobody is in the way");
        c.commit().expect("nobody is in the way");
        w.vacuum(&c.p, 0);
    }
    let min = w.e.refresh_min_pin(&c.p);
    RetireQueue::drain(&w.e, 0, min, usize::MAX);
    assert!(RetireQueue::len(&w.e, 0) <= 1, "what waits is the last base at most");
}

#[test]
fn memory_comes_back() {
    for set in all_sets() {
        let w = World::new(&[set], Policy::Wait, 1);
        let recorder = Recorder::new();
        let mut c = Client::new(&w, 0, recorder.session(), 1);
        round(&w, &mut c);
        let (bytes, records) = (live(&w), w.table.len());
        for _ in 0..3 {
            round(&w, &mut c);
            let now = live(&w);
            assert!(now == bytes || now.abs_diff(bytes) == SEGMENT, "{}: {now} bytes, not {bytes}", set.name());
            assert_eq!(w.table.len(), records, "{}: records are used again", set.name());
        }
        assert_eq!(w.index_entries(), initial_keys().count());
        assert_eq!(w.table.rows(), initial_keys().count() as u64);
        assert_eq!(w.table.dead.load(Ordering::SeqCst), 0);
        assert_quiet(&w, &set.name());
    }
}

#[test]
fn a_storm_of_aborts_does_not_fill_the_memory() {
    let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 1);
    let recorder = Recorder::new();
    let mut c = Client::new(&w, 0, recorder.session(), 1);
    let mut most = 0;
    for _ in 0..2000 {
        c.begin(Mood::Serializable);
        for key in initial_keys() {
            c.update(key, false).expect("nobody is in the way");
        }
        c.abort();
        most = most.max(RetireQueue::len(&w.e, 0));
    }
    assert!(most < 500, "{most} retired versions wait");
}

#[test]
fn large_transactions_do_not_fill_the_memory() {
    let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 1);
    let recorder = Recorder::new();
    let mut c = Client::new(&w, 0, recorder.session(), 1);
    let mut most = 0;
    for _ in 0..100 {
        c.begin(Mood::ReadCommitted);
        for _ in 0..100 {
            for key in initial_keys() {
                c.update(key, true).expect("nobody is in the way");
            }
        }
        c.commit().expect("nobody is in the way");
        most = most.max(RetireQueue::len(&w.e, 0));
    }
    assert!(most < 10 * 100 * initial_keys().count() as u64, "{most} retired versions wait");
}

#[test]
fn a_dropped_table_is_freed_after_its_readers() {
    let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 1);
    let p = Jitter::new(&w, 0, 1);
    let mut reader = Txn::new(w.e, 0);
    let step = |w: &World| w.load(std::iter::once(Row { key: 500 + w.e.now() as i64, txn: 0, nth: 0, value: 0 }));
    step(&w);
    let before = live(&w);
    let map =
        Table::new_map(&w.e, w.slots, 3, 0, b"spec", ProtocolSet::of(Protocol::Occ), Policy::Wait).expect("a map");
    let t = Table::create(&w.e, w.slots, [9; 4], map).expect("a table");
    let mut writer = Txn::new(w.e, w.slots);
    writer.begin(Level::Snapshot, w.ident());
    for _ in 0..300 {
        let v = writer.new_version(0, 500, 0).expect("memory for a row");
        // SAFETY: 500 bytes, ours.
        unsafe { mixedcc_engine::record::Version::payload(v.as_ptr()).write_bytes(7, 500) };
        writer.insert(&p, t, [1, 0], v, 0, 0).expect("memory for a row");
    }
    writer.prepare(&p, &|_, _| {}).expect("nobody is in the way");
    writer.publish(&p);
    assert!(live(&w) > before + 300 * 500);
    reader.begin(Level::Snapshot, w.ident());
    t.retire(&w.e);
    step(&w);
    Table::free_dropped(&w.e, w.slots, w.e.refresh_min_pin(&p));
    let kept = t.record(5).expect("the reader is pinned").head();
    // SAFETY: INV-TABLE: the reader's pin keeps the table.
    assert_eq!(unsafe { mixedcc_engine::record::Version::payload(kept).read() }, 7);
    reader.abort();
    let with_table = live(&w);
    Table::free_dropped(&w.e, w.slots, w.e.refresh_min_pin(&p));
    assert!(live(&w) <= with_table - 300 * 500, "the table is freed when its last reader is gone");
}

/// A pinned reader's version is not freed; with the fault it is, which shows that this test sees
/// it.
#[test]
fn a_pin_keeps_versions() {
    for fault in [None, Some(Fault::NoGracePeriod)] {
        let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 2);
        let p = Jitter::new(&w, 1, 1);
        let mut reader = Txn::new(w.e, 1);
        reader.begin(Level::Snapshot, w.ident());
        let csn = w.e.now();
        let v = reader.read_snapshot(&p, w.records(0)[0], Seen::prefix(csn)).expect("no wait").expect("a row");
        let recorder = Recorder::new();
        let mut c = Client::new(&w, 0, recorder.session(), 1);
        faults::set(fault);
        for _ in 0..500 {
            c.begin(Mood::ReadCommitted);
            c.update(0, true).expect("nobody is in the way");
            c.commit().expect("nobody is in the way");
        }
        faults::set(None);
        // SAFETY: the region stays mapped, whatever is there now.
        let now = unsafe { mixedcc_engine::record::Version::payload(v.as_ptr()).cast::<Row>().read_unaligned() };
        assert_eq!(now == Row { key: 0, txn: 0, nth: 0, value: 100 }, fault.is_none(), "{fault:?}: {now:?}");
        reader.abort();
    }
}
