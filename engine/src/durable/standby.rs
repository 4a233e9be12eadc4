//! Reads on standbys: what a primary tells, and what a standby has replayed.
//!
//! **INV-STABLE**: A primary tells *S* only if all commits up to *S* have inserted their records,
//! and are decided in WAL, before the record that tells it; and with *S* it tells which prepared
//! transactions are *open* at *S*: logged under a CSN n <= *S*, and committed at c > *S*, or not
//! yet, or never. It finds them so: it reads the clock, then the words of all slots (INV-FLUSHED),
//! then the CSNs n under which prepared transactions are logged, then the last ends (INV-ENDS): n
//! and c of each. *S* is not below the largest c that is forgotten there. A COMMIT PREPARED takes
//! c, says so in the word (*committing*), then notes its end, then clears n, then says *committed*.
//!
//! *Proof.* Let n <= *S* be found in a slot. If c was taken before the clock was read, then the
//! word was *committing* when it was looked at, since n is cleared before that ends: so *S* < c.
//! Else c is above the clock. So it is open at *S*. Let n be not found, as it is cleared: then the
//! end is among the last ones, and tells whether n <= *S* < c; or c is forgotten, and at or below
//! *S*. A PREPARE that takes n later than the clock is read has n > *S*. All of this holds for each
//! CSN below *S*, too, down to the largest that is forgotten: so a smaller one may be told.
//!
//! One that has changed definitions is open at no *S*: its new files are used as soon as its commit
//! is replayed. Nor are those for which there is no [`Engine::room`]. *S* is the largest CSN of
//! which both hold ([`told_below`]).
//!
//! **INV-BEFORE-LIFE**: A transaction that was prepared before the life of its primary is listed
//! while it runs, whatever its n, which is a CSN of another life. It runs until the platform says
//! no. It gets a slot only if it runs after the slot says that it is logged ([`TAKING_CSN`]
//! before): so a process that finds that it does not run finds the slot, or its end. It is listed
//! as *asleep* if its slot is not parked, or it has changed definitions. One that is not asleep has
//! a slot until it ends. So it gets a CSN c, which its rows have in each table that is loaded
//! later; and it is listed with each *S* below c, as before (INV-ENDS). One that is asleep may end
//! without a slot: then its rows are before all of this life. So standbys do not load its rows
//! while it is listed as asleep.
//!
//! **INV-STILL-OPEN**: A standby takes *S* and the open ones as one value. An entry at n <= *S* of
//! a transaction that is open is passed over, and counts when a later *S* is told of which it is
//! not open. Which CSN c it has is not known, and need not be: snapshots are values of *S*. Let
//! *S'* be the last one of which it was open. It counts at *S'* + 1, or at n, if that is larger:
//! both are at or below c. So that is above all older entries of the row, whose CSNs are below n,
//! and below all newer ones, which are above c. No snapshot is in between.
//!
//! **INV-CONFLICT**: A reader stores [`TAKING`] in its slot, then reads what is stable, then stores
//! that. Redo publishes what is stable, and then looks at the slots, before index entries or
//! numbers of rows go that a snapshot below a horizon could still need. So it meets each such
//! snapshot, and each later one is at or above the horizon.
//!
//! **INV-UNLOADED**: Before a primary lets index entries of a record without a version go, it tells
//! a horizon. That is at or above the CSN of the row's deletion, if that is of this life. The table
//! may have left the memory since, and have come back: then no version tells that CSN. It is not
//! above the clock as it was when the last table left, which the primary takes for all such
//! records of a table that is loaded later. It marks none of their entries as dead, which some
//! kinds of indexes remove on their own, before that is stable.
//!
//! **INV-MOVED**: Redo notes a block after it has restored it. A reader of a file reads all blocks,
//! and then those that were noted since it began, until no new one is noted. So it has read the
//! last content of each block. A note may be of another file: names are hashed.

mod ends;

