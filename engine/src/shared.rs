//! The shared block: a header and the slots, followed by the region that holds everything else.

use crate::clock::Clock;
use crate::csn::{Csn, SlotId, SlotWord, Stamp, State, CSN_LIMIT, CSN_STOP};
use crate::durable::marks::TimeMarks;
use crate::durable::progress::Progress;
use crate::durable::rounds::Rounds;
use crate::durable::standby::Standby;
use crate::durable::window::{Gate, Window};
use crate::error::Error;
use crate::faults::{self, Fault};
use crate::groups::Groups;
use crate::lock::graph::Waiting;
use crate::memory::{Latch, OutOfMemory, Pressure, Region};
use crate::open::{Opens, Shown};
use crate::partition::{SampleEvery, Tally};
use crate::platform::{Outcome, Platform};
use crate::primitive::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::protocol::InUse;
use crate::range::{IndexRanges, Parts, UnderWay, DORMANT_AFTER_NS};
use crate::retire::RetireQueue;
use crate::switch::{Coordinator, Epochs, History};
use crate::table::Table;
use crate::txn::Kept;
use std::ops::Range;

/// Changes whenever the layout of a shared structure changes.
pub const LAYOUT_VERSION: u64 = 25;
const MAGIC: u64 = 0x6d69_7865_6463_6300 | LAYOUT_VERSION;

mod pins;
mod points;

pub use pins::{take_pin, Adopter, Oldest};
pub use points::{Needs, PinWords};

/// A value on cache lines of its own.
#[repr(C, align(128))]
pub struct Padded<T>(pub T);

/// The bytes of a cache line.
pub const LINE: usize = 64;

/// A mark in a `repr(C)` struct: the next field begins a cache line. The struct needs memory that
/// is aligned to lines, as the region gives it.
#[repr(C, align(64))]
pub struct NextLine;

/// The value of a slot's pin when it has none.
pub const UNPINNED: u64 = u64::MAX;

/// A transaction slot. Each process or thread that may run transactions has one.
#[repr(C, align(128))]
pub struct Slot {
    /// See [`SlotWord`].
    pub word: AtomicU64,
    /// `[csn:48][lowering:1][tag:15]`, or [`UNPINNED`]. Memory that a reader at this CSN can reach
    /// is not freed. With CSN 0 or `lowering` set, no memory at all is freed, and the owner is
    /// about to store another CSN (INV-HONEST).
    pub pin: AtomicU64,
    /// The platform's name of the running transaction.
    pub ident: AtomicU64,
    /// Start time for `wait_die`; a smaller one is older. 0: not set.
    pub age: AtomicU64,
    /// `[csn:63][worker:1]`: the read CSN of a snapshot that others may adopt; with `worker` set,
    /// only the parallel workers of this transaction. 0: none. Other commits of the snapshot are in
    /// `shown`.
    pub read_csn: AtomicU64,
    /// Every snapshot under the pin sees all commits up to this CSN (INV-FLOOR).
    floor: AtomicU64,
    /// The clock of the snapshot of a point, 0: the pin is full (INV-POINT).
    upto: AtomicU64,
    /// Of a point: the full pin of its owner beside it, or [`UNPINNED`] (INV-POINT).
    works: AtomicU64,
    /// The commits that the snapshot of `read_csn` leaves out. Made at first use, and kept.
    shown: AtomicPtr<Shown>,
    /// The switch epoch that the transaction published before it followed a protocol. 0: it follows
    /// none.
    pub following: AtomicU64,
    /// The full transaction id of a commit that logs under one. The commit log decides about it,
    /// while the word is *committing*. Stored before the first record is inserted. 0: none.
    pub xid: AtomicU64,
    /// Where the last record of an asynchronous commit of the slot ends (INV-LAZY). Stays when the
    /// slot gets another owner.
    pub lazy: AtomicU64,
    /// The load of a table that the owner makes.
    pub load: Progress,
    /// The last tag given to a subtransaction.
    pub last_tag: AtomicU32,
    /// The group of the running transaction (INV-GROUP).
    pub(crate) group: AtomicU32,
    /// Counts the pins. Only the owner uses it.
    pin_count: AtomicU32,
    /// 1 while the owner holds pointers that outlive its snapshots: then no reclaimer may end its
    /// pin (INV-HOLD).
    holds: AtomicU32,
    /// Says whether the owner inserts a record into WAL (INV-WINDOW).
    pub logging: Window,
    /// The owner's commit, while one is under way.
    pub(crate) commits: UnderWay,
    /// The edge of the waits-for graph that the owner has published (INV-CYCLE).
    pub(crate) waiting: Waiting,
    /// The ranges that the owner is rebuilding. Only the owner uses it.
    pub(crate) rebuilding: AtomicPtr<IndexRanges>,
    /// The parts of ranges that the owner has read under `2pl`. Made at first use, and kept.
    parts: AtomicPtr<Parts>,
    /// The CSN under which the slot's prepared transaction is logged (INV-LOOK). 0: it has none;
    /// [`crate::open::TAKING`]: it is about to take it.
    pub(crate) logged_at: AtomicU64,
    /// What that transaction is to standbys: 0, [`crate::durable::standby::REDEFINES`] or
    /// [`crate::durable::standby::RECOVERED`]. Stored before `logged_at`.
    pub(crate) logged_as: AtomicU32,
    /// On a standby: the oldest snapshot that the owner may use (INV-CONFLICT).
    pub shows: AtomicU64,
    /// The block of the slot's prepared transaction, which no process has (INV-HANDOVER).
    pub(crate) kept: AtomicPtr<Kept>,
    /// The owner's versions that wait until no reader can reach them.
    pub retired: RetireQueue,
}

