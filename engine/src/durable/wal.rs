//! The records that the resource manager writes to WAL: their main data, without PostgreSQL's
//! header and block references.
//!
//! **INV-ITEM**: An item of a record is what one entry says, cut as an entry is, so that redo adds
//! one entry to the journal for each item and cuts nothing.

mod build;
mod change;
mod describe;

pub use build::{image, reserve, Builder, FULL};
pub use change::{Action, Change, Old};
pub use describe::{describe, identify};

use super::bytes::{u16_at, Bytes};
use super::entry::{is_fragment, kind_byte, of_kind_byte, Entry, Fragment, Kind};
use super::standby::OPEN_MAX;
use super::{require, Lsn, Malformed, Storage};
use crate::csn::{Csn, CSN_MAX};
use crate::table::MAX_RECORDS;
use std::ffi::CStr;

/// Changes whenever the format of a commit's record changes.
const FORMAT: u8 = 1;
const WORD: u32 = 48;
/// The one flag of a commit's head.
const REPLY: u64 = 1 << WORD;
const LOW: u64 = (1 << WORD) - 1;
/// The most tables that one record names. A transaction with more writes several records.
pub const TABLES_MAX: usize = 255;
/// The bytes of an item before the place of a piece and the payload.
pub const ITEM: usize = 8;
/// The bytes of a commit's head without a transaction id.
pub const HEAD: usize = 20;
/// Where the number of tables stands in it: the two highest bytes of the token's word.
const TABLES: usize = 14;

/// What a record is, from the upper half of its info byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// A transaction without a transaction id has committed.
    Commit = 0x00,
    /// What a transaction has written. It has committed if the commit log says so.
    XCommit = 0x10,
    /// Record numbers may get into indexes from now on.
    Reserve = 0x20,
    /// Pages, as full images.
    Image = 0x30,
    /// A round of the checkpointer's companion is complete.
    Round = 0x40,
    /// What standbys may show.
    Stable = 0x50,
    /// A row was changed: for logical decoding alone.
    Change = 0x90,
}

impl Op {
    /// All of them.
    pub const ALL: [Op; 7] = [Op::Commit, Op::XCommit, Op::Reserve, Op::Image, Op::Round, Op::Stable, Op::Change];

    /// The operation of an info byte.
    pub fn of_info(info: u8) -> Result<Op, Malformed> {
        let found = Op::ALL.into_iter().find(|op| *op as u8 == info & 0xF0);
        found.ok_or(Malformed("a record of no known kind"))
    }
    /// The name in PostgreSQL's tools.
    pub fn name(self) -> &'static CStr {
        match self {
            Op::Commit => c"COMMIT",
            Op::XCommit => c"XCOMMIT",
            Op::Reserve => c"RESERVE",
            Op::Image => c"IMAGE",
            Op::Round => c"ROUND",
            Op::Stable => c"STABLE",
            Op::Change => c"CHANGE",
        }
    }
}

/// Why pages were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ImageKind {
    /// Rows that changed since the last checkpoint, and the meta page.
    Round = 0,
    /// Entries of the journal.
    Absorb = 1,
    /// Rows of a storage that their transaction has made.
    Bulk = 2,
    /// Pending entries whose transactions are decided.
    Resolve = 3,
    /// Rows of pages that were nearly empty.
    Clean = 4,
}

impl ImageKind {
    const ALL: [ImageKind; 5] =
        [ImageKind::Round, ImageKind::Absorb, ImageKind::Bulk, ImageKind::Resolve, ImageKind::Clean];
    fn name(self) -> &'static str {
        ["round", "absorb", "bulk", "resolve", "clean"][self as usize]
    }
}

/// Why a round was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RoundKind {
    /// For a checkpoint.
    Checkpoint = 0,
    /// The first one of a companion.
    Start = 1,
    /// The last one before the server stops.
    Closing = 2,
    /// A command asked for it.
    Asked = 3,
}

impl RoundKind {
    /// All kinds.
    pub const ALL: [RoundKind; 4] = [RoundKind::Checkpoint, RoundKind::Start, RoundKind::Closing, RoundKind::Asked];
    /// Its name.
    pub fn name(self) -> &'static str {
        ["checkpoint", "start", "closing", "asked"][self as usize]
    }
}

/// The head of a commit's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The CSN of the transaction.
    pub csn: Csn,
    /// Its token.
    pub token: u64,
    /// The full transaction id by which the commit log decides. `None`: it has committed.
    pub xid: Option<u64>,
    /// Its session waits until standbys have replayed the record: they are to tell so at once.
    pub reply: bool,
}

