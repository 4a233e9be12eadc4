//! Records and their versions.

use crate::csn::{Csn, Stamp};
use crate::lock::LockWord;
use crate::primitive::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// The home of a row: a stable address, the newest version, one lock word.
///
/// All-zero memory is a free record.
#[repr(C)]
pub struct Record {
    head: AtomicPtr<Version>,
    /// The record's lock word, honoured by all protocols and levels.
    pub lock: LockWord,
    /// Partition by the table's current and previous map (see [`crate::partition::PartitionMap`]).
    pub part: [AtomicU16; 2],
    /// Transaction id of an insert, delete or move that is not committed yet, for unique checks;
    /// 0 if none.
    pub writer: AtomicU32,
    /// One of the `REC_` states.
    pub state: AtomicU32,
    /// Of a free record: the next (number + 1) of the table's free or limbo list. Of a dead one: 0, or it waits for
    /// its index entry to go (`index/graves.rs`). Else 0.
    pub next_free: AtomicU32,
}
#[cfg(not(loom))]
const _: () = assert!(std::mem::size_of::<Record>() == 32);

/// Not in use.
pub const REC_FREE: u32 = 0;
/// In use: reserved by an insert, live, or deleted and still reachable.
pub const REC_USED: u32 = 1;
/// The insert was aborted: index entries may remain.
pub const REC_DEAD: u32 = 2;
/// Found dead by VACUUM: its index entries are being removed.
pub const REC_VACUUM: u32 = 3;

impl Record {
    /// The newest version, pending ones included; null in a free or dead record.
    #[inline]
    pub fn head(&self) -> *mut Version {
        self.head.load(Ordering::SeqCst)
    }
    /// Replaces the newest version. Only under the record's write lock, or by the inserter.
    pub fn set_head(&self, v: *mut Version) {
        self.head.store(v, Ordering::SeqCst);
    }
}

/// A row's content at one time. Immutable once published; newest first in a chain.
///
/// The payload (a tuple as the extension lays it out) follows the header.
#[repr(C)]
pub struct Version {
    older: AtomicPtr<Version>,
    stamp: AtomicU64,
    /// Bytes of payload.
    pub len: u32,
    /// `VER_` flags.
    pub flags: u32,
}
/// Bytes before the payload.
pub const VERSION_HEADER: usize = std::mem::size_of::<Version>();
#[cfg(not(loom))]
const _: () = assert!(VERSION_HEADER == 24);

/// The version is a tombstone: the row is deleted. The payload is a [`Successor`].
pub const VER_TOMBSTONE: u32 = 1;

/// Beside [`VER_TOMBSTONE`]: the row's key in the primary index follows the [`Successor`].
pub const VER_KEYED: u32 = 2;

/// Where a moved row went: the tombstone's payload, or its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Successor {
    /// Record number + 1 in the same table; 0: deleted; `u64::MAX`: in another declarative partition.
    pub record: u64,
}

impl Version {
    /// Prepares a version in fresh memory.
    ///
    /// # Safety
    /// `p` points to at least `VERSION_HEADER + len` writable bytes that nobody else sees.
    pub unsafe fn init(p: *mut Version, stamp: Stamp, len: u32, flags: u32) {
        // SAFETY: the caller owns the memory.
        unsafe {
            p.write(Version {
                older: AtomicPtr::new(std::ptr::null_mut()),
                stamp: AtomicU64::new(stamp.0),
                len,
                flags,
            });
        }
    }
    /// The stamp.
    #[inline]
    pub fn stamp(&self) -> Stamp {
        Stamp(self.stamp.load(Ordering::SeqCst))
    }
    /// Sets the stamp: at publication, or when the owner aborted. Release: who reads a word that the owner stores afterwards
    /// finds this stamp when it looks again (INV-STAMP), and nothing else is ordered by it.
    pub fn set_stamp(&self, s: Stamp) {
        self.stamp.store(s.0, Ordering::Release);
    }
    /// The next older version. Follow it only when the pin of the reader protects it.
    pub fn older(&self) -> *mut Version {
        self.older.load(Ordering::Acquire)
    }
    /// Sets the older version, before the version is linked.
    pub fn set_older(&self, v: *mut Version) {
        self.older.store(v, Ordering::Release);
    }
    /// Is it a tombstone?
    #[inline]
    pub fn is_tombstone(&self) -> bool {
        self.flags & VER_TOMBSTONE != 0
    }
    /// Is it a tombstone that has its row's key?
    pub fn is_keyed(&self) -> bool {
        self.flags & VER_KEYED != 0
    }
    /// The key in the primary index that a tombstone has.
    ///
    /// # Safety
    /// `this` is a version that stays as long as the key is used.
    pub unsafe fn key<'a>(this: *const Version) -> Option<&'a [u8]> {
        let before = size_of::<Successor>();
        // SAFETY: INV-VERSION: the payload of a keyed tombstone has `len` bytes, a `Successor` first.
        unsafe {
            let len = (*this).len as usize;
            let key = Version::payload(this).add(before);
            (*this).is_keyed().then(|| std::slice::from_raw_parts(key, len - before))
        }
    }
    /// Address of the payload.
    pub fn payload(this: *const Version) -> *mut u8 {
        this.cast_mut().cast::<u8>().wrapping_add(VERSION_HEADER)
    }
    /// The successor that a tombstone names.
    ///
    /// # Safety
    /// `this` is a tombstone that the caller's pin protects, or its own.
    pub unsafe fn successor(this: *const Version) -> Successor {
        // SAFETY: INV-VERSION: a tombstone's payload is a `Successor`, written before it is linked.
        unsafe {
            debug_assert!((*this).is_tombstone());
            Version::payload(this).cast::<Successor>().read_unaligned()
        }
    }
    /// The CSN if the version is stamped with one.
    pub fn csn(&self) -> Option<Csn> {
        let s = self.stamp();
        (!s.is_tag() && s != Stamp::ABORTED).then_some(s.0)
    }
}
