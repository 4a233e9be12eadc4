//! Points: pins of transactions that read one snapshot, and rest.
//!
//! A pin keeps each version that was replaced at its CSN or later. A transaction that only reads by
//! one snapshot needs one version of each row. While it does nothing, it says so, and its pin is a
//! *point*: two CSNs, from the pin's floor to the snapshot's clock. All other pins are *full*.
//!
//! **INV-POINT**: A transaction *rests* between its statements, or between two rows of a scan. Then
//! it has no address of a version but those that its snapshot sees. Before it uses anything else it
//! *wakes*: it stores 0 in `works`, reads *V* (INV-FLOOR), and stores that. Until it rests again,
//! this is a full pin beside the point. Readers that start at a record's newest version do not miss
//! what was pruned before.
//!
//! **INV-PRUNE**: A version that was committed at *c* and replaced at *d* may be unlinked if two
//! things are so. *d* is at or below *V* and the floors of all full pins. No point has *c* at or
//! below its clock, and *d* above its floor. The pruner reads *V* before it looks at the slots. A
//! process that wakes or pins after the look at its slot has a floor at or above that *V*.
//!
//! A look reads the words of a slot in the order pin, `upto`, floor, `works`. The owner may end its
//! pin and take another one meanwhile. That one is later than the look, and needs nothing of what
//! the look judges. A new pin is full until its owner rests: `upto` is cleared under the pin at 0.
//!
//! `tests/models/pruning.rs` tries interleavings of this code.

use super::pins::{kept_from, settled, SHORT};
use super::UNPINNED;
use crate::csn::Csn;
use crate::faults::{self, Fault};
use crate::open::Words;
use crate::primitive::{model_fence, AtomicU64, Ordering};

/// The words of a slot that say what its owner needs.
#[derive(Clone, Copy)]
pub struct PinWords<'a> {
    /// The pin.
    pub pin: &'a AtomicU64,
    /// All snapshots under it see all commits up to here.
    pub floor: &'a AtomicU64,
    /// The clock of the snapshot of a point. 0: the pin is full.
    pub upto: &'a AtomicU64,
    /// Of a point: the *V* of its owner's waking, 0 while it wakes, or [`UNPINNED`] while it rests.
    pub works: &'a AtomicU64,
}

impl PinWords<'_> {
    /// The owner rests: its pin is a point, up to the snapshot's clock `upto`.
    pub fn rest(&self, upto: Csn) {
        // First: with a clock the pin is a point.
        self.works.store(UNPINNED, Ordering::SeqCst);
        model_fence();
        self.upto.store(if faults::on(Fault::RestsForgetfully) { 1 } else { upto }, Ordering::SeqCst);
        model_fence();
    }

    /// The owner wakes: beside the point it has a full pin.
    pub fn wake(&self, words: Words<'_>) {
        if faults::on(Fault::WakesLate) {
            return;
        }
        self.works.store(0, Ordering::SeqCst);
        model_fence();
        let (_, done) = words.done_upto();
        self.works.store(done, Ordering::SeqCst);
        model_fence();
    }

    /// A new pin is full. The owner calls it under a pin at 0.
    pub fn make_full(&self) {
        if self.upto.load(Ordering::Relaxed) != 0 {
            self.upto.store(0, Ordering::SeqCst);
            model_fence();
        }
    }
}

/// What all readers need, at a look at all slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The oldest of all pins, points too. Memory that was retired at this CSN or later is there.
    pub oldest: Csn,
    /// What was pruned before this CSN, and before the look, may be freed.
    pub full: Csn,
    /// Full pins need no version that was replaced at or before this CSN, nor do later snapshots.
    pub replaced: Csn,
    /// The floors and clocks of the points.
    points: Vec<(Csn, Csn)>,
}

impl Needs {
    /// Looks at all slots. Of slot `me` the pin is `own`: that of the caller, which has stored a
    /// pin that keeps everything.
    pub fn look<'a>(words: Words<'_>, slots: impl Iterator<Item = PinWords<'a>>, me: usize, own: u64) -> Needs {
        let (now, done) = words.done_upto();
        model_fence();
        let mut all = Needs { oldest: now, full: Csn::MAX, replaced: done, points: Vec::new() };
        for (slot, w) in slots.enumerate() {
            let pin = if slot == me { own } else { settled(w.pin, SHORT) };
            model_fence();
            if pin != UNPINNED {
                all.add(kept_from(pin), w);
            }
        }
        all
    }

    fn add(&mut self, pin: Csn, w: PinWords<'_>) {
        self.oldest = self.oldest.min(pin);
        let upto = w.upto.load(Ordering::SeqCst);
        model_fence();
        let floor = if pin == 0 { 0 } else { w.floor.load(Ordering::SeqCst) };
        if upto == 0 || pin == 0 {
            self.full = self.full.min(pin);
            self.replaced = self.replaced.min(floor);
            return;
        }
        self.points.push((if faults::on(Fault::PrunesByClock) { upto } else { floor }, upto));
        model_fence();
        let works = w.works.load(Ordering::SeqCst);
        if works != UNPINNED {
            self.full = self.full.min(works);
            self.replaced = self.replaced.min(works);
        }
    }

    /// Has any slot a point?
    pub fn has_points(&self) -> bool {
        !self.points.is_empty()
    }

    /// Does no reader need a version that was committed at `c` and replaced at `d`?
    pub fn is_unneeded(&self, c: Csn, d: Csn) -> bool {
        d <= self.replaced && !self.points.iter().any(|&(floor, upto)| c <= upto && d > floor)
    }
}
