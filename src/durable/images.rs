//! A batch of image pages: entries are put on fresh blocks of a main fork, and one WAL record has
//! all of them as full images.
//!
//! All entries that a caller adds at once are of one record, and belong together: they stand on one
//! page. If one of them is longer than a page, each piece has a block of its own. The blocks are a
//! chain (`b` of a page's special area).
//!
//! **INV-IMAGED**: A caller moves a record's home, and counts blocks as free, only when
//! [`Batch::write`] has returned after the record was added.

use crate::pg::buffers::{self, Image, Ring};
use crate::pg::local::Local;
use crate::pg::wal;
use mixedcc_engine::durable::entry::PIECE;
use mixedcc_engine::durable::merge::Live;
use mixedcc_engine::durable::page::{BODY, LONG};
use mixedcc_engine::durable::wal::{image, ImageKind, Op};
use mixedcc_engine::durable::window::Place;
use mixedcc_engine::durable::{Entry, Lsn, Meta, PageKind, PageMut, PAGE};

/// The batch has no room for these entries: it is to be written first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Pages of this process that are in no batch.
static SPARE: Local<Vec<&'static mut [u8; PAGE]>> = Local::new(Vec::new());

fn take_spare() -> &'static mut [u8; PAGE] {
    // SAFETY: a process has one thread, and no other reference to `SPARE` is in use.
    unsafe { SPARE.get_mut().pop() }.unwrap_or_else(|| Box::leak(Box::new([0; PAGE])))
}

fn give_spare(page: &'static mut [u8; PAGE]) {
    // SAFETY: as in `take_spare`.
    unsafe { SPARE.get_mut().push(page) };
}

/// A page that is complete.
struct Done {
    block: u32,
    /// It replaces a page that counts.
    replaces: bool,
    live: Live,
    page: &'static mut [u8; PAGE],
}

/// A batch of pages of one storage.
pub struct Batch {
    key: [u32; 4],
    kind: ImageKind,
    done: Vec<Done>,
    /// The page that gets entries.
    open: Option<(PageMut<'static>, Live)>,
    entries: u32,
    most: usize,
    ring: Ring,
    /// Blocks that were written.
    filled: Vec<(u32, Live)>,
}

impl Batch {
    /// An empty batch of a storage.
    pub fn new(key: [u32; 4], kind: ImageKind) -> Batch {
        let most = buffers::pages_at_once();
        let done = Vec::with_capacity(most);
        Batch { key, kind, done, open: None, entries: 0, most, ring: Ring::to_write(), filled: Vec::new() }
    }
    /// Is there nothing to write?
    pub fn is_empty(&self) -> bool {
        self.done.is_empty() && self.open.is_none()
    }
    fn pages(&self) -> usize {
        self.done.len() + usize::from(self.open.is_some())
    }
    fn close(&mut self) {
        if let Some((page, live)) = self.open.take() {
            let block = page.special().block;
            self.done.push(Done { block, replaces: false, live, page: page.finish() });
        }
    }
    fn begin(&mut self, block: u32, flags: u16, next: u32) -> &mut (PageMut<'static>, Live) {
        self.close();
        let page = PageMut::begin(take_spare(), PageKind::Image, block, flags, wal::inserted(), next.into());
        self.open.insert((page, Live::default()))
    }
    /// Adds the entries of one record; the last of them counts as live. `fresh` gives blocks that
    /// exist and may be overwritten. Says where the entries will be.
    pub fn add(&mut self, group: &[Entry], fresh: &mut dyn FnMut() -> u32) -> Result<Place, Full> {
        let size: usize = group.iter().map(Entry::size).sum();
        if size > BODY || group.iter().any(|e| e.payload.len() > PIECE) {
            return self.add_long(group, fresh);
        }
        if !self.open.as_ref().is_some_and(|(page, _)| page.room() >= size && page.special().flags & LONG == 0) {
            if self.pages() == self.most {
                return Err(Full);
            }
            self.begin(fresh(), 0, 0);
        }
        let Some((page, live)) = self.open.as_mut() else { return Err(Full) };
        for entry in group {
            if page.append(entry).is_none() {
                return Err(Full); // Not reached: the page has room for them.
            }
        }
        live.entries += 1;
        live.bytes += group.last().map_or(0, |e| e.size() as u16);
        self.entries += group.len() as u32;
        Ok(Place { block: page.special().block, long: false })
    }
    /// Writes full batches itself: until the chain is complete in WAL its pieces do not count.
    fn add_long(&mut self, group: &[Entry], fresh: &mut dyn FnMut() -> u32) -> Result<Place, Full> {
        if !self.is_empty() {
            return Err(Full);
        }
        // From the last piece to the first one, so that the first one is in the last record:
        // without it the others do not count.
        let pieces: Vec<Entry> = group.iter().flat_map(|e| e.pieces()).collect();
        let mut next = 0;
        for piece in pieces.iter().rev() {
            if self.pages() == self.most {
                self.write();
            }
            let block = fresh();
            let (page, live) = self.begin(block, LONG, next);
            *live = Live { entries: 1, bytes: piece.size() as u16 };
            page.append(piece);
            self.entries += 1;
            next = block;
        }
        self.close();
        Ok(Place { block: next, long: true })
    }
    /// Adds a page that replaces the one in this block, which counts.
    pub fn replace(&mut self, block: u32, with: &[u8; PAGE]) -> Result<(), Full> {
        self.close();
        if self.pages() == self.most {
            return Err(Full);
        }
        let page = take_spare();
        *page = *with;
        self.done.push(Done { block, replaces: true, live: Live::default(), page });
        Ok(())
    }
    /// Adds the meta page.
    pub fn put_meta(&mut self, meta: &Meta) -> Result<(), Full> {
        self.close();
        if self.pages() == self.most {
            return Err(Full);
        }
        let page = take_spare();
        meta.write(page);
        self.done.push(Done { block: 0, replaces: true, live: Live::default(), page });
        Ok(())
    }
    /// Writes the pages and says where their record ends. 0: there were none.
    pub fn write(&mut self) -> Lsn {
        self.close();
        if self.done.is_empty() {
            return 0;
        }
        let data = image(self.kind, std::mem::take(&mut self.entries));
        let pages: Vec<Image> =
            self.done.iter().map(|d| Image { block: d.block, live: d.replaces, page: d.page }).collect();
        self.filled.reserve(pages.len());
        // SAFETY: the blocks are fresh ones of the caller's, each handed out once, or pages that
        // the caller alone uses. There are at most `most` of them.
        let lsn = unsafe { buffers::write(self.key, (wal::MANAGER, Op::Image as u8), &data, &pages, &self.ring) };
        for done in self.done.drain(..) {
            if !done.replaces {
                self.filled.push((done.block, done.live));
            }
            give_spare(done.page);
        }
        lsn
    }
    /// The fresh blocks that were written since the last call, and what lives there.
    pub fn take_filled(&mut self) -> std::vec::Drain<'_, (u32, Live)> {
        self.filled.drain(..)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.close();
        self.done.drain(..).for_each(|d| give_spare(d.page));
    }
}
