//! How commits, the checkpointer's companion and checkpoints meet.
//!
//! A commit logs its record, marks its transaction as committed, and sets the dirty bits of its
//! records. The companion holds each checkpoint, images the dirty records, and releases it.
//!
//! **INV-WINDOW**: A slot's [`Window`] is *inserting* from before its record is inserted into WAL
//! until its transaction is marked and the dirty bits are set, in this order. A round begins with
//! the redo pointer *R*, and then waits for each window that is inserting. So a record before *R*
//! has its mark and its bits when the round looks at the first bit. For a window that the round did
//! not see, the record is behind *R*. A round that takes a bit finds the mark, because the mark
//! came first.
//!
//! **INV-DIRTY**: A commit sets the bits first, then the table's flag. A round clears the flag
//! first, then takes the bits, and then looks at the records. So it sees the record as of when the
//! bit was set, or the bit stays for the next round. Bits that it took come back if their images
//! did not get into WAL. A transaction about which the commit log decides sets the bits twice: when
//! its record is inserted, and when it is decided. So rows replace the pending entries in images.
//!
//! **INV-GATE**: The gate is tested after the window is *inside*. Closing it waits until each
//! window is *out*. So each record is in WAL, marked and dirty before the companion's last round
//! begins, or is not inserted.
//!
//! **INV-RELEASE**: A checkpoint is released only for its own redo pointer: the companion compares
//! it with the last round's, and changes what checkpointers wait for, while no checkpointer can
//! look. It does so in each pass of its loop, so no checkpoint waits for ever.
//!
//! `tests/models/durable.rs` tries all interleavings of this code.

use super::Lsn;
use crate::faults::{self, Fault};
use crate::primitive::{model_fence, AtomicU32, AtomicU64, Ordering};

/// The word `logging` of a slot, which only the slot's owner changes. All-zero: out.
///
/// The two lowest bits are the state. The others count the changes.
#[derive(Default)]
#[repr(transparent)]
pub struct Window(AtomicU32);

const STATE: u32 = 3;
/// The owner inserts nothing.
const OUT: u32 = 0;
/// It has passed the gate, and may still fail.
const INSIDE: u32 = 1;
/// It inserts a record, marks its transaction, or sets dirty bits.
const INSERTING: u32 = 3;

/// May records be inserted? All-zero: no.
#[derive(Default)]
#[repr(transparent)]
pub struct Gate(AtomicU32);

/// The gate is closed: the server starts or stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the gate for durable tables is closed")
    }
}

impl std::error::Error for Closed {}

impl Window {
    fn change(&self, state: u32) {
        let word = self.0.load(Ordering::SeqCst);
        self.0.store((word & !STATE).wrapping_add(STATE + 1) | state, Ordering::SeqCst);
        model_fence();
    }
    /// Passes the gate, if it is open.
    pub fn enter(&self, gate: &Gate) -> Result<(), Closed> {
        let early = !faults::on(Fault::GateLookedFirst) || gate.is_open();
        self.change(INSIDE);
        if early && (faults::on(Fault::GateLookedFirst) || gate.is_open()) {
            return Ok(());
        }
        self.leave();
        Err(Closed)
    }
    /// The owner will insert nothing more; its transaction is logged or has ended.
    pub fn leave(&self) {
        if self.0.load(Ordering::SeqCst) & STATE != OUT {
            self.change(OUT);
        }
    }
    /// Is it inserting?
    pub fn is_inserting(&self) -> bool {
        self.0.load(Ordering::SeqCst) & STATE == INSERTING
    }
    /// Is it out?
    pub fn is_out(&self) -> bool {
        self.0.load(Ordering::SeqCst) & STATE == OUT
    }
    /// Waits until the insertion that is under way, if any, is over. `pause` is called between two
    /// looks, with their number. It may raise an error.
    pub fn wait_inserted(&self, mut pause: impl FnMut(u32)) {
        let seen = self.0.load(Ordering::SeqCst);
        let mut n = 0;
        while seen & STATE == INSERTING && self.0.load(Ordering::SeqCst) == seen {
            pause(n);
            n = n.saturating_add(1);
        }
    }
}

