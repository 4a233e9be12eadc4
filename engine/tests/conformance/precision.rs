//! What a predicate protects, exactly: two or three sessions in one thread, one step after another.

use crate::client::{Client, Mood};
use crate::spans::{borrowed, encode, INDEXES};
use crate::world::{PanicAt, World, PARTITIONS, WIDTH};
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::lock::Mode;
use mixedcc_engine::protocol::Touch;
use mixedcc_engine::range::{IndexRanges, SLEEP_AFTER};
use mixedcc_engine::retire::RetireQueue;
use mixedcc_engine::txn::{OpenEnd, Scan, ScanId, MAX_PREDICATES};
use mixedcc_engine::{Error, Policy, Protocol, ProtocolSet};
use std::ops::Bound::{self, Excluded, Included, Unbounded};
use std::panic::{catch_unwind, AssertUnwindSafe};
use Mood::{ReadCommitted, Serializable};

/// A world whose indexes have ranges from the start on.
fn world(p: Protocol, policy: Policy, cuts: &[i64], list: u32) -> World {
    let w = World::new(&[ProtocolSet::of(p)], policy, 4);
    let jitter = crate::world::Jitter::new(&w, w.slots, 1);
    for i in [0, 1] {
        w.activate(&jitter, w.slots, i, cuts, list).expect("room for ranges");
    }
    w
}

fn session<'w>(w: &'w World, r: &Recorder, slot: u16) -> Client<'w> {
    Client::new(w, slot, r.session(), 77)
}

fn ranges(w: &World, i: usize) -> &'static IndexRanges {
    w.index_ranges(i).expect("active ranges")
}

fn all(w: &World) -> Vec<Touch> {
    (0..PARTITIONS).map(|p| w.touch(p)).collect()
}

/// The bounds in the terms of index `i`, which may run downwards.
fn bounds(i: usize, lo: Bound<i64>, hi: Bound<i64>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let (lo, hi) = if i == 0 { (lo, hi) } else { (hi, lo) };
    (lo.map(|k| encode(i, k)), hi.map(|k| encode(i, k)))
}

fn begin_scan(c: &mut Client, i: usize, lo: Bound<i64>, hi: Bound<i64>, open: OpenEnd) -> Result<ScanId, Error> {
    let (lo, hi) = bounds(i, lo, hi);
    let at = all(c.w);
    let scan = Scan { at: &at, lo: borrowed(&lo), hi: borrowed(&hi), open, snapshot: None };
    c.t.begin_scan(&c.p, ranges(c.w, i), &scan)
}

fn scan(c: &mut Client, i: usize, lo: Bound<i64>, hi: Bound<i64>) -> ScanId {
    begin_scan(c, i, lo, hi, OpenEnd::No).expect("a scan")
}

fn failed_with(r: Result<(), Error>, reason: AbortReason) {
    match r {
        Err(Error::Abort { reason: why, .. }) => assert_eq!(why, reason),
        other => panic!("{other:?}, not {reason:?}"),
    }
}

fn compare(i: usize, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
    if i == 0 {
        a.cmp(b)
    } else {
        b.cmp(a)
    }
}

/// Writes a key in one of four ways; whatever is there.
fn write(c: &mut Client, key: i64, there: bool, how: u32) {
    c.begin([Serializable, ReadCommitted][how as usize % 2]);
    let done = match (there, how) {
        (false, _) => c.insert(key),
        (true, 0 | 1) => c.update(key, false),
        (true, _) => c.delete(key, false, false),
    };
    assert_eq!(done, Ok(true), "{key} {there} {how}");
    c.commit().expect("a write that nobody disturbs");
}

