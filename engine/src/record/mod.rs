//! Records and their versions.
//!
//! **INV-VERSION**: A version's payload is complete before the version is reachable, and does not
//! change afterwards. The one exception is the platform's stamp in step 4 of the commit, when no
//! other process reads the payload yet. The payload of a tombstone begins with a [`Successor`].
//!
//! **INV-CHANGED**: A version that names columns differs in no other column from the version that
//! its transaction has replaced, nor from the next older one of its chain. What it names is
//! complete before the version is linked. When the pruner unlinks a version, the one above it names
//! that one's columns too, or none, before it leads past it. So a walk reads `older` of a version
//! before what the version names. Inserts and tombstones name no columns, nor do
//! versions of loads and of replay: they may differ in everything.
//!
//! **INV-KEYS**: A tombstone has the key of each entry of its row, with the number of the index in
//! the table; or its row was inserted by the same transaction, which knows them. It may name an
//! index that has no such entry: one that was made after the delete, and has the number of another
//! one. For that one was filled without the row, and the record's number is not used again
//! meanwhile (INV-DEAD).

use crate::csn::{Csn, Stamp};
use crate::lock::LockWord;
use crate::primitive::{prefetch, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering};
use crate::range::Columns;

/// The permanent place of a row: a stable address, the newest version and one lock word.
///
/// All-zero memory is a free record.
#[repr(C)]
pub struct Record {
    head: AtomicPtr<Version>,
    /// The record's lock word, honoured by all protocols and isolation levels.
    pub lock: LockWord,
    /// The record's partition in the table's current and previous map (see
    /// [`crate::partition::PartitionMap`]).
    pub part: [AtomicU16; 2],
    /// The id of a transaction whose insert, delete or move is not committed yet, for unique
    /// checks. 0: none (INV-WRITER).
    pub writer: AtomicU32,
    /// One of the `REC_` states.
    pub state: AtomicU32,
    /// In a free record: the next entry (record number + 1) of the table's free or limbo list. In a
    /// dead one: 0, or a mark that its index entry waits to be removed (`index/dead_entries.rs`).
    /// Else 0.
    pub next_free: AtomicU32,
}
#[cfg(not(loom))]
const _: () = assert!(std::mem::size_of::<Record>() == 32);

/// Not in use.
pub const REC_FREE: u32 = 0;
/// In use: reserved by an insert, live, or deleted and still reachable.
pub const REC_USED: u32 = 1;
/// The insert was aborted, and index entries may remain.
pub const REC_DEAD: u32 = 2;
/// Found dead by VACUUM, and its index entries are being removed.
pub const REC_VACUUM: u32 = 3;

impl Record {
    /// The newest version, including pending ones. Null in a free or dead record.
    #[inline]
    pub fn head(&self) -> *mut Version {
        self.head.load(Ordering::SeqCst)
    }
    /// Fetches its newest version: the header, and the begin of its row. Decides nothing.
    #[inline(always)]
    pub fn prefetch_row(&self) {
        let v: *const Version = self.head();
        prefetch(v);
        prefetch(v.wrapping_byte_add(64));
    }
    /// Replaces the newest version. The caller holds the record's write lock or has inserted it.
    pub fn set_head(&self, v: *mut Version) {
        self.head.store(v, Ordering::SeqCst);
    }
    /// The same of one of many records. A sequentially consistent fence must follow before anything
    /// that others may take for a sign of it.
    pub(crate) fn set_head_before_fence(&self, v: *mut Version) {
        self.head.store(v, Ordering::Release);
    }
}

/// A version of a row. It is immutable once published. A record's versions form a chain, newest
/// first.
///
/// The payload, a tuple in the extension's layout, follows the header.
#[repr(C)]
pub struct Version {
    older: AtomicPtr<Version>,
    stamp: AtomicU64,
    /// Length of the payload in bytes.
    pub len: u32,
    /// The `VER_` flags.
    flags: AtomicU32,
}
/// Bytes before the payload.
pub const VERSION_HEADER: usize = std::mem::size_of::<Version>();
#[cfg(not(loom))]
const _: () = assert!(VERSION_HEADER == 24);

/// The version is a tombstone: the row is deleted. The payload is a [`Successor`].
pub const VER_TOMBSTONE: u32 = 1;

/// Set beside [`VER_TOMBSTONE`]: the row's keys follow the [`Successor`] (INV-KEYS).
pub const VER_KEYED: u32 = 2;

/// Set by the pruner, in a version that lies in its record's chain no more (INV-UNLINK).
const VER_UNLINKED: u32 = 4;

