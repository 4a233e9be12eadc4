//! Commits that are not done, and the snapshots that leave them out.
//!
//! A commit is *done* when it is as durable as its session wants it. Until then it is *held*: other
//! transactions see its versions as committed, but no snapshot of READ COMMITTED or REPEATABLE READ
//! shows it.
//!
//! **INV-UNDONE**: A commit that will be held raises `opens` and stores [`TAKING`] before it
//! advances the clock. It stores its CSN before its word is *committing*. When it is done it stores
//! 0, and lowers `opens` after that. A reader has a value of the clock, and then looks. It may find
//! 0 in a slot, or in the count of `opens` that the slot raises. Then the slot has no commit at or
//! below that value that is not done.
//!
//! **INV-FOLLOWERS**: A commit that has waited for others after it took its CSN raises `followers`
//! before it is done. A reader that sees `followers` unchanged around its look at all slots has a
//! list that is closed: if it has a commit, it has all those that depend on that commit, or their
//! CSNs are above the reader's value of the clock.
//!
//! **INV-FLOOR**: A slot's `floor` is stored between its pin at 0 and the pin's value. It is *V* of
//! a look that began after the pin at 0: all commits up to *V* were done then. *V* never goes back.
//! So every snapshot under the pin sees all commits up to the floor, and the smallest of all floors
//! never goes back either.
//!
//! `tests/models/open.rs` tries all interleavings of this code.

use crate::csn::{Csn, SlotId};
use crate::faults::{self, Fault};
use crate::primitive::{model_fence, relax, AtomicU64, Ordering};

/// The word of a slot whose commit will be held, and is taking its CSN.
pub const TAKING: u64 = u64::MAX;

/// A commit that is held raises and lowers one of so many counts. Each snapshot looks at all of
/// them.
const COUNTS: usize = if cfg!(loom) { 2 } else { 4 };

/// A count on a cache line of its own.
#[derive(Default)]
#[repr(C, align(64))]
struct Count(AtomicU64);

/// What all slots share. All-zero: no commit is held.
#[derive(Default)]
#[repr(C)]
pub struct Opens {
    /// How many of the slots with a number, modulo [`COUNTS`], have a word that is not 0, or more.
    opens: [Count; COUNTS],
    /// Counts the commits that were done after others on which they depend.
    followers: AtomicU64,
}

impl Opens {
    fn count(&self, slot: SlotId) -> &AtomicU64 {
        &self.opens[slot as usize % COUNTS].0
    }
}

/// What a snapshot sees: all commits up to `floor`, and those up to `upto` that are not excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen<'a> {
    /// The clock when the snapshot was taken.
    pub upto: Csn,
    /// All commits up to here were done then.
    pub floor: Csn,
    /// Commits up to `upto` that were not done then. They ascend if there are more than [`SHORT`].
    pub excluded: &'a [Csn],
}

/// A list up to this length is looked through one by one.
pub const SHORT: usize = 16;

impl Seen<'static> {
    /// All commits up to `csn`, done or not.
    #[inline]
    pub const fn prefix(csn: Csn) -> Seen<'static> {
        Seen { upto: csn, floor: csn, excluded: &[] }
    }
}

impl Seen<'_> {
    /// Does it see the commit with this CSN?
    #[inline]
    pub fn sees(&self, csn: Csn) -> bool {
        csn <= self.floor || csn <= self.upto && !self.excludes(csn)
    }
    #[inline]
    fn excludes(&self, csn: Csn) -> bool {
        if self.excluded.len() <= SHORT {
            return self.excluded.contains(&csn);
        }
        self.excluded.binary_search(&csn).is_ok()
    }
    /// A copy that can be kept.
    pub fn keep(&self) -> Kept {
        Kept { upto: self.upto, floor: self.floor, excluded: self.excluded.to_vec() }
    }
}

/// A snapshot with a list of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// As in [`Seen`].
    pub upto: Csn,
    /// As in [`Seen`].
    pub floor: Csn,
    /// As in [`Seen`].
    pub excluded: Vec<Csn>,
}

impl Kept {
    /// What it sees.
    #[inline]
    pub fn seen(&self) -> Seen<'_> {
        Seen { upto: self.upto, floor: self.floor, excluded: &self.excluded }
    }
}

