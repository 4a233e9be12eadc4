//! The state of a table from its pages: the best entry of each record.
//!
//! **INV-DMAX**: The state of a record is its valid entry with the largest CSN. Pages may come in
//! any order and any number of times: the result is the same. An entry is valid if it is not
//! pending, or if its transaction has committed; one in pieces if all of them are there. Each new
//! entry of a record has a larger CSN than all before it, or says the same at the same CSN.

mod slots;

pub use slots::Place;

use super::entry::{Entry, Fragment, Kind, NO_RECORD};
use super::page::{Page, PageKind};
use super::{Lsn, Meta};
use crate::csn::Csn;
use slots::{Slot, Slots, What};
use std::collections::{HashMap, TryReserveError};

/// The file that a page is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fork {
    /// The main fork: images.
    Main,
    /// The fork of the free space map: the journal.
    Journal,
}

/// How the transaction of a pending entry has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has committed.
    Committed,
    /// It has aborted, or the server stopped in the middle of it.
    Aborted,
    /// It is prepared, or still runs.
    Open,
    /// It is older than what the commit log keeps for this table. If it has committed, its entries
    /// stand somewhere without a transaction id.
    Older,
}

/// A pending entry whose transaction is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Undecided {
    /// The record, or [`NO_RECORD`].
    pub record: u32,
    /// The CSN of the entry.
    pub csn: Csn,
    /// The full transaction id.
    pub xid: u64,
    /// Where it stands.
    pub place: Place,
}

/// What the pages had in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Pages that were merged, with duplicates.
    pub pages: u64,
    /// Journal pages below the horizon, which do not count.
    pub below_horizon: u64,
    /// Entries that were merged.
    pub entries: u64,
    /// Entries of aborted transactions.
    pub aborted: u64,
    /// Pending entries older than the commit log.
    pub older: u64,
}

/// The pieces of a row at one CSN, by their numbers.
#[derive(Default)]
struct Pieces(Vec<(u32, Piece)>);

/// A smaller one is better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    pending: bool,
    place: Place,
}

/// Record, CSN, length of the row.
type CutKey = (u32, Csn, u32);

/// The merge of a table's pages. It needs 12 bytes for each record, and 16 for each piece of a long
/// row.
pub struct Merge {
    horizon: Lsn,
    slots: Slots,
    hints: Slot,
    cut: HashMap<CutKey, Pieces>,
    open: Vec<Undecided>,
    asked: Option<(u64, Outcome)>,
    counts: Counts,
    clock: Csn,
    token: u64,
    high: u32,
}

/// The commit log, by full transaction id.
pub type Log<'a> = &'a mut dyn FnMut(u64) -> Outcome;

impl Merge {
    /// Begins with the meta page, or its default if the table has none yet.
    pub fn new(meta: &Meta) -> Merge {
        Merge {
            horizon: meta.horizon,
            slots: Slots::default(),
            hints: Slot::default(),
            cut: HashMap::new(),
            open: Vec::new(),
            asked: None,
            counts: Counts::default(),
            clock: meta.clock,
            token: meta.token,
            high: meta.high,
        }
    }

    /// Merges a page. An error means that this process has no memory: the merge is of no use then.
    pub fn add(&mut self, page: &Page, log: Log) -> Result<(), TryReserveError> {
        let special = &page.special;
        self.clock = self.clock.max(special.csn_max);
        self.token = self.token.max(special.token_max);
        let fork = match special.kind {
            PageKind::Image => Fork::Main,
            PageKind::Journal if special.b < self.horizon => {
                self.counts.below_horizon += 1;
                return Ok(());
            }
            PageKind::Journal => Fork::Journal,
            PageKind::Meta => return Ok(()),
        };
        self.counts.pages += 1;
        page.entries().for_each(|(_, entry)| self.slots.prefetch(entry.record));
        for (offset, entry) in page.entries() {
            self.counts.entries += 1;
            self.add_entry(&entry, Place { fork, block: special.block, offset }, log)?;
        }
        Ok(())
    }

    fn add_entry(&mut self, entry: &Entry, place: Place, log: Log) -> Result<(), TryReserveError> {
        match entry.kind {
            Kind::High => {
                self.high = self.high.max(entry.record);
                return Ok(());
            }
            Kind::Row | Kind::Tomb => self.high = self.high.max(entry.record + 1),
            Kind::Hints => {}
        }
        let outcome = entry.pending.map_or(Outcome::Committed, |xid| self.ask(xid, log));
        match (outcome, entry.pending) {
            (Outcome::Open, Some(xid)) => {
                self.open.try_reserve(1)?;
                self.open.push(Undecided { record: entry.record, csn: entry.csn, xid, place });
            }
            (Outcome::Aborted, _) => self.counts.aborted += 1,
            (Outcome::Older, _) => self.counts.older += 1,
            _ => self.offer(entry, place)?,
        }
        Ok(())
    }

