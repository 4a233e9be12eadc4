//! Scans and look-ups that look at some columns of their rows, beside updates in place that change
//! others.
//!
//! In the histories a row has two columns, each an item of its own for the checker: a table for
//! each. So the checker finds a scan whose columns were changed, and not one that was passed over.

use crate::client::Client;
use crate::load::{find_anomaly_in, policies};
use crate::spans::{cuts, encode};
use crate::steps::*;
use crate::switches::{switch_at_random, Plan};
use crate::world::{initial_keys, partition_of, Jitter, Rng, Row, World, PARTITIONS, SHARED, WIDTH};
use mixedcc_engine::checker::{self, check, History, Key, Log, Options, Payload, Predicate, Recorder, Seen, WriteKind};
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::lock::Mode;
use mixedcc_engine::protocol::Touch;
use mixedcc_engine::range::{Columns, Looked};
use mixedcc_engine::record::{Successor, Version};
use mixedcc_engine::switch::Why;
use mixedcc_engine::txn::{How, OpenEnd, Own, Scan, ScanId, WriteKind as Kind, MAX_PREDICATES};
use mixedcc_engine::{Error, Level, Policy, Protocol, ProtocolSet, RecordRef, Txn};
use std::cell::Cell;
use std::ops::Bound::{Excluded, Included};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const A: Columns = Columns::of(1);
const B: Columns = Columns::of(2);

/// A scan of the keys 0 to 5, which reads the rows there.
fn look_at(c: &mut Client, looked: Looked) -> ScanId {
    c.begin(crate::client::Mood::Serializable);
    let id = begin_scan_of(c, 0, (Included(0), Included(5)), OpenEnd::No, looked).expect("a scan");
    for key in [0, 2, 4] {
        read(c, key, id).expect("a read");
    }
    id
}

fn read(c: &mut Client, key: i64, id: ScanId) -> Result<(), Error> {
    for r in c.w.records(key) {
        c.t.read_scanned(&c.p, r, false, id)?;
    }
    Ok(())
}

/// One statement of a transaction: an UPDATE that changes these columns.
fn change(c: &mut Client, key: i64, columns: Columns) -> Result<(), Error> {
    c.changes = columns;
    let done = c.update(key, false);
    c.changes = Columns::ALL;
    done.map(|found| assert!(found))
}

/// How a reader of some columns ends beside a transaction that has changed these, one after
/// another.
fn beside(w: &World, looked: Looked, changes: &[Columns], fault: Option<Fault>) -> Result<(), Error> {
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(w, &r, 0), session(w, &r, 1));
    faults::set(fault);
    look_at(&mut reader, looked);
    writer.begin(crate::client::Mood::Serializable);
    for &columns in changes {
        change(&mut writer, 2, columns).expect("nobody is in the way");
    }
    writer.commit().expect("it has read what is there");
    let end = reader.commit();
    reader.abort();
    faults::set(None);
    end
}

#[test]
fn a_scan_passes_over_updates_of_what_it_has_not_looked_at() {
    for cuts in [vec![], vec![1, 3], vec![2, 6]] {
        let w = world(Protocol::Occ, Policy::Wait, &cuts, 16);
        for (looked, changes, conflict) in [
            (A, vec![B], false),
            (A, vec![A], true),
            (A.and(B), vec![B], true),
            (A, vec![A.and(B)], true),
            (A, vec![B, B], false),
            (B, vec![B, A], true),
            (B, vec![A, B], true),
            (A, vec![Columns::NONE], false),
            (A, vec![Columns::ALL], true),
            // Its statement may write the rows, or show what changes with every version.
            (Columns::ALL, vec![Columns::NONE], true),
            // A count of rows.
            (Columns::NONE, vec![Columns::ALL], false),
        ] {
            let end = beside(&w, Looked::at(looked), &changes, None);
            match conflict {
                true => failed_with(end, AbortReason::Phantom),
                false => assert_eq!(end, Ok(()), "{looked:?} {changes:?}"),
            }
        }
        // What the faults hide.
        assert_eq!(beside(&w, Looked::at(A), &[A], Some(Fault::ChangesForgotten)), Ok(()));
        assert_eq!(beside(&w, Looked::at(A), &[A], Some(Fault::LooksAtNothing)), Ok(()));
        assert_eq!(beside(&w, Looked::at(B), &[B, A], Some(Fault::LastChangeOnly)), Ok(()));
    }
}

