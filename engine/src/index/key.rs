//! Keys: entries of nodes, positions to search for, and their order.
//!
//! **INV-BLOB**: A blob (a length and a long key) is complete before an entry names it, and never
//! changes. A reader follows its address only after it compared the node's version, so that the
//! address was that of a blob when it was read. Each entry owns its blob, also in inner nodes:
//! separators are copies. A blob is retired after no node names it.

use super::Index;
use crate::memory::{OutOfMemory, Region};
use crate::platform::Platform;
use std::cmp::Ordering;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::rc::Rc;

/// Keys of at most this many bytes are in the entry itself.
pub(super) const INLINE: usize = 8;
const LEN_BYTES: usize = size_of::<u32>();

/// An entry of a node, as words. In a leaf it is a key and its record; in an inner node it is the
/// lower bound of a child.
///
/// `blob` is the length of the key if it has at most 8 bytes (they are in `prefix`), else the
/// address of a blob (INV-BLOB).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The first 8 bytes of the key, big endian and padded with zeroes, so that they compare as
    /// keys do.
    pub prefix: u64,
    pub blob: u64,
    pub record: u32,
}

impl Entry {
    /// The entry of an inner node's first child, which is never compared.
    pub const LOW: Entry = Entry { prefix: 0, blob: 0, record: 0 };

    /// Makes an entry, with a blob of its own if the key is long.
    pub fn new(region: &Region, slot: usize, key: &[u8], record: u32) -> Result<Entry, OutOfMemory> {
        let blob = if key.len() <= INLINE { key.len() as u64 } else { new_blob(region, slot, key)? };
        Ok(Entry { prefix: prefix_of(key), blob, record })
    }

    pub fn is_inline(&self) -> bool {
        self.blob <= INLINE as u64
    }

    /// The memory that the entry owns.
    pub fn memory(&self) -> Option<NonNull<u8>> {
        if self.is_inline() {
            return None;
        }
        NonNull::new(ptr::with_exposed_provenance_mut(self.blob as usize))
    }

    /// The size of that memory in bytes.
    pub fn blob_bytes(&self) -> u64 {
        if self.is_inline() {
            return 0;
        }
        (LEN_BYTES + self.key().len()) as u64
    }

    /// The key. The caller is pinned and has read the entry consistently, or owns the entry.
    pub fn key(&self) -> Key<'static> {
        Key { inline: self.prefix.to_be_bytes(), blob: self.blob, pinned: PhantomData }
    }
}

impl Index {
    /// Does an entry of this key need memory outside its node?
    pub(crate) fn has_memory(key: &[u8]) -> bool {
        key.len() > INLINE
    }
}

#[inline]
pub(super) fn prefix_of(key: &[u8]) -> u64 {
    if let Some(first) = key.first_chunk::<INLINE>() {
        return u64::from_be_bytes(*first);
    }
    if let (Some(first), Some(last)) = (key.first_chunk::<4>(), key.last_chunk::<4>()) {
        // They overlap, and agree there.
        let missing = u8::BITS as usize * (INLINE - key.len());
        return u64::from(u32::from_be_bytes(*first)) << 32 | u64::from(u32::from_be_bytes(*last)) << missing;
    }
    key.iter().rev().fold(0, |all, byte| all >> 8 | u64::from(*byte) << 56)
}

#[cfg(all(test, not(loom)))]
#[test]
fn prefixes_are_the_first_bytes() {
    let key: [u8; 12] = std::array::from_fn(|i| 0xF0 - i as u8);
    for n in 0..=key.len() {
        let mut bytes = [0; INLINE];
        bytes[..n.min(INLINE)].copy_from_slice(&key[..n.min(INLINE)]);
        assert_eq!(prefix_of(&key[..n]), u64::from_be_bytes(bytes), "{n}");
    }
}

fn new_blob(region: &Region, slot: usize, key: &[u8]) -> Result<u64, OutOfMemory> {
    let len = u32::try_from(key.len()).map_err(|_| OutOfMemory)?;
    let p = region.alloc(slot, LEN_BYTES + key.len())?;
    // SAFETY: INV-M1, INV-M3: fresh memory of that size, 8-byte aligned.
    unsafe {
        p.cast::<u32>().write(len);
        ptr::copy_nonoverlapping(key.as_ptr(), p.as_ptr().add(LEN_BYTES), key.len());
    }
    Ok(p.as_ptr().expose_provenance() as u64)
}

/// A key in the index. It is valid as long as the pin under which it was read.
#[derive(Clone, Copy)]
pub struct Key<'a> {
    inline: [u8; INLINE],
    blob: u64,
    pinned: PhantomData<&'a [u8]>,
}

