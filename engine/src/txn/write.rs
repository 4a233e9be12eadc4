//! Writes: buffered as new versions, linked at commit.

use super::locking::How;
use super::versions::{settled, Committed};
use super::{Level, RecordRef, Txn};
use crate::error::Error;
use crate::lock::Mode;
use crate::memory::{OutOfMemory, Region};
use crate::partition::Stripe;
use crate::platform::{Platform, StopEvent};
use crate::primitive::Ordering;
use crate::protocol::Touch;
use crate::record::{Successor, Version, VERSION_HEADER, VER_KEYED, VER_TOMBSTONE};
use crate::retire::RetireQueue;
use crate::table::Table;
use hashbrown::HashMap;
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

/// Among so many buffered writes the last one of a record is found by looking at each.
const FEW: usize = 16;

/// Where the last write of a record is found if there are more than `FEW`.
///
/// INV-LATEST: of the first `known` writes `map` has the last one of each record, by the record's address, and no other. There
/// are at least so many. Who looks for one makes the others known, so that writes that nobody looks for cost nothing.
#[derive(Default)]
pub(super) struct Latest {
    map: RefCell<HashMap<usize, u32>>,
    known: Cell<usize>,
}

impl Latest {
    /// The last write of a record among these, which are all.
    #[inline(never)]
    fn find(&self, writes: &[Write], r: RecordRef) -> Option<u32> {
        let mut map = self.map.borrow_mut();
        for (i, w) in writes.iter().enumerate().skip(self.known.get()) {
            map.insert(w.r.key(), i as u32);
            // One by one: what is in the map is known also if the process has no memory for the next.
            self.known.set(i + 1);
        }
        map.get(&r.key()).copied()
    }

    /// The last write was taken out of the list, of which `left` are left.
    fn forget(&mut self, w: &Write, left: usize) {
        if self.known.get() <= left {
            return;
        }
        self.known.set(left);
        let map = self.map.get_mut();
        match w.previous {
            Some(n) => _ = map.insert(w.r.key(), n),
            None => _ = map.remove(&w.r.key()),
        }
    }

    /// All writes are gone.
    pub fn clear(&mut self) {
        self.known.set(0);
        super::clear_map(self.map.get_mut());
    }
}

/// What a buffered write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    /// A new record, reserved until commit.
    Insert,
    /// A new version of the record.
    Update,
    /// A tombstone.
    Delete,
}

/// A buffered write.
#[derive(Clone, Copy)]
pub struct Write {
    /// The record.
    pub r: RecordRef,
    /// What it does.
    pub kind: WriteKind,
    /// The new version or tombstone.
    pub version: NonNull<Version>,
    /// The committed version that it replaces; `None` for own inserts.
    pub base: Option<NonNull<Version>>,
    /// Our previous write of the same record.
    pub previous: Option<u32>,
    /// Number of the statement (PostgreSQL's command id).
    pub cid: u32,
    /// Subtransaction depth; 1 is the top transaction.
    pub depth: u32,
    /// Transaction id by which unique checks wait for an insert or a delete of ours; else 0. INV-WRITER: who has put it into
    /// the record takes it out, when it publishes or undoes this write. (A lock alone is no right to: a record may have been
    /// locked for what it was before.)
    pub xid: u32,
    /// Is there a later write of ours of the same record?
    pub superseded: bool,
    /// Its last note + 1 (see [`Txn::note_key`]).
    pub(super) notes: u32,
    /// Of an own insert: where its key in the primary index is among our entries, + 1; 0: it has no entry.
    pub(super) entry: u32,
}

/// What a transaction sees of its own writes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// It has written nothing here.
    Nothing,
    /// It has written, but only in statements that are not to be seen: the committed version.
    Later,
    /// This write is what it sees.
    Write(u32),
}

impl Txn {
    /// Memory for a version with `len` bytes of payload, marked as ours. The caller fills the
    /// payload, then hands it to one of the functions below; [`Txn::discard`] if it cannot. `partition`: the
    /// row's, whose memory node it comes from if there are several.
    pub fn new_version(&mut self, partition: u32, len: usize, flags: u32) -> Result<NonNull<Version>, Error> {
        // Each write retires one version at most, published or undone.
        let node = self.e.region.node_of_partition(partition);
        let v = match self.allocate(node, len) {
            Ok(v) => v,
            Err(OutOfMemory) => {
                self.reclaim();
                self.allocate(node, len)?
            }
        };
        // SAFETY: fresh memory of that size.
        unsafe { Version::init(v.as_ptr(), self.tag(), len as u32, flags) };
        Ok(v)
    }