#[test]
fn inserts_deletes_and_moves_concern_every_scan() {
    let w = world(Protocol::Occ, Policy::Wait, &[1, 3], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    writer.changes = B;
    type Act = fn(&mut Client) -> Result<bool, Error>;
    let acts: [Act; 5] = [
        |c| c.insert(3),
        |c| c.delete(3, false, false),
        |c| c.relocate(4, 40, false),
        |c| c.update(2, false).and_then(|_| c.delete(2, false, false)),
        // Undone, but for the first update.
        |c| {
            c.insert(2)?;
            c.savepoint();
            c.update(2, false)?;
            c.end_savepoint(false);
            Ok(true)
        },
    ];
    for act in acts {
        look_at(&mut reader, Looked::at(A));
        writer.begin(crate::client::Mood::Serializable);
        assert_eq!(act(&mut writer), Ok(true));
        writer.commit().expect("nobody is in the way");
        failed_with(reader.commit(), AbortReason::Phantom);
        reader.abort();
    }
}

/// A write of a transaction: of which key, and the columns that it changes; `None`: it deletes.
type Act = (i64, Option<Columns>);

/// How a reader of some columns ends beside a transaction that has written so many keys of a range
/// that it registers once for all of them.
fn beside_many(w: &World, looked: Looked, acts: &[Act]) -> Result<(), Error> {
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(w, &r, 0), session(w, &r, 1));
    look_at(&mut reader, looked);
    writer.begin(crate::client::Mood::Serializable);
    for &(key, columns) in acts {
        match columns {
            Some(columns) => change(&mut writer, key, columns).expect("no other writer"),
            None => assert_eq!(writer.delete(key, false, false), Ok(true)),
        }
    }
    writer.commit().expect("it has read what is there");
    let end = reader.commit();
    reader.abort();
    end
}

#[test]
fn a_registration_of_a_whole_range_names_the_columns_of_all_its_updates() {
    // In lists of 8 three keys are too many.
    let world = || world(Protocol::Occ, Policy::Wait, &[100], 8);
    let (a, b, gone) = (Some(A), Some(B), None);
    for (looked, acts, conflict) in [
        (A, [(0, b), (2, b), (4, b)], false),
        (B, [(0, b), (2, b), (4, b)], true),
        (A, [(0, b), (2, b), (4, a)], true),
        (A, [(0, a), (2, b), (4, b)], true),
        (A, [(0, b), (2, b), (4, gone)], true),
        (A, [(0, gone), (2, b), (4, b)], true),
        (A, [(0, gone), (2, gone), (4, gone)], true),
        (Columns::ALL, [(0, b), (2, b), (4, b)], true),
    ] {
        match (beside_many(&world(), Looked::at(looked), &acts), conflict) {
            (end, true) => failed_with(end, AbortReason::Phantom),
            (end, false) => assert_eq!(end, Ok(()), "{looked:?} {acts:?}"),
        }
    }
    // What the fault hides.
    faults::set(Some(Fault::FirstOfRangeOnly));
    for last in [a, gone] {
        let end = beside_many(&world(), Looked::at(A), &[(0, b), (2, b), (4, last)]);
        assert_eq!(end, Ok(()), "the fault hides it");
    }
    faults::set(None);
}

#[test]
fn many_writes_of_a_range_under_locks_of_its_rows() {
    let many = |looked: Looked, acts: &[Act]| {
        let w = world(Protocol::TwoPhase, Policy::NoWait, &[100], 8);
        let r = Recorder::new();
        let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
        for key in [6, 8] {
            write(&mut writer, key, false, 0);
        }
        // The scan has locked row 0. The other two are beyond its bounds, in the same range.
        reader.begin(crate::client::Mood::Serializable);
        let bounds = (Included(0), Included(5));
        let id = begin_scan_of(&mut reader, 0, bounds, OpenEnd::No, looked).expect("a scan");
        read(&mut reader, 0, id).expect("a read");
        writer.begin(crate::client::Mood::Serializable);
        for &(key, columns) in acts {
            let done = match columns {
                Some(columns) => change(&mut writer, key, columns),
                None => writer.delete(key, false, false).map(|_| ()),
            };
            done.expect("a row that is not locked, or locked by its key");
        }
        writer.commit().expect("it has its locks");
        let end = reader.commit();
        reader.abort();
        end
    };
    let keys = Looked::at_keys(A);
    // Locks of keys let updates in place in: those that change what was looked at count.
    assert_eq!(many(keys, &[(0, Some(B)), (6, Some(B)), (8, Some(B))]), Ok(()));
    failed_with(many(keys, &[(0, Some(A)), (6, Some(B)), (8, Some(B))]), AbortReason::Phantom);
    // Also beside deletes, which locks of keys keep out.
    failed_with(many(keys, &[(0, Some(A)), (6, None), (8, None)]), AbortReason::Phantom);
    failed_with(many(keys, &[(6, None), (8, None), (0, Some(A))]), AbortReason::Phantom);
}

