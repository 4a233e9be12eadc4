//! Reads on standbys: what a primary tells, and what a standby has replayed.
//!
//! **INV-STABLE**: A primary tells *S* only if all commits up to *S* have inserted their records,
//! and are decided in WAL, before the record that tells it; and with *S* it tells which prepared
//! transactions are *open* at *S*: logged under a CSN n <= *S*, and committed at c > *S*, or not
//! yet, or never. It finds them so: it reads the clock, then the words of all slots (INV-FLUSHED),
//! then the CSNs under which prepared transactions are logged, then the largest CSN at which one
//! was finished. *S* is not below the latter. A COMMIT PREPARED takes c, says so in the word
//! (*committing*), then raises the largest CSN, then clears n, then says *committed*.
//!
//! *Proof.* Let n <= *S* be found in a slot. If c was taken before the clock was read, then the
//! word was *committing* when it was looked at, since n is cleared before that ends: so *S* < c.
//! Else c is above the clock. Let n be not found, as it is cleared: then c is at or below the
//! largest CSN, so at or below *S*. A PREPARE that takes n later than the clock is read has n >
//! *S*.
//!
//! One that has changed definitions keeps *S* below its n: its new files are used as soon as its
//! commit is replayed. So do those beyond [`OPEN_MAX`].
//!
//! **INV-STILL-OPEN**: A standby takes *S* and the open ones as one value. An entry at n <= *S* of
//! a transaction that is open is passed over, and counts when a later *S* is told of which it is
//! not open. Which CSN c it has is not known, and need not be: snapshots are values of *S*. Let
//! *S'* be the last one of which it was open. It counts at *S'* + 1, which is at or below c: so
//! above all older entries of the row, whose CSNs are below n, and below all newer ones, which are
//! above c.
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
use crate::shared::{Engine, Slot};

/// The word of a slot that is about to read what is stable. It is below all CSNs.
pub const TAKING: Csn = 1;

/// Words for the ends of journals, by hashes of storages.
const JOURNALS: usize = 512;
/// Blocks that are remembered as restored.
const MOVED: usize = 8192;
/// Prepared transactions that are open at what is told, at most.
pub const OPEN_MAX: usize = 256;
/// Those that are remembered as open no more.
const LEFT: usize = 1024;
/// Those that a table remembers that were passed over in images.
const PASSED: usize = 32;

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
    /// On a standby (INV-STILL-OPEN): odd while the next ones are written; of which CSN the open
    /// ones are, how many, and their ids.
    version: AtomicU64,
    listed: AtomicU64,
    opens: AtomicU64,
    open: [AtomicU64; OPEN_MAX],
    /// The ids of those that are open no more, and the CSNs at which they count; how many there
    /// were; and the largest such CSN that is not remembered.
    left: [[AtomicU64; 2]; LEFT],
    lefts: AtomicU64,
    lost: AtomicU64,
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
    /// Open transactions of which an image was passed over: how many; their ids, if there is room;
    /// and how many were open no more then.
    passed: AtomicU64,
    ids: [AtomicU64; PASSED],
    passed_at: AtomicU64,
}

impl Live {
    /// The era of a table that is of no use in any.
    pub const GONE: u64 = u64::MAX;

    /// Images of these open transactions were passed over. Called under INV-ATTACH, as the next.
    pub fn pass(&self, standby: &Standby, ids: &[u64]) {
        self.ids.iter().zip(ids).for_each(|(to, id)| to.store(*id, Ordering::SeqCst));
        self.passed_at.store(standby.lefts.load(Ordering::SeqCst), Ordering::SeqCst);
        self.passed.store(ids.len() as u64, Ordering::SeqCst);
    }
    /// Is one of them open no more, so that the images must be read again?
    pub fn is_passed(&self, standby: &Standby, is_open: impl Fn(u64) -> bool) -> bool {
        match self.passed.load(Ordering::SeqCst) as usize {
            n if n <= PASSED => self.ids[..n].iter().any(|id| !is_open(id.load(Ordering::SeqCst))),
            _ => standby.lefts.load(Ordering::SeqCst) != self.passed_at.load(Ordering::SeqCst),
        }
    }
}