    fn allocate(&mut self, node: usize, len: usize) -> Result<NonNull<Version>, OutOfMemory> {
        RetireQueue::reserve(&self.e, self.slot, self.owed())?;
        Ok(self.e.region.alloc_on(node, self.slot as usize, VERSION_HEADER + len)?.cast())
    }

    /// Room in the queue of retired memory for `n` entries in all beyond those of our writes. It stays when the
    /// transaction has ended, until the next one ends: the platform retires what depends on the outcome then.
    pub fn make_room(&mut self, n: u64) -> Result<(), OutOfMemory> {
        let before = self.promised;
        self.promised = before.max(n);
        RetireQueue::reserve(&self.e, self.slot, self.owed()).inspect_err(|_| self.promised = before)
    }

    /// A tombstone that names where the row went. `key`: the row's in the primary index of its table; `None` if it has
    /// no entry there (INV-GRAVE).
    pub fn new_tombstone(&mut self, to: Successor, key: Option<&[u8]>) -> Result<NonNull<Version>, Error> {
        let before = std::mem::size_of::<Successor>();
        let flags = if key.is_some() { VER_TOMBSTONE | VER_KEYED } else { VER_TOMBSTONE };
        let key = key.unwrap_or_default();
        let v = self.new_version(0, before + key.len(), flags)?;
        let payload = Version::payload(v.as_ptr());
        // SAFETY: the payload is that large, and ours.
        unsafe {
            payload.cast::<Successor>().write_unaligned(to);
            payload.add(before).copy_from_nonoverlapping(key.as_ptr(), key.len());
        }
        Ok(v)
    }

    /// Gives back a version that was not handed over.
    pub fn discard(&mut self, v: NonNull<Version>) {
        if self.unplaced == Some(v) {
            self.unplaced = None;
        }
        // SAFETY: never linked, and the caller gives it up.
        unsafe { self.e.region.free(self.slot as usize, v.cast()) };
    }

    /// Before anything is written into a partition: its protocols' locks of partitions.
    pub fn before_write(&mut self, p: &dyn Platform, at: Touch) -> Result<(), Error> {
        if self.follow(p, at.partition())?.locks_partitions() {
            self.lock_partition(p, at)?;
        }
        Ok(())
    }

    /// An explicit row lock (SELECT FOR ...): the partition's lock where its protocols want it, and
    /// the record's. `how`: [`How::Wait`] or [`How::Try`].
    pub fn lock_row(&mut self, p: &dyn Platform, r: RecordRef, mode: Mode, how: How) -> Result<(), Error> {
        if self.follow(p, r.partition())?.locks_partitions() {
            self.lock_partition_how(p, r.touch(), Some(how).filter(|h| *h == How::Try))?;
        }
        self.lock_record(p, r, mode, how, false)
    }

    /// Gives back the version of an insert that did not come back.
    pub(super) fn discard_unplaced(&mut self) {
        if let Some(v) = self.unplaced {
            self.discard(v);
        }
    }

    /// Buffers an insert: reserves a record. `part`: the record's partition in both maps' fields.
    /// `xid`: the transaction id by which unique checks wait for us, or 0.
    /// On an error the version is still the caller's. If the platform unwinds, or its process ends without unwinding
    /// while it sleeps, it is freed with the transaction, unless it was discarded before.
    pub fn insert(
        &mut self,
        p: &dyn Platform,
        table: &'static Table,
        part: [u16; 2],
        version: NonNull<Version>,
        cid: u32,
        xid: u32,
    ) -> Result<RecordRef, Error> {
        let at = Touch { table, no: part[table.map().field as usize] as u32 };
        self.unplaced = Some(version);
        let ready = self.before_write(p, at).and_then(|()| p.stop_event(StopEvent::Write));
        self.unplaced = None;
        ready?;
        let (no, rec) = match table.take_record(&self.e, self.slot) {
            Err(Error::OutOfMemory) => {
                self.reclaim();
                table.take_record(&self.e, self.slot)?
            }
            taken => taken?,
        };
        rec.part[0].store(part[0], Ordering::Relaxed);
        rec.part[1].store(part[1], Ordering::Relaxed);
        rec.writer.store(xid, Ordering::SeqCst);
        let r = RecordRef { table, no, rec };
        // A record that is free has no write of ours: what we have written in it was undone, or is there until we end.
        debug_assert!(self.last_write(r).is_none());
        self.written |= r.mark();
        self.writes.push(Write {
            r,
            kind: WriteKind::Insert,
            version,
            base: None,
            previous: None,
            cid,
            depth: self.depth,
            superseded: false,
            notes: 0,
            entry: 0,
            xid,
        });
        self.touch(r.partition()); // so that `publish` finds its counters
        rec.set_head(version.as_ptr());
        self.expose_last();
        Ok(r)
    }