#[test]
fn a_rolled_back_savepoint_has_changed_nothing() {
    let w = world(Protocol::Occ, Policy::Wait, &[], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    for kept in [false, true] {
        look_at(&mut reader, Looked::at(A));
        writer.begin(crate::client::Mood::Serializable);
        change(&mut writer, 2, B).expect("an update");
        writer.savepoint();
        change(&mut writer, 2, A).expect("an update");
        writer.end_savepoint(kept);
        writer.commit().expect("nobody is in the way");
        assert_eq!(reader.commit().is_err(), kept);
        reader.abort();
    }
}

/// The mode in which a transaction has locked a row.
fn mode_of(w: &World, key: i64, slot: u16) -> Option<Mode> {
    w.records(key)[0].rec.lock.held_by(slot).map(|h| h.mode)
}

#[test]
fn rows_are_locked_by_their_keys_where_nothing_else_is_looked_at() {
    let w = world(Protocol::TwoPhase, Policy::NoWait, &[100], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    look_at(&mut reader, Looked::at_keys(A));
    assert_eq!(mode_of(&w, 2, 0), Some(Mode::KeyShare));
    // Two that have read the row may update it, one after the other.
    look_at(&mut writer, Looked::at_keys(A));
    change(&mut writer, 2, B).expect("the key stays");
    writer.commit().expect("nobody is in the way");
    change(&mut reader, 2, B).expect("its own read has the row as it is");
    assert_eq!(reader.commit(), Ok(()));
    // Keys are kept.
    look_at(&mut reader, Looked::at_keys(A));
    writer.begin(crate::client::Mood::Serializable);
    failed_with(writer.delete(2, false, false).map(|_| ()), AbortReason::LockConflict);
    writer.abort();
    writer.begin(crate::client::Mood::Serializable);
    failed_with(writer.insert(3).map(|_| ()), AbortReason::LockConflict);
    writer.abort();
    assert_eq!(reader.commit(), Ok(()));
    // An update of what was looked at is let in, and is a conflict.
    for (fault, found) in [(Some(Fault::KeysAreRows), false), (None, true)] {
        let end = beside(&w, Looked::at_keys(A), &[A], fault);
        match found {
            true => failed_with(end, AbortReason::Phantom),
            false => assert_eq!(end, Ok(()), "the fault hides it"),
        }
    }
    // Rows of other scans are locked, whatever they look at.
    for looked in [Looked::at(A), Looked::ALL] {
        look_at(&mut reader, looked);
        assert_eq!(mode_of(&w, 2, 0), Some(Mode::Share));
        writer.begin(crate::client::Mood::Serializable);
        failed_with(change(&mut writer, 2, B), AbortReason::LockConflict);
        writer.abort();
        assert_eq!(reader.commit(), Ok(()));
    }
}

#[test]
fn a_scan_of_keys_locks_ranges_against_inserts_alone() {
    let w = world(Protocol::TwoPhase, Policy::NoWait, &[0, 6], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    let lock = &ranges(&w, 0).current().range(1).lock;
    let cover = |c: &mut Client, looked: Looked| {
        c.begin(crate::client::Mood::Serializable);
        begin_scan_of(c, 0, (Included(0), Excluded(6)), OpenEnd::No, looked)
    };
    let id = cover(&mut reader, Looked::at_keys(A)).expect("a scan");
    assert_eq!(lock.held_by(0).map(|h| h.mode), Some(Mode::KeyShare));
    read(&mut reader, 2, id).expect("a read");
    assert_eq!(mode_of(&w, 2, 0), None, "the range is locked");
    writer.begin(crate::client::Mood::Serializable);
    change(&mut writer, 2, B).expect("the keys stay");
    assert_eq!(lock.held_by(1).map(|h| h.mode), Some(Mode::Change));
    // The other way round, too.
    reader.abort();
    cover(&mut reader, Looked::at_keys(A)).expect("updates in place do not keep it out");
    failed_with(cover_all(&mut session(&w, &r, 2)), AbortReason::LockConflict);
    writer.commit().expect("it has its locks");
    assert_eq!(reader.commit(), Ok(()));
    // Inserts and deletes do.
    cover(&mut reader, Looked::at_keys(A)).expect("a scan");
    for delete in [false, true] {
        writer.begin(crate::client::Mood::Serializable);
        let done = if delete { writer.delete(4, false, false) } else { writer.insert(3) };
        failed_with(done.map(|_| ()), AbortReason::LockConflict);
        writer.abort();
    }
    // Readers of keys update in place beside each other.
    cover(&mut writer, Looked::at_keys(A)).expect("a scan");
    change(&mut reader, 2, B).expect("a row of its own");
    change(&mut writer, 4, B).expect("a row of its own");
    assert_eq!((reader.commit(), writer.commit()), (Ok(()), Ok(())));
    assert!(lock.is_free());
    // What it has looked at counts, locked or not.
    cover(&mut reader, Looked::at_keys(A)).expect("a scan");
    writer.begin(crate::client::Mood::Serializable);
    change(&mut writer, 2, A).expect("the keys stay");
    writer.commit().expect("nobody is in the way");
    failed_with(reader.commit(), AbortReason::Phantom);
    reader.abort();
    cover(&mut reader, Looked::at(A)).expect("a scan");
    assert_eq!(lock.held_by(0).map(|h| h.mode), Some(Mode::Share));
    reader.abort();
}

fn cover_all(c: &mut Client) -> Result<(), Error> {
    c.begin(crate::client::Mood::Serializable);
    let end = begin_scan(c, 0, Included(0), Excluded(6), OpenEnd::No).map(|_| ());
    c.abort();
    end
}

/// A row that a scan has read under a lock of its key changes before the scan locks its ranges.
#[test]
fn what_changed_before_the_ranges_were_locked_counts() {
    for (fault, found) in [(Some(Fault::KeysAreRows), false), (None, true)] {
        let w = world(Protocol::TwoPhase, Policy::Wait, &[100], 16);
        let r = Recorder::new();
        let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
        for key in [6, 8, 10, 12] {
            write(&mut writer, key, false, 0);
        }
        reader.begin(crate::client::Mood::Serializable);
        let id = begin_scan_of(&mut reader, 0, (Included(0), Included(12)), OpenEnd::No, Looked::at_keys(A))
            .expect("a scan");
        for key in [0, 2] {
            read(&mut reader, key, id).expect("a read");
        }
        writer.begin(crate::client::Mood::ReadCommitted);
        change(&mut writer, 2, A).expect("the key stays");
        writer.commit().expect("nobody is in the way");
        for key in [4, 6, 8, 10] {
            read(&mut reader, key, id).expect("a read");
        }
        let lock = &ranges(&w, 0).current().range(0).lock;
        assert_eq!(lock.held_by(0).map(|h| h.mode), Some(Mode::KeyShare));
        faults::set(fault);
        let end = reader.commit();
        faults::set(None);
        match found {
            true => failed_with(end, AbortReason::Phantom),
            false => assert_eq!(end, Ok(()), "the fault hides it"),
        }
        reader.abort();
    }
}

/// A row that was updated first is deleted under the lock of the update, which a lock of its key
/// does not exclude.
#[test]
fn a_delete_under_a_weaker_lock_counts() {
    for (fault, found) in [(Some(Fault::KeyIsForgotten), false), (None, true)] {
        let w = world(Protocol::TwoPhase, Policy::NoWait, &[100], 16);
        let r = Recorder::new();
        let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
        look_at(&mut reader, Looked::at_keys(A));
        writer.begin(crate::client::Mood::Serializable);
        change(&mut writer, 2, B).expect("the key stays");
        assert_eq!(writer.delete(2, false, false), Ok(true));
        faults::set(fault);
        writer.commit().expect("nobody is in the way");
        faults::set(None);
        let end = reader.commit();
        match found {
            true => failed_with(end, AbortReason::Phantom),
            false => assert_eq!(end, Ok(()), "the fault hides it"),
        }
        reader.abort();
    }
}

/// Scans whose rows are not told apart, one of which looks at keys alone.
#[test]
fn scans_that_share_rows_lock_keys_together() {
    for merged in [false, true] {
        let w = world(Protocol::TwoPhase, Policy::NoWait, &[100], 16);
        let r = Recorder::new();
        let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
        reader.begin(crate::client::Mood::Serializable);
        let scan = |c: &mut Client, key: i64, looked| {
            begin_scan_of(c, 0, (Included(key), Included(key + 1)), OpenEnd::No, looked).expect("a scan")
        };
        let one = scan(&mut reader, 2, Looked::at(A));
        assert!(reader.t.locks_rows(one));
        if merged {
            for n in 0..MAX_PREDICATES as i64 {
                scan(&mut reader, 10 + n % 50, Looked::ALL);
            }
        }
        let other = scan(&mut reader, 4, Looked::at_keys(B));
        let way = reader.t.share_rows(&mut [one, other]);
        read(&mut reader, 2, way).expect("a read");
        writer.begin(crate::client::Mood::Serializable);
        let done = change(&mut writer, 2, A).and_then(|()| writer.commit());
        writer.abort();
        let end = reader.commit();
        reader.abort();
        assert!(done.is_err() != end.is_err(), "one of the two: {done:?} {end:?}");
    }
}

/// Where rows were locked by their keys before a switch, deletes after it wait still, and updates
/// are validated still.
#[test]
fn locks_of_keys_hold_over_a_switch() {
    for delete in [false, true] {
        let w = world(Protocol::TwoPhase, Policy::NoWait, &[100], 16);
        let r = Recorder::new();
        let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
        look_at(&mut reader, Looked::at_keys(A));
        for p in w.table.map().partitions() {
            p.switch.ask(Protocol::Occ, false, Why::Asked, 7, 1);
        }
        w.e.advance_switches(&[w.table], 1, false);
        writer.begin(crate::client::Mood::Serializable);
        if delete {
            failed_with(writer.delete(2, false, false).map(|_| ()), AbortReason::LockConflict);
            writer.abort();
            assert_eq!(reader.commit(), Ok(()));
        } else {
            change(&mut writer, 2, A).expect("the key stays");
            writer.commit().expect("nobody is in the way");
            failed_with(reader.commit(), AbortReason::Phantom);
            reader.abort();
        }
    }
}

// ---- Histories.

/// The writer of a column: transaction and number of the write.
type Origin = (u64, u64);

/// The origins of the two columns of a row.
fn origins(row: Row) -> [Origin; 2] {
    [(row.txn, row.nth), (row.value as u64 >> 8, row.value as u64 & 0xff)]
}
fn row_of(key: i64, [a, b]: [Origin; 2]) -> Row {
    Row { key, txn: a.0, nth: a.1, value: (b.0 << 8 | b.1) as i64 }
}
fn seen((txn, nth): Origin) -> Seen {
    if txn == 0 {
        Seen::Initial
    } else {
        Seen::Version { txn, nth: Some(nth as u32) }
    }
}

#[derive(Clone, Copy)]
struct Found {
    r: RecordRef,
    row: Row,
    /// The committed version, if it is not our own.
    version: Option<NonNull<Version>>,
}

struct Session<'w> {
    w: &'w World,
    t: Txn,
    p: Jitter,
    session: checker::Session,
    log: Option<Log>,
    cid: u32,
    mix: Mix,
}

/// What serializable transactions do, in percent.
#[derive(Clone, Copy)]
struct Mix {
    /// Of the reads of one row: look-ups that protect it by itself.
    look_ups: u64,
    /// Of the look-ups: those before which the table forgets which columns change, so that they
    /// lock keys alone under `2pl`.
    guesses: u64,
    /// Of the transactions: frozen from their beginning.
    freezes: u64,
    /// Of the transactions: prepared before they commit.
    prepares: u64,
}

/// All kinds.
const ALL_KINDS: Mix = Mix { look_ups: 50, guesses: 60, freezes: 20, prepares: 5 };
/// Scans, and what makes them rely on their predicates.
const SCANS: Mix = Mix { look_ups: 0, guesses: 0, freezes: 0, prepares: 0 };
/// Look-ups alone, which rely on what they remember.
const LOOK_UPS: Mix = Mix { look_ups: 100, guesses: 90, freezes: 0, prepares: 0 };

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.t.abort();
    }
}

