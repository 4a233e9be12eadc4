//! Registration: the keys that a transaction writes, in the ranges of every index of their tables.
//!
//! [`Txn::plan_registrations`] does all that compares keys or allocates. Then the commit says that
//! it is under way, looks again which ranges there are, and registers.

use super::parts::Written;
use super::write_set::WriteSet;
use super::{Owner, Txn, Write, WriteKind};
use crate::csn::Stamp;
use crate::error::Error;
use crate::faults::{self, Fault};
use crate::partition::Partition;
use crate::platform::Platform;
use crate::range::{Columns, Effect, IndexRanges, List, RangeSet, Registered, Subject, INLINE_KEY};
use crate::retire::RetireQueue;
use crate::table::Table;
use std::ptr::NonNull;

/// The key of a buffered write in an index.
#[derive(Clone, Copy)]
pub(super) struct Note {
    ranges: &'static IndexRanges,
    /// A piece of `Registrations::keys`; `None`: the row is not in the index.
    key: Option<(usize, usize)>,
    /// The next note of the write, + 1.
    next: u32,
}

/// A registration to be made.
#[derive(Clone, Copy)]
struct Planned {
    set: &'static RangeSet,
    no: u32,
    /// A piece of `Registrations::keys`; `None`: every key of the range.
    key: Option<(usize, usize)>,
    /// What the write does.
    effect: Effect,
    /// The block of a long key, ours until the registration has it.
    block: *mut u8,
}

/// Ranges that the plan knows, with the sets that it registers in.
struct Known {
    ranges: &'static IndexRanges,
    sets: [Option<&'static RangeSet>; 2],
    /// Is there a write without a known key?
    unknown: bool,
    /// Were they dormant when the plan was made? Then they have no sets in it.
    dormant: bool,
}

/// What a commit will register.
#[derive(Default)]
pub(super) struct Plan {
    tables: Vec<&'static Table>,
    known: Vec<Known>,
    all: Vec<Planned>,
    /// Where inserts register: the partition, the first record and the last one.
    partitions: Vec<(&'static Partition, u64, u64)>,
    /// Commits in tables with ranges.
    commits: u32,
}

/// Commits of a slot between two looks whether ranges are needed.
const LOOK: u32 = if cfg!(feature = "faults") { 1 } else { 256 };

fn same<T>(a: Option<&T>, b: Option<&T>) -> bool {
    a.map(std::ptr::from_ref) == b.map(std::ptr::from_ref)
}

impl Plan {
    fn add_table(&mut self, t: &'static Table) {
        if !self.tables.iter().rev().any(|q| std::ptr::eq(*q, t)) {
            self.tables.push(t);
        }
    }
    /// Where these ranges are among the known ones.
    fn known(&mut self, ranges: &'static IndexRanges) -> usize {
        self.known.iter().position(|k| std::ptr::eq(k.ranges, ranges)).unwrap_or_else(|| {
            let dormant = ranges.is_dormant();
            let sets = if dormant { [None; 2] } else { ranges.sets() };
            self.known.push(Known { ranges, sets, unknown: false, dormant });
            self.known.len() - 1
        })
    }
    /// Must a registration without a key be made too? Asked after the commit has said that it is
    /// under way (INV-REST).
    fn needs_unknown(&self, ranges: &'static IndexRanges) -> bool {
        if ranges.is_dormant() {
            return false;
        }
        let Some(k) = self.known.iter().find(|k| std::ptr::eq(k.ranges, ranges)) else { return true };
        // Also for a set that appeared since: the planned registrations are not in it.
        let ignored = faults::on(Fault::NewSetIgnored);
        k.unknown || !ignored && ranges.sets().iter().flatten().any(|s| !k.sets.iter().any(|t| same(Some(*s), *t)))
    }

    /// The ranges in which a write without its key must be registered.
    fn missing(&self) -> Vec<&'static IndexRanges> {
        let there = self.tables.iter().flat_map(|t| t.ranged.iter());
        there.filter(|r| self.needs_unknown(r)).collect()
    }

    /// A transaction that writes many keys of one range registers once for all of the range, so
    /// that it does not wrap the list. Updates in place alone name the columns of all of them
    /// (INV-COLUMNS).
    fn collapse(&mut self) {
        let many = |k: &Known| k.sets.iter().flatten().any(|s| self.all.len() > (s.list_size() / 4) as usize);
        if !self.known.iter().any(many) {
            return;
        }
        let place = |r: &Planned| (std::ptr::from_ref(r.set) as usize, r.no);
        self.all.sort_by_key(place);
        let mut kept = 0;
        let mut at = 0;
        while at < self.all.len() {
            let first = self.all[at];
            let n = self.all[at..].iter().take_while(|r| place(r) == place(&first)).count();
            if n > (first.set.list_size() / 4) as usize {
                let only_first = faults::on(Fault::FirstOfRangeOnly);
                let others = self.all[at + 1..at + n].iter().filter(|_| !only_first);
                let effect = others.fold(first.effect, |all, r| all.and(r.effect));
                self.all[kept] = Planned { key: None, effect, ..first };
                kept += 1;
            } else {
                self.all.copy_within(at..at + n, kept);
                kept += n;
            }
            at += n;
        }
        self.all.truncate(kept);
    }

