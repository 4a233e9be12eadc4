//! The write set: the buffered writes of the transaction, by number and by record.
//!
//! **INV-LATEST**: The first `sorted` writes are of one table, in the order of its records, each of
//! another record: they are searched by halves. So are all the writes of a statement that changes a
//! table from its begin to its end. Of the writes from there to `known`, `Latest::map` has the last
//! one of each record, by the address of the record; it may have earlier ones, which are no later
//! write of their records. A search for a write makes the others known, so that writes cost nothing
//! that no search asks for.
//!
//! **INV-UNWRITTEN**: Below SERIALIZABLE a transaction holds the lock of each record that it has
//! written and not inserted, from before its first write there. So it has not written a record
//! whose lock it does not hold, and which it has not inserted: its number is none of those between
//! the least and the greatest that it has inserted into the table ([`Inserted`]). And a write of a
//! committed row is the first one there if no other was buffered since the lock was new.
//!
//! **INV-SOME**: A flag of [`Kinds`] is set if a write is like that which the transaction has
//! buffered, or has had buffered. So passes of a commit for such writes leave out a load, which has
//! none.
//!
//! **INV-SUCCESSOR**: A tombstone that is linked names the place where its transaction has left the
//! row. A row that moves twice leaves nothing in the record in the middle, which others could
//! follow.
//!
//! **INV-WRITER**: A record has the transaction id of its inserter or deleter, for unique checks.
//! The transaction that has put it there takes it out when it publishes or undoes that write. A
//! lock of the record is no right to take it out: the record may have been locked for what it was
//! before.

use super::entries::Entries;
use super::inserted::Inserted;
use super::write_list::WriteList;
use super::{Owner, RecordRef};
use crate::csn::SlotId;
use crate::faults::{self, Fault, Moment};
use crate::lock::Mode;
use crate::memory::OutOfMemory;
use crate::primitive::{fence, Ordering};
use crate::range::{Columns, Effect};
use crate::record::{Record, Successor, Version, INDEXES};
use crate::retire::RetireQueue;
use crate::table::Table;
use hashbrown::HashMap;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::ptr::NonNull;

/// Among so many buffered writes the last one of a record is found by looking at each.
const FEW: usize = 16;

/// Besides the last write, so many before it are looked at before all are searched: an insert and
/// the delete of the row that it replaces come together.
const RECENT: usize = 3;

/// The distance, in writes, between one that is committed and one that is prefetched.
const AHEAD: usize = 16;

/// From here on [`Write::entry`] is of a write whose keys are not known: a bit for each index in
/// which it has an entry.
pub(super) const UNKNOWN_ENTRIES: u32 = u32::MAX << INDEXES;
/// It may have an entry in each.
pub(super) const UNKNOWN_ENTRY: u32 = u32::MAX;

/// So many tokens a slot takes at once, so that slots seldom change the shared number.
const TOKENS: u64 = 64;

/// Where the last write of a record is found if there are more than `FEW` (INV-LATEST).
#[derive(Default)]
struct Latest {
    map: RefCell<HashMap<usize, u32>>,
    known: Cell<usize>,
    /// Behind the sorted write that was found last: a scan looks for the next one.
    next: Cell<usize>,
}

impl Latest {
    /// The last write of a record among these, which are all. The first `sorted` ones are sorted.
    #[inline(never)]
    fn find(&self, writes: &WriteList, sorted: usize, r: RecordRef) -> Option<u32> {
        if writes.len() > sorted {
            let mut map = self.map.borrow_mut();
            for i in self.known.get().max(sorted)..writes.len() {
                map.insert(std::ptr::from_ref(writes.record(i)).addr(), i as u32);
                // One by one: if the process has no memory for the next one, these are known.
                self.known.set(i + 1);
            }
            if let Some(n) = map.get(&r.key()) {
                return Some(*n);
            }
        }
        if sorted == 0 || !std::ptr::eq(writes.at(0).r.table, r.table) {
            return None;
        }
        let next = self.next.get();
        let found = match writes.get(next) {
            Some(w) if next < sorted && w.r.no == r.no => next,
            _ => writes.search(sorted, r.no)?,
        };
        self.next.set(found + 1);
        Some(found as u32)
    }

