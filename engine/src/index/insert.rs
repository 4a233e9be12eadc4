//! Inserts and splits.

use super::descend::{Direction, Path, MAX_HEIGHT};
use super::key::{Entry, Position};
use super::node::{NodeRef, Restart, CAPACITY};
use super::unique::Judge;
use super::{race, Index};
use crate::csn::SlotId;
use crate::error::Error;
use crate::memory::OutOfMemory;
use crate::platform::Platform;
use crate::primitive::Ordering;
use crate::shared::Engine;
use std::ptr;

/// The result of adding an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inserted {
    /// Is it added? It is not if it was there already, or a judge did not want it.
    pub added: bool,
    /// Is a record with its key in the way, as a judge has found?
    pub taken: bool,
    /// If it is added: how many entries the processes of some slots had added before, of those that
    /// are there.
    pub before: u64,
}

impl Inserted {
    pub(super) fn added(before: u64, taken: bool) -> Inserted {
        Inserted { added: true, taken, before }
    }
    pub(super) fn not(taken: bool) -> Inserted {
        Inserted { added: false, taken, before: 0 }
    }
}

/// Memory that is not published yet. It is freed unless it is used, also when a comparison unwinds.
struct Fresh<'a> {
    e: &'a Engine,
    slot: SlotId,
    /// A blob, a node and a root.
    parts: [Option<std::ptr::NonNull<u8>>; 3],
}

impl<'a> Fresh<'a> {
    fn new(e: &'a Engine, slot: SlotId) -> Fresh<'a> {
        Fresh { e, slot, parts: [None; 3] }
    }
    /// The memory belongs to the tree now.
    fn used(mut self) {
        self.parts = [None; 3];
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        for p in self.parts.into_iter().flatten() {
            // SAFETY: INV-M1: this process allocated it and has not published it.
            unsafe { self.e.region.free(self.slot as usize, p) };
        }
    }
}

impl Index {
    /// Adds an entry. Returns false if it is there already. On an error, and when a comparison
    /// unwinds, the index is unchanged.
    pub fn insert(&self, e: &Engine, slot: SlotId, p: &dyn Platform, key: &[u8], record: u64) -> Result<bool, Error> {
        Ok(self.insert_key(e, slot, p, key, record, None)?.added)
    }

    /// As `insert`, and says where the entry is. With a judge it also says whether a record with
    /// the key is in the way; then the entry is added only if the judge wants that.
    pub(super) fn insert_key(
        &self,
        e: &Engine,
        slot: SlotId,
        p: &dyn Platform,
        key: &[u8],
        record: u64,
        judge: Option<&mut Judge<'_>>,
    ) -> Result<Inserted, Error> {
        let entry = Entry::new(e.region, slot as usize, key, record as u32)?;
        let mut fresh = Fresh::new(e, slot);
        fresh.parts[0] = entry.memory();
        let done = match (self.insert_plainly(slot, entry), judge) {
            (Some(before), _) => Inserted::added(before, false),
            (None, Some(judge)) => self.insert_judged(e, slot, p, entry, judge)?,
            (None, None) => self.insert_entry(e, slot, p, entry, false)?,
        };
        if done.added {
            fresh.used();
        }
        Ok(done)
    }

    /// Adds an entry with its memory, which belongs to the tree if the entry was added. `taken`:
    /// see [`Inserted::taken`].
    pub(super) fn insert_entry(
        &self,
        e: &Engine,
        slot: SlotId,
        p: &dyn Platform,
        entry: Entry,
        taken: bool,
    ) -> Result<Inserted, Error> {
        let t = Position::before(entry);
        let mut path = Path::new();
        loop {
            self.descend(p, &t, Direction::Forward, 0, &mut path);
            let leaf = path.last();
            if leaf.at < leaf.count {
                let Ok(there) = leaf.node.entry(leaf.at, leaf.version) else { continue };
                if t.compare(self, p, &there).is_eq() {
                    return Ok(Inserted::not(taken));
                }
            }
            if leaf.count == CAPACITY {
                self.split(e, slot, &path)?;
                continue;
            }
            if !leaf.node.node().version.latch(leaf.version) {
                continue;
            }
            return Ok(Inserted::added(self.put(slot, (leaf.node, leaf.version), leaf.at, entry), taken));
        }
    }

