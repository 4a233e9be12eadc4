//! A row that was changed by the transaction that inserted it: no other transaction sees its states
//! on the way (INV-INSERT).

use crate::world::{Jitter, Row, World};
use mixedcc_engine::csn::{SlotWord, State};
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::lock::Mode;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::record::{Successor, Version};
use mixedcc_engine::txn::{How, Present};
use mixedcc_engine::{Error, Level, Policy, Protocol, ProtocolSet, RecordRef, Txn};
use std::cell::RefCell;
use std::rc::Rc;

fn row(value: i64) -> Row {
    Row { key: 1, txn: 0, nth: 0, value }
}

/// A transaction that inserts a row, and changes or deletes it; not committed yet.
fn writer(w: &World, p: &Jitter, level: Level, deletes: bool) -> (Txn, RecordRef) {
    let mut t = Txn::new(w.e, 0);
    t.begin(level, w.ident());
    let r = w.insert(&mut t, p, row(5), 1).expect("room");
    if deletes {
        let tombstone = t.new_tombstone(Successor { record: 0 }, None).expect("room");
        t.delete(r, None, tombstone, 2, 0);
    } else {
        let v = w.version(&mut t, row(6)).expect("room");
        t.update(r, None, v, 2);
    }
    (t, r)
}

/// What a read finds that has looked at the record before the writer commits, and looks at the
/// writer when it has got so far.
fn read(set: ProtocolSet, level: Level, deletes: bool, state: State) -> Option<i64> {
    let w = World::new(&[set], Policy::Wait, 2);
    let p = Rc::new(Jitter::new(&w, 0, 1));
    let (t, r) = writer(&w, &p, level, deletes);
    let (writer, e) = (Rc::new(RefCell::new(t)), w.e);
    let mut reader = Txn::new(w.e, 1);
    let own = Jitter::new(&w, 1, 1);
    own.threads.freezes.set(false);
    reader.begin(Level::Serializable, w.ident());
    {
        let (writer, p) = (writer.clone(), p.clone());
        faults::meanwhile(move || {
            writer.borrow_mut().prepare(&*p, &|_, _| {}).expect("nobody is in the way");
            // The first thing that `publish` does.
            let word = SlotWord::new(e.word(0).serial(), e.word(0).csn(), state);
            e.slots[0].word.store(word.0, Ordering::SeqCst);
        });
    }
    let seen = reader.read(&own, r, false);
    writer.borrow_mut().publish(&*p);
    let seen = seen.expect("nothing else was read").map(|v| Row::read(v).value);
    if set == ProtocolSet::of(Protocol::TwoPhase) {
        let end = reader.prepare(&own, &|_, _| {});
        if seen.is_some() || deletes {
            assert_eq!(end, Ok(()), "it has locked what it has read");
            reader.publish(&own);
        } else {
            let missed = matches!(end, Err(Error::Abort { reason: AbortReason::ReadChanged, .. }));
            assert!(missed, "there is no row to lock, and then there was one: {end:?}");
            reader.abort();
        }
    } else {
        reader.abort();
    }
    seen
}

#[test]
fn nobody_sees_what_an_inserter_made_on_the_way() {
    for protocol in [Protocol::TwoPhase, Protocol::Occ] {
        let set = ProtocolSet::of(protocol);
        for level in [Level::Serializable, Level::Snapshot] {
            for deletes in [false, true] {
                let committed = read(set, level, deletes, State::Committed);
                assert_eq!(committed, (!deletes).then_some(6), "{protocol:?} {level:?} {deletes}");
                let open = read(set, level, deletes, State::Committing);
                assert_eq!(open, None, "{protocol:?} {level:?} {deletes}: its outcome is open");
            }
        }
    }
}

/// A look that has found what the inserter made first, and comes to it when the inserter is
/// through: that version counts as aborted by then. (A unique check would let a duplicate pass.)
#[test]
fn nobody_misses_what_an_inserter_has_changed() {
    for (deletes, checks) in [(false, false), (false, true), (true, false), (true, true)] {
        let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 2);
        let p = Rc::new(Jitter::new(&w, 0, 1));
        let (mut t, r) = writer(&w, &p, Level::Snapshot, deletes);
        let own = Jitter::new(&w, 1, 1);
        let mut reader = Txn::new(w.e, 1);
        reader.begin(Level::Serializable, w.ident());
        {
            let p = p.clone();
            faults::meanwhile(move || {
                t.prepare(&*p, &|_, _| {}).expect("nobody is in the way");
                t.publish(&*p);
            });
        }
        let seen = if checks {
            match reader.present(&own, r).expect("no wait") {
                Some(Present::Row(v, _, 0)) => Some(v),
                None => None,
                other => panic!("nobody writes the row: {other:?}"),
            }
        } else {
            reader.read(&own, r, false).expect("nothing else was read")
        };
        assert_eq!(seen.map(|v| Row::read(v).value), (!deletes).then_some(6), "{deletes} {checks}");
        reader.abort();
    }
}

