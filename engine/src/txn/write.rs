//! Writes: buffered as new versions, linked at commit.

use super::locking::How;
use super::versions::{settled, settled_in, Committed};
use super::{Level, Own, RecordRef, Txn, Write, WriteKind};
use crate::error::Error;
use crate::faults::{self, Fault};
use crate::lock::{Acquired, Holder, Mode};
use crate::memory::{OutOfMemory, Region};
use crate::open::Seen;
use crate::partition::Stripe;
use crate::platform::{Platform, StopEvent};
use crate::primitive::Ordering;
use crate::protocol::Touch;
use crate::record::{Keys, Record, Successor, Version, VERSION_HEADER, VER_KEYED, VER_TOMBSTONE};
use crate::retire::RetireQueue;
use crate::table::Table;
use std::ptr::NonNull;

impl Txn {
    /// Memory for a version with `len` bytes of payload, marked as ours. The caller fills the
    /// payload, and then hands the version to one of the functions below, or to [`Txn::discard`] if
    /// it cannot. `partition`: the partition of the row. It decides on the memory node if there are
    /// several.
    pub fn new_version(&mut self, partition: u32, len: usize, flags: u32) -> Result<NonNull<Version>, Error> {
        // The keys of a tombstone may be longer together than one version can be.
        let size = u32::try_from(len).map_err(|_| Error::OutOfMemory)?;
        // Each write retires one version at most, published or undone.
        let node = self.e.region.node_of_partition(partition);
        let v = match self.allocate(node, len) {
            Ok(v) => v,
            Err(OutOfMemory) => self.allocate_from_retired(node, len)?,
        };
        // SAFETY: INV-VERSION: fresh memory of that size, which nothing points to yet.
        unsafe { Version::init(v.as_ptr(), self.tag(), size, flags) };
        Ok(v)
    }

    #[cold]
    fn allocate_from_retired(&mut self, node: usize, len: usize) -> Result<NonNull<Version>, OutOfMemory> {
        self.reclaim();
        self.allocate(node, len)
    }

    #[inline]
    fn allocate(&mut self, node: usize, len: usize) -> Result<NonNull<Version>, OutOfMemory> {
        RetireQueue::reserve(&self.e, self.slot, self.writes.owed())?;
        Ok(self.e.region.alloc_on(node, self.slot as usize, VERSION_HEADER + len)?.cast())
    }

    /// Room in the queue of retired memory for `n` entries in all, beyond those of our writes. It
    /// outlives the transaction until the next one ends: the platform retires then what depends on
    /// the outcome.
    pub fn make_room(&mut self, n: u64) -> Result<(), OutOfMemory> {
        self.writes.promise(&self.owner, n)
    }

    /// A tombstone that names where the row went. `key`: the key of the row in the primary index of
    /// its table, which has no other index; `None` if it has no entry there (INV-KEYS).
    #[inline]
    pub fn new_tombstone(&mut self, to: Successor, key: Option<&[u8]>) -> Result<NonNull<Version>, Error> {
        self.new_tombstone_of(to, &Keys::primary(key))
    }

    /// The same of a row with entries in several indexes.
    #[inline]
    pub fn new_tombstone_of(&mut self, to: Successor, keys: &Keys<'_>) -> Result<NonNull<Version>, Error> {
        let (flags, len) = keys.tombstone();
        let v = self.new_version(0, len, flags)?;
        // SAFETY: INV-VERSION: the payload is that large, and the version is not reachable yet.
        unsafe { keys.write(to, Version::payload(v.as_ptr())) };
        Ok(v)
    }

    /// Gives back a version that was not handed over.
    pub fn discard(&mut self, v: NonNull<Version>) {
        if self.writes.unplaced == Some(v) {
            self.writes.unplaced = None;
        }
        // SAFETY: INV-VERSION: the version was never linked, and the caller gives it up.
        unsafe { self.e.region.free(self.slot as usize, v.cast()) };
    }