impl Session<'_> {
    fn begin(&mut self, level: Level) {
        let checked = match level {
            Level::Serializable => checker::Level::Serializable,
            Level::Snapshot => checker::Level::ReadCommitted,
        };
        self.log = Some(self.session.begin(checked));
        self.t.begin(level, self.w.ident());
        self.t.set_depth(1);
    }
    fn log(&mut self) -> &mut Log {
        self.log.as_mut().expect("a transaction runs")
    }
    fn statement(&mut self) {
        self.cid += 1;
        self.log().statement();
        self.t.next_step();
    }

    /// Rows of a key range; `looked`: the columns.
    fn scan(&mut self, i: usize, (low, high): (i64, i64), looked: &[u32], write: bool) -> Result<Vec<Found>, Error> {
        self.statement();
        let ranges = self.w.index_ranges(i).expect("active ranges");
        let last = partition_of(high).min(PARTITIONS - 1);
        let at: Vec<Touch> = (partition_of(low)..=last).map(|p| self.w.touch(p)).collect();
        let (mut lo, mut hi) = (encode(i, low), encode(i, high));
        if i == 1 {
            std::mem::swap(&mut lo, &mut hi);
        }
        let columns = looked.iter().fold(Columns::NONE, |all, c| all.and(Columns::of(*c)));
        // Half of them lock keys alone, and are validated.
        let looked_at = match (write, self.cid % 2) {
            (true, _) => Looked::ALL,
            (false, 0) => Looked::at(columns),
            (false, _) => Looked::at_keys(columns),
        };
        let (lo, hi) = (Included(&lo[..]), Included(&hi[..]));
        let scan = Scan { at: &at, lo, hi, open: OpenEnd::No, snapshot: None, looked: looked_at };
        let id = self.t.begin_scan(&self.p, ranges, &scan)?;
        let mut found = Vec::new();
        for (key, r) in self.w.scan(low, high) {
            found.extend(self.look(r, id, write)?.filter(|f| f.row.key == key));
        }
        self.t.narrow_scan(&self.p, id, None, None);
        for &c in looked {
            let rows = found.iter().map(|f| (Key::new(c, f.row.key), seen(origins(f.row)[c as usize]))).collect();
            self.log().scan(Predicate::range(c, low, high), rows);
        }
        Ok(found)
    }

    fn look(&mut self, r: RecordRef, id: ScanId, write: bool) -> Result<Option<Found>, Error> {
        if let Own::Write(n) = self.t.own(r, None) {
            let w = self.t.write(n).expect("an own write");
            let there = w.kind != Kind::Delete;
            return Ok(there.then(|| Found { r, row: Row::read(w.version), version: None }));
        }
        self.p.jitter();
        let v = self.t.read_scanned(&self.p, r, write, id)?;
        Ok(v.map(|v| Found { r, row: Row::read(v), version: Some(v) }))
    }

    fn find(&mut self, key: i64, write: bool) -> Result<Option<Found>, Error> {
        if (self.cid as u64 * 37 + key as u64) % 100 < self.mix.look_ups {
            return self.look_up(key, &[0, 1], write);
        }
        let i = (self.cid % 2) as usize;
        Ok(self.scan(i, (key, key), &[0, 1], write)?.pop())
    }

    /// A look-up of a key: the row that it finds protects itself. Where it finds none a scan
    /// protects that.
    fn look_up(&mut self, key: i64, looked: &[u32], write: bool) -> Result<Option<Found>, Error> {
        self.statement();
        let columns = looked.iter().fold(Columns::NONE, |all, c| all.and(Columns::of(*c)));
        self.t.before_lookup(&self.p, self.w.touch(partition_of(key)))?;
        if (self.cid as u64 * 31 + key as u64) % 100 < self.mix.guesses {
            self.w.table.changing.guess_none();
        }
        for r in self.w.records(key) {
            if matches!(self.t.own(r, None), Own::Write(_)) {
                continue; // the scan finds it
            }
            self.p.jitter();
            let v = match write {
                true => self.t.read(&self.p, r, true)?,
                false => self.t.read_columns(&self.p, r, columns)?,
            };
            let Some(v) = v.filter(|v| Row::read(*v).key == key) else { continue };
            let row = Row::read(v);
            for &c in looked {
                self.log().read(Key::new(c, key), seen(origins(row)[c as usize]));
            }
            return Ok(Some(Found { r, row, version: Some(v) }));
        }
        let i = (self.cid % 2) as usize;
        Ok(self.scan(i, (key, key), looked, write)?.pop())
    }

    /// Look-ups of a row, some in a savepoint that may be undone, or before a lock or a write.
    fn looks(&mut self, rng: &mut Rng, key: i64, column: u32) -> Result<(), Error> {
        let looked: &[u32] = [&[0][..], &[1], &[0, 1], &[]][rng.below(4) as usize];
        let from = rng.percent(20).then(|| self.savepoint());
        self.look_up(key, looked, false)?;
        if rng.percent(20) {
            self.look_up(key, &[1 - column], false)?;
        }
        if rng.percent(10) {
            let modes = [Mode::KeyShare, Mode::Share, Mode::NoKeyUpdate, Mode::Update];
            self.lock(key, modes[rng.below(4) as usize])?;
        }
        if from.is_some() && rng.percent(30) {
            self.update(key, column)?;
        }
        if let Some(from) = from {
            self.end_savepoint(from, rng.percent(30));
        }
        Ok(())
    }

    /// SELECT FOR ... of a row, which is looked at as a whole.
    fn lock(&mut self, key: i64, mode: Mode) -> Result<(), Error> {
        let found = self.look_up(key, &[], false)?;
        let Some(f) = found.filter(|f| f.version.is_some()) else { return Ok(()) };
        self.t.lock_row(&self.p, f.r, mode, How::Policy(f.r.partition().policy()))?;
        let v = match mode {
            Mode::KeyShare => self.t.read_locked_key(&self.p, f.r, false)?,
            _ => self.t.read(&self.p, f.r, false)?,
        };
        for (c, origin) in (0..).zip(v.map(|v| origins(Row::read(v))).into_iter().flatten()) {
            self.log().read(Key::new(c, key), seen(origin));
        }
        Ok(())
    }

    fn savepoint(&mut self) -> checker::Savepoint {
        self.p.threads.tag.set(self.w.tag());
        self.t.set_depth(2);
        self.log().savepoint()
    }

    fn end_savepoint(&mut self, from: checker::Savepoint, keep: bool) {
        if keep {
            self.t.commit_sub(2);
        } else {
            self.t.keep_scanned(&self.p, 2);
            self.t.abort_sub(2);
            self.log().rollback_to(from);
        }
        self.p.threads.tag.set(0);
        self.t.set_depth(1);
    }

    /// The version that a write of a row replaces.
    fn base(&mut self, f: &Found, mode: Mode) -> Result<Option<NonNull<Version>>, Error> {
        if let Some(n) = self.t.last_write(f.r) {
            return Ok(self.t.write(n).expect("an own write").base);
        }
        let how = How::Policy(f.r.partition().policy());
        let newest = self.t.lock_for_write(&self.p, f.r, mode, how, false)?.map(|(v, _)| v);
        if newest.is_none() || newest != f.version {
            let (table, partition) = (f.r.table.id, f.r.touch().no);
            return Err(Error::Abort { reason: AbortReason::WriteConflict, table, partition });
        }
        Ok(newest)
    }

    /// The origin of a column that is written now.
    fn origin(&mut self, column: u32, key: i64, kind: WriteKind) -> Origin {
        let nth = self.log().write(Key::new(column, key), kind, Payload::Opaque) as u64;
        (self.log().id(), nth)
    }

    fn put(&mut self, r: RecordRef, base: Option<NonNull<Version>>, old: Row, column: u32) -> Result<(), Error> {
        let mut both = origins(old);
        both[column as usize] = self.origin(column, old.key, WriteKind::Update);
        let v = self.w.version(&mut self.t, row_of(old.key, both))?;
        let n = self.t.update(r, base, v, self.cid);
        self.t.note_changed(n, Columns::of(column));
        self.w.note(&mut self.t, &self.p, n, old.key)
    }

    fn update(&mut self, key: i64, column: u32) -> Result<(), Error> {
        let Some(f) = self.find(key, true)? else { return Ok(()) };
        let base = self.base(&f, Mode::NoKeyUpdate)?;
        self.put(f.r, base, f.row, column)
    }

    /// Updates of one row, some of which may be undone.
    fn updates(&mut self, rng: &mut Rng, key: i64, column: u32) -> Result<(), Error> {
        self.update(key, column)?;
        if rng.percent(30) {
            self.update(key, 1 - column)?;
        }
        if rng.percent(15) {
            let from = self.savepoint();
            self.update(key, 1 - column)?;
            self.end_savepoint(from, rng.percent(50));
        }
        Ok(())
    }

    /// UPDATE at READ COMMITTED, of the newest version.
    fn update_newest(&mut self, key: i64, column: u32) -> Result<(), Error> {
        self.statement();
        self.w.e.pin(self.t.slot);
        for r in self.w.records(key) {
            if self.t.last_write(r).is_some() {
                continue;
            }
            let Some((v, _)) = self.t.lock_for_write(&self.p, r, Mode::NoKeyUpdate, How::Wait, false)? else {
                continue;
            };
            // SAFETY: the newest version, under our pin.
            if !unsafe { v.as_ref() }.is_tombstone() {
                self.put(r, Some(v), Row::read(v), column)?;
            }
        }
        Ok(())
    }

    fn insert_or_delete(&mut self, key: i64) -> Result<(), Error> {
        match self.find(key, true)? {
            None => {
                let both = [0, 1].map(|c| self.origin(c, key, WriteKind::Insert));
                self.w.insert(&mut self.t, &self.p, row_of(key, both), self.cid)?;
            }
            Some(f) => {
                let base = self.base(&f, Mode::Update)?;
                let tomb = self.t.new_tombstone(Successor { record: 0 }, None)?;
                let held = f.r.rec.lock.held_by(self.t.slot).is_some_and(|h| h.mode == Mode::Update);
                let xid = if held { self.t.slot as u32 + 1 } else { 0 };
                let n = self.t.delete(f.r, base, tomb, self.cid, xid);
                self.w.note(&mut self.t, &self.p, n, key)?;
                for c in [0, 1] {
                    self.origin(c, key, WriteKind::Delete);
                }
            }
        }
        Ok(())
    }

    fn transaction(&mut self, rng: &mut Rng, level: Level) -> Result<(), Error> {
        for _ in 0..1 + rng.below(4) {
            let key = rng.below(PARTITIONS as u64) as i64 * WIDTH + rng.below(SHARED as u64) as i64;
            let column = rng.below(2) as u32;
            let dice = rng.below(100);
            if level == Level::Snapshot && dice < 20 {
                // Many rows of a range, of one column each.
                for key in initial_keys() {
                    self.update_newest(key, rng.below(2) as u32)?;
                }
            } else if level == Level::Snapshot {
                self.update_newest(key, column)?;
            } else if dice < 50 && rng.percent(self.mix.look_ups) {
                self.looks(rng, key, column)?;
            } else if dice < 50 {
                let looked: &[u32] = [&[0][..], &[1], &[0, 1]][rng.below(3) as usize];
                let wide = if rng.percent(20) { WIDTH } else { rng.below(6) as i64 };
                self.scan(rng.below(2) as usize, (key, key + wide), looked, false)?;
            } else if dice < 88 {
                self.updates(rng, key, column)?;
            } else {
                self.insert_or_delete(key)?;
            }
        }
        let csn = Cell::new(None);
        if rng.percent(self.mix.prepares) {
            self.t.prepare_ahead(&self.p)?;
            self.p.jitter();
            self.t.decide_prepared();
            csn.set(Some(self.t.csn()).filter(|c| *c != 0));
        } else {
            self.t.prepare(&self.p, &|_, c| csn.set(Some(c)))?;
        }
        self.t.publish(&self.p);
        self.log.take().expect("a transaction runs").commit(csn.get());
        Ok(())
    }

    fn abort(&mut self) {
        self.t.abort();
        self.p.threads.tag.set(0);
        if let Some(l) = self.log.take() {
            l.abort();
        }
    }
}