impl Gate {
    /// Opens it: the companion's first round is complete.
    pub fn open(&self) {
        self.0.store(1, Ordering::SeqCst);
    }
    /// Is it open?
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 1
    }
    /// Closes it, and waits until all slots are out (INV-GATE).
    pub fn close<'a>(&self, windows: impl IntoIterator<Item = &'a Window>, mut pause: impl FnMut(u32)) {
        self.close_unless(windows, |n| {
            pause(n);
            false
        });
    }
    /// As [`Gate::close`], unless `pause` says that the wait is too long. Then the gate is open
    /// again, and the answer is false.
    pub fn close_unless<'a>(
        &self,
        windows: impl IntoIterator<Item = &'a Window>,
        mut pause: impl FnMut(u32) -> bool,
    ) -> bool {
        self.0.store(0, Ordering::SeqCst);
        model_fence();
        if faults::on(Fault::WindowsNotAwaited) {
            return true;
        }
        for window in windows {
            let mut n = 0;
            while !window.is_out() {
                if pause(n) {
                    self.open();
                    return false;
                }
                n = n.saturating_add(1);
            }
        }
        true
    }
}

/// The window is inserting until this is dropped. Then it has its former state.
struct Inserting<'a> {
    window: &'a Window,
    before: u32,
}

impl<'a> Inserting<'a> {
    fn begin(window: &'a Window) -> Self {
        let before = window.0.load(Ordering::SeqCst) & STATE;
        window.change(INSERTING);
        Inserting { window, before }
    }
}

impl Drop for Inserting<'_> {
    fn drop(&mut self) {
        self.window.change(self.before);
    }
}

/// A record of changes goes into WAL. `insert` inserts it. `mark` makes its transaction a committed
/// one for each look at its versions, or one about which the commit log decides. `set_bits` sets
/// the dirty bits of all its records. The owner of the window has passed the gate, but for a call
/// that only marks and sets bits. The closures do not sleep.
pub fn log<T>(window: &Window, insert: impl FnOnce() -> T, mark: impl FnOnce(&T), set_bits: impl FnOnce()) -> T {
    let (inserting, inserted) = if faults::on(Fault::WindowOpensLate) {
        let inserted = insert();
        (Inserting::begin(window), inserted)
    } else {
        let inserting = Inserting::begin(window);
        (inserting, insert())
    };
    if faults::on(Fault::BitsBeforeMark) {
        set_bits();
        mark(&inserted);
        return inserted;
    }
    mark(&inserted);
    if faults::on(Fault::WindowClosesEarly) {
        drop(inserting);
        set_bits();
        return inserted;
    }
    set_bits();
    inserted
}

/// The dirty bits of a range of records, 64 to a word, and their table's flag.
#[derive(Clone, Copy)]
pub struct Dirty<'a> {
    flag: &'a AtomicU32,
    words: &'a [AtomicU64],
}

/// The bits of one word that a round has taken. Dropped, all of them are set again.
pub struct Taken<'a> {
    dirty: Dirty<'a>,
    word: usize,
    bits: u64,
}

impl<'a> Dirty<'a> {
    /// The bits in these words, and the flag. All-zero: nothing is dirty.
    pub fn new(flag: &'a AtomicU32, words: &'a [AtomicU64]) -> Self {
        Dirty { flag, words }
    }
    /// Sets a record's bit, and then the flag.
    pub fn set(&self, record: u32) {
        self.set_bits(record as usize / 64, 1 << (record % 64));
    }
    /// Sets these bits of a word, and then the flag.
    pub fn set_word(&self, word: usize, bits: u64) {
        self.set_bits(word, bits);
    }
    fn set_bits(&self, word: usize, bits: u64) {
        if bits != 0 {
            self.words[word].fetch_or(bits, Ordering::SeqCst);
            model_fence();
            if self.flag.load(Ordering::SeqCst) == 0 {
                self.flag.swap(1, Ordering::SeqCst);
            }
        }
    }
    /// The number of bits that are set.
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }
    /// Is a record's bit set?
    pub fn is_set(&self, record: u32) -> bool {
        self.words[record as usize / 64].load(Ordering::SeqCst) >> (record % 64) & 1 == 1
    }
    /// Clears the flag, and says whether it was set. If it was, the round goes through all words.
    pub fn take_flag(&self) -> bool {
        if faults::on(Fault::FlagClearedLast) {
            return self.flag.load(Ordering::SeqCst) == 1;
        }
        let taken = self.flag.swap(0, Ordering::SeqCst) == 1;
        model_fence();
        taken
    }
    /// Takes the bits of each word that has some. `image` gets them and looks at their records.
    ///
    /// An error of `image` ends the round here. The flag is set again, for the words that are left;
    /// the bits that `image` has come back as [`Taken`] says.
    pub fn take<E>(&self, mut image: impl FnMut(Taken<'a>) -> Result<(), E>) -> Result<(), E> {
        for word in 0..self.words.len() {
            if self.words[word].load(Ordering::SeqCst) == 0 {
                continue;
            }
            let bits = if faults::on(Fault::BitClearedAfterLook) {
                self.words[word].load(Ordering::SeqCst)
            } else {
                self.words[word].swap(0, Ordering::SeqCst)
            };
            model_fence();
            let result = image(Taken { dirty: *self, word, bits });
            if result.is_err() {
                self.flag.swap(1, Ordering::SeqCst);
                return result;
            }
        }
        if faults::on(Fault::FlagClearedLast) {
            self.flag.store(0, Ordering::SeqCst);
        }
        Ok(())
    }
}

