//! Inserts that check whether another record has the key.
//!
//! **INV-UNIQUE**: At no CSN are two rows alive that have one key and whose entries were added with
//! a check. An insert finds all leaves that can have entries of its key (`KeyLeaves`), with the
//! versions at which it read them. It judges the records of the entries with its key, and adds its
//! own entry only while it holds the latches of all of these leaves, taken at these versions. So
//! the entries with the key are then the ones that it has judged. A record passes only if it will
//! have no row as long as its entry is there:
//!
//! * its row was deleted, by a commit or by the inserting transaction itself. If that delete is
//!   undone, so is the insert, which came later;
//! * or the insert of its row was undone.
//!
//! The number of such a record is given to another row only after its entry was removed
//! (INV-DEAD), which changes the version of a leaf. A record whose row may still come or stay does
//! not pass. So of two inserts of one key the later one judges the record of the earlier one, and
//! passes it only after its row is gone. The judgement that a record is in the way counts only if
//! the leaves are unchanged after it: then the record had the key throughout.
//!
//! An insert that does not pass has added nothing. So it can wait for another transaction without
//! being in the way of any, and two inserts of one key never wait for each other. It waits after it
//! has left the index, without a latch.

use super::descend::{Direction, Path};
use super::insert::Inserted;
use super::key::{Entry, Position};
use super::node::CAPACITY;
use super::word::VersionWord;
use super::{race, Index};
use crate::csn::SlotId;
use crate::error::Error;
use crate::faults::{self, Fault, Moment};
use crate::platform::Platform;
use crate::primitive::relax;
use crate::shared::Engine;

/// How an insert checks whether another row has its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unique {
    /// It does not: the key may be there several times, or the caller has looked by itself.
    Unchecked,
    /// The entry is added only if no other row has the key, or may come to have it.
    Check,
    /// The entry is added in any case, and the result says whether another row has the key, or may
    /// come to have it. The caller looks again later, or undoes the insert.
    Partial,
}

/// Judges the records that have the key of a new entry (INV-UNIQUE).
pub(crate) struct Judge<'a> {
    /// Is the entry added even if a record is in the way?
    pub beside: bool,
    /// Will this record have no row as long as its entry is there? Called without a latch. May fail
    /// and unwind; it must not sleep for another transaction. A result is used only if the leaves
    /// are unchanged afterwards; otherwise the records are judged anew.
    pub passes: &'a mut dyn FnMut(u64) -> Result<bool, Error>,
}

/// All leaves that can have entries of one key, at the versions at which they were read, from left
/// to right. Mostly it is one.
pub struct KeyLeaves<'a> {
    first: Option<(&'a VersionWord, u64)>,
    more: Vec<(&'a VersionWord, u64)>,
}

impl<'a> KeyLeaves<'a> {
    /// None yet.
    pub fn new() -> KeyLeaves<'a> {
        KeyLeaves { first: None, more: Vec::new() }
    }

    fn iter(&self) -> impl Iterator<Item = (&'a VersionWord, u64)> + '_ {
        self.first.iter().chain(&self.more).copied()
    }

    /// Adds a leaf. Returns false if it is there with another version: the reader must start again.
    #[must_use]
    pub fn add(&mut self, leaf: &'a VersionWord, version: u64) -> bool {
        // A leaf that has come to cover the keys of its neighbours is met again.
        if let Some((_, before)) = self.iter().find(|(l, _)| std::ptr::eq(*l, leaf)) {
            return before == version;
        }
        match self.first {
            None => self.first = Some((leaf, version)),
            Some(_) => self.more.push((leaf, version)),
        }
        true
    }

    /// Is this one of the leaves, with this version?
    pub fn has(&self, leaf: &VersionWord, version: u64) -> bool {
        self.iter().any(|(l, v)| std::ptr::eq(l, leaf) && v == version)
    }

    /// Are all leaves unchanged?
    pub fn are_unchanged(&self) -> bool {
        self.iter().all(|(leaf, version)| leaf.is(version))
    }

    /// Takes the latches of all leaves at their versions, or none. Never waits. Inserts of one key
    /// begin with the same leaf, so one of them goes on. `own`: the leaf of the new entry.
    #[must_use]
    pub fn latch(&self, own: &VersionWord) -> bool {
        for (n, (leaf, version)) in self.latched(own).enumerate() {
            if !leaf.latch(version) {
                self.latched(own).take(n).for_each(|(leaf, version)| leaf.release_unchanged(version));
                return false;
            }
        }
        true
    }

    /// Releases the latches of all leaves but the one of the new entry.
    pub fn release_others(&self, own: &VersionWord) {
        let others = self.latched(own).filter(|(leaf, _)| !std::ptr::eq(*leaf, own));
        others.for_each(|(leaf, version)| leaf.release_unchanged(version));
    }

    /// The leaves whose latches an insert takes.
    fn latched<'s>(&'s self, own: &'s VersionWord) -> impl Iterator<Item = (&'a VersionWord, u64)> + 's {
        self.iter().filter(move |(leaf, _)| !faults::on(Fault::OneLeafCounts) || std::ptr::eq(*leaf, own))
    }
}