const COMMITS: u64 = 2000;

/// What a run has committed, and until when it may go on.
struct Control {
    commits: AtomicU64,
    stop: AtomicBool,
    /// Something else has to happen before it may end.
    waits: AtomicBool,
    deadline: Instant,
}

impl Control {
    fn over(&self) -> bool {
        let enough = self.commits.load(Ordering::Relaxed) >= COMMITS && !self.waits.load(Ordering::Relaxed);
        enough || self.stop.load(Ordering::Relaxed) || Instant::now() > self.deadline
    }
}

fn client(w: &World, c: &Control, mut s: Session, level: Level, (seed, fault): (u64, Option<Fault>)) {
    faults::set(fault);
    let mut rng = Rng::new(seed ^ (s.t.slot as u64 + 1) << 32);
    s.p.yields.set(30);
    while !c.over() {
        s.begin(level);
        if level == Level::Serializable && rng.percent(s.mix.freezes) {
            s.t.freeze_from_start();
        }
        match s.transaction(&mut rng, level) {
            Ok(()) => _ = c.commits.fetch_add(1, Ordering::Relaxed),
            Err(Error::Abort { .. } | Error::Deadlock) => s.abort(),
            Err(e) => panic!("seed {seed}: {e:?}"),
        }
    }
    faults::set(None);
    s.abort();
    w.e.region.flush_slot(s.t.slot as usize);
}

