//! The meta page: block 0 of a table's main fork.
//!
//! **INV-HIGH**: No index names a record number at or above the high water that is durable before
//! the index entry is. The high water of a table is the largest of the meta page's, those of
//! entries of kind `High`, and one more than each record number with an entry. After a restart the
//! numbers below it without a row are dead until VACUUM, and those above it were never used.

use super::bytes::Bytes;
use super::page::{Page, PageKind, PageMut, BODY, PAGE};
use super::rules::{self, Rules};
use super::{require, Lsn, Malformed};
use crate::csn::{Csn, CSN_MAX};
use crate::table::MAX_RECORDS;

/// The bytes of its body, without rules.
const LEN: usize = 64;
const _: () = assert!(LEN + 1 + rules::MOST <= BODY);

/// What the meta page says.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Meta {
    /// The journal horizon: all journal pages whose last record ends below it are in images.
    pub horizon: Lsn,
    /// The redo pointer of the last round that has written here.
    pub round: Lsn,
    /// A value of the clock at or above all CSNs in the table when the page was written.
    pub clock: Csn,
    /// The largest token.
    pub token: u64,
    /// The bytes of live rows, for the room that a load needs.
    pub live_bytes: u64,
    /// The number of live rows.
    pub rows: u64,
    /// The high water of record numbers (INV-HIGH).
    pub high: u32,
    /// The number of blocks of the main fork.
    pub blocks: u32,
    /// The protocols of the partitions.
    pub rules: Rules,
}

impl Meta {
    /// Writes the page.
    pub fn write(&self, page: &mut [u8; PAGE]) {
        debug_assert_eq!(self.check(), Ok(()));
        let mut body = vec![0; LEN];
        let longs = [self.horizon, self.round, self.clock, self.token, self.live_bytes, self.rows];
        for (to, number) in body.chunks_exact_mut(8).zip(longs) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        for (to, number) in body[48..].chunks_exact_mut(4).zip([self.high, self.blocks]) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        body[56..LEN].copy_from_slice(&(self.rules.bytes().len() as u64).to_le_bytes());
        body.extend_from_slice(self.rules.bytes());
        PageMut::begin(page, PageKind::Meta, 0, 0, self.round, 0).put_body(&body);
    }
    /// Reads it from a page that is right.
    pub fn read(page: &Page) -> Result<Meta, Malformed> {
        require(page.special.kind == PageKind::Meta, "another page stands in place of the meta page")?;
        let mut bytes = Bytes(page.body());
        let mut meta = Meta {
            horizon: bytes.u64()?,
            round: bytes.u64()?,
            clock: bytes.u64()?,
            token: bytes.u64()?,
            live_bytes: bytes.u64()?,
            rows: bytes.u64()?,
            high: bytes.u32()?,
            blocks: bytes.u32()?,
            rules: Rules::default(),
        };
        let rules = usize::try_from(bytes.u64()?).unwrap_or(usize::MAX);
        meta.rules = Rules::read(bytes.take(rules)?)?;
        bytes.end()?;
        meta.check()?;
        Ok(meta)
    }
    fn check(&self) -> Result<(), Malformed> {
        require(self.clock <= CSN_MAX, "an impossible clock in the meta page")?;
        require(self.high as u64 <= MAX_RECORDS, "a high water above all records in the meta page")
    }
}