pub use ends::{End, Ends};

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
/// Those of them that were prepared before this life, at most. If there are more, all that is older
/// than this life is told as open, and asleep.
pub const BEFORE_MAX: usize = 128;
/// Of an id in a list: rows of the transaction cannot be loaded yet (INV-BEFORE-LIFE).
pub const ASLEEP: u64 = 1 << 63;
/// It stands for all transactions with smaller ids, which are asleep.
const BELOW: u64 = 1 << 62;
/// Of an id that was noted: the transaction has ended. It is not asked for again, as the platform
/// looks at the lower half of the id only, which others will have.
const ENDED: u64 = 1 << 61;
/// The last prepared transactions that have committed, which a primary remembers. While one commit
/// is under way, at whose CSN nothing is stable, as many may end.
const ENDS: usize = 1024;
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
    /// On a primary: the clock as it was when a table left the memory last (INV-UNLOADED).
    unloaded: AtomicU64,
    /// On a primary: a number for the list that the companion has found last, and whether another
    /// list was told since.
    found: AtomicU64,
    strange: AtomicU64,
    /// On a primary: the last prepared transactions that have committed.
    ends: Ends<ENDS>,
    /// On a primary (INV-BEFORE-LIFE): transactions that were prepared before its life began, how
    /// many + 1, and their ids, with [`ASLEEP`] if they have changed definitions. 0: not known yet.
    recovereds: AtomicU64,
    recovered: [AtomicU64; BEFORE_MAX],
    /// There are more than that, with ids below this one. 0: there are not.
    recovered_below: AtomicU64,
    /// On a standby: changes when tables that were loaded are of no use any more. Odd: in replay.
    era: AtomicU64,
    /// On a standby: tables that were loaded and are of no use any more, or are gone; how many.
    given_up: AtomicU64,
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

    /// Images of these transactions, which are open in `told`, were passed over. Called under
    /// INV-ATTACH, as the next.
    pub fn pass(&self, told: &Told, ids: &[u64]) {
        self.ids.iter().zip(ids).for_each(|(to, id)| to.store(*id, Ordering::SeqCst));
        self.passed_at.store(told.lefts, Ordering::SeqCst);
        self.passed.store(ids.len() as u64, Ordering::SeqCst);
    }
    /// Is one of them open no more, so that the images must be read again?
    pub fn is_passed(&self, told: &Told) -> bool {
        match self.passed.load(Ordering::SeqCst) as usize {
            n if n <= PASSED => self.ids[..n].iter().any(|id| !told.is_open(id.load(Ordering::SeqCst))),
            _ => told.lefts != self.passed_at.load(Ordering::SeqCst),
        }
    }
}

/// A CSN that is stable, and the prepared transactions that are open at it (INV-STILL-OPEN).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// All commits up to this one.
    pub csn: Csn,
    /// But for these, as they are in WAL: ids, with [`ASLEEP`].
    pub open: Vec<u64>,
    /// How many had been open before, and were open no more. On a standby.
    pub lefts: u64,
}

impl Told {
    /// What is to be told by a primary.
    pub fn new(csn: Csn, open: Vec<u64>) -> Told {
        Told { csn, open, lefts: 0 }
    }
    /// Is the transaction of this id open?
    pub fn is_open(&self, xid: u64) -> bool {
        self.open.iter().any(|word| is_listed(*word, xid))
    }
    /// Is it open, and cannot be passed over by a load (INV-BEFORE-LIFE)?
    pub fn is_asleep(&self, xid: u64) -> bool {
        self.open.iter().any(|word| word & (ASLEEP | BELOW) != 0 && is_listed(*word, xid))
    }
}

/// The id of a word of a list.
fn id_of(word: u64) -> u64 {
    word & !(ASLEEP | BELOW | ENDED)
}

/// The id of a word of a list, and what is said of it.
pub(super) fn read_word(word: u64) -> (u64, &'static str) {
    let what = match word {
        _ if word & BELOW != 0 => " and all before",
        _ if word & ASLEEP != 0 => " asleep",
        _ => "",
    };
    (id_of(word), what)
}

/// A number for a list, which is not 0.
fn number_of(open: &[u64]) -> u64 {
    open.iter().fold(1u64, |n, word| (n ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)) | 1
}