/// Runs random transactions; returns their history. `switches`: partitions are switched meanwhile.
fn run(sets: &[ProtocolSet], policy: Policy, seed: u64, switches: bool, (mix, fault): (Mix, Option<Fault>)) -> History {
    eprintln!("seed {seed}: {:?} {policy:?}", sets.iter().map(|s| s.name()).collect::<Vec<_>>());
    let levels = [Level::Serializable, Level::Serializable, Level::Serializable, Level::Serializable, Level::Snapshot];
    let w = World::new(sets, policy, levels.len() as u16);
    let mut rng = Rng::new(seed ^ 0xc075);
    let p = Jitter::new(&w, w.slots, 5);
    for i in [0, 1] {
        w.activate(&p, w.slots, i, &cuts(&mut rng), 16).expect("room for ranges");
    }
    let recorder = Recorder::new();
    let c = Control {
        commits: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        waits: AtomicBool::new(switches),
        deadline: Instant::now() + Duration::from_secs(20),
    };
    let plan = Plan { seed, switches: 40, deaths: 5, stop_all: 0, fault: None };
    let done = || c.waits.store(false, Ordering::Relaxed);
    std::thread::scope(|s| {
        let switcher = switches.then(|| s.spawn(|| switch_at_random(&w, &plan, &c.stop, &done)));
        let start = |(slot, &level): (usize, &Level)| {
            let (session, slot) = (recorder.session(), slot as u16);
            let (w, c) = (&w, &c);
            s.spawn(move || {
                let (t, p) = (Txn::new(w.e, slot), Jitter::new(w, slot, seed + slot as u64));
                let one = Session { w, t, p, session, log: None, cid: slot as u32, mix };
                client(w, c, one, level, (seed, fault))
            })
        };
        let threads: Vec<_> = levels.iter().enumerate().map(start).collect();
        let ends: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
        c.stop.store(true, Ordering::SeqCst);
        let ends = ends.into_iter().chain(switcher.map(|s| s.join()));
        if let Some(panic) = ends.filter_map(Result::err).next() {
            std::panic::resume_unwind(panic);
        }
    });
    let commits = c.commits.into_inner();
    let mut h = last_state(&w, &recorder);
    h.initial.extend([0, 1].into_iter().flat_map(|c| initial_keys().map(move |k| (Key::new(c, k), 0))));
    assert!(commits > 200, "seed {seed}: too few commits to say anything: {commits}");
    h
}

