//! Pages of 8 kB: images of rows, the journal, and the first page of a table (`meta`).
//!
//! A page begins with the header of PostgreSQL's pages and ends with our *special* area. Entries
//! stand between the header and `pd_lower`; the hole up to the special area is zero, so that full
//! page images leave it out.
//!
//! **INV-PAGE**: A page that was read has two right checksums, a hole of zeros, and valid entries
//! only. One checksum covers the entries, and an append extends it. The other covers the header and
//! the special area with the first one, but neither `pd_lsn` nor `pd_checksum`, which PostgreSQL
//! sets. So an append costs its own bytes, and never makes damaged bytes before it valid.
//!
//! **INV-JOURNAL**: A journal page belongs to one redo interval: entries of another one go to
//! another page. So a page that a crash has torn has only entries that are replayed again. A page
//! is used again only if its last record ends below the table's journal horizon.

use super::bytes::{u16_at, Bytes};
use super::entry::Entry;
use super::{require, Lsn, Malformed};
use crate::csn::{Csn, CSN_MAX};

/// The size of a page.
pub const PAGE: usize = 8192;
/// The size of PostgreSQL's page header. Entries begin behind it.
pub const HEAD: usize = 24;
/// The size of the special area.
pub const SPECIAL: usize = 56;
/// Where the special area begins.
pub const SPECIAL_AT: usize = PAGE - SPECIAL;
/// The bytes for entries.
pub const BODY: usize = SPECIAL_AT - HEAD;
/// Changes whenever the format of pages or entries changes.
pub const FORMAT: u16 = 1;
const _: () = assert!(BODY == super::entry::HEADER + 2 * super::entry::EXTENSION + super::entry::PIECE);

/// A page on which some entry may be pending.
pub const HAS_PENDING: u16 = 1;
/// A page with one piece of a long row, and nothing else.
pub const LONG: u16 = 2;

// PostgreSQL's header: pd_lsn is 0..8, pd_checksum 8..10.
const FLAGS: usize = 10;
const LOWER: usize = 12;
const UPPER: usize = 14;
const SPECIAL_POINTER: usize = 16;
const SIZE_VERSION: usize = 18;
/// The page size and the version 4 of the layout of pages.
const PAGE_VERSION: u16 = PAGE as u16 | 4;
// In the special area.
const HEAD_CRC: usize = SPECIAL_AT + 20;

/// The kind of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PageKind {
    /// Rows, in the main fork from block 1 on.
    Image = u32::from_le_bytes(*b"MCMI"),
    /// What redo found, in the fork of the free space map.
    Journal = u32::from_le_bytes(*b"MCMJ"),
    /// Block 0 of the main fork.
    Meta = u32::from_le_bytes(*b"MCMB"),
}

impl PageKind {
    fn from_magic(magic: u32) -> Option<PageKind> {
        [PageKind::Image, PageKind::Journal, PageKind::Meta].into_iter().find(|k| *k as u32 == magic)
    }
}

/// The special area, but for the checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Special {
    /// The kind of the page.
    pub kind: PageKind,
    /// The block in which the page belongs.
    pub block: u32,
    /// The number of entries.
    pub entries: u16,
    /// [`HAS_PENDING`], [`LONG`].
    pub flags: u16,
    /// The largest CSN of its entries. The meta page: the CSN of its storage's birth.
    pub csn_max: Csn,
    /// The largest token that the page has been told.
    pub token_max: u64,
    /// A journal page: where its first record begins. An image page: the position in WAL when it
    /// was begun, or written again.
    pub a: Lsn,
    /// A journal page: the end of the last record in it. An image page: the next block of a long
    /// row, or 0. The meta page: the position in WAL at its storage's birth.
    pub b: u64,
}