impl Slot {
    /// Does the owner hold on to its pin?
    pub(crate) fn holds(&self) -> bool {
        self.holds.load(Ordering::SeqCst) != 0
    }
}

/// The header of the shared block.
#[repr(C)]
pub struct Shared {
    magic: u64,
    nslots: u64,
    slots: *mut Slot,
    open: *mut AtomicU64,
    region: *const Region,
    /// The last CSN given.
    pub clock: Padded<AtomicU64>,
    /// A lower bound of all pins, recomputed from time to time.
    pub min_pin: Padded<AtomicU64>,
    /// A lower bound of all floors, recomputed with it (INV-FLOOR).
    pub min_floor: AtomicU64,
    /// The commits that are not done.
    opens: Padded<Opens>,
    /// All prepared transactions with a guard (INV-AHEAD).
    pub(crate) guards: Padded<Tally>,
    /// The switch epoch, which orders transactions and the steps of switches.
    pub epochs: Epochs,
    /// The last age given to a transaction for `wait_die`.
    pub last_age: AtomicU64,
    /// The last table id given.
    pub last_table: AtomicU64,
    /// The last token given to a slot; slots take them in blocks (see [`crate::Txn::token`]).
    pub last_token: AtomicU64,
    /// Tokens up to this one may be in loaded rows: slots give out no more of them.
    pub token_floor: AtomicU64,
    /// The latch of `dropped` and `freeing`.
    dropped_latch: Latch,
    /// Counts the pins that were adopted from another slot, or lowered to the oldest one.
    pub adoptions: AtomicU32,
    /// 1 while a process prunes (INV-UNLINK).
    pub(crate) pruning: AtomicU32,
    /// Versions that were unlinked between snapshots since the start.
    pub pruned: AtomicU64,
    /// Dropped tables that wait for their grace period, or for their next slice to be freed.
    pub dropped: AtomicPtr<Table>,
    /// The number of dropped tables of which a process is freeing a slice at the moment.
    pub(crate) freeing: AtomicU64,
    /// May commits into permanent tables be logged (INV-GATE)?
    pub gate: Gate,
    /// The rounds of the checkpointer's companion.
    pub rounds: Rounds,
    /// What standbys may show, and what this one shows.
    pub standby: Standby,
    /// The last commit whose record tells the time.
    pub marks: TimeMarks,
    /// The protocols in use, and whether a deadlock detector sees all their waits.
    pub protocols: InUse,
    /// How many transactions are sampled.
    pub sample_every: SampleEvery,
    /// The time without a scan, in nanoseconds, after which an index's ranges may become dormant.
    pub dormant_after_ns: AtomicU64,
    /// The switch coordinator's state.
    pub coordinator: Coordinator,
    /// The last switches.
    pub switches: History,
    /// Warnings that the region becomes full.
    pub pressure: Pressure,
    /// The costs of protocols that the coordinator has measured.
    pub learned: crate::choice::Blackboard,
    /// Which groups of transactions meet.
    pub groups: Groups,
}

