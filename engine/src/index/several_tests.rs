//! Several indexes of one table: their entries come and go together.

use super::{Index, Primary, Reuse, Unique};
use crate::csn::SlotId;
use crate::lock::Mode;
use crate::primitive::Ordering;
use crate::record::{Keys, Successor, Version, INDEXES, REC_FREE};
use crate::retire::RetireQueue;
use crate::table::apply::{Put, Replayed};
use crate::threads::{Block, Threads, Waits};
use crate::txn::How;
use crate::{Engine, Level, Policy, Protocol, ProtocolSet, RecordRef, Table, Txn};

const SLOTS: u16 = 4;
/// The slot of a reader that looks at indexes.
const READER: SlotId = 3;

struct World {
    e: Engine,
    table: &'static Table,
    p: Threads,
    live_before: usize,
    _block: Block,
}

fn live(e: &Engine) -> usize {
    e.region.usage().classes.iter().map(|c| c.live).sum()
}

/// The key of row `n` in an index. Half of the keys are long.
fn key(n: u64, nth: usize) -> Vec<u8> {
    let long: &[u8] = if (n + nth as u64).is_multiple_of(2) { b"" } else { b" and more" };
    [&(n * 7 + nth as u64).to_be_bytes()[..], long].concat()
}

impl World {
    /// A table with indexes of these numbers and orders.
    fn new(indexes: &[(usize, u32)], reuse: Reuse) -> World {
        let block = Block::new(16 << 20, SLOTS as usize).expect("a block");
        let e = block.engine;
        let live_before = live(&e);
        let map = Table::new_map(&e, 0, 1, 0, b"", ProtocolSet::of(Protocol::Occ), Policy::Wait).expect("a map");
        let table = Table::create(&e, 0, [1; 4], map).expect("a table");
        for &(nth, order) in indexes {
            table.set_unique(nth, Primary::create(&e, 0, order, reuse, b"keys").expect("an index"));
        }
        World { e, table, p: Threads::new(e, 0, Waits::default().into()), live_before, _block: block }
    }
    fn begin(&self, slot: SlotId) -> Txn {
        let mut t = Txn::new(self.e, slot);
        t.begin(Level::Serializable, 1 + slot as u64);
        t
    }
    fn commit(&self, t: &mut Txn) {
        t.prepare(&self.p, &|_, _| {}).expect("a commit");
        t.publish(&self.p);
    }
    fn insert(&self, t: &mut Txn, n: u64) -> RecordRef {
        let v = t.new_version(0, 8, 0).expect("memory");
        // SAFETY: INV-VERSION: a fresh version with 8 bytes of payload, not yet linked.
        unsafe { Version::payload(v.as_ptr()).cast::<u64>().write_unaligned(n) };
        let r = t.insert(&self.p, self.table, [0, 0], v, 0, 0).expect("memory");
        for (nth, _) in self.table.uniques() {
            t.enter_in(&self.p, r, nth, &key(n, nth), Unique::Unchecked).expect("memory");
            assert!(t.has_entry(r, nth));
        }
        r
    }
    fn delete(&self, t: &mut Txn, r: RecordRef, n: u64) {
        self.move_to(t, r, n, Successor { record: 0 });
    }
    /// Deletes row `n`, which goes to another place.
    fn move_to(&self, t: &mut Txn, r: RecordRef, n: u64, to: Successor) {
        let all = self.keys(n);
        let mut keys = Keys::default();
        all.iter().for_each(|(nth, key)| keys.0[*nth] = Some(key));
        self.delete_of(t, r, keys, to);
    }
    fn delete_of(&self, t: &mut Txn, r: RecordRef, keys: Keys, to: Successor) {
        let base = t.lock_for_write(&self.p, r, Mode::Update, How::Wait, true).expect("a lock");
        let tombstone = t.new_tombstone_of(to, &keys).expect("memory");
        t.delete(r, base.map(|(v, _)| v), tombstone, 0, 0);
    }
    /// The keys of row `n`, with the numbers of their indexes.
    fn keys(&self, n: u64) -> Vec<(usize, Vec<u8>)> {
        self.table.uniques().map(|(nth, _)| (nth, key(n, nth))).collect()
    }
    /// The records with the key of row `n` in an index.
    fn find(&self, n: u64, nth: usize) -> Vec<u64> {
        let mut found = Vec::new();
        self.e.pin(READER);
        self.table.unique(nth).expect("an index").index.get(&self.p, &key(n, nth), &mut found);
        self.e.unpin(READER);
        found
    }
    /// The number of entries of each index.
    fn entries(&self) -> Vec<u64> {
        self.table.uniques().map(|(_, i)| i.index.len()).collect()
    }
    /// Runs a transaction that removes the entries that it may. Of how many records, and how many
    /// entries of marked ones.
    fn sweep(&self) -> usize {
        self.e.tick(); // Behind all commits so far.
        let mut t = self.begin(0);
        self.e.refresh_min_pin(&self.p);
        let mut n = t.purge_marked(&self.p, self.table).expect("memory");
        loop {
            match t.sweep(&self.p, self.table, 16) {
                0 => break,
                m => n += m,
            }
        }
        self.commit(&mut t);
        n
    }
    fn end(self) {
        for slot in 0..SLOTS {
            let min = self.e.tick();
            RetireQueue::drain(&self.e, slot, min, usize::MAX);
            RetireQueue::free_all(&self.e, slot);
        }
        // SAFETY: INV-TABLE: all other users have ended.
        unsafe { self.table.destroy(&self.e, 0) };
        assert_eq!(live(&self.e), self.live_before, "memory is left");
    }
}

