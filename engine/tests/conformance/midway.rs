//! A row that was changed by the transaction that inserted it: nobody sees what it was on the way (INV-INSERT).

use crate::world::{Jitter, Row, World};
use mixedcc_engine::csn::{SlotWord, State};
use mixedcc_engine::faults;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::record::Successor;
use mixedcc_engine::{Level, Policy, Protocol, ProtocolSet, RecordRef, Txn};
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

/// What a read finds that has looked at the record before the writer commits, and looks at the writer when it has got so far.
fn read(set: ProtocolSet, level: Level, deletes: bool, state: State) -> Option<i64> {
    let w = World::new(&[set], Policy::Wait, 2);
    let p = Rc::new(Jitter::new(&w, 0, 1));
    let (t, r) = writer(&w, &p, level, deletes);
    let (writer, e) = (Rc::new(RefCell::new(t)), w.e);
    let mut reader = Txn::new(w.e, 1);
    let own = Jitter::new(&w, 1, 1);
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
        reader.prepare(&own, &|_, _| {}).expect("it has locked what it has read");
        reader.publish(&own);
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