    /// Asks the commit log, once for entries of one transaction in a row.
    fn ask(&mut self, xid: u64, log: Log) -> Outcome {
        match self.asked {
            Some((asked, outcome)) if asked == xid => outcome,
            _ => {
                let outcome = log(xid);
                self.asked = Some((xid, outcome));
                outcome
            }
        }
    }

    /// Takes a valid entry for the record's, if it is better.
    fn offer(&mut self, entry: &Entry, place: Place) -> Result<(), TryReserveError> {
        let slot = match entry.fragment {
            None => Slot::whole(entry.csn, entry.kind, place, entry.pending.is_none()),
            Some(fragment) => {
                let key = (entry.record, entry.csn, fragment.total);
                self.cut.try_reserve(1)?;
                let pieces = self.cut.entry(key).or_default();
                pieces.put(fragment.index(), Piece { pending: entry.pending.is_some(), place })?;
                if pieces.0.len() < fragment.pieces() as usize {
                    return Ok(());
                }
                Slot::cut(entry.csn, fragment.total)
            }
        };
        let best = if entry.record == NO_RECORD { &mut self.hints } else { self.slots.get_mut(entry.record)? };
        if slot.is_better(*best) {
            *best = slot;
        }
        Ok(())
    }

    /// Ends the merge.
    pub fn finish(self) -> Merged {
        let Merge { slots, hints, cut, mut open, counts, clock, token, high, .. } = self;
        let mut merged =
            Merged { slots, hints, cut, open: Vec::new(), damaged: Vec::new(), counts, clock, token, high };
        // The piece 0 is written last: without it the others are what a crash has left.
        let incomplete = merged.cut.iter().filter(|((record, csn, total), pieces)| {
            let all = Fragment { at: 0, total: *total }.pieces() as usize;
            pieces.get(0).is_some() && pieces.0.len() < all && *csn > merged.best(*record).csn()
        });
        let mut damaged: Vec<(u32, Csn)> = incomplete.map(|((record, csn, _), _)| (*record, *csn)).collect();
        damaged.sort_unstable();
        damaged.dedup();
        open.retain(|u| u.csn > merged.best(u.record).csn());
        open.sort_unstable();
        open.dedup();
        (merged.open, merged.damaged) = (open, damaged);
        merged
    }
}

impl Pieces {
    /// Takes a piece, if it is the first with its number or better than that.
    fn put(&mut self, index: u32, piece: Piece) -> Result<(), TryReserveError> {
        match self.0.binary_search_by_key(&index, |(i, _)| *i) {
            Ok(at) => self.0[at].1 = piece.min(self.0[at].1),
            Err(at) => {
                self.0.try_reserve(1)?;
                self.0.insert(at, (index, piece));
            }
        }
        Ok(())
    }
    fn first(&self) -> Option<Place> {
        self.0.first().map(|(_, piece)| piece.place)
    }
    fn get(&self, index: u32) -> Option<Place> {
        let at = self.0.binary_search_by_key(&index, |(i, _)| *i).ok()?;
        Some(self.0[at].1.place)
    }
    fn is_home(&self) -> bool {
        self.0.iter().all(|(_, piece)| piece.place.fork == Fork::Main)
    }
    fn is_dirty(&self) -> bool {
        !self.is_home() || self.0.iter().any(|(_, piece)| piece.pending)
    }
}

/// What a table's pages say. It does not hold the rows: the caller goes through the pages once
/// more, and [`Merged::winners`] says which entries are the rows.
pub struct Merged {
    slots: Slots,
    hints: Slot,
    cut: HashMap<CutKey, Pieces>,
    /// Pending entries of open transactions, above the best entries of their records.
    pub open: Vec<Undecided>,
    /// Records and CSNs of rows in pieces that are not all there, and newer than the records' best
    /// entries. The table is damaged if there are any.
    pub damaged: Vec<(u32, Csn)>,
    /// What the pages had in them.
    pub counts: Counts,
    /// The largest CSN of all pages, of the clock in the meta page too.
    pub clock: Csn,
    /// The largest token.
    pub token: u64,
    /// The high water of record numbers (INV-HIGH).
    pub high: u32,
}

