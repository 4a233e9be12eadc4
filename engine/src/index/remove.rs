//! Removals. A leaf that becomes empty is unlinked from the tree.

use super::descend::{Direction, Path, MAX_HEIGHT};
use super::key::{Position, INLINE};
use super::node::{NodeRef, Restart, CAPACITY};
use super::{race, Index};
use crate::csn::SlotId;
use crate::platform::Platform;
use crate::primitive::Ordering;
use crate::retire::RetireQueue;
use crate::shared::Engine;
use std::ptr::NonNull;

/// Memory that left the tree. It is retired when no latch is held.
struct Gone {
    parts: [Option<NonNull<u8>>; Index::ROOM as usize],
    len: usize,
    bytes: u64,
}

impl Gone {
    fn new() -> Gone {
        Gone { parts: [None; Index::ROOM as usize], len: 0, bytes: 0 }
    }
    fn add(&mut self, p: NonNull<u8>, bytes: u64) {
        self.parts[self.len] = Some(p);
        self.len += 1;
        self.bytes += bytes;
    }
    fn add_entry(&mut self, entry: super::key::Entry) {
        if let Some(blob) = entry.memory() {
            self.add(blob, entry.blob_bytes());
        }
    }
    /// Adds a node with at most one entry, and that entry's blob.
    fn add_node(&mut self, node: NodeRef) {
        for i in 0..node.count() {
            self.add_entry(node.words(i));
        }
        self.add(node.memory(), NodeRef::bytes(node.level()) as u64);
    }
}

/// Entries of one leaf that have no blobs: their places, which ascend.
struct Run {
    places: [u8; CAPACITY],
    len: usize,
}

impl Index {
    /// Removes the first of these entries, and those after it that follow it in the same leaf. So
    /// entries in the order of the index are removed by leaves. Returns how many are dealt with: at
    /// least one, whether or not it was there, if there is one. Else as [`Index::remove`], with the
    /// same room.
    pub fn remove_some(&self, e: &Engine, slot: SlotId, p: &dyn Platform, all: &[(&[u8], u64)]) -> usize {
        let Some(&(key, record)) = all.first() else { return 0 };
        if all.len() > 1 && key.len() <= INLINE {
            let removed = self.remove_run(p, all);
            if removed > 0 {
                self.counters(slot).len.fetch_sub(removed as u64, Ordering::Relaxed);
                return removed;
            }
        }
        self.remove(e, slot, p, key, record);
        1
    }

    /// The same if it takes one leaf, which keeps another entry, and frees no memory; else 0.
    fn remove_run(&self, p: &dyn Platform, all: &[(&[u8], u64)]) -> usize {
        let mut path = Path::new();
        self.descend(p, &Position::of(all[0].0, all[0].1), Direction::Forward, 0, &mut path);
        let leaf = path.last();
        let Ok(mut run) = self.run_in(p, leaf.node, leaf.version, leaf.at, all) else { return 0 };
        race();
        // A leaf without entries leaves the tree; a tree without entries has one.
        run.len = run.len.min(leaf.count.saturating_sub(1));
        if run.len == 0 || !leaf.node.node().version.latch(leaf.version) {
            return 0;
        }
        leaf.node.remove_all_at(&run.places[..run.len]);
        leaf.node.node().version.release(leaf.version);
        run.len
    }

    /// Where the first of these entries are in a leaf, from place `at` on, as far as they are there
    /// in this order and have no blobs. Comparisons may unwind.
    fn run_in(
        &self,
        p: &dyn Platform,
        leaf: NodeRef,
        version: u64,
        mut at: usize,
        all: &[(&[u8], u64)],
    ) -> Result<Run, Restart> {
        let (count, mut run) = (leaf.count(), Run { places: [0; CAPACITY], len: 0 });
        for &(key, record) in all.iter().take_while(|(key, _)| key.len() <= INLINE) {
            let t = Position::of(key, record);
            let mut found = false;
            while at < count && !found {
                let order = t.compare(self, p, &leaf.entry(at, version)?);
                if order.is_gt() {
                    return Ok(run);
                }
                found = order.is_eq();
                at += 1;
            }
            if !found {
                return Ok(run);
            }
            run.places[run.len] = at as u8 - 1;
            run.len += 1;
        }
        Ok(run)
    }