/// A handle to the words of all slots.
#[derive(Clone, Copy)]
pub struct Words<'a> {
    /// What they share.
    pub all: &'a Opens,
    /// 0; [`TAKING`]; or the CSN of a slot's commit that is not done.
    pub slots: &'a [AtomicU64],
    /// The clock.
    pub clock: &'a AtomicU64,
}

impl Words<'_> {
    /// The commit of `slot` will be held. It has not taken its CSN.
    pub fn begin(&self, slot: SlotId) {
        self.all.count(slot).fetch_add(1, Ordering::SeqCst);
        self.slots[slot as usize].store(TAKING, Ordering::SeqCst);
        model_fence();
    }

    /// It has taken its CSN.
    pub fn took(&self, slot: SlotId, csn: Csn) {
        self.slots[slot as usize].store(csn, Ordering::SeqCst);
        model_fence();
    }

    /// It is done. `follows`: it has waited for others since it took its CSN.
    pub fn end(&self, slot: SlotId, follows: bool) {
        if follows && !faults::on(Fault::FollowersForgotten) {
            self.all.followers.fetch_add(1, Ordering::SeqCst);
            model_fence();
        }
        self.slots[slot as usize].store(0, Ordering::SeqCst);
        model_fence();
        self.all.count(slot).fetch_sub(1, Ordering::SeqCst);
    }

    /// Is no commit held?
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.all.opens.iter().all(|count| count.0.load(Ordering::SeqCst) == 0)
    }

    /// The word of a slot, when its commit has its CSN. That takes a few instructions.
    fn settled(&self, slot: usize) -> u64 {
        let mut n = 0;
        loop {
            let x = self.slots[slot].load(Ordering::SeqCst);
            if x != TAKING {
                return x;
            }
            relax(n);
            n += 1;
        }
    }

    /// The clock, if all commits up to it are done, as is known at once.
    #[inline]
    pub fn quiet_at(&self) -> Option<Csn> {
        let early = !faults::on(Fault::LooksAtSlotsFirst) || self.is_quiet();
        let now = self.clock.load(Ordering::SeqCst);
        model_fence();
        (early && (faults::on(Fault::LooksAtSlotsFirst) || self.is_quiet())).then_some(now)
    }

    /// The clock, and *V*: all commits up to *V* are done.
    #[inline]
    pub fn done_upto(&self) -> (Csn, Csn) {
        let now = self.clock.load(Ordering::SeqCst);
        model_fence();
        if self.is_quiet() {
            return (now, now);
        }
        (now, self.least(now))
    }

    #[cold]
    fn least(&self, now: Csn) -> Csn {
        let open = (0..self.slots.len()).map(|i| self.settled(i)).filter(|x| *x != 0 && *x <= now);
        open.map(|x| x - 1).fold(now, Csn::min)
    }

    /// The clock and *V*, with the commits up to the clock that are not done, and their slots.
    #[inline]
    pub fn look(&self, list: &mut Vec<(Csn, SlotId)>) -> (Csn, Csn) {
        list.clear();
        if faults::on(Fault::LooksAtSlotsFirst) {
            self.list(Csn::MAX - 1, list);
        }
        let now = self.clock.load(Ordering::SeqCst);
        model_fence();
        if !self.is_quiet() && !faults::on(Fault::LooksAtSlotsFirst) {
            self.list(now, list);
        }
        (now, list.iter().map(|(x, _)| x - 1).fold(now, Csn::min))
    }

    /// The commits up to `upto` that are not done (INV-FOLLOWERS).
    #[cold]
    fn list(&self, upto: Csn, list: &mut Vec<(Csn, SlotId)>) {
        loop {
            let followers = self.all.followers.load(Ordering::SeqCst);
            model_fence();
            list.clear();
            for i in 0..self.slots.len() {
                let x = self.settled(i);
                if x != 0 && x <= upto {
                    list.push((x, i as SlotId));
                }
            }
            model_fence();
            if self.all.followers.load(Ordering::SeqCst) == followers || faults::on(Fault::FollowersForgotten) {
                return;
            }
        }
    }

    /// The oldest commit that is not done, and its slot.
    pub fn oldest(&self) -> Option<(Csn, SlotId)> {
        let words = self.slots.iter().map(|x| x.load(Ordering::SeqCst)).zip(0..);
        words.filter(|(x, _)| *x != 0 && *x != TAKING).min()
    }

    /// Is this commit not done? Its versions were seen as committed.
    pub fn is_open(&self, csn: Csn) -> bool {
        self.slots.iter().any(|x| x.load(Ordering::SeqCst) == csn)
    }

    /// Is any commit up to `csn` not done? All of them have taken their CSNs.
    pub fn any_open(&self, csn: Csn) -> bool {
        let open = |x: u64| x != 0 && x <= csn;
        self.slots.iter().any(|x| open(x.load(Ordering::SeqCst)))
    }
}

