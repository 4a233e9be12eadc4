//! Reads on standbys: what a primary tells, and what a standby has replayed.
//!
//! **INV-STABLE**: A primary tells *S* only if all commits up to *S* have inserted their records,
//! and are decided in WAL, before the record that tells it. It finds *S* so: it reads the clock,
//! then the words of all slots (INV-FLUSHED), then the CSNs under which prepared transactions are
//! logged, then the largest CSN at which one was finished. *S* is below each of the former, and not
//! below the latter. So no *S* lies between the CSN of a PREPARE and that of its COMMIT PREPARED:
//! it was below the first while the transaction was prepared, and is told again only when it has
//! reached the second.
//!
//! **INV-CONFLICT**: A reader stores [`TAKING`] in its slot, then reads what is stable, then stores
//! that. Redo publishes what is stable, and then looks at the slots, before index entries or
//! numbers of rows go that a snapshot below a horizon could still need. So it meets each such
//! snapshot, and each later one is at or above the horizon.
//!
//! **INV-MOVED**: Redo notes a block after it has restored it. A reader of a file reads all blocks,
//! and then those that were noted since it began, until no new one is noted. So it has read the
//! last content of each block. A note may be of another file: names are hashed.

use super::flushed::logged_upto;
use super::{Lsn, Storage};
use crate::csn::{Csn, SlotId};
use crate::faults::{self, Fault};
use crate::open::TAKING as TAKING_CSN;
use crate::primitive::{relax, AtomicU64, Ordering};
use crate::shared::Engine;

/// The word of a slot that is about to read what is stable. It is below all CSNs.
pub const TAKING: Csn = 1;

/// Words for the ends of journals, by hashes of storages.
const JOURNALS: usize = 512;
/// Blocks that are remembered as restored.
const MOVED: usize = 8192;

/// What standbys may show, in shared memory. All-zero: nothing.
#[repr(C)]
pub struct Standby {
    /// On a primary: the name of this life. 0: none yet.
    life: AtomicU64,
    /// On a primary: the last CSN, and the last horizon, that were told.
    told: AtomicU64,
    horizon: AtomicU64,
    /// On a primary: the largest CSN at which a prepared transaction was finished.
    finished: AtomicU64,
    /// On a standby: changes when tables that were loaded are of no use any more. Odd: in replay.
    era: AtomicU64,
    /// On a standby: what is stable, 0: not known; the life that it is of; where WAL was then; and
    /// when, in microseconds as the platform counts them.
    stable: AtomicU64,
    /// On a standby: nothing below it is shown any more.
    required: AtomicU64,
    of_life: AtomicU64,
    at: AtomicU64,
    time: AtomicU64,
    /// The sessions that were cancelled because of horizons.
    pub conflicts: AtomicU64,
    journals: [AtomicU64; JOURNALS],
    moved: AtomicU64,
    blocks: [AtomicU64; MOVED],
}

/// What a standby knows of its copy of a table. All-zero: the table is none.
#[derive(Default)]
#[repr(C)]
pub struct Live {
    /// The era in which it was loaded.
    pub era: AtomicU64,
    /// All entries up to this CSN are in memory.
    pub upto: AtomicU64,
    /// Snapshots below this one cannot use it.
    pub low: AtomicU64,
    /// Journal pages whose last record ends at or below it are in memory.
    pub cursor: AtomicU64,
}

impl Live {
    /// The era of a table that is of no use in any.
    pub const GONE: u64 = u64::MAX;
}

/// What a standby may show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// All commits up to this one.
    pub csn: Csn,
    /// Of this life of the primary.
    pub life: Lsn,
    /// It was told here in WAL.
    pub at: Lsn,
    /// It was replayed then.
    pub time: u64,
}

