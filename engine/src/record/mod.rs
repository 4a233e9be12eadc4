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

/// Set beside [`VER_TOMBSTONE`]: the row's key in the primary index follows the [`Successor`].
pub const VER_KEYED: u32 = 2;

/// Set by the pruner, in a version that lies in its record's chain no more (INV-UNLINK).
const VER_UNLINKED: u32 = 4;

/// The version names the columns in which it differs from the next older one: the bits from
/// `VER_COLUMNS` on.
const VER_NAMES: u32 = 8;
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
    /// Is it a tombstone with its row's key?
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
        (flags & VER_NAMES != 0).then(|| Columns::from_bits((flags >> VER_COLUMNS) as u64))
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
    /// The pruner is about to unlink the next older version, `below`: this one stands for both.
    pub(crate) fn name_also(&self, below: &Version) {
        match below.named() {
            Some(c) => self.flags.fetch_or((c.bits() as u32) << VER_COLUMNS, Ordering::Relaxed),
            None => self.flags.fetch_and(!VER_NAMES, Ordering::Relaxed),
        };
    }
    /// The primary-index key that a keyed tombstone holds.
    ///
    /// # Safety
    /// `this` is a version that stays as long as the key is used (INV-RETIRE).
    pub unsafe fn key<'a>(this: *const Version) -> Option<&'a [u8]> {
        let before = size_of::<Successor>();
        // SAFETY: INV-VERSION: the payload of a keyed tombstone has `len` bytes and begins with a
        // `Successor`. By this function's contract it stays as long as the key is used.
        unsafe {
            let len = (*this).len as usize;
            let key = Version::payload(this).add(before);
            (*this).is_keyed().then(|| std::slice::from_raw_parts(key, len - before))
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
        // SAFETY: INV-VERSION: a tombstone's payload is a `Successor`. No other
        // transaction reads it before it is linked.
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