/// Tables with different numbers, orders and ways to use numbers again.
fn worlds() -> impl Iterator<Item = World> {
    let sets: [&[(usize, u32)]; 6] = [
        &[(0, 0), (1, 0)],
        &[(0, 0), (1, 1)],
        &[(0, 1), (3, 0)],
        &[(1, 0), (2, 0)],
        &[(3, 0)],
        &[(0, 0), (1, 0), (2, 1), (3, 0)],
    ];
    sets.into_iter().flat_map(|of| [Reuse::AtOnce, Reuse::Vacuum].map(|reuse| World::new(of, reuse)))
}

#[test]
fn a_tombstone_has_the_keys_of_all_indexes() {
    let w = World::new(&[], Reuse::Vacuum);
    let mut t = w.begin(0);
    for choice in 0..1u32 << INDEXES {
        for len in [0, 1, 8, 300] {
            let key = vec![7; len];
            let mut keys = Keys::default();
            let chosen = (0..INDEXES).filter(|nth| choice & 1 << nth != 0);
            chosen.clone().for_each(|nth| keys.0[nth] = Some(&key[..len - len.min(nth)]));
            let to = Successor { record: u64::from(choice) };
            let v = t.new_tombstone_of(to, &keys).expect("memory");
            // SAFETY: INV-VERSION: it was made above, and is freed below.
            let (is, read) = unsafe { (v.as_ref(), Version::keys(v.as_ptr())) };
            // SAFETY: INV-VERSION: as above.
            assert_eq!((read, unsafe { Version::successor(v.as_ptr()) }), (keys, to));
            assert_eq!((is.is_tombstone(), is.is_keyed(), is.named()), (true, choice != 0, None));
            assert!(choice > 1 || is.len as usize == 8 + choice as usize * len, "one key needs no number");
            // What the pruner says of a version below it changes nothing.
            let below = t.new_version(0, 0, 0).expect("memory");
            // SAFETY: INV-VERSION: as above.
            is.name_also(unsafe { below.as_ref() });
            // SAFETY: INV-VERSION: as above.
            assert_eq!(unsafe { Version::keys(v.as_ptr()) }, keys);
            t.discard(below);
            t.discard(v);
        }
    }
    t.abort();
    w.end();
}

#[test]
fn deleted_and_undone_rows_leave_no_index_an_entry() {
    for w in worlds() {
        let of = w.table.uniques().count();
        let mut t = w.begin(0);
        let rows: Vec<RecordRef> = (0..200).map(|n| w.insert(&mut t, n)).collect();
        t.set_depth(2);
        (200..300).for_each(|n| _ = w.insert(&mut t, n));
        t.abort_sub(2);
        w.commit(&mut t);
        let mut t = w.begin(0);
        (300..400).for_each(|n| _ = w.insert(&mut t, n));
        t.abort();
        w.sweep();
        assert_eq!(w.entries(), vec![200; of]);
        let mut old = w.begin(1);
        let mut t = w.begin(0);
        rows.iter().zip(0..).filter(|(_, n)| n % 3 == 0).for_each(|(r, n)| w.delete(&mut t, *r, n));
        w.commit(&mut t);
        assert_eq!((w.sweep(), w.entries()), (0, vec![200; of]), "a pin holds them");
        old.abort();
        w.sweep();
        for (nth, index) in w.table.uniques() {
            assert_eq!(index.index.len(), 133);
            for (r, n) in rows.iter().zip(0..) {
                assert_eq!(w.find(n, nth), if n % 3 == 0 { vec![] } else { vec![r.no] }, "row {n} in index {nth}");
            }
        }
        for (r, n) in rows.iter().zip(0..) {
            let is_free = r.rec.state.load(Ordering::SeqCst) == REC_FREE;
            let at_once = w.table.uniques().all(|(_, i)| i.reuse() == Reuse::AtOnce);
            assert_eq!((is_free, w.table.is_indexed(r.no)), (n % 3 == 0 && at_once, at_once));
        }
        w.end();
    }
}

