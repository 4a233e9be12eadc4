//! Scans of partitions with a condition: of the rows that are inserted, only those that meet it are
//! conflicts.

use crate::client::{Client, Mood};
use crate::steps::{failed_with, session};
use crate::world::{Row, World, VALUE};
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::txn::MAX_CONDITIONS;
use mixedcc_engine::{Error, Policy, Protocol, ProtocolSet};
use Mood::{ReadCommitted, Serializable};

/// How a scan ends that wants the rows of partition 0 with a value of `least` or more, and reads
/// all that are there, if `meanwhile` happens behind it.
fn run(p: Protocol, least: u32, meanwhile: impl FnOnce(&mut Client, &mut Client)) -> Result<(), Error> {
    let w = World::new(&[ProtocolSet::of(p)], Policy::Wait, 4);
    let r = Recorder::new();
    let (mut a, mut b, mut c) = (session(&w, &r, 0), session(&w, &r, 1), session(&w, &r, 2));
    a.begin(Serializable);
    a.t.scan_where(&a.p, w.touch(0), VALUE + least).expect("a scan");
    for key in [0, 2, 4] {
        let record = w.records(key)[0];
        assert!(a.t.read(&a.p, record, false).expect("a read").is_some());
    }
    meanwhile(&mut b, &mut c);
    let end = a.commit();
    a.abort();
    end
}

fn insert(c: &mut Client, key: i64) {
    c.begin(Serializable);
    assert_eq!(c.insert(key), Ok(true)); // its value is 0
    c.commit().expect("nobody is in the way");
}
fn add(c: &mut Client, key: i64, n: i64) {
    c.begin(ReadCommitted);
    assert_eq!(c.add(key, n, false), Ok(true));
    c.commit().expect("nobody is in the way");
}
fn delete(c: &mut Client, key: i64) {
    c.begin(ReadCommitted);
    assert_eq!(c.delete(key, false, false), Ok(true));
    c.commit().expect("nobody is in the way");
}

fn phantom(end: Result<(), Error>) {
    failed_with(end, AbortReason::Phantom);
}

#[test]
fn a_row_that_does_not_meet_the_condition_is_no_conflict() {
    for p in [Protocol::Occ, Protocol::TwoPhase] {
        assert_eq!(run(p, 1, |b, _| insert(b, 1)), Ok(()));
        phantom(run(p, 0, |b, _| insert(b, 1)));
    }
}

#[test]
fn a_row_is_judged_as_it_is_at_the_commit() {
    // Updated in place: it meets the condition, or does not any more.
    let changed = |b: &mut Client, c: &mut Client, n: i64| {
        insert(b, 1);
        add(c, 1, n);
    };
    phantom(run(Protocol::Occ, 5, |b, c| changed(b, c, 7)));
    assert_eq!(run(Protocol::Occ, 5, |b, c| changed(b, c, 3)), Ok(()));
    assert_eq!(run(Protocol::Occ, 0, |b, c| changed(b, c, -3)), Ok(()));
    faults::set(Some(Fault::JudgesTheFirst));
    let end = run(Protocol::Occ, 5, |b, c| changed(b, c, 7));
    faults::set(None);
    assert_eq!(end, Ok(()), "the fault has no effect");
    let deleted = |b: &mut Client, c: &mut Client| {
        insert(b, 1);
        delete(c, 1);
    };
    assert_eq!(run(Protocol::Occ, 0, deleted), Ok(()));
    let again = |b: &mut Client, c: &mut Client| {
        insert(b, 1);
        delete(c, 1);
        insert(b, 1);
    };
    phantom(run(Protocol::Occ, 0, again));
}

#[test]
fn every_row_of_a_transaction_is_judged() {
    let three = |b: &mut Client, _: &mut Client| {
        b.begin(ReadCommitted);
        for key in [1, 3, 5] {
            assert_eq!(b.insert(key), Ok(true));
        }
        assert_eq!(b.add(5, 9, false), Ok(true));
        b.commit().expect("nobody is in the way");
    };
    phantom(run(Protocol::Occ, 5, three));
    faults::set(Some(Fault::NamesOneRecord));
    let end = run(Protocol::Occ, 5, three);
    faults::set(None);
    assert_eq!(end, Ok(()), "the fault has no effect");
}

#[test]
fn rows_between_those_that_were_inserted_do_not_count() {
    let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 4);
    let r = Recorder::new();
    let (mut a, mut b, mut c) = (session(&w, &r, 0), session(&w, &r, 1), session(&w, &r, 2));
    // A row that meets the condition, in a record between those of two that do not.
    b.begin(ReadCommitted);
    assert_eq!(b.insert(1), Ok(true));
    c.begin(ReadCommitted);
    assert_eq!(c.insert(3), Ok(true));
    assert_eq!(c.add(3, 9, false), Ok(true));
    c.commit().expect("nobody is in the way");
    assert_eq!(b.insert(5), Ok(true));
    let numbers: Vec<u64> = [1, 3, 5].iter().map(|k| w.records(*k)[0].no).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
    a.begin(Serializable);
    a.t.scan_where(&a.p, w.touch(0), VALUE + 5).expect("a scan");
    let seen = a.t.read(&a.p, w.records(3)[0], false).expect("a read");
    assert_eq!(seen.map(|v| Row::read(v).value), Some(9));
    b.commit().expect("nobody is in the way");
    assert_eq!(a.commit(), Ok(()));
}

#[test]
fn inserts_into_records_far_apart_are_conflicts() {
    let many = |b: &mut Client, _: &mut Client| {
        b.begin(ReadCommitted);
        let others = (1100..1900).chain(2100..2900);
        for key in [100].into_iter().chain(others).chain([101]) {
            let row = Row { key, txn: 0, nth: 0, value: 0 };
            b.w.insert(&mut b.t, &b.p, row, 1).expect("room");
        }
        b.commit().expect("nobody is in the way");
    };
    phantom(run(Protocol::Occ, 5, many));
}

#[test]
fn scans_beyond_many_protect_the_partition() {
    let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 4);
    let r = Recorder::new();
    let (mut a, mut b) = (session(&w, &r, 0), session(&w, &r, 1));
    for (n, fails) in [(MAX_CONDITIONS, false), (MAX_CONDITIONS + 1, true)] {
        a.begin(Serializable);
        for _ in 0..n {
            a.t.scan_where(&a.p, w.touch(0), VALUE + 5).expect("a scan");
        }
        insert(&mut b, if fails { 1 } else { 3 });
        assert_eq!(a.commit().is_err(), fails);
        a.abort();
    }
}