    /// The last write was taken out of the list, of which `left` are left.
    fn forget(&mut self, w: &Write, left: usize) {
        if self.known.get() <= left {
            return;
        }
        self.known.set(left);
        let map = self.map.get_mut();
        match w.previous() {
            Some(n) => _ = map.insert(w.r.key(), n),
            None => _ = map.remove(&w.r.key()),
        }
    }

    /// All writes are gone.
    fn clear(&mut self) {
        self.known.set(0);
        super::clear_map(self.map.get_mut());
    }
}

/// By which the inserts of a table are known.
#[inline]
fn address(table: &Table) -> usize {
    std::ptr::from_ref(table).addr()
}

/// What a buffered write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    /// A new record, reserved until commit.
    Insert,
    /// A new version of the record.
    Update,
    /// A tombstone.
    Delete,
}

/// A buffered write.
#[derive(Clone, Copy)]
pub struct Write {
    /// The record.
    pub r: RecordRef,
    /// What it does.
    pub kind: WriteKind,
    /// The new version or tombstone.
    pub version: NonNull<Version>,
    /// The committed version that it replaces; `None` for own inserts.
    pub base: Option<NonNull<Version>>,
    /// Our previous write of the same record, + 1; 0: there is none.
    pub(super) follows: u32,
    /// Number of the statement (PostgreSQL's command id).
    pub cid: u32,
    /// Subtransaction depth; 1 is the top transaction.
    pub depth: u32,
    /// Transaction id by which unique checks wait for an insert or a delete of ours; else 0
    /// (INV-WRITER).
    pub xid: u32,
    /// Is there a later write of ours of the same record?
    pub superseded: bool,
    /// Is the record's lock within it (INV-WITHIN)?
    pub(super) locks: bool,
    /// Stands for the size of what it replaces, so that the commit need not look at that
    /// ([`crate::memory::Region::code_of_object`]); 0: the commit looks.
    pub(super) was: u8,
    /// The columns in which the version differs from the one before, ours or the committed one
    /// (INV-COLUMNS, INV-CHANGED).
    pub(super) changed: Columns,
    /// Its last note + 1 (see [`super::Txn::note_key`]).
    pub(super) notes: u32,
    /// Of an own insert: where the key of its last entry is among our entries, + 1; 0: it has no
    /// entry. See [`UNKNOWN_ENTRIES`], too.
    pub(super) entry: u32,
}

impl Write {
    /// A write that is not in the list yet.
    #[inline]
    pub(super) fn new(
        r: RecordRef,
        kind: WriteKind,
        version: NonNull<Version>,
        base: Option<NonNull<Version>>,
        (cid, depth): (u32, u32),
        xid: u32,
    ) -> Write {
        let (superseded, locks, was, changed) = (false, false, 0, Columns::ALL);
        let (follows, notes, entry) = (0, 0, 0);
        Write { r, kind, version, base, follows, cid, depth, xid, superseded, locks, was, changed, notes, entry }
    }

    /// Our previous write of the same record.
    #[inline]
    pub fn previous(&self) -> Option<u32> {
        self.follows.checked_sub(1)
    }