    /// Buffers a write of a record that may have been written before.
    fn push(&mut self, mut w: Write) {
        w.previous = self.last_write(w.r);
        self.written |= w.r.mark();
        if let Some(p) = w.previous {
            self.writes[p as usize].superseded = true;
            w.entry = self.writes[p as usize].entry;
        }
        self.writes.push(w);
        self.touch(w.r.partition()); // so that `publish` finds its counters
        self.expose_last();
    }

    /// Locks a record in order to write it, as level and protocol want, and returns its newest
    /// committed version. `mode`: [`Mode::NoKeyUpdate`], or [`Mode::Update`] for deletes and moves.
    /// `at_once`: take the record lock now under every protocol.
    ///
    /// The caller compares the version with the one it has read, and then buffers its write.
    pub fn lock_for_write(
        &mut self,
        p: &dyn Platform,
        r: RecordRef,
        mode: Mode,
        how: How,
        at_once: bool,
    ) -> Result<Option<Committed>, Error> {
        p.stop_event(StopEvent::Write)?;
        if let Some(v) = (!at_once).then(|| self.peek_to_write(r)).flatten() {
            // SAFETY: INV-RETIRE: reached under our pin.
            return Ok(Some((v, unsafe { v.as_ref() }.stamp().0)));
        }
        self.before_write(p, r.touch())?;
        if self.level == Level::Serializable {
            self.follow(p, r.partition())?.write(self, p, r, mode)?;
        }
        if self.level != Level::Serializable || at_once {
            self.lock_record(p, r, mode, how, false)?;
        }
        self.sample_access(r, true);
        let newest = self.newest(p, r.rec)?;
        if self.level != Level::Serializable {
            return Ok(newest);
        }
        if newest.is_some_and(|(_, csn)| csn > self.valid) {
            self.revalidate(p)?;
        }
        let seen = newest.map_or(std::ptr::null_mut(), |(v, _)| v.as_ptr());
        if r.rec.head() != seen && self.is_committing_head(r) {
            self.passed_over();
        }
        Ok(newest)
    }

    /// What [`Txn::lock_for_write`] would return of a row, if it is not to be locked at once and looking at it is all that it
    /// would do; else `None`. It neither fails nor unwinds, and calls nobody.
    ///
    /// INV-PEEK, for writes: no protocol that is followed in the partition locks anything before the commit that is not ours, and the
    /// newest version is settled (INV-SETTLED): it is committed, and no later than everything read was valid.
    #[inline]
    pub fn peek_to_write(&mut self, r: RecordRef) -> Option<NonNull<Version>> {
        if self.level != Level::Serializable || !self.following {
            return None;
        }
        let valid = self.valid;
        let t = self.follow_also(r.partition());
        if t.locks_to_write() {
            return None;
        }
        let v = settled(r.rec.head(), valid)??;
        self.sample_access(r, true);
        Some(v)
    }

    /// Memory for a version, as [`Txn::new_version`], if there is some without freeing any first. It neither fails nor unwinds.
    #[inline]
    pub fn version_at_hand(&mut self, partition: u32, len: usize) -> Option<NonNull<Version>> {
        let v = self.allocate(self.e.region.node_of_partition(partition), len).ok()?;
        // SAFETY: fresh memory of that size.
        unsafe { Version::init(v.as_ptr(), self.tag(), len as u32, 0) };
        Some(v)
    }