/// INV-SUCCESSOR: a row moves twice. Its tombstone gets the name of the last place, and keeps its
/// keys. So no index has an entry of a place that the row has left.
#[test]
fn a_row_that_moves_twice_leaves_no_index_an_entry() {
    for w in worlds() {
        let of = w.table.uniques().count();
        for undone in [false, true] {
            let mut t = w.begin(0);
            let first = w.insert(&mut t, 1);
            w.commit(&mut t);
            let mut t = w.begin(0);
            let second = w.insert(&mut t, 2);
            w.move_to(&mut t, first, 1, Successor { record: second.no + 1 });
            t.set_depth(2);
            let third = w.insert(&mut t, 3);
            let tombstone = t.new_tombstone(Successor { record: third.no + 1 }, None).expect("memory");
            t.delete(second, None, tombstone, 0, 0);
            if undone {
                t.abort_sub(2);
            } else {
                t.commit_sub(2);
            }
            t.set_depth(1);
            t.prepare(&w.p, &|_, _| {}).expect("a commit");
            let head = first.rec.head();
            let (last, n) = if undone { (second, 2) } else { (third, 3) };
            // SAFETY: INV-RETIRE: the head is reached under our pin.
            let (to, keys) = unsafe { (Version::successor(head), Version::keys(head)) };
            let named: Vec<(usize, Vec<u8>)> = keys.iter().map(|(nth, key)| (nth, key.to_vec())).collect();
            assert_eq!((to.record, named), (last.no + 1, w.keys(1)));
            t.publish(&w.p);
            w.sweep();
            assert_eq!(w.entries(), vec![1; of]);
            for (nth, _) in w.table.uniques() {
                assert_eq!(w.find(n, nth), [last.no]);
            }
            let mut t = w.begin(0);
            w.delete(&mut t, last, n);
            w.commit(&mut t);
            w.sweep();
            assert_eq!(w.entries(), vec![0; of]);
        }
        w.end();
    }
}

/// A prepared transaction that another process undoes does not know its keys.
#[test]
fn a_transaction_that_was_handed_over_leaves_no_entry() {
    for w in worlds() {
        let of = w.table.uniques().count();
        for commits in [false, true] {
            let mut t = w.begin(0);
            (0..50).for_each(|n| _ = w.insert(&mut t, n));
            t.prepare_ahead(&w.p).expect("nobody reads");
            t.hand_over(2);
            let mut t = Txn::take_over(w.e, 0).expect("it was left");
            if commits {
                t.decide_prepared();
                t.publish(&w.p);
            } else {
                t.abort();
            }
            w.e.region.flush_slot(0);
            w.sweep();
            assert_eq!(w.entries(), vec![if commits { 50 } else { 0 }; of]);
        }
        w.end();
    }
}

/// Without room to retire memory an abort marks records that have entries left, in some of the
/// indexes or in all.
#[test]
fn an_abort_without_room_leaves_marks() {
    let w = World::new(&[(0, 0), (1, 0), (2, 0)], Reuse::Vacuum);
    let mut uneven = 0;
    for round in 0..40u64 {
        let mut t = w.begin(0);
        let n = 100 + 13 * round;
        (0..n).for_each(|k| _ = w.insert(&mut t, k));
        // Retired memory of other users takes the room that is left, but for some removals.
        for _ in 0..RetireQueue::room(&w.e, 0) - (n + 8 + Index::ROOM + 3 * round) {
            let memory = w.e.region.alloc(0, 64).expect("memory");
            RetireQueue::push(&w.e, 0, memory, w.e.now());
        }
        t.abort();
        let left = w.entries();
        uneven += u32::from(left.iter().any(|n| *n != left[0]));
        assert!(left.iter().all(|n| *n <= w.table.dead_entries()), "each entry that is left is of a marked record");
        w.sweep();
        assert_eq!((w.table.dead_entries(), w.entries()), (0, vec![0; 3]));
        (0..w.table.len()).filter(|no| !w.table.is_indexed(*no)).for_each(|no| w.table.give_back(no, w.e.now()));
        w.e.tick();
        w.e.refresh_min_pin(&w.p);
    }
    assert!(uneven > 0, "the test is about nothing");
    w.end();
}

