//! Entries with a key, which take one cache line each.
//!
//! **INV-KEY**: The key in an entry of a list (its words and form) changes only while the entry's
//! head is marked busy. So a reader that finds the same registration before and after it read the
//! key has read that registration's key. A block with a long key is reachable from one entry, and
//! retired by the writer that overwrites it.

use super::columns::{Columns, Effect};
use super::ring::{Entry, EntryHead, List};
use crate::primitive::{AtomicU64, Ordering};

const WORDS: usize = 5;
/// The longest key that an entry holds itself, in bytes. A longer key is in a block of its own.
pub const INLINE_KEY: usize = WORDS * 8;

/// The registration stands for every key of its range. `EXISTING` and `IN_PLACE` are set beside it
/// if that is so of all writes that it stands for.
const ANY: u64 = 1 << 32;
/// The first word points to a block with the key.
const LONG: u64 = 1 << 33;

/// The write is of an existing row: an update or a delete.
const EXISTING: u64 = 1 << 34;
/// It is an update in place. From `CHANGED` on the columns follow that it has changed.
const IN_PLACE: u64 = 1 << 35;
const CHANGED: u32 = 36;
const _: () = assert!(CHANGED + Columns::BITS == u64::BITS);

/// An effect in the form of an entry.
fn flags(effect: Effect) -> u64 {
    match effect {
        Effect::New => 0,
        Effect::Gone => EXISTING,
        Effect::Changes(columns) => EXISTING | IN_PLACE | columns.bits() << CHANGED,
    }
}

/// An entry of a range's list. All-zero memory is an empty one.
#[repr(C)]
pub struct KeyEntry {
    head: EntryHead,
    /// The length of the key, the flags `ANY`, `LONG`, `EXISTING` and `IN_PLACE`, and the columns
    /// that an update in place has changed (INV-COLUMNS).
    form: AtomicU64,
    words: [AtomicU64; WORDS],
}
#[cfg(not(loom))]
const _: () = assert!(std::mem::size_of::<KeyEntry>() == 64);

impl Entry for KeyEntry {
    fn head(&self) -> &EntryHead {
        &self.head
    }
}

/// The subject of a registration.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// Every key of the range.
    Any,
    /// A key of at most `INLINE_KEY` bytes.
    Short(&'a [u8]),
    /// A longer key: its block and its length. The entry owns the block from now on.
    Long(*mut u8, u32),
}

/// A copy of the key in an entry.
#[derive(Clone, Copy)]
pub struct EntryKey {
    form: u64,
    words: [u64; WORDS],
}

impl EntryKey {
    /// Is the write of an existing row: an update or a delete?
    pub fn is_existing(&self) -> bool {
        self.form & EXISTING != 0
    }
    /// The columns that the write has changed, if it is an update in place. `None`: the write is of
    /// another kind, or of an unknown one.
    pub fn changed(&self) -> Option<Columns> {
        (self.form & IN_PLACE != 0).then(|| Columns::from_bits(self.form >> CHANGED))
    }
    /// The key. `None`: every key of the range.
    pub fn bytes(&self) -> Option<&[u8]> {
        let len = (self.form as u32) as usize;
        if self.form & ANY != 0 {
            return None;
        }
        if self.form & LONG != 0 {
            // SAFETY: INV-KEY, INV-RETIRE: the entry pointed to the block after the caller had
            // pinned.
            return Some(unsafe { std::slice::from_raw_parts(self.words[0] as *const u8, len) });
        }
        let p: *const u8 = self.words.as_ptr().cast();
        // SAFETY: INV-KEY: the words are initialised, and the length is cut to their size.
        Some(unsafe { std::slice::from_raw_parts(p, len.min(INLINE_KEY)) })
    }
}

impl KeyEntry {
    /// An empty entry made of the model checker's atomics.
    #[cfg(loom)]
    pub fn model() -> KeyEntry {
        let zero = |_| AtomicU64::new(0);
        KeyEntry { head: EntryHead::model(), form: zero(0), words: std::array::from_fn(zero) }
    }

    /// Replaces the subject, and returns the block of the old one, if it has one. The entry's head
    /// is marked busy. `effect`: of all writes that it stands for ([`Effect::and`]).
    pub fn fill(&self, s: Subject<'_>, effect: Effect) -> *mut u8 {
        let old = self.block();
        let flags = flags(effect);
        match s {
            Subject::Any => self.form.store(flags | ANY, Ordering::Release),
            Subject::Short(key) => {
                debug_assert!(key.len() <= INLINE_KEY);
                let mut bytes = [0; INLINE_KEY];
                bytes[..key.len()].copy_from_slice(key);
                let used = key.len().div_ceil(8);
                for (w, part) in self.words.iter().zip(bytes.as_chunks().0).take(used) {
                    w.store(u64::from_ne_bytes(*part), Ordering::Release);
                }
                self.form.store(flags | key.len() as u64, Ordering::Release);
            }
            Subject::Long(p, len) => {
                self.words[0].store(p as u64, Ordering::Release);
                self.form.store(flags | LONG | len as u64, Ordering::Release);
            }
        }
        old
    }

    /// The block of a long key, or null.
    pub fn block(&self) -> *mut u8 {
        if self.form.load(Ordering::Acquire) & LONG == 0 {
            return std::ptr::null_mut();
        }
        self.words[0].load(Ordering::Acquire) as *mut u8
    }
}

impl List<'_, KeyEntry> {
    /// The key of the registration at `pos`. `None` if it was overwritten.
    pub fn key(&self, pos: u64) -> Option<EntryKey> {
        let e = self.entry(pos);
        if !self.holds(pos) {
            return None;
        }
        let form = e.form.load(Ordering::Acquire);
        let mut words = [0; WORDS];
        let used = if form & LONG != 0 { 1 } else { (form as u32 as usize).div_ceil(8).min(WORDS) };
        for (to, from) in words.iter_mut().zip(&e.words).take(used) {
            *to = from.load(Ordering::Acquire);
        }
        self.holds(pos).then_some(EntryKey { form, words })
    }
}