    /// Buffers an update of columns in no index. `base`: the committed version it replaces, `None`
    /// if the record is an own insert.
    pub fn update(&mut self, r: RecordRef, base: Option<NonNull<Version>>, version: NonNull<Version>, cid: u32) -> u32 {
        self.push(Write {
            r,
            kind: WriteKind::Update,
            version,
            base,
            previous: None,
            cid,
            depth: self.depth,
            superseded: false,
            notes: 0,
            entry: 0,
            xid: 0,
        });
        self.writes.len() as u32 - 1
    }

    /// Buffers a delete. `xid`: the transaction id by which unique checks wait for us, or 0; then
    /// the record is locked in [`Mode::Update`].
    pub fn delete(
        &mut self,
        r: RecordRef,
        base: Option<NonNull<Version>>,
        tombstone: NonNull<Version>,
        cid: u32,
        xid: u32,
    ) -> u32 {
        // An own insert keeps the id of its inserter: it is pending again if the delete is undone.
        let xid = if base.is_some() { xid } else { 0 };
        if xid != 0 {
            debug_assert!(r.rec.lock.held_by(self.slot).is_some_and(|h| h.mode == Mode::Update));
            r.rec.writer.store(xid, Ordering::SeqCst);
        }
        self.push(Write {
            r,
            kind: WriteKind::Delete,
            version: tombstone,
            base,
            previous: None,
            cid,
            depth: self.depth,
            superseded: false,
            notes: 0,
            entry: 0,
            xid,
        });
        self.writes.len() as u32 - 1
    }

    /// A buffered write by its number.
    pub fn write(&self, n: u32) -> Option<&Write> {
        self.writes.get(n as usize)
    }
    /// Our last write of a record.
    #[inline]
    pub fn last_write(&self, r: RecordRef) -> Option<u32> {
        if self.written & r.mark() == 0 {
            return None;
        }
        if self.writes.len() > FEW {
            let n = self.writes.len() - 1;
            if std::ptr::eq(self.writes[n].r.rec, r.rec) {
                return Some(n as u32);
            }
            return self.latest.find(&self.writes, r);
        }
        self.writes.iter().rposition(|w| std::ptr::eq(w.r.rec, r.rec)).map(|n| n as u32)
    }
    /// What statement `cid` sees of our writes of a record; `None`: everything.
    #[inline]
    pub fn own(&self, r: RecordRef, before: Option<u32>) -> Own {
        let Some(last) = self.last_write(r) else { return Own::Nothing };
        let mut at = Some(last);
        while let Some(n) = at {
            let w = &self.writes[n as usize];
            if before.is_none_or(|b| w.cid < b) {
                return Own::Write(n);
            }
            at = w.previous;
        }
        Own::Later
    }

    /// Undoes the buffered writes of subtransactions at `depth` and deeper, and releases their
    /// locks. Reads, predicates and read locks stay.
    ///
    /// INV-TABLE: from now on others may drop the tables that only these subtransactions have touched, and the
    /// process may have no snapshot. So the pin is ours to the end, unless nothing of any table is left.
    pub fn abort_sub(&mut self, depth: u32) {
        if !self.is_active() {
            return;
        }
        debug_assert!(!self.is_committing());
        self.discard_unplaced();
        self.token = 0;
        self.accessed.clear(); // the lock of their table may go
        let held = self.holds;
        // Entries are removed from indexes, too.
        self.hold();
        while self.writes.last().is_some_and(|w| w.depth >= depth) {
            self.undo_last();
        }
        if self.scans.keep_absent(depth) {
            self.valid = 0; // a writer that registered since may have committed before
        }
        self.release_from(depth);
        self.marks.truncate(depth as usize);
        self.depth = depth.saturating_sub(1).max(1);
        if !held {
            self.let_go_if_unused();
        }
    }

    /// Ends the hold on our pin if nothing refers to a table: snapshots were read, at most, and that is counted now.
    fn let_go_if_unused(&mut self) {
        let owes_nothing = self.writes.is_empty() && self.locks.is_empty() && self.reads.is_empty();
        if self.level == Level::Snapshot && owes_nothing && self.scans.is_empty() {
            self.forget_touched();
            self.holds = false;
            self.e.let_go(self.slot);
        }
    }

