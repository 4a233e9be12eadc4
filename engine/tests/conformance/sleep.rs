//! Ranges that fall asleep, and those that rely on them.

use crate::client::{Client, Mood};
use crate::spans::encode;
use crate::steps::*;
use crate::world::World;
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::range::SLEEP_AFTER;
use mixedcc_engine::txn::{OpenEnd, Scan};
use mixedcc_engine::{Policy, Protocol};
use std::ops::Bound::Included;
use Mood::{ReadCommitted, Serializable};

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
