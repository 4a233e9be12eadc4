//! The list of holders of a lock that has several.

use super::{Holder, Mode};
use crate::csn::SlotId;
use crate::memory::{OutOfMemory, Region};
use std::ptr::NonNull;

/// INV-HEAD: a head is read and written only under the latch of the word that points to it, and
/// freed by whoever removed it from the word under that latch.
#[repr(C)]
pub(super) struct LockHead {
    /// Slot + 1 of a holder that waits to get a stronger mode; 0 if none.
    pub upgrader: u32,
    /// The mode that it wants.
    pub upgrade_to: u32,
    n: u32,
    cap: u32,
    // `cap` encoded holders follow
}

impl LockHead {
    /// A head with room for `cap` holders.
    pub fn allocate(region: &Region, slot: SlotId, cap: u32) -> Result<NonNull<LockHead>, OutOfMemory> {
        let p = region.alloc(slot as usize, std::mem::size_of::<LockHead>() + 8 * cap as usize)?.cast::<LockHead>();
        // SAFETY: fresh memory of that size.
        unsafe { p.as_ptr().write(LockHead { upgrader: 0, upgrade_to: 0, n: 0, cap }) };
        Ok(p)
    }

    fn slots(&self) -> *mut u64 {
        (self as *const LockHead).wrapping_add(1).cast_mut().cast()
    }
    /// The holders.
    pub fn holders(&self) -> &[u64] {
        // SAFETY: INV-HEAD: the first `n` of `cap` entries are initialised, and the latch is held.
        unsafe { std::slice::from_raw_parts(self.slots(), self.n as usize) }
    }
    /// The holders, to be changed.
    pub fn holders_mut(&mut self) -> &mut [u64] {
        // SAFETY: as in `holders`.
        unsafe { std::slice::from_raw_parts_mut(self.slots(), self.n as usize) }
    }
    /// Index of a slot's entry.
    pub fn find(&self, slot: SlotId) -> Option<usize> {
        self.holders().iter().position(|&w| Holder::decode(w).is_some_and(|h| h.slot == slot))
    }
    /// Adds a holder; false if there is no room.
    pub fn push(&mut self, h: Holder) -> bool {
        if self.n == self.cap {
            return false;
        }
        // SAFETY: INV-HEAD, and n < cap.
        unsafe { self.slots().add(self.n as usize).write(h.encode()) };
        self.n += 1;
        true
    }
    /// Removes the entry at `i`.
    pub fn remove(&mut self, i: usize) {
        let n = self.n as usize;
        self.holders_mut().swap(i, n - 1);
        self.n -= 1;
    }
    /// Notes that `me`, the holder at `i`, waits for a stronger mode. True if that cannot end:
    /// another holder waits for one, and each is in the other's way.
    pub fn ask_upgrade(&mut self, i: usize, me: Holder) -> bool {
        let other = self.upgrader.checked_sub(1).map(|s| s as SlotId).filter(|&s| s != me.slot);
        let Some(other) = other else {
            (self.upgrader, self.upgrade_to) = (me.slot as u32 + 1, me.mode as u32);
            return false;
        };
        let holds = |i: usize| Holder::decode(self.holders()[i]).map(|h| h.mode);
        let wants = Mode::from_bits(self.upgrade_to as u64);
        match (holds(i), self.find(other).and_then(holds), wants) {
            (Some(mine), Some(theirs), Some(wants)) => wants.conflicts(mine) && me.mode.conflicts(theirs),
            _ => false,
        }
    }
    /// Number of holders.
    pub fn len(&self) -> u32 {
        self.n
    }
    /// Room for holders.
    pub fn cap(&self) -> u32 {
        self.cap
    }
    /// Takes over the holders of a smaller head.
    pub fn take_from(&mut self, other: &LockHead) {
        debug_assert!(self.cap >= other.n && self.n == 0);
        for &w in other.holders() {
            // SAFETY: INV-HEAD, and n < other.n <= cap.
            unsafe { self.slots().add(self.n as usize).write(w) };
            self.n += 1;
        }
        (self.upgrader, self.upgrade_to) = (other.upgrader, other.upgrade_to);
    }
}
