//! The journal under crashes: torn pages, replays that are cut off, restartpoints between them.

use super::{row, Random};
use crate::durable::entry::{Entry, Kind, PIECE};
use crate::durable::journal::{File, Journal, Position};
use crate::durable::page::{is_new, journal_is_harmless, Page, PAGE};
use crate::durable::Lsn;
use crate::faults::{self, Fault};
use std::collections::{BTreeMap, BTreeSet};

/// A journal fork with the server's buffers.
#[derive(Default)]
struct Fork {
    disk: Vec<Box<[u8; PAGE]>>,
    dirty: BTreeMap<u32, Box<[u8; PAGE]>>,
    /// What processes see as the redo pointer.
    redo: Lsn,
    /// A restartpoint publishes this the next time that a block is marked as dirty.
    publishes: Option<Lsn>,
}

impl Fork {
    fn now(&self, block: u32) -> &[u8; PAGE] {
        self.dirty.get(&block).unwrap_or(&self.disk[block as usize])
    }
    fn flush(&mut self, blocks: &[u32]) {
        for block in blocks {
            if let Some(page) = self.dirty.remove(block) {
                self.disk[*block as usize] = page;
            }
        }
    }
    /// The machine stops: of each dirty page some sectors were written.
    fn crash(&mut self, r: &mut Random) {
        for (block, page) in std::mem::take(&mut self.dirty) {
            let written = match r.below(4) {
                0 => 0,
                1 => u64::MAX,
                _ => r.next(),
            };
            for sector in (0..PAGE / 512).filter(|s| written >> s & 1 == 1) {
                let at = sector * 512..(sector + 1) * 512;
                self.disk[block as usize][at.clone()].copy_from_slice(&page[at]);
            }
        }
    }
}

impl File for Fork {
    fn blocks(&mut self) -> u32 {
        self.disk.len() as u32
    }
    fn look(&mut self, block: u32, to: &mut [u8; PAGE]) {
        // Zeros may be what shared buffers show of a page with a wrong checksum.
        let page = self.now(block);
        *to = if is_new(page) { *self.disk[block as usize] } else { *page };
    }
    fn redo(&self) -> Lsn {
        self.redo
    }
    fn change(&mut self, block: u32, fresh: bool, lsn: Lsn, f: &mut dyn FnMut(&mut [u8; PAGE], Lsn) -> bool) {
        if block == self.blocks() {
            assert!(fresh, "a page behind the end is a new one");
            self.disk.push(Box::new([0; PAGE]));
        }
        let mut page = Box::new(*self.now(block));
        self.dirty.insert(block, page.clone());
        self.redo = self.publishes.take().unwrap_or(self.redo);
        if f(&mut page, self.redo) && lsn != 0 {
            page[..4].copy_from_slice(&((lsn >> 32) as u32).to_le_bytes());
            page[4..8].copy_from_slice(&(lsn as u32).to_le_bytes());
        }
        self.dirty.insert(block, page);
    }
}

/// A record of the storage in WAL.
enum Logged {
    Rows(Vec<(u32, Vec<u8>)>),
    /// Of another storage.
    Other,
    /// A round has imaged all before this.
    Meta(Lsn),
}

/// Records with the positions at which they end. Each begins where the one before it ends.
fn wal(r: &mut Random, len: usize) -> Vec<(Lsn, Logged)> {
    let mut wal: Vec<(Lsn, Logged)> = Vec::new();
    let mut lsn = 1000;
    let (mut busy, mut horizon) = (true, 0);
    for _ in 0..len {
        lsn += 1 + r.below(1000);
        busy ^= r.one_in(8);
        let logged = if !busy {
            Logged::Other
        } else if r.one_in(25) && !wal.is_empty() {
            horizon = horizon.max(r.pick(&wal).0);
            Logged::Meta(horizon)
        } else {
            let rows = 1 + if r.one_in(5) { r.below(30) } else { r.below(3) };
            Logged::Rows(
                (0..rows)
                    .map(|i| {
                        let len = if r.one_in(6) { r.below(PIECE as u64 + 1) } else { r.below(900) };
                        (i as u32, row(i as u32, lsn, len as usize))
                    })
                    .collect(),
            )
        };
        wal.push((lsn, logged));
    }
    wal
}

