//! Registration: the keys that a transaction writes, in the ranges of every index of their tables.
//!
//! What compares keys or allocates happens in [`Txn::plan_registrations`]; then the commit says that it is under way,
//! looks again which ranges there are, and registers.

use super::parts::Written;
use super::write::WriteKind;
use super::Txn;
use crate::csn::Stamp;
use crate::error::Error;
use crate::faults::{self, Fault};
use crate::lock::Mode;
use crate::partition::Partition;
use crate::platform::Platform;
use crate::range::{IndexRanges, List, RangeSet, Subject, INLINE_KEY};
use crate::retire::RetireQueue;
use crate::table::Table;
use std::ptr::NonNull;

/// The key of a buffered write in an index.
#[derive(Clone, Copy)]
pub(super) struct Note {
    ranges: &'static IndexRanges,
    /// A piece of `Txn::keys`; `None`: the row is not in the index.
    key: Option<(usize, usize)>,
    /// The next note of the write, + 1.
    next: u32,
}

/// A registration to be made.
#[derive(Clone, Copy)]
struct Planned {
    set: &'static RangeSet,
    no: u32,
    /// A piece of `Txn::keys`; `None`: every key of the range.
    key: Option<(usize, usize)>,
    /// Was the row there before the transaction?
    existing: bool,
    /// The block of a long key, ours until the registration has it.
    block: *mut u8,
}

/// Ranges that the plan knows, with the sets that it registers in.
struct Known {
    ranges: &'static IndexRanges,
    sets: [Option<&'static RangeSet>; 2],
    /// Is there a write without a known key?
    unknown: bool,
    /// Were they asleep when the plan was made? Then they have no sets in it.
    asleep: bool,
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
            let asleep = ranges.is_dormant();
            let sets = if asleep { [None; 2] } else { ranges.sets() };
            self.known.push(Known { ranges, sets, unknown: false, asleep });
            self.known.len() - 1
        })
    }
    /// Must a registration without a key be made too? (INV-REST: asked after the commit has said that it is under way.)
    fn needs_unknown(&self, ranges: &'static IndexRanges) -> bool {
        if ranges.is_dormant() {
            return false;
        }
        let Some(k) = self.known.iter().find(|k| std::ptr::eq(k.ranges, ranges)) else { return true };
        // A set that appeared since, too: the planned registrations are not in it.
        let ignored = faults::on(Fault::NewSetIgnored);
        k.unknown || !ignored && ranges.sets().iter().flatten().any(|s| !k.sets.iter().any(|t| same(Some(*s), *t)))
    }

    /// A transaction that writes many keys of one range registers once for all of it: it shall not wrap the list.
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
                self.all[kept] = Planned { key: None, ..first };
                kept += 1;
            } else {
                self.all.copy_within(at..at + n, kept);
                kept += n;
            }
            at += n;
        }
        self.all.truncate(kept);
    }
}

impl Txn {
    /// The key of buffered write `write` in an index with ranges; `None`: the row is not in the index. A delete has
    /// the key of the row that it deletes, an insert that of the new row, an update (of columns in no index) that of
    /// the row. One note of a record in an index is enough.
    ///
    /// A write without a note is registered as a write of an unknown key: sound, but every scan of the index
    /// conflicts with it. Where protocols lock ranges, the key's range is locked for writing, at every level.
    pub fn note_key(
        &mut self,
        p: &dyn Platform,
        write: u32,
        ranges: &'static IndexRanges,
        key: Option<&[u8]>,
    ) -> Result<(), Error> {
        let Some(&super::Write { r, notes, .. }) = self.writes.get(write as usize) else { return Ok(()) };
        if let Some(key) = key.filter(|_| self.followed(r.partition()).locks_ranges()) {
            self.hold();
            let set = ranges.current();
            let no = set.locate(p, ranges.order, key);
            let insert = self.writes[write as usize].kind == WriteKind::Insert;
            let written = Written { ranges, range: set.range(no), key, insert, r };
            // Before the range is locked: who has read there may lock it as a whole yet. Who reads there from now on does
            // not wait either: what it would wait for is a conflict with its predicate when it is over.
            self.await_parts(p, written)?;
            self.lock_range(p, (ranges, set, no), (Mode::Intent, 0), r.touch())?;
        }
        let key = key.map(|k| {
            self.keys.extend_from_slice(k);
            (self.keys.len() - k.len(), k.len())
        });
        self.notes.push(Note { ranges, key, next: notes });
        self.writes[write as usize].notes = self.notes.len() as u32;
        Ok(())
    }