    /// Before a write into a partition: takes the locks of partitions that its protocols want.
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
        self.acts = true;
        self.lock_record(p, r, mode, how, false)
    }

    /// Gives back the version of an insert out of which the platform has unwound.
    pub(super) fn discard_unplaced(&mut self) {
        if let Some(v) = self.writes.unplaced {
            self.discard(v);
        }
    }

    /// Buffers an insert: reserves a record. `part`: the record's partition in the fields of both
    /// maps. `xid`: the transaction id by which unique checks wait for us, or 0.
    ///
    /// On an error the version is still the caller's. If the platform unwinds, or its process ends
    /// without unwinding while it sleeps, it is freed with the transaction, unless it was discarded
    /// before.
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
        self.writes.unplaced = Some(version);
        let ready = self.before_write(p, at).and_then(|()| p.stop_event(StopEvent::Write));
        self.writes.unplaced = None;
        ready?;
        self.acts = true;
        let (e, slot) = (self.e, self.slot);
        let (no, rec) = match table.take_record(&e, slot, &mut self.run, (part, xid)) {
            Err(Error::OutOfMemory) => {
                self.reclaim();
                table.take_record(&e, slot, &mut self.run, (part, xid))?
            }
            taken => taken?,
        };
        let r = RecordRef { table, no, rec };
        // A free record has no write of ours: what we wrote there was undone, or stays until we
        // end.
        self.writes.add_first(Write::new(r, WriteKind::Insert, version, None, (cid, self.depth), xid));
        self.touch(r.partition()); // so that `publish` finds its counters
        rec.set_head(version.as_ptr());
        self.expose_last();
        Ok(r)
    }

    /// Buffers a write of a record that may have been written before; returns its number.
    #[inline]
    fn push(&mut self, mut w: Write) -> u32 {
        self.acts = true;
        let r = w.r;
        let is_fresh = self.locks.is_fresh(&r.rec.lock);
        w.locks = is_fresh && self.depth <= 1 && self.locks.take_for_write(&r.rec.lock, w.kind);
        let below = self.level != Level::Serializable;
        if cfg!(feature = "faults") && below && w.base.is_some() {
            assert!(r.rec.lock.held_by(self.slot).is_some(), "INV-UNWRITTEN: a write of a row is under its lock");
        }
        let is_first = is_fresh && below && w.base.is_some();
        if let Some(base) = w.base {
            // SAFETY: INV-VERSION: a version of the caller's, not linked yet. INV-RETIRE: the one
            // that it replaces was reached under our pin.
            w.was = unsafe { replaces(w.version, base) };
        }
        let n = if is_first { self.writes.add_first(w) } else { self.writes.add(w) };
        self.touch(r.partition()); // so that `publish` finds its counters
        self.expose_last();
        n
    }

    /// Locks a record in order to write it, as level and protocols want, and returns its newest
    /// committed version. `mode`: [`Mode::NoKeyUpdate`], or [`Mode::Update`] for deletes and moves.
    /// `at_once`: take the record lock now under every protocol.
    ///
    /// The caller compares the version with the one that it has read, and then buffers its write.
    pub fn lock_for_write(
        &mut self,
        p: &dyn Platform,
        r: RecordRef,
        mode: Mode,
        how: How,
        at_once: bool,
    ) -> Result<Option<Committed>, Error> {
        p.stop_event(StopEvent::Write)?;
        if let Some(v) = (!at_once).then(|| self.peek_to_write(r, mode)).flatten() {
            // SAFETY: INV-RETIRE: we are pinned, and have reached the version under that pin.
            return Ok(Some((v, unsafe { v.as_ref() }.stamp().0)));
        }
        self.acts = true;
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
            self.note_newest(newest);
            return Ok(newest);
        }
        if let Some((_, csn)) = newest {
            if csn > self.valid {
                self.revalidate(p)?;
            }
            self.depends.note(csn);
        }
        let seen = newest.map_or(std::ptr::null_mut(), |(v, _)| v.as_ptr());
        if r.rec.head() != seen && self.is_committing_head(r) {
            self.passed_over();
        }
        Ok(newest)
    }

    /// What [`Txn::lock_for_write`] would return of a row that is not to be locked at once, if a
    /// look at it is enough to know that; else `None`. It neither fails nor unwinds, and does not
    /// call the platform.
    ///
    /// INV-PEEK, for writes: the protocols that are followed in the partition want no lock before
    /// the commit that we do not hold. The newest version is settled (INV-SETTLED): it is
    /// committed, and no later than `valid`.
    #[inline]
    pub fn peek_to_write(&mut self, r: RecordRef, mode: Mode) -> Option<NonNull<Version>> {
        if self.level != Level::Serializable || !self.following {
            return None;
        }
        let plain = self.plain();
        let t = self.follow_also(r.partition());
        if t.locks_to_write() && !(t.set.only_locks_reads() && self.holds_to_write(r, mode)) {
            return None;
        }
        let v = settled(r.rec.head(), plain)??;
        self.sample_access(r, true);
        Some(v)
    }

    /// Do we hold the lock that a write of the row wants, where that is all it wants before the
    /// commit? A look for the write has taken it, as a rule.
    #[inline]
    fn holds_to_write(&mut self, r: RecordRef, mode: Mode) -> bool {
        let holds = r.rec.lock.held_by(self.slot).is_some_and(|h| h.mode.covers(mode));
        if holds {
            self.acts = true;
            self.note_write_lock(r, mode, Acquired::Held);
        }
        holds
    }

    /// Memory for a version, as [`Txn::new_version`], if there is some without freeing any first.
    /// It neither fails nor unwinds.
    #[inline]
    pub fn version_at_hand(&mut self, partition: u32, len: usize) -> Option<NonNull<Version>> {
        let v = self.allocate(self.e.region.node_of_partition(partition), len).ok()?;
        // SAFETY: INV-VERSION: fresh memory of that size, which nothing points to yet.
        unsafe { Version::init(v.as_ptr(), self.tag(), len as u32, 0) };
        Some(v)
    }

    /// Buffers an update of columns in no index. `base`: the committed version it replaces, `None`
    /// if the record is an own insert.
    pub fn update(&mut self, r: RecordRef, base: Option<NonNull<Version>>, version: NonNull<Version>, cid: u32) -> u32 {
        self.push(Write::new(r, WriteKind::Update, version, base, (cid, self.depth), 0))
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
        if base.is_none() {
            self.writes.note_undoes();
        }
        if xid != 0 {
            debug_assert!(r.rec.lock.held_by(self.slot).is_some_and(|h| h.mode == Mode::Update));
            r.rec.writer.store(xid, Ordering::SeqCst);
        }
        self.push(Write::new(r, WriteKind::Delete, tombstone, base, (cid, self.depth), xid))
    }

    /// The newest version of a record, if a look tells that it is a committed row which a snapshot
    /// sees.
    #[inline]
    pub fn newest_seen(&self, r: RecordRef, seen: &Seen<'_>) -> Option<NonNull<Version>> {
        settled_in(r.rec.head(), seen)?.0
    }

    /// Deletes a row, if a look, a lock that is free and memory at hand are enough for it: what
    /// [`Txn::lock_for_write`], [`Txn::new_tombstone`] without a successor, and [`Txn::delete`] do
    /// together. It neither fails nor unwinds, and does not call the platform. `old`: what
    /// [`Txn::newest_seen`] has told by the same snapshot. `key`: up to eight bytes, and how many,
    /// if the row has an entry in the primary index. It has none in other indexes. Returns the
    /// number of the write; `None`: nothing is deleted, and the row may be locked.
    ///
    /// INV-WITHIN: the lock and its write are of the top transaction, and nothing comes in between.
    /// INV-UNWRITTEN: the lock was free, and the newest version is a committed one. So it is the
    /// first write of the row.
    #[inline]
    pub fn delete_seen(
        &mut self,
        r: RecordRef,
        (seen, old): (&Seen<'_>, NonNull<Version>),
        key: Option<([u8; 8], usize)>,
        cid: u32,
        xid: u32,
    ) -> Option<u32> {
        if self.level == Level::Serializable || self.depth > 1 || !self.following {
            return None;
        }
        let me = Holder { slot: self.slot, mode: Mode::Update, tag: self.locks.tag_at_hand()? };
        let t = self.follow_also(r.partition()); // so that `publish` finds its counters, too
        if t.set.locks_partitions() && !t.locked || !r.rec.lock.take_free(me) {
            return None;
        }
        self.acts = true;
        self.note_write_lock(r, Mode::Update, Acquired::New);
        // Another transaction may have replaced the row before it was locked.
        let head = if faults::on(Fault::DeletesUnlooked) { old.as_ptr() } else { r.rec.head() };
        let newest = settled_in(head, seen).filter(|v| v.0 == Some(old));
        let ready = newest.and_then(|(_, csn)| Some((csn, self.tombstone_at_hand(key)?)));
        let Some((csn, tombstone)) = ready else {
            self.locks.add(&r.rec.lock, Some(r), Mode::Update, 0, Acquired::New);
            return None;
        };
        self.sample_access(r, true);
        self.note_newest(Some((old, csn)));
        if xid != 0 {
            // A unique check that does not see it yet comes before the delete.
            r.rec.writer.store(xid, Ordering::Release);
        }
        self.locks.note_within();
        // SAFETY: as in `push`.
        let was = unsafe { replaces(tombstone, old) };
        let w = Write::new(r, WriteKind::Delete, tombstone, Some(old), (cid, self.depth), xid);
        let n = self.writes.add_first(Write { locks: true, was, ..w });
        self.expose_last();
        Some(n)
    }

    /// A tombstone without a successor, if there is memory for it. `key`: as for
    /// [`Txn::delete_seen`].
    #[inline]
    fn tombstone_at_hand(&mut self, key: Option<([u8; 8], usize)>) -> Option<NonNull<Version>> {
        let before = std::mem::size_of::<Successor>();
        let (bytes, len) = key.unwrap_or_default();
        assert!(len <= bytes.len());
        let room = if key.is_some() { before + bytes.len() } else { before };
        let v = self.allocate(self.e.region.node_of_partition(0), room).ok()?;
        let flags = if key.is_some() { VER_TOMBSTONE | VER_KEYED } else { VER_TOMBSTONE };
        let payload = Version::payload(v.as_ptr());
        // SAFETY: INV-VERSION: fresh memory, which nothing points to yet. It has room for a
        // successor, and behind it for all of `bytes` if there is a key.
        unsafe {
            Version::init(v.as_ptr(), self.tag(), (before + len) as u32, flags);
            payload.cast::<Successor>().write_unaligned(Successor { record: 0 });
            if key.is_some() {
                payload.add(before).cast::<[u8; 8]>().write_unaligned(bytes);
            }
        }
        Some(v)
    }

    /// A buffered write by its number.
    pub fn write(&self, n: u32) -> Option<Write> {
        self.writes.get(n as usize)
    }
    /// Our last write of a record.
    #[inline]
    pub fn last_write(&self, r: RecordRef) -> Option<u32> {
        if self.is_surely_unwritten(r.table, r.no, r.rec) {
            return None;
        }
        self.writes.last_of(r)
    }
    #[inline]
    pub(super) fn is_surely_unwritten(&self, table: &Table, no: u64, rec: &Record) -> bool {
        self.level != Level::Serializable && self.writes.is_surely_unwritten(self.slot, table, no, rec)
    }
    /// What statement `before` sees of our writes of a record; `None`: a statement after all.
    #[inline]
    pub fn own(&self, r: RecordRef, before: Option<u32>) -> Own {
        if self.is_surely_unwritten(r.table, r.no, r.rec) {
            return Own::Nothing;
        }
        self.writes.own(r, before)
    }

    /// Undoes the buffered writes of subtransactions at `depth` and deeper, and releases their
    /// locks. Reads, predicates and read locks stay.
    ///
    /// INV-TABLE: from now on other transactions may drop the tables that only these
    /// subtransactions have touched, and the process may have no snapshot. So we keep our pin to
    /// the end, unless nothing refers to a table any more.
    pub fn abort_sub(&mut self, depth: u32) {
        if !self.is_active() {
            return;
        }
        debug_assert!(!self.is_committing());
        self.discard_unplaced();
        self.writes.end_token();
        self.run.give_back(); // INV-RUN: the lock of its table may go
        self.telemetry.forget_accessed(); // the lock of their table may go
        let held = self.holds;
        // Entries are removed from indexes, too.
        self.hold();
        while self.writes.is_last_in(depth) {
            self.undo_last();
        }
        if self.scans.keep_absent(depth) {
            self.valid = 0; // a writer that registered since may have committed before
        }
        self.release_from(depth);
        self.depth = depth.saturating_sub(1).max(1);
        if held || !self.let_go_if_unused() {
            self.keeps_tables = true;
        }
    }

    /// Ends the hold on our pin if nothing refers to a table. Snapshots were read at most, and
    /// these reads are counted now. Returns whether it is so.
    fn let_go_if_unused(&mut self) -> bool {
        let owes_nothing = self.writes.is_empty() && self.locks.is_empty() && self.reads.is_empty();
        if self.level == Level::Snapshot && owes_nothing && self.scans.is_empty() {
            self.forget_touched();
            self.holds = false;
            self.e.let_go(self.slot);
            return true;
        }
        false
    }

    /// The subtransaction at `depth` committed: what it did is its parent's.
    pub fn commit_sub(&mut self, depth: u32) {
        if !self.is_active() {
            return;
        }
        self.writes.merge(depth);
        self.scans.merge_absent(depth);
        self.locks.merge(depth);
        self.depth = depth.saturating_sub(1).max(1);
    }

    /// Takes back the last buffered write, which is of a savepoint, or an insert: no lock lies
    /// within it (INV-WITHIN), so this allocates nothing.
    fn undo_last(&mut self) {
        let Some(w) = self.writes.undo_last(&self.owner) else { return };
        debug_assert!(!w.locks);
        self.registrations.forget_notes(w.notes);
    }

    /// Takes back all writes, but for the locks within them: allocates nothing.
    pub(super) fn undo_all(&mut self) {
        for n in (0..self.writes.len()).rev() {
            let w = self.writes.undo(&self.owner, n);
            self.registrations.forget_notes(w.notes);
        }
    }

    /// Takes back a speculative insert (ON CONFLICT). False if it is not our last write any more:
    /// then it must be deleted instead.
    #[must_use]
    pub fn undo_insert(&mut self, r: RecordRef) -> bool {
        let last = self.last_write(r).is_some_and(|n| {
            n as usize + 1 == self.writes.len() && self.writes.at(n as usize).kind == WriteKind::Insert
        });
        if last {
            self.undo_last();
        }
        last
    }
}