    /// Gives the lists in which it will register their entries (INV-ROOM). Where there is no memory
    /// for them, the writes count as those of unknown keys. The region is asked no more then: it is
    /// full, and each look at all of it takes long.
    fn give_entries(&mut self, owner: &Owner) {
        let Plan { all, known, .. } = self;
        let mut is_full = false;
        all.retain(|r| {
            let has = r.set.has_entries(r.no) || !is_full && r.set.give_entries(&owner.e, owner.slot, r.no);
            if !has {
                is_full = true;
                let of_it = |k: &&mut Known| k.sets.iter().any(|s| same(*s, Some(r.set)));
                known.iter_mut().filter(of_it).for_each(|k| k.unknown = true);
            }
            has
        });
    }

    /// The partitions into which the writes insert, with the first and the last record of each.
    fn add_partitions(&mut self, writes: &WriteSet) {
        for w in writes.inserts() {
            let partition = w.r.partition();
            match self.partitions.iter_mut().find(|q| std::ptr::eq(q.0, partition)) {
                Some((_, first, last)) => (*first, *last) = ((*first).min(w.r.no), (*last).max(w.r.no)),
                None => self.partitions.push((partition, w.r.no, w.r.no)),
            }
        }
    }
}

/// The registrations of a transaction: the keys of its writes, the plan of its commit, and what the
/// commit has registered.
#[derive(Default)]
pub(super) struct Registrations {
    notes: Vec<Note>,
    /// Bytes of noted keys.
    keys: Vec<u8>,
    plan: Plan,
    registered: Vec<Registered>,
}

impl Registrations {
    /// Notes the key of a write in an index. `last`: the last note of the write so far, + 1.
    /// Returns what is the last one now.
    fn note(&mut self, ranges: &'static IndexRanges, key: Option<&[u8]>, last: u32) -> u32 {
        let key = key.map(|k| {
            self.keys.extend_from_slice(k);
            (self.keys.len() - k.len(), k.len())
        });
        self.notes.push(Note { ranges, key, next: last });
        self.notes.len() as u32
    }

    /// A write was undone, whose last note is this. Its notes are forgotten if they are the last
    /// ones. Late ones are not, and wait for the end.
    pub fn forget_notes(&mut self, mut last: u32) {
        while last > 0 && last as usize == self.notes.len() {
            let Some(note) = self.notes.pop() else { return };
            if let Some((at, _)) = note.key {
                self.keys.truncate(at);
            }
            last = note.next;
        }
    }

    /// What was noted in an index of the record of a write.
    fn noted(&self, writes: &WriteSet, write: usize, ranges: &'static IndexRanges) -> Option<Note> {
        let mut at = Some(write);
        while let Some(i) = at {
            let w = writes.at(i);
            let mut n = w.notes;
            while let Some(k) = n.checked_sub(1) {
                let note = self.notes[k as usize];
                if std::ptr::eq(note.ranges, ranges) {
                    return Some(note);
                }
                n = note.next;
            }
            // The key of a record does not change.
            at = w.previous().map(|i| i as usize);
        }
        None
    }

    /// Begins a plan. Has one of the tables that are written an index with ranges?
    fn begin_plan(&mut self, writes: &WriteSet) -> bool {
        debug_assert!(self.plan.all.is_empty() && self.plan.tables.is_empty());
        writes.tables().for_each(|t| self.plan.add_table(t));
        self.plan.tables.iter().any(|t| !t.ranged.is_empty())
    }

    /// Plans which keys go into which ranges. Compares keys, allocates, and may unwind.
    fn plan(&mut self, owner: &Owner, p: &dyn Platform, writes: &WriteSet) {
        // Ranges in which nothing is to be registered are known too: what appears from now on is
        // not.
        let looks = self.is_time_to_look();
        for i in 0..self.plan.tables.len() {
            for ranges in self.plan.tables[i].ranged.iter() {
                if looks {
                    ranges.check_use(&owner.e, owner.slot, p);
                }
                self.plan.known(ranges);
            }
        }
        if self.plan.known.iter().all(|k| k.dormant) {
            return; // those that come or awake from now on take all writes for ones of unknown keys
        }
        for (i, w) in writes.finals() {
            // No other transaction ever sees a row that we have inserted and deleted.
            if !(w.base.is_none() && w.kind == WriteKind::Delete) {
                self.plan_write(owner, p, writes, i);
            }
        }
        self.plan.collapse();
        self.plan.give_entries(owner);
    }