    /// Takes the own transaction id out of the record (INV-WRITER). If a lock is within the write,
    /// it is held.
    pub(super) fn forget_writer(&self) {
        if self.xid != 0 && self.locks {
            // No other transaction has put its id there.
            self.r.rec.writer.store(0, Ordering::Release);
        } else if self.xid != 0 {
            // The next transaction that deletes the row may have put its id there already.
            let _ = self.r.rec.writer.compare_exchange(self.xid, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}

/// What a transaction sees of its own writes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// It has written nothing here.
    Nothing,
    /// It has written, but only in later statements: it sees the committed version.
    Later,
    /// It sees this write.
    Write(u32),
}

/// What some write may have: a pass over the writes leaves out what none has.
#[derive(Clone, Copy, Default)]
struct Kinds {
    /// A lock within it.
    locks: bool,
    /// It is a delete.
    deletes: bool,
    /// A committed version that it replaces.
    bases: bool,
    /// It is an insert.
    inserts: bool,
    /// It deletes an own insert.
    undoes: bool,
}

/// The writes of a transaction.
#[derive(Default)]
pub(super) struct WriteSet {
    all: WriteList,
    /// Of all writes, and of those that were undone (INV-SOME).
    some: Kinds,
    latest: Latest,
    /// So many writes, from the first one on, are sorted (INV-LATEST).
    sorted: usize,
    /// The marks of at least all records that were written: most records are known not to be.
    marks: u64,
    /// May one of them be of a permanent table? A table becomes one before anybody writes in it.
    /// Stays if that write is undone.
    pub permanent: bool,
    /// What was inserted.
    inserted: Inserted,
    pub entries: Entries,
    /// How many of the writes are linked, from the first one on.
    linked: usize,
    /// Room in the queue of retired memory that the platform was promised, until it has used it
    /// after our end.
    promised: u64,
    /// The version of an insert that sleeps for its partition.
    pub unplaced: Option<NonNull<Version>>,
    /// Room for [`WriteSet::take_order`].
    order: Vec<(u64, u64, usize)>,
    /// The token of what the transaction writes now; 0: none is drawn yet.
    token: u64,
    /// Tokens that the slot's next transactions may draw.
    tokens: Range<u64>,
}

impl std::ops::Deref for WriteSet {
    type Target = WriteList;
    #[inline(always)]
    fn deref(&self) -> &WriteList {
        &self.all
    }
}

impl WriteSet {
    /// See [`super::Txn::token`].
    #[inline]
    pub fn token(&mut self, owner: &Owner) -> u64 {
        if self.token == 0 {
            self.draw_token(owner);
        }
        self.token
    }

    fn draw_token(&mut self, owner: &Owner) {
        if self.tokens.is_empty() || self.tokens.start <= owner.e.shared.token_floor.load(Ordering::Relaxed) {
            let last = owner.e.shared.last_token.fetch_add(TOKENS, Ordering::Relaxed);
            self.tokens = last + 1..last + TOKENS + 1;
        }
        self.token = self.tokens.start;
        self.tokens.start += 1;
    }

    /// The next write has another token.
    pub fn end_token(&mut self) {
        self.token = 0;
    }

    /// The writes of a transaction that was prepared by another process, which has linked them.
    pub fn restore(&mut self, writes: impl Iterator<Item = Write>) {
        debug_assert!(self.all.is_empty());
        self.permanent = true;
        for w in writes {
            self.note_some(&w);
            self.all.push(w);
        }
        self.linked = self.all.len();
    }

    /// Adds the first write of a record, which is linked already.
    pub fn add_linked(&mut self, w: Write) {
        debug_assert_eq!(self.linked, self.all.len());
        self.push(w);
        self.linked = self.all.len();
    }

    /// Forgets the writes from the number `from` on, of a table that no process can reach.
    pub fn forget_linked(&mut self, from: usize) {
        debug_assert!(self.all.some(from..self.all.len()).all(|w| !w.locks));
        self.all.truncate(from);
        (self.linked, self.sorted) = (self.all.len(), self.sorted.min(from));
    }

    /// Adds the first write of a record.
    #[inline(always)]
    pub fn add_first(&mut self, w: Write) -> u32 {
        debug_assert!(!self.was_just_written(w.r));
        self.push(w);
        self.all.len() as u32 - 1
    }

    /// Is one of the last writes of this record? Unlike a search, it makes no write known.
    fn was_just_written(&self, r: RecordRef) -> bool {
        self.all.iter().rev().take(4 * FEW).any(|w| std::ptr::eq(w.r.rec, r.rec))
    }

    #[inline]
    fn note_some(&mut self, w: &Write) {
        self.some.locks |= w.locks;
        self.some.deletes |= w.kind == WriteKind::Delete;
        self.some.bases |= w.base.is_some();
        self.some.inserts |= w.kind == WriteKind::Insert;
    }

    /// A delete of an own insert is about to be added.
    pub fn note_undoes(&mut self) {
        self.some.undoes = true;
    }

    /// The tombstones get the last places of their rows (INV-SUCCESSOR).
    pub fn name_last_places(&mut self) {
        if !self.some.undoes || faults::on(Fault::MovesInSteps) {
            return;
        }
        for w in self.all.iter().filter(|w| w.kind == WriteKind::Delete && !w.superseded && w.base.is_some()) {
            // SAFETY: a tombstone of ours, which is linked only now that the transaction ends.
            let named = unsafe { Version::successor(w.version.as_ptr()) };
            let mut last = named;
            while let Some(next) = self.moved_on(w.r.table, last) {
                last = next;
            }
            if last != named {
                // SAFETY: the same.
                unsafe { Version::set_successor(w.version.as_ptr(), last) }
            }
        }
    }

    /// Where the row went that the transaction had left in this place, if it has taken it away.
    fn moved_on(&self, table: &'static Table, from: Successor) -> Option<Successor> {
        let no = from.record.checked_sub(1).filter(|_| from.record != u64::MAX)?;
        let w = self.all.at(self.last_of(RecordRef::find(table, no)?)? as usize);
        // SAFETY: a tombstone of ours.
        (w.kind == WriteKind::Delete).then(|| unsafe { Version::successor(w.version.as_ptr()) })
    }

    /// How many writes a pass looks at: all, if some may be like this; else none.
    #[inline]
    fn if_some(&self, may_be: bool, is_so: impl Fn(&Write) -> bool) -> usize {
        if may_be {
            return self.all.len();
        }
        if cfg!(feature = "faults") {
            assert!(!self.all.iter().any(|w| is_so(&w)), "INV-SOME: a pass leaves out what no write has");
        }
        0
    }

    /// The deletes.
    pub fn deletes(&self) -> impl DoubleEndedIterator<Item = Write> + use<'_> {
        let is_delete = |w: &Write| w.kind == WriteKind::Delete;
        self.all.some(0..self.if_some(self.some.deletes, is_delete)).filter(is_delete)
    }

    /// The inserts.
    pub fn inserts(&self) -> impl Iterator<Item = Write> + use<'_> {
        let is_insert = |w: &Write| w.kind == WriteKind::Insert;
        self.all.some(0..self.if_some(self.some.inserts, is_insert)).filter(is_insert)
    }