impl Default for KeyLeaves<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// What a look at all entries with a key has found.
struct Judged {
    leaves: KeyLeaves<'static>,
    /// If there is one leaf, the place of the new entry in it.
    at: Option<usize>,
    /// Is a record in the way?
    taken: bool,
    /// Is the entry there already?
    there: bool,
}

impl Index {
    /// Adds an entry with its memory, which belongs to the tree if the entry was added.
    pub(super) fn insert_judged(
        &self,
        e: &Engine,
        slot: SlotId,
        p: &dyn Platform,
        entry: Entry,
        judge: &mut Judge<'_>,
    ) -> Result<Inserted, Error> {
        let own = Position::before(entry);
        let mut path = Path::new();
        let mut n = 0;
        loop {
            if n > 0 {
                relax(n);
            }
            n += 1;
            let Some(seen) = self.judge_key(p, entry, judge, &mut path)? else { continue };
            faults::reached(Moment::Judged);
            race();
            if seen.there || seen.taken && !judge.beside {
                if !seen.leaves.are_unchanged() {
                    continue;
                }
                return Ok(Inserted::not(seen.taken));
            }
            match seen.at {
                Some(at) => path.set_at(at),
                None => self.descend(p, &own, Direction::Forward, 0, &mut path),
            }
            let leaf = path.last();
            let word = &leaf.node.node().version;
            if !seen.leaves.has(word, leaf.version) {
                continue;
            }
            if leaf.count == CAPACITY {
                self.split(e, slot, &path)?;
                continue;
            }
            if !seen.leaves.latch(word) {
                if faults::on(Fault::VerdictStays) {
                    return self.insert_entry(e, slot, p, entry, seen.taken);
                }
                continue;
            }
            let before = self.put(slot, (leaf.node, leaf.version), leaf.at, entry);
            seen.leaves.release_others(word);
            return Ok(Inserted::added(before, seen.taken));
        }
    }

    /// Looks at all entries with the key of `entry`, and judges their records in ascending order up
    /// to the first one that is in the way. `None`: something has changed meanwhile. `path` leads
    /// to the last leaf. Comparisons may unwind.
    fn judge_key(
        &self,
        p: &dyn Platform,
        entry: Entry,
        judge: &mut Judge<'_>,
        path: &mut Path,
    ) -> Result<Option<Judged>, Error> {
        let (mut from, end) = (Position::beside(entry, false), Position::beside(entry, true));
        let mut seen = Judged { leaves: KeyLeaves::new(), at: None, taken: false, there: false };
        let mut first = true;
        loop {
            self.descend(p, &from, Direction::Forward, 0, path);
            let leaf = path.last();
            if !seen.leaves.add(&leaf.node.node().version, leaf.version) {
                return Ok(None);
            }
            let mut at = leaf.at;
            for i in leaf.at..leaf.count {
                let Ok(e) = leaf.node.entry(i, leaf.version) else { return Ok(None) };
                if end.compare(self, p, &e).is_ge() {
                    break;
                }
                seen.there = e.record == entry.record;
                if seen.there {
                    return Ok(Some(seen));
                }
                at += usize::from(e.record < entry.record);
                if !seen.taken && !(judge.passes)(e.record as u64)? {
                    seen.taken = true;
                    if !judge.beside {
                        return Ok(Some(seen));
                    }
                }
            }
            // Entries of the key may go on in the next leaf.
            let next = path.upper.filter(|upper| end.compare(self, p, upper).is_lt());
            let Some(upper) = next else {
                seen.at = first.then_some(at);
                return Ok(Some(seen));
            };
            from = Position::before(upper);
            first = false;
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "unique_tests.rs"]
mod tests;