/// A number for a storage. Two storages may have one.
fn hash(s: Storage) -> u32 {
    let mixed = [s.tablespace, s.database, s.number]
        .iter()
        .fold(0u64, |h, n| (h ^ u64::from(*n)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
    (mixed >> 32) as u32
}

impl Standby {
    /// A prepared transaction is about to be finished at this CSN.
    pub(crate) fn tell_finished(&self, csn: Csn) {
        self.finished.fetch_max(csn, Ordering::SeqCst);
    }
    /// The name of this life, which is `now` if it has none.
    pub fn life(&self, now: Lsn) -> Lsn {
        let _ = self.life.compare_exchange(0, now, Ordering::SeqCst, Ordering::SeqCst);
        self.life.load(Ordering::SeqCst)
    }
    /// The last CSN and the last horizon that this life has told.
    pub fn told(&self) -> (Csn, Csn) {
        (self.told.load(Ordering::SeqCst), self.horizon.load(Ordering::SeqCst))
    }
    /// They were told: the record is inserted.
    pub fn tell(&self, csn: Csn, horizon: Csn) {
        self.told.fetch_max(csn, Ordering::SeqCst);
        self.horizon.fetch_max(horizon, Ordering::SeqCst);
    }

    /// The number that a table must have which was loaded in this era.
    #[inline]
    pub fn era(&self) -> u64 {
        self.era.load(Ordering::SeqCst)
    }
    /// Replay begins, or ends: nothing is stable, and what was loaded is of no use.
    pub fn turn(&self, in_replay: bool) {
        self.forget();
        self.required.store(0, Ordering::SeqCst);
        let era = self.era.load(Ordering::SeqCst);
        let next = era + if (era % 2 == 1) == in_replay { 2 } else { 1 };
        self.era.store(next, Ordering::SeqCst);
    }
    /// What is stable is not known until it is told again.
    pub fn forget(&self) {
        self.stable.store(0, Ordering::SeqCst);
    }
    /// Is this the life of what was told last?
    pub fn is_life(&self, life: Lsn) -> bool {
        self.of_life.load(Ordering::SeqCst) == life
    }
    /// What is told was replayed.
    pub fn show(&self, shown: Shown) {
        self.of_life.store(shown.life, Ordering::SeqCst);
        self.at.store(shown.at, Ordering::SeqCst);
        self.time.store(shown.time, Ordering::SeqCst);
        if shown.csn >= self.required.load(Ordering::SeqCst) {
            self.stable.fetch_max(shown.csn, Ordering::SeqCst);
        }
    }
    /// Index entries go that snapshots below this CSN need. What is stable is not known, if it is
    /// below. Called by redo, before it looks at the snapshots (INV-CONFLICT).
    pub fn require(&self, csn: Csn) {
        self.required.fetch_max(csn, Ordering::SeqCst);
        if self.stable.load(Ordering::SeqCst) < csn {
            self.forget();
        }
    }
    /// What a snapshot sees now. `None`: it is not known.
    #[inline]
    pub fn shown(&self) -> Option<Csn> {
        Some(self.stable.load(Ordering::SeqCst)).filter(|csn| *csn != 0)
    }
    /// The same, with where and when it was told.
    pub fn shown_at(&self) -> Shown {
        let get = |x: &AtomicU64| x.load(Ordering::SeqCst);
        Shown { csn: get(&self.stable), life: get(&self.of_life), at: get(&self.at), time: get(&self.time) }
    }

    fn journal(&self, s: Storage) -> &AtomicU64 {
        &self.journals[hash(s) as usize % JOURNALS]
    }
    /// Entries of a record that ends at `end` were appended to the journal of a storage.
    pub fn appended(&self, s: Storage, end: Lsn) {
        self.journal(s).store(end, Ordering::SeqCst);
    }
    /// The end of the last record of which the journal may have entries.
    pub fn appended_to(&self, s: Storage) -> Lsn {
        self.journal(s).load(Ordering::SeqCst)
    }

    /// A block of the main file of a storage was restored (INV-MOVED). Called by redo alone.
    pub fn restored(&self, s: Storage, block: u32) {
        let n = self.moved.load(Ordering::SeqCst);
        let word = u64::from(hash(s)) << 32 | u64::from(block);
        self.blocks[n as usize % MOVED].store(word, Ordering::SeqCst);
        self.moved.store(n + 1, Ordering::SeqCst);
    }
    /// Begins to note blocks.
    pub fn moved(&self) -> Moved {
        Moved(self.moved.load(Ordering::SeqCst))
    }
}

/// The blocks that were noted up to here are known.
pub struct Moved(u64);

impl Moved {
    /// Adds the blocks of a storage that were noted since. False: too many were.
    pub fn look(&mut self, standby: &Standby, s: Storage, to: &mut Vec<u32>) -> bool {
        let end = standby.moved.load(Ordering::SeqCst);
        for n in self.0..end {
            let word = standby.blocks[n as usize % MOVED].load(Ordering::SeqCst);
            if (word >> 32) as u32 == hash(s) {
                to.push(word as u32);
            }
        }
        // The one that is being written now replaces an old one.
        let kept = standby.moved.load(Ordering::SeqCst).saturating_sub(self.0) < MOVED as u64;
        self.0 = end;
        kept
    }
}

impl Engine {
    /// What may be told (INV-STABLE). `None`: nothing new for now.
    pub fn stable_upto(&self) -> Option<Csn> {
        let standby = &self.shared.standby;
        let mut upto = logged_upto(self);
        for slot in self.slots {
            let mut n = 0;
            let logged = loop {
                match slot.logged_at.load(Ordering::SeqCst) {
                    TAKING_CSN => relax(n),
                    logged => break logged,
                }
                n += 1;
            };
            if logged != 0 && !faults::on(Fault::StableAtPrepared) {
                upto = upto.min(logged - 1);
            }
        }
        if faults::on(Fault::StableTooLarge) {
            return Some(self.now() + 1);
        }
        (upto >= standby.finished.load(Ordering::SeqCst)).then_some(upto)
    }

    /// Does a prepared transaction hold back what may be told below this CSN?
    pub fn is_held_back(&self, csn: Csn) -> bool {
        self.slots.iter().any(|slot| {
            let logged = slot.logged_at.load(Ordering::SeqCst);
            logged != 0 && logged < csn
        })
    }

    /// Takes what is stable, as a snapshot of a slot. `is_first`: no older one is in use. `None`:
    /// it is not known.
    pub fn take_stable(&self, slot: SlotId, is_first: bool) -> Option<Csn> {
        let word = &self.slots[slot as usize].shows;
        let before = word.load(Ordering::SeqCst);
        word.store(TAKING, Ordering::SeqCst);
        let csn = self.shared.standby.shown();
        let oldest = if is_first || before == 0 { csn.unwrap_or(before) } else { before };
        word.store(oldest, Ordering::SeqCst);
        csn
    }

    /// The slots that may use a snapshot below `horizon`.
    pub fn showing_below(&self, horizon: Csn) -> impl Iterator<Item = SlotId> + '_ {
        let shows = move |csn: Csn| csn != 0 && csn < horizon;
        let all = self.slots.iter().enumerate().filter(move |(_, s)| shows(s.shows.load(Ordering::SeqCst)));
        all.map(|(i, _)| i as SlotId)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::csn::{SlotWord, State};
    use crate::threads::Block;

    #[test]
    fn what_is_told_is_decided() {
        let block = Block::new(8 << 20, 3).expect("a block");
        let e = block.engine;
        let now = (e.tick(), e.tick(), e.tick()).2;
        assert_eq!(e.stable_upto(), Some(now));
        let open = e.tick();
        e.slots[1].word.store(SlotWord::new(0, open, State::Committing).0, Ordering::SeqCst);
        e.tick();
        assert_eq!(e.stable_upto(), Some(open - 1));
        e.slots[1].word.store(SlotWord::new(0, open, State::Committed).0, Ordering::SeqCst);
        assert_eq!(e.stable_upto(), Some(e.now()));
    }

    #[test]
    fn nothing_is_told_between_a_prepare_and_its_end() {
        let block = Block::new(8 << 20, 3).expect("a block");
        let e = block.engine;
        let prepared = e.tick();
        e.slots[1].logged_at.store(prepared, Ordering::SeqCst);
        let other = e.tick();
        assert_eq!(e.stable_upto(), Some(prepared - 1));
        // Another commit is under way below the CSN of the end.
        e.slots[2].word.store(SlotWord::new(0, other, State::Committing).0, Ordering::SeqCst);
        let end = e.tick();
        e.shared.standby.tell_finished(end);
        e.slots[1].logged_at.store(0, Ordering::SeqCst);
        assert_eq!(e.stable_upto(), None, "it would be at {}, between {prepared} and {end}", other - 1);
        e.slots[2].word.store(SlotWord::new(0, other, State::Committed).0, Ordering::SeqCst);
        assert_eq!(e.stable_upto(), Some(end));
    }

    #[test]
    fn a_snapshot_is_met_by_its_horizon() {
        let block = Block::new(8 << 20, 3).expect("a block");
        let (e, standby) = (block.engine, &block.engine.shared.standby);
        assert_eq!(e.take_stable(0, true), None);
        assert_eq!(e.showing_below(Csn::MAX).count(), 0);
        let show = |csn| standby.show(Shown { csn, life: 7, at: 100, time: 0 });
        show(50);
        assert_eq!(e.take_stable(0, true), Some(50));
        show(60);
        assert_eq!(e.take_stable(1, true), Some(60));
        assert_eq!(e.take_stable(0, false), Some(60), "and the old one is in use still");
        assert_eq!(e.showing_below(60).collect::<Vec<_>>(), [0]);
        assert_eq!(e.take_stable(0, true), Some(60));
        assert_eq!(e.showing_below(60).count(), 0);
        e.slots[2].shows.store(TAKING, Ordering::SeqCst);
        assert_eq!(e.showing_below(2).collect::<Vec<_>>(), [2], "it may take anything");
        assert!(standby.is_life(7) && !standby.is_life(8));
        standby.require(55);
        assert_eq!(standby.shown(), Some(60));
        standby.require(70);
        assert_eq!(standby.shown(), None, "what is below is shown no more");
        show(65);
        assert_eq!(standby.shown(), None);
        show(70);
        assert_eq!(standby.shown(), Some(70));
        standby.forget();
        assert_eq!(standby.shown(), None);
    }

    #[test]
    fn eras_differ_and_tell_whether_there_is_replay() {
        let block = Block::new(8 << 20, 3).expect("a block");
        let standby = &block.engine.shared.standby;
        let mut before = 0;
        for in_replay in [true, true, false, true, false] {
            standby.turn(in_replay);
            assert!(standby.era() > before && (standby.era() % 2 == 1) == in_replay);
            before = standby.era();
        }
    }

    #[test]
    fn blocks_that_move_are_met_again_or_too_many() {
        let block = Block::new(8 << 20, 3).expect("a block");
        let standby = &block.engine.shared.standby;
        let (s, other) = ([1, 2, 3, 0].into(), [1, 2, 4, 0].into());
        standby.restored(s, 1);
        let (mut moved, mut found) = (standby.moved(), Vec::new());
        assert!(moved.look(standby, s, &mut found) && found.is_empty());
        standby.restored(s, 2);
        standby.restored(other, 3);
        assert!(moved.look(standby, s, &mut found));
        assert_eq!(found, [2]);
        (0..MOVED).for_each(|n| standby.restored(s, n as u32));
        assert!(!moved.look(standby, s, &mut found), "some may be lost");
    }
}