/// The best entry of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Winner {
    /// Its CSN.
    pub csn: Csn,
    /// Is the row deleted?
    pub tomb: bool,
    /// Must it be imaged? It stands in the journal, or it is pending although its transaction has
    /// committed.
    pub dirty: bool,
    /// The block of its image, or of the first piece. `None`: some of it is in the journal.
    pub home: Option<u32>,
}

/// An entry on a page that is a record's best one, or a piece of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Winning<'a> {
    /// The entry.
    pub entry: Entry<'a>,
    /// Is the page a home of the record? Then the entry is one of its live entries.
    pub home: bool,
    /// See [`Winner::dirty`].
    pub dirty: bool,
}

/// The live entries of an image page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Live {
    /// Their number.
    pub entries: u16,
    /// The bytes that they take on the page.
    pub bytes: u16,
}

impl Merged {
    fn best(&self, record: u32) -> Slot {
        if record == NO_RECORD {
            self.hints
        } else {
            self.slots.get(record)
        }
    }
    fn winner_in(&self, record: u32, slot: Slot) -> Option<Winner> {
        let csn = slot.csn();
        Some(match slot.what()? {
            What::Whole { kind, place, settled } => {
                let home = (place.fork == Fork::Main).then_some(place.block);
                Winner { csn, tomb: kind == Kind::Tomb, dirty: !settled || home.is_none(), home }
            }
            What::Cut { total } => {
                let pieces = self.cut.get(&(record, csn, total))?;
                let home = pieces.first().filter(|_| pieces.is_home()).map(|place| place.block);
                Winner { csn, tomb: false, dirty: pieces.is_dirty(), home }
            }
        })
    }
    /// The best entry of a record. [`NO_RECORD`]: of the hints.
    pub fn winner(&self, record: u32) -> Option<Winner> {
        self.winner_in(record, self.best(record))
    }
    /// The best entries of all records, in the order of their numbers.
    pub fn records(&self) -> impl Iterator<Item = (u32, Winner)> + use<'_> {
        self.slots.iter().filter_map(|(record, slot)| Some((record, self.winner_in(record, slot)?)))
    }
    /// The blocks of the pieces of a long row, in the order of the pieces. Of a row that is not in
    /// pieces: none.
    pub fn blocks(&self, record: u32) -> impl Iterator<Item = Place> + use<'_> {
        let slot = self.best(record);
        let pieces = match slot.what() {
            Some(What::Cut { total }) => self.cut.get(&(record, slot.csn(), total)),
            _ => None,
        };
        pieces.into_iter().flat_map(|pieces| pieces.0.iter().map(|(_, piece)| piece.place))
    }
    /// The entries of a page that are records' best ones, or pieces of those. Over all pages of
    /// both forks, each comes once.
    pub fn winners<'a>(&'a self, page: &Page<'a>) -> impl Iterator<Item = Winning<'a>> + use<'a> {
        let special = page.special;
        let fork = if special.kind == PageKind::Journal { Fork::Journal } else { Fork::Main };
        page.entries().for_each(|(_, entry)| self.slots.prefetch(entry.record));
        page.entries().filter_map(move |(offset, entry)| {
            let place = Place { fork, block: special.block, offset };
            self.is_winner(&entry, place)
        })
    }
    fn is_winner<'a>(&self, entry: &Entry<'a>, place: Place) -> Option<Winning<'a>> {
        let slot = if entry.kind == Kind::High { return None } else { self.best(entry.record) };
        let is_here = match (slot.what()?, entry.fragment) {
            (What::Whole { place: best, .. }, None) => best == place,
            (What::Cut { total }, Some(fragment)) if total == fragment.total => {
                let pieces = self.cut.get(&(entry.record, slot.csn(), total))?;
                pieces.get(fragment.index()) == Some(place)
            }
            _ => false,
        };
        let winner = self.winner_in(entry.record, slot).filter(|w| is_here && w.csn == entry.csn)?;
        Some(Winning { entry: *entry, home: winner.home.is_some(), dirty: winner.dirty })
    }
    /// The live entries of an image page.
    pub fn live(&self, page: &Page) -> Live {
        self.winners(page).filter(|w| w.home).fold(Live::default(), |live, w| Live {
            entries: live.entries + 1,
            bytes: live.bytes + w.entry.size() as u16,
        })
    }
}
