//! Boundaries of ranges that change, ranges that end, predicates that are merged, comparisons that
//! unwind.

use crate::client::{Client, Mood};
use crate::spans::{encode, INDEXES};
use crate::steps::*;
use crate::world::{PanicAt, World, WIDTH};
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::lock::Mode;
use mixedcc_engine::retire::RetireQueue;
use mixedcc_engine::txn::{OpenEnd, MAX_PREDICATES};
use mixedcc_engine::{Policy, Protocol, ProtocolSet};
use std::ops::Bound::Included;
use std::panic::{catch_unwind, AssertUnwindSafe};
use Mood::{ReadCommitted, Serializable};

#[test]
fn hot_keys_get_ranges_of_their_own() {
    let cuts: Vec<i64> = (1..9).map(|k| k * 100).collect();
    let w = world(Protocol::Occ, Policy::Wait, &cuts, 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    let rows = |i: usize| -> Vec<Vec<u8>> { (0..90).map(|k| encode(i, k * 10)).collect() };
    let mut told = 0;
    for n in 0..20_000 {
        reader.begin(Serializable);
        scan(&mut reader, 0, Included(0), Included(1));
        scan(&mut reader, 1, Included(0), Included(1));
        reader.abort();
        write(&mut writer, 4, true, n % 2);
        told += ranges(&w, 0).is_skewed() as u32;
    }
    assert_eq!(told, 3, "told at 4096 registrations, 8192, 16384");
    for i in [0, 1] {
        let had = ranges(&w, i).balanced(&reader.p, rows(i), 9);
        let neighbours = [encode(i, 4), encode(i, [10, 0][i])];
        assert!(neighbours.iter().all(|k| had.contains(k)), "the hot key is not alone: {had:?}");
        assert!((7..=10).contains(&had.len()) && had.is_sorted_by(|a, b| compare(i, a, b).is_lt()), "{had:?}");
    }
    // Without writes in the lists only the rows count.
    assert!(w.rebuild(&writer.p, 1, 0, &cuts, 16).expect("room"));
    let even = ranges(&w, 0).balanced(&reader.p, rows(0), 9);
    assert_eq!(even, (1..9).map(|k| encode(0, k * 100)).collect::<Vec<_>>());
    assert!(!ranges(&w, 0).is_skewed());
}

#[test]
fn many_predicates_are_merged_and_none_is_lost() {
    let w = world(Protocol::Occ, Policy::Wait, &[100, 2000, 9000], 64);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    let n = 2 * MAX_PREDICATES as i64 + 50;
    let key = |i: i64| 1000 + (i * 7919) % n * 2;
    // A write in front of all, in the midst of them, and behind them.
    for (written, fails) in [(0, false), (key(5), true), (key(n - 1), true), (key(4000), true), (3 * WIDTH + 1, true)] {
        reader.begin(Serializable);
        let id = begin_scan(&mut reader, 0, Included(3 * WIDTH), Included(3 * WIDTH + 5), OpenEnd::High);
        let id = id.expect("a scan");
        for i in 0..n {
            let point = scan(&mut reader, 1, Included(key(i)), Included(key(i)));
            if i % 3 == 0 {
                reader.t.narrow_scan(&reader.p, point, None, None);
            }
        }
        let kept = reader.t.range_predicates().count();
        assert!(kept <= MAX_PREDICATES && kept > MAX_PREDICATES / 8, "{kept}");
        let index = |i: usize| INDEXES[i];
        assert_eq!(reader.t.range_predicates().filter(|v| v.ranges.index == index(0)).count(), 1, "open ones stay");
        reader.t.narrow_scan(&reader.p, id, None, None);
        // Two protected keys have the partition of another: only the index counts.
        writer.begin(Serializable);
        let row = crate::world::Row { key: written, txn: 0, nth: 0, value: 0 };
        let tombstone = (written == 0).then(|| writer.update(0, false).expect("an update"));
        if tombstone.is_none() {
            let rec = w.records(0)[0];
            let v = writer.t.lock_for_write(&writer.p, rec, Mode::NoKeyUpdate, mixedcc_engine::txn::How::Wait, false);
            let base = v.expect("a lock").expect("a row").0;
            let v = w.version(&mut writer.t, crate::world::Row { key: 0, ..row }).expect("room");
            let n = writer.t.update(rec, Some(base), v, 1);
            w.note(&mut writer.t, &writer.p, n, written).expect("a note");
        }
        writer.commit().expect("a write");
        assert_eq!(reader.commit().is_err(), fails, "a write of {written}");
        reader.abort();
    }
}

#[test]
fn what_unwinds_in_a_comparison_leaves_nothing_behind() {
    let w = world(Protocol::TwoPhase, Policy::Wait, &[1, 2, 4], 16);
    let r = Recorder::new();
    let (mut c, mut other) = (session(&w, &r, 0), session(&w, &r, 1));
    let unwinds = |c: &mut Client, f: &mut dyn FnMut(&mut Client)| {
        c.p.panic_at.set(Some(PanicAt::Compare));
        let end = catch_unwind(AssertUnwindSafe(|| f(c)));
        assert!(end.is_err(), "nothing was compared");
        c.abort();
    };
    for _ in 0..3 {
        c.begin(Serializable);
        unwinds(&mut c, &mut |c| {
            let _ = begin_scan(c, 1, Included(1), Included(3), OpenEnd::No);
        });
        c.begin(Serializable);
        unwinds(&mut c, &mut |c| {
            let _ = c.insert(3);
        });
        // While the commit looks for the ranges of its keys.
        c.begin(ReadCommitted);
        c.insert(3).expect("an insert");
        unwinds(&mut c, &mut |c| {
            let _ = c.commit();
        });
        // While it validates.
        c.begin(Serializable);
        c.p.panic_at.set(None);
        scan(&mut c, 1, Included(3), Included(5));
        other.begin(ReadCommitted);
        other.insert(3).expect("an insert");
        other.commit().expect("a commit");
        unwinds(&mut c, &mut |c| {
            let _ = c.commit();
        });
        write(&mut other, 3, true, 2);
        // While boundaries are rebuilt.
        c.begin(ReadCommitted);
        unwinds(&mut c, &mut |c| {
            let _ = c.w.rebuild(&c.p, c.t.slot, 1, &[1, 5], 16);
        });
        assert!(!ranges(&w, 1).is_mediated());
        for i in [0, 1] {
            let set = ranges(&w, i).current();
            for no in 0..set.len() {
                assert!(set.range(no).lock.is_free() && set.list(no).is_finished(), "index {i} range {no}");
            }
        }
        assert!((0..w.e.slots.len() as u16).all(|s| !w.e.is_pinned(s)));
    }
    write(&mut other, 3, false, 0);
    write(&mut other, 3, true, 2);
}

#[test]
fn boundaries_change_under_a_reader_and_old_ones_end() {
    let w = world(Protocol::Occ, Policy::Wait, &[3], 16);
    let r = Recorder::new();
    let (mut reader, mut writer, mut third) = (session(&w, &r, 0), session(&w, &r, 1), session(&w, &r, 2));
    let rebuild = |c: &Client, cuts: &[i64]| c.w.rebuild(&c.p, c.t.slot, 1, cuts, 16).expect("room for ranges");
    for fails in [false, true] {
        reader.begin(Serializable);
        scan(&mut reader, 1, Included(2), Included(2));
        assert!(rebuild(&third, &[1, 5]), "a scan that runs does not stop it");
        assert!(!rebuild(&third, &[2, 6]), "the set before is needed still");
        third.begin(Serializable);
        scan(&mut third, 1, Included(2), Included(2));
        write(&mut writer, if fails { 2 } else { 4 }, true, 0);
        assert_eq!((reader.commit().is_err(), third.commit().is_err()), (fails, fails), "both sets know it");
        reader.abort();
        third.abort();
        w.e.tick();
        assert!(rebuild(&third, &[2]), "nobody is left");
        w.e.tick();
        w.table.reap_ranges(&w.e, 3, w.e.refresh_min_pin(&third.p));
        assert!(!ranges(&w, 1).is_mediated());
    }
}

/// Bytes in use when all that waits has been freed.
fn used(w: &World, c: &Client) -> usize {
    w.e.tick();
    let min = w.e.refresh_min_pin(&c.p);
    for slot in 0..w.e.slots.len() as u16 {
        RetireQueue::drain_for(&w.e, slot, c.t.slot, min, usize::MAX);
    }
    w.table.reap_ranges(&w.e, c.t.slot, min);
    for slot in 0..w.e.slots.len() {
        w.e.region.flush_slot(slot);
    }
    w.e.region.usage().classes.iter().map(|k| k.live * k.object_bytes).sum::<usize>() + w.e.region.usage().run_bytes
}

#[test]
fn dropped_ranges_give_their_memory_back() {
    let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 4);
    let r = Recorder::new();
    let mut c = session(&w, &r, 0);
    write(&mut c, 0, true, 0);
    let before = used(&w, &c);
    let generation = w.table.ranges_generation();
    for round in 0..3 {
        for i in [0, 1] {
            w.activate(&c.p, c.t.slot, i, &[1, 2, 3], 8).expect("room");
            w.activate(&c.p, c.t.slot, i, &[7], 64).expect("they are there already");
            assert_eq!(ranges(&w, i).current().len(), 4);
        }
        // Long keys displace each other.
        for _ in 0..50 {
            write(&mut c, 0, true, round % 2);
        }
        assert!(w.rebuild(&c.p, c.t.slot, 1, &[2], 8).expect("room"));
        for _ in 0..50 {
            write(&mut c, 0, true, round % 2);
        }
        assert!(used(&w, &c) > before);
        for i in [0, 1] {
            w.table.drop_ranges(&w.e, c.t.slot, INDEXES[i]);
            assert!(w.index_ranges(i).is_none());
        }
        assert_eq!(used(&w, &c), before, "round {round}");
    }
    assert_eq!(w.table.ranges_generation(), generation + 12);
}
