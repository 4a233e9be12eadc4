//! Removals. A leaf that becomes empty is unlinked from the tree.

use super::descend::{Direction, Path, MAX_HEIGHT};
use super::key::Position;
use super::node::NodeRef;
use super::Index;
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

impl Index {
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
        self.len.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(gone.bytes, Ordering::Relaxed);
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
