//! Locks of ranges under `2pl`: one session after another, in one thread.

use crate::client::{Client, Mood};
use crate::steps::*;
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::lock::Mode;
use mixedcc_engine::txn::{OpenEnd, ScanId};
use mixedcc_engine::{Policy, Protocol};
use std::ops::Bound::{Excluded, Included};
use Mood::{ReadCommitted, Serializable};

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