/// Bytes that a version takes in the region.
#[inline]
pub(super) fn size_of(region: &Region, v: NonNull<Version>) -> u64 {
    // SAFETY: INV-VERSION: versions are allocated in the region, and this one is not freed yet.
    unsafe { region.usable_size(v.cast()) as u64 }
}

/// A version is to replace a committed one, which is the next older one from now on. Returns
/// [`Write::was`].
///
/// # Safety
/// The version is ours and not linked, and the other one was reached under our pin.
#[inline(always)]
unsafe fn replaces(version: NonNull<Version>, base: NonNull<Version>) -> u8 {
    // SAFETY: contract of this function.
    let (version, base) = unsafe { (version.as_ref(), base.as_ref()) };
    version.set_older(std::ptr::from_ref(base).cast_mut());
    Region::code_of_object(VERSION_HEADER + base.len as usize)
}

/// How much more the version of a write takes than the one that it replaces, which need not be
/// looked at as a rule.
#[inline]
pub(super) fn growth(w: &Write, base: NonNull<Version>) -> i64 {
    // The length that was asked for decides on the size.
    let size = |len: u32| Region::size_of_object(VERSION_HEADER + len as usize) as i64;
    // SAFETY: INV-RETIRE: a new version of ours, and the one that it replaces, which we have not
    // retired yet.
    let now = size(unsafe { w.version.as_ref() }.len);
    // SAFETY: as above.
    now - if w.was == 0 { size(unsafe { base.as_ref() }.len) } else { Region::size_of_code(w.was) as i64 }
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
