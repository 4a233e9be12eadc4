//! The shared block: header, slots, and behind them the region of everything else.

use crate::clock::Clock;
use crate::csn::{Csn, SlotId, SlotWord, Stamp, State, CSN_LIMIT, CSN_STOP};
use crate::error::Error;
use crate::faults::{self, Fault, Moment};
use crate::lock::graph::Waiting;
use crate::memory::{Latch, OutOfMemory, Region};
use crate::partition::SampleEvery;
use crate::platform::Platform;
use crate::primitive::{model_fence, relax, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::protocol::InUse;
use crate::range::{IndexRanges, Parts, UnderWay, SLEEP_AFTER_NS};
use crate::retire::RetireQueue;
use crate::switch::{Coordinator, Epochs, History};
use crate::table::Table;
use std::ops::Range;

/// Changes with every change of a shared structure.
pub const LAYOUT_VERSION: u64 = 10;
const MAGIC: u64 = 0x6d69_7865_6463_6300 | LAYOUT_VERSION;

/// A cache line of its own.
#[repr(C, align(128))]
pub struct Padded<T>(pub T);

/// Bits of a pin's tag: a reclaimer that is stopped while its owner pins anew this often at one CSN
/// could take a live pin away.
const PIN_SHIFT: u32 = 16;
const PIN_TAG: u64 = LOWERING - 1;
/// The pin's owner looks for the oldest pin of all. Meanwhile its pin keeps everything, as one at 0 does; the CSN is that of
/// the pin that it had before.
const LOWERING: u64 = 1 << (PIN_SHIFT - 1);

/// No pin.
pub const UNPINNED: u64 = u64::MAX;

/// Steps of waiting for a pin that is being taken, before it is taken for one of everything.
const SHORT: u32 = 100;

/// What is retired at this CSN or later is kept by a pin (which is not [`UNPINNED`]).
fn kept_from(pin: u64) -> Csn {
    if pin & LOWERING != 0 {
        0
    } else {
        pin >> PIN_SHIFT
    }
}

/// A pin whose CSN is known, if it is within so many steps: pins are at 0 for some instructions of their owner's.
fn settled(pin: &AtomicU64, steps: u32) -> u64 {
    for n in 0..steps {
        let p = pin.load(Ordering::SeqCst);
        if p >> PIN_SHIFT != 0 {
            return p;
        }
        relax(n);
    }
    pin.load(Ordering::SeqCst)
}

/// A transaction slot: one for each process or thread that may run transactions.
#[repr(C, align(128))]
pub struct Slot {
    /// See [`SlotWord`].
    pub word: AtomicU64,
    /// `[csn:48][lowering:1][tag:15]`: nothing that a reader at this CSN can reach is freed; or [`UNPINNED`]. CSN 0, or
    /// lowering: nothing at all is freed, and the owner is about to store another CSN (INV-HONEST).
    pub pin: AtomicU64,
    /// The platform's name of the running transaction.
    pub ident: AtomicU64,
    /// Start time for `wait_die`, smaller is older; 0: not set.
    pub age: AtomicU64,
    /// Read CSN of a repeatable-read transaction, for those who import its snapshot; 0: none.
    pub read_csn: AtomicU64,
    /// The switch epoch that the transaction published before it followed a protocol; 0: it follows none.
    pub following: AtomicU64,
    /// Last tag given to a subtransaction.
    pub last_tag: AtomicU32,
    /// Counts the pins. Owner only.
    pin_count: AtomicU32,
    /// Does the owner hold pointers that outlive its snapshots, so that nobody else may end its pin?
    holds: AtomicU32,
    _pad: u32,
    /// The owner's commit.
    pub(crate) commits: UnderWay,
    /// What the owner sleeps for (INV-CYCLE).
    pub(crate) waiting: Waiting,
    /// The ranges that the owner is rebuilding. Owner only.
    pub(crate) rebuilding: AtomicPtr<IndexRanges>,
    /// What the owner has read of ranges under `2pl`; made when it is needed first, and kept.
    parts: AtomicPtr<Parts>,
    /// Versions that wait until nobody can reach them. Owner only.
    pub retired: RetireQueue,
}

/// The header of the shared block.
#[repr(C)]
pub struct Shared {
    magic: u64,
    nslots: u64,
    slots: *mut Slot,
    region: *const Region,
    /// The last CSN given.
    pub clock: Padded<AtomicU64>,
    /// A lower bound of all pins, recomputed now and then.
    pub min_pin: Padded<AtomicU64>,
    /// Orders the steps of switches and the transactions.
    pub epochs: Epochs,
    /// Last age given to a transaction for `wait_die`.
    pub last_age: AtomicU64,
    /// Last table id given.
    pub last_table: AtomicU64,
    /// Tokens up to this one were given to slots, in blocks (see [`crate::Txn::token`]).
    pub last_token: AtomicU64,
    /// Latch of the two lists.
    list_latch: Latch,
    /// Counts the pins that were adopted from another slot.
    pub adoptions: AtomicU32,
    /// Dropped tables that wait until nobody can reach them, or until more of them is freed.
    pub dropped: AtomicPtr<Table>,
    /// Dropped tables of which somebody frees a slice at the moment.
    pub(crate) freeing: AtomicU64,
    /// The protocols in use, and whether a detector sees their waits.
    pub protocols: InUse,
    /// How many transactions are sampled.
    pub sample_every: SampleEvery,
    /// How long nobody has scanned an index when its ranges may fall asleep, nanoseconds.
    pub sleep_after_ns: AtomicU64,
    /// The coordinator.
    pub coordinator: Coordinator,
    /// The last switches.
    pub switches: History,
    /// What the coordinator has learned about protocols.
    pub learned: crate::choice::Blackboard,
}

/// A handle to the shared block: cheap to copy, the same in every process.
#[derive(Clone, Copy)]
pub struct Engine {
    /// The header.
    pub shared: &'static Shared,
    /// All slots.
    pub slots: &'static [Slot],
    /// The allocator.
    pub region: &'static Region,
}

// SAFETY: everything behind the handle is shared memory made of atomics, or owned by one slot.
unsafe impl Send for Engine {}
// SAFETY: as above.
unsafe impl Sync for Engine {}

fn head_size(nslots: usize) -> usize {
    let n = std::mem::size_of::<Shared>() + 128 + nslots * std::mem::size_of::<Slot>();
    n.next_multiple_of(1 << 16)
}

impl Engine {
    /// The least size of a block for so many slots, bytes.
    pub fn min_size(nslots: usize) -> usize {
        head_size(nslots) + Region::min_size(nslots)
    }

    /// The least size of a block for so many slots and memory nodes, bytes.
    pub fn min_size_on(nslots: usize, nodes: usize) -> usize {
        head_size(nslots) + Region::min_size_on(nslots, nodes)
    }

    /// The addresses that each memory node will have in a block; its first bytes belong to none.
    pub fn node_ranges(base: *const u8, len: usize, nslots: usize, nodes: usize) -> impl Iterator<Item = Range<usize>> {
        let h = head_size(nslots);
        Region::node_ranges(base.wrapping_add(h), len - h, nodes)
    }

    /// Formats a zeroed block of shared memory, for one memory node.
    ///
    /// # Safety
    /// As [`Engine::create_on`].
    pub unsafe fn create(base: *mut u8, len: usize, nslots: usize) -> Result<Engine, OutOfMemory> {
        // SAFETY: the caller's promise.
        unsafe { Self::create_on(base, len, nslots, 1) }
    }

    /// Formats a zeroed block of shared memory, with an arena for each of so many memory nodes. Which memory
    /// is whose: [`Engine::node_ranges`]; to bind it to the nodes, before, is the caller's affair.
    ///
    /// # Safety
    /// `base..base+len` is zeroed, 64 KiB aligned or at least page aligned, mapped at the same
    /// address in every process that uses it, and stays mapped.
    pub unsafe fn create_on(base: *mut u8, len: usize, nslots: usize, nodes: usize) -> Result<Engine, OutOfMemory> {
        if len < Self::min_size_on(nslots, nodes) || nslots >= u16::MAX as usize {
            return Err(OutOfMemory);
        }
        Clock::of_process(); // once, before other processes are forked off
        let h = head_size(nslots);
        let sh = base.cast::<Shared>();
        let slots_at = (std::mem::size_of::<Shared>()).next_multiple_of(128);
        let slots = base.wrapping_add(slots_at).cast::<Slot>();
        // SAFETY: the block is the caller's, zeroed and large enough; zero is a valid `Slot`.
        unsafe {
            let region = Region::create(base.add(h), len - h, nslots, nodes)?;
            for i in 0..nslots {
                (*slots.add(i)).pin.store(UNPINNED, Ordering::SeqCst);
            }
            (*sh).nslots = nslots as u64;
            (*sh).slots = slots;
            (*sh).region = region;
            (*sh).clock.0.store(1, Ordering::SeqCst);
            (*sh).epochs.init();
            (*sh).sample_every.set(SampleEvery::DEFAULT);
            (*sh).sleep_after_ns.store(SLEEP_AFTER_NS, Ordering::Relaxed);
            (*sh).magic = MAGIC;
            Ok(Self::attach(base).expect("formatted just now"))
        }
    }

    /// The handle of a formatted block; `None` if it is not one of this layout.
    ///
    /// # Safety
    /// `base` is the start of a block given to [`Engine::create`], in this or another process.
    pub unsafe fn attach(base: *mut u8) -> Option<Engine> {
        // SAFETY: the caller's promise; slots and region lie in the block.
        unsafe {
            let shared = &*base.cast::<Shared>();
            (shared.magic == MAGIC).then(|| Engine {
                shared,
                slots: std::slice::from_raw_parts(shared.slots, shared.nslots as usize),
                region: &*shared.region,
            })
        }
    }

    /// The last CSN given. A snapshot at it is a serial prefix.
    pub fn now(&self) -> Csn {
        self.shared.clock.0.load(Ordering::SeqCst)
    }

    /// Moves the clock forward, to where a saved one was. Nobody else runs.
    pub fn advance_clock(&self, to: Csn) {
        self.shared.clock.0.fetch_max(to.min(CSN_STOP), Ordering::SeqCst);
    }

    /// The last token that any transaction may have.
    pub fn last_token(&self) -> u64 {
        self.shared.last_token.load(Ordering::Relaxed)
    }

    /// Tokens up to this one were given by an earlier incarnation, whose rows were saved. No other process runs.
    pub fn advance_tokens(&self, to: u64) {
        self.shared.last_token.fetch_max(to, Ordering::Relaxed);
    }

    /// Moves the clock on without a commit: what is retired now can be freed when the pins of now
    /// are gone, even if nobody commits. Near the end of the CSNs it stands still, and nothing more is freed (INV-CLOCK).
    pub fn tick(&self) -> Csn {
        let now = self.now();
        if now >= CSN_STOP {
            return now;
        }
        self.shared.clock.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Fails if a commit may not take a CSN any more (INV-CLOCK).
    pub(crate) fn may_commit(&self) -> Result<(), Error> {
        if self.now() < CSN_LIMIT || faults::on(Fault::ClockRunsOver) {
            return Ok(());
        }
        Err(Error::ClockExhausted)
    }

    /// The word of a slot.
    pub fn word(&self, slot: SlotId) -> SlotWord {
        SlotWord(self.slots[slot as usize].word.load(Ordering::SeqCst))
    }

    /// Pins what is reachable now for a reader in `slot`. Call it before the read CSN is taken.
    ///
    /// INV-HONEST: a pin at a CSN was preceded by one at 0, since before that CSN was read from the clock. So whoever frees
    /// something and did not see the slot pinned had come to the clock before: what is retired at a pin's CSN or later is there.
    pub fn pin(&self, slot: SlotId) {
        let s = &self.slots[slot as usize];
        // The tag changes, also from transaction to transaction at one clock value, so that a
        // reclaimer that found us quiescent before does not unpin now.
        let count = s.pin_count.load(Ordering::Relaxed).wrapping_add(1);
        s.pin_count.store(count, Ordering::Relaxed);
        let tag = count as u64 & PIN_TAG;
        let mut old = s.pin.load(Ordering::SeqCst);
        while old != UNPINNED {
            let new = old & !PIN_TAG | tag;
            match s.pin.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
        // From here on the word is its owner's alone: others do not end a pin at 0.
        s.pin.store(tag, Ordering::SeqCst);
        model_fence();
        let now = self.now();
        faults::reached(Moment::Looked);
        s.pin.store(now << PIN_SHIFT | tag, Ordering::Release);
    }

    /// Pins `slot`, which has no pin, as the snapshot transaction `ident` in slot `of` is pinned, for its
    /// read CSN, which is returned. `None` if that transaction has ended or has no fixed CSN.
    pub fn adopt_pin(&self, slot: SlotId, of: SlotId, ident: u64) -> Option<Csn> {
        let from = self.slots.get(of as usize)?;
        let csn = from.read_csn.load(Ordering::SeqCst);
        let pin = &self.slots[slot as usize].pin;
        if csn == 0 || pin.load(Ordering::SeqCst) != UNPINNED {
            return None;
        }
        pin.store(0, Ordering::SeqCst); // everything (INV-HONEST)
        self.shared.adoptions.fetch_add(1, Ordering::SeqCst);
        // It is pinned still: who looks at all pins from now on sees one of the two, or `adoptions`.
        let same = from.ident.load(Ordering::SeqCst) == ident && from.read_csn.load(Ordering::SeqCst) == csn;
        if !same {
            self.unpin(slot);
            return None;
        }
        pin.store(csn << PIN_SHIFT, Ordering::SeqCst);
        self.pin(slot); // with a tag of our own
        Some(csn)
    }

    /// Lowers the pin of `slot` to the oldest of all pins and returns it: what any reader of now can
    /// reach stays reachable for `slot`. (An index build must index what others see.) Waits for processes that are
    /// in the middle of taking their pins, and holds nothing meanwhile.
    ///
    /// Several may do so at a time. None waits for another one, because each shows the pin that it had before: that is what
    /// its own transaction can reach. A pin that another one lowers its pin to is seen where it is, or its reader has
    /// ended; then nobody but that other one, which does not read by this one's index, needs it.
    pub fn pin_oldest(&self, slot: SlotId) -> Csn {
        let pin = &self.slots[slot as usize].pin;
        let tag = self.slots[slot as usize].pin_count.fetch_add(1, Ordering::Relaxed).wrapping_add(1) as u64 & PIN_TAG;
        // First everything: whoever looks at the pins from now on frees nothing, and whoever has
        // looked before has found no more than we find now, because the oldest pin never goes back (INV-HONEST).
        let own = pin.swap(tag, Ordering::SeqCst);
        self.shared.adoptions.fetch_add(1, Ordering::SeqCst);
        // Who pins when we have looked at its slot has a larger CSN.
        let now = self.now();
        let own = if own == UNPINNED { now } else { own >> PIN_SHIFT };
        pin.store(own << PIN_SHIFT | LOWERING | tag, Ordering::SeqCst);
        let others = self.slots.iter().enumerate().filter(|(i, _)| *i != slot as usize);
        let pins = others.map(|(_, s)| settled(&s.pin, u32::MAX)).filter(|p| *p != UNPINNED);
        let oldest = pins.map(|p| p >> PIN_SHIFT).fold(own.min(now), Csn::min);
        pin.store(oldest << PIN_SHIFT | tag, Ordering::SeqCst);
        oldest
    }

    /// Ends the pin of a slot: its process holds no pointer into versions any more.
    pub fn unpin(&self, slot: SlotId) {
        let s = &self.slots[slot as usize];
        if s.holds.load(Ordering::SeqCst) == 0 {
            s.pin.store(UNPINNED, Ordering::SeqCst);
        }
    }

    /// Pins the slot, and keeps the pin whatever snapshots its process has, until `let_go`.
    ///
    /// INV-HOLD: a reclaimer that reads this pin, or a later one, sees `holds` and leaves it; one that read an earlier
    /// pin fails to end it, because the pin has changed.
    pub(crate) fn hold(&self, slot: SlotId) {
        let late = faults::on(Fault::HoldsLate);
        if late {
            self.pin(slot);
        } else {
            self.slots[slot as usize].holds.store(1, Ordering::SeqCst);
        }
        faults::reached(Moment::Holding);
        if late {
            self.slots[slot as usize].holds.store(1, Ordering::SeqCst);
        } else {
            self.pin(slot);
        }
    }
    /// Ends what `hold` began.
    pub(crate) fn let_go(&self, slot: SlotId) {
        self.slots[slot as usize].holds.store(0, Ordering::SeqCst);
    }

    /// The slot's parts (see [`Parts`]), made if there are none. Owner only.
    pub(crate) fn parts(&self, slot: SlotId) -> Result<&'static Parts, OutOfMemory> {
        if let Some(parts) = self.parts_if_any(slot) {
            return Ok(parts);
        }
        let mem = self.region.alloc(slot as usize, std::mem::size_of::<Parts>())?;
        // SAFETY: fresh memory of that size; all-zero is no part.
        unsafe { mem.as_ptr().write_bytes(0, std::mem::size_of::<Parts>()) };
        self.slots[slot as usize].parts.store(mem.cast().as_ptr(), Ordering::SeqCst);
        // SAFETY: as below.
        Ok(unsafe { mem.cast().as_ref() })
    }
    /// The slot's parts, if it has ever published any.
    pub(crate) fn parts_if_any(&self, slot: SlotId) -> Option<&'static Parts> {
        // SAFETY: made by `parts`, and never freed.
        unsafe { self.slots[slot as usize].parts.load(Ordering::SeqCst).as_ref() }
    }

    /// Waits until every commit that is under way now and may write the table has ended; `me` is not looked at. So
    /// whoever looks for ranges of the table after that, in order to register, sees what was published before this call.
    pub fn await_commits(&self, p: &dyn Platform, me: SlotId, table: u64) -> Result<(), Error> {
        for (i, s) in self.slots.iter().enumerate() {
            if i == me as usize {
                continue;
            }
            let Some(commit) = s.commits.of_table(table) else { continue };
            let mut n = 0;
            while s.commits.is(commit) {
                p.pause(n)?;
                n += 1;
            }
        }
        Ok(())
    }

    /// Is the slot pinned?
    pub fn is_pinned(&self, slot: SlotId) -> bool {
        self.slots[slot as usize].pin.load(Ordering::Relaxed) != UNPINNED
    }

    /// The CSN of the slot's pin: what is retired at this CSN or later stays. Called by its owner.
    pub(crate) fn pinned_at(&self, slot: SlotId) -> Csn {
        self.slots[slot as usize].pin.load(Ordering::SeqCst) >> PIN_SHIFT
    }

    /// Recomputes the CSN below which nobody reads: what was retired before it can be freed.
    /// Pins of processes without a snapshot are ended.
    pub fn refresh_min_pin(&self, p: &dyn Platform) -> Csn {
        self.min_pin_of(|slot| p.quiescent(slot))
    }

    pub(crate) fn min_pin_of(&self, quiescent: impl Fn(SlotId) -> bool) -> Csn {
        loop {
            let adoptions = self.shared.adoptions.load(Ordering::SeqCst);
            let min = self.look_at_pins(&quiescent);
            if self.shared.adoptions.load(Ordering::SeqCst) == adoptions {
                self.shared.min_pin.0.store(min, Ordering::SeqCst);
                return min;
            }
        }
    }

    fn look_at_pins(&self, quiescent: &impl Fn(SlotId) -> bool) -> Csn {
        let late = faults::on(Fault::LooksAtClockLast);
        let mut min = if late { Csn::MAX } else { self.now() };
        for (i, s) in self.slots.iter().enumerate() {
            let pin = settled(&s.pin, SHORT);
            if pin == UNPINNED {
                continue;
            }
            // INV-PIN: from *preparing* on a pin is not ended by others. INV-HOLD: the pin is read before `holds`.
            let may_end = kept_from(pin) != 0
                && matches!(self.word(i as SlotId).state(), State::Idle | State::Active)
                && s.holds.load(Ordering::SeqCst) == 0;
            let stale = may_end
                && quiescent(i as SlotId)
                && s.pin.compare_exchange(pin, UNPINNED, Ordering::SeqCst, Ordering::SeqCst).is_ok();
            if !stale {
                min = min.min(kept_from(pin));
            }
        }
        if late {
            min = min.min(self.now());
        }
        min
    }

    /// The region is full: frees what nobody can reach any more, of all slots and dropped tables. `me` is the
    /// caller's slot.
    #[cold]
    pub fn reclaim(&self, me: SlotId) {
        self.tick();
        let min = self.min_pin_of(|_| false);
        for slot in 0..self.slots.len() {
            RetireQueue::drain_for(self, slot as SlotId, me, min, usize::MAX);
        }
        Table::free_dropped(self, me, min);
    }

    /// Runs `f` under the latch of the shared lists. `f` neither panics nor waits.
    pub fn with_lists<R>(&self, f: impl FnOnce() -> R) -> R {
        self.shared.list_latch.with(f)
    }
}

/// The state of the owner of a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Not taken a CSN yet; any CSN it takes is larger than those taken so far.
    Active,
    /// Taking its CSN at this moment.
    Preparing,
    /// The outcome at this CSN is open.
    Committing(Csn),
    /// Committed at this CSN.
    Committed(Csn),
    /// Aborted: as if it had never been.
    Aborted,
}

impl Engine {
    /// The fate of a stamp's owner. `still` reads the stamp again: on a mismatch the answer is
    /// `None` and the caller starts over (INV-STAMP).
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

    /// The fate of a stamp's owner, with *preparing* waited out.
    ///
    /// `read` reads the stamp (again). Returns the stamp too.
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
