//! The journal of a storage: what redo appends to its pages, and which page it takes next.
//!
//! The server's part ([`File`]) reads and changes blocks. It keeps the order that INV-JOURNAL
//! needs: a page is locked and marked as dirty, and only then is the redo pointer read.

use super::entry::Entry;
use super::page::{journal_is_free, Page, PageKind, PageMut, Tail, PAGE};
use super::Lsn;
use crate::faults::{self, Fault};
use std::collections::BTreeSet;

/// The journal fork of a storage, as redo uses it.
pub trait File {
    /// The number of its blocks.
    fn blocks(&mut self) -> u32;
    /// Reads a block: as it is on disk, if a checksum hides it.
    fn look(&mut self, block: u32, to: &mut [u8; PAGE]);
    /// The redo pointer: if the server stops now, replay begins there.
    fn redo(&self) -> Lsn;
    /// Locks a block, and marks it as dirty. Then it reads the redo pointer, and calls `f` with the
    /// page and that. If `f` has changed the page, `lsn` becomes the page's position in WAL. The
    /// block may be the first one behind the end of the file. `fresh`: what stands there does not
    /// matter.
    fn change(&mut self, block: u32, fresh: bool, lsn: Lsn, f: &mut dyn FnMut(&mut [u8; PAGE], Lsn) -> bool);
}

/// What redo knows of the journal of a storage.
#[derive(Default)]
pub struct Journal {
    horizon: Lsn,
    /// The page that gets the next entries.
    current: Option<Open>,
    /// All other pages that can be read, by the ends of their last records. 0: the page is empty.
    pages: BTreeSet<(Lsn, u32)>,
}

/// A page that was begun in this replay.
#[derive(Clone, Copy)]
struct Open {
    tail: Tail,
    /// The redo pointer when it was begun.
    interval: Lsn,
}

/// The page to which redo turns.
enum Place {
    GoOn(Open),
    Begin(u32),
}

/// Where a record is in WAL.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// Where it begins.
    pub from: Lsn,
    /// Where it ends.
    pub to: Lsn,
}

/// Makes a page empty, and says its end. Not zeros: those would be taken for a page that a checksum
/// hides.
fn empty(file: &mut impl File, block: u32, from: Lsn) -> Lsn {
    file.change(block, true, 0, &mut |page, _| {
        PageMut::begin(page, PageKind::Journal, block, 0, from, 0);
        true
    });
    0
}

impl Journal {
    /// The first record of the storage in this replay begins at `from`: looks at all pages. Pages
    /// whose entries are all replayed again are made empty. So a server that replays the same
    /// records again and again has a journal of one size.
    pub fn new(file: &mut impl File, horizon: Lsn, from: Lsn) -> Journal {
        let redo = file.redo();
        Journal::look(file, horizon, from, redo)
    }
    /// A drop has replaced the file in the middle of the replay: looks at all pages.
    fn anew(&self, file: &mut impl File, from: Lsn) -> Journal {
        Journal::look(file, self.horizon, from, Lsn::MAX)
    }
    /// Lists all pages. A good page whose first record begins at `replayed` or later is made empty,
    /// and a torn one whose entries are replayed again. Other pages that cannot be read stay as
    /// they are, so that the absorption of the journal finds them.
    fn look(file: &mut impl File, horizon: Lsn, from: Lsn, replayed: Lsn) -> Journal {
        let mut journal = Journal { horizon, ..Journal::default() };
        let mut page = Box::new([0; PAGE]);
        for block in 0..file.blocks() {
            file.look(block, &mut page);
            let end = match Page::read(&page, block) {
                Ok(None) => 0,
                Ok(Some(page)) if page.special.kind == PageKind::Journal && page.special.a < replayed => page.special.b,
                Ok(Some(page)) if page.special.kind == PageKind::Journal => empty(file, block, from),
                _ if journal_is_free(&page, block, file.redo(), horizon) => empty(file, block, from),
                _ => continue,
            };
            journal.pages.insert((end, block));
        }
        journal
    }
    /// A meta page was restored: pages whose last record ends below this are in images.
    pub fn set_horizon(&mut self, horizon: Lsn) {
        self.horizon = horizon;
    }
    /// Appends the entries of a record, which has this token. An entry may come twice if a record
    /// is replayed again; the merge does not mind (INV-DMAX).
    pub fn append<'e>(
        &mut self,
        file: &mut impl File,
        entries: impl IntoIterator<Item = Entry<'e>>,
        at: Position,
        token: u64,
    ) {
        if faults::on(Fault::JournalForgotten) {
            return;
        }
        let mut entries = entries.into_iter().peekable();
        while entries.peek().is_some() {
            let place = self.next_place(file, at.from);
            let block = match &place {
                Place::GoOn(open) => open.tail.special.block,
                Place::Begin(block) => *block,
            };
            let mut open = None;
            file.change(block, matches!(place, Place::Begin(_)), at.to, &mut |page, redo| {
                let (mut to, interval) = match &place {
                    Place::Begin(block) => (PageMut::begin(page, PageKind::Journal, *block, 0, at.from, 0), redo),
                    Place::GoOn(open) => match PageMut::resume(page, &open.tail) {
                        Some(to) => (to, open.interval),
                        None => return false, // A drop has replaced the file.
                    },
                };
                let mut changed = matches!(place, Place::Begin(_));
                let may_append = interval == redo || faults::on(Fault::IntervalsMixed);
                while let Some(entry) = entries.peek().filter(|_| may_append) {
                    if to.append_replayed(entry, at.to, token).is_none() {
                        break; // It is full.
                    }
                    changed = true;
                    entries.next();
                }
                open = Some(Open { tail: to.tail(), interval });
                changed
            });
            match open {
                None => *self = self.anew(file, at.from),
                Some(open) if entries.peek().is_some() => {
                    self.pages.insert((open.tail.special.b, block));
                }
                Some(_) => self.current = open,
            }
        }
    }
    /// The current page. If there is none: the page with the oldest entries, if these are in images
    /// (INV-JOURNAL), or a new one at the end.
    fn next_place(&mut self, file: &mut impl File, from: Lsn) -> Place {
        if let Some(open) = self.current.take() {
            if open.tail.special.block < file.blocks() {
                return Place::GoOn(open);
            }
            *self = self.anew(file, from); // A drop has replaced the file.
        }
        loop {
            let (end, block) = match self.pages.first() {
                Some(&(end, block)) if end == 0 || end < self.horizon => (end, block),
                _ => return Place::Begin(file.blocks()),
            };
            if self.is_as_listed(file, block, end) {
                self.pages.remove(&(end, block));
                return Place::Begin(block);
            }
            *self = self.anew(file, from); // A drop has replaced the file.
        }
    }
    fn is_as_listed(&self, file: &mut impl File, block: u32, end: Lsn) -> bool {
        if block >= file.blocks() {
            return false;
        }
        let mut page = Box::new([0; PAGE]);
        file.look(block, &mut page);
        match Page::read(&page, block) {
            Ok(None) => end == 0,
            Ok(Some(page)) => page.special.kind == PageKind::Journal && page.special.b == end,
            Err(_) => false,
        }
    }
}