#[test]
fn writes_between_the_bounds_abort_and_no_others() {
    let mut aborts = 0;
    for (n, cuts) in [vec![], vec![2], vec![1, 3, 4], vec![0, 1, 2, 3, 4, 5, 6], vec![3, 900]].iter().enumerate() {
        for i in [0, 1] {
            for how in 0..4 {
                let w = world(Protocol::Occ, Policy::Wait, cuts, 64);
                let r = Recorder::new();
                let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
                let mut there = [true, false, true, false, true, false, false];
                let bound = |k: i64, kind: i64| [Included(k), Excluded(k), Unbounded][kind as usize];
                for case in 0..7 * 7 * 9 {
                    let (lo, hi) = (bound(case % 7, case / 49 % 3), bound(case / 7 % 7, case / 147));
                    let key = (case * 5 + n as i64 + how as i64) % 7;
                    let inside = std::ops::RangeBounds::contains(&(lo, hi), &key);
                    reader.begin(Serializable);
                    scan(&mut reader, i, lo, hi);
                    write(&mut writer, key, there[key as usize], how);
                    there[key as usize] = how < 2 || !there[key as usize];
                    let end = reader.commit();
                    let what = format!("cuts {cuts:?} index {i} {lo:?} {hi:?} key {key}");
                    if inside {
                        assert!(matches!(end, Err(Error::Abort { reason: AbortReason::Phantom, .. })), "{what}");
                        reader.abort();
                        aborts += 1;
                    } else {
                        assert_eq!(end, Ok(()), "{what}");
                    }
                }
            }
        }
    }
    assert!(aborts > 3000, "{aborts}");
}

#[test]
fn a_scan_that_ended_early_protects_what_it_read() {
    let w = world(Protocol::Occ, Policy::Wait, &[2, 5], 64);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    for i in [0, 1] {
        for up in [false, true] {
            for end in 0..7 {
                for key in 0..7 {
                    reader.begin(Serializable);
                    let open = if up == (i == 0) { OpenEnd::High } else { OpenEnd::Low };
                    let id = begin_scan(&mut reader, i, Included(1), Included(5), open).expect("a scan");
                    let last = encode(i, end);
                    let last = Some(Included(last.as_slice()));
                    let (lo, hi) = if open == OpenEnd::High { (None, last) } else { (last, None) };
                    reader.t.narrow_scan(&reader.p, id, lo, hi);
                    // Bounds never grow.
                    reader.t.narrow_scan(&reader.p, id, Some(Unbounded), Some(Unbounded));
                    let there = w_has(&mut writer, key);
                    write(&mut writer, key, there, 0);
                    let read = if up { (1..=end.min(5)).contains(&key) } else { (end.max(1)..=5).contains(&key) };
                    assert_eq!(reader.commit().is_err(), read, "index {i} up {up} end {end} key {key}");
                    reader.abort();
                }
            }
        }
    }
}

fn w_has(c: &mut Client, key: i64) -> bool {
    c.begin(ReadCommitted);
    let there = c.get(key).expect("a read").is_some();
    c.commit().expect("a read");
    there
}

#[test]
fn an_open_scan_is_doomed_only_by_what_it_has_read() {
    let w = world(Protocol::Occ, Policy::Wait, &[2, 4], 64);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    let run = |reader: &mut Client, writer: &mut Client, reached: Option<i64>, narrowed: Option<i64>| {
        reader.begin(Serializable);
        let id = begin_scan(reader, 0, Included(0), Unbounded, OpenEnd::High).expect("a scan");
        let there = w_has(writer, 3);
        write(writer, 3, there, 0);
        if let Some(k) = reached {
            reader.t.scan_reached(id, &encode(0, k));
        }
        let middle = reader.t.revalidate(&reader.p);
        if let Some(k) = narrowed {
            reader.t.narrow_scan(&reader.p, id, None, Some(Included(&encode(0, k))));
        }
        let end = middle.and_then(|()| reader.commit());
        reader.abort();
        (middle.is_ok(), end.is_ok())
    };
    assert_eq!(run(&mut reader, &mut writer, None, Some(2)), (true, true));
    assert_eq!(run(&mut reader, &mut writer, Some(2), Some(2)), (true, true));
    assert_eq!(run(&mut reader, &mut writer, Some(3), Some(3)), (false, false));
    assert_eq!(run(&mut reader, &mut writer, None, Some(3)), (true, false));
    assert_eq!(run(&mut reader, &mut writer, None, None), (true, false), "nobody said where it ended");
}

