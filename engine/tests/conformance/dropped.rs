//! Dropped tables are freed in slices, and at once when memory is needed.

use crate::memory::live;
use crate::world::{Jitter, Row, World};
use mixedcc_engine::index::Reuse;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::protocol::Touch;
use mixedcc_engine::retire::RetireQueue;
use mixedcc_engine::threads::Block;
use mixedcc_engine::{Level, Policy, Protocol, ProtocolSet, Table, Txn};

/// Pieces of a slice.
const SLICE: usize = 50;
/// A slice frees the keys of one node more at most, and the ranges of one index.
const NODE: usize = 65;

fn world() -> World {
    World::within(Block::new(16 << 20, 3).expect("memory"), &[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 2)
}

fn empty(w: &World) -> &'static Table {
    let map = Table::new_map(&w.e, w.slots, 1, 0, b"", ProtocolSet::of(Protocol::Occ), Policy::Wait).expect("a map");
    Table::create(&w.e, w.slots, [9; 4], map).expect("a table")
}

/// A committed table of so many rows, with an index of keys that do not fit into nodes, and ranges.
fn table(w: &World, p: &Jitter, rows: u32) -> &'static Table {
    let t = empty(w);
    t.create_primary(&w.e, w.slots, 0, Reuse::Vacuum).expect("an index");
    let mut txn = Txn::new(w.e, w.slots);
    txn.begin(Level::Snapshot, w.ident());
    t.primary_ranges(&w.e, w.slots, p, 4, 16).expect("ranges");
    for i in 0..rows {
        let v = txn.new_version(0, 100, 0).expect("memory for a row");
        let key = format!("{i:09} a key that is too long for the node in which its entry lies");
        txn.insert_row(p, Touch { table: t, no: 0 }, key.as_bytes(), v, 0).expect("memory for a row");
    }
    txn.prepare(p, &|_, _| {}).expect("nobody is in the way");
    txn.publish(p);
    t
}

/// The transactions and their long keys leave memory behind that waits: all of it is freed.
fn settle(w: &World, p: &Jitter) {
    w.load(std::iter::once(Row { key: 500 + w.e.now() as i64, txn: 0, nth: 0, value: 0 }));
    for slot in 0..=w.slots {
        RetireQueue::drain_for(&w.e, slot, w.slots, w.e.refresh_min_pin(p), usize::MAX);
    }
}

#[test]
fn a_dropped_table_is_freed_in_slices() {
    for rows in [0, 1, 200, 3000] {
        let w = world();
        let p = Jitter::new(&w, 0, 1);
        settle(&w, &p);
        let before = live(&w);
        let t = table(&w, &p, rows);
        settle(&w, &p);
        let with_table = live(&w);
        let mut reader = Txn::new(w.e, 0);
        reader.begin(Level::Snapshot, w.ident());
        t.retire(&w.e);
        let slice = || Table::free_dropped_slice(&w.e, w.slots, w.e.refresh_min_pin(&p), SLICE);
        assert!(!slice(), "nothing can be freed");
        assert_eq!(live(&w), with_table, "a reader is pinned");
        reader.abort();
        let (mut slices, mut last, mut most) = (1, with_table, 0);
        while slice() {
            slices += 1;
            assert!(!w.e.shared.dropped.load(Ordering::SeqCst).is_null(), "between slices the table is in the list");
            let now = live(&w);
            most = most.max(last.saturating_sub(now));
            last = now;
        }
        assert!(w.e.shared.dropped.load(Ordering::SeqCst).is_null());
        // Each row has a version, and a key outside of its node.
        assert!(slices >= 2 * rows as usize / (SLICE + NODE), "{rows} rows: {slices} slices");
        let chunk = 1024 * 64;
        assert!(most <= (SLICE + NODE) * 2176 + chunk, "{rows} rows: {most} bytes in one slice");
        assert!(live(&w) <= before + 4096, "{rows} rows: {} bytes, {before} before", live(&w));
    }
}

#[test]
fn who_needs_memory_frees_all_of_it() {
    let w = world();
    let p = Jitter::new(&w, 0, 1);
    let mut rounds = 0;
    // Far more than the region holds; no process frees slices meanwhile.
    while rounds < 20 {
        let t = empty(&w);
        let mut txn = Txn::new(w.e, 0);
        txn.begin(Level::Snapshot, w.ident());
        for _ in 0..3000 {
            let v = txn.new_version(0, 1000, 0).expect("memory of dropped tables");
            txn.insert(&p, t, [0, 0], v, 0, 0).expect("memory of dropped tables");
        }
        txn.prepare(&p, &|_, _| {}).expect("nobody is in the way");
        txn.publish(&p);
        t.retire(&w.e);
        rounds += 1;
    }
    assert!(!w.e.shared.dropped.load(Ordering::SeqCst).is_null(), "the last one waits");
}

/// Several sessions free slices, and one of them all, at a time: each piece is freed once.
#[test]
fn slices_are_freed_by_several_at_a_time() {
    let w = world();
    let p = Jitter::new(&w, 0, 1);
    settle(&w, &p);
    let before = live(&w);
    for _ in 0..4 {
        table(&w, &p, 800).retire(&w.e);
    }
    settle(&w, &p);
    let min = w.e.refresh_min_pin(&p);
    std::thread::scope(|s| {
        for slot in 0..2 {
            let e = w.e;
            s.spawn(move || while Table::free_dropped_slice(&{ e }, slot, min, 7) {});
        }
        Table::free_dropped(&w.e, w.slots, min);
    });
    Table::free_dropped(&w.e, w.slots, min);
    w.e.region.flush_slot(1);
    assert!(w.e.shared.dropped.load(Ordering::SeqCst).is_null());
    assert!(live(&w) <= before + 8192, "{} bytes, {before} before", live(&w));
}