fn entry(lsn: Lsn, record: u32, payload: &[u8]) -> Entry<'_> {
    Entry { csn: lsn, kind: Kind::Row, record, pending: None, fragment: None, payload }
}

fn at(to: Lsn) -> Position {
    Position { from: to - 1, to }
}

/// What the data directory has of the control file and of the meta page.
#[derive(Clone, Copy, Default)]
struct Disk {
    redo: Lsn,
    horizon: Lsn,
}

/// A restartpoint under way: what becomes durable when its pages are flushed.
struct Restartpoint {
    disk: Disk,
    pages: Option<Vec<u32>>,
}

/// Replays all records from the redo pointer on, or up to a crash. Returns the horizon at the end.
fn replay(r: &mut Random, fork: &mut Fork, disk: &mut Disk, wal: &[(Lsn, Logged)], crashes: bool) -> Option<Lsn> {
    let mut journal = None;
    // The meta page may be torn. WAL has it then.
    let has_meta = wal.iter().any(|(lsn, logged)| *lsn > disk.redo && matches!(logged, Logged::Meta(_)));
    let mut horizon = if has_meta && r.one_in(5) { 0 } else { disk.horizon };
    let mut under_way: Option<Restartpoint> = None;
    fork.redo = disk.redo;
    fork.publishes = None;
    let mut to = disk.redo;
    let first = disk.redo;
    for (lsn, logged) in wal.iter().filter(|(lsn, _)| *lsn > first) {
        let from = std::mem::replace(&mut to, *lsn);
        match logged {
            Logged::Rows(rows) => {
                let journal = journal.get_or_insert_with(|| Journal::new(fork, horizon, from));
                let rows = rows.iter().map(|(n, bytes)| entry(*lsn, *n, bytes));
                journal.append(fork, rows, Position { from, to }, 1);
            }
            Logged::Other => {}
            Logged::Meta(upto) => {
                horizon = *upto;
                if let Some(journal) = &mut journal {
                    journal.set_horizon(horizon);
                }
                if r.one_in(2) {
                    disk.horizon = horizon; // The background writer writes the page.
                }
            }
        }
        if matches!(logged, Logged::Other) {
            fork.redo = fork.publishes.take().unwrap_or(fork.redo);
        }
        match &mut under_way {
            None if r.one_in(10) => {
                let redo = fork.redo + r.below(lsn - fork.redo + 1);
                let redo = wal.iter().map(|(lsn, _)| *lsn).filter(|lsn| *lsn <= redo).max().unwrap_or(fork.redo);
                let redo = redo.max(fork.redo);
                fork.publishes = Some(redo);
                under_way = Some(Restartpoint { disk: Disk { redo, horizon }, pages: None });
            }
            Some(point) if fork.publishes.is_none() && point.pages.is_none() => {
                // It looks for dirty pages after it has published the redo pointer.
                point.pages = Some(fork.dirty.keys().copied().collect());
                point.disk.horizon = horizon;
            }
            Some(Restartpoint { disk: new, pages: Some(pages) }) if r.one_in(3) => {
                fork.flush(pages);
                *disk = *new;
                under_way = None;
            }
            _ => {}
        }
        if crashes && r.one_in(30) {
            fork.crash(r);
            return None;
        }
    }
    Some(horizon)
}

/// All entries that absorption would find. Each page is right, or does not matter.
fn found(fork: &mut Fork, horizon: Lsn) -> Result<BTreeSet<(Lsn, u32)>, String> {
    let mut found = BTreeSet::new();
    for block in 0..fork.blocks() {
        let bytes = fork.now(block);
        match Page::read(bytes, block) {
            Ok(None) => {}
            Ok(Some(page)) if page.special.b < horizon => {}
            Ok(Some(page)) => {
                for (_, entry) in page.entries() {
                    assert!(entry.payload == row(entry.record, entry.csn, entry.payload.len()), "whole rows");
                    found.insert((entry.csn, entry.record));
                }
            }
            Err(_) if journal_is_harmless(bytes, block, None, horizon) => {}
            Err(why) => return Err(format!("block {block}: {why}")),
        }
    }
    Ok(found)
}

