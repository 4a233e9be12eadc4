//! A platform of threads, for tests and benchmarks of the engine by itself.
//!
//! Sleeps poll. A waits-for graph of its own finds deadlocks.

use crate::csn::{SlotId, State};
use crate::error::Error;
use crate::platform::{Napped, Platform, Queue, StopEvent, WaitFor, AT_COMMIT, EARLY};
use crate::primitive::{relax, Ordering};
use crate::shared::Engine;
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A transaction: its slot and its identifier.
type Name = (SlotId, u64);

/// The waits of transactions for each other, and their queues.
#[derive(Default)]
pub struct Waits(Mutex<HashMap<SlotId, Name>>, Mutex<HashMap<Queue, VecDeque<Name>>>);

/// Has the transaction ended?
fn is_over(e: &Engine, (slot, ident): Name) -> bool {
    e.slots[slot as usize].ident.load(Ordering::SeqCst) != ident || e.word(slot).state() == State::Idle
}

impl Waits {
    /// Adds an edge. Returns true, without adding it, if it would close a cycle.
    fn add(&self, e: &Engine, from: SlotId, to: WaitFor) -> bool {
        let mut g = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let mut at = (to.slot, to.ident);
        for _ in 0..=g.len() {
            // An edge to a transaction that has ended is about to be removed.
            if is_over(e, at) {
                break;
            }
            if at.0 == from {
                return true;
            }
            match g.get(&at.0) {
                Some(&next) => at = next,
                None => break,
            }
        }
        g.insert(from, (to.slot, to.ident));
        false
    }
    fn remove(&self, from: SlotId) {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).remove(&from);
    }
    /// Does a transaction wait for this one?
    fn is_awaited(&self, me: Name) -> bool {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).values().any(|to| *to == me)
    }
    /// The first transaction in a queue, to which `me` is added unless it is there. A transaction
    /// that unwound out of a sleep stays in its queue until it is over.
    fn first(&self, e: &Engine, queue: Queue, me: Name) -> Name {
        let mut queues = self.1.lock().unwrap_or_else(|e| e.into_inner());
        let all = queues.entry(queue).or_default();
        all.retain(|n| !is_over(e, *n));
        if !all.contains(&me) {
            all.push_back(me);
        }
        all[0]
    }
    fn leave(&self, queue: Queue, slot: SlotId) {
        let mut queues = self.1.lock().unwrap_or_else(|e| e.into_inner());
        let Some(all) = queues.get_mut(&queue) else { return };
        all.retain(|n| n.0 != slot);
        if all.is_empty() {
            queues.remove(&queue);
        }
    }
}

/// The number of naps after which a newcomer checks whether a transaction waits for it.
const PATIENCE: u32 = 200;

/// The number of naps in a sleep for the end of a transaction, after which the sleeper looks again.
const NAPS: u32 = 4000;

/// The platform of one thread.
pub struct Threads {
    e: Engine,
    /// The slot of the thread. It changes with [`crate::Txn::hand_over`].
    pub slot: SlotId,
    waits: Arc<Waits>,
    /// The subtransaction tag for new locks.
    pub tag: Cell<u32>,
    /// The last tag for locks that are given up early.
    early: Cell<u32>,
    /// The stop event at which to fail, once.
    pub fail_at: Cell<Option<StopEvent>>,
    /// Do its transactions count as writers? Then those without writes are validated at commit too.
    pub writers: Cell<bool>,
    /// Does a reader that fails go on as a snapshot?
    pub freezes: Cell<bool>,
}

impl Threads {
    /// The platform of the thread that owns `slot`. All threads share `waits`.
    pub fn new(e: Engine, slot: SlotId, waits: Arc<Waits>) -> Threads {
        Threads {
            e,
            slot,
            waits,
            tag: Cell::new(0),
            early: Cell::new(0),
            fail_at: Cell::new(None),
            writers: Cell::new(false),
            freezes: Cell::new(true),
        }
    }
    fn ident(&self) -> u64 {
        self.e.slots[self.slot as usize].ident.load(Ordering::SeqCst)
    }
}

