//! Look-ups that look at some columns of a row, beside updates in place that change others.

use crate::client::{Client, Mood};
use crate::steps::*;
use crate::world::{Row, World};
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::lock::Mode;
use mixedcc_engine::platform::StopEvent;
use mixedcc_engine::range::Columns;
use mixedcc_engine::record::Version;
use mixedcc_engine::switch::Why;
use mixedcc_engine::txn::How;
use mixedcc_engine::{Error, Policy, Protocol, RecordRef};
use std::cell::Cell;
use std::ptr::NonNull;

pub const A: Columns = Columns::of(1);
pub const B: Columns = Columns::of(2);
pub const KEY: i64 = 2;
/// A row that the reader writes, so that it is validated at its commit.
pub const OTHER: i64 = 4;

fn record(w: &World, key: i64) -> RecordRef {
    w.records(key)[0]
}

/// A serializable transaction looks at these columns of the row.
pub fn look(c: &mut Client, looked: Columns) -> Result<Option<i64>, Error> {
    let r = record(c.w, KEY);
    Ok(c.t.read_columns(&c.p, r, looked)?.map(|v| Row::read(v).value))
}

pub fn change(c: &mut Client, key: i64, columns: Columns) -> Result<(), Error> {
    c.changes = columns;
    let done = c.update(key, false);
    c.changes = Columns::ALL;
    done.map(|found| assert!(found))
}

/// A transaction of its own changes these columns of the row.
pub fn commit_change(c: &mut Client, columns: Columns) {
    c.begin(Mood::Serializable);
    change(c, KEY, columns).expect("nobody is in the way");
    c.commit().expect("it has read what is there");
}

/// The protocols under which rows are not locked before they are read.
const OPTIMISTIC: [Protocol; 2] = [Protocol::Occ, Protocol::Mocc];