/// The history, with a last transaction that has read everything.
fn last_state(w: &World, recorder: &Recorder) -> History {
    let p = Jitter::new(w, w.slots, 1);
    let mut t = Txn::new(w.e, w.slots);
    let mut log = recorder.session().begin(checker::Level::SerializableReadOnly);
    t.begin(Level::Snapshot, w.ident());
    w.e.pin(w.slots);
    let rows = w.snapshot(&mut t, &p, w.e.now(), 0, i64::MAX).expect("a read of the last state");
    log.statement();
    for c in [0, 1] {
        let rows = rows.iter().map(|r| (Key::new(c, r.key), seen(origins(*r)[c as usize]))).collect();
        log.scan(Predicate::range(c, 0, i64::MAX), rows);
    }
    t.abort();
    log.commit(None);
    recorder.history()
}

fn judge(sets: &[ProtocolSet], policy: Policy, seed: u64, switches: bool) {
    let v = check(&run(sets, policy, seed, switches, (ALL_KINDS, None)), &Options::strict());
    assert!(v.accepts(), "seed {seed}: {v}");
    assert!(v.edges as u64 > COMMITS / 4, "seed {seed}: hardly any dependencies: {v}");
}

#[test]
fn columns_under_each_protocol() {
    for p in Protocol::ALL {
        let set = ProtocolSet::of(p);
        for &policy in policies(set) {
            judge(&[set], policy, 9000 + 10 * p.index() as u64 + policy as u64, false);
        }
    }
}