    /// The subtransaction at `depth` committed: what it did is its parent's.
    pub fn commit_sub(&mut self, depth: u32) {
        if !self.is_active() {
            return;
        }
        for w in self.writes.iter_mut().rev().take_while(|w| w.depth >= depth) {
            w.depth = depth - 1;
        }
        self.scans.merge_absent(depth);
        self.merge_early(depth);
        self.keep_locks(depth);
        self.marks.truncate(depth as usize);
        self.depth = depth.saturating_sub(1).max(1);
    }

    /// Takes back the last buffered write.
    pub(super) fn undo_last(&mut self) {
        let Some(w) = self.writes.pop() else { return };
        // Notes of a write are among the last ones, but for those that came late; they wait for the end.
        if w.notes as usize == self.notes.len() {
            self.forget_notes(w.notes);
        }
        if let Some(n) = w.previous {
            self.writes[n as usize].superseded = false;
        }
        self.latest.forget(&w, self.writes.len());
        match w.kind {
            WriteKind::Insert => {
                self.kill_insert(&w, self.writes.len() + 1);
                self.forget_entry(&w);
            }
            WriteKind::Delete if w.xid != 0 => w.r.rec.writer.store(0, Ordering::SeqCst),
            WriteKind::Delete | WriteKind::Update => {}
        }
        self.retire_version(w.version);
    }

    /// An own insert that will never be: other indexes' entries may point to it until VACUUM. `left`: see
    /// [`Txn::remove_entry`].
    pub(super) fn kill_insert(&self, w: &Write, left: usize) {
        w.r.rec.writer.store(0, Ordering::SeqCst);
        w.r.rec.set_head(std::ptr::null_mut());
        w.r.table.dead.fetch_add(1, Ordering::Relaxed);
        // INV-GRAVE: from *dead* on VACUUM may free the record.
        let marked = !self.remove_entry(w, left);
        w.r.rec.state.store(crate::record::REC_DEAD, Ordering::Release);
        if !marked {
            w.r.table.bury(w.r.no, w.r.rec);
        }
    }

    /// An own version that nobody will see any more. Room in the queue was reserved.
    pub(super) fn retire_version(&self, v: NonNull<Version>) {
        // SAFETY: ours; readers that reached it are pinned.
        unsafe { v.as_ref() }.set_stamp(crate::csn::Stamp::ABORTED);
        RetireQueue::push(&self.e, self.slot, v.cast(), self.e.now());
    }

    /// Takes back a speculative insert (ON CONFLICT). False if it is not our last write any more:
    /// then it must be deleted instead.
    #[must_use]
    pub fn undo_insert(&mut self, r: RecordRef) -> bool {
        let last = self
            .last_write(r)
            .is_some_and(|n| n as usize + 1 == self.writes.len() && self.writes[n as usize].kind == WriteKind::Insert);
        if last {
            self.undo_last();
        }
        last
    }
}

/// Bytes that a version takes in the region.
pub(super) fn size_of(region: &Region, v: NonNull<Version>) -> u64 {
    // SAFETY: versions are allocated in the region.
    unsafe { region.usable_size(v.cast()) as u64 }
}

/// How much more a version takes than the one that it replaces.
pub(super) fn growth(region: &Region, base: NonNull<Version>, version: NonNull<Version>) -> i64 {
    // SAFETY: both are ours: a new version, and what it replaces, which we have not retired yet.
    let same = unsafe { base.as_ref().len == version.as_ref().len };
    // What is asked for decides on what is given.
    if same {
        return 0;
    }
    size_of(region, version) as i64 - size_of(region, base) as i64
}

/// Change of a partition by a commit.
#[derive(Default, Clone, Copy)]
pub(super) struct Delta {
    pub rows: i64,
    pub versions: i64,
    pub bytes: i64,
}

impl Delta {
    pub(super) fn add(&mut self, d: Delta) {
        self.rows += d.rows;
        self.versions += d.versions;
        self.bytes += d.bytes;
    }

    pub(super) fn apply(self, s: &Stripe) {
        for (c, n) in [(&s.rows, self.rows), (&s.versions, self.versions), (&s.bytes, self.bytes)] {
            if n != 0 {
                c.fetch_add(n as u64, Ordering::Relaxed);
            }
        }
    }
}
