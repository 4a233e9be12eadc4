//! The path from the root to a leaf, without latches.
//!
//! **INV-COVER**: The keys that a node covers, from its lower bound up to the next node's, shrink
//! only when the node itself is split, which changes its version. A descent reads the child's
//! version, then compares the parent's: the bounds that it has for the child were true at that
//! version. The covered keys may grow unseen, when a neighbour (or a neighbour of a node above)
//! leaves the tree. So the bounds that a descent reports are safe, but may be narrow.

use super::key::{Entry, Position};
use super::node::{NodeRef, Restart};
use super::{race, Index};
use crate::platform::Platform;
use crate::primitive::relax;

/// The most levels that a tree may have. A root splits after its subtrees have been half filled, so
/// that more levels would take 38^12 inserts.
pub(super) const MAX_HEIGHT: usize = 12;

/// The direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Backward,
}

/// A node on the path, the version at which it was read, and the child that was taken. In the last
/// node `at` is instead the number of its entries below the position.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub node: NodeRef,
    pub version: u64,
    pub at: usize,
    /// The number of entries at that version, if the version is unchanged.
    pub count: usize,
}

/// The nodes from the root down.
pub(super) struct Path {
    steps: [Option<Step>; MAX_HEIGHT],
    len: usize,
    /// The lower bound of the last node. `None`: it is the first of its level.
    pub lower: Option<Entry>,
    /// The upper bound of the last node. `None`: it is the last of its level.
    pub upper: Option<Entry>,
}

impl Path {
    pub fn new() -> Path {
        Path { steps: [None; MAX_HEIGHT], len: 0, lower: None, upper: None }
    }
    fn clear(&mut self) {
        (self.len, self.lower, self.upper) = (0, None, None);
    }
    /// A path of which only the bounds matter.
    #[cfg(test)]
    pub fn with_edges(lower: Option<Entry>, upper: Option<Entry>) -> Path {
        Path { lower, upper, ..Path::new() }
    }
    fn push(&mut self, s: Step) -> Result<(), Restart> {
        *self.steps.get_mut(self.len).ok_or(Restart)? = Some(s);
        self.len += 1;
        Ok(())
    }
    pub fn len(&self) -> usize {
        self.len
    }
    /// Moves the position in the last node.
    pub fn set_at(&mut self, at: usize) {
        if let Some(last) = self.steps[..self.len].last_mut().and_then(Option::as_mut) {
            last.at = at;
        }
    }
    /// Step `i` from the root.
    pub fn step(&self, i: usize) -> Step {
        self.steps[i].expect("a step of the path")
    }
    /// The last node.
    pub fn last(&self) -> Step {
        self.step(self.len - 1)
    }
}

impl Index {
    /// Finds the node of `level` that covers the position; going backward, the one that covers the
    /// keys right below it. The version in the path was read while the node covered this. As long
    /// as the node has this version its coverage can only grow (INV-COVER). So `lower` and `upper`
    /// are safe, but may be narrower than the node's real bounds.
    pub(super) fn descend(&self, p: &dyn Platform, t: &Position, way: Direction, level: u32, path: &mut Path) {
        let mut n = 0;
        while self.try_descend(p, t, way, level, path).is_err() {
            relax(n);
            n += 1;
        }
    }

    fn try_descend(
        &self,
        p: &dyn Platform,
        t: &Position,
        way: Direction,
        level: u32,
        path: &mut Path,
    ) -> Result<(), Restart> {
        path.clear();
        let mut node = self.root();
        race();
        let mut version = node.node().version.read();
        // A former root that was split since is only half of the tree.
        if self.root() != node {
            return Err(Restart);
        }
        while node.level() > level {
            let at = node.below(self, p, version, 1, t, way == Direction::Forward)? - 1;
            let count = node.count();
            let child = node.child(at);
            let (low, high) = (node.words(at), node.words((at + 1).min(super::node::CAPACITY - 1)));
            node.check(version)?;
            let child = child.ok_or(Restart)?;
            path.push(Step { node, version, at, count })?;
            if at > 0 {
                path.lower = Some(low);
            }
            if at + 1 < count {
                path.upper = Some(high);
            }
            race();
            let next = child.node().version.read();
            // The child's version was read while the child was there for this part of the keys.
            race();
            node.check(version)?;
            (node, version) = (child, next);
        }
        let at = node.below(self, p, version, 0, t, false)?;
        let count = node.count();
        node.check(version)?;
        path.push(Step { node, version, at, count })
    }
}