impl Special {
    fn encode(&self, body_crc: u32) -> [u8; SPECIAL] {
        let mut to = [0; SPECIAL];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            to[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&(self.kind as u32).to_le_bytes());
        put(&self.block.to_le_bytes());
        put(&FORMAT.to_le_bytes());
        put(&self.entries.to_le_bytes());
        put(&self.flags.to_le_bytes());
        put(&[0; 2]);
        put(&body_crc.to_le_bytes());
        put(&[0; 4]); // the checksum of the head
        for number in [self.csn_max, self.token_max, self.a, self.b] {
            put(&number.to_le_bytes());
        }
        to
    }
    /// Reads the special area without its checksums.
    fn decode(page: &[u8; PAGE]) -> Result<(Special, u32, u32), Malformed> {
        let mut bytes = Bytes(&page[SPECIAL_AT..]);
        let kind = PageKind::from_magic(bytes.u32()?).ok_or(Malformed("a page of no known kind"))?;
        let block = bytes.u32()?;
        require(bytes.u16()? == FORMAT, "a page of another format")?;
        let (entries, flags) = (bytes.u16()?, bytes.u16()?);
        require(bytes.u16()? == 0 && flags & !(HAS_PENDING | LONG) == 0, "a page with unknown flags")?;
        let (body_crc, head_crc) = (bytes.u32()?, bytes.u32()?);
        let (csn_max, token_max, a, b) = (bytes.u64()?, bytes.u64()?, bytes.u64()?, bytes.u64()?);
        require(csn_max <= CSN_MAX, "a page with an impossible CSN")?;
        Ok((Special { kind, block, entries, flags, csn_max, token_max, a, b }, body_crc, head_crc))
    }
}

/// The checksum of the header from `pd_flags` on and of the special area without itself.
fn head_crc(page: &[u8; PAGE]) -> u32 {
    let crc = crc32c::crc32c(&page[FLAGS..HEAD]);
    let crc = crc32c::crc32c_append(crc, &page[SPECIAL_AT..HEAD_CRC]);
    crc32c::crc32c_append(crc, &page[HEAD_CRC + 4..])
}

/// Is it a page that was never written? PostgreSQL extends files by pages of zeros.
pub fn is_new(page: &[u8; PAGE]) -> bool {
    page.iter().all(|b| *b == 0)
}

/// May a journal page that cannot be read be passed over? Outside of replay `redo` is `None`.
///
/// A page that is torn was being written in the interval of replay that wrote it last. All records
/// of that interval are replayed again, or an earlier replay has made the page empty at the first
/// of them. So its `a` is at or above `redo`, or its `pd_lsn`, if it is fresh and its end was not
/// written. A page below the horizon is not read any more.
pub fn journal_is_harmless(page: &[u8; PAGE], block: u32, redo: Option<Lsn>, horizon: Lsn) -> bool {
    let replayed = |lsn: Lsn| redo.is_some_and(|redo| lsn >= redo);
    if page[SPECIAL_AT..].iter().all(|b| *b == 0) {
        let lsn = pd_lsn(page);
        return is_new(page) || replayed(lsn) || lsn == 0 && redo.is_some();
    }
    Special::decode(page).is_ok_and(|(special, ..)| {
        let ours = special.kind == PageKind::Journal && special.block == block;
        // An end of 0: it was empty, and was torn when it got its first entries.
        let was_empty = special.b == 0 && redo.is_some();
        ours && (replayed(special.a) || was_empty || special.b < horizon)
    })
}

/// The page's position in WAL, whose higher half comes first.
fn pd_lsn(page: &[u8; PAGE]) -> Lsn {
    let half = |at: usize| (u16_at(page, at) as u64) | (u16_at(page, at + 2) as u64) << 16;
    half(0) << 32 | half(4)
}

/// May redo begin this journal page anew (INV-JOURNAL)?
pub fn journal_is_free(page: &[u8; PAGE], block: u32, redo: Lsn, horizon: Lsn) -> bool {
    match Page::read(page, block) {
        Ok(None) => true,
        Ok(Some(page)) => page.special.kind == PageKind::Journal && page.special.b < horizon,
        Err(_) => journal_is_harmless(page, block, Some(redo), horizon),
    }
}

/// A page that was read and is right (INV-PAGE).
#[derive(Clone, Copy)]
pub struct Page<'a> {
    body: &'a [u8],
    /// The special area.
    pub special: Special,
}