    /// Among these writes, the last ones of all records that had a committed version, with these
    /// versions.
    pub fn replaced(&self, of: Range<usize>) -> impl Iterator<Item = (NonNull<Version>, &'static Record)> + use<'_> {
        // INV-SOME, of these writes alone: a commit asks for a few at a time.
        let is_so = || !self.all.some(of.clone()).any(|w| w.base.is_some());
        assert!(self.some.bases || !cfg!(feature = "faults") || is_so(), "INV-SOME: a write has a base");
        let all = self.all.some(if self.some.bases { of } else { 0..0 });
        all.filter(|w| !w.superseded).filter_map(|w| Some((w.base?, w.r.rec)))
    }

    /// The last writes of all records in permanent tables, and perhaps of others.
    pub fn finals_durable(&self) -> impl Iterator<Item = Write> + use<'_> {
        let all = self.all.some(0..self.if_some(self.permanent, |w| w.r.table.durable().is_some()));
        all.filter(|w| !w.superseded)
    }

    #[inline(always)]
    fn push(&mut self, w: Write) {
        self.note_some(&w);
        self.marks |= w.r.mark();
        self.permanent |= w.r.table.durable().is_some();
        if w.base.is_none() {
            self.inserted.add(address(w.r.table), w.r.no);
        }
        if self.sorted == self.all.len() {
            let follows = |last: Write| std::ptr::eq(last.r.table, w.r.table) && last.r.no < w.r.no;
            self.sorted += usize::from(self.all.last().is_none_or(follows));
        }
        self.all.push(w);
    }

    /// Adds a write of a record that may have been written before; returns its number.
    #[inline]
    pub fn add(&mut self, mut w: Write) -> u32 {
        if let Some(p) = self.last_of(w.r) {
            w.follows = p + 1;
            self.all.set_superseded(p as usize, true);
            w.entry = self.all.at(p as usize).entry;
        }
        self.push(w);
        self.all.len() as u32 - 1
    }