    /// The number of the write buffered last.
    pub fn newest_write(&self) -> Option<u32> {
        (self.writes.len() as u32).checked_sub(1)
    }

    /// What was noted of a write's record in an index.
    fn noted(&self, write: usize, ranges: &'static IndexRanges) -> Option<Note> {
        let mut at = Some(write);
        while let Some(i) = at {
            let w = &self.writes[i];
            let mut n = w.notes;
            while let Some(k) = n.checked_sub(1) {
                let note = self.notes[k as usize];
                if std::ptr::eq(note.ranges, ranges) {
                    return Some(note);
                }
                n = note.next;
            }
            // The key of a record does not change.
            at = w.previous.map(|i| i as usize);
        }
        None
    }

    /// Before step 2: which keys go into which ranges. Compares, allocates, may unwind.
    pub(super) fn plan_registrations(&mut self, p: &dyn Platform) -> Result<(), Error> {
        let mut plan = std::mem::take(&mut self.plan);
        debug_assert!(plan.all.is_empty() && plan.tables.is_empty());
        for i in (0..self.writes.len()).filter(|&i| self.is_latest(i)) {
            plan.add_table(self.writes[i].r.table);
        }
        let any = plan.tables.iter().any(|t| !t.ranged.is_empty());
        self.plan = plan;
        if !any {
            return Ok(());
        }
        self.hold();
        // Also those in which nothing is to be registered: what appears from now on is not known.
        let looks = self.is_time_to_look();
        for i in 0..self.plan.tables.len() {
            for ranges in self.plan.tables[i].ranged.iter() {
                if looks {
                    ranges.check_use(&self.e, self.slot, p);
                }
                self.plan.known(ranges);
            }
        }
        for i in 0..self.writes.len() {
            let w = &self.writes[i];
            // Nobody ever sees a row that we have inserted and deleted.
            if self.is_latest(i) && !(w.base.is_none() && w.kind == WriteKind::Delete) {
                self.plan_write(p, i);
            }
        }
        self.plan.collapse();
        self.give_blocks()
    }

    /// Now and then a commit looks whether the ranges are needed.
    fn is_time_to_look(&mut self) -> bool {
        self.plan.commits = self.plan.commits.wrapping_add(1);
        self.plan.commits.is_multiple_of(LOOK)
    }