impl Key<'_> {
    /// The key's bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        if self.blob <= INLINE as u64 {
            return &self.inline[..self.blob as usize];
        }
        let p = ptr::with_exposed_provenance::<u8>(self.blob as usize);
        // SAFETY: INV-BLOB, INV-OLC: the address was read consistently from a node, so it was the
        // address of a blob then. INV-RETIRE: the caller has been pinned since.
        unsafe { std::slice::from_raw_parts(p.add(LEN_BYTES), *p.cast::<u32>() as usize) }
    }
}

impl std::ops::Deref for Key<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.bytes()
    }
}

/// The source of a position's bytes.
#[derive(Clone)]
enum Source {
    Entry,
    Own(Rc<[u8]>),
    /// In front of all entries; it has no key.
    Lowest,
    /// Behind all entries; it has no key.
    Highest,
}

/// A position between entries: in front of the first entry that is not smaller.
#[derive(Clone)]
pub(super) struct Position {
    entry: Entry,
    source: Source,
    /// `u64::MAX`: behind all entries of the key.
    record: u64,
}

impl Position {
    /// The position in front of all entries of the key, or behind them.
    pub fn of_key(key: &[u8], behind: bool) -> Position {
        let record = if behind { u64::MAX } else { 0 };
        Self::of(key, record)
    }

    /// The position in front of this entry.
    pub fn of(key: &[u8], record: u64) -> Position {
        let inline = key.len() <= INLINE;
        let entry = Entry { prefix: prefix_of(key), blob: if inline { key.len() as u64 } else { 0 }, record: 0 };
        let source = if inline { Source::Entry } else { Source::Own(key.into()) };
        Position { entry, source, record }
    }

    /// The position in front of an entry. The caller is pinned and has read the entry consistently,
    /// or owns it.
    pub fn before(e: Entry) -> Position {
        Position { entry: e, source: Source::Entry, record: e.record as u64 }
    }

    /// The position in front of all entries of this entry's key, or behind them. As
    /// [`Position::before`].
    pub fn beside(e: Entry, behind: bool) -> Position {
        Position { record: if behind { u64::MAX } else { 0 }, ..Self::before(e) }
    }

    /// The position in front of all entries.
    pub fn lowest() -> Position {
        Position { entry: Entry::LOW, source: Source::Lowest, record: 0 }
    }

    /// The position behind all entries.
    pub fn highest() -> Position {
        Position { entry: Entry::LOW, source: Source::Highest, record: 0 }
    }

    /// The position behind an entry.
    pub fn behind(e: Entry) -> Position {
        Position { record: e.record as u64 + 1, ..Self::before(e) }
    }

    fn is_inline(&self) -> bool {
        matches!(self.source, Source::Entry) && self.entry.is_inline()
    }

    fn compare_rest(&self, index: &Index, p: &dyn Platform, e: &Entry) -> Ordering {
        let (own, key) = (self.entry.key(), e.key());
        let bytes = match &self.source {
            Source::Own(b) => b,
            _ => own.bytes(),
        };
        if index.order() == 0 {
            key.bytes().cmp(bytes)
        } else {
            p.compare_keys(index.order(), key.bytes(), bytes)
        }
    }
}

/// The result of comparing the prefixes of two keys.
pub(super) enum Quick {
    /// They decide the order.
    Decided(Ordering),
    /// The whole keys must be compared.
    Open,
}

impl Position {
    /// Compares an entry with the position as far as no blob is needed. Accepts inconsistent words.
    #[inline]
    pub fn quick(&self, index: &Index, e: &Entry) -> Quick {
        match self.source {
            Source::Lowest => return Quick::Decided(Ordering::Greater),
            Source::Highest => return Quick::Decided(Ordering::Less),
            _ if index.order() != 0 => return Quick::Open,
            _ => {}
        }
        match e.prefix.cmp(&self.entry.prefix) {
            // Prefixes are equal. If both keys are short, the longer one only has more zeroes at
            // its end.
            Ordering::Equal if e.is_inline() && self.is_inline() => {
                let by_length = e.blob.cmp(&self.entry.blob);
                Quick::Decided(by_length.then_with(|| (e.record as u64).cmp(&self.record)))
            }
            Ordering::Equal => Quick::Open,
            o => Quick::Decided(o),
        }
    }

    /// The first bytes of the key as a number, if they decide the order of all entries with other
    /// first bytes.
    #[inline]
    pub fn leading(&self, index: &Index) -> Option<u64> {
        (index.order() == 0 && !matches!(self.source, Source::Lowest | Source::Highest)).then_some(self.entry.prefix)
    }

    /// The order of an entry and the position. The caller is pinned and has read the entry
    /// consistently, or owns it. May unwind, so no latch may be held.
    pub fn compare(&self, index: &Index, p: &dyn Platform, e: &Entry) -> Ordering {
        match self.quick(index, e) {
            Quick::Decided(o) => o,
            Quick::Open => self.compare_rest(index, p, e).then_with(|| (e.record as u64).cmp(&self.record)),
        }
    }
}