    /// Now and then a commit looks whether the ranges are needed.
    fn is_time_to_look(&mut self) -> bool {
        self.plan.commits = self.plan.commits.wrapping_add(1);
        self.plan.commits.is_multiple_of(LOOK)
    }

    fn plan_write(&mut self, owner: &Owner, p: &dyn Platform, writes: &WriteSet, i: usize) {
        let effect = writes.effect(owner.slot, i);
        for ranges in writes.at(i).r.table.ranged.iter() {
            let at = self.plan.known(ranges);
            if self.plan.known[at].dormant {
                continue;
            }
            let note = self.noted(writes, i, ranges);
            let known = &mut self.plan.known[at];
            if faults::on(Fault::IndexForgotten) && ranges.index & 1 == 0 {
                continue;
            }
            let Some(note) = note else {
                known.unknown = true;
                continue;
            };
            let Some((at, len)) = note.key else { continue };
            for set in known.sets.into_iter().flatten() {
                let no = set.locate(p, ranges.order, &self.keys[at..at + len]);
                let block = std::ptr::null_mut();
                self.plan.all.push(Planned { set, no, key: note.key, effect, block });
            }
        }
    }

    /// Forgets keys and plan, and plans to register the writes without their keys. That needs no
    /// memory of ranges.
    pub fn plan_without_keys(&mut self, owner: &Owner, writes: &WriteSet) {
        self.clear(owner);
        self.begin_plan(writes);
    }

    /// Allocates memory for long keys, and room for the blocks that the registrations displace.
    /// `owed`: room that the queue of retired memory needs otherwise.
    fn give_blocks(&mut self, owner: &Owner, owed: u64) -> Result<(), Error> {
        RetireQueue::reserve(&owner.e, owner.slot, owed + self.plan.all.len() as u64)?;
        for r in &mut self.plan.all {
            let Some((at, len)) = r.key.filter(|k| k.1 > INLINE_KEY) else { continue };
            let block = owner.e.region.alloc(owner.slot as usize, len)?;
            // SAFETY: INV-KEY: fresh memory of that size, which is ours until a registration has
            // it.
            unsafe { block.as_ptr().copy_from_nonoverlapping(self.keys[at..].as_ptr(), len) };
            r.block = block.as_ptr();
        }
        self.registered.reserve(self.plan.all.len() + self.plan.known.len() + 1);
        Ok(())
    }

    /// The commit is under way. A transaction that gives an index of its tables ranges from now on
    /// waits for its end (INV-RANGES).
    fn enter_commit(&self, owner: &Owner) {
        let tables = self.plan.tables.iter().map(|t| t.id);
        owner.shared_slot().commits.enter(tables);
    }

    /// The ranges in which a write without its key must be registered. INV-RANGES: the commit says
    /// that it is under way before it looks.
    fn enter_and_look(&self, owner: &Owner) -> Vec<&'static IndexRanges> {
        if faults::on(Fault::LookBeforeCommitting) {
            let missing = self.plan.missing();
            std::thread::sleep(std::time::Duration::from_micros(50));
            self.enter_commit(owner);
            return missing;
        }
        self.enter_commit(owner);
        self.plan.missing()
    }

    /// Step 2 of the commit. Neither fails nor sleeps.
    pub fn register(&mut self, owner: &Owner, writes: &WriteSet) {
        let tag = owner.tag();
        for ranges in self.enter_and_look(owner) {
            self.registered.push(ranges.unknown().register(tag));
        }
        for r in &mut self.plan.all {
            let list: List<'static, _> = r.set.list(r.no);
            let subject = match r.key {
                None => Subject::Any,
                Some((_, len)) if !r.block.is_null() => Subject::Long(r.block, len as u32),
                Some((at, len)) => Subject::Short(&self.keys[at..at + len]),
            };
            let (pos, old) = list.register(tag, |e| e.fill(subject, r.effect));
            self.registered.push(list.registered(pos));
            if let Some(displaced) = old {
                r.block = std::ptr::null_mut();
                if let Some(b) = NonNull::new(displaced) {
                    // The entry has another key already (INV-RETIRE). `give_blocks` has made room.
                    RetireQueue::push_loose(&owner.e, owner.slot, b, owner.e.now());
                    // INV-LOOSE
                }
            }
        }
        self.plan.add_partitions(writes);
        for &(partition, first, last) in &self.plan.partitions {
            let last = if faults::on(Fault::NamesOneRecord) { first } else { last };
            self.registered.push(partition.ring.register(tag, (first, last)));
        }
    }

    /// Finishes all registrations: with the CSN of the commit, or as aborted.
    pub fn finish(&mut self, owner: &Owner, stamp: Stamp) {
        let tag = owner.tag();
        for r in self.registered.drain(..) {
            r.finish(tag, stamp);
        }
    }