/// Says what is lost by crashes in the middle of replay.
fn lost() -> Option<String> {
    for seed in 0..SEEDS {
        let mut r = Random(seed);
        let len = 20 + r.below(120) as usize;
        let wal = wal(&mut r, len);
        let (mut fork, mut disk) = (Fork::default(), Disk { redo: 1000, horizon: 0 });
        let mut crashes = 0;
        let horizon = loop {
            if let Some(horizon) = replay(&mut r, &mut fork, &mut disk, &wal, crashes < 6) {
                break horizon;
            }
            crashes += 1;
        };
        let found = match found(&mut fork, horizon) {
            Ok(found) => found,
            Err(why) => return Some(format!("seed {seed}: {why}")),
        };
        for (lsn, logged) in &wal {
            let Logged::Rows(rows) = logged else { continue };
            for (n, _) in rows.iter().filter(|_| *lsn >= horizon) {
                if !found.contains(&(*lsn, *n)) {
                    return Some(format!("seed {seed}: row {n} of the record that ends at {lsn}"));
                }
            }
        }
    }
    None
}

const SEEDS: u64 = 600;

#[test]
fn nothing_is_lost_by_crashes_in_the_middle_of_replay() {
    assert_eq!(lost(), None);
}

#[test]
fn the_journals_faults_are_found() {
    for fault in [Fault::JournalForgotten, Fault::IntervalsMixed] {
        faults::set(Some(fault));
        let lost = lost();
        faults::set(None);
        assert!(lost.is_some(), "{fault:?}");
    }
}

#[test]
fn pages_below_the_horizon_are_used_again() {
    let mut fork = Fork { redo: 1, ..Fork::default() };
    let mut journal = Journal::new(&mut fork, 0, 1);
    let payload = vec![7; 4000];
    for lsn in 1..=100 {
        journal.append(&mut fork, [entry(lsn, 1, &payload)], at(lsn), 1);
        journal.set_horizon(lsn.saturating_sub(4));
    }
    assert!(fork.blocks() < 8, "{} blocks", fork.blocks());
}

#[test]
fn a_replay_that_begins_again_and_again_needs_no_more_pages() {
    let mut fork = Fork { redo: 1, ..Fork::default() };
    let mut sizes = Vec::new();
    for _ in 0..20 {
        let mut journal = Journal::new(&mut fork, 0, 1);
        for lsn in 2..40 {
            journal.append(&mut fork, [entry(lsn, 1, &row(1, lsn, 1500))], at(lsn), 1);
        }
        let all = fork.dirty.keys().copied().collect::<Vec<_>>();
        fork.flush(&all);
        sizes.push(fork.blocks());
    }
    assert!(sizes.iter().all(|blocks| *blocks == sizes[0]), "{sizes:?}");
    assert_eq!(found(&mut fork, 0).map(|found| found.len()), Ok(38));
}

#[test]
fn a_page_belongs_to_one_redo_interval() {
    let mut fork = Fork { redo: 1, ..Fork::default() };
    let mut journal = Journal::new(&mut fork, 0, 1);
    journal.append(&mut fork, [entry(10, 1, b"a")], at(10), 1);
    fork.publishes = Some(5);
    journal.append(&mut fork, [entry(20, 2, b"b")], at(20), 1);
    journal.append(&mut fork, [entry(30, 3, b"c")], at(30), 1);
    let begun: Vec<(Lsn, u16)> = (0..fork.blocks())
        .map(|block| super::read(fork.now(block), block).special)
        .map(|special| (special.a, special.entries))
        .collect();
    assert_eq!(begun, [(9, 1), (19, 2)]);
}

#[test]
fn a_file_that_a_drop_has_replaced_is_looked_at_anew() {
    let mut fork = Fork { redo: 1, ..Fork::default() };
    let mut journal = Journal::new(&mut fork, 0, 1);
    for lsn in 10..20 {
        journal.append(&mut fork, [entry(lsn, 1, &row(1, lsn, 5000))], at(lsn), 1);
    }
    fork = Fork { redo: 1, ..Fork::default() };
    journal.set_horizon(15);
    for lsn in 20..30 {
        journal.append(&mut fork, [entry(lsn, 1, &row(1, lsn, 5000))], at(lsn), 1);
    }
    let found = found(&mut fork, 0);
    assert_eq!(found, Ok((20..30).map(|lsn| (lsn, 1)).collect()));
}