#[test]
fn columns_under_all_pairs() {
    for (i, a) in Protocol::ALL.into_iter().enumerate() {
        for (j, b) in Protocol::ALL.into_iter().enumerate().filter(|(j, _)| *j != i) {
            let seed = 9100 + (i * Protocol::COUNT + j) as u64;
            judge(&[ProtocolSet::of(a), ProtocolSet::of(b)], Policy::Wait, seed, false);
            if i < j {
                judge(&[ProtocolSet::mediated(a, b)], Policy::Wait, seed + 100, false);
            }
        }
    }
}

#[test]
fn columns_while_partitions_are_switched() {
    for policy in Policy::ALL {
        judge(&[ProtocolSet::of(Protocol::Occ)], policy, 9300 + policy as u64, true);
    }
}

#[test]
fn faults_of_columns_are_found() {
    for (fault, p, mix) in [
        (Fault::ChangesForgotten, Protocol::Occ, SCANS),
        (Fault::LastChangeOnly, Protocol::Occ, SCANS),
        (Fault::FirstOfRangeOnly, Protocol::Occ, SCANS),
        (Fault::LooksAtNothing, Protocol::Occ, SCANS),
        (Fault::ChangesForgotten, Protocol::TwoPhase, SCANS),
        (Fault::KeysAreRows, Protocol::TwoPhase, SCANS),
        (Fault::KeyIsForgotten, Protocol::TwoPhase, SCANS),
        (Fault::ChangesForgotten, Protocol::Occ, LOOK_UPS),
        (Fault::LastChangeOnly, Protocol::Mocc, LOOK_UPS),
        (Fault::TombstonePassed, Protocol::Occ, LOOK_UPS),
        (Fault::MovesTooFar, Protocol::Occ, LOOK_UPS),
        (Fault::LastLookOnly, Protocol::Mocc, LOOK_UPS),
        (Fault::KeyLookForgotten, Protocol::TwoPhase, LOOK_UPS),
        (Fault::ChangesForgotten, Protocol::TwoPhase, LOOK_UPS),
    ] {
        let history = |i| run(&[ProtocolSet::of(p)], Policy::Wait, 9400 + i, false, (mix, Some(fault)));
        let v = find_anomaly_in(400, history).unwrap_or_else(|| panic!("{fault:?} was not found under {p:?}"));
        assert!(!v.has(checker::AnomalyKind::Malformed), "the record of the history is at fault: {v}");
    }
}