    /// The transaction has ended. Forgets notes and plan; frees blocks that no list took.
    #[inline(always)]
    pub fn clear(&mut self, owner: &Owner) {
        for r in self.plan.all.drain(..) {
            if let Some(b) = NonNull::new(r.block) {
                // SAFETY: INV-KEY: allocated for this plan, and reachable from no entry.
                unsafe { owner.e.region.free(owner.slot as usize, b) };
            }
        }
        self.plan.tables.clear();
        self.plan.known.clear();
        self.plan.partitions.clear();
        super::clear_vec(&mut self.plan.all);
        super::clear_vec(&mut self.notes);
        super::clear_vec(&mut self.keys);
        self.registered.clear();
    }
}

impl Txn {
    /// The key of buffered write `write` in an index with ranges; `None`: the row is not in the
    /// index. A delete has the key of the row that it deletes, and an insert that of the new row.
    /// An update, which is of columns in no index, has that of the row. One note of a record in an
    /// index is enough.
    ///
    /// A write without a note is registered as a write of an unknown key. That is sound, but every
    /// scan of the index conflicts with it. Where protocols lock ranges, the key's range is locked
    /// for writing, at every level.
    pub fn note_key(
        &mut self,
        p: &dyn Platform,
        write: u32,
        ranges: &'static IndexRanges,
        key: Option<&[u8]>,
    ) -> Result<(), Error> {
        let Some(Write { r, notes, kind, changed, .. }) = self.writes.get(write as usize) else { return Ok(()) };
        let effect = match kind {
            WriteKind::Insert => Effect::New,
            WriteKind::Delete => Effect::Gone,
            WriteKind::Update => Effect::Changes(changed),
        };
        if let Some(key) = key.filter(|_| self.followed(r.partition()).locks_ranges()) {
            self.hold();
            let set = ranges.current();
            let no = set.locate(p, ranges.order, key);
            let written = Written { ranges, range: set.range(no), key, effect, r };
            // Before the range is locked: a transaction that has read there may yet lock it as a
            // whole. Later readers do not wait either: what they would wait for conflicts with
            // their predicates when it is over.
            self.await_parts(p, written)?;
            self.lock_to_write(p, (ranges, set, no), effect, r)?;
        }
        self.writes.set_notes(write, self.registrations.note(ranges, key, notes));
        Ok(())
    }

    /// An update in place changes no other columns than these (INV-COLUMNS). Without it the update
    /// is taken for one that changes all. Call it before [`Txn::note_key`].
    pub fn note_changed(&mut self, write: u32, columns: Columns) {
        self.writes.set_changed(write, columns);
    }

    /// The number of the write buffered last.
    pub fn newest_write(&self) -> Option<u32> {
        (self.writes.len() as u32).checked_sub(1)
    }

    /// Before step 2: which keys go into which ranges. Compares keys, allocates, and may unwind.
    #[inline(always)]
    pub(super) fn plan_registrations(&mut self, p: &dyn Platform) -> Result<(), Error> {
        if !self.registrations.begin_plan(&self.writes) {
            return Ok(());
        }
        self.hold();
        self.registrations.plan(&self.owner, p, &self.writes);
        let owed = self.writes.owed();
        self.registrations.give_blocks(&self.owner, owed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::range::TRIES;
    use crate::threads::{Block, Threads};

    #[test]
    fn a_full_region_is_asked_once_by_a_commit() {
        let b = Block::new(16 << 20, 2).expect("a block");
        let (e, p) = (b.engine, Threads::new(b.engine, 0, Default::default()));
        let keys: Vec<[u8; 8]> = (1..100u64).map(u64::to_be_bytes).collect();
        let cuts: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
        let set = RangeSet::create(&e, 0, &p, 0, &cuts, 65536).expect("room");
        assert!(set.give_entries(&e, 0, 70));
        let mut taken = Vec::new();
        while let Ok(mem) = e.region.alloc(1, 1 << 20) {
            taken.push(mem);
        }
        let planned = |no| Planned { set, no, key: None, effect: Effect::New, block: std::ptr::null_mut() };
        let mut plan = Plan { all: (0..100).map(planned).collect(), ..Default::default() };
        TRIES.set(0);
        plan.give_entries(&Owner::new(e, 0));
        assert_eq!(TRIES.get(), 1);
        assert_eq!(plan.all.iter().map(|r| r.no).collect::<Vec<_>>(), [70], "what has entries is registered there");
        for mem in taken {
            // SAFETY: INV-M1: allocated above, and given back once.
            unsafe { e.region.free(1, mem) };
        }
        // With room again, the next commit has its lists.
        plan.all = vec![planned(3), planned(4)];
        plan.give_entries(&Owner::new(e, 0));
        assert_eq!(plan.all.len(), 2);
    }
}
