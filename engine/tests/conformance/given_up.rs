//! A commit gives up its writes in parts. A transaction that gets the lock of such a row finds all
//! that is done there, while the commit goes on with others. The row's version has its stamp, and
//! no id of the writer is left. A row that was written twice stays locked until its last write is
//! done.

use crate::held::{world, FINE};
use crate::invariants::assert_quiet;
use crate::world::{Jitter, Row, World};
use mixedcc_engine::faults::{self, Moment};
use mixedcc_engine::lock::Mode;
use mixedcc_engine::open::Seen;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::record::Successor;
use mixedcc_engine::txn::How;
use mixedcc_engine::{Level, Protocol, RecordRef, Txn};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// So many writes a commit gives up together (`TOGETHER`).
const PART: usize = 64;
const ROWS: usize = 3 * PART + 8;
/// A row of the second part that is updated; another session deletes it as soon as it can.
const NEXT: usize = PART + 6;
const FIRST_KEY: i64 = 100;

/// What the second session sees after each release.
struct Watch {
    w: &'static World,
    /// In the order of their first writes. The first one is written again at the end.
    rows: Vec<RecordRef>,
    reader: RefCell<Txn>,
    /// Releases so far.
    seen: Cell<usize>,
}

/// Writes a row: every second one is deleted.
fn write(w: &World, t: &mut Txn, p: &Jitter, (r, deletes): (RecordRef, bool), xid: u32) {
    let mode = if deletes { Mode::Update } else { Mode::NoKeyUpdate };
    let base = t.lock_for_write(p, r, mode, How::Try, true).expect(FINE).map(|v| v.0);
    assert!(base.is_some(), "a committed row");
    if deletes {
        let tombstone = t.new_tombstone(Successor { record: 0 }, None).expect("memory");
        t.delete(r, base, tombstone, 0, xid);
    } else {
        let v = w.version(t, Row { key: FIRST_KEY, txn: 1, nth: 0, value: 101 }).expect("memory");
        t.update(r, base, v, 0);
    }
}

impl Watch {
    fn is_settled(&self, r: RecordRef) -> bool {
        let seen = Seen::prefix(self.w.e.now());
        self.reader.borrow_mut().peek_snapshot(r, seen).is_some()
    }

    fn look(&self) {
        let n = self.seen.get();
        self.seen.set(n + 1);
        // The rows are released in the order of their writes, and the first one at last.
        let released = (n + 1) % ROWS;
        let is_last = released == 0;
        let done = if is_last { ROWS + 1 } else { (released / PART + 1) * PART };
        for (i, r) in self.rows.iter().enumerate() {
            let free = r.rec.lock.is_free();
            assert_eq!(free, is_last || (1..=released).contains(&i), "release {n}: the lock of row {i}");
            let last_write = if i == 0 { ROWS } else { i };
            let settled = self.is_settled(*r);
            assert_eq!(settled, last_write < done, "release {n}: the stamp of row {i}");
            let writer = r.rec.writer.load(Ordering::SeqCst);
            assert!(!free || settled && writer == 0, "release {n}: row {i} is free, and not done");
        }
        if released == NEXT {
            self.delete_next();
        }
    }

    /// The third session replaces what the commit has just given up, and is done before it.
    fn delete_next(&self) {
        let (mut u, q) = (Txn::new(self.w.e, 2), Jitter::new(self.w, 2, 1));
        u.begin(Level::Snapshot, self.w.ident());
        write(self.w, &mut u, &q, (self.rows[NEXT], true), 9);
        u.prepare(&q, &|_, _| {}).expect(FINE);
        u.publish(&q);
    }
}

/// Looks after the next release, and so on.
fn after_each_release(look: Rc<dyn Fn()>) {
    faults::at(Moment::Released, move || {
        look();
        after_each_release(look);
    });
}

/// The rows, and session 0's transaction over them: it is about to end, and a second session looks.
fn prepared() -> (Txn, Jitter, Rc<Watch>) {
    let w = world(Protocol::Occ);
    w.load((0..ROWS as i64).map(|i| Row { key: FIRST_KEY + i, txn: 0, nth: 0, value: 100 }));
    let rows: Vec<RecordRef> = w.scan(FIRST_KEY, FIRST_KEY + ROWS as i64 - 1).into_iter().map(|(_, r)| r).collect();
    assert_eq!(rows.len(), ROWS);
    let (mut t, p, mut reader) = (Txn::new(w.e, 0), Jitter::new(w, 0, 1), Txn::new(w.e, 1));
    t.begin(Level::Snapshot, w.ident());
    t.set_depth(1);
    for (i, r) in rows.iter().enumerate() {
        write(w, &mut t, &p, (*r, i % 2 == 1), 7);
    }
    write(w, &mut t, &p, (rows[0], false), 7);
    reader.begin(Level::Snapshot, w.ident());
    t.prepare(&p, &|_, _| {}).expect(FINE);
    (t, p, Rc::new(Watch { w, rows, reader: RefCell::new(reader), seen: Cell::new(0) }))
}

#[test]
fn who_gets_a_lock_of_a_commit_in_parts_finds_all_that_is_done() {
    let (mut t, p, s) = prepared();
    let watch = s.clone();
    after_each_release(Rc::new(move || watch.look()));
    t.publish(&p);
    assert_eq!(s.seen.get(), ROWS, "each lock was within a write, and is released");
    s.reader.borrow_mut().abort();
    assert_quiet(s.w, "a commit in parts");
}

#[test]
fn who_gets_a_lock_of_an_abort_finds_all_undone() {
    let (mut t, _, s) = prepared();
    let watch = s.clone();
    after_each_release(Rc::new(move || {
        watch.seen.set(watch.seen.get() + 1);
        for r in watch.rows.iter().filter(|r| r.rec.lock.is_free()) {
            assert!(watch.is_settled(*r), "the row is as before");
            assert_eq!(r.rec.writer.load(Ordering::SeqCst), 0, "nobody writes it any more");
        }
    }));
    t.abort();
    assert_eq!(s.seen.get(), ROWS, "each lock was within a write, and is released");
    s.reader.borrow_mut().abort();
    assert_quiet(s.w, "an abort");
}