impl Platform for Threads {
    fn wait_for(&self, who: WaitFor) -> Result<(), Error> {
        if self.waits.add(&self.e, self.slot, who) {
            return Err(Error::Deadlock);
        }
        for n in 0..NAPS {
            if is_over(&self.e, (who.slot, who.ident)) || (who.tag != 0 && n > 4) {
                break;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        self.waits.remove(self.slot);
        Ok(())
    }
    fn enter_queue(&self, queue: Queue) -> Result<(), Error> {
        let me = (self.slot, self.ident());
        loop {
            let first = self.waits.first(&self.e, queue, me);
            if first == me {
                return Ok(());
            }
            if self.waits.add(&self.e, self.slot, WaitFor { ident: first.1, slot: first.0, tag: 0, lock: None }) {
                self.waits.leave(queue, self.slot);
                return Err(Error::Deadlock);
            }
            std::thread::sleep(Duration::from_micros(20));
            self.waits.remove(self.slot);
        }
    }
    fn leave_queue(&self, queue: Queue) {
        self.waits.leave(queue, self.slot);
    }
    fn stand_back(&self, _: Queue, n: u32) -> Result<Napped, Error> {
        std::thread::sleep(Duration::from_micros(20));
        Ok(match n >= PATIENCE {
            true if self.waits.is_awaited((self.slot, self.ident())) => Napped::Awaited,
            true => Napped::Long,
            false => Napped::Short,
        })
    }
    fn pause(&self, n: u32) -> Result<(), Error> {
        relax(n);
        Ok(())
    }
    fn lock_tag(&self) -> u32 {
        self.tag.get()
    }
    fn take_tag(&self, bit: u32) -> Result<u32, Error> {
        self.early.set(self.early.get().wrapping_add(1) & !(EARLY | AT_COMMIT));
        Ok(self.early.get() | bit)
    }
    fn quiescent(&self, _: SlotId) -> bool {
        false
    }
    fn has_written(&self) -> bool {
        self.writers.get()
    }
    fn freezes_readers(&self) -> bool {
        self.freezes.get()
    }
    fn stop_event(&self, event: StopEvent) -> Result<(), Error> {
        if self.fail_at.get() == Some(event) {
            self.fail_at.set(None);
            return Err(Error::Injected);
        }
        Ok(())
    }
}

/// The size of a huge page in bytes.
const HUGE_PAGE: usize = 2 << 20;

/// Asks the system to use or not to use huge pages in a range of whole 4 KB pages. Has no effect on
/// a system without huge pages.
#[cfg(target_os = "linux")]
fn advise(base: *mut u8, len: usize, huge: bool) {
    extern "C" {
        fn madvise(at: *mut u8, len: usize, advice: i32) -> i32;
    }
    const HUGE: i32 = 14;
    const NO_HUGE: i32 = 15;
    // SAFETY: the C library's function. The advice changes no content, and a failure changes
    // nothing.
    let _ = unsafe { madvise(base, len, if huge { HUGE } else { NO_HUGE }) };
}

/// Does nothing on other systems.
#[cfg(not(target_os = "linux"))]
fn advise(_: *mut u8, _: usize, _: bool) {}

/// Zeroed memory of the process.
pub struct Memory {
    base: *mut u8,
    layout: std::alloc::Layout,
}

// SAFETY: the memory has one owner, which frees it.
unsafe impl Send for Memory {}
// SAFETY: a shared reference gives access to the address only.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates at least `len` bytes, and at least one page. With `huge` it uses pages of 2 MB, if
    /// the system has transparent ones (Linux, unless they are set to `never`); otherwise pages of
    /// 4 KB.
    pub fn new(len: usize, huge: bool) -> Result<Memory, Error> {
        let align = if huge { HUGE_PAGE } else { 1 << 16 };
        let len = len.max(1).next_multiple_of(align);
        let layout = std::alloc::Layout::from_size_align(len, align).map_err(|_| Error::OutOfMemory)?;
        // SAFETY: the layout is not empty, and `base..base + len` is the allocation.
        unsafe {
            let base = std::alloc::alloc(layout);
            if base.is_null() {
                return Err(Error::OutOfMemory);
            }
            // Before its pages exist.
            advise(base, len, huge);
            base.write_bytes(0, len);
            Ok(Memory { base, layout })
        }
    }
    /// Its words.
    pub fn words(&mut self) -> &mut [u64] {
        // SAFETY: the memory belongs to `self`, is aligned and zeroed, and its size is a multiple
        // of a word.
        unsafe { std::slice::from_raw_parts_mut(self.base.cast(), self.layout.size() / size_of::<u64>()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { std::alloc::dealloc(self.base, self.layout) };
    }
}

/// A block of memory for an engine of threads, freed with it.
pub struct Block {
    /// The engine in it.
    pub engine: Engine,
    _memory: Memory,
}

impl Block {
    /// Allocates and formats `len` bytes for `nslots` slots.
    pub fn new(len: usize, nslots: usize) -> Result<Block, Error> {
        Block::on(len, nslots, 1)
    }
    /// As `new`, in pages of 2 MB; see [`Memory::new`].
    pub fn huge(len: usize, nslots: usize) -> Result<Block, Error> {
        Block::make(len, nslots, 1, true)
    }
    /// As `new`, as if the machine had `nodes` memory nodes.
    pub fn on(len: usize, nslots: usize, nodes: usize) -> Result<Block, Error> {
        Block::make(len, nslots, nodes, false)
    }

    fn make(len: usize, nslots: usize, nodes: usize, huge: bool) -> Result<Block, Error> {
        let memory = Memory::new(len, huge)?;
        // SAFETY: the memory is zeroed and aligned to at least 64 KiB. It lives in the same `Block`
        // as the engine.
        let engine = unsafe { Engine::create_on(memory.base, memory.layout.size(), nslots, nodes)? };
        Ok(Block { engine, _memory: memory })
    }
}
