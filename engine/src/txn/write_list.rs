//! The list of buffered writes. A statement may write millions of rows, and the list is private
//! memory that is new to the process. So it is small: a row has 40 bytes in it. What the writes of
//! a statement in a table share stands beside the list once, and so does what few writes have.

use super::{RecordRef, Write, WriteKind};
use crate::primitive::{populate, prefetch};
use crate::range::Columns;
use crate::record::{Record, Version};
use crate::table::Table;
use std::ops::Range;
use std::ptr::NonNull;

/// From so many buffered writes on, the memory of their list is mapped ahead.
const MANY: usize = 1024;

/// A [`Write`], but for what stands beside the list.
struct Item {
    rec: &'static Record,
    version: NonNull<Version>,
    base: Option<NonNull<Version>>,
    no: u32,
    /// Where the rest is among what is shared. It is no less than that of the item before.
    shared: u32,
    /// Below [`BESIDE`]: [`Write::entry`], and nothing else is to be told. Else where the rest is.
    more: u32,
    kind: WriteKind,
    superseded: bool,
    locks: bool,
    was: u8,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Item>() == 40, "a transaction has one for each row that it writes");
const _: () = assert!(crate::table::MAX_RECORDS <= u32::MAX as u64);

/// From here on `Item::more` is a place in `WriteList::more`.
const BESIDE: u32 = 1 << 31;

/// What writes share that were buffered one after the other.
#[derive(Clone, Copy)]
struct Shared {
    table: &'static Table,
    cid: u32,
    depth: u32,
    xid: u32,
}

impl Shared {
    #[inline]
    fn is_of(&self, w: &Write) -> bool {
        std::ptr::eq(self.table, w.r.table) && (self.cid, self.depth, self.xid) == (w.cid, w.depth, w.xid)
    }
}

/// What few writes have.
#[derive(Clone, Copy)]
struct More {
    follows: u32,
    notes: u32,
    entry: u32,
    changed: Columns,
}

/// The writes of a transaction, in the order in which they were buffered.
#[derive(Default)]
pub(super) struct WriteList {
    items: Vec<Item>,
    shared: Vec<Shared>,
    more: Vec<More>,
    /// For so many writes the list's memory was mapped ahead, or needs not be.
    mapped: usize,
}

impl WriteList {
    #[inline]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    #[inline(always)]
    fn whole(&self, i: &Item) -> Write {
        let s = &self.shared[i.shared as usize];
        let more = self.more_of(i);
        Write {
            r: RecordRef { table: s.table, no: i.no.into(), rec: i.rec },
            kind: i.kind,
            version: i.version,
            base: i.base,
            follows: more.follows,
            cid: s.cid,
            depth: s.depth,
            xid: s.xid,
            superseded: i.superseded,
            locks: i.locks,
            was: i.was,
            changed: more.changed,
            notes: more.notes,
            entry: more.entry,
        }
    }

    #[inline(always)]
    fn more_of(&self, i: &Item) -> More {
        match i.more.checked_sub(BESIDE) {
            None => More { follows: 0, notes: 0, entry: i.more, changed: Columns::ALL },
            Some(at) => self.more[at as usize],
        }
    }

    /// The write of a number that the list has.
    #[inline(always)]
    pub fn at(&self, n: usize) -> Write {
        self.whole(&self.items[n])
    }

    /// The write of this number, if there is one.
    #[inline(always)]
    pub fn get(&self, n: usize) -> Option<Write> {
        self.items.get(n).map(|i| self.whole(i))
    }

    #[inline(always)]
    pub fn last(&self) -> Option<Write> {
        self.items.last().map(|i| self.whole(i))
    }