    /// Puts an entry into a leaf that has room and was latched at a version. Returns what
    /// [`Inserted::before`] says.
    #[inline]
    pub(super) fn put(&self, slot: SlotId, (leaf, version): (NodeRef, u64), at: usize, entry: Entry) -> u64 {
        leaf.insert_at(at, entry, ptr::null_mut());
        leaf.node().version.release(version);
        let counters = self.counters(slot);
        if !entry.is_inline() {
            counters.bytes.fetch_add(entry.blob_bytes(), Ordering::Relaxed);
        }
        counters.len.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds an entry by its first bytes alone. That works if keys compare as bytes and no other
    /// entry on the path or in the leaf has the same first bytes. Then the leaf is the only one
    /// that can have entries of the key, and it has none (INV-UNIQUE). Returns what
    /// [`Inserted::before`] says. `None`: nothing was done, and the caller takes the general path.
    /// Tries once, and never waits for a latch.
    fn insert_plainly(&self, slot: SlotId, entry: Entry) -> Option<u64> {
        if self.order() != 0 {
            return None;
        }
        self.try_insert_plainly(slot, entry).unwrap_or(None)
    }

    fn try_insert_plainly(&self, slot: SlotId, entry: Entry) -> Result<Option<u64>, Restart> {
        let prefix = entry.prefix;
        let mut last = true;
        // The first entry from `from` on whose first bytes are not below. `None`: they are equal.
        // Keys often ascend, so the node's end is tried first.
        let mut place = |node: NodeRef, from: usize| {
            let count = node.count().max(from);
            let at = if last && count > from && node.leading(count - 1) < prefix {
                count
            } else {
                node.below_leading(prefix, from, count)
            };
            last &= at == count;
            (at == count || node.leading(at) != prefix).then_some((at, count))
        };
        let mut node = self.root();
        race();
        let mut version = node.node().version.read();
        // A former root that was split since is only half of the tree.
        if self.root() != node {
            return Err(Restart);
        }
        while node.level() > 0 {
            let Some((at, _)) = place(node, 1) else { return Ok(None) };
            let child = node.child(at - 1);
            node.check(version)?;
            let child = child.ok_or(Restart)?;
            race();
            let next = child.node().version.read();
            // The child's version was read while the child was there for this part of the keys.
            race();
            node.check(version)?;
            (node, version) = (child, next);
        }
        let Some((at, count)) = place(node, 0) else { return Ok(None) };
        race();
        // If the node can be latched at this version, everything read belongs to it.
        if count == CAPACITY || !node.node().version.latch(version) {
            return Ok(None);
        }
        Ok(Some(self.put(slot, (node, version), at, entry)))
    }

    /// Splits the highest full node above the leaf whose parent has room, or the root. Does nothing
    /// if another process has changed these nodes. Fails only before it changes anything.
    pub(super) fn split(&self, e: &Engine, slot: SlotId, path: &Path) -> Result<(), OutOfMemory> {
        let mut depth = path.len() - 1;
        while depth > 0 && path.step(depth - 1).count == CAPACITY {
            depth -= 1;
        }
        let old = path.step(depth);
        // Ascending keys fill their nodes: an entry at the end of its leaf is a sign of them. In
        // random order that happens once per full node, which costs little.
        let at_end = (depth + 1..path.len()).all(|i| path.step(i - 1).at + 1 == path.step(i - 1).count)
            && path.last().at == path.last().count;
        let mid = if at_end { old.count - 1 } else { old.count / 2 };
        let Ok(first) = old.node.entry(mid, old.version) else { return Ok(()) };
        let level = old.node.level();
        // If a key begins with its leaf, the bound is in front of all entries that the key can
        // have. So a look-up of the key finds this leaf directly. The entries that stay in the left
        // node are below the bound in either case.
        let begins = match old.node.entry(mid - 1, old.version) {
            Ok(last) => level == 0 && self.order() == 0 && last.key().bytes() != first.key().bytes(),
            Err(_) => return Ok(()),
        };
        let record = if begins { 0 } else { first.record };

        let mut fresh = Fresh::new(e, slot);
        let separator = Entry::new(e.region, slot as usize, &first.key(), record)?;
        fresh.parts[0] = separator.memory();
        let right = NodeRef::new(e.region, slot as usize, level)?;
        fresh.parts[1] = Some(right.memory());
        let mut bytes = NodeRef::bytes(level) as u64 + separator.blob_bytes();
        if depth > 0 {
            let parent = path.step(depth - 1);
            if !parent.node.node().version.latch(parent.version) {
                return Ok(());
            }
            if !old.node.node().version.latch(old.version) {
                parent.node.node().version.release_unchanged(parent.version);
                return Ok(());
            }
            old.node.split_to(mid, right);
            parent.node.insert_at(parent.at + 1, separator, right.as_ptr());
            old.node.node().version.release(old.version);
            parent.node.node().version.release(parent.version);
        } else {
            if level as usize + 2 > MAX_HEIGHT {
                return Err(OutOfMemory);
            }
            let root = NodeRef::new(e.region, slot as usize, level + 1)?;
            fresh.parts[2] = Some(root.memory());
            bytes += NodeRef::bytes(level + 1) as u64;
            if !old.node.node().version.latch(old.version) {
                return Ok(());
            }
            // A root is replaced only under its latch.
            debug_assert_eq!(self.root(), old.node);
            old.node.split_to(mid, right);
            root.insert_at(0, Entry::LOW, old.node.as_ptr());
            root.insert_at(1, separator, right.as_ptr());
            self.root.store(root.as_ptr(), Ordering::SeqCst);
            old.node.node().version.release(old.version);
        }
        fresh.used();
        self.counters(slot).bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}
