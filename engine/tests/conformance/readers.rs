//! Serializable transactions that write nothing: they commit at the CSN at which their reads are
//! valid (INV-VALID), whatever others have committed since. Those that write, or have written
//! elsewhere, are validated at their commit. (Those that freeze: `frozen.rs`.)

use crate::client::{Client, Mood};
use crate::steps::{begin_scan, failed_with, world};
use crate::world::{Row, World};
use mixedcc_engine::checker::{check, Options, Recorder};
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::txn::OpenEnd;
use mixedcc_engine::{Error, Policy, Protocol, RecordRef};
use std::ops::Bound::{Included, Unbounded};
use Mood::Serializable;

const X: i64 = 0;
const Y: i64 = 2;
const ABSENT: i64 = 1;

/// How a transaction reads what a writer changes next.
type Read = fn(&mut Client);

fn row(c: &mut Client) {
    assert!(c.get(X).expect("a read").is_some());
}
fn absence(c: &mut Client) {
    assert!(c.get(ABSENT).expect("a read").is_none());
}
fn partition(c: &mut Client) {
    assert_eq!(c.scan(0).expect("a scan").len(), 3);
}
fn range(c: &mut Client) {
    let id = begin_scan(c, 0, Included(X), Unbounded, OpenEnd::No).expect("a scan");
    for key in [X, Y] {
        let r = record(c.w, key);
        assert!(c.t.read_scanned(&c.p, r, false, id).expect("a read").is_some());
    }
}
const READS: [Read; 4] = [row, absence, partition, range];

fn record(w: &World, key: i64) -> RecordRef {
    w.records(key)[0]
}

/// What a transaction does between its reads and its commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Nothing,
    Writes,
    WritesElsewhere,
}

/// A transaction reads, another one changes what it has read and commits; how does the first one
/// end?
fn run(read: Read, then: Then) -> Result<(), Error> {
    let w = world(Protocol::Occ, Policy::Wait, &[1, 3], 64);
    let recorder = Recorder::new();
    let mut a = Client::new(&w, 0, recorder.session(), 77);
    let mut b = Client::new(&w, 1, recorder.session(), 77);
    a.begin(Serializable);
    read(&mut a);
    b.begin(Serializable);
    assert_eq!((b.update(X, false), b.insert(ABSENT)), (Ok(true), Ok(true)));
    b.commit().expect("nobody is in the way");
    match then {
        Then::Nothing => {}
        Then::Writes => assert_eq!(a.update(4, false), Ok(true)),
        Then::WritesElsewhere => a.p.threads.writers.set(true),
    }
    let end = a.commit();
    a.abort();
    let v = check(&recorder.history(), &Options::strict());
    assert!(v.accepts(), "{v}");
    end
}

#[test]
fn who_writes_nothing_commits_where_its_reads_were_valid() {
    for read in READS {
        assert_eq!(run(read, Then::Nothing), Ok(()));
    }
}

#[test]
fn who_has_written_is_validated() {
    for read in READS {
        for then in [Then::Writes, Then::WritesElsewhere] {
            assert!(matches!(run(read, then), Err(Error::Abort { .. })), "{then:?}");
        }
    }
}

#[test]
fn a_later_read_must_fit_to_the_earlier_ones() {
    for read in READS {
        let w = world(Protocol::Occ, Policy::Wait, &[1, 3], 64);
        let recorder = Recorder::new();
        let mut a = Client::new(&w, 0, recorder.session(), 77);
        let mut b = Client::new(&w, 1, recorder.session(), 77);
        a.p.threads.freezes.set(false);
        a.begin(Serializable);
        read(&mut a);
        b.begin(Serializable);
        assert_eq!((b.update(X, false), b.insert(ABSENT), b.update(4, false)), (Ok(true), Ok(true), Ok(true)));
        b.commit().expect("nobody is in the way");
        assert!(matches!(a.get(4), Err(Error::Abort { .. })), "the row is newer than what was read");
        a.abort();
    }
}

/// A writer that has its CSN before a reader begins updates X and Y. The reader reads Y while the
/// writer is committing, and X, if `both`, after that. What it sees of X; and how its commit ends.
fn passes_over(by_scan: bool, both: bool) -> (Result<Option<i64>, Error>, Result<(), Error>) {
    let w = world(Protocol::Occ, Policy::Wait, &[1, 3], 64);
    let recorder = Recorder::new();
    let mut a = Client::new(&w, 0, recorder.session(), 77);
    let mut b = Client::new(&w, 1, recorder.session(), 77);
    a.p.threads.freezes.set(false);
    b.begin(Serializable);
    assert_eq!((b.update(X, false), b.update(Y, false)), (Ok(true), Ok(true)));
    b.t.prepare(&b.p, &|_, _| {}).expect("nobody is in the way");
    a.begin(Serializable);
    let y = if by_scan {
        let id = begin_scan(&mut a, 0, Included(Y), Unbounded, OpenEnd::No).expect("a scan");
        a.t.read_scanned(&a.p, record(&w, Y), false, id)
    } else {
        a.t.read(&a.p, record(&w, Y), false)
    };
    assert_eq!(y.expect("a read").map(|v| Row::read(v).value), Some(100), "the writer is not over");
    b.t.publish(&b.p);
    b.abort(); // ends a published transaction too
    let x = match both {
        true => a.t.read(&a.p, record(&w, X), false).map(|v| v.map(|v| Row::read(v).value)),
        false => Ok(None),
    };
    let end = if x.is_ok() { a.commit() } else { Ok(()) };
    a.abort();
    (x, end)
}

#[test]
fn what_was_passed_over_is_validated() {
    for by_scan in [false, true] {
        let reason = if by_scan { AbortReason::Phantom } else { AbortReason::ReadChanged };
        failed_with(passes_over(by_scan, true).0.map(drop), reason);
        failed_with(passes_over(by_scan, false).1, reason);
    }
}

#[test]
fn a_reader_that_forgets_what_it_passed_over_commits_half_of_a_commit() {
    faults::set(Some(Fault::PassesOver));
    let (x, end) = passes_over(false, true);
    faults::set(None);
    assert_eq!((x, end), (Ok(Some(101)), Ok(())), "the fault has no effect");
}

#[test]
fn a_row_whose_key_is_locked_is_read_as_of_the_other_reads() {
    for writes in [false, true] {
        let w = world(Protocol::Occ, Policy::Wait, &[1, 3], 64);
        let recorder = Recorder::new();
        let mut a = Client::new(&w, 0, recorder.session(), 77);
        let mut b = Client::new(&w, 1, recorder.session(), 77);
        a.begin(Serializable);
        assert_eq!(a.get(X).expect("a read").map(|r| r.value), Some(100));
        b.begin(Serializable);
        assert_eq!(b.update(X, false), Ok(true));
        b.commit().expect("nobody is in the way");
        let again = a.t.read_locked_key(&a.p, record(&w, X), false).expect("a read");
        assert_eq!(again.map(|v| Row::read(v).value), Some(100));
        if writes {
            assert_eq!(a.update(4, false), Ok(true));
        }
        assert_eq!(a.commit().is_err(), writes);
        a.abort();
    }
}