impl Head {
    fn check(&self) -> Result<(), Malformed> {
        require(self.csn >= 1 && self.csn <= CSN_MAX, "a commit with an impossible CSN")?;
        require(self.token <= LOW, "a commit with an impossible token")?;
        require(self.xid != Some(0), "a commit with an impossible transaction id")
    }
}

/// What one entry says, as an item of a commit's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The table's place among the storages of the record.
    pub table: u8,
    /// The entry: with the head's CSN, pending on the head's transaction id.
    pub entry: Entry<'a>,
}

/// The record of a commit.
#[derive(Clone, Copy, Debug)]
pub struct Commit<'a> {
    /// Its head.
    pub head: Head,
    /// The number of its items.
    pub nitems: u32,
    tables: &'a [u8],
    items: &'a [u8],
}

/// A record.
#[derive(Clone, Copy, Debug)]
pub enum Record<'a> {
    /// [`Op::Commit`] or [`Op::XCommit`].
    Commit(Commit<'a>),
    /// [`Op::Reserve`].
    Reserve {
        /// The table.
        storage: Storage,
        /// Numbers below this one may be in indexes (INV-HIGH).
        upto: u32,
    },
    /// [`Op::Image`].
    Image {
        /// Why the pages were written.
        kind: ImageKind,
        /// The number of entries on them.
        entries: u32,
    },
    /// [`Op::Round`].
    Round(Round),
    /// [`Op::Change`].
    Change(Change<'a>),
    /// [`Op::Stable`].
    Stable(Stable<'a>),
}

/// What standbys may show (INV-STABLE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stable<'a> {
    /// Where WAL was when the writer's shared memory began to log commits: the name of its *life*.
    /// CSNs are compared within one life only.
    pub life: Lsn,
    /// All commits of this life up to here are in WAL before this record, and decided there. 0: the
    /// record tells a horizon only.
    pub csn: Csn,
    /// Records of index entries that go follow: they are of rows that were deleted below this CSN.
    /// 0: none do. Above `csn`, where prepared transactions hold that back: nothing is shown then
    /// before it is stable.
    pub horizon: Csn,
    /// The ids of the transactions that are prepared at `csn`, of eight bytes each: their rows are
    /// logged under CSNs up to there, and they commit later, or not at all.
    pub open: &'a [u8],
}

impl<'a> Stable<'a> {
    /// The ids of the transactions that are prepared.
    pub fn open(&self) -> impl ExactSizeIterator<Item = u64> + Clone + use<'a> {
        let bytes = |chunk: &[u8]| <[u8; 8]>::try_from(chunk).unwrap_or_default();
        self.open.chunks_exact(8).map(move |chunk| u64::from_le_bytes(bytes(chunk)))
    }
}

/// The end of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// The redo pointer that it was made for.
    pub redo: Lsn,
    /// The clock.
    pub clock: Csn,
    /// The largest token.
    pub token: u64,
    /// When it ended, in microseconds as PostgreSQL counts them.
    pub time: i64,
    /// Why it was made.
    pub kind: RoundKind,
}

