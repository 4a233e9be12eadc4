//! Locks of ranges and of parts of them under `2pl`: one session after another, in one thread or
//! two.

use crate::client::{Client, Mood};
use crate::steps::*;
use crate::world::{PanicAt, World};
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::lock::Mode;
use mixedcc_engine::platform::StopEvent;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::switch::Why;
use mixedcc_engine::txn::{OpenEnd, ScanId};
use mixedcc_engine::{Error, Policy, Protocol, ProtocolSet};
use std::ops::Bound::{self, Excluded, Included, Unbounded};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use Mood::{ReadCommitted, Serializable};

#[test]
fn two_phase_locks_the_ranges_that_a_scan_covers() {
    let w = world(Protocol::TwoPhase, Policy::NoWait, &[2, 4], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    // A writer meets a reader.
    for (key, there, conflicts) in
        [(3, false, true), (2, true, true), (5, false, false), (1, false, true), (0, true, false)]
    {
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
    scan(&mut reader, 0, Included(2), Included(3)); // not all of the range, and the writer had looked before
    writer.commit().expect("it has its locks");
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
    // Without the lock a row that the scan has read changes, and the update was spared.
    faults::set(Some(Fault::EscalatesTooFar));
    reader.begin(Serializable);
    let id = scan(&mut reader, 0, Included(0), Included(12));
    for key in 0..6 {
        read(&mut reader, key, id);
    }
    faults::set(None);
    assert!(lock.held_by(reader.t.slot).is_none());
    writer.begin(ReadCommitted);
    assert_eq!(writer.update(10, false), Ok(true));
    writer.commit().expect("nobody holds the row");
    faults::set(Some(Fault::EscalatesTooFar));
    assert_eq!(reader.commit(), Ok(()), "the fault hides it");
    faults::set(None);
}

/// Parts of ranges that are published.
fn parts(w: &World) -> u64 {
    let set = ranges(w, 0).current();
    (0..set.len()).map(|no| set.range(no).parts.load(Ordering::SeqCst)).sum()
}

/// What a writer of one key gets while a scan of index 0 is protected, that has read none of its
/// rows yet.
fn meets(w: &World, (lo, hi): (Bound<i64>, Bound<i64>), key: i64, how: Option<Mood>) -> Result<bool, Error> {
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(w, &r, 0), session(w, &r, 1));
    reader.begin(Serializable);
    scan(&mut reader, 0, lo, hi);
    writer.begin(how.unwrap_or(Serializable));
    let done = if how.is_some() { writer.insert(key) } else { writer.update(key, false) };
    writer.abort();
    reader.commit().expect("nobody wrote");
    assert_eq!(parts(w), 0);
    done
}

#[test]
fn a_part_keeps_writers_out_and_the_rest_of_its_range_lets_them_in() {
    let w = world(Protocol::TwoPhase, Policy::NoWait, &[10, 20], 16);
    let inside = |lo: Bound<i64>, hi: Bound<i64>, key| std::ops::RangeBounds::contains(&(lo, hi), &key);
    let scans = [
        (Included(3), Included(7)),
        (Excluded(3), Excluded(7)),
        (Included(3), Excluded(10)),
        (Unbounded, Included(5)),
        (Included(5), Included(15)),
        (Excluded(5), Included(25)),
        (Included(23), Unbounded),
    ];
    for (lo, hi) in scans {
        for key in [1, 3, 5, 7, 9, 11, 15, 21, 23, 25, 27] {
            let met = meets(&w, (lo, hi), key, Some(Serializable));
            let conflict = matches!(met, Err(Error::Abort { reason: AbortReason::LockConflict, .. }));
            assert_eq!(conflict, inside(lo, hi, key), "insert of {key} beside {lo:?} {hi:?}: {met:?}");
        }
    }
    // A writer that does not look where others have read goes on.
    faults::set(Some(Fault::PartsIgnored));
    let met = meets(&w, (Included(3), Included(7)), 5, Some(Serializable));
    faults::set(None);
    assert_eq!(met, Ok(true));
}

#[test]
fn updates_meet_the_locks_of_rows_or_a_part_where_rows_are_not_locked() {
    let w = world(Protocol::TwoPhase, Policy::NoWait, &[3], 16);
    // Rows of a scan without a covered range are locked one by one, when they are read.
    assert_eq!(meets(&w, (Included(0), Included(2)), 2, None), Ok(true));
    // Here those from 3 on are not: their range is locked; so are not those of the other end.
    let met = meets(&w, (Included(1), Unbounded), 2, None);
    failed_with(met.map(|_| ()), AbortReason::LockConflict);
    assert_eq!(meets(&w, (Included(1), Unbounded), 0, None), Ok(true));
}

#[test]
fn a_part_keeps_updates_out_once_its_rows_are_not_locked() {
    let w = world(Protocol::TwoPhase, Policy::NoWait, &[100], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    for rows_locked in [true, false] {
        reader.begin(Serializable);
        let id = scan(&mut reader, 0, Included(1), Included(5));
        if !rows_locked {
            reader.t.without_row_locks(id);
        }
        writer.begin(Serializable);
        let met = writer.update(2, false);
        writer.abort();
        match rows_locked {
            true => assert_eq!(met, Ok(true), "it has not read the row yet"),
            false => failed_with(met.map(|_| ()), AbortReason::LockConflict),
        }
        reader.commit().expect("nobody wrote");
    }
}

#[test]
fn a_scan_with_an_open_end_keeps_out_of_what_it_has_read() {
    let w = world(Protocol::TwoPhase, Policy::NoWait, &[100], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    let insert = |writer: &mut Client, key| {
        writer.begin(Serializable);
        let done = writer.insert(key);
        writer.abort();
        done
    };
    for cancelled in [false, true] {
        reader.begin(Serializable);
        let id = begin_scan(&mut reader, 0, Included(1), Unbounded, OpenEnd::High).expect("a scan");
        assert_eq!(insert(&mut writer, 3), Ok(true), "it may end before");
        if cancelled {
            reader.t.cancel_scan(&reader.p, id);
        } else {
            let hi = crate::spans::encode(0, 5);
            reader.t.narrow_scan(&reader.p, id, None, Some(Included(&hi)));
        }
        let met = insert(&mut writer, 5);
        assert_eq!(met.is_err(), !cancelled, "{met:?}");
        assert_eq!(insert(&mut writer, 7), Ok(true));
        reader.commit().expect("nobody wrote");
        assert_eq!(insert(&mut writer, 5), Ok(true));
        assert_eq!(parts(&w), 0);
    }
}

#[test]
fn a_scan_does_not_wait_for_writers_in_ranges_that_it_does_not_cover() {
    let w = world(Protocol::TwoPhase, Policy::NoWait, &[100], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    for scanner_first in [true, false] {
        writer.begin(Serializable);
        assert_eq!(writer.insert(1), Ok(true));
        reader.begin(Serializable);
        let id = scan(&mut reader, 0, Included(0), Included(2));
        let rec = *w.records(1).last().expect("an entry");
        assert_eq!(reader.t.read_scanned(&reader.p, rec, false, id), Ok(None), "of others nothing is seen");
        if scanner_first {
            assert_eq!(reader.commit(), Ok(()), "it comes before the writer");
            writer.abort();
        } else {
            writer.commit().expect("it looked before");
            failed_with(reader.commit(), AbortReason::Phantom);
            reader.abort();
        }
    }
}

/// Waits until so many transactions have begun to sleep for locks.
pub fn until_asleep(w: &World, n: u64) {
    let start = Instant::now();
    let slept = || w.table.map().partitions().iter().map(|p| p.stats.waits.all()).sum::<u64>();
    // A sleep is counted just before its edge is published.
    while slept() < n || w.e.asleep() == 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "nobody sleeps");
        std::thread::yield_now();
    }
}

#[test]
fn a_writer_waits_for_who_has_read_there() {
    let w = &world(Protocol::TwoPhase, Policy::Wait, &[100], 16);
    let r = Recorder::new();
    std::thread::scope(|s| {
        let (mut reader, other) = (session(w, &r, 0), r.session());
        reader.begin(Serializable);
        scan(&mut reader, 0, Included(1), Included(5));
        let waiting = s.spawn(move || {
            let mut writer = Client::new(w, 1, other, 77);
            writer.begin(Serializable);
            writer.insert(3)?;
            writer.commit()
        });
        until_asleep(w, 1);
        // A transaction that has read there may do so again: the writer has locked nothing there
        // yet.
        let id = scan(&mut reader, 0, Included(1), Included(5));
        for rec in w.records(3) {
            assert_eq!(reader.t.read_scanned(&reader.p, rec, false, id), Ok(None));
        }
        scan(&mut reader, 0, Unbounded, Excluded(100));
        assert_eq!(reader.commit(), Ok(()), "the writer has not committed before");
        assert_eq!(waiting.join().expect("no panic"), Ok(()));
    });
    assert_eq!(parts(w), 0);
}

/// A writer waits for a scan, whose transaction ends; its slot's next one scans the same. Does the
/// writer go on?
fn goes_on(fault: Option<Fault>) -> bool {
    let w = &world(Protocol::TwoPhase, Policy::Wait, &[100], 16);
    let (r, through) = (Recorder::new(), &AtomicBool::new(false));
    std::thread::scope(|s| {
        let (mut reader, other) = (session(w, &r, 0), r.session());
        reader.begin(Serializable);
        scan(&mut reader, 0, Included(1), Included(5));
        let waiting = s.spawn(move || {
            faults::set(fault);
            let mut writer = Client::new(w, 1, other, 77);
            writer.begin(Serializable);
            let done = writer.insert(3);
            through.store(true, Ordering::SeqCst);
            done?;
            writer.commit()
        });
        until_asleep(w, 1);
        assert_eq!(reader.commit(), Ok(()));
        reader.begin(Serializable);
        scan(&mut reader, 0, Included(1), Included(5));
        let start = Instant::now();
        let patience = if fault.is_none() { Duration::from_secs(60) } else { Duration::from_millis(50) };
        while !through.load(Ordering::SeqCst) && start.elapsed() < patience {
            std::thread::yield_now();
        }
        let went_on = through.load(Ordering::SeqCst);
        reader.abort();
        assert_eq!(waiting.join().expect("no panic"), Ok(()));
        went_on
    })
}

#[test]
fn a_writer_does_not_wait_for_the_next_transaction_of_a_slot() {
    assert!((0..20).all(|_| goes_on(None)));
    // Unless the writer has looked before there was a next one.
    assert!(!(0..20).all(|_| goes_on(Some(Fault::AwaitsTheNext))), "the fault has no effect");
}

#[test]
fn what_ends_in_a_wait_for_a_part_leaves_nothing_behind() {
    let w = world(Protocol::TwoPhase, Policy::Wait, &[100], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    for at in [None, Some(PanicAt::Event(StopEvent::LockWait)), Some(PanicAt::WaitFor)] {
        reader.begin(Serializable);
        scan(&mut reader, 0, Included(1), Included(5));
        writer.begin(Serializable);
        writer.p.panic_at.set(at);
        writer.p.threads.fail_at.set(at.is_none().then_some(StopEvent::LockWait));
        let end = catch_unwind(AssertUnwindSafe(|| writer.insert(3)));
        match at {
            None => assert_eq!(end.expect("no panic"), Err(Error::Injected)),
            Some(_) => assert!(end.is_err(), "{at:?}: it did not wait"),
        }
        writer.abort();
        // A transaction that ended so waits for no other: the reader may write where it pleases.
        assert_eq!(reader.insert(3), Ok(true), "{at:?}");
        assert_eq!(reader.delete(3, false, false), Ok(true));
        assert_eq!(reader.commit(), Ok(()));
        assert_eq!(parts(&w), 0);
        let set = ranges(&w, 0).current();
        assert!((0..set.len()).all(|no| set.range(no).lock.is_free() && set.list(no).is_finished()));
        assert!((0..w.e.slots.len() as u16).all(|slot| !w.e.is_pinned(slot)));
    }
}

#[test]
fn savepoints_keep_what_was_read_and_give_up_what_was_written() {
    let w = world(Protocol::TwoPhase, Policy::NoWait, &[100], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    reader.begin(Serializable);
    reader.savepoint();
    scan(&mut reader, 0, Included(1), Included(5));
    reader.end_savepoint(false);
    assert_eq!(parts(&w), 1, "it has read there all the same");
    writer.begin(Serializable);
    writer.savepoint();
    failed_with(writer.insert(3).map(|_| ()), AbortReason::LockConflict);
    writer.end_savepoint(false);
    assert_eq!(writer.insert(7), Ok(true));
    assert_eq!(writer.commit(), Ok(()));
    assert_eq!(reader.commit(), Ok(()), "the write that conflicts was taken back");
    assert_eq!(parts(&w), 0);
}

#[test]
fn without_memory_for_parts_scans_are_validated() {
    let w = world(Protocol::TwoPhase, Policy::NoWait, &[100], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    let (mut all, mut size) = (Vec::new(), 1 << 20);
    while size >= 8 {
        match w.e.region.alloc(0, size) {
            Ok(block) => all.push(block),
            Err(_) => size /= 2,
        }
    }
    reader.begin(Serializable);
    scan(&mut reader, 0, Included(1), Included(5));
    for block in all {
        // SAFETY: allocated above, and not published.
        unsafe { w.e.region.free(0, block) };
    }
    w.e.region.flush_slot(0);
    assert_eq!(parts(&w), 0, "there was memory");
    writer.begin(Serializable);
    assert_eq!(writer.insert(3), Ok(true));
    assert_eq!(writer.commit(), Ok(()));
    failed_with(reader.commit(), AbortReason::Phantom);
    reader.abort();
}

#[test]
fn a_part_that_was_read_before_a_switch_stays_locked() {
    let w = world(Protocol::TwoPhase, Policy::NoWait, &[100], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    let partition = &w.table.map().partitions()[0];
    let passes = || {
        for now in 1..6 {
            w.e.advance_switches(&[w.table], now, false);
        }
    };
    reader.begin(Serializable);
    scan(&mut reader, 0, Included(1), Included(5));
    partition.switch.ask(Protocol::Occ, false, Why::Asked, 0, 0);
    passes();
    let both = ProtocolSet::mediated(Protocol::TwoPhase, Protocol::Occ);
    assert_eq!(partition.protocols(), both, "the reader holds the switch up");
    writer.begin(Serializable);
    failed_with(writer.insert(3).map(|_| ()), AbortReason::LockConflict);
    writer.abort();
    assert_eq!(reader.commit(), Ok(()));
    passes();
    assert_eq!((partition.protocols(), parts(&w)), (ProtocolSet::of(Protocol::Occ), 0));
    // From then on the other partitions' rows are locked, and writes in this one are validated.
    reader.begin(Serializable);
    scan(&mut reader, 0, Included(1), Included(5));
    writer.begin(Serializable);
    assert_eq!(writer.insert(3), Ok(true));
    assert_eq!(writer.commit(), Ok(()));
    failed_with(reader.commit(), AbortReason::Phantom);
    reader.abort();
    assert_eq!(parts(&w), 0);
}

/// INV-ROWS: a scan from an end of the index that may stop early locks its rows one by one, also in
/// ranges that it has read whole. Inserts are kept out of those at its ends.
#[test]
fn a_scan_that_stops_early_locks_its_rows_and_keeps_inserts_out_of_the_ranges_at_its_ends() {
    let w = world(Protocol::TwoPhase, Policy::NoWait, &[2, 4, 100], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    let mut met = |write: &dyn Fn(&mut Client) -> Result<bool, Error>| {
        reader.begin(Serializable);
        let id = begin_scan(&mut reader, 0, Unbounded, Unbounded, OpenEnd::High).expect("a scan");
        for key in [0, 2, 4] {
            let rec = w.records(key)[0];
            assert!(reader.t.read_scanned(&reader.p, rec, false, id).expect("a read").is_some(), "{key}");
        }
        let hi = crate::spans::encode(0, 6);
        reader.t.narrow_scan(&reader.p, id, None, Some(Included(&hi)));
        assert_eq!(parts(&w), 2);
        writer.begin(Serializable);
        let done = write(&mut writer).and_then(|_| writer.commit());
        writer.abort();
        let end = reader.commit();
        reader.abort();
        (done, end)
    };
    let conflict = |(done, end): (Result<(), Error>, Result<(), Error>)| {
        failed_with(done, AbortReason::LockConflict);
        assert_eq!(end, Ok(()));
    };
    conflict(met(&|c| c.insert(1)));
    conflict(met(&|c| c.insert(5)));
    conflict(met(&|c| c.update(4, false)));
    conflict(met(&|c| c.delete(2, false, false)));
    let (done, end) = met(&|c| c.insert(3));
    assert_eq!(done, Ok(()), "a range between them is not locked");
    failed_with(end, AbortReason::Phantom);
    assert_eq!(met(&|c| c.insert(7)), (Ok(()), Ok(())), "it was not read");
}

#[test]
fn more_parts_than_there_is_room_for_are_validated() {
    let w = world(Protocol::TwoPhase, Policy::NoWait, &[1000], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    let n = mixedcc_engine::range::PARTS as i64;
    reader.begin(Serializable);
    for i in 0..n + 10 {
        scan(&mut reader, 0, Included(10 * i + 5), Included(10 * i + 7));
    }
    assert_eq!(parts(&w), n as u64);
    writer.begin(Serializable);
    assert_eq!(writer.insert(10 * (n + 2) + 5), Ok(true));
    writer.commit().expect("nothing is locked against it");
    failed_with(reader.commit(), AbortReason::Phantom);
    reader.abort();
    assert_eq!(parts(&w), 0);
}