impl<'a> Page<'a> {
    /// Reads the page in this block. `None`: it was never written.
    pub fn read(page: &'a [u8; PAGE], block: u32) -> Result<Option<Page<'a>>, Malformed> {
        let found = Page::read_again(page, block)?;
        if let Some(found) = &found {
            let hole = &page[HEAD + found.body.len()..SPECIAL_AT];
            require(hole.iter().all(|b| *b == 0), "a hole that is not zero")?;
            found.check_entries()?;
        }
        Ok(found)
    }
    /// Reads a page that this process has read before. Its checksums say that it is the same one,
    /// so its entries are right.
    pub fn read_again(page: &'a [u8; PAGE], block: u32) -> Result<Option<Page<'a>>, Malformed> {
        if u16_at(page, UPPER) == 0 {
            require(is_new(page), "a new page that is not zero")?;
            return Ok(None);
        }
        let lower = u16_at(page, LOWER) as usize;
        require(u16_at(page, SIZE_VERSION) == PAGE_VERSION, "a page of another size or layout")?;
        let ends = [u16_at(page, UPPER), u16_at(page, SPECIAL_POINTER)];
        require(ends == [SPECIAL_AT as u16; 2], "a page with another special area")?;
        require((HEAD..=SPECIAL_AT).contains(&lower), "a page with an impossible end of its entries")?;
        let (special, body_crc, head) = Special::decode(page)?;
        require(head == head_crc(page), "a wrong checksum of a page")?;
        require(special.block == block, "a page that belongs in another block")?;
        let body = &page[HEAD..lower];
        require(body_crc == crc32c::crc32c(body), "a wrong checksum of entries")?;
        Ok(Some(Page { body, special }))
    }
    fn check_entries(&self) -> Result<(), Malformed> {
        if self.special.kind == PageKind::Meta {
            return require(self.special.entries == 0, "entries where none belong");
        }
        let (mut at, mut entries, mut csn_max, mut pending) = (0, 0, 0, false);
        while at < self.body.len() {
            let (entry, size) = Entry::decode(&self.body[at..])?;
            at += size;
            entries += 1;
            csn_max = entry.csn.max(csn_max);
            pending |= entry.pending.is_some();
        }
        require(entries == self.special.entries, "another number of entries than the page says")?;
        require(csn_max == self.special.csn_max, "another largest CSN than the page says")?;
        require(!pending || self.special.flags & HAS_PENDING != 0, "a pending entry that the page does not tell of")
    }
    /// The entries, each with its offset in the page.
    pub fn entries(&self) -> impl Iterator<Item = (u16, Entry<'a>)> + use<'a> {
        let body = if self.special.kind == PageKind::Meta { &[][..] } else { self.body };
        let mut at = 0;
        std::iter::from_fn(move || {
            let (entry, size) = Entry::decode(body.get(at..)?).ok()?; // INV-PAGE: only the end fails
            let offset = (HEAD + at) as u16;
            at += size;
            Some((offset, entry))
        })
    }
    /// The bytes between header and hole.
    pub(super) fn body(&self) -> &'a [u8] {
        self.body
    }
}

/// What the writer of a page keeps of it, to go on with it later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The special area.
    pub special: Special,
    body_crc: u32,
    lower: usize,
}

/// A page that is being written. It is right after every call (INV-PAGE).
pub struct PageMut<'a> {
    page: &'a mut [u8; PAGE],
    special: Special,
    body_crc: u32,
    lower: usize,
}