    fn plan_write(&mut self, p: &dyn Platform, i: usize) {
        let existing = self.writes[i].base.is_some();
        for ranges in self.writes[i].r.table.ranged.iter() {
            let at = self.plan.known(ranges);
            if self.plan.known[at].asleep {
                continue;
            }
            let note = self.noted(i, ranges);
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
                self.plan.all.push(Planned { set, no, key: note.key, existing, block });
            }
        }
    }

    /// Memory for long keys, and room for the blocks that the registrations displace.
    fn give_blocks(&mut self) -> Result<(), Error> {
        let room = self.owed() + self.plan.all.len() as u64;
        RetireQueue::reserve(&self.e, self.slot, room)?;
        for r in &mut self.plan.all {
            let Some((at, len)) = r.key.filter(|k| k.1 > INLINE_KEY) else { continue };
            let block = self.owner.e.region.alloc(self.owner.slot as usize, len)?;
            // SAFETY: fresh memory of that size.
            unsafe { block.as_ptr().copy_from_nonoverlapping(self.keys[at..].as_ptr(), len) };
            r.block = block.as_ptr();
        }
        self.registered.reserve(self.plan.all.len() + self.plan.known.len() + 1);
        Ok(())
    }

    /// The commit is under way: who gives an index of its tables ranges from now on waits for its end.
    pub(super) fn enter_commit(&self) {
        let tables = self.plan.tables.iter().map(|t| t.id);
        self.e.slots[self.slot as usize].commits.enter(tables);
    }
    /// It has ended, and everything registered is finished.
    pub(super) fn leave_commit(&self) {
        self.e.slots[self.slot as usize].commits.leave();
    }

    /// The ranges in which a write without its key must be registered.
    fn missing_in_plan(&self) -> Vec<&'static IndexRanges> {
        let there = self.plan.tables.iter().flat_map(|t| t.ranged.iter());
        there.filter(|r| self.plan.needs_unknown(r)).collect()
    }

    /// Step 2. Neither fails nor sleeps.
    pub(super) fn register(&mut self) {
        let tag = self.tag();
        let missing = if faults::on(Fault::LookBeforeCommitting) {
            let missing = self.missing_in_plan();
            std::thread::sleep(std::time::Duration::from_micros(50));
            self.enter_commit();
            missing
        } else {
            self.enter_commit();
            self.missing_in_plan()
        };
        for ranges in missing {
            self.registered.push(ranges.unknown().register(tag));
        }
        for i in 0..self.plan.all.len() {
            let r = self.plan.all[i];
            let list: List<'static, _> = r.set.list(r.no);
            let subject = match r.key {
                None => Subject::Any,
                Some((_, len)) if !r.block.is_null() => Subject::Long(r.block, len as u32),
                Some((at, len)) => Subject::Short(&self.keys[at..at + len]),
            };
            let (pos, old) = list.register(tag, |e| e.fill(subject, r.existing));
            self.registered.push(list.registered(pos));
            if let Some(displaced) = old {
                self.plan.all[i].block = std::ptr::null_mut();
                if let Some(b) = NonNull::new(displaced) {
                    // The entry has another key already (INV-RETIRE). Room was made in `give_blocks`.
                    RetireQueue::push(&self.e, self.slot, b, self.e.now());
                }
            }
        }
        self.register_inserts(tag);
    }

    /// Inserts, in the rings of their partitions.
    fn register_inserts(&mut self, tag: Stamp) {
        for w in self.writes.iter().filter(|w| w.kind == WriteKind::Insert) {
            let partition = w.r.partition();
            match self.plan.partitions.iter_mut().find(|q| std::ptr::eq(q.0, partition)) {
                Some((_, first, last)) => (*first, *last) = ((*first).min(w.r.no), (*last).max(w.r.no)),
                None => self.plan.partitions.push((partition, w.r.no, w.r.no)),
            }
        }
        for &(partition, first, last) in &self.plan.partitions {
            let last = if faults::on(Fault::NamesOneRecord) { first } else { last };
            self.registered.push(partition.ring.register(tag, (first, last)));
        }
    }

    /// Forgets the notes of a write, the last of which is the last of all.
    pub(super) fn forget_notes(&mut self, mut last: u32) {
        while last > 0 && last as usize == self.notes.len() {
            let Some(note) = self.notes.pop() else { return };
            if let Some((at, _)) = note.key {
                self.keys.truncate(at);
            }
            last = note.next;
        }
    }

    /// Forgets notes and plan; blocks that no list took are freed.
    pub(super) fn clear_notes(&mut self) {
        for r in self.plan.all.drain(..) {
            if let Some(b) = NonNull::new(r.block) {
                // SAFETY: allocated for this plan, and nobody saw it.
                unsafe { self.owner.e.region.free(self.owner.slot as usize, b) };
            }
        }
        self.plan.tables.clear();
        self.plan.known.clear();
        self.plan.partitions.clear();
        super::clear_vec(&mut self.plan.all);
        super::clear_vec(&mut self.notes);
        super::clear_vec(&mut self.keys);
    }
}