impl<'a> Record<'a> {
    /// Reads the main data of a record.
    pub fn parse(op: Op, data: &'a [u8]) -> Result<Record<'a>, Malformed> {
        let mut bytes = Bytes(data);
        Ok(match op {
            Op::Commit | Op::XCommit => Record::Commit(Commit::parse(op, bytes)?),
            Op::Reserve => {
                let (storage, upto) = (bytes.storage()?, bytes.u32()?);
                require(upto as u64 <= MAX_RECORDS, "a reservation above all records")?;
                bytes.end()?;
                Record::Reserve { storage, upto }
            }
            Op::Image => {
                let kind = ImageKind::ALL.get(bytes.u8()? as usize);
                let kind = *kind.ok_or(Malformed("images of no known kind"))?;
                require(bytes.u8()? == 0 && bytes.u16()? == 0, "unknown bits in a record of images")?;
                let entries = bytes.u32()?;
                bytes.end()?;
                Record::Image { kind, entries }
            }
            Op::Round => Record::Round(Round::parse(bytes)?),
            Op::Change => Record::Change(Change::parse(bytes)?),
            Op::Stable => {
                let (life, csn, horizon) = (bytes.u64()?, bytes.u64()?, bytes.u64()?);
                require(csn <= CSN_MAX && (csn, horizon) != (0, 0), "an impossible stable CSN")?;
                require(horizon <= CSN_MAX, "an impossible horizon")?;
                let open = bytes.0;
                require(open.len() % 8 == 0 && open.len() / 8 <= OPEN_MAX, "impossible prepared transactions")?;
                Record::Stable(Stable { life, csn, horizon, open })
            }
        })
    }
}

impl Round {
    fn parse(mut bytes: Bytes) -> Result<Round, Malformed> {
        let (redo, clock, token) = (bytes.u64()?, bytes.u64()?, bytes.u64()?);
        require(clock <= CSN_MAX && token <= LOW, "a round at an impossible clock")?;
        let time = bytes.u64()? as i64;
        let kind = RoundKind::ALL.get(bytes.u8()? as usize);
        let kind = *kind.ok_or(Malformed("a round of no known kind"))?;
        require(bytes.take(7)? == [0; 7], "unknown bits in a round")?;
        bytes.end()?;
        Ok(Round { redo, clock, token, time, kind })
    }
}

impl<'a> Commit<'a> {
    fn parse(op: Op, mut bytes: Bytes<'a>) -> Result<Commit<'a>, Malformed> {
        let (word, token, nitems) = (bytes.u64()?, bytes.u64()?, bytes.u32()?);
        require((word & !REPLY) >> WORD == (FORMAT as u64) << 8, "a commit of another format")?;
        let xid = if op == Op::XCommit { Some(bytes.u64()?) } else { None };
        let head = Head { csn: word & LOW, token: token & LOW, xid, reply: word & REPLY != 0 };
        head.check()?;
        let ntables = (token >> WORD) as usize;
        require((1..=TABLES_MAX).contains(&ntables), "a commit into no table, or into too many")?;
        let tables = bytes.take(12 * ntables)?;
        let commit = Commit { head, nitems, tables, items: bytes.0 };
        for _ in 0..nitems {
            let item = next_item(&mut bytes, &head)?;
            require((item.table as usize) < ntables, "an item of a table that the record does not name")?;
        }
        bytes.end()?;
        Ok(commit)
    }
    /// The tables.
    pub fn tables(&self) -> impl ExactSizeIterator<Item = Storage> + use<'a> {
        self.tables.chunks_exact(12).map(|bytes| {
            // A chunk has twelve bytes, so there is a storage in it.
            Bytes(bytes).storage().unwrap_or(Storage { tablespace: 0, database: 0, number: 0 })
        })
    }
    /// The items, in the order in which they were added.
    pub fn items(&self) -> impl Iterator<Item = Item<'a>> + use<'a> {
        let (mut bytes, head) = (Bytes(self.items), self.head);
        // `parse` has read all of them: only the end fails.
        std::iter::from_fn(move || next_item(&mut bytes, &head).ok())
    }
}

/// The rows of a commit's record that this process has made just now: the places of their tables
/// among its storages, and their numbers, in the order of its items. Looks at nothing else.
pub fn rows_of(op: Op, data: &[u8]) -> impl Iterator<Item = (u8, u32)> + use<'_> {
    let tables: usize = data.get(TABLES..TABLES + 2).map_or(0, |bytes| u16_at(bytes, 0).into());
    let head = if op == Op::XCommit { HEAD + 8 } else { HEAD };
    let mut left = data.get(head + 12 * tables..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (word, rest) = left.split_first_chunk::<ITEM>()?;
        let word = u64::from_le_bytes(*word);
        let place = if is_fragment((word >> WORD) as u8) { 8 } else { 0 };
        let len = usize::from((word >> 32) as u16);
        left = rest.get(place + len..).unwrap_or_default();
        Some(((word >> (WORD + 8)) as u8, word as u32))
    })
}

fn next_item<'a>(bytes: &mut Bytes<'a>, head: &Head) -> Result<Item<'a>, Malformed> {
    let (record, len, byte, table) = (bytes.u32()?, bytes.u16()?, bytes.u8()?, bytes.u8()?);
    let (kind, pending, fragment) = of_kind_byte(byte)?;
    require(!pending && kind != Kind::High, "an item of a kind that no commit has")?;
    let fragment = if fragment { Some(Fragment { at: bytes.u32()?, total: bytes.u32()? }) } else { None };
    let payload = bytes.take(len as usize)?;
    let entry = Entry { csn: head.csn, kind, record, pending: head.xid, fragment, payload };
    entry.check()?;
    Ok(Item { table, entry })
}

/// Appends an item up to its payload, which has so many bytes.
#[inline]
fn put_item_head(to: &mut Vec<u8>, table: u8, kind: Kind, record: u32, len: usize, fragment: Option<Fragment>) {
    let kind = kind_byte(kind, false, fragment.is_some());
    let word = record as u64 | (len as u64) << 32 | (kind as u64) << 48 | (table as u64) << 56;
    to.extend_from_slice(&word.to_le_bytes());
    if let Some(fragment) = fragment {
        to.extend_from_slice(&fragment.at.to_le_bytes());
        to.extend_from_slice(&fragment.total.to_le_bytes());
    }
}