impl<'a> PageMut<'a> {
    /// Makes the page an empty one. `a` and `b` are those of [`Special`].
    pub fn begin(page: &'a mut [u8; PAGE], kind: PageKind, block: u32, flags: u16, a: Lsn, b: u64) -> PageMut<'a> {
        page.fill(0);
        for (at, value) in
            [(UPPER, SPECIAL_AT as u16), (SPECIAL_POINTER, SPECIAL_AT as u16), (SIZE_VERSION, PAGE_VERSION)]
        {
            page[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        let special = Special { kind, block, entries: 0, flags, csn_max: 0, token_max: 0, a, b };
        let mut this = PageMut { page, special, body_crc: 0, lower: HEAD };
        this.seal();
        this
    }
    /// Goes on with a page that was written before. `None`: it is new.
    pub fn go_on(page: &'a mut [u8; PAGE], block: u32) -> Result<Option<PageMut<'a>>, Malformed> {
        let Some(read) = Page::read(page, block)? else { return Ok(None) };
        let (special, lower) = (read.special, HEAD + read.body.len());
        let body_crc = crc32c::crc32c(read.body);
        Ok(Some(PageMut { page, special, body_crc, lower }))
    }
    /// Goes on with a page that this process has written before, and that no other process writes.
    /// `None`: another page stands there now.
    pub fn resume(page: &'a mut [u8; PAGE], tail: &Tail) -> Option<PageMut<'a>> {
        let special = tail.special.encode(tail.body_crc);
        let (before, after) = (HEAD_CRC - SPECIAL_AT, HEAD_CRC + 4 - SPECIAL_AT);
        let there = &page[SPECIAL_AT..];
        let same = there[..before] == special[..before] && there[after..] == special[after..];
        let Tail { special, body_crc, lower } = *tail;
        (same && u16_at(page, LOWER) as usize == lower).then_some(PageMut { page, special, body_crc, lower })
    }
    /// What [`PageMut::resume`] needs.
    pub fn tail(&self) -> Tail {
        Tail { special: self.special, body_crc: self.body_crc, lower: self.lower }
    }
    /// The special area.
    pub fn special(&self) -> &Special {
        &self.special
    }
    /// The page is complete.
    pub fn finish(self) -> &'a mut [u8; PAGE] {
        self.page
    }
    /// The bytes that are left.
    pub fn room(&self) -> usize {
        SPECIAL_AT - self.lower
    }
    /// Adds an entry, and says at which offset. `None`: it does not fit.
    pub fn append(&mut self, entry: &Entry) -> Option<u16> {
        let size = entry.size();
        if size > self.room() {
            return None;
        }
        let at = self.lower;
        entry.encode(&mut self.page[at..at + size]);
        self.special.entries += 1;
        self.special.csn_max = self.special.csn_max.max(entry.csn);
        self.special.flags |= if entry.pending.is_some() { HAS_PENDING } else { 0 };
        self.extend(size);
        Some(at as u16)
    }
    /// Adds an entry of a record that ends at `lsn` and has this token, to a journal page. `None`:
    /// it does not fit.
    pub fn append_replayed(&mut self, entry: &Entry, lsn: Lsn, token: u64) -> Option<u16> {
        let at = self.append(entry)?;
        self.special.b = self.special.b.max(lsn);
        self.tell_token(token);
        Some(at)
    }
    /// Notes a token.
    pub fn tell_token(&mut self, token: u64) {
        self.special.token_max = self.special.token_max.max(token);
        self.seal();
    }
    /// Writes the body of a meta page, and the CSN of its storage's birth.
    pub(super) fn put_body(&mut self, body: &[u8], birth: Csn) {
        debug_assert!(self.lower == HEAD && body.len() <= BODY);
        self.special.csn_max = birth;
        self.page[HEAD..HEAD + body.len()].copy_from_slice(body);
        self.extend(body.len());
    }
    /// Changes a byte behind the writer's back, which knows only the checksum.
    #[cfg(test)]
    pub(super) fn damage(&mut self, at: usize) {
        self.page[at] ^= 1;
    }
    fn extend(&mut self, size: usize) {
        self.body_crc = crc32c::crc32c_append(self.body_crc, &self.page[self.lower..self.lower + size]);
        self.lower += size;
        self.seal();
    }
    fn seal(&mut self) {
        self.page[LOWER..LOWER + 2].copy_from_slice(&(self.lower as u16).to_le_bytes());
        self.page[SPECIAL_AT..].copy_from_slice(&self.special.encode(self.body_crc));
        let crc = head_crc(self.page);
        self.page[HEAD_CRC..HEAD_CRC + 4].copy_from_slice(&crc.to_le_bytes());
    }
}
