//! Entries: what pages and WAL say of a record at a CSN.
//!
//! **INV-FORM**: An entry that was decoded meets all rules of [`Entry::check`], and its encoding
//! gives the same bytes. The payload of a row is cut in one way only: into pieces of [`PIECE`]
//! bytes, of which the last may be shorter. So pieces of one row and CSN fit together, whatever
//! pages and records they come from.

use super::bytes::Bytes;
use super::{require, Malformed};
use crate::csn::{Csn, CSN_MAX};
use crate::table::MAX_RECORDS;

/// Bytes of an entry on a page before its extensions and its payload.
pub const HEADER: usize = 16;
/// Bytes of one extension: the transaction id of a pending entry, or the place of a piece.
pub const EXTENSION: usize = 8;
/// Entries begin at multiples of this.
pub const ALIGN: usize = 8;
/// The largest payload of an entry. A longer row is cut into pieces of this size: an entry with
/// both extensions and such a payload fills a page.
pub const PIECE: usize = 8080;
/// The largest payload of a row: PostgreSQL allocates no more for a tuple.
pub const ROW_MAX: usize = (1 << 30) - 1;
/// The record number in entries of kind [`Kind::Hints`]. No record has it.
pub const NO_RECORD: u32 = u32::MAX;
const _: () = assert!(MAX_RECORDS < NO_RECORD as u64);

const KIND: u8 = 0x0F;
const FRAGMENT: u8 = 0x40;
const PENDING: u8 = 0x80;
const KIND_SHIFT: u32 = 56;
const CSN: u64 = (1 << KIND_SHIFT) - 1;

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The payload is the row.
    Row = 1,
    /// The row is deleted.
    Tomb = 2,
    /// Not about a record: indexes may name record numbers below this one (INV-HIGH).
    High = 3,
    /// Not about a record: bytes of the platform, without which all rows are complete.
    Hints = 4,
}

impl Kind {
    fn from_bits(bits: u8) -> Result<Kind, Malformed> {
        Ok(match bits & KIND {
            1 => Kind::Row,
            2 => Kind::Tomb,
            3 => Kind::High,
            4 => Kind::Hints,
            _ => return Err(Malformed("an entry of no known kind")),
        })
    }
    /// The name in descriptions.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Row => "row",
            Kind::Tomb => "tombstone",
            Kind::High => "high water",
            Kind::Hints => "hints",
        }
    }
}

/// The byte that tells kind and extensions: as on pages, so in WAL.
pub(super) fn kind_byte(kind: Kind, pending: bool, fragment: bool) -> u8 {
    kind as u8 | if pending { PENDING } else { 0 } | if fragment { FRAGMENT } else { 0 }
}

/// Takes that byte apart: kind, is it pending, is it a piece?
pub(super) fn of_kind_byte(byte: u8) -> Result<(Kind, bool, bool), Malformed> {
    require(byte & !(KIND | FRAGMENT | PENDING) == 0, "an entry with unknown flags")?;
    Ok((Kind::from_bits(byte)?, byte & PENDING != 0, byte & FRAGMENT != 0))
}

/// Does a kind's byte say that the entry is a piece of a row?
#[inline]
pub(super) fn is_fragment(byte: u8) -> bool {
    byte & FRAGMENT != 0
}

/// The place of a piece in its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The offset of its first byte, a multiple of [`PIECE`].
    pub at: u32,
    /// The length of the whole row.
    pub total: u32,
}

impl Fragment {
    /// The number of this piece, from 0 on.
    pub fn index(self) -> u32 {
        self.at / PIECE as u32
    }
    /// The number of pieces of the row.
    pub fn pieces(self) -> u32 {
        self.total.div_ceil(PIECE as u32)
    }
    fn len(self) -> usize {
        (self.total - self.at).min(PIECE as u32) as usize
    }
    fn check(self, len: usize) -> Result<(), Malformed> {
        let total = self.total as usize;
        require(total > PIECE && total <= ROW_MAX, "a piece of a row that is not cut")?;
        require(self.at % PIECE as u32 == 0 && self.at < self.total, "a piece at no place of its row")?;
        require(len == self.len(), "a piece of another length than its place says")
    }
}

/// What a page or a WAL record says of a record at a CSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The CSN of the transaction. 0 if the kind is [`Kind::High`].
    pub csn: Csn,
    /// What it says.
    pub kind: Kind,
    /// The number of the record. [`NO_RECORD`] for hints, the first unused number for a high
    /// water.
    pub record: u32,
    /// The full transaction id that decides whether the entry counts. `None`: it counts.
    pub pending: Option<u64>,
    /// The payload is this piece of the row. `None`: the payload is whole.
    pub fragment: Option<Fragment>,
    /// The row, the piece of it, or the hints.
    pub payload: &'a [u8],
}