#[test]
fn a_transaction_may_scan_and_update_all_of_a_range() {
    for (fault, commits) in [(None, true), (Some(Fault::OwnCounts), false)] {
        let w = world(Protocol::Occ, Policy::Wait, &[500], 8);
        let r = Recorder::new();
        let (mut bulk, mut reader) = (session(&w, &r, 0), session(&w, &r, 1));
        bulk.begin(ReadCommitted);
        for key in 0..100 {
            bulk.insert(key).expect("an insert");
        }
        bulk.commit().expect("first rows");
        faults::set(fault);
        bulk.faulty = true;
        for i in [0, 1] {
            reader.begin(Serializable);
            scan(&mut reader, i, Included(40), Included(50));
            bulk.begin(Serializable);
            scan(&mut bulk, 0, Unbounded, Unbounded);
            scan(&mut bulk, 1, Included(3), Included(70));
            for key in 0..100 {
                assert_eq!(bulk.update(key, false), Ok(true));
            }
            let before = ranges(&w, i).current().range(i as u32).version();
            let end = bulk.commit();
            assert_eq!(end.is_ok(), commits, "{end:?}");
            bulk.abort();
            assert_eq!(ranges(&w, i).current().range(i as u32).version(), before + 1, "one registration for all");
            assert_eq!(reader.commit().is_err(), commits, "every key of the range");
            reader.abort();
        }
        faults::set(None);
    }
}

#[test]
fn only_what_was_open_at_the_start_counts() {
    let w = world(Protocol::Occ, Policy::Wait, &[], 64);
    let r = Recorder::new();
    let (mut reader, mut slow, mut quick) = (session(&w, &r, 0), session(&w, &r, 1), session(&w, &r, 2));
    for publishes in [false, true] {
        for covered in [false, true] {
            slow.begin(Serializable);
            slow.update(0, false).expect("an update");
            slow.t.prepare(&slow.p, &|_, _| {}).expect("nobody disturbs it");
            write(&mut quick, 2, true, 0); // registered after the slow one, finished before the scan
            reader.begin(Serializable);
            let (lo, hi) = if covered { (Unbounded, Unbounded) } else { (Included(0), Included(10)) };
            scan(&mut reader, 0, lo, hi);
            if publishes {
                slow.t.publish(&slow.p);
            }
            slow.abort();
            let end = reader.commit();
            reader.abort();
            assert_eq!(end.is_ok(), !publishes, "covered {covered}: {end:?}");
        }
    }
}

#[test]
fn a_list_that_wraps_fails_the_reader() {
    let w = world(Protocol::Occ, Policy::Wait, &[], 8);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    for (writes, wraps) in [(8, false), (9, true), (30, true)] {
        reader.begin(Serializable);
        scan(&mut reader, 0, Included(3), Included(3));
        for _ in 0..writes {
            write(&mut writer, 0, true, 0);
        }
        match wraps {
            true => failed_with(reader.commit(), AbortReason::PredicateWrapped),
            false => assert_eq!(reader.commit(), Ok(())),
        }
        reader.abort();
    }
    let [_, scans, aborts, wraps] = ranges(&w, 0).current().totals();
    assert!(scans >= 3 && aborts == 0 && wraps == 2, "{scans} {aborts} {wraps}");
}

#[test]
fn weaker_levels_validate_what_they_scanned_in_ranges() {
    let w = world(Protocol::Occ, Policy::Wait, &[3], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    // When the write is made: before the snapshot, between snapshot and scan, after the scan.
    for (when, key, fails) in [(0, 2, false), (1, 2, true), (2, 2, true), (1, 4, false), (2, 4, false)] {
        for writes in [false, true] {
            if when == 0 {
                write(&mut writer, key, true, 0);
            }
            reader.begin(ReadCommitted);
            let csn = w.e.now();
            if when == 1 {
                write(&mut writer, key, true, 0);
            }
            let (lo, hi) = (encode(0, 0), encode(0, 2));
            let scan = Scan { at: &[], lo: Included(&lo), hi: Included(&hi), open: OpenEnd::No, snapshot: Some(csn) };
            reader.t.begin_scan(&reader.p, ranges(&w, 0), &scan).expect("a scan");
            if when == 2 {
                write(&mut writer, key, true, 0);
            }
            if writes {
                reader.update(WIDTH, false).expect("an update elsewhere");
            }
            assert_eq!(reader.commit().is_err(), fails, "{when} {key} {writes}");
            reader.abort();
        }
    }
}

#[test]
fn a_snapshot_from_before_the_lists_began_fails() {
    // What was there when the snapshot was taken, and what happened then: ranges appear, change, or wake up.
    for (early, fault) in [(false, None), (true, None), (false, Some(Fault::ForgetsWhatWasBefore))] {
        let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 4);
        let r = Recorder::new();
        let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
        if early {
            w.activate(&reader.p, 0, 0, &[3], 16).expect("room");
        }
        for older in [true, false] {
            reader.begin(ReadCommitted);
            let before = w.e.now();
            write(&mut writer, 2, true, 0);
            match early {
                true => assert!(w.rebuild(&writer.p, 1, 0, &[2 + older as i64], 16).expect("room")),
                false => w.activate(&writer.p, 1, 0, &[3], 16).expect("room"),
            }
            let csn = if older { before } else { w.e.now() };
            let (lo, hi) = (encode(0, 0), encode(0, 2));
            let scan = Scan { at: &[], lo: Included(&lo), hi: Included(&hi), open: OpenEnd::No, snapshot: Some(csn) };
            faults::set(fault);
            reader.t.begin_scan(&reader.p, ranges(&w, 0), &scan).expect("a scan");
            faults::set(None);
            assert_eq!(reader.commit().is_err(), older && fault.is_none(), "early {early} older {older}");
            reader.abort();
            w.e.tick();
        }
    }
}

