//! Which blocks of a table's main fork are free, and which are worth cleaning.
//!
//! **INV-SPACE**: A block is handed out for writing only if no record has its home there. A home
//! moves only after the WAL record with the new image. So whatever prefix of WAL is replayed, each
//! row's newest image is on some page.
//!
//! A record's home is the block of its image, and all blocks of its pieces if it is long. The
//! caller says where entries come ([`Space::fill`]) when their pages' WAL record is inserted, and
//! only then where they were before ([`Space::leave`]).

use super::merge::Live;
use super::page::BODY;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, TryReserveError};

/// The use of the blocks of a main fork. Block 0, the meta page, is never free.
#[derive(Default)]
pub struct Space {
    blocks: Vec<Block>,
    free: BinaryHeap<Reverse<u32>>,
    live_bytes: u64,
    live_entries: u64,
}

#[derive(Clone, Copy, Default)]
struct Block {
    live: Live,
    /// It was handed out, and not filled yet.
    taken: bool,
}

impl Space {
    /// The use of a file. `live` has the blocks from 0 on; that of block 0 does not count.
    pub fn new(live: impl IntoIterator<Item = Live>) -> Result<Space, TryReserveError> {
        let mut space = Space::default();
        for (block, live) in live.into_iter().enumerate() {
            space.grow(block as u32 + 1)?;
            if block > 0 && live.entries > 0 {
                space.put(block as u32, live);
            }
        }
        for block in 1..space.len() {
            if space.live(block).entries == 0 {
                space.free.push(Reverse(block));
            }
        }
        Ok(space)
    }
    /// The number of blocks.
    pub fn len(&self) -> u32 {
        self.blocks.len() as u32
    }
    /// Is there no block, not even the meta page?
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
    /// The live entries of a block.
    pub fn live(&self, block: u32) -> Live {
        self.blocks.get(block as usize).map_or(Live::default(), |b| b.live)
    }
    /// The live bytes of all blocks.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }
    /// The live entries of all blocks.
    pub fn live_entries(&self) -> u64 {
        self.live_entries
    }
    /// The number of free blocks.
    pub fn free_blocks(&self) -> u32 {
        self.free.len() as u32
    }
    fn grow(&mut self, len: u32) -> Result<(), TryReserveError> {
        let more = (len as usize).saturating_sub(self.blocks.len());
        self.blocks.try_reserve(more)?;
        // Blocks become free later, when publication of a round must not fail.
        self.free.try_reserve((self.blocks.len() + more).saturating_sub(self.free.len()))?;
        self.blocks.resize(self.blocks.len() + more, Block::default());
        Ok(())
    }
    /// Hands out the free block with the lowest number. `None`: the file must be extended
    /// ([`Space::extend`]).
    pub fn take(&mut self) -> Option<u32> {
        let Reverse(block) = self.free.pop()?;
        self.blocks[block as usize].taken = true;
        Some(block)
    }
    /// The file has a new block with this number, which is handed out. An error leaves all as it
    /// was.
    pub fn extend(&mut self, block: u32) -> Result<(), TryReserveError> {
        let known = self.len().max(1);
        self.grow(block + 1)?;
        // Blocks before it, which another process has added, are empty.
        self.free.extend((known..block).map(Reverse));
        self.blocks[block as usize].taken = true;
        Ok(())
    }
    /// Takes back a block that was handed out: nothing was written there.
    pub fn put_back(&mut self, block: u32) {
        if self.blocks.get(block as usize).is_some_and(|b| b.taken) {
            self.blocks[block as usize].taken = false;
            self.free.push(Reverse(block));
        }
    }
    /// The image of a block that was handed out is in WAL, with these live entries.
    pub fn fill(&mut self, block: u32, live: Live) {
        let Some(b) = self.blocks.get_mut(block as usize) else { return };
        debug_assert!(b.taken && b.live == Live::default(), "block {block} was not handed out");
        b.taken = false;
        if live.entries == 0 {
            self.free.push(Reverse(block));
        } else {
            self.put(block, live);
        }
    }
    fn put(&mut self, block: u32, live: Live) {
        self.blocks[block as usize].live = live;
        self.live_bytes += live.bytes as u64;
        self.live_entries += live.entries as u64;
    }
    /// An entry of a block is not a record's newest image any more. It counts as one of average
    /// size there.
    pub fn leave(&mut self, block: u32) {
        let Some(b) = self.blocks.get_mut(block as usize) else { return };
        debug_assert!(b.live.entries > 0, "block {block} has no live entries");
        if b.live.entries == 0 {
            return;
        }
        let bytes = b.live.bytes / b.live.entries;
        b.live = Live { entries: b.live.entries - 1, bytes: b.live.bytes - bytes };
        self.live_bytes -= bytes as u64;
        self.live_entries -= 1;
        if b.live.entries == 0 && block > 0 {
            self.free.push(Reverse(block));
        }
    }
    /// How many blocks' worth of dead bytes are to be cleaned, so that live and free bytes are at
    /// least half of the file.
    pub fn excess(&self) -> u32 {
        let all = self.blocks.len().saturating_sub(1) as u64 * BODY as u64;
        let good = self.live_bytes + self.free.len() as u64 * BODY as u64;
        (all / 2).saturating_sub(good).div_ceil(BODY as u64) as u32
    }
    /// The emptiest blocks, at most `n`, those with the fewest live bytes first. Their rows are to
    /// be imaged again, which makes them free.
    pub fn emptiest(&self, n: usize) -> Result<Vec<u32>, TryReserveError> {
        let used = || (1..self.len()).filter(|b| self.live(*b).entries > 0 && !self.blocks[*b as usize].taken);
        let bytes = |b: u32| self.live(b).bytes;
        let mut counts = [0_usize; BODY + 1];
        used().for_each(|b| counts[(bytes(b) as usize).min(BODY)] += 1);
        // Blocks with fewer bytes than `below` are chosen, and some of those with so many.
        let (mut below, mut chosen) = (0, 0);
        while below <= BODY && chosen + counts[below] <= n {
            chosen += counts[below];
            below += 1;
        }
        let mut of_last = n - chosen;
        let mut found = Vec::new();
        found.try_reserve_exact(n.min(self.blocks.len()))?;
        for b in used() {
            let here = bytes(b) as usize;
            if here < below {
                found.push(b);
            } else if here == below && of_last > 0 {
                of_last -= 1;
                found.push(b);
            }
        }
        found.sort_by_key(|b| bytes(*b));
        Ok(found)
    }
}