impl Taken<'_> {
    /// The records.
    pub fn records(&self) -> impl Iterator<Item = u32> {
        let (word, mut bits) = (self.word as u32, self.bits);
        std::iter::from_fn(move || {
            let bit = (bits != 0).then(|| bits.trailing_zeros())?;
            bits &= bits - 1;
            Some(word * 64 + bit)
        })
    }
    /// The images are in WAL. A record with an undecided transaction has a pending entry there; its
    /// bit is set when the transaction is decided.
    pub fn imaged(mut self) {
        if faults::on(Fault::BitClearedAfterLook) {
            self.dirty.words[self.word].fetch_and(!self.bits, Ordering::SeqCst);
        }
        self.bits = 0;
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.dirty.set_bits(self.word, self.bits);
    }
}

/// The home of a record. Loaders set it before the table is used, and the companion alone uses it
/// afterwards. All-zero: none.
#[derive(Default)]
#[repr(transparent)]
pub struct Home(AtomicU32);

/// The highest bit of a home: the row is in pieces.
const LONG: u32 = 1 << 31;

/// Where the image of a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The block, below 2^31 and not 0. Of a long row: that of the first piece.
    pub block: u32,
    /// Is it a long row, whose pieces have a block each?
    pub long: bool,
}

impl Home {
    /// Where the image is.
    pub fn get(&self) -> Option<Place> {
        let word = self.0.load(Ordering::Relaxed);
        (word != 0).then_some(Place { block: word & !LONG, long: word & LONG != 0 })
    }
    /// The record's new image is in WAL, and is here. Says where the old one was, for
    /// [`super::space::Space::leave`].
    pub fn move_to(&self, place: Option<Place>) -> Option<Place> {
        debug_assert!(place.is_none_or(|p| p.block != 0 && p.block < LONG));
        let old = self.get();
        self.0.store(place.map_or(0, |p| p.block | if p.long { LONG } else { 0 }), Ordering::Relaxed);
        old
    }
}

/// The checkpoints of the server, as the companion holds them.
pub trait Checkpoints {
    /// The redo pointer of the last checkpoint that was begun.
    fn redo(&self) -> Lsn;
    /// Calls `f` while no checkpointer can look which processes hold it.
    fn excluding_looks<T>(&self, f: impl FnOnce() -> T) -> T;
    /// Holds the checkpoints that look from now on, and no more those that have looked.
    fn renew_hold(&self);
}

/// The companion's rounds.
#[derive(Default)]
pub struct Companion {
    /// The redo pointer of the last round whose images are in WAL.
    imaged: Lsn,
}

impl Companion {
    /// The next pass makes a round, also if no checkpoint has begun since the last one.
    pub fn begin_anew(&mut self) {
        self.imaged = 0;
    }
    /// One pass of its loop. If a checkpoint has begun since the last round, a round: `image` gets
    /// its redo pointer when all records before that are marked and dirty, and images what is
    /// dirty. In each pass it releases the checkpoint with the redo pointer of the last round, if
    /// it has begun no other one since. Returns whether all that has begun is released.
    ///
    /// It releases again and again, because a checkpointer that has begun a checkpoint may look
    /// which processes hold it only after the release, and then waits for the next one.
    pub fn pass<'a, E>(
        &mut self,
        checkpoints: &impl Checkpoints,
        windows: impl IntoIterator<Item = &'a Window>,
        mut pause: impl FnMut(u32),
        image: impl FnOnce(Lsn) -> Result<(), E>,
    ) -> Result<bool, E> {
        let redo = checkpoints.redo();
        if redo != self.imaged {
            model_fence();
            if !faults::on(Fault::WindowsNotAwaited) {
                windows.into_iter().for_each(|w| w.wait_inserted(&mut pause));
            }
            image(redo)?;
            self.imaged = redo;
        } else if faults::on(Fault::ReleasesOnce) {
            return Ok(true);
        }
        Ok(self.release(checkpoints))
    }
    fn release(&self, checkpoints: &impl Checkpoints) -> bool {
        checkpoints.excluding_looks(|| {
            let same = checkpoints.redo() == self.imaged || faults::on(Fault::ReleasesBlindly);
            if same {
                checkpoints.renew_hold();
            }
            same
        })
    }
}