/// How a reader that writes elsewhere ends, after `act` of another session.
fn beside(p: Protocol, looked: &[Columns], fault: Option<Fault>, act: impl Fn(&mut Client)) -> Result<(), Error> {
    let w = world(p, Policy::Wait, &[], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    faults::set(fault);
    reader.begin(Mood::Serializable);
    for &columns in looked {
        look(&mut reader, columns).expect("a read").expect("a row");
    }
    act(&mut writer);
    let done = change(&mut reader, OTHER, A).and_then(|()| reader.commit());
    reader.abort();
    faults::set(None);
    done
}

pub fn read_changed(end: Result<(), Error>) {
    failed_with(end, AbortReason::ReadChanged);
}

#[test]
fn a_look_up_passes_over_updates_of_what_it_has_not_looked_at() {
    let ab = A.and(B);
    let end = |p, looked: &[Columns], changes: &[&[Columns]], fault| {
        beside(p, looked, fault, |writer| {
            for columns in changes {
                writer.begin(Mood::Serializable);
                columns.iter().for_each(|c| change(writer, KEY, *c).expect("nobody is in the way"));
                writer.commit().expect("it has read what is there");
            }
        })
    };
    for p in OPTIMISTIC {
        // What was looked at; what each transaction has changed, statement by statement.
        let fine: [(&[Columns], &[&[Columns]]); 6] = [
            (&[A], &[&[B]]),
            (&[A], &[&[B], &[B], &[B, B]]),
            (&[A, A], &[&[B]]),
            (&[A], &[&[Columns::NONE]]),
            (&[Columns::NONE], &[&[ab]]),
            (&[Columns::of(3)], &[&[A], &[B]]),
        ];
        for (looked, changes) in fine {
            assert_eq!(end(p, looked, changes, None), Ok(()), "{p:?} {looked:?} {changes:?}");
        }
        let conflicts: [(&[Columns], &[&[Columns]]); 11] = [
            (&[A], &[&[A]]),
            (&[ab], &[&[B]]),
            (&[A], &[&[ab]]),
            (&[A], &[&[Columns::ALL]]),
            (&[Columns::ALL], &[&[B]]),
            (&[Columns::ALL], &[&[Columns::NONE]]),
            (&[A], &[&[B], &[A]]),
            (&[A], &[&[A], &[B]]),
            (&[A], &[&[A, B]]),
            (&[A], &[&[B, A]]),
            // The version was looked at twice.
            (&[A, B], &[&[A]]),
        ];
        for (looked, changes) in conflicts {
            read_changed(end(p, looked, changes, None));
        }
        for (looked, changes, fault) in [
            (&[A][..], &[&[A][..]][..], Fault::ChangesForgotten),
            (&[A], &[&[A, B]], Fault::LastChangeOnly),
            (&[A, B], &[&[A]], Fault::LastLookOnly),
        ] {
            assert_eq!(end(p, looked, changes, Some(fault)), Ok(()), "{fault:?} hides it");
        }
    }
}

#[test]
fn deletes_and_moves_concern_every_look_up() {
    for p in OPTIMISTIC {
        let end = |fault, moves: bool| {
            beside(p, &[Columns::NONE], fault, |writer| {
                writer.changes = B;
                writer.begin(Mood::Serializable);
                assert_eq!(writer.update(KEY, false), Ok(true));
                let done = if moves { writer.relocate(KEY, 3, false) } else { writer.delete(KEY, false, false) };
                assert_eq!(done, Ok(true));
                writer.commit().expect("nobody is in the way");
            })
        };
        for moves in [false, true] {
            read_changed(end(None, moves));
            assert_eq!(end(Some(Fault::TombstonePassed), moves), Ok(()), "the fault hides it");
        }
    }
}

#[test]
fn what_was_undone_was_not_changed() {
    for p in OPTIMISTIC {
        for kept in [false, true] {
            let end = beside(p, &[A], None, |writer| {
                writer.begin(Mood::Serializable);
                change(writer, KEY, B).expect("an update");
                writer.savepoint();
                change(writer, KEY, A).expect("an update");
                writer.end_savepoint(kept);
                writer.commit().expect("nobody is in the way");
            });
            assert_eq!(end.is_err(), kept, "{p:?}");
        }
    }
}

/// Writers below SERIALIZABLE name what they change, too.
#[test]
fn writers_of_all_levels_name_what_they_change() {
    for p in OPTIMISTIC {
        for (columns, conflict) in [(B, false), (A, true)] {
            let end = beside(p, &[A], None, |writer| {
                writer.begin(Mood::ReadCommitted);
                change(writer, KEY, columns).expect("an update");
                writer.commit().expect("nobody is in the way");
            });
            assert_eq!(end.is_err(), conflict, "{p:?} {columns:?}");
        }
    }
}

#[test]
fn a_validation_moves_up_to_what_is_the_same_and_no_further() {
    for p in OPTIMISTIC {
        for (fault, found) in [(None, true), (Some(Fault::MovesTooFar), false)] {
            let w = world(p, Policy::Wait, &[], 16);
            let r = Recorder::new();
            let mut reader = session(&w, &r, 0);
            let (mut writer, mut late) = (session(&w, &r, 1), session(&w, &r, 2));
            reader.begin(Mood::Serializable);
            look(&mut reader, A).expect("a read");
            commit_change(&mut writer, B);
            // It has its CSN, and is not in the reader's next validation.
            faults::set(fault);
            let n = Cell::new(0);
            {
                let p = Meanwhile::at(&late.p, StopEvent::CommitPrepare, || {
                    reader.t.revalidate(&reader.p).expect("what it has looked at is the same");
                    n.set(1);
                });
                late.t.begin(mixedcc_engine::Level::Serializable, w.ident());
                let v = late.t.read(&p, record(&w, KEY), true).expect("a read").expect("a row");
                let new = w.version(&mut late.t, Row { value: 7, ..Row::read(v) }).expect("room");
                let write = late.t.update(record(&w, KEY), Some(v), new, 1);
                late.t.note_changed(write, A);
                late.t.prepare(&p, &|_, _| {}).expect("nobody is in the way");
                late.t.publish(&p);
            }
            assert_eq!(n.get(), 1);
            let end = change(&mut reader, OTHER, A).and_then(|()| reader.commit());
            faults::set(None);
            match found {
                true => read_changed(end),
                false => assert_eq!(end, Ok(()), "the fault hides it"),
            }
            reader.abort();
        }
    }
}

/// A reader of one column beside thousands of updates of another one does not walk past all of them
/// at each validation.
#[test]
fn walks_are_short() {
    let w = world(Protocol::Occ, Policy::Wait, &[], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    reader.begin(Mood::Serializable);
    look(&mut reader, A).expect("a read");
    let first = record(&w, KEY).rec.head();
    for _ in 0..50 {
        commit_change(&mut writer, B);
        reader.t.revalidate(&reader.p).expect("what it has looked at is the same");
    }
    // The chain is cut above the version that it has read: a walk down to it would miss it.
    let older = |v: &NonNull<Version>| {
        // SAFETY: the reader's pin keeps all of these versions, and nothing else runs.
        NonNull::new(unsafe { v.as_ref() }.older())
    };
    let chain = std::iter::successors(NonNull::new(record(&w, KEY).rec.head()), older);
    let above = chain.take_while(|v| v.as_ptr() != first).last().expect("newer versions");
    // SAFETY: as above.
    let above = unsafe { above.as_ref() };
    above.set_older(std::ptr::null_mut());
    let valid = reader.t.revalidate(&reader.p);
    above.set_older(first);
    valid.expect("a short way");
    commit_change(&mut writer, A);
    read_changed(reader.t.revalidate(&reader.p));
    reader.abort();
}

/// The mode in which a transaction has locked the row.
pub fn mode_of(c: &Client) -> Option<Mode> {
    record(c.w, KEY).rec.lock.held_by(c.t.slot).map(|h| h.mode)
}

/// ROLLBACK TO leaves a lock of the key as it is: another transaction may be about to change the
/// row.
#[test]
fn a_locked_key_is_no_locked_row_after_rollback_to() {
    for (fault, found) in [(None, true), (Some(Fault::KeyIsShared), false)] {
        let w = world(Protocol::TwoPhase, Policy::NoWait, &[], 16);
        let r = Recorder::new();
        let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
        writer.begin(Mood::Serializable);
        change(&mut writer, KEY, A).expect("nobody is in the way");
        faults::set(fault);
        reader.begin(Mood::Serializable);
        reader.savepoint();
        reader.t.lock_row(&reader.p, record(&w, KEY), Mode::KeyShare, How::Try).expect("beside the update");
        reader.end_savepoint(false);
        assert_eq!(mode_of(&reader), Some(if found { Mode::KeyShare } else { Mode::Share }));
        // It may not read the row as if that could not change.
        let got = reader.t.read(&reader.p, record(&w, KEY), false);
        faults::set(None);
        assert_eq!(got.is_err(), found, "{got:?}");
        reader.abort();
        writer.commit().expect("it has its lock");
    }
}

/// A key is locked in a savepoint, then the row is read or looked at for a write. After ROLLBACK TO
/// the row is locked for the read.
#[test]
fn a_read_keeps_its_lock_after_rollback_to() {
    for (for_write, fault) in [(false, None), (true, None), (false, Some(Fault::LoweredTooFar))] {
        let w = world(Protocol::TwoPhase, Policy::NoWait, &[], 16);
        let r = Recorder::new();
        let mut reader = session(&w, &r, 0);
        reader.begin(Mood::Serializable);
        reader.savepoint();
        let row = record(&w, KEY);
        reader.t.lock_row(&reader.p, row, Mode::KeyShare, How::Try).expect("nobody is in the way");
        reader.t.read(&reader.p, row, for_write).expect("nobody is in the way");
        faults::set(fault);
        reader.end_savepoint(false);
        faults::set(None);
        let wanted = if fault.is_none() { Mode::Share } else { Mode::KeyShare };
        assert_eq!(mode_of(&reader), Some(wanted), "for a write: {for_write}");
        reader.abort();
        assert!(record(&w, KEY).rec.lock.is_free());
    }
}

/// What a transaction reads in order to write or lock it is compared as a whole.
#[test]
fn what_will_be_written_or_locked_is_looked_at_as_a_whole() {
    for p in OPTIMISTIC {
        for how in 0..3 {
            let w = world(p, Policy::Wait, &[], 16);
            let r = Recorder::new();
            let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
            reader.begin(Mood::Serializable);
            look(&mut reader, A).expect("a read");
            let row = record(&w, KEY);
            match how {
                0 => _ = reader.t.read(&reader.p, row, true).expect("a read"),
                1 => _ = reader.t.read(&reader.p, row, false).expect("a read"),
                _ => {
                    reader.t.lock_row(&reader.p, row, Mode::KeyShare, How::Wait).expect("free");
                    reader.t.read_locked_key(&reader.p, row, false).expect("a read");
                }
            }
            commit_change(&mut writer, B);
            let end = change(&mut reader, OTHER, A).and_then(|()| reader.commit());
            read_changed(end);
            reader.abort();
        }
    }
}

/// The own write of a row of which another column was read before it was changed.
#[test]
fn an_own_write_is_based_on_the_newest_version() {
    for p in OPTIMISTIC {
        let w = world(p, Policy::Wait, &[], 16);
        let r = Recorder::new();
        let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
        reader.begin(Mood::Serializable);
        look(&mut reader, A).expect("a read");
        commit_change(&mut writer, B);
        let before = record(&w, KEY).rec.head();
        change(&mut reader, KEY, A).expect("it reads the newest version");
        assert_eq!(reader.commit(), Ok(()), "{p:?}");
        let head = NonNull::new(record(&w, KEY).rec.head()).expect("a row");
        // SAFETY: nothing else runs.
        let head = unsafe { head.as_ref() };
        assert_eq!((head.older(), head.named()), (before, Some(A)), "{p:?}");
    }
}

/// A transaction that was frozen from its beginning has looked at an older version, and thaws.
#[test]
fn a_frozen_transaction_thaws_if_what_it_looked_at_is_the_same() {
    for p in Protocol::ALL {
        for (columns, conflict) in [(B, false), (A, true)] {
            let w = world(p, Policy::Wait, &[], 16);
            let r = Recorder::new();
            let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
            reader.begin(Mood::Serializable);
            reader.t.freeze_from_start();
            let before = look(&mut reader, A).expect("a read");
            commit_change(&mut writer, columns);
            assert_eq!(look(&mut reader, A).expect("a read"), before, "{p:?}: a snapshot");
            let end = change(&mut reader, OTHER, A).and_then(|()| reader.commit());
            match conflict {
                true => read_changed(end),
                false => assert_eq!(end, Ok(()), "{p:?}"),
            }
            reader.abort();
        }
    }
}

/// The upgrade of a switch to another protocol.
fn switch_to(w: &World, to: Protocol) {
    for p in w.table.map().partitions() {
        p.switch.ask(to, false, Why::Asked, 7, 1);
    }
    w.e.advance_switches(&[w.table], 1, false);
}

/// A read under `occ` is validated by columns after a switch to another protocol, too.
#[test]
fn a_remembered_look_counts_over_a_switch() {
    for to in Protocol::ALL.into_iter().filter(|p| *p != Protocol::Occ) {
        for (columns, conflict) in [(B, false), (A, true)] {
            let end = beside(Protocol::Occ, &[A], None, |writer| {
                switch_to(writer.w, to);
                commit_change(writer, columns);
            });
            match conflict {
                true => read_changed(end),
                false => assert_eq!(end, Ok(()), "{to:?}"),
            }
        }
    }
}

/// A prepared transaction keeps what it has looked at, and all else in its partitions.
#[test]
fn a_prepared_transaction_protects_what_it_has_looked_at() {
    for p in OPTIMISTIC {
        for (columns, conflict) in [(B, false), (A, true)] {
            let w = world(p, Policy::Wait, &[], 16);
            let r = Recorder::new();
            let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
            reader.begin(Mood::Serializable);
            look(&mut reader, A).expect("a read");
            change(&mut reader, OTHER, A).expect("an update");
            commit_change(&mut writer, columns);
            let end = reader.prepare();
            assert_eq!(end.is_err(), conflict, "{p:?}");
            if end.is_ok() {
                assert!(reader.t.guards_reads(w.table));
                reader.commit_prepared();
            }
            reader.abort();
        }
    }
}

/// A version that is unlinked between snapshots has changed a column: the one above it says so.
#[test]
fn what_is_unlinked_is_named_by_the_version_above() {
    for (fault, found) in [(None, true), (Some(Fault::UnlinkedForgotten), false)] {
        let w = world(Protocol::Occ, Policy::Wait, &[], 16);
        let r = Recorder::new();
        let (mut old, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
        old.begin(Mood::RepeatableRead);
        let at = old.snapshot();
        assert!(old.t.take_rest(&mixedcc_engine::open::Seen::prefix(at)));
        faults::set(fault);
        let pruned = || w.e.shared.pruned.load(mixedcc_engine::primitive::Ordering::Relaxed);
        commit_change(&mut writer, B);
        let before = pruned();
        for n in 0..2000 {
            commit_change(&mut writer, if n % 2 == 0 { A } else { B });
        }
        assert!(pruned() > before, "nothing was unlinked");
        faults::set(None);
        // Each version that is not the newest one, and leads past others, names both columns.
        let mut at = NonNull::new(record(&w, KEY).rec.head());
        let mut named = Vec::new();
        while let Some(v) = at {
            // SAFETY: nothing else runs, and the point keeps the oldest version.
            let v = unsafe { v.as_ref() };
            named.push(v.named());
            at = NonNull::new(v.older());
        }
        let both = named.contains(&Some(A.and(B)));
        assert_eq!(both, found, "{named:?}");
        old.t.wake();
        old.abort();
    }
}

// ---- Locks of keys.

/// A table under `2pl` in which updates in place have changed B alone for a whole period.
pub fn two_phase(policy: Policy) -> World {
    let w = world(Protocol::TwoPhase, policy, &[], 16);
    for _ in 0..2 {
        w.table.changing.note(B);
        w.table.changing.end_period();
    }
    w
}

#[test]
fn a_look_at_what_does_not_change_locks_the_key_alone() {
    let w = two_phase(Policy::NoWait);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    for (looked, mode) in [
        (A, Mode::KeyShare),
        (Columns::NONE, Mode::KeyShare),
        (B, Mode::Share),
        (A.and(B), Mode::Share),
        (Columns::ALL, Mode::Share),
    ] {
        reader.begin(Mood::Serializable);
        look(&mut reader, looked).expect("a read").expect("a row");
        assert_eq!(mode_of(&reader), Some(mode), "{looked:?}");
        // An update of the other column waits for a lock of the row, and not for one of the key.
        writer.begin(Mood::Serializable);
        let done = change(&mut writer, KEY, B).and_then(|()| writer.commit());
        writer.abort();
        match mode {
            Mode::KeyShare => assert_eq!(done, Ok(()), "{looked:?}"),
            _ => failed_with(done, AbortReason::LockConflict),
        }
        assert_eq!(change(&mut reader, OTHER, B).and_then(|()| reader.commit()), Ok(()));
    }
    // A delete waits for both.
    reader.begin(Mood::Serializable);
    look(&mut reader, A).expect("a read").expect("a row");
    writer.begin(Mood::Serializable);
    failed_with(writer.delete(KEY, false, false).map(|_| ()), AbortReason::LockConflict);
    writer.abort();
    // A second look, at what changes, locks the row.
    look(&mut reader, B).expect("a read").expect("a row");
    assert_eq!(mode_of(&reader), Some(Mode::Share));
    assert_eq!(reader.commit(), Ok(()));
}

#[test]
fn what_is_not_known_is_locked_as_a_whole() {
    let w = world(Protocol::TwoPhase, Policy::NoWait, &[], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    let mut mode = || {
        reader.begin(Mood::Serializable);
        look(&mut reader, A).expect("a read").expect("a row");
        let mode = mode_of(&reader);
        reader.abort();
        mode
    };
    for _ in 0..2 {
        assert_eq!(mode(), Some(Mode::Share));
        commit_change(&mut writer, B);
        w.table.changing.end_period();
    }
    assert_eq!(mode(), Some(Mode::KeyShare));
    // A commit that changes what is looked at is known at once.
    commit_change(&mut writer, A);
    assert_eq!(mode(), Some(Mode::Share));
    for n in 0..2 {
        commit_change(&mut writer, B);
        w.table.changing.end_period();
        assert_eq!(mode(), Some([Mode::Share, Mode::KeyShare][n]));
    }
    // One that does not say what it changes may have changed anything.
    commit_change(&mut writer, Columns::ALL);
    assert_eq!(mode(), Some(Mode::Share));
}

/// How a reader under `2pl` that writes elsewhere ends, after `act` of another session.
fn beside_key(fault: Option<Fault>, act: impl Fn(&mut Client)) -> Result<(), Error> {
    let w = two_phase(Policy::NoWait);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    faults::set(fault);
    reader.begin(Mood::Serializable);
    look(&mut reader, A).expect("a read").expect("a row");
    assert_eq!(mode_of(&reader), Some(Mode::KeyShare));
    act(&mut writer);
    let done = change(&mut reader, OTHER, B).and_then(|()| reader.commit());
    reader.abort();
    faults::set(None);
    done
}

#[test]
fn a_wrong_guess_fails_the_reader_once() {
    let changed = |columns| {
        move |writer: &mut Client| {
            commit_change(writer, columns);
        }
    };
    assert_eq!(beside_key(None, changed(B)), Ok(()));
    for columns in [A, A.and(B), Columns::ALL] {
        read_changed(beside_key(None, changed(columns)));
        assert_eq!(beside_key(Some(Fault::KeyLookForgotten), changed(columns)), Ok(()), "the fault hides it");
    }
    // Of a writer below SERIALIZABLE.
    read_changed(beside_key(None, |writer| {
        writer.begin(Mood::ReadCommitted);
        change(writer, KEY, A).expect("the key stays");
        writer.commit().expect("nobody is in the way");
    }));
    // A row that is deleted under the lock of an earlier update, which a lock of the key lets in.
    read_changed(beside_key(None, |writer| {
        writer.begin(Mood::Serializable);
        change(writer, KEY, B).expect("the key stays");
        assert_eq!(writer.delete(KEY, false, false), Ok(true));
        writer.commit().expect("nobody is in the way");
    }));
}

/// A transaction that such a look has failed does not lose to the same change again, whatever the
/// table has forgotten meanwhile.
#[test]
fn a_look_that_has_failed_locks_its_row_until_a_commit() {
    let w = two_phase(Policy::NoWait);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    reader.begin(Mood::Serializable);
    look(&mut reader, A).expect("a read").expect("a row");
    commit_change(&mut writer, A);
    read_changed(change(&mut reader, OTHER, B).and_then(|()| reader.commit()));
    reader.abort();
    for mode in [Mode::Share, Mode::KeyShare] {
        w.table.changing.guess_none();
        reader.begin(Mood::Serializable);
        look(&mut reader, A).expect("a read").expect("a row");
        assert_eq!(mode_of(&reader), Some(mode));
        assert_eq!(change(&mut reader, OTHER, B).and_then(|()| reader.commit()), Ok(()));
    }
}

/// One whose reads must be unchanged at its commit could fail although it only reads.
#[test]
fn a_look_that_cannot_freeze_locks_its_row() {
    let w = two_phase(Policy::NoWait);
    let r = Recorder::new();
    let mut reader = session(&w, &r, 0);
    reader.begin(Mood::Serializable);
    reader.t.validate_at_commit();
    look(&mut reader, A).expect("a read").expect("a row");
    assert_eq!(mode_of(&reader), Some(Mode::Share));
    assert_eq!(reader.commit(), Ok(()));
}

#[test]
fn a_locked_key_is_remembered_over_a_switch() {
    for to in Protocol::ALL.into_iter().filter(|p| *p != Protocol::TwoPhase) {
        for (columns, conflict) in [(B, false), (A, true)] {
            let end = beside_key(None, |writer| {
                switch_to(writer.w, to);
                commit_change(writer, columns);
            });
            match conflict {
                true => read_changed(end),
                false => assert_eq!(end, Ok(()), "{to:?}"),
            }
        }
    }
}

/// Where another protocol has a part in the reads, rows are locked as before.
#[test]
fn mediated_sets_lock_whole_rows() {
    for to in Protocol::ALL.into_iter().filter(|p| *p != Protocol::TwoPhase) {
        let w = two_phase(Policy::NoWait);
        for p in w.table.map().partitions() {
            p.switch.ask(to, false, Why::Asked, 7, 1);
        }
        let r = Recorder::new();
        let (mut other, mut reader) = (session(&w, &r, 1), session(&w, &r, 0));
        other.begin(Mood::Serializable);
        change(&mut other, OTHER, B).expect("nobody is in the way"); // it holds the switch up
        w.e.advance_switches(&[w.table], 1, false);
        reader.begin(Mood::Serializable);
        if to != Protocol::PartCc {
            look(&mut reader, A).expect("a read").expect("a row");
            assert_eq!(mode_of(&reader), Some(Mode::Share), "{to:?}");
        }
        reader.abort();
        other.abort();
    }
}

/// A transaction that has only read goes on as a snapshot, where its look does not count any more.
#[test]
fn a_reader_under_locked_keys_does_not_fail() {
    let w = two_phase(Policy::NoWait);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    reader.p.threads.writers.set(false);
    reader.begin(Mood::Serializable);
    let before = look(&mut reader, A).expect("a read");
    let other = Row::read(reader.t.read(&reader.p, record(&w, 0), false).expect("a read").expect("a row"));
    writer.begin(Mood::Serializable);
    change(&mut writer, KEY, A).expect("the key stays");
    change(&mut writer, OTHER, B).expect("nobody is in the way");
    writer.commit().expect("it has its locks");
    // It meets the other write, and what it has looked at is not as it was.
    reader.t.read(&reader.p, record(&w, OTHER), false).expect("a snapshot").expect("a row");
    assert!(reader.t.is_frozen());
    assert_eq!(mode_of(&reader), None, "it has given up its locks");
    assert_eq!(look(&mut reader, Columns::ALL).expect("a read"), before, "as of the same moment");
    let again = reader.t.read(&reader.p, record(&w, 0), false).expect("a read").expect("a row");
    assert_eq!(Row::read(again).value, other.value);
    assert_eq!(reader.commit(), Ok(()));
}

/// Two that look at a row and then both want to write it wait for each other at their looks, once
/// that is known.
#[test]
fn looks_that_writes_follow_lock_the_row() {
    for looked in [A, Columns::NONE] {
        let w = two_phase(Policy::NoWait);
        let r = Recorder::new();
        let (mut one, mut other) = (session(&w, &r, 0), session(&w, &r, 1));
        one.begin(Mood::Serializable);
        look(&mut one, looked).expect("a read").expect("a row");
        assert_eq!(mode_of(&one), Some(Mode::KeyShare));
        change(&mut one, KEY, B).expect("an upgrade");
        assert_eq!(one.commit(), Ok(()));
        other.begin(Mood::Serializable);
        look(&mut other, looked).expect("a read").expect("a row");
        assert_eq!(mode_of(&other), Some(Mode::Share), "{looked:?}");
        assert_eq!(other.commit(), Ok(()));
    }
}

/// What a savepoint has looked at under a lock of the key stays remembered when it is undone.
#[test]
fn a_locked_key_outlives_its_savepoint() {
    for (columns, conflict) in [(B, false), (A, true)] {
        for writes in [false, true] {
            let w = two_phase(Policy::NoWait);
            let r = Recorder::new();
            let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
            reader.begin(Mood::Serializable);
            reader.savepoint();
            look(&mut reader, A).expect("a read").expect("a row");
            if writes {
                change(&mut reader, KEY, B).expect("an upgrade");
            }
            reader.end_savepoint(false);
            // It may have read the row under its write lock.
            let mode = if writes { Mode::Share } else { Mode::KeyShare };
            assert_eq!(mode_of(&reader), Some(mode));
            writer.begin(Mood::Serializable);
            let done = change(&mut writer, KEY, columns).and_then(|()| writer.commit());
            writer.abort();
            let end = change(&mut reader, OTHER, B).and_then(|()| reader.commit());
            reader.abort();
            assert_eq!(done.is_err(), writes);
            assert_eq!(end.is_err(), conflict && !writes, "{columns:?}");
        }
    }
}

/// A prepared transaction keeps what it has looked at under a lock of the key.
#[test]
fn a_prepared_transaction_protects_what_it_has_looked_at_by_key() {
    for (columns, conflict) in [(B, false), (A, true)] {
        let w = two_phase(Policy::NoWait);
        let r = Recorder::new();
        let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
        reader.begin(Mood::Serializable);
        look(&mut reader, A).expect("a read").expect("a row");
        change(&mut reader, OTHER, B).expect("an update");
        commit_change(&mut writer, columns);
        let end = reader.prepare();
        assert_eq!(end.is_err(), conflict);
        if end.is_ok() {
            assert!(reader.t.guards_reads(w.table));
            reader.commit_prepared();
        }
        reader.abort();
    }
}

/// So many reads that are remembered are enough: the next look locks its row.
#[test]
fn a_look_after_many_locks_its_row() {
    for (n, mode, by_key) in [
        (999, Mode::KeyShare, false),
        (1000, Mode::Share, false),
        (999, Mode::KeyShare, true),
        (1000, Mode::Share, true),
    ] {
        let w = two_phase(Policy::NoWait);
        let r = Recorder::new();
        let mut reader = session(&w, &r, 0);
        reader.begin(Mood::Serializable);
        for i in 0..n {
            let row = record(&w, [0, OTHER][i % 2]); // in turns: else they are one read
            reader.t.read_columns(&reader.p, row, A).expect("a read").expect("a row");
        }
        let found = if by_key {
            reader.t.read_key(&reader.p, record(&w, KEY)).map(|v| v.is_some())
        } else {
            look(&mut reader, A).map(|v| v.is_some())
        };
        assert_eq!(found, Ok(true));
        assert_eq!(mode_of(&reader), Some(mode), "after {n}");
        assert_eq!(reader.commit(), Ok(()));
    }
}

// ---- Looks at the key alone (INV-EXISTS).

/// The protocols under which others may write a row while its key is looked at.
const LOOSE: [Protocol; 3] = [Protocol::Occ, Protocol::Mocc, Protocol::TwoPhase];

/// Is there a row? As the check of a foreign key asks.
fn exists(c: &mut Client) -> Result<bool, Error> {
    let r = record(c.w, KEY);
    let found = c.t.read_key(&c.p, r)?;
    if found.is_some() {
        c.t.lock_row(&c.p, r, Mode::KeyShare, How::Wait)?;
        return Ok(c.t.read_locked_key(&c.p, r, true)?.is_some());
    }
    Ok(false)
}

/// Tables of which nothing is known let updates of any columns pass a look at the key.
#[test]
fn a_look_at_the_key_passes_over_all_updates() {
    for p in LOOSE {
        for columns in [A, A.and(B), Columns::NONE, Columns::ALL] {
            for mood in [Mood::Serializable, Mood::ReadCommitted] {
                let w = world(p, Policy::NoWait, &[], 16);
                let r = Recorder::new();
                let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
                reader.begin(Mood::Serializable);
                assert_eq!(exists(&mut reader), Ok(true));
                assert_eq!(mode_of(&reader), Some(Mode::KeyShare));
                for _ in 0..2 {
                    writer.begin(mood);
                    change(&mut writer, KEY, columns).expect("the key stays");
                    writer.commit().expect("nobody is in the way");
                    assert_eq!(exists(&mut reader), Ok(true));
                }
                let end = change(&mut reader, OTHER, B).and_then(|()| reader.commit());
                assert_eq!(end, Ok(()), "{p:?} {columns:?}");
            }
        }
    }
}

/// How one ends that has looked at the key of a row and perhaps locked it, in a savepoint that it
/// has rolled back or not; and how the deletion of the row, or its move to another record.
fn beside_deletion(
    p: Protocol,
    (locks, undone): (bool, bool),
    moves: bool,
    fault: Option<Fault>,
) -> (Result<(), Error>, Result<(), Error>) {
    let w = world(p, Policy::NoWait, &[], 16);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    faults::set(fault);
    reader.begin(Mood::Serializable);
    if undone {
        reader.savepoint();
    }
    let found = match locks {
        true => exists(&mut reader),
        false => reader.t.read_key(&reader.p, record(&w, KEY)).map(|v| v.is_some()),
    };
    assert_eq!(found, Ok(true));
    if undone {
        reader.end_savepoint(false);
    }
    writer.begin(Mood::Serializable);
    let done = if moves { writer.relocate(KEY, 3, false) } else { writer.delete(KEY, false, false) };
    let done = done.and_then(|found| writer.commit().map(|()| assert!(found)));
    writer.abort();
    let end = change(&mut reader, OTHER, B).and_then(|()| reader.commit());
    reader.abort();
    faults::set(None);
    (end, done)
}

#[test]
fn a_row_stays_whose_key_was_looked_at() {
    for moves in [false, true] {
        for how in [(false, false), (false, true), (true, false), (true, true)] {
            let (end, done) = beside_deletion(Protocol::TwoPhase, how, moves, None);
            failed_with(done, AbortReason::LockConflict);
            assert_eq!(end, Ok(()));
        }
        let (end, done) = beside_deletion(Protocol::TwoPhase, (false, true), moves, Some(Fault::EarlyRelease));
        assert_eq!(done, Ok(()));
        read_changed(end);
        for p in OPTIMISTIC {
            for how in [(false, false), (true, true)] {
                let (end, done) = beside_deletion(p, how, moves, None);
                assert_eq!(done, Ok(()));
                read_changed(end);
                let found = beside_deletion(p, how, moves, Some(Fault::TombstonePassed));
                assert_eq!(found, (Ok(()), Ok(())), "the fault hides it");
            }
        }
    }
}

/// A deletion under the lock of an earlier update, which a lock of the key lets in, is met by the
/// validation.
#[test]
fn a_deletion_under_a_weaker_lock_meets_a_look_at_the_key() {
    for fault in [None, Some(Fault::KeyLookForgotten)] {
        let w = world(Protocol::TwoPhase, Policy::NoWait, &[], 16);
        let r = Recorder::new();
        let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
        faults::set(fault);
        reader.begin(Mood::Serializable);
        assert_eq!(exists(&mut reader), Ok(true));
        writer.begin(Mood::Serializable);
        change(&mut writer, KEY, B).expect("the key stays");
        assert_eq!(writer.delete(KEY, false, false), Ok(true));
        writer.commit().expect("nobody is in the way");
        let end = change(&mut reader, OTHER, B).and_then(|()| reader.commit());
        reader.abort();
        faults::set(None);
        match fault {
            None => read_changed(end),
            Some(_) => assert_eq!(end, Ok(()), "the fault hides it"),
        }
    }
}

/// What else one has read must fit to a row that is new, and not to one that was only updated.
#[test]
fn a_row_whose_key_is_looked_at_was_there_with_all_else() {
    for p in LOOSE {
        for is_new in [false, true] {
            let w = world(p, Policy::NoWait, &[], 16);
            w.table.changing.guess_none();
            let r = Recorder::new();
            let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
            reader.begin(Mood::Serializable);
            reader.t.read_columns(&reader.p, record(&w, OTHER), A).expect("a read").expect("a row");
            writer.begin(Mood::Serializable);
            change(&mut writer, OTHER, A).expect("the key stays");
            let key = if is_new { 3 } else { KEY };
            match is_new {
                true => assert_eq!(writer.insert(key), Ok(true)),
                false => change(&mut writer, key, B).expect("the key stays"),
            }
            writer.commit().expect("nobody is in the way");
            let found = reader.t.read_key(&reader.p, record(&w, key)).map(|v| assert!(v.is_some()));
            if is_new {
                read_changed(found);
            } else {
                assert_eq!(found, Ok(()), "{p:?}");
                reader.p.threads.writers.set(false);
                assert_eq!(reader.commit(), Ok(()), "as of before the update");
            }
            reader.abort();
        }
    }
}

/// An update that is about to commit is no reason to doubt that the row was there.
#[test]
fn a_pending_update_leaves_the_row() {
    for p in LOOSE {
        let w = world(p, Policy::NoWait, &[], 16);
        w.table.changing.guess_none();
        let r = Recorder::new();
        let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
        reader.begin(Mood::Serializable);
        reader.t.read_columns(&reader.p, record(&w, OTHER), A).expect("a read").expect("a row");
        writer.begin(Mood::Serializable);
        change(&mut writer, OTHER, A).expect("the key stays");
        change(&mut writer, KEY, A).expect("the key stays");
        writer.t.prepare(&writer.p, &|_, _| {}).expect("nobody is in the way");
        reader.t.read_key(&reader.p, record(&w, KEY)).expect("a look").expect("a row");
        writer.t.publish(&writer.p);
        reader.p.threads.writers.set(false);
        assert_eq!(reader.commit(), Ok(()), "{p:?}: as of before the update");
        writer.abort(); // ends a published transaction too
    }
}

/// A partition in the middle of a switch asks for what both of its protocols want.
#[test]
fn a_look_at_the_key_follows_all_protocols() {
    for to in OPTIMISTIC {
        let w = world(Protocol::TwoPhase, Policy::NoWait, &[], 16);
        for p in w.table.map().partitions() {
            p.switch.ask(to, false, Why::Asked, 7, 1);
        }
        let r = Recorder::new();
        let (mut other, mut reader) = (session(&w, &r, 1), session(&w, &r, 0));
        other.begin(Mood::Serializable);
        change(&mut other, OTHER, B).expect("nobody is in the way"); // it holds the switch up
        w.e.advance_switches(&[w.table], 1, false);
        reader.begin(Mood::Serializable);
        reader.t.read_key(&reader.p, record(&w, KEY)).expect("a look").expect("a row");
        assert_eq!(mode_of(&reader), Some(Mode::KeyShare), "{to:?}");
        change(&mut other, KEY, A).expect("the key stays");
        assert_eq!(other.commit(), Ok(()));
        assert_eq!(reader.commit(), Ok(()));
    }
}

/// A prepared transaction keeps the row.
#[test]
fn a_prepared_transaction_keeps_the_row_whose_key_it_has_looked_at() {
    for p in LOOSE {
        let w = world(p, Policy::NoWait, &[], 16);
        let r = Recorder::new();
        let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
        reader.begin(Mood::Serializable);
        reader.t.read_key(&reader.p, record(&w, KEY)).expect("a look").expect("a row");
        change(&mut reader, OTHER, B).expect("an update");
        commit_change(&mut writer, A);
        assert_eq!(reader.prepare(), Ok(()));
        assert!(reader.t.guards_reads(w.table));
        reader.commit_prepared();
        reader.abort();
    }
}