/// A handle to the shared block. It is cheap to copy and has the same value in every process.
#[derive(Clone, Copy)]
pub struct Engine {
    /// The header.
    pub shared: &'static Shared,
    /// All slots.
    pub slots: &'static [Slot],
    /// The words of commits that are not done, by slot (INV-UNDONE).
    open: &'static [AtomicU64],
    /// The allocator.
    pub region: &'static Region,
}

// SAFETY: everything behind the handle is shared memory made of atomics, or is used by the owner of
// one slot only (INV-QUEUE and the fields marked so in `Slot`).
unsafe impl Send for Engine {}
// SAFETY: as for `Send`.
unsafe impl Sync for Engine {}

/// Where the slots begin in a block.
fn slots_at() -> usize {
    size_of::<Shared>().next_multiple_of(128)
}

/// Where the words of commits that are not done begin.
fn open_at(nslots: usize) -> usize {
    slots_at() + nslots * size_of::<Slot>()
}

fn head_size(nslots: usize) -> usize {
    (open_at(nslots) + nslots * size_of::<AtomicU64>()).next_multiple_of(1 << 16)
}

impl Engine {
    /// The least size of a block for `nslots` slots, in bytes.
    pub fn min_size(nslots: usize) -> usize {
        head_size(nslots) + Region::min_size(nslots)
    }

    /// The least size of a block for `nslots` slots and `nodes` memory nodes, in bytes.
    pub fn min_size_on(nslots: usize, nodes: usize) -> usize {
        head_size(nslots) + Region::min_size_on(nslots, nodes)
    }

    /// The addresses that each memory node will have in a block. The block's first bytes belong to
    /// none.
    pub fn node_ranges(base: *const u8, len: usize, nslots: usize, nodes: usize) -> impl Iterator<Item = Range<usize>> {
        let h = head_size(nslots);
        Region::node_ranges(base.wrapping_add(h), len - h, nodes)
    }

    /// Formats a zeroed block of shared memory, for one memory node.
    ///
    /// # Safety
    /// As [`Engine::create_on`].
    pub unsafe fn create(base: *mut u8, len: usize, nslots: usize) -> Result<Engine, OutOfMemory> {
        // SAFETY: the contract of `create_on` is this function's own contract.
        unsafe { Self::create_on(base, len, nslots, 1) }
    }

    /// Formats a zeroed block of shared memory, with an arena for each of `nodes` memory nodes.
    /// [`Engine::node_ranges`] says which addresses belong to which node. Binding them to the
    /// nodes, which must happen before, is left to the caller.
    ///
    /// # Safety
    /// `base..base+len` is zeroed and at least page aligned. It is mapped at the same address in
    /// every process that uses it, and stays mapped.
    pub unsafe fn create_on(base: *mut u8, len: usize, nslots: usize, nodes: usize) -> Result<Engine, OutOfMemory> {
        if len < Self::min_size_on(nslots, nodes) || nslots >= u16::MAX as usize {
            return Err(OutOfMemory);
        }
        Clock::of_process(); // Once, before other processes are forked.
        let h = head_size(nslots);
        let sh = base.cast::<Shared>();
        let slots = base.wrapping_add(slots_at()).cast::<Slot>();
        // SAFETY: by this function's contract the block is zeroed, mapped and exclusively ours; its
        // size was checked above, and all-zero memory is a valid `Slot`. INV-M1: the region gets
        // the rest.
        unsafe {
            let region = Region::create(base.add(h), len - h, nslots, nodes)?;
            for i in 0..nslots {
                (*slots.add(i)).pin.store(UNPINNED, Ordering::SeqCst);
            }
            (*sh).nslots = nslots as u64;
            (*sh).slots = slots;
            (*sh).open = base.wrapping_add(open_at(nslots)).cast();
            (*sh).region = region;
            (*sh).clock.0.store(1, Ordering::SeqCst);
            (*sh).epochs.init();
            (*sh).sample_every.set(SampleEvery::DEFAULT);
            (*sh).dormant_after_ns.store(DORMANT_AFTER_NS, Ordering::Relaxed);
            (*sh).magic = MAGIC;
            Ok(Self::attach(base).expect("formatted just now"))
        }
    }

