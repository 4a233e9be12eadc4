//! A partition's ring that wraps: no phantom is missed while its entry is being overwritten
//! (INV-PLACE).

use crate::steps::Meanwhile;
use crate::world::{Jitter, Row, World};
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::faults::{self, Fault, Moment};
use mixedcc_engine::platform::StopEvent;
use mixedcc_engine::range::RING_SIZE;
use mixedcc_engine::{Error, Level, Policy, Protocol, ProtocolSet, Txn};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

fn row(key: i64) -> Row {
    Row { key, txn: 0, nth: 0, value: 1 }
}

/// A reader scans a partition, another transaction inserts there and commits, and others that abort
/// fill the ring. One more takes the inserter's place in the ring; the reader commits before the
/// entry is overwritten, or after. Returns how.
fn commit_while_the_ring_wraps(fault: Option<Fault>, before: bool) -> Result<(), Error> {
    let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 4);
    let reader = Rc::new(RefCell::new(Txn::new(w.e, 0)));
    let own = Rc::new(Jitter::new(&w, 0, 1));
    reader.borrow_mut().begin(Level::Serializable, w.ident());
    reader.borrow_mut().validate_at_commit(); // though it only reads
    reader.borrow_mut().scan(&*own, w.touch(0)).expect("nothing is in the way");
    let end = Rc::new(Cell::new(None));
    let commit = {
        let (reader, own, end) = (reader.clone(), own.clone(), end.clone());
        move || {
            faults::set(fault);
            end.set(Some(reader.borrow_mut().prepare(&*own, &|_, _| {})));
            faults::set(None);
        }
    };
    let mut others: Vec<Txn> = (1..4).map(|slot| Txn::new(w.e, slot)).collect();
    let insert = |t: &mut Txn, p: &Jitter, key: i64| {
        t.begin(Level::Serializable, w.ident());
        w.insert(t, p, row(key), 1).expect("room");
    };
    let p = Jitter::new(&w, 1, 1);
    insert(&mut others[0], &p, 1);
    others[0].prepare(&p, &|_, _| {}).expect("nobody is in the way");
    others[0].publish(&p);
    let p = Jitter::new(&w, 2, 1);
    for _ in 1..RING_SIZE {
        insert(&mut others[1], &p, 3);
        others[1].prepare(&p, &|_, _| {}).expect("nobody is in the way");
        others[1].abort();
    }
    let p = Jitter::new(&w, 3, 1);
    insert(&mut others[2], &p, 5);
    if before {
        let stops = Meanwhile::at(&p, StopEvent::CommitRegister, move || faults::at(Moment::PlaceTaken, commit));
        others[2].prepare(&stops, &|_, _| {}).expect("nobody is in the way");
    } else {
        others[2].prepare(&p, &|_, _| {}).expect("nobody is in the way");
        others[2].abort(); // the reader would wait for its outcome
        commit();
    }
    others.iter_mut().for_each(Txn::abort);
    reader.borrow_mut().abort();
    end.take().expect("the reader has tried to commit")
}

#[test]
fn a_phantom_whose_entry_is_about_to_be_overwritten_is_found() {
    for before in [true, false] {
        let end = commit_while_the_ring_wraps(None, before);
        let found = matches!(end, Err(Error::Abort { reason: AbortReason::PredicateWrapped, .. }));
        assert!(found, "{before} {end:?}");
    }
}

#[test]
fn it_is_missed_where_only_the_last_lap_is_looked_at() {
    assert_eq!(commit_while_the_ring_wraps(Some(Fault::LappedForgotten), true), Ok(()), "the fault has no effect");
}