/// The list of a snapshot that other transactions may import. In the region: made at the slot's
/// first use, and kept. The items follow.
#[repr(C)]
pub(crate) struct Shown {
    len: AtomicU64,
}

impl Shown {
    /// The size for `nslots` slots: a list names each slot once at most.
    pub const fn size(nslots: usize) -> usize {
        size_of::<Shown>() + nslots * size_of::<AtomicU64>()
    }

    /// The items.
    ///
    /// # Safety
    /// `this` lies in memory of [`Shown::size`] for `nslots`, which was zeroed when it was made.
    unsafe fn items<'a>(this: *const Shown, nslots: usize) -> &'a [AtomicU64] {
        // SAFETY: by this function's contract the items follow.
        unsafe { std::slice::from_raw_parts(this.add(1).cast(), nslots) }
    }

    /// Stores the list of the owner's snapshot, which has no read CSN yet.
    ///
    /// # Safety
    /// As for `items`.
    pub unsafe fn put(this: *const Shown, nslots: usize, list: &[Csn]) {
        // SAFETY: the contract of `items` is this function's own.
        let (items, len) = unsafe { (Self::items(this, nslots), &(*this).len) };
        items.iter().zip(list).for_each(|(to, x)| to.store(*x, Ordering::SeqCst));
        len.store(list.len().min(nslots) as u64, Ordering::SeqCst);
    }

    /// A copy of the list. It is the owner's if its read CSN is the same before and after.
    ///
    /// # Safety
    /// As for `items`.
    pub unsafe fn copy(this: *const Shown, nslots: usize) -> Vec<Csn> {
        // SAFETY: the contract of `items` is this function's own.
        let (items, len) = unsafe { (Self::items(this, nslots), (*this).len.load(Ordering::SeqCst)) };
        items.iter().take(len as usize).map(|x| x.load(Ordering::SeqCst)).collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn with(words: &[u64], f: impl FnOnce(&Words)) {
        let (all, clock) = (Opens::default(), AtomicU64::new(100));
        let slots: Vec<AtomicU64> = words.iter().map(|_| AtomicU64::new(0)).collect();
        let w = Words { all: &all, slots: &slots, clock: &clock };
        for (i, x) in words.iter().enumerate().filter(|(_, x)| **x != 0) {
            w.begin(i as SlotId);
            w.took(i as SlotId, *x);
        }
        f(&w);
    }

    #[test]
    fn a_snapshot_leaves_out_what_is_not_done() {
        with(&[0, 90, 0, 70, 101], |w| {
            let mut list = Vec::new();
            assert_eq!(w.look(&mut list), (100, 69));
            assert_eq!(list, [(90, 1), (70, 3)], "what is above the clock is not in the list");
            assert_eq!(w.done_upto(), (100, 69));
            let excluded: Vec<Csn> = list.iter().map(|x| x.0).collect();
            let s = Seen { upto: 100, floor: 69, excluded: &excluded };
            let seen: Vec<Csn> = (60..110).filter(|x| s.sees(*x)).collect();
            let wanted: Vec<Csn> = (60..=100).filter(|x| *x != 70 && *x != 90).collect();
            assert_eq!(seen, wanted);
            assert_eq!(s.keep().seen(), s);
            assert!(w.is_open(70) && !w.is_open(71) && w.any_open(70) && !w.any_open(69));
            assert_eq!(w.oldest().map(|(csn, _)| csn), Some(70));
            w.end(3, false);
            assert_eq!(w.look(&mut list), (100, 89));
            w.end(1, true);
            assert_eq!((w.look(&mut list), list.len()), ((100, 100), 0));
            assert!(!w.is_quiet(), "one above the clock is left");
            w.end(4, false);
            assert!(w.is_quiet());
        });
    }

    #[test]
    fn a_prefix_sees_all_up_to_it() {
        let s = Seen::prefix(7);
        assert!(s.sees(0) && s.sees(7) && !s.sees(8));
    }
}