/// The version names the columns in which it differs from the next older one: the bits from
/// `VER_COLUMNS` on.
const VER_NAMES: u32 = 8;
/// In a tombstone the same bit is set beside [`VER_KEYED`]: each key has its length and the number
/// of its index in front of it. Else there is one, of the primary index.
const VER_NUMBERED: u32 = VER_NAMES;
const VER_COLUMNS: u32 = 4;
const _: () = assert!(VER_COLUMNS + Columns::BITS == u32::BITS);

/// The new place of a moved row. It is the tombstone's payload, or the beginning of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Successor {
    /// Record number + 1 in the same table. 0: deleted. `u64::MAX`: in another declarative
    /// partition.
    pub record: u64,
}

/// The number of indexes that a table may have.
pub const INDEXES: usize = 4;

/// The keys of a row in the indexes of its table, by their numbers (INV-KEYS). `None`: it has no
/// entry there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keys<'a>(pub [Option<&'a [u8]>; INDEXES]);

impl<'a> Keys<'a> {
    /// A row of a table with no other index than the primary one.
    #[inline]
    pub fn primary(key: Option<&'a [u8]>) -> Keys<'a> {
        let mut keys = Keys::default();
        keys.0[0] = key;
        keys
    }

    /// The keys with their numbers.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (usize, &'a [u8])> + use<'a> {
        self.0.into_iter().enumerate().filter_map(|(nth, key)| Some((nth, key?)))
    }

    #[inline]
    fn is_numbered(&self) -> bool {
        self.0[1..].iter().any(Option::is_some)
    }

    /// The flags of a tombstone with these keys, and the length of its payload.
    #[inline]
    pub fn tombstone(&self) -> (u32, usize) {
        let before = size_of::<Successor>();
        if self.is_numbered() {
            let len: usize = self.iter().map(|(_, key)| KEY_HEAD + key.len()).sum();
            return (VER_TOMBSTONE | VER_KEYED | VER_NUMBERED, before + len);
        }
        match self.0[0] {
            Some(key) => (VER_TOMBSTONE | VER_KEYED, before + key.len()),
            None => (VER_TOMBSTONE, before),
        }
    }

    /// Writes the payload of a tombstone.
    ///
    /// # Safety
    /// `payload` has room for as many bytes as [`Keys::tombstone`] says, and no other process reads
    /// them yet.
    #[inline]
    pub unsafe fn write(&self, to: Successor, payload: *mut u8) {
        let mut at = payload.wrapping_add(size_of::<Successor>());
        // SAFETY: by this function's contract there is room for the successor and for each key,
        // with its head if there are several.
        unsafe {
            payload.cast::<Successor>().write_unaligned(to);
            for (nth, key) in self.iter() {
                if self.is_numbered() {
                    at.cast::<[u8; KEY_HEAD]>().write_unaligned(head_of_key(nth, key.len()));
                    at = at.add(KEY_HEAD);
                }
                at.copy_from_nonoverlapping(key.as_ptr(), key.len());
                at = at.add(key.len());
            }
        }
    }

