//! Changes of rows for logical decoding ([`Op::Change`]). They are no state: redo passes over them.
//!
//! Main data: the storage; the action (u8); what there is of the old row (u8); u16 0; the lengths
//! of the new and of the old row (u32 each). Then come the new row and the old one. A row is what a
//! version's payload has from `t_infomask2` on.

use super::require;
use crate::durable::bytes::Bytes;
use crate::durable::{Malformed, Storage};

/// What happened to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    /// It is new.
    Insert = 1,
    /// It was replaced.
    Update = 2,
    /// It is gone.
    Delete = 3,
}

impl Action {
    const ALL: [Action; 3] = [Action::Insert, Action::Update, Action::Delete];
    fn name(self) -> &'static str {
        ["insert", "update", "delete"][self as usize - 1]
    }
}

/// What a record has of the row that was replaced, or is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Old<'a> {
    /// Nothing.
    Nothing,
    /// The columns of the replica identity; NULL for the others.
    Key(&'a [u8]),
    /// All of it.
    Whole(&'a [u8]),
}

impl<'a> Old<'a> {
    fn parts(self) -> (u8, &'a [u8]) {
        match self {
            Old::Nothing => (0, &[]),
            Old::Key(row) => (1, row),
            Old::Whole(row) => (2, row),
        }
    }
    /// The row.
    pub fn row(self) -> Option<&'a [u8]> {
        match self {
            Old::Nothing => None,
            Old::Key(row) | Old::Whole(row) => Some(row),
        }
    }
}

/// A change of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// The table.
    pub storage: Storage,
    /// What happened.
    pub action: Action,
    /// The new row, but of a DELETE.
    pub new: Option<&'a [u8]>,
    /// What the record has of the old one.
    pub old: Old<'a>,
}

/// The bytes before the rows.
const HEAD: usize = 24;
/// The bytes of a row before its bits of NULLs and its data: `t_infomask2`, `t_infomask`, `t_hoff`.
const ROW_MIN: usize = 5;

impl<'a> Change<'a> {
    /// The main data of [`super::Op::Change`] before the rows.
    pub fn head(&self) -> [u8; HEAD] {
        let ((kind, old), new) = (self.old.parts(), self.new.unwrap_or(&[]));
        let Storage { tablespace, database, number } = self.storage;
        let kinds = self.action as u32 | (kind as u32) << 8;
        let numbers = [tablespace, database, number, kinds, new.len() as u32, old.len() as u32];
        let mut to = [0; HEAD];
        for (to, number) in to.chunks_exact_mut(4).zip(numbers) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        to
    }
    /// The rows behind it: the new one, and the old one.
    pub fn rows(&self) -> [&'a [u8]; 2] {
        [self.new.unwrap_or(&[]), self.old.parts().1]
    }

    pub(super) fn parse(mut bytes: Bytes<'a>) -> Result<Change<'a>, Malformed> {
        let storage = bytes.storage()?;
        let (action, kind) = (bytes.u8()?, bytes.u8()?);
        let action = Action::ALL.into_iter().find(|a| *a as u8 == action);
        let action = action.ok_or(Malformed("a change of no known kind"))?;
        require(bytes.u16()? == 0, "unknown bits in a change")?;
        let (new, old) = (bytes.u32()? as usize, bytes.u32()? as usize);
        let (new, row) = (bytes.take(new)?, bytes.take(old)?);
        bytes.end()?;
        let (old, shortest) = match kind {
            0 => (Old::Nothing, 0),
            1 => (Old::Key(row), ROW_MIN),
            2 => (Old::Whole(row), ROW_MIN),
            _ => return Err(Malformed("a change with an old row of no known kind")),
        };
        require((kind != 0 || row.is_empty()) && row.len() >= shortest, "a change with an old row that does not fit")?;
        require(action != Action::Insert || kind == 0, "an inserted row with an old one")?;
        let has_new = action != Action::Delete;
        let fits = if has_new { new.len() >= ROW_MIN } else { new.is_empty() };
        require(fits, "a change with a new row that is too short, or should not be")?;
        Ok(Change { storage, action, new: has_new.then_some(new), old })
    }

    pub(super) fn put(&self, text: &mut String) -> std::fmt::Result {
        use std::fmt::Write;
        let (kind, old) = self.old.parts();
        let what = ["no old row", "old key", "old row"][kind as usize];
        let new = self.new.map_or(0, <[u8]>::len);
        write!(text, "{}; rel {}; new row {new} bytes; {what} {} bytes", self.action.name(), self.storage, old.len())
    }
}
