//! Asynchronous commits: which WAL is to be written soon.
//!
//! **INV-LAZY**: An asynchronous commit says in its slot where its record ends, after the record is
//! inserted. The companion looks at all slots at least twenty times a second, and tells the WAL
//! writer the largest end. So no committer has to wake the WAL writer up. A record is on the disk
//! after at most the time between two looks and PostgreSQL's own delay.

use super::Lsn;
use crate::primitive::Ordering;
use crate::shared::Engine;

/// What the companion has told the WAL writer last.
#[derive(Clone, Copy)]
pub struct Lazy(Lsn);

impl Lazy {
    /// It has told nothing.
    pub const fn new() -> Lazy {
        Lazy(0)
    }
    /// Looks at the slots. `tell` gets the end of the last asynchronous commit, if it is new.
    pub fn look(&mut self, e: &Engine, tell: impl FnOnce(Lsn)) {
        let last = e.slots.iter().map(|slot| slot.lazy.load(Ordering::SeqCst)).max();
        if let Some(last) = last.filter(|last| *last > self.0) {
            self.0 = last;
            tell(last);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Lazy;
    use crate::primitive::Ordering;
    use crate::threads::Block;

    #[test]
    fn the_largest_end_of_all_slots_is_told_once() {
        let block = Block::new(8 << 20, 3).expect("a block");
        let e = block.engine;
        let mut told = Vec::new();
        let mut lazy = Lazy::new();
        lazy.look(&e, |end| told.push(end));
        e.slots[2].lazy.store(200, Ordering::SeqCst);
        e.slots[0].lazy.store(100, Ordering::SeqCst);
        lazy.look(&e, |end| told.push(end));
        lazy.look(&e, |end| told.push(end));
        e.slots[0].lazy.store(150, Ordering::SeqCst);
        lazy.look(&e, |end| told.push(end));
        e.slots[1].lazy.store(201, Ordering::SeqCst);
        lazy.look(&e, |end| told.push(end));
        assert_eq!(told, [200, 201]);
    }
}