/// A transaction that excludes all others drops an index and makes another one of the same number.
/// Rows have keys in it that dead rows had in the old one.
#[test]
fn a_tombstone_names_no_entry_of_an_index_that_came_later() {
    for (keeps, makes) in [(false, false), (false, true), (true, false), (true, true)] {
        let w = World::new(&[(0, 0), (1, 0)], Reuse::Vacuum);
        let mut t = w.begin(0);
        let rows: Vec<RecordRef> = (0..100).map(|n| w.insert(&mut t, n)).collect();
        w.commit(&mut t);
        let mut t = w.begin(0);
        (0..50).for_each(|n| w.delete(&mut t, rows[n as usize], n));
        w.commit(&mut t);
        let mut t = w.begin(0);
        t.make_room(4).expect("memory");
        let new = makes.then(|| Primary::create(&w.e, 0, 0, Reuse::Vacuum, b"other").expect("memory"));
        for r in &rows[50..] {
            let entered = new.map(|i| i.enter(&w.e, 0, &w.p, r.no, &key(r.no - 50, 1), None).expect("memory"));
            assert!(entered.is_none_or(|e| e.added));
        }
        let old = w.table.replace_unique(1, new).expect("the old one");
        // What comes and goes meanwhile.
        let extra = w.insert(&mut t, 1000);
        let (first, second) = (key(99, 0), key(49, 1));
        let keys = Keys([Some(&first), makes.then_some(&second), None, None]);
        w.delete_of(&mut t, rows[99], keys, Successor { record: 0 });
        t.set_depth(2);
        w.insert(&mut t, 1001);
        t.abort_sub(2);
        assert_eq!(t.sweep(&w.p, w.table, 100), 0, "nothing is swept while a change can be undone");
        // SAFETY: INV-TABLE: there are no other users of the table.
        unsafe {
            if keeps {
                w.commit(&mut t);
                w.table.keep_unique(&w.e, 0, Some(old));
            } else {
                t.abort();
                w.table.restore_unique(&w.e, 0, 1, Some(old));
            }
        }
        w.sweep();
        assert_eq!(w.table.primary().expect("an index").index.len(), 50);
        assert_eq!(w.find(1000, 0), if keeps { vec![extra.no] } else { vec![] });
        match w.table.unique(1) {
            None => assert!(keeps && !makes),
            Some(index) => {
                let moved = if keeps { 50 } else { 0 };
                for r in &rows[50..99] {
                    assert_eq!(w.find(r.no - moved, 1), [r.no], "a row has lost its entry");
                }
                assert_eq!(index.index.len(), 50);
            }
        }
        assert!((0..w.table.len()).all(|no| !w.table.is_indexed(no)));
        w.end();
    }
}

/// A transaction makes an index of a row that it has inserted, and then deletes the row.
#[test]
fn a_row_from_before_its_index_leaves_it_no_entry() {
    for before in [&[][..], &[(0, 0)]] {
        let w = World::new(before, Reuse::Vacuum);
        let mut t = w.begin(0);
        t.make_room(4).expect("memory");
        let r = w.insert(&mut t, 1);
        let new = Primary::create(&w.e, 0, 0, Reuse::Vacuum, b"new").expect("memory");
        assert!(new.enter(&w.e, 0, &w.p, r.no, &key(1, 1), None).expect("memory").added);
        let old = w.table.replace_unique(1, Some(new));
        let tombstone = t.new_tombstone(Successor { record: 0 }, None).expect("memory");
        t.delete(r, None, tombstone, 0, 0);
        w.commit(&mut t);
        // SAFETY: INV-TABLE: there are no other users of the table.
        unsafe { w.table.keep_unique(&w.e, 0, old) };
        assert!(w.table.is_indexed(r.no), "the number is not used again yet");
        w.sweep();
        assert_eq!(w.entries(), vec![0; before.len() + 1]);
        assert!(!w.table.is_indexed(r.no));
        w.end();
    }
}

/// What a standby applies.
#[test]
fn replayed_rows_have_their_entries() {
    let w = World::new(&[(0, 0), (2, 0)], Reuse::Vacuum);
    w.e.pin(0);
    let apply = |n: u64, csn: u64, what: Replayed| {
        w.table.applied(&w.e, 0, n).expect("memory");
        w.table.apply(&w.e, 0, (n, csn), what, Put::Above).expect("memory");
    };
    for n in 0..20 {
        apply(n, 2, Replayed::Row(&n.to_ne_bytes(), 0));
        for nth in [0, 2] {
            for _ in 0..2 {
                w.table.apply_key(&w.e, 0, &w.p, n, (nth, &key(n, nth)[..])).expect("memory");
            }
        }
    }
    assert_eq!(w.entries(), [20, 20]);
    let all = [key(3, 0), key(3, 2)];
    let keys = Keys([Some(&all[0]), None, Some(&all[1]), None]);
    apply(3, 3, Replayed::Tomb(keys));
    let head = w.table.record(3).expect("a record").head();
    // SAFETY: INV-RETIRE: the head is reached under our pin.
    assert_eq!(unsafe { Version::keys(head) }, keys);
    for (nth, key) in keys.iter() {
        w.table.apply_key_removal(&w.e, 0, &w.p, 3, (nth, key)).expect("memory");
        assert!(w.find(3, nth).is_empty());
    }
    assert_eq!(w.entries(), [19, 19]);
    w.e.unpin(0);
    w.e.advance_clock(10);
    w.end();
}