    /// The handle of a formatted block; `None` if it is not one of this layout.
    ///
    /// # Safety
    /// `base` is the start of a block given to [`Engine::create`], in this or another process.
    pub unsafe fn attach(base: *mut u8) -> Option<Engine> {
        // SAFETY: by this function's contract `base` was formatted by `create_on`. That has stored
        // the addresses of slots and region, which lie in the block, before the magic number.
        unsafe {
            let shared = &*base.cast::<Shared>();
            (shared.magic == MAGIC).then(|| Engine {
                shared,
                slots: std::slice::from_raw_parts(shared.slots, shared.nslots as usize),
                open: std::slice::from_raw_parts(shared.open, shared.nslots as usize),
                region: &*shared.region,
            })
        }
    }

    /// The last CSN given. A snapshot at it sees a prefix of the serial order.
    pub fn now(&self) -> Csn {
        self.shared.clock.0.load(Ordering::SeqCst)
    }

    /// Moves the clock forward to the value of a saved clock, or of a table's files. No transaction
    /// commits at the values between.
    pub fn advance_clock(&self, to: Csn) {
        self.shared.clock.0.fetch_max(to.min(CSN_STOP), Ordering::SeqCst);
    }

    /// The last token that any transaction may have.
    pub fn last_token(&self) -> u64 {
        self.shared.last_token.load(Ordering::Relaxed)
    }

    /// Reserves the tokens up to `to`, which an earlier incarnation gave to transactions whose rows
    /// were saved, or are in files.
    pub fn advance_tokens(&self, to: u64) {
        self.shared.token_floor.fetch_max(to, Ordering::Relaxed);
        self.shared.last_token.fetch_max(to, Ordering::Relaxed);
    }

    /// Advances the clock without a commit. So memory retired now can be freed once the present
    /// pins have ended, even if no transaction commits. Near the end of the CSNs the clock stands
    /// still and memory is no longer freed (INV-CLOCK).
    pub fn tick(&self) -> Csn {
        let now = self.now();
        if now >= CSN_STOP {
            return now;
        }
        self.shared.clock.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Fails if a commit may no longer take a CSN (INV-CLOCK).
    pub(crate) fn may_commit(&self) -> Result<(), Error> {
        if self.now() < CSN_LIMIT || faults::on(Fault::ClockRunsOver) {
            return Ok(());
        }
        Err(Error::ClockExhausted)
    }

    /// Is there a transaction that was prepared, or is being prepared, and has not ended? One load.
    #[inline]
    pub fn has_prepared(&self) -> bool {
        self.shared.guards.0.count() > 0
    }

    /// The slots of prepared transactions that no process has: see [`crate::Txn::take_over`].
    pub fn kept_slots(&self) -> impl Iterator<Item = SlotId> + '_ {
        let kept = |s: &Slot| !s.kept.load(Ordering::SeqCst).is_null();
        let some = self.shared.guards.0.count() > 0;
        self.slots.iter().enumerate().filter(move |(_, s)| some && kept(s)).map(|(i, _)| i as SlotId)
    }

    /// The word of a slot.
    pub fn word(&self, slot: SlotId) -> SlotWord {
        SlotWord(self.slots[slot as usize].word.load(Ordering::SeqCst))
    }