#[test]
fn ranges_fall_asleep_when_nobody_scans_and_nobody_relies_on_them() {
    let w = world(Protocol::Occ, Policy::Wait, &[3], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    writer.keyed = false;
    let all_asleep = || [0, 1].iter().all(|&i| ranges(&w, i).is_asleep());
    reader.begin(Serializable);
    scan(&mut reader, 0, Included(0), Included(1));
    scan(&mut reader, 1, Included(0), Included(1));
    for _ in 0..4 * SLEEP_AFTER {
        write(&mut writer, 4, true, 0);
    }
    assert!(!all_asleep(), "there is a predicate");
    write(&mut writer, 0, true, 0);
    assert!(reader.commit().is_err(), "and it is validated");
    reader.abort();
    for _ in 0..2 * SLEEP_AFTER {
        write(&mut writer, 4, true, 0);
    }
    assert!(all_asleep());
    let versions = || ranges(&w, 0).current().totals()[0] + ranges(&w, 0).unknown_version();
    let before = versions();
    write(&mut writer, 4, true, 0);
    assert_eq!(versions(), before, "nobody registers");
    // A snapshot from that time does not know what was written then; one from now on does.
    for (csn, lost) in [(w.e.now(), true), (0, false)] {
        reader.begin(ReadCommitted);
        write(&mut writer, 0, true, 0);
        let csn = if csn == 0 { w.e.now() } else { csn };
        let (lo, hi) = (encode(0, 0), encode(0, 2));
        let scan = Scan { at: &[], lo: Included(&lo), hi: Included(&hi), open: OpenEnd::No, snapshot: Some(csn) };
        reader.t.begin_scan(&reader.p, ranges(&w, 0), &scan).expect("a scan");
        assert_eq!(reader.commit().is_err(), lost);
        reader.abort();
    }
    // A scan wakes them up, and a write that began before that conflicts with it.
    writer.begin(Serializable);
    assert_eq!(writer.update(0, false), Ok(true));
    reader.begin(Serializable);
    scan(&mut reader, 1, Included(0), Included(1));
    assert!(!ranges(&w, 1).is_asleep());
    writer.commit().expect("a write");
    assert!(reader.commit().is_err());
    reader.abort();
}

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

/// Writes until all ranges are asleep.
fn put_to_sleep(w: &World, writer: &mut Client) {
    writer.keyed = false;
    for _ in 0..4 * SLEEP_AFTER {
        write(writer, 4, true, 0);
    }
    assert!([0, 1].iter().all(|&i| ranges(w, i).is_asleep()));
}

#[test]
fn ranges_that_fall_asleep_under_a_scan_miss_its_conflicts() {
    let w = world(Protocol::Occ, Policy::Wait, &[3], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    reader.begin(Serializable);
    scan(&mut reader, 0, Included(0), Included(1));
    scan(&mut reader, 1, Included(0), Included(1));
    faults::set(Some(Fault::SleepsAtOnce));
    put_to_sleep(&w, &mut writer);
    faults::set(None);
    write(&mut writer, 0, true, 0);
    assert_eq!(reader.commit(), Ok(()), "the fault has no effect");
}

#[test]
fn a_scan_that_wakes_ranges_up_waits_for_commits_under_way() {
    for fault in [None, Some(Fault::WakesAtOnce)] {
        let w = world(Protocol::Occ, Policy::Wait, &[3], 16);
        let r = Recorder::new();
        let mut writer = session(&w, &r, 1);
        put_to_sleep(&w, &mut writer);
        writer.begin(Serializable);
        assert_eq!(writer.update(0, false), Ok(true));
        writer.t.prepare(&writer.p, &|_, _| {}).expect("a write");
        let begun = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut reader = session(&w, &r, 0);
                faults::set(fault);
                reader.begin(Serializable);
                scan(&mut reader, 0, Included(0), Included(1));
                begun.store(true, std::sync::atomic::Ordering::SeqCst);
                reader.commit().expect("nothing was read");
            });
            let mut early = false;
            for _ in 0..if fault.is_none() { 50 } else { 10_000 } {
                std::thread::sleep(std::time::Duration::from_millis(1));
                early = early || begun.load(std::sync::atomic::Ordering::SeqCst);
                if early {
                    break;
                }
            }
            assert_eq!(early, fault.is_some(), "{fault:?}");
            writer.t.publish(&writer.p);
        });
        writer.abort();
    }
}