/// A CSN that is stable, and the prepared transactions that are open at it (INV-STILL-OPEN).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// All commits up to this one.
    pub csn: Csn,
    /// But for these.
    pub open: Vec<u64>,
}

impl Told {
    /// Is the transaction of this id open?
    pub fn is_open(&self, xid: u64) -> bool {
        self.open.contains(&xid)
    }
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
        self.list(0, std::iter::empty());
        self.left.iter().for_each(|[id, _]| id.store(0, Ordering::SeqCst));
        self.lost.store(0, Ordering::SeqCst);
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
    /// What is told is of this life from now on.
    pub fn begin(&self, life: Lsn) {
        self.of_life.store(life, Ordering::SeqCst);
    }
    /// What is told was replayed, with the transactions that are open at it.
    pub fn show(&self, shown: Shown, open: impl ExactSizeIterator<Item = u64> + Clone) {
        let listed = self.listed.load(Ordering::SeqCst);
        if shown.csn < listed {
            return; // Another process of the primary was faster.
        }
        if shown.csn > listed {
            self.change(listed, shown.csn, open);
        }
        self.of_life.store(shown.life, Ordering::SeqCst);
        self.at.store(shown.at, Ordering::SeqCst);
        self.time.store(shown.time, Ordering::SeqCst);
        if shown.csn >= self.required.load(Ordering::SeqCst) {
            self.stable.fetch_max(shown.csn, Ordering::SeqCst);
        }
    }
    /// Other transactions are open at `csn` than at the last one.
    fn change(&self, last: Csn, csn: Csn, open: impl ExactSizeIterator<Item = u64> + Clone) {
        if last == 0 {
            // Nothing is known of those of before.
            self.lost.store(csn, Ordering::SeqCst);
        }
        for xid in &self.open[..self.opens.load(Ordering::SeqCst) as usize] {
            let xid = xid.load(Ordering::SeqCst);
            if !open.clone().any(|other| other == xid) {
                self.leave(xid, last + 1);
            }
        }
        self.list(csn, open);
    }
    /// Replaces the open ones.
    fn list(&self, csn: Csn, open: impl ExactSizeIterator<Item = u64>) {
        self.version.fetch_add(1, Ordering::SeqCst);
        self.listed.store(csn, Ordering::SeqCst);
        self.opens.store(open.len().min(OPEN_MAX) as u64, Ordering::SeqCst);
        self.open.iter().zip(open).for_each(|(to, xid)| to.store(xid, Ordering::SeqCst));
        self.version.fetch_add(1, Ordering::SeqCst);
    }
    /// A transaction is open no more, and counts at `csn` if it has committed.
    fn leave(&self, xid: u64, csn: Csn) {
        let n = self.lefts.load(Ordering::SeqCst);
        let [id, at] = &self.left[n as usize % LEFT];
        if id.load(Ordering::SeqCst) != 0 {
            self.lost.fetch_max(at.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        id.store(0, Ordering::SeqCst);
        at.store(csn, Ordering::SeqCst);
        id.store(xid, Ordering::SeqCst);
        self.lefts.store(n + 1, Ordering::SeqCst);
    }
    /// What is stable now, with the open ones. `None`: it is not known.
    pub fn shown_with(&self) -> Option<Told> {
        for n in 0.. {
            let version = self.version.load(Ordering::SeqCst);
            let csn = self.listed.load(Ordering::SeqCst);
            let opens = self.opens.load(Ordering::SeqCst) as usize;
            let open = self.open[..opens].iter().map(|xid| xid.load(Ordering::SeqCst)).collect();
            let shown = self.shown();
            if version % 2 == 0 && self.version.load(Ordering::SeqCst) == version {
                match shown {
                    None => return None,
                    Some(shown) if shown == csn => return Some(Told { csn, open }),
                    Some(_) => {} // The new one is about to be shown.
                }
            }
            relax(n);
        }
        None
    }
    /// The CSN at which a transaction counts that was open. `Err`: it was not since that CSN.
    pub fn counts_at(&self, xid: u64) -> Result<Csn, Csn> {
        for [id, at] in &self.left {
            if id.load(Ordering::SeqCst) == xid {
                let csn = at.load(Ordering::SeqCst);
                if id.load(Ordering::SeqCst) == xid {
                    return Ok(csn);
                }
            }
        }
        Err(self.lost.load(Ordering::SeqCst))
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

/// A transaction that is prepared.
struct Prepared {
    csn: Csn,
    /// 0: it has logged nothing.
    xid: u64,
    redefines: bool,
}

/// The prepared transaction of a slot. Waits for one that is about to take its CSN.
fn prepared(slot: &Slot) -> Option<Prepared> {
    for n in 0.. {
        let csn = slot.logged_at.load(Ordering::SeqCst);
        let xid = slot.xid.load(Ordering::SeqCst);
        let redefines = slot.redefines.load(Ordering::SeqCst) != 0;
        match csn {
            0 => return None,
            TAKING_CSN => relax(n),
            _ if slot.logged_at.load(Ordering::SeqCst) == csn => return Some(Prepared { csn, xid, redefines }),
            _ => {}
        }
    }
    None
}

impl Engine {
    /// What may be told (INV-STABLE). `None`: nothing for now.
    pub fn stable_upto(&self) -> Option<Told> {
        let mut csn = logged_upto(self);
        if faults::on(Fault::StableTooLarge) {
            return Some(Told { csn: self.now() + 1, open: Vec::new() });
        }
        let mut open = Vec::new();
        for prepared in self.slots.iter().filter_map(prepared).filter(|_| !faults::on(Fault::StableAtPrepared)) {
            if prepared.redefines {
                csn = csn.min(prepared.csn - 1);
            } else if prepared.xid != 0 {
                open.push((prepared.csn, prepared.xid));
            }
        }
        open.sort_unstable();
        csn = open.get(OPEN_MAX).map_or(csn, |(first, _)| csn.min(first - 1));
        let open = open.into_iter().filter(|(at, _)| *at <= csn).map(|(_, xid)| xid).collect();
        (csn >= self.shared.standby.finished.load(Ordering::SeqCst)).then_some(Told { csn, open })
    }

    /// Do prepared transactions hold back what may be told below this CSN?
    pub fn is_held_back(&self, csn: Csn) -> bool {
        let below = || self.slots.iter().filter_map(prepared).filter(|prepared| prepared.csn < csn);
        self.has_prepared() && (below().any(|prepared| prepared.redefines) || below().count() > OPEN_MAX)
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

    fn told(csn: Csn, open: &[u64]) -> Option<Told> {
        Some(Told { csn, open: open.to_vec() })
    }

    #[test]
    fn what_is_told_is_decided() {
        let block = Block::new(8 << 20, 3).expect("a block");
        let e = block.engine;
        let now = (e.tick(), e.tick(), e.tick()).2;
        assert_eq!(e.stable_upto(), told(now, &[]));
        let open = e.tick();
        e.slots[1].word.store(SlotWord::new(0, open, State::Committing).0, Ordering::SeqCst);
        e.tick();
        assert_eq!(e.stable_upto(), told(open - 1, &[]));
        e.slots[1].word.store(SlotWord::new(0, open, State::Committed).0, Ordering::SeqCst);
        assert_eq!(e.stable_upto(), told(e.now(), &[]));
    }

    #[test]
    fn what_is_prepared_is_told_as_open_until_its_commit_is_told() {
        let block = Block::new(8 << 20, 3).expect("a block");
        let e = block.engine;
        let prepared = e.tick();
        e.slots[1].xid.store(7, Ordering::SeqCst);
        e.slots[1].logged_at.store(prepared, Ordering::SeqCst);
        let other = e.tick();
        assert_eq!(e.stable_upto(), told(other, &[7]));
        // Another commit is under way below the CSN of the end.
        e.slots[2].word.store(SlotWord::new(0, other, State::Committing).0, Ordering::SeqCst);
        let end = e.tick();
        e.slots[1].word.store(SlotWord::new(0, end, State::Committing).0, Ordering::SeqCst);
        assert_eq!(e.stable_upto(), told(other - 1, &[7]));
        e.shared.standby.tell_finished(end);
        assert_eq!(e.stable_upto(), None, "it would be open, or not, at {}", other - 1);
        e.slots[1].logged_at.store(0, Ordering::SeqCst);
        assert_eq!(e.stable_upto(), None, "it would be seen at {}, below {end}", other - 1);
        e.slots[1].word.store(SlotWord::new(0, end, State::Committed).0, Ordering::SeqCst);
        assert_eq!(e.stable_upto(), None);
        e.slots[2].word.store(SlotWord::new(0, other, State::Committed).0, Ordering::SeqCst);
        assert_eq!(e.stable_upto(), told(end, &[]));
    }

    #[test]
    fn changes_of_definitions_and_too_many_hold_it_back() {
        let block = Block::new(8 << 20, OPEN_MAX + 3).expect("a block");
        let e = block.engine;
        e.shared.guards.0.enter();
        let first = e.tick();
        e.slots[0].redefines.store(1, Ordering::SeqCst);
        e.slots[0].logged_at.store(first, Ordering::SeqCst);
        e.tick();
        assert_eq!(e.stable_upto(), told(first - 1, &[]));
        assert!(e.is_held_back(first + 1) && !e.is_held_back(first));
        e.slots[0].logged_at.store(0, Ordering::SeqCst);
        let all: Vec<_> = (1..=OPEN_MAX as u64 + 2).collect();
        let csns: Vec<_> = all.iter().map(|_| e.tick()).collect();
        for (i, csn) in csns.iter().enumerate() {
            e.slots[i].redefines.store(0, Ordering::SeqCst);
            e.slots[i].xid.store(all[i], Ordering::SeqCst);
            e.slots[i].logged_at.store(*csn, Ordering::SeqCst);
        }
        assert_eq!(e.stable_upto(), told(csns[OPEN_MAX] - 1, &all[..OPEN_MAX]));
        assert!(e.is_held_back(Csn::MAX) && !e.is_held_back(csns[OPEN_MAX]));
    }

    #[test]
    fn what_was_open_counts_after_the_last_time_that_it_was() {
        let block = Block::new(8 << 20, 3).expect("a block");
        let standby = &block.engine.shared.standby;
        let show = |csn, open: &[u64]| {
            standby.show(Shown { csn, life: 7, at: 100, time: 0 }, open.iter().copied());
        };
        assert_eq!(standby.shown_with(), None);
        show(50, &[3, 4]);
        assert_eq!(standby.shown_with(), told(50, &[3, 4]));
        show(60, &[3]);
        show(55, &[3, 4]);
        assert_eq!(standby.shown_with(), told(60, &[3]), "an older one comes late");
        assert_eq!(standby.counts_at(4), Ok(51));
        assert_eq!(standby.counts_at(3), Err(50));
        assert_eq!(standby.counts_at(9), Err(50), "what was before is not known");
        let live = Live::default();
        live.pass(standby, &[3]);
        let is_passed = |live: &Live| {
            let now = standby.shown_with().expect("it is known");
            live.is_passed(standby, |xid| now.is_open(xid))
        };
        assert!(!is_passed(&live));
        let many = Live::default();
        many.pass(standby, &[3; PASSED + 1]);
        assert!(!is_passed(&many));
        show(70, &[]);
        assert_eq!(standby.counts_at(3), Ok(61));
        assert!(is_passed(&live) && is_passed(&many));
        for n in 0..=LEFT as u64 {
            show(100 + 2 * n, &[1000 + n]);
        }
        assert_eq!(standby.counts_at(3), Err(61), "there is no room to remember it");
        standby.turn(true);
        assert_eq!((standby.shown_with(), standby.counts_at(1000)), (None, Err(0)));
    }

    #[test]
    fn a_snapshot_is_met_by_its_horizon() {
        let block = Block::new(8 << 20, 3).expect("a block");
        let (e, standby) = (block.engine, &block.engine.shared.standby);
        assert_eq!(e.take_stable(0, true), None);
        assert_eq!(e.showing_below(Csn::MAX).count(), 0);
        let show = |csn| standby.show(Shown { csn, life: 7, at: 100, time: 0 }, std::iter::empty());
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