    /// The last write of a record.
    #[inline]
    pub fn last_of(&self, r: RecordRef) -> Option<u32> {
        if self.marks & r.mark() == 0 {
            return None;
        }
        if self.all.len() > FEW {
            let n = self.all.len() - 1;
            let recent = (n - RECENT..=n).rev().find(|&i| std::ptr::eq(self.all.record(i), r.rec));
            if let Some(i) = recent {
                return Some(i as u32);
            }
            let last = self.all.at(n).r;
            if self.sorted > n && std::ptr::eq(last.table, r.table) && last.no < r.no {
                return None; // it lies behind all that were written
            }
            return self.latest.find(&self.all, self.sorted, r);
        }
        (0..self.all.len()).rev().find(|&i| std::ptr::eq(self.all.record(i), r.rec)).map(|n| n as u32)
    }

    /// Is it known without a search that a transaction below SERIALIZABLE has not written this
    /// record (INV-UNWRITTEN)?
    #[inline]
    pub fn is_surely_unwritten(&self, slot: SlotId, table: &Table, no: u64, rec: &Record) -> bool {
        !self.inserted.may_have(address(table), no) && !rec.lock.may_be_held_by(slot)
    }

    /// Is it known without a search that no record of this number or a larger one was written in a
    /// table (INV-LATEST)?
    #[inline]
    pub fn is_behind_all(&self, table: &Table, no: u64) -> bool {
        let is_before = |w: Write| std::ptr::eq(w.r.table, table) && w.r.no < no;
        self.sorted == self.all.len() && self.all.last().is_none_or(is_before)
    }

    /// What statement `before` sees of our writes of a record; `None`: a statement after all.
    #[inline]
    pub fn own(&self, r: RecordRef, before: Option<u32>) -> Own {
        let Some(last) = self.last_of(r) else { return Own::Nothing };
        let mut at = Some(last);
        while let Some(n) = at {
            let w = self.all.at(n as usize);
            if before.is_none_or(|b| w.cid < b) {
                return Own::Write(n);
            }
            at = w.previous();
        }
        Own::Later
    }