#[test]
fn a_key_that_was_not_found_stays_absent() {
    let w = world(Protocol::Occ, Policy::Wait, &[3], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    for (key, fails) in [(3, true), (1, false), (5, false)] {
        reader.begin(Serializable);
        let three = encode(1, 3);
        let look = reader.t.look_position(&reader.p, w.touch(0), ranges(&w, 1), &three).expect("awake");
        let there = w_has(&mut writer, key);
        write(&mut writer, key, there, 0);
        reader.t.add_point_predicate(&reader.p, &look, &three);
        assert_eq!(reader.commit().is_err(), fails, "{key}");
        reader.abort();
    }
}

#[test]
fn a_write_that_nobody_noted_conflicts_with_every_scan_and_one_outside_the_index_with_none() {
    let w = world(Protocol::Occ, Policy::Wait, &[3], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    for (noted, fails) in [(None, true), (Some(None), false), (Some(Some(2)), true), (Some(Some(5)), false)] {
        reader.begin(Serializable);
        scan(&mut reader, 0, Included(1), Included(2));
        writer.begin(Serializable);
        let rec = w.records(2 * WIDTH)[0];
        let v = writer.t.lock_for_write(&writer.p, rec, Mode::NoKeyUpdate, mixedcc_engine::txn::How::Wait, false);
        let base = v.expect("a lock").expect("a row").0;
        let row = crate::world::Row { key: 2 * WIDTH, txn: 0, nth: 0, value: 1 };
        let v = w.version(&mut writer.t, row).expect("room");
        let n = writer.t.update(rec, Some(base), v, 1);
        if let Some(key) = noted {
            let key: Option<Vec<u8>> = key.map(|k| encode(0, k));
            writer.t.note_key(&writer.p, n, ranges(&w, 0), key.as_deref()).expect("a note");
        }
        writer.commit().expect("a write");
        assert_eq!(reader.commit().is_err(), fails, "{noted:?}");
        reader.abort();
    }
    assert_eq!(ranges(&w, 0).unknown_version(), 1);
    assert_eq!(ranges(&w, 1).unknown_version(), 4);
}

#[test]
fn what_a_subtransaction_wrote_is_not_registered_after_its_abort() {
    let w = world(Protocol::Occ, Policy::Wait, &[3], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    for (keep, deletes, fails) in [(false, false, false), (true, false, true), (true, true, false)] {
        reader.begin(Serializable);
        scan(&mut reader, 0, Included(3), Included(3));
        scan(&mut reader, 1, Included(3), Included(3));
        writer.begin(Serializable);
        writer.update(WIDTH, false).expect("an update");
        writer.savepoint();
        writer.insert(3).expect("an insert");
        writer.update(WIDTH, false).expect("an update");
        if deletes {
            writer.delete(3, false, false).expect("a delete of what was inserted");
        }
        writer.end_savepoint(keep);
        writer.commit().expect("a commit");
        assert_eq!(reader.commit().is_err(), fails, "{keep} {deletes}");
        reader.abort();
        if w_has(&mut writer, 3) {
            write(&mut writer, 3, true, 2);
        }
        assert_eq!(ranges(&w, 0).unknown_version(), 0, "notes are as they were");
    }
}

#[test]
fn a_key_that_an_undone_insert_found_absent_stays_so() {
    let w = world(Protocol::Occ, Policy::Wait, &[3], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    for (keep, key, fails) in [(false, 3, true), (false, 5, false), (true, 3, false)] {
        reader.begin(Serializable);
        reader.savepoint();
        let three = encode(1, 3);
        let look = reader.t.look_position(&reader.p, w.touch(0), ranges(&w, 1), &three).expect("awake");
        reader.t.note_absent(look, &three);
        reader.end_savepoint(keep);
        let there = w_has(&mut writer, key);
        write(&mut writer, key, there, 0);
        assert_eq!(reader.commit().is_err(), fails, "{keep} {key}");
        reader.abort();
    }
}

#[test]
fn two_phase_locks_the_ranges_that_a_scan_covers() {
    let w = world(Protocol::TwoPhase, Policy::NoWait, &[2, 4], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    // A writer meets a reader.
    for (key, there, conflicts) in [(3, false, true), (2, true, true), (5, false, false), (1, false, false)] {
        reader.begin(Serializable);
        scan(&mut reader, 0, Included(1), Excluded(4));
        writer.begin(Serializable);
        let done = if there { writer.update(key, false) } else { writer.insert(key) };
        match conflicts {
            true => failed_with(done.map(|_| ()), AbortReason::LockConflict),
            false => assert_eq!(done, Ok(true)),
        }
        writer.abort();
        assert_eq!(reader.commit(), Ok(()));
    }
    // A reader meets a writer.
    writer.begin(Serializable);
    writer.insert(3).expect("an insert");
    reader.begin(Serializable);
    let covered = begin_scan(&mut reader, 0, Included(2), Excluded(4), OpenEnd::No);
    failed_with(covered.map(|_| ()), AbortReason::LockConflict);
    reader.abort();
    reader.begin(Serializable);
    scan(&mut reader, 0, Included(2), Included(3)); // not all of the range: validated only
    writer.commit().expect("nothing is locked against it");
    failed_with(reader.commit(), AbortReason::Phantom);
    reader.abort();
    // Both, in one transaction; writers of a range do not exclude each other.
    reader.begin(Serializable);
    scan(&mut reader, 0, Included(2), Excluded(4));
    assert_eq!(reader.update(2, false), Ok(true));
    writer.begin(Serializable);
    failed_with(writer.update(3, false).map(|_| ()), AbortReason::LockConflict);
    writer.abort();
    assert_eq!(reader.commit(), Ok(()));
    reader.begin(Serializable);
    writer.begin(Serializable);
    assert_eq!((reader.update(2, false), writer.update(3, false)), (Ok(true), Ok(true)));
    assert_eq!((reader.commit(), writer.commit()), (Ok(()), Ok(())));
    let set = ranges(&w, 0).current();
    assert!((0..set.len()).all(|no| set.range(no).lock.is_free()));
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

#[test]
fn a_scan_that_has_locked_many_rows_locks_its_ranges() {
    let w = world(Protocol::TwoPhase, Policy::Wait, &[100, 200], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    for key in [6, 8, 10, 12] {
        write(&mut writer, key, false, 0);
    }
    let read = |reader: &mut Client, key: i64, id: ScanId| {
        let rec = reader.w.records(2 * key)[0];
        assert!(reader.t.read_scanned(&reader.p, rec, false, id).expect("a read").is_some(), "{key}");
    };
    reader.begin(Serializable);
    let id = scan(&mut reader, 0, Included(0), Included(12));
    for key in 0..2 {
        read(&mut reader, key, id);
    }
    // Rows that are not locked yet may change; the scan reads them as they are then.
    writer.begin(ReadCommitted);
    assert_eq!(writer.update(10, false), Ok(true));
    writer.commit().expect("nobody holds the row");
    let lock = &ranges(&w, 0).current().range(0).lock;
    assert!(lock.held_by(reader.t.slot).is_none());
    for key in 2..6 {
        read(&mut reader, key, id);
    }
    assert_eq!(lock.held_by(reader.t.slot).map(|h| h.mode), Some(Mode::Share));
    let free = |key: i64| w.records(2 * key)[0].rec.lock.is_free();
    assert!(!free(1) && free(5), "rows that were read after that are not locked");
    reader.update(12, false).expect("a write");
    assert_eq!(reader.commit(), Ok(()));
    assert!(lock.is_free());
}