/// The word of a transaction that was noted, and runs.
fn running(noted: &AtomicU64, is_running: impl Fn(u64) -> bool) -> Option<u64> {
    let word = noted.load(Ordering::SeqCst);
    if word & ENDED != 0 {
        return None;
    }
    if is_running(id_of(word)) {
        return Some(word);
    }
    noted.fetch_or(ENDED, Ordering::SeqCst);
    None
}

fn is_listed(word: u64, xid: u64) -> bool {
    if word & BELOW != 0 {
        xid < id_of(word)
    } else {
        xid == id_of(word)
    }
}

/// Was a transaction open at `from`, which was stable then? It is open no more, and is logged under
/// this CSN. `at`: the answer of [`Standby::counts_at`]. True if that is not remembered.
pub fn was_open(at: Result<Csn, Csn>, csn: Csn, from: Csn) -> bool {
    match at {
        Ok(at) => at > from,
        Err(lost) => lost > from && csn <= lost,
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
    /// A prepared transaction is about to be finished. Its slot tells of it still (INV-ENDS).
    pub(crate) fn note_end(&self, end: End) {
        match end.what {
            _ if faults::on(Fault::EndsForgotten) => self.ends.forget(end.ended),
            // What it was logged under is of another life.
            RECOVERED => self.ends.note(End { logged: 0, ..end }),
            _ if end.is_counted() => self.ends.note(end),
            _ => {}
        }
    }
    /// Transactions that were prepared before this life, and run: all of them. With [`ASLEEP`] if
    /// they have changed definitions. Called by one process. True: it is to be called again when
    /// some have ended.
    pub fn set_recovered(&self, ids: &[u64]) -> bool {
        let known = self.recovered_below.load(Ordering::SeqCst);
        if known == 0 && self.notes().is_some() {
            return false; // Others read the list.
        }
        let below = ids.iter().map(|id| id_of(*id) + 1).max().filter(|_| ids.len() > BEFORE_MAX);
        if let Some(below) = below {
            // It has no ids of this life: it never grows.
            self.recovered_below.store(if known == 0 { below } else { below.min(known) }, Ordering::SeqCst);
            return true;
        }
        self.recovered.iter().zip(ids).for_each(|(to, id)| to.store(*id, Ordering::SeqCst));
        self.recovereds.store(ids.len() as u64 + 1, Ordering::SeqCst);
        self.recovered_below.store(0, Ordering::SeqCst);
        false
    }
    /// Those of them that the function calls running. Of the others it is not asked again. `None`:
    /// they are not known yet.
    pub fn recovered(&self, is_running: impl Fn(u64) -> bool) -> Option<Vec<u64>> {
        match self.recovered_below.load(Ordering::SeqCst) {
            0 => {
                let noted = self.recovered[..self.notes()?].iter();
                Some(noted.filter_map(|word| running(word, &is_running)).collect())
            }
            below => Some(vec![BELOW | below]),
        }
    }
    /// How many were noted. `None`: not yet, or they are too many.
    fn notes(&self) -> Option<usize> {
        Some(self.recovereds.load(Ordering::SeqCst).checked_sub(1)? as usize)
    }
    /// All that were noted, also if they have ended.
    fn noted(&self) -> impl Iterator<Item = u64> + '_ {
        self.recovered[..self.notes().unwrap_or(0)].iter().map(|id| id.load(Ordering::SeqCst))
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
    pub fn tell(&self, told: &Told, horizon: Csn) {
        self.told.fetch_max(told.csn, Ordering::SeqCst);
        self.horizon.fetch_max(horizon, Ordering::SeqCst);
        if told.csn > 0 && number_of(&told.open) != self.found.load(Ordering::SeqCst) {
            self.strange.store(1, Ordering::SeqCst);
        }
    }
    /// Tables are about to leave the memory, and no process changes them any more (INV-UNLOADED).
    pub fn note_unloaded(&self, now: Csn) {
        self.unloaded.fetch_max(now, Ordering::SeqCst);
    }
    /// What was noted last. 0: in this life no table has left.
    pub fn unloaded(&self) -> Csn {
        self.unloaded.load(Ordering::SeqCst)
    }
    /// The companion finds these open. True: it has found others before, or another process has
    /// told others. So a standby may have them for the CSN of now.
    pub fn find(&self, open: &[u64]) -> bool {
        let is_other = self.found.swap(number_of(open), Ordering::SeqCst) != number_of(open);
        let is_strange = self.strange.swap(0, Ordering::SeqCst) != 0;
        is_other || is_strange
    }

    /// The number that a table must have which was loaded in this era.
    #[inline]
    pub fn era(&self) -> u64 {
        self.era.load(Ordering::SeqCst)
    }
    /// Rises with each table that was loaded and is given up. It is read before the table is looked
    /// up.
    #[inline]
    pub fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::SeqCst)
    }
    /// A table that was loaded is of no use any more, or no other process finds it.
    pub fn note_given_up(&self) {
        self.given_up.fetch_add(1, Ordering::SeqCst);
    }
    /// Replay begins, or ends: nothing is stable, and what was loaded is of no use.
    pub fn turn(&self, in_replay: bool) {
        self.forget();
        self.required.store(0, Ordering::SeqCst);
        self.opens.store(0, Ordering::SeqCst);
        self.listed.store(0, Ordering::SeqCst);
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
    /// Other transactions are open at `csn` than at the last one. All of it changes while the
    /// version is odd.
    fn change(&self, last: Csn, csn: Csn, open: impl ExactSizeIterator<Item = u64> + Clone) {
        self.version.fetch_add(1, Ordering::SeqCst);
        if last == 0 {
            // Nothing is known of those of before.
            self.lost.store(csn, Ordering::SeqCst);
        }
        for word in &self.open[..self.opens.load(Ordering::SeqCst) as usize] {
            let word = word.load(Ordering::SeqCst);
            let stays = |other: u64| id_of(other) == id_of(word) && other & BELOW == word & BELOW;
            match open.clone().any(stays) {
                true => {}
                // Which ones of them have ended is not known.
                false if word & BELOW != 0 => {
                    self.lost.fetch_max(last + 1, Ordering::SeqCst);
                    self.lefts.fetch_add(1, Ordering::SeqCst);
                }
                false => self.leave(id_of(word), last + 1),
            }
        }
        self.listed.store(csn, Ordering::SeqCst);
        self.opens.store(open.len().min(OPEN_MAX) as u64, Ordering::SeqCst);
        self.open.iter().zip(open).for_each(|(to, word)| to.store(word, Ordering::SeqCst));
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
            let lefts = self.lefts.load(Ordering::SeqCst);
            let shown = self.shown();
            if version % 2 == 0 && self.version.load(Ordering::SeqCst) == version {
                match shown {
                    None => return None,
                    Some(shown) if shown == csn => return Some(Told { csn, open, lefts }),
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

/// Of the prepared transaction of a slot: it has changed definitions.
pub(crate) const REDEFINES: u32 = 1;
/// It was prepared before this life.
pub(crate) const RECOVERED: u32 = 2;

/// The prepared transaction of a slot, and whether it is of no process. Waits for one that is about
/// to take its CSN.
fn prepared(slot: &Slot) -> Option<(End, bool)> {
    for n in 0.. {
        let csn = slot.logged_at.load(Ordering::SeqCst);
        let xid = slot.xid.load(Ordering::SeqCst);
        let what = slot.logged_as.load(Ordering::SeqCst);
        let parked = !slot.kept.load(Ordering::SeqCst).is_null();
        let is_same = || slot.xid.load(Ordering::SeqCst) == xid && slot.logged_at.load(Ordering::SeqCst) == csn;
        match csn {
            0 => return None,
            TAKING_CSN => relax(n),
            _ if is_same() => return Some((End { xid, logged: csn, ended: Csn::MAX, what }, parked)),
            _ => {}
        }
    }
    None
}

/// The largest CSN, at or below this one, at which none is open that has changed definitions, and
/// not more than `room` others; and the ids of those. Of any CSN from one of these that are too
/// many on the same is true: so it is below that.
fn told_below(mut csn: Csn, all: &[End], room: usize) -> (Csn, Vec<u64>) {
    loop {
        let open = || all.iter().filter(|one| one.is_open_at(csn));
        let defines = open().filter(|one| one.what == REDEFINES).map(|one| one.logged).min();
        let others = open().filter(|one| one.is_counted() && one.what != REDEFINES);
        let mut named: Vec<(Csn, u64)> = others.map(|one| (one.logged, one.xid)).collect();
        named.sort_unstable();
        named.dedup(); // A slot may tell of an end still.
        let too_many = named.get(room).map(|(logged, _)| *logged);
        match defines.into_iter().chain(too_many).min() {
            Some(first) => csn = first - 1,
            None => return (csn, named.into_iter().map(|(_, xid)| xid).collect()),
        }
    }
}

impl Engine {
    /// What may be told (INV-STABLE). `before`: the transactions that were prepared before this
    /// life, and run. The caller asks again after this, and tells nothing if that has changed.
    /// `None`: nothing for now.
    pub fn stable_upto(&self, before: &[u64]) -> Option<Told> {
        let standby = &self.shared.standby;
        let logged = logged_upto(self);
        if faults::on(Fault::StableTooLarge) {
            return Some(Told::new(self.now() + 1, Vec::new()));
        }
        let (mut all, mut older) = (Vec::new(), Vec::new());
        let found = self.slots.iter().filter_map(prepared);
        for (one, parked) in found.filter(|_| !faults::on(Fault::StableAtPrepared)) {
            match one.what {
                RECOVERED => older.push((one.xid, parked)),
                _ => all.push(one),
            }
        }
        // After the slots (INV-ENDS).
        let forgotten = standby.ends.look(&mut all);
        let (csn, open) = told_below(logged, &all, self.room());
        // They were parked until they got their CSNs.
        let ended = all.iter().filter(|one| one.what == RECOVERED && one.is_open_at(csn));
        older.extend(ended.map(|one| (one.xid, true)));
        let open: Vec<u64> = self.before(before, &older).into_iter().chain(open).collect();
        let fits = open.len() <= OPEN_MAX;
        (fits && csn >= forgotten).then(|| Told::new(csn, open))
    }

    /// The words of those that were prepared before this life: they run, or have slots, of which it
    /// is said whether they are parked (INV-BEFORE-LIFE).
    fn before(&self, running: &[u64], slots: &[(u64, bool)]) -> Vec<u64> {
        let word = |xid: u64, sleeps: u64| {
            let parked = slots.iter().any(|(of, parked)| *of == xid && *parked);
            xid | if parked { sleeps } else { ASLEEP }
        };
        let is_below = |word: u64| word & BELOW != 0;
        let mut words: Vec<u64> =
            running.iter().map(|w| if is_below(*w) { *w } else { word(id_of(*w), *w & ASLEEP) }).collect();
        let noted: Vec<u64> = self.shared.standby.noted().collect();
        for (xid, _) in slots {
            if !words.iter().any(|word| is_listed(*word, *xid)) {
                let sleeps = noted.iter().find(|w| id_of(**w) == *xid).map_or(ASLEEP, |w| *w & ASLEEP);
                words.push(word(*xid, sleeps));
            }
        }
        words
    }

    /// Transactions of this life that can be told as open. One word may stand for those of before:
    /// some of them may have left it as it shrinks, and are named.
    fn room(&self) -> usize {
        let standby = &self.shared.standby;
        let noted = match standby.recovered_below.load(Ordering::SeqCst) {
            0 => standby.recovereds.load(Ordering::SeqCst) as usize,
            _ => BEFORE_MAX,
        };
        OPEN_MAX - noted.clamp(1, BEFORE_MAX)
    }

    /// Do prepared transactions hold back what may be told below this CSN?
    pub fn is_held_back(&self, csn: Csn) -> bool {
        if !self.has_prepared() {
            return false;
        }
        let all = self.slots.iter().filter_map(prepared);
        let below = all.map(|(p, _)| p).filter(|p| p.logged < csn && p.is_counted());
        let below: Vec<bool> = below.map(|p| p.what == REDEFINES).collect();
        below.contains(&true) || below.len() > self.room()
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
mod tests;
