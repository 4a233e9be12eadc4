//! Cleaning: the live entries of nearly empty blocks are copied into fresh ones, so that at most
//! half of a file is dead.
//!
//! An entry is copied as it is on its page, and needs no version from memory. It is live if its
//! record's home is this block. (A pending entry stands beside the decided one of its record, and
//! goes with it.) WAL has images in the order in which entries leave blocks and blocks are written
//! again (INV-SPACE). So after a crash at any point each newest entry is on some page.

use super::round::{fresh_block, warn_of_damage, Gone, Work};
use crate::durable::images::{Batch, Full};
use crate::pg::{buffers, compat};
use mixedcc_engine::durable::merge::Fork;
use mixedcc_engine::durable::page::LONG;
use mixedcc_engine::durable::report::Activity;
use mixedcc_engine::durable::wal::ImageKind;
use mixedcc_engine::durable::window::Place;
use mixedcc_engine::durable::{Entry, Page, PAGE};

/// The most blocks of a table that one round cleans.
const MOST: u32 = 4096;

impl Work<'_, '_> {
    /// Cleans the emptiest blocks, if more than half of the file is dead. The batch is empty.
    pub(super) fn clean(&mut self) -> Result<(), Gone> {
        let excess = self.space.excess().min(MOST);
        if excess == 0 {
            return Ok(());
        }
        let Ok(blocks) = self.space.emptiest(excess as usize) else { return Ok(()) };
        self.batch = Batch::new(self.key, ImageKind::Clean);
        let report = &self.e.shared.rounds.report;
        let mut page = Box::new([0; PAGE]);
        for block in blocks {
            report.begin(Activity::Cleaning, compat::now());
            self.rest()?;
            self.be_busy()?;
            buffers::read(self.key, Fork::Main, block, true, None, &mut page);
            match Page::read(&page, block) {
                // Its pieces have no other entries beside them.
                Ok(Some(read)) if read.special.flags & LONG != 0 => {}
                Ok(Some(read)) => self.empty(block, &read)?,
                _ => self.leave_damaged(block),
            }
        }
        self.write()?;
        report.begin(Activity::Imaging, compat::now());
        self.batch = Batch::new(self.key, ImageKind::Round);
        Ok(())
    }

    /// A block is damaged: the next round writes its rows again.
    fn leave_damaged(&self, block: u32) {
        warn_of_damage(self.key, block);
        let home = Place { block, long: false };
        let lives_there = |n: &u64| self.durable.home(*n).is_some_and(|place| place.get() == Some(home));
        (0..self.look.table.len()).filter(lives_there).for_each(|n| self.durable.set_dirty(n));
    }

    /// Copies what lives on a page.
    fn empty(&mut self, block: u32, page: &Page) -> Result<(), Gone> {
        let entries: Vec<Entry> = page.entries().map(|(_, entry)| entry).collect();
        let home = Place { block, long: false };
        for (i, first) in entries.iter().enumerate() {
            let n = first.record as u64;
            let is_live = self.durable.home(n).is_some_and(|place| place.get() == Some(home));
            if !is_live || entries[..i].iter().any(|before| before.record == first.record) {
                continue;
            }
            let group: Vec<Entry> = entries[i..].iter().filter(|e| e.record == first.record).copied().collect();
            let place = loop {
                self.be_busy()?;
                let (space, key) = (&mut *self.space, self.key);
                match self.batch.add(&group, &mut || fresh_block(space, key)) {
                    Ok(place) => break place,
                    Err(Full) => self.write()?,
                }
            };
            self.homes.push((n, place));
            self.left.push(block);
            self.pace.count();
        }
        Ok(())
    }
}
