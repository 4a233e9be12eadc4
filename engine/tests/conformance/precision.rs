//! What a predicate protects, exactly: two or three sessions in one thread, one step after another.

use crate::client::{Client, Mood};
use crate::spans::encode;
use crate::steps::*;
use crate::world::{World, WIDTH};
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::lock::Mode;
use mixedcc_engine::open::Seen;
use mixedcc_engine::platform::StopEvent;
use mixedcc_engine::range::Looked;
use mixedcc_engine::txn::{OpenEnd, Scan};
use mixedcc_engine::{Error, Policy, Protocol, ProtocolSet};
use std::ops::Bound::{Excluded, Included, Unbounded};
use Mood::{ReadCommitted, Serializable};

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
fn without_memory_for_a_list_its_writers_count_as_those_of_unknown_keys() {
    // A list takes 512 kB.
    let w = world(Protocol::Occ, Policy::Wait, &[2], 8192);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    let mut run = |key| {
        reader.begin(Serializable);
        scan(&mut reader, 0, Included(0), Included(1));
        let there = w_has(&mut writer, key);
        write(&mut writer, key, there, 0);
        let end = reader.commit();
        reader.abort();
        end.is_ok()
    };
    let mut taken = Vec::new();
    while let Ok(mem) = w.e.region.alloc(1, 1 << 18) {
        taken.push(mem);
    }
    let give_back = |mem| {
        // SAFETY: INV-M1: allocated above, and given back once.
        unsafe { w.e.region.free(1, mem) };
    };
    // For what is smaller than a list.
    taken.pop().into_iter().for_each(give_back);
    let unknown = || ranges(&w, 0).unknown_version();
    let before = unknown();
    assert_eq!([run(3), run(1)], [false, false], "a write of any key");
    assert_eq!(unknown(), before + 2);
    taken.into_iter().for_each(give_back);
    assert_eq!([run(3), run(1)], [true, false]);
    assert_eq!(unknown(), before + 2);
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

/// Does a scan of a covered range, and of a part of another one, that meets a registration commit?
fn beside(fault: Option<Fault>, meet: impl Fn(&mut Client, &mut Client) -> Result<(), Error>) -> bool {
    let w = world(Protocol::Occ, Policy::Wait, &[2, 4], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    faults::set(fault);
    let end = meet(&mut reader, &mut writer);
    faults::set(None);
    reader.abort();
    writer.abort();
    end.is_ok()
}

#[test]
fn aborted_writers_and_later_ones_abort_nobody() {
    // A writer that has registered fails: it has read what somebody has changed since.
    let aborted = |reader: &mut Client, writer: &mut Client| {
        reader.begin(Serializable);
        scan(reader, 0, Included(1), Excluded(4));
        writer.begin(Serializable);
        let before = ranges(writer.w, 0).current().range(1).version();
        writer.insert(3).expect("an insert");
        writer.p.threads.fail_at.set(Some(StopEvent::CommitLink));
        assert!(writer.commit().is_err());
        writer.abort();
        assert_eq!(ranges(reader.w, 0).current().range(1).version(), before + 1, "it had registered");
        reader.commit()
    };
    // A writer that commits between the reader's CSN and its validation.
    let later = |reader: &mut Client, writer: &mut Client| {
        reader.begin(Serializable);
        scan(reader, 0, Included(1), Excluded(4));
        reader.update(0, false).expect("an update");
        let meanwhile = Meanwhile::new(&reader.p, || write(writer, 3, false, 0));
        reader.t.prepare(&meanwhile, &|_, _| {})?;
        reader.t.publish(&reader.p);
        Ok(())
    };
    assert!(beside(None, aborted));
    assert!(!beside(Some(Fault::AbortedCounts), aborted));
    assert!(beside(None, later));
    assert!(!beside(Some(Fault::LaterCounts), later));
}

#[test]
fn of_a_partition_s_ring_that_wraps_only_what_committed_counts() {
    use mixedcc_engine::range::RING_SIZE;
    // Inserts of which the first, the last or none commits, beside a scan of everything.
    let run = |commits: Option<u64>, fault: Option<Fault>| {
        let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 4);
        let r = Recorder::new();
        let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
        reader.begin(Serializable);
        for at in all(&w) {
            reader.t.scan(&reader.p, at).expect("a scan");
        }
        let n = 2 * RING_SIZE as u64;
        for i in 0..n {
            writer.begin(Serializable);
            assert_eq!(writer.insert(2 * i as i64 + 1), Ok(true));
            if commits != Some(i) {
                writer.p.threads.fail_at.set(Some(StopEvent::CommitLink));
            }
            assert_eq!(writer.commit().is_ok(), commits == Some(i));
            writer.abort();
        }
        let registered = w.touch(0).partition().ring.list().version();
        assert!(registered >= n, "{registered} registrations");
        faults::set(fault);
        let end = reader.commit();
        faults::set(None);
        reader.abort();
        end
    };
    assert_eq!(run(None, None), Ok(()));
    failed_with(run(Some(0), None), AbortReason::PredicateWrapped);
    failed_with(run(Some(2 * RING_SIZE as u64 - 1), None), AbortReason::Phantom);
    assert_eq!(run(Some(0), Some(Fault::EvictedForgotten)), Ok(()), "the fault hides it");
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
            let scan = Scan {
                at: &[],
                lo: Included(&lo),
                hi: Included(&hi),
                open: OpenEnd::No,
                snapshot: Some(Seen::prefix(csn)),
                looked: Looked::ALL,
            };
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
    // What was there when the snapshot was taken, and what happened then: ranges appear, change, or
    // wake up.
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
            let scan = Scan {
                at: &[],
                lo: Included(&lo),
                hi: Included(&hi),
                open: OpenEnd::No,
                snapshot: Some(Seen::prefix(csn)),
                looked: Looked::ALL,
            };
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

/// Under each protocol: the transaction has no lock of the partition.
#[test]
fn rows_that_an_undone_insert_found_absent_stay_so() {
    for protocol in Protocol::ALL {
        for deeper in [false, true] {
            for (keep, inserts, fails) in [(false, true, true), (false, false, false), (true, true, false)] {
                let w = world(protocol, Policy::Wait, &[3], 16);
                let r = Recorder::new();
                let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
                if !inserts && !w_has(&mut writer, 3) {
                    write(&mut writer, 3, false, 0);
                }
                reader.begin(Serializable);
                reader.savepoint();
                if deeper {
                    reader.savepoint();
                }
                for _ in 0..2 {
                    reader.t.note_absent_rows([w.touch(0)].into_iter());
                }
                if deeper {
                    reader.end_savepoint(true);
                }
                reader.end_savepoint(keep);
                write(&mut writer, 3, !inserts, 0);
                assert_eq!(reader.commit().is_err(), fails, "{protocol:?} {deeper} {keep} {inserts}");
                reader.abort();
            }
        }
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
