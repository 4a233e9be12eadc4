//! Ranges that fall asleep, and those that rely on them.

use crate::client::{Client, Mood};
use crate::spans::encode;
use crate::steps::*;
use crate::world::{PanicAt, World};
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::open::Seen;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::range::Looked;
use mixedcc_engine::txn::{OpenEnd, Scan};
use mixedcc_engine::{Policy, Protocol, ProtocolSet, Table};
use std::ops::Bound::Included;
use std::panic::{catch_unwind, AssertUnwindSafe};
use Mood::{ReadCommitted, Serializable};

/// More writes than ranges need to fall asleep where time does not matter: the first look finds
/// that they were used, the second that they are not any more, the third that no scan relies on
/// them.
const WRITES: u32 = 16;

/// From now on ranges fall asleep as soon as writers find that no scan uses them.
fn tired(w: &World) {
    w.e.shared.dormant_after_ns.store(0, Ordering::SeqCst);
}

#[test]
fn ranges_that_were_scanned_of_late_stay_awake_however_many_commits_come() {
    let w = world(Protocol::Occ, Policy::Wait, &[3], 16);
    w.e.shared.dormant_after_ns.store(3_600_000_000_000, Ordering::SeqCst);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    reader.begin(Serializable);
    scan(&mut reader, 0, Included(0), Included(1));
    reader.commit().expect("nothing was read");
    for _ in 0..1000 {
        write(&mut writer, 4, true, 0);
        w.e.tick();
    }
    assert!([0, 1].iter().all(|&i| !ranges(&w, i).is_dormant()));
    put_to_sleep(&w, &mut writer);
}

#[test]
fn ranges_fall_asleep_when_nobody_scans_and_nobody_relies_on_them() {
    let w = world(Protocol::Occ, Policy::Wait, &[3], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    writer.keyed = false;
    tired(&w);
    let all_asleep = || [0, 1].iter().all(|&i| ranges(&w, i).is_dormant());
    reader.begin(Serializable);
    scan(&mut reader, 0, Included(0), Included(1));
    scan(&mut reader, 1, Included(0), Included(1));
    for _ in 0..WRITES {
        write(&mut writer, 4, true, 0);
    }
    assert!(!all_asleep(), "there is a predicate");
    write(&mut writer, 0, true, 0);
    assert!(reader.commit().is_err(), "and it is validated");
    reader.abort();
    for _ in 0..WRITES {
        write(&mut writer, 4, true, 0);
    }
    assert!(all_asleep());
    let versions = || ranges(&w, 0).current().totals()[0] + ranges(&w, 0).unknown_version();
    let before = versions();
    write(&mut writer, 4, true, 0);
    assert_eq!(versions(), before, "nobody registers");
    // A snapshot from that time does not know the writes from then; one from now on does.
    for (csn, lost) in [(w.e.now(), true), (0, false)] {
        reader.begin(ReadCommitted);
        write(&mut writer, 0, true, 0);
        let csn = if csn == 0 { w.e.now() } else { csn };
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
        assert_eq!(reader.commit().is_err(), lost);
        reader.abort();
    }
    // A scan wakes them up, and a write that began before that conflicts with it.
    writer.begin(Serializable);
    assert_eq!(writer.update(0, false), Ok(true));
    reader.begin(Serializable);
    scan(&mut reader, 1, Included(0), Included(1));
    assert!(!ranges(&w, 1).is_dormant());
    writer.commit().expect("a write");
    assert!(reader.commit().is_err());
    reader.abort();
}

/// Writes until all ranges are asleep.
fn put_to_sleep(w: &World, writer: &mut Client) {
    tired(w);
    writer.keyed = false;
    for _ in 0..WRITES {
        write(writer, 4, true, 0);
    }
    assert!([0, 1].iter().all(|&i| ranges(w, i).is_dormant()));
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

/// A session commits into a table, and is about to decide. Does a scan of the first table that
/// wakes its ranges up wait for it?
fn waits_for_a_commit_into(the_same: bool, fault: Option<Fault>) -> bool {
    let w = world(Protocol::Occ, Policy::Wait, &[3], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    put_to_sleep(&w, &mut writer);
    let set = ProtocolSet::of(Protocol::Occ);
    let map = Table::new_map(&w.e, 2, 1, 0, b"", set, Policy::Wait).expect("a map");
    let other = Table::create(&w.e, 2, [9; 4], map).expect("a table");
    faults::set(fault);
    writer.begin(Serializable);
    if the_same {
        assert_eq!(writer.update(0, false), Ok(true));
    } else {
        let v = writer.t.new_version(0, 8, 0).expect("memory");
        writer.t.insert(&writer.p, other, [0, 0], v, 1, 0).expect("memory");
    }
    writer.t.prepare(&writer.p, &|_, _| {}).expect("nobody is in the way");
    faults::set(None);
    reader.begin(Serializable);
    reader.p.panic_at.set(Some(PanicAt::Pause));
    let scanned = catch_unwind(AssertUnwindSafe(|| scan(&mut reader, 0, Included(0), Included(1))));
    reader.p.panic_at.set(None);
    writer.t.publish(&writer.p);
    writer.abort();
    reader.abort();
    scanned.is_err()
}

#[test]
fn a_scan_that_wakes_ranges_up_waits_for_commits_into_its_table_and_for_no_others() {
    assert!(waits_for_a_commit_into(true, None));
    assert!(!waits_for_a_commit_into(false, None));
    assert!(!waits_for_a_commit_into(true, Some(Fault::TablesUntold)), "the fault has no effect");
}
