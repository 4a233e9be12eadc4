//! A read that finds no row because an insert is pending (INV-VALID): what its transaction reads
//! later is not of a state in which that insert has committed.

use crate::client::{Client, Mood};
use crate::steps::{failed_with, session};
use crate::world::{Row, World};
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::{Error, Policy, Protocol, ProtocolSet};
use Mood::Serializable;

const INSERTED: i64 = 1;
const UPDATED: i64 = 0;

/// How far the writer has got when the reader looks for its insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    Active,
    /// It has its CSN, and had it before the reader began.
    Committing,
}

/// How the reader looks at a record.
type Look = fn(&mut Client, u64) -> Result<Option<i64>, Error>;

fn read(c: &mut Client, no: u64) -> Result<Option<i64>, Error> {
    let r = mixedcc_engine::RecordRef::find(c.w.table, no).expect("a record");
    Ok(c.t.read(&c.p, r, false)?.map(|v| Row::read(v).value))
}

fn find(c: &mut Client, no: u64) -> Result<Option<i64>, Error> {
    let at = c.w.touch(0);
    Ok(c.t.find_record(&c.p, at, no, false)?.map(|row| Row::read(row.version).value))
}

fn number(w: &World, key: i64) -> u64 {
    w.records(key)[0].no
}

/// A writer inserts a row and updates another one. A reader looks for the first row before the
/// writer has committed, and for the second one after that. Returns what it sees of the second one;
/// and how its commit ends.
fn reads(p: Protocol, writer: Writer, look: Look, commits: bool) -> (Result<Option<i64>, Error>, Result<(), Error>) {
    let w = World::new(&[ProtocolSet::of(p)], Policy::Wait, 4);
    let recorder = Recorder::new();
    let (mut a, mut b) = (session(&w, &recorder, 0), session(&w, &recorder, 1));
    a.begin(Serializable);
    assert_eq!(a.insert(INSERTED), Ok(true));
    assert_eq!(a.update(UPDATED, false), Ok(true));
    if writer == Writer::Committing {
        a.t.prepare(&a.p, &|_, _| {}).expect("nobody is in the way");
    }
    b.begin(Serializable);
    assert_eq!(look(&mut b, number(&w, INSERTED)), Ok(None), "it has not committed");
    if writer == Writer::Active {
        a.t.prepare(&a.p, &|_, _| {}).expect("nobody is in the way");
    }
    if commits {
        a.t.publish(&a.p);
    }
    a.abort(); // ends a published transaction too
    let seen = look(&mut b, number(&w, UPDATED));
    let end = if seen.is_ok() { b.commit() } else { Ok(()) };
    b.abort();
    (seen, end)
}

fn all() -> impl Iterator<Item = (Protocol, Writer, Look)> {
    let protocols = [Protocol::Occ, Protocol::TwoPhase];
    let writers = [Writer::Active, Writer::Committing];
    let both = protocols.into_iter().flat_map(move |p| writers.map(|w| (p, w)));
    both.flat_map(|(p, w)| [(p, w, read as Look), (p, w, find as Look)])
}

#[test]
fn half_of_a_commit_is_not_read() {
    for (p, writer, look) in all() {
        let (seen, _) = reads(p, writer, look, true);
        failed_with(seen.map(drop), AbortReason::ReadChanged);
    }
}

#[test]
fn an_insert_that_is_undone_fails_nobody() {
    for (p, writer, look) in all() {
        let (seen, end) = reads(p, writer, look, false);
        assert_eq!((seen, end), (Ok(Some(100)), Ok(())), "{p:?} {writer:?}");
    }
}

#[test]
fn it_is_where_the_absence_is_forgotten() {
    for (p, writer, look) in all() {
        faults::set(Some(Fault::PendingIsForgotten));
        let (seen, end) = reads(p, writer, look, true);
        faults::set(None);
        assert!(matches!(seen, Ok(Some(new)) if new != 100), "{p:?} {writer:?}: the fault has no effect: {seen:?}");
        assert_eq!(end, Ok(()), "{p:?} {writer:?}");
    }
}

/// Where a predicate answers for the absence, nothing else is remembered of it.
#[test]
fn a_scan_does_not_remember_each_insert_that_is_pending() {
    let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 4);
    let recorder = Recorder::new();
    let (mut a, mut b) = (session(&w, &recorder, 0), session(&w, &recorder, 1));
    a.begin(Serializable);
    for key in [1, 3, 5] {
        assert_eq!(a.insert(key), Ok(true));
    }
    b.begin(Serializable);
    assert_eq!(b.scan(0).expect("a scan").len(), 3);
    assert_eq!((b.t.partition_predicates().count(), b.t.remembered_reads()), (1, 3));
    a.commit().expect("nobody is in the way");
    failed_with(b.commit(), AbortReason::Phantom);
    b.abort();
}