    /// Removes an entry. Returns false if it is not there. When a comparison unwinds, the index is
    /// unchanged.
    ///
    /// Cannot fail otherwise: the caller has reserved [`Index::ROOM`] in its queue of retired
    /// memory, beyond the room that it needs for other purposes.
    pub fn remove(&self, e: &Engine, slot: SlotId, p: &dyn Platform, key: &[u8], record: u64) -> bool {
        let t = Position::of(key, record);
        let mut path = Path::new();
        let mut gone = Gone::new();
        loop {
            self.descend(p, &t, Direction::Forward, 0, &mut path);
            let leaf = path.last();
            if leaf.at == leaf.count {
                return false;
            }
            let Ok(there) = leaf.node.entry(leaf.at, leaf.version) else { continue };
            if t.compare(self, p, &there).is_ne() {
                return false;
            }
            let keeper = (0..path.len() - 1).rev().find(|&i| path.step(i).count > 1);
            let done = match keeper {
                Some(i) if leaf.count == 1 => self.unlink(&path, i, &mut gone),
                None if leaf.count == 1 && path.len() > 1 => self.last_entry(&path, &mut gone),
                _ => self.take_out(&path, &mut gone),
            };
            if done {
                break;
            }
        }
        let counters = self.counters(slot);
        counters.len.fetch_sub(1, Ordering::Relaxed);
        if gone.bytes > 0 {
            counters.bytes.fetch_sub(gone.bytes, Ordering::Relaxed);
        }
        // INV-RETIRE: the clock is read after all of the memory became unreachable.
        let now = e.now();
        for p in gone.parts.into_iter().flatten() {
            RetireQueue::push(e, slot, p, now);
        }
        true
    }

    /// Removes the entry from a leaf that keeps others, or is the only leaf.
    fn take_out(&self, path: &Path, gone: &mut Gone) -> bool {
        let leaf = path.last();
        if !leaf.node.node().version.latch(leaf.version) {
            return false;
        }
        gone.add_entry(leaf.node.remove_at(leaf.at));
        leaf.node.node().version.release(leaf.version);
        true
    }

    /// Removes the last entry of the tree, whose inner nodes all have one child. (A root is
    /// replaced by its last child, however high that is.) The leaf becomes the root.
    fn last_entry(&self, path: &Path, gone: &mut Gone) -> bool {
        if !Self::latch_from(path, 0) {
            return false;
        }
        let leaf = path.last().node;
        gone.add_entry(leaf.remove_at(0));
        self.root.store(leaf.as_ptr(), Ordering::SeqCst);
        for i in 0..path.len() - 1 {
            gone.add_node(path.step(i).node);
        }
        Self::release_from(path, 0);
        true
    }

    /// Latches the nodes of the path from `top` down, all of them or none.
    fn latch_from(path: &Path, top: usize) -> bool {
        for i in top..path.len() {
            let s = path.step(i);
            if !s.node.node().version.latch(s.version) {
                for s in (top..i).map(|j| path.step(j)) {
                    s.node.node().version.release_unchanged(s.version);
                }
                return false;
            }
        }
        true
    }

    fn release_from(path: &Path, top: usize) {
        for s in (top..path.len()).map(|i| path.step(i)) {
            s.node.node().version.release(s.version);
        }
    }

    /// Unlinks a leaf with its last entry, and the inner nodes above it below `top`, the lowest one
    /// that keeps a child. A root that keeps only one child is replaced by that child.
    fn unlink(&self, path: &Path, top: usize, gone: &mut Gone) -> bool {
        if !Self::latch_from(path, top) {
            return false;
        }
        let keeper = path.step(top);
        gone.add_entry(keeper.node.remove_at(keeper.at));
        for i in top + 1..path.len() {
            gone.add_node(path.step(i).node);
        }
        if top == 0 && keeper.count == 2 {
            let child = keeper.node.child(0).expect("the child that is left");
            self.root.store(child.as_ptr(), Ordering::SeqCst);
            gone.add_node(keeper.node);
        }
        Self::release_from(path, top);
        true
    }
}

// A leaf and all but one of the inner nodes, each with a blob; a separator's blob; the root with
// the blob of its last entry.
const _: () = assert!(2 * MAX_HEIGHT as u64 + 4 <= Index::ROOM);