/// What a unique check finds of rows that others write.
#[test]
fn a_unique_check_finds_who_writes() {
    const ID: u32 = 77;
    let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 2);
    let (p, own) = (Jitter::new(&w, 0, 1), Jitter::new(&w, 1, 1));
    let (mut t, mut reader) = (Txn::new(w.e, 0), Txn::new(w.e, 1));
    let insert = |t: &mut Txn, id: u32| {
        let v = w.version(t, row(5)).expect("room");
        (v, t.insert(&p, w.table, [0; 2], v, 1, id).expect("nobody is in the way"))
    };
    reader.begin(Level::Snapshot, w.ident());
    t.begin(Level::Snapshot, w.ident());
    let (v, r) = insert(&mut t, ID);
    assert_eq!(reader.present(&own, r), Ok(Some(Present::Insert(v, ID))));
    let (_, without) = insert(&mut t, 0);
    assert_eq!(reader.present(&own, without), Ok(None), "nobody can wait for it");
    t.prepare(&p, &|_, _| {}).expect("nobody is in the way");
    assert_eq!(reader.present(&own, r), Ok(Some(Present::Insert(v, ID))), "its outcome is open");
    t.publish(&p);
    let csn = w.e.now();
    assert_eq!(reader.present(&own, r), Ok(Some(Present::Row(v, csn, 0))));
    t.begin(Level::Snapshot, w.ident());
    t.lock_record(&p, r, Mode::Update, How::Wait, false).expect("nobody is in the way");
    let tombstone = t.new_tombstone(Successor { record: 0 }, None).expect("room");
    t.delete(r, Some(v), tombstone, 1, ID);
    assert_eq!(reader.present(&own, r), Ok(Some(Present::Row(v, csn, ID))), "it may be gone soon");
    t.prepare(&p, &|_, _| {}).expect("nobody is in the way");
    t.publish(&p);
    assert_eq!(reader.present(&own, r), Ok(None));
    t.begin(Level::Snapshot, w.ident());
    let (_, r) = insert(&mut t, ID);
    t.abort();
    assert_eq!(reader.present(&own, r), Ok(None));
    reader.abort();
}

/// INV-SUCCESSOR: a row moves twice, and once more in a savepoint that is undone or not. The
/// tombstone in the place that others know names the one where the row is left.
#[test]
fn a_tombstone_names_the_last_place() {
    for (fault, found) in [(None, true), (Some(Fault::MovesInSteps), false)] {
        for (undone, ahead) in [(false, false), (true, false), (false, true)] {
            let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 2);
            let p = Jitter::new(&w, 0, 1);
            let mut t = Txn::new(w.e, 0);
            t.begin(Level::Snapshot, w.ident());
            let v = w.version(&mut t, row(5)).expect("room");
            let first = t.insert(&p, w.table, [0; 2], v, 1, 0).expect("nobody is in the way");
            t.prepare(&p, &|_, _| {}).expect("nobody is in the way");
            t.publish(&p);

            let mut places = vec![(first, Some(v))];
            let mut moves = |t: &mut Txn| {
                let (from, base) = *places.last().expect("the first");
                let v = w.version(t, row(5)).expect("room");
                let to = t.insert(&p, w.table, [0; 2], v, 1, 0).expect("nobody is in the way");
                if base.is_some() {
                    t.lock_record(&p, from, Mode::Update, How::Wait, false).expect("nobody is in the way");
                }
                let tombstone = t.new_tombstone(Successor { record: to.no + 1 }, None).expect("room");
                t.delete(from, base, tombstone, 1, 0);
                places.push((to, None));
                to
            };
            t.begin(Level::Snapshot, w.ident());
            moves(&mut t);
            let second = moves(&mut t);
            t.set_depth(2);
            let third = moves(&mut t);
            if undone {
                t.abort_sub(2);
            } else {
                t.commit_sub(2);
            }
            t.set_depth(1);
            faults::set(fault);
            if ahead {
                t.prepare_ahead(&p).expect("nobody is in the way");
                t.decide_prepared();
            } else {
                t.prepare(&p, &|_, _| {}).expect("nobody is in the way");
            }
            faults::set(None);
            let head = first.rec.head();
            // SAFETY: the transaction is pinned, and the version is a tombstone of its own.
            let named = unsafe { Version::successor(head) }.record;
            let last = if undone { second } else { third };
            assert_eq!(named == last.no + 1, found, "{fault:?} {undone} {ahead}");
            t.abort();
        }
    }
}