    /// The last writes of all records, with their numbers.
    pub fn finals(&self) -> impl Iterator<Item = (usize, Write)> + use<'_> {
        self.all.iter().enumerate().filter(|(_, w)| !w.superseded)
    }

    /// Tables that were written: each at least once.
    pub fn tables(&self) -> impl Iterator<Item = &'static Table> + use<'_> {
        // INV-LATEST: the sorted writes are of one table.
        let n = self.all.len();
        self.all.some(0..n.min(1)).chain(self.all.some(self.sorted.min(n)..n)).map(|w| w.r.table)
    }

    /// The columns that an update in place changes.
    pub fn set_changed(&mut self, write: u32, changed: Columns) {
        if (write as usize) < self.all.len() {
            self.all.set_changed(write as usize, changed);
        }
    }

    /// What the last write of a record, with those before it, does to the row as others see it.
    /// Asked when all locks are held. A row that was updated before it was deleted may be locked
    /// for the update alone, which does not exclude a lock of its key.
    pub fn effect(&self, slot: SlotId, write: usize) -> Effect {
        let w = self.all.at(write);
        let is_locked = || w.r.rec.lock.held_by(slot).is_some_and(|h| h.mode == Mode::Update);
        match (w.base, w.kind) {
            (None, _) => Effect::New,
            (Some(_), WriteKind::Delete) if is_locked() || faults::on(Fault::KeyIsForgotten) => Effect::Gone,
            (Some(_), WriteKind::Delete) => Effect::New,
            (Some(_), _) => Effect::Changes(self.changed(&w)),
        }
    }

    /// The columns in which the version of an update in place differs from the committed one that
    /// it replaces: those of our earlier updates of the row, too.
    #[inline]
    fn changed(&self, w: &Write) -> Columns {
        let (mut changed, mut at) = (w.changed, w.previous());
        while let Some(n) = at.filter(|_| !faults::on(Fault::LastChangeOnly)) {
            let earlier = self.all.at(n as usize);
            (changed, at) = (changed.and(earlier.changed), earlier.previous());
        }
        if faults::on(Fault::ChangesForgotten) {
            return Columns::NONE;
        }
        changed
    }

    /// The last note of a write.
    pub fn set_notes(&mut self, write: u32, last: u32) {
        self.all.set_notes(write as usize, last);
    }

    /// The last entry of an own insert.
    pub fn set_entry(&mut self, write: u32, entry: u32) {
        self.all.set_entry(write as usize, entry);
    }

    /// The subtransaction at `depth` committed: its writes are its parent's.
    pub fn merge(&mut self, depth: u32) {
        self.all.merge(depth);
    }

    /// Is the last write one of a subtransaction at `depth` or deeper?
    pub fn is_last_in(&self, depth: u32) -> bool {
        self.all.last().is_some_and(|w| w.depth >= depth)
    }

    /// The writes that are wanted, in canonical order: table, record. Give the list back with
    /// [`WriteSet::give_order`].
    pub fn take_order(&mut self, wanted: impl Fn(&Write) -> bool) -> Vec<(u64, u64, usize)> {
        let mut order = std::mem::take(&mut self.order);
        let writes = self.all.iter().enumerate().filter(|(_, w)| wanted(w));
        order.extend(writes.map(|(i, w)| (w.r.table.id, w.r.no, i)));
        order.sort_unstable();
        order
    }

    /// Gives the list back, so that the next transaction need not allocate.
    pub fn give_order(&mut self, mut order: Vec<(u64, u64, usize)>) {
        super::clear_vec(&mut order);
        self.order = order;
    }

    /// Step 3 of the commit. We hold the write lock of every record, or the lock of its partition,
    /// or have inserted it.
    pub fn link(&mut self) {
        let n = self.all.len();
        for i in 0..n {
            self.all.announce_record(i + AHEAD);
            let w = self.all.at(i);
            if !w.superseded {
                let older = w.base.map_or(std::ptr::null_mut(), |b| b.as_ptr());
                debug_assert!(w.base.is_none() || older == w.r.rec.head());
                // SAFETY: INV-VERSION: our own version, not linked yet (or our own insert's).
                debug_assert_eq!(unsafe { w.version.as_ref() }.older(), older);
                if w.kind == WriteKind::Update && w.base.is_some() {
                    let changed = self.changed(&w);
                    // SAFETY: INV-VERSION: as above.
                    unsafe { w.version.as_ref() }.name(changed); // INV-CHANGED
                    w.r.table.changing.note(changed);
                }
                // An insert has set it before.
                if w.r.rec.head() != w.version.as_ptr() {
                    match n {
                        1 => w.r.rec.set_head(w.version.as_ptr()),
                        _ => w.r.rec.set_head_before_fence(w.version.as_ptr()),
                    }
                }
            }
            self.linked = i + 1;
        }
        if n > 1 {
            fence(Ordering::SeqCst);
        }
    }

    /// Prefetches what the commit of a later write than `i` will look at: of many writes, it left
    /// the cache since they were made.
    #[inline]
    pub fn announce(&self, i: usize) {
        self.all.announce(i + AHEAD);
    }

    /// Takes back what was linked (INV-UNDO).
    pub fn unlink(&mut self) {
        for w in self.all.some(0..self.linked).rev().filter(|w| !w.superseded) {
            w.r.rec.set_head(w.base.map_or(std::ptr::null_mut(), |b| b.as_ptr()));
        }
        self.linked = 0;
    }

    /// Takes back the last write, and returns it.
    pub fn undo_last(&mut self, owner: &Owner) -> Option<Write> {
        let n = self.all.len().checked_sub(1)?;
        let w = self.undo(owner, n);
        self.all.truncate(n);
        self.sorted = self.sorted.min(n);
        if let Some(previous) = w.previous() {
            self.all.set_superseded(previous as usize, false);
        }
        self.latest.forget(&w, n);
        Some(w)
    }

    /// Takes back what a write has done, after all later ones. It stays in the list, for the lock
    /// within it.
    pub fn undo(&mut self, owner: &Owner, n: usize) -> Write {
        let w = self.all.at(n);
        match w.kind {
            WriteKind::Insert => {
                self.kill_insert(owner, &w, n + 1);
                self.entries.forget(w.entry);
            }
            WriteKind::Delete if w.xid != 0 => w.r.rec.writer.store(0, Ordering::SeqCst),
            WriteKind::Delete | WriteKind::Update => {}
        }
        owner.retire_version(w.version);
        w
    }

    /// Takes the locks out of the writes that have some within them, one by one (INV-WITHIN).
    pub fn take_locks(&mut self) -> impl Iterator<Item = (RecordRef, WriteKind)> + '_ {
        (0..self.all.len()).filter_map(move |i| {
            let w = self.all.take_lock(i).then(|| self.all.at(i))?;
            Some((w.r, w.kind))
        })
    }

    /// Releases the locks within the writes.
    pub fn release_locks(&mut self, owner: &Owner) {
        for i in 0..self.if_some(self.some.locks, |w| w.locks) {
            self.announce(i);
            self.release_lock(owner, i);
        }
        self.note_released();
    }

    /// Releases the locks within these writes, but for those of rows that have a later write. Is
    /// there such a row?
    #[inline]
    pub fn release_last_locks(&mut self, owner: &Owner, these: Range<usize>) -> bool {
        let mut rewritten = false;
        if self.some.locks {
            for i in these {
                if self.all.is_superseded(i) {
                    rewritten = true;
                } else {
                    self.release_lock(owner, i);
                }
            }
        }
        rewritten
    }

    #[inline(always)]
    fn release_lock(&mut self, owner: &Owner, i: usize) {
        if self.all.take_lock(i) {
            self.all.record(i).lock.release(owner.e.region, owner.slot, None);
            faults::reached(Moment::Released);
        }
    }

    /// The locks within all writes are released (INV-SOME).
    pub fn note_released(&mut self) {
        self.some.locks = false;
        let left = self.if_some(self.some.locks, |w| w.locks);
        debug_assert_eq!(left, 0);
    }

    /// An own insert that will never be. Entries of other indexes may point to it until VACUUM.
    /// `left`: see [`WriteSet::remove_entries`].
    pub fn kill_insert(&self, owner: &Owner, w: &Write, left: usize) {
        w.r.rec.writer.store(0, Ordering::SeqCst);
        w.r.rec.set_head(std::ptr::null_mut());
        w.r.table.dead.fetch_add(1, Ordering::Relaxed);
        // INV-DEAD: from *dead* on VACUUM may free the record.
        let marked = !self.remove_entries(owner, w, left);
        w.r.rec.state.store(crate::record::REC_DEAD, Ordering::Release);
        if !marked {
            w.r.table.enqueue_dead(w.r.no, w.r.rec);
        }
    }

    /// What the queue of retired memory must have room for: each write retires one version at most,
    /// published or undone; entries that are removed; and what was promised.
    pub fn owed(&self) -> u64 {
        self.needed(self.all.len()) + self.entries.room()
    }

    /// The same without entries, if so many writes have not retired their versions yet.
    pub(super) fn needed(&self, left: usize) -> u64 {
        left as u64 + 8 + self.promised
    }

    /// See [`super::Txn::make_room`].
    pub fn promise(&mut self, owner: &Owner, n: u64) -> Result<(), OutOfMemory> {
        let before = self.promised;
        self.promised = before.max(n);
        let room = RetireQueue::reserve(&owner.e, owner.slot, self.owed());
        room.inspect_err(|_| self.promised = before)
    }

    /// A prepared transaction is taken over: the room that was promised is in its slot's queue.
    pub fn promise_again(&mut self, n: u64) {
        self.promised = n;
    }

    /// The transaction has ended: the queue needs room only for what was promised.
    pub fn end_room(&mut self, owner: &Owner) {
        RetireQueue::trim(&owner.e, owner.slot, std::mem::take(&mut self.promised));
    }

    /// The transaction has ended.
    pub fn clear(&mut self) {
        debug_assert!(self.all.iter().all(|w| !w.locks));
        self.all.clear();
        self.latest.clear();
        self.entries.clear();
        (self.marks, self.sorted, self.permanent, self.some) = (0, 0, false, Kinds::default());
        self.inserted.clear();
        self.linked = 0;
    }
}

impl Owner {
    /// An own version that no transaction will see any more. Room in the queue was reserved.
    pub(super) fn retire_version(&self, v: NonNull<Version>) {
        // SAFETY: INV-RETIRE: it is ours, and not retired yet; readers that reached it are pinned.
        unsafe { v.as_ref() }.set_stamp(crate::csn::Stamp::ABORTED);
        RetireQueue::push_loose(&self.e, self.slot, v.cast(), self.e.now()); // INV-LOOSE
    }
}