impl<'a> Entry<'a> {
    /// A high water: indexes may name record numbers below this one.
    pub fn high(below: u32) -> Entry<'static> {
        Entry { csn: 0, kind: Kind::High, record: below, pending: None, fragment: None, payload: &[] }
    }
    /// The rules of INV-FORM.
    pub fn check(&self) -> Result<(), Malformed> {
        let about_record = (self.record as u64) < MAX_RECORDS;
        require(self.pending != Some(0), "an entry that waits for no transaction")?;
        match self.kind {
            Kind::Row => require(about_record, "a row without a record")?,
            Kind::Tomb => require(about_record, "a tombstone without a record")?,
            Kind::High => require(self.record as u64 <= MAX_RECORDS, "a high water above all records")?,
            Kind::Hints => require(self.record == NO_RECORD, "hints about a record")?,
        }
        if self.kind == Kind::High {
            require(self.csn == 0 && self.pending.is_none(), "a high water that is part of a transaction")?;
        } else {
            require(self.csn >= 1 && self.csn <= CSN_MAX, "an entry with an impossible CSN")?;
        }
        if matches!(self.kind, Kind::Tomb | Kind::High) {
            require(self.payload.is_empty() && self.fragment.is_none(), "a payload where none belongs")?;
        }
        match self.fragment {
            Some(fragment) => fragment.check(self.payload.len()),
            None => require(self.payload.len() <= PIECE, "an entry that is too long"),
        }
    }
    fn extensions(&self) -> usize {
        EXTENSION * (usize::from(self.pending.is_some()) + usize::from(self.fragment.is_some()))
    }
    /// The bytes that it takes on a page.
    pub fn size(&self) -> usize {
        (HEADER + self.extensions() + self.payload.len()).next_multiple_of(ALIGN)
    }
    /// Writes it to `to`, which has [`Entry::size`] bytes.
    pub fn encode(&self, to: &mut [u8]) {
        debug_assert_eq!(self.check(), Ok(()));
        let kind = kind_byte(self.kind, self.pending.is_some(), self.fragment.is_some());
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            to[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&(self.csn | (kind as u64) << KIND_SHIFT).to_le_bytes());
        put(&self.record.to_le_bytes());
        put(&(self.payload.len() as u16).to_le_bytes());
        put(&[0; 2]);
        if let Some(xid) = self.pending {
            put(&xid.to_le_bytes());
        }
        if let Some(fragment) = self.fragment {
            put(&fragment.at.to_le_bytes());
            put(&fragment.total.to_le_bytes());
        }
        put(self.payload);
        to[at..].fill(0);
    }
    /// Reads the entry at the beginning of `from`, and says how many bytes it takes there.
    pub fn decode(from: &'a [u8]) -> Result<(Entry<'a>, usize), Malformed> {
        let mut bytes = Bytes(from);
        let word = bytes.u64()?;
        let record = bytes.u32()?;
        let len = bytes.u16()?;
        require(bytes.u16()? == 0, "an entry with unknown bits")?;
        let (kind, pending, fragment) = of_kind_byte((word >> KIND_SHIFT) as u8)?;
        let pending = if pending { Some(bytes.u64()?) } else { None };
        let fragment = if fragment { Some(Fragment { at: bytes.u32()?, total: bytes.u32()? }) } else { None };
        let payload = bytes.take(len as usize)?;
        let entry = Entry { csn: word & CSN, kind, record, pending, fragment, payload };
        entry.check()?;
        let used = from.len() - bytes.0.len();
        let padding = bytes.take(used.next_multiple_of(ALIGN) - used)?;
        require(padding.iter().all(|b| *b == 0), "padding that is not zero")?;
        Ok((entry, entry.size()))
    }
    /// The entries for a row of any length up to [`ROW_MAX`]: this one, or its pieces.
    pub fn pieces(self) -> impl Iterator<Item = Entry<'a>> {
        let total = self.payload.len();
        debug_assert!(total <= ROW_MAX && self.fragment.is_none());
        (0..total.div_ceil(PIECE).max(1)).map(move |i| {
            let (from, to) = (i * PIECE, total.min((i + 1) * PIECE));
            let fragment = (total > PIECE).then_some(Fragment { at: from as u32, total: total as u32 });
            Entry { fragment, payload: &self.payload[from..to], ..self }
        })
    }
}