    /// All writes.
    #[inline(always)]
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Write> + ExactSizeIterator + use<'_> {
        self.some(0..self.items.len())
    }

    /// The writes of these numbers, which the list has.
    #[inline(always)]
    pub fn some(&self, of: Range<usize>) -> impl DoubleEndedIterator<Item = Write> + ExactSizeIterator + use<'_> {
        self.items[of].iter().map(|i| self.whole(i))
    }

    /// The write of a record of this number, if one of the first `sorted` writes is that. They are
    /// in the order of their records, of one table.
    pub fn search(&self, sorted: usize, no: u64) -> Option<usize> {
        self.items[..sorted].binary_search_by_key(&no, |i| i.no.into()).ok()
    }

    /// The record of a write.
    #[inline(always)]
    pub fn record(&self, n: usize) -> &'static Record {
        self.items[n].rec
    }

    #[inline(always)]
    pub fn push(&mut self, w: Write) {
        if !self.shared.last().is_some_and(|s| s.is_of(&w)) {
            self.share(&w);
        }
        if self.items.len() >= self.mapped {
            self.map_more();
        }
        let is_plain = w.follows | w.notes == 0 && w.changed == Columns::ALL && w.entry < BESIDE;
        let more = if is_plain { w.entry } else { self.put_beside(&w) };
        self.items.push(Item {
            rec: w.r.rec,
            version: w.version,
            base: w.base,
            no: w.r.no as u32,
            shared: self.shared.len() as u32 - 1,
            more,
            kind: w.kind,
            superseded: w.superseded,
            locks: w.locks,
            was: w.was,
        });
    }

    #[inline(never)]
    fn share(&mut self, w: &Write) {
        self.shared.push(Shared { table: w.r.table, cid: w.cid, depth: w.depth, xid: w.xid });
    }

    #[inline(never)]
    fn put_beside(&mut self, w: &Write) -> u32 {
        self.push_more(More { follows: w.follows, notes: w.notes, entry: w.entry, changed: w.changed })
    }

    #[cold]
    fn push_more(&mut self, more: More) -> u32 {
        assert!(self.more.len() < BESIDE as usize, "a transaction has too many writes");
        self.more.push(more);
        BESIDE + (self.more.len() as u32 - 1)
    }

    /// The list of many writes is new memory: maps some of it ahead, in proportion to its length.
    #[cold]
    fn map_more(&mut self) {
        let n = self.items.len();
        if n < MANY {
            self.mapped = MANY;
            return;
        }
        self.items.reserve(1);
        let more = (n / 8).min(self.items.capacity() - n);
        self.mapped = n + more;
        let end = self.items.as_mut_ptr_range().end;
        populate(end, end.wrapping_add(more));
    }

    /// Changes what few writes have.
    #[inline(always)]
    fn change(&mut self, n: usize, change: impl FnOnce(&mut More)) {
        let mut more = self.more_of(&self.items[n]);
        change(&mut more);
        let is_plain = more.follows | more.notes == 0 && more.changed == Columns::ALL && more.entry < BESIDE;
        let item = &mut self.items[n];
        match item.more.checked_sub(BESIDE) {
            Some(at) => self.more[at as usize] = more,
            None if is_plain => item.more = more.entry,
            None => self.items[n].more = self.push_more(more),
        }
    }

    /// The columns that an update in place changes.
    pub fn set_changed(&mut self, n: usize, changed: Columns) {
        self.change(n, |more| more.changed = changed);
    }

    /// The last note of a write.
    pub fn set_notes(&mut self, n: usize, last: u32) {
        self.change(n, |more| more.notes = last);
    }

    /// The last entry of an own insert.
    #[inline]
    pub fn set_entry(&mut self, n: usize, entry: u32) {
        self.change(n, |more| more.entry = entry);
    }

    /// Is there a later write of the same record?
    pub fn set_superseded(&mut self, n: usize, is: bool) {
        self.items[n].superseded = is;
    }

    /// Is there a later write of the same record?
    #[inline(always)]
    pub fn is_superseded(&self, n: usize) -> bool {
        self.items[n].superseded
    }

    /// Takes the lock out of a write; was one within it?
    #[inline(always)]
    pub fn take_lock(&mut self, n: usize) -> bool {
        std::mem::take(&mut self.items[n].locks)
    }

    /// Writes of subtransactions at `depth` and deeper are those of its parent.
    pub fn merge(&mut self, depth: u32) {
        for s in self.shared.iter_mut().rev().take_while(|s| s.depth >= depth) {
            s.depth = depth - 1;
        }
    }

    /// Keeps the first `n` writes.
    pub fn truncate(&mut self, n: usize) {
        while self.items.len() > n {
            let Some(item) = self.items.pop() else { return };
            if item.more.checked_sub(BESIDE).is_some_and(|at| at as usize + 1 == self.more.len()) {
                self.more.pop();
            }
        }
        self.shared.truncate(self.items.last().map_or(0, |i| i.shared as usize + 1));
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        super::clear_vec(&mut self.items);
        super::clear_vec(&mut self.shared);
        super::clear_vec(&mut self.more);
        self.mapped = MANY;
    }

    /// Prefetches the record and the version of a write, if there is one of this number. Decides
    /// nothing.
    #[inline(always)]
    pub fn announce(&self, n: usize) {
        if let Some(i) = self.items.get(n) {
            prefetch(i.rec);
            prefetch(i.version.as_ptr());
        }
    }

    /// The same of the record alone.
    #[inline(always)]
    pub fn announce_record(&self, n: usize) {
        if let Some(i) = self.items.get(n) {
            prefetch(i.rec);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::index::Reuse;
    use crate::threads::Block;
    use crate::{Policy, Protocol, ProtocolSet};

    type Bits = (usize, u64, usize, u8, usize, [u32; 4], [bool; 2], u8, u32, [u32; 2]);

    fn bits(w: &Write) -> Bits {
        (
            std::ptr::from_ref(w.r.table).addr(),
            w.r.no,
            std::ptr::from_ref(w.r.rec).addr(),
            w.kind as u8,
            w.base.map_or(0, |b| b.addr().get()) ^ w.version.addr().get(),
            [w.follows, w.cid, w.depth, w.xid],
            [w.superseded, w.locks],
            w.was,
            w.changed.bits() as u32,
            [w.notes, w.entry],
        )
    }

    /// The list is at all times what a plain list of the same writes would be.
    #[test]
    fn a_small_list_has_all_that_was_put_in() {
        let block = Block::new(16 << 20, 1).expect("a block");
        let e = block.engine;
        let tables = [1, 2].map(|n| {
            let set = ProtocolSet::of(Protocol::Occ);
            let map = Table::new_map(&e, 0, 1, 0, b"", set, Policy::Wait).expect("a map");
            let table = Table::create(&e, 0, [n; 4], map).expect("a table");
            table.create_primary(&e, 0, 0, Reuse::AtOnce).expect("an index");
            table
        });
        // SAFETY: all-zero memory is a free record.
        let records: &'static [Record] = (0..64).map(|_| unsafe { std::mem::zeroed() }).collect::<Vec<_>>().leak();
        let place = |n: u64| NonNull::new(std::ptr::without_provenance_mut(8 * n as usize + 8)).expect("not null");
        let mut state = 1_u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 33) % n
        };
        let (mut list, mut plain) = (WriteList::default(), Vec::<Write>::new());
        let (mut cid, mut depth, mut most) = (0, 1, 0);
        for step in 0..40_000 {
            match below(24) {
                0 => cid += 1,
                1 if depth < 5 => depth += 1,
                2 if depth > 1 => {
                    list.merge(depth);
                    plain.iter_mut().filter(|w| w.depth >= depth).for_each(|w| w.depth = depth - 1);
                    depth -= 1;
                }
                3 if depth > 1 => {
                    let left = plain.iter().position(|w| w.depth >= depth).unwrap_or(plain.len());
                    list.truncate(left);
                    plain.truncate(left);
                    depth -= 1;
                }
                4 if below(200) == 0 => {
                    list.clear();
                    plain.clear();
                    depth = 1;
                }
                n @ 5..=10 if !plain.is_empty() => {
                    let (at, to) = (below(plain.len() as u64) as usize, below(9) as u32);
                    let w = &mut plain[at];
                    match n {
                        5 => {
                            w.changed = Columns::from_bits(to.into());
                            list.set_changed(at, w.changed);
                        }
                        6 => {
                            w.notes = to;
                            list.set_notes(at, to);
                        }
                        7..=8 => {
                            w.entry = if n == 7 { to } else { u32::MAX - to };
                            list.set_entry(at, w.entry);
                        }
                        9 => {
                            w.superseded = to > 4;
                            list.set_superseded(at, w.superseded);
                        }
                        _ => assert_eq!(std::mem::take(&mut w.locks), list.take_lock(at)),
                    }
                }
                _ => {
                    let no = below(64);
                    let r = RecordRef { table: tables[usize::from(below(30) == 0)], no, rec: &records[no as usize] };
                    let kinds = [WriteKind::Insert, WriteKind::Update, WriteKind::Delete];
                    let base = Some(place(below(100))).filter(|_| below(4) > 0);
                    let kind = kinds[below(3) as usize];
                    let mut w = Write::new(r, kind, place(below(100)), base, (cid, depth), below(2) as u32);
                    (w.locks, w.was) = (below(2) == 0, below(80) as u8);
                    if below(9) == 0 {
                        (w.follows, w.entry) = (below(3) as u32, below(3) as u32);
                    }
                    list.push(w);
                    plain.push(w);
                }
            }
            assert_eq!((list.len(), list.is_empty()), (plain.len(), plain.is_empty()), "{step}");
            assert_eq!(list.last().as_ref().map(bits), plain.last().map(bits), "{step}");
            let at = below(plain.len() as u64 + 3) as usize;
            assert_eq!(list.get(at).as_ref().map(bits), plain.get(at).map(bits), "{step}");
            most = most.max(list.len());
            if step % 512 == 0 {
                assert!(list.iter().map(|w| bits(&w)).eq(plain.iter().map(bits)), "{step}");
            }
        }
        assert!(most > 2 * MANY, "its memory was mapped ahead");
    }
}