    /// The keys in the bytes behind a tombstone's successor that has several.
    fn read(mut bytes: &'a [u8]) -> Keys<'a> {
        let mut keys = Keys::default();
        while let Some((&[nth, a, b, c, d], rest)) = bytes.split_first_chunk::<KEY_HEAD>() {
            let (key, rest) = rest.split_at(u32::from_ne_bytes([a, b, c, d]) as usize);
            keys.0[nth as usize] = Some(key);
            bytes = rest;
        }
        keys
    }
}

/// In front of a key: the number of its index, and its length.
const KEY_HEAD: usize = 1 + size_of::<u32>();

fn head_of_key(nth: usize, len: usize) -> [u8; KEY_HEAD] {
    let [a, b, c, d] = (len as u32).to_ne_bytes();
    [nth as u8, a, b, c, d]
}

impl Version {
    /// Initialises a version in fresh memory.
    ///
    /// # Safety
    /// `p` points to at least `VERSION_HEADER + len` writable bytes that no other process sees yet.
    pub unsafe fn init(p: *mut Version, stamp: Stamp, len: u32, flags: u32) {
        // SAFETY: INV-VERSION: by this function's contract the memory is large enough and
        // unpublished.
        unsafe {
            p.write(Version {
                older: AtomicPtr::new(std::ptr::null_mut()),
                stamp: AtomicU64::new(stamp.0),
                len,
                flags: AtomicU32::new(flags),
            });
        }
    }
    /// The stamp.
    #[inline]
    pub fn stamp(&self) -> Stamp {
        Stamp(self.stamp.load(Ordering::SeqCst))
    }
    /// Sets the stamp, at publication or when the owner has aborted. Release ordering is enough: a
    /// reader that reads a word which the owner stores afterwards finds this stamp when it looks
    /// again (INV-STAMP). Nothing else is ordered by it.
    pub fn set_stamp(&self, s: Stamp) {
        self.stamp.store(s.0, Ordering::Release);
    }
    /// The next older version. The caller follows it only if its pin protects that version.
    pub fn older(&self) -> *mut Version {
        self.older.load(Ordering::Acquire)
    }
    /// Sets the older version. The owner calls it when it buffers the write, before it links this
    /// version, and the pruner (INV-UNLINK).
    pub fn set_older(&self, v: *mut Version) {
        self.older.store(v, Ordering::Release);
    }
    /// Is it a tombstone?
    #[inline]
    pub fn is_tombstone(&self) -> bool {
        self.has(VER_TOMBSTONE)
    }
    /// Is it a tombstone with its row's keys?
    pub fn is_keyed(&self) -> bool {
        self.has(VER_KEYED)
    }
    #[inline]
    fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Relaxed) & flag != 0
    }
    /// Was it unlinked between snapshots (INV-UNLINK)? Only the pruner asks.
    pub(crate) fn is_unlinked(&self) -> bool {
        self.has(VER_UNLINKED)
    }
    /// The pruner has unlinked it.
    pub(crate) fn set_unlinked(&self) {
        self.flags.fetch_or(VER_UNLINKED, Ordering::Relaxed);
    }
    /// The columns that it names (INV-CHANGED); `None`: it may differ in everything. Read `older`
    /// before it, to pass over the version.
    #[inline]
    pub fn named(&self) -> Option<Columns> {
        let flags = self.flags.load(Ordering::Relaxed);
        let names = flags & (VER_NAMES | VER_TOMBSTONE) == VER_NAMES;
        names.then(|| Columns::from_bits((flags >> VER_COLUMNS) as u64))
    }
    /// Names the columns in which it may differ from the version that it will replace. The owner
    /// calls it before it links this version, which is neither an insert nor a tombstone.
    #[inline]
    pub(crate) fn name(&self, changed: Columns) {
        if changed != Columns::ALL {
            let flags = self.flags.load(Ordering::Relaxed);
            let named = VER_NAMES | (changed.bits() as u32) << VER_COLUMNS;
            self.flags.store(flags & ((1 << VER_COLUMNS) - 1) | named, Ordering::Relaxed);
        }
    }
    /// The pruner is about to unlink the next older version, `below`: this one stands for both. A
    /// tombstone names no columns in any case.
    pub(crate) fn name_also(&self, below: &Version) {
        if self.is_tombstone() {
            return;
        }
        match below.named() {
            Some(c) => self.flags.fetch_or((c.bits() as u32) << VER_COLUMNS, Ordering::Relaxed),
            None => self.flags.fetch_and(!VER_NAMES, Ordering::Relaxed),
        };
    }
    /// The keys that a tombstone holds.
    ///
    /// # Safety
    /// `this` is a version that stays as long as the keys are used (INV-RETIRE).
    pub unsafe fn keys<'a>(this: *const Version) -> Keys<'a> {
        let before = size_of::<Successor>();
        // SAFETY: INV-VERSION: the payload of a keyed tombstone has `len` bytes and begins with a
        // `Successor`. By this function's contract it stays as long as the keys are used.
        unsafe {
            if !(*this).is_keyed() {
                return Keys::default();
            }
            let rest = Version::payload(this).add(before);
            let bytes = std::slice::from_raw_parts(rest, (*this).len as usize - before);
            if (*this).has(VER_NUMBERED) {
                return Keys::read(bytes);
            }
            Keys::primary(Some(bytes))
        }
    }
    /// The address of the payload.
    #[inline]
    pub fn payload(this: *const Version) -> *mut u8 {
        this.cast_mut().cast::<u8>().wrapping_add(VERSION_HEADER)
    }
    /// The successor that a tombstone names.
    ///
    /// # Safety
    /// `this` is a tombstone that the caller's pin protects (INV-RETIRE), or that the caller has
    /// made.
    pub unsafe fn successor(this: *const Version) -> Successor {
        // SAFETY: INV-VERSION: a tombstone's payload is a `Successor`, written before it is linked.
        unsafe {
            debug_assert!((*this).is_tombstone());
            Version::payload(this).cast::<Successor>().read_unaligned()
        }
    }
    /// Has a tombstone name another place.
    ///
    /// # Safety
    /// `this` is a tombstone that the caller has made, and that is not linked yet.
    pub unsafe fn set_successor(this: *mut Version, to: Successor) {
        // SAFETY: INV-VERSION: a tombstone's payload begins with a `Successor`, in front of its
        // keys. No other transaction reads it before it is linked.
        unsafe {
            debug_assert!((*this).is_tombstone());
            Version::payload(this).cast::<Successor>().write_unaligned(to)
        }
    }
    /// The CSN with which the version is stamped, if it is.
    pub fn csn(&self) -> Option<Csn> {
        let s = self.stamp();
        (!s.is_tag() && s != Stamp::ABORTED).then_some(s.0)
    }
}
