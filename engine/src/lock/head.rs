//! The list of holders of a lock that has more than one.
//!
//! **INV-HEAD**: A list of holders is read and written only under the latch of the word that points
//! to it. It is freed by the process that took it out of the word under that latch.

use super::{First, Holder, Mode};
use crate::csn::SlotId;
use crate::memory::{OutOfMemory, Region};
use std::ptr::NonNull;

/// The allocator of lists of holders: the region, or the heap in a model.
pub trait Heads {
    /// Allocates `bytes` bytes for a list.
    fn allocate(&self, slot: SlotId, bytes: usize) -> Result<NonNull<u8>, OutOfMemory>;
    /// Gives back a list's memory.
    ///
    /// # Safety
    /// `p` came from `allocate` and was not given back since, and no process uses it any more
    /// (INV-HEAD).
    unsafe fn release(&self, slot: SlotId, p: NonNull<u8>);
}

impl Heads for Region {
    fn allocate(&self, slot: SlotId, bytes: usize) -> Result<NonNull<u8>, OutOfMemory> {
        self.alloc(slot as usize, bytes)
    }
    unsafe fn release(&self, slot: SlotId, p: NonNull<u8>) {
        // SAFETY: INV-M1: by the contract of `Heads::release`, `p` is an unused piece of this
        // region.
        unsafe { self.free(slot as usize, p) }
    }
}

#[repr(C)]
pub(super) struct LockHead {
    /// Slot + 1 of a holder that waits for a stronger mode. 0: none.
    pub upgrader: u32,
    /// The mode that it wants.
    pub upgrade_to: u16,
    /// Do newcomers that conflict with that mode stay behind that holder? (INV-TURN)
    pub upgrader_first: bool,
    /// The mark of the word: the mode that the first waiter of the queue wants. 0: none.
    pub mark: u8,
    n: u32,
    cap: u32,
    // `cap` encoded holders follow.
}

impl LockHead {
    /// Allocates a head with room for `cap` holders.
    pub fn allocate(heads: &impl Heads, slot: SlotId, cap: u32) -> Result<NonNull<LockHead>, OutOfMemory> {
        let p = heads.allocate(slot, std::mem::size_of::<LockHead>() + 8 * cap as usize)?.cast::<LockHead>();
        let empty = LockHead { upgrader: 0, upgrade_to: 0, upgrader_first: false, mark: 0, n: 0, cap };
        // SAFETY: INV-M1: fresh memory with room for a head.
        unsafe { p.as_ptr().write(empty) };
        Ok(p)
    }

    fn slots(&self) -> *mut u64 {
        (self as *const LockHead).wrapping_add(1).cast_mut().cast()
    }
    /// The holders.
    pub fn holders(&self) -> &[u64] {
        // SAFETY: INV-HEAD: the latch is held, and the first `n` of `cap` entries are initialised.
        unsafe { std::slice::from_raw_parts(self.slots(), self.n as usize) }
    }
    /// The holders, mutably.
    pub fn holders_mut(&mut self) -> &mut [u64] {
        // SAFETY: INV-HEAD: as in `holders`.
        unsafe { std::slice::from_raw_parts_mut(self.slots(), self.n as usize) }
    }
    /// The index of a slot's entry.
    pub fn find(&self, slot: SlotId) -> Option<usize> {
        self.holders().iter().position(|&w| Holder::decode(w).is_some_and(|h| h.slot == slot))
    }
    /// Adds a holder. Returns false if there is no room.
    pub fn push(&mut self, h: Holder) -> bool {
        if self.n == self.cap {
            return false;
        }
        // SAFETY: INV-HEAD: the latch is held, and n < cap.
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
    /// Notes that `me`, the holder at `i`, waits for a stronger mode. Returns true if that wait
    /// cannot end, because another holder waits for a stronger mode too and each conflicts with the
    /// other.
    pub fn ask_upgrade(&mut self, i: usize, me: Holder) -> bool {
        let other = self.upgrader.checked_sub(1).map(|s| s as SlotId).filter(|&s| s != me.slot);
        let Some(other) = other else {
            (self.upgrader, self.upgrade_to) = (me.slot as u32 + 1, me.mode as u16);
            return false;
        };
        let holds = |i: usize| Holder::decode(self.holders()[i]).map(|h| h.mode);
        let wants = Mode::from_bits(self.upgrade_to as u64);
        match (holds(i), self.find(other).and_then(holds), wants) {
            (Some(mine), Some(theirs), Some(wants)) => wants.conflicts(mine) && me.mode.conflicts(theirs),
            _ => false,
        }
    }
    /// Notes that the slot no longer waits for a stronger mode.
    pub fn end_upgrade(&mut self, slot: SlotId) {
        if self.upgrader == slot as u32 + 1 {
            (self.upgrader, self.upgrader_first) = (0, false);
        }
    }
    /// The waiter that comes before a newcomer that wants this mode, although no holder conflicts.
    pub fn first(&self, mode: Mode) -> Option<First> {
        let before = |wants: u64| Mode::from_bits(wants).is_some_and(|m| m.conflicts(mode));
        match self.upgrader.checked_sub(1) {
            _ if before(self.mark as u64) => Some(First::OfQueue),
            Some(slot) if self.upgrader_first && before(self.upgrade_to as u64) => {
                Some(First::Upgrader(slot as SlotId))
            }
            _ => None,
        }
    }
    /// The number of holders.
    pub fn len(&self) -> u32 {
        self.n
    }
    /// The number of holders that there is room for.
    pub fn cap(&self) -> u32 {
        self.cap
    }
    /// Copies the holders of a smaller head.
    pub fn take_from(&mut self, other: &LockHead) {
        debug_assert!(self.cap >= other.n && self.n == 0);
        for &w in other.holders() {
            // SAFETY: INV-HEAD: both latches are held or the head is unpublished, and n < other.n
            // <= cap.
            unsafe { self.slots().add(self.n as usize).write(w) };
            self.n += 1;
        }
        (self.upgrader, self.upgrade_to) = (other.upgrader, other.upgrade_to);
        (self.upgrader_first, self.mark) = (other.upgrader_first, other.mark);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_as_documented() {
        crate::sizes::assert_documented("a lock with several holders", &[std::mem::size_of::<LockHead>(), 8]);
    }
}
