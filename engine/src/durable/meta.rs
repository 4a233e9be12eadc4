//! The meta page: block 0 of a table's main fork.
//!
//! **INV-HIGH**: No index names a record number at or above the high water that is durable before
//! the index entry is. The high water of a table is the largest of the meta page's, those of
//! entries of kind `High`, and one more than each record number with an entry. After a restart the
//! numbers below it without a row are dead until VACUUM, and those above it were never used.
//!
//! **INV-BIRTH**: The meta page of a storage tells a CSN that is not below that of the commit which
//! has made the storage. It is in WAL before that commit is. If a prepared transaction has made it,
//! the CSN is above that of PREPARE: no standby shows anything between the two (INV-STABLE). So a
//! snapshot of a standby that is not below this CSN shows all else that the commit has done. CSNs
//! are of one life of the primary: the position in WAL at the birth says of which.

use super::bytes::Bytes;
use super::page::{Page, PageKind, PageMut, BODY, PAGE};
use super::rules::{self, Rules};
use super::{require, Lsn, Malformed};
use crate::csn::{Csn, CSN_MAX};
use crate::table::MAX_RECORDS;

/// The bytes of its body, without rules.
const LEN: usize = 64;
const _: () = assert!(LEN + 1 + rules::MOST <= BODY);

/// The birth of a storage (INV-BIRTH). All-zero: it is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Birth {
    /// A CSN at or above that of the commit which has made the storage.
    pub csn: Csn,
    /// Where WAL was then.
    pub at: Lsn,
}

impl Birth {
    /// What the special area of a meta page says.
    pub fn of(page: &Page) -> Birth {
        Birth { csn: page.special.csn_max, at: page.special.b }
    }
    /// Snapshots below this CSN are older than the storage, in the life that has begun there. 0:
    /// there are none, as the storage is older than the life.
    pub fn floor(&self, life: Lsn) -> Csn {
        if self.at > life {
            self.csn
        } else {
            0
        }
    }
}

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
    /// The birth of the storage.
    pub birth: Birth,
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
        PageMut::begin(page, PageKind::Meta, 0, 0, self.round, self.birth.at).put_body(&body, self.birth.csn);
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
            birth: Birth::of(page),
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_storage_has_its_birth_in_its_meta_page() {
        for birth in [Birth::default(), Birth { csn: 7, at: 100 }] {
            let (meta, mut bytes) = (Meta { rows: 3, birth, ..Meta::default() }, [0; PAGE]);
            meta.write(&mut bytes);
            let page = Page::read(&bytes, 0).unwrap().unwrap();
            assert_eq!((Birth::of(&page), Meta::read(&page)), (birth, Ok(meta)));
        }
    }

    #[test]
    fn a_birth_counts_in_its_life_only() {
        let birth = Birth { csn: 7, at: 100 };
        assert_eq!([99, 100, 101].map(|life| birth.floor(life)), [7, 0, 0]);
        assert_eq!(Birth::default().floor(0), 0);
    }
}