    /// The slot's parts (see [`Parts`]), allocated at first use. Only the owner calls it.
    pub(crate) fn parts(&self, slot: SlotId) -> Result<&'static Parts, OutOfMemory> {
        if let Some(parts) = self.parts_if_any(slot) {
            return Ok(parts);
        }
        let mem = self.region.alloc(slot as usize, std::mem::size_of::<Parts>())?;
        // SAFETY: INV-M1: fresh memory of that size, and all-zero memory is an empty `Parts`.
        unsafe { mem.as_ptr().write_bytes(0, std::mem::size_of::<Parts>()) };
        self.slots[slot as usize].parts.store(mem.cast().as_ptr(), Ordering::SeqCst);
        // SAFETY: INV-PARTS: initialised above, and never freed.
        Ok(unsafe { mem.cast().as_ref() })
    }
    /// The slot's parts, if it has ever published any.
    pub(crate) fn parts_if_any(&self, slot: SlotId) -> Option<&'static Parts> {
        // SAFETY: INV-PARTS: null, or stored by `parts` after it was initialised; never freed.
        unsafe { self.slots[slot as usize].parts.load(Ordering::SeqCst).as_ref() }
    }

    /// Has the commit of this slot succeeded, although its word is *committing* still? It waits for
    /// its standby then, and all that begins now comes after it.
    fn has_succeeded(&self, p: &dyn Platform, slot: SlotId) -> bool {
        let w = self.word(slot);
        w.state() == State::Committing && p.outcome(slot, w.csn()) == Outcome::Committed
    }

    /// Waits until every commit that is under way now and may write the table has ended, except
    /// that of `me`. A commit that looks for ranges of the table after that, to register in them,
    /// sees everything that was published before this call.
    pub fn await_commits(&self, p: &dyn Platform, me: SlotId, table: u64) -> Result<(), Error> {
        for (i, s) in self.slots.iter().enumerate() {
            if i == me as usize {
                continue;
            }
            let Some(commit) = s.commits.of_table(table) else { continue };
            let mut n = 0;
            while s.commits.is(commit) && !self.has_succeeded(p, i as SlotId) {
                p.pause(n)?;
                n += 1;
            }
        }
        Ok(())
    }

    /// Called when the region is full: frees all memory that no transaction can reach any more, of
    /// all slots and dropped tables. `me` is the caller's slot.
    #[cold]
    pub fn reclaim(&self, me: SlotId) {
        self.tick();
        let min = self.min_pin_of(|_| false);
        for slot in 0..self.slots.len() {
            RetireQueue::drain_for(self, slot as SlotId, me, min, usize::MAX);
        }
        self.prune_all(me, 0..self.slots.len() as SlotId, usize::MAX);
        Table::free_dropped(self, me, min);
    }

    /// Runs `f` under the latch of the list of dropped tables. `f` must neither panic nor wait.
    pub fn with_dropped<R>(&self, f: impl FnOnce() -> R) -> R {
        self.shared.dropped_latch.with(f)
    }
}

/// The state of a stamp's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has not taken a CSN; any CSN that it takes is larger than those taken so far.
    Active,
    /// It is taking its CSN at this moment.
    Preparing,
    /// It has this CSN, and its outcome is open.
    Committing(Csn),
    /// It has committed at this CSN.
    Committed(Csn),
    /// It has aborted: its versions and registrations do not count.
    Aborted,
}

impl Engine {
    /// The fate of a stamp's owner. `still` reads the stamp again and says whether it is unchanged.
    /// If it has changed, the answer is `None` and the caller starts over (INV-STAMP).
    pub fn fate(&self, stamp: Stamp, still: impl FnOnce() -> bool) -> Option<Fate> {
        if !stamp.is_tag() {
            return Some(if stamp == Stamp::ABORTED { Fate::Aborted } else { Fate::Committed(stamp.0) });
        }
        let reused = faults::on(Fault::SlotReused);
        if reused {
            std::thread::yield_now();
        }
        let w = self.word(stamp.slot());
        if !still() && !reused {
            return None;
        }
        debug_assert!(reused || w.serial() == stamp.serial());
        Some(match w.state() {
            State::Preparing if faults::on(Fault::PreparingIsActive) => Fate::Active,
            State::Idle | State::Active => Fate::Active,
            State::Preparing => Fate::Preparing,
            State::Committing => Fate::Committing(w.csn()),
            State::Committed => Fate::Committed(w.csn()),
            State::Aborted => Fate::Aborted,
        })
    }

    /// The stamp that `read` returns and the fate of its owner, after waiting while the owner is
    /// *preparing*. `read` is called again after each wait.
    pub fn settle(&self, p: &dyn Platform, mut read: impl FnMut() -> Stamp) -> Result<(Stamp, Fate), Error> {
        let mut n = 0;
        loop {
            let s = read();
            match self.fate(s, || read() == s) {
                None => {}
                Some(Fate::Preparing) => {
                    p.pause(n)?;
                    n += 1;
                }
                Some(f) => return Ok((s, f)),
            }
        }
    }
}
