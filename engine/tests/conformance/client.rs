//! A client: statements against the table, recorded for the checker.

use crate::spans::encode;
use crate::world::{checked, partition_of, Jitter, Rng, Row, World, SHARED, WIDTH};
use mixedcc_engine::checker::{self, Log, Payload, Predicate, Savepoint, Seen, WriteKind};
use mixedcc_engine::csn::Csn;
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::lock::Mode;
use mixedcc_engine::open;
use mixedcc_engine::platform::{Platform, StopEvent};
use mixedcc_engine::range::Columns;
use mixedcc_engine::record::{Successor, Version};
use mixedcc_engine::txn::{How, Own, ScanId, WriteKind as Kind};
use mixedcc_engine::{Error, Level, RecordRef, Txn};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::time::Duration;

/// How a transaction of the test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    Serializable,
    ReadCommitted,
    RepeatableRead,
    /// Serializable read only: a snapshot.
    ReadOnly,
}

impl Mood {
    fn level(self) -> Level {
        if self == Mood::Serializable {
            Level::Serializable
        } else {
            Level::Snapshot
        }
    }
    fn checked(self) -> checker::Level {
        match self {
            Mood::Serializable => checker::Level::Serializable,
            Mood::ReadCommitted => checker::Level::ReadCommitted,
            Mood::RepeatableRead => checker::Level::Snapshot,
            Mood::ReadOnly => checker::Level::SerializableReadOnly,
        }
    }
}

/// A row that a statement found.
#[derive(Clone, Copy)]
pub struct Found {
    pub r: RecordRef,
    pub row: Row,
    /// The committed version, if it is not our own.
    version: Option<NonNull<Version>>,
}

/// Prepared transactions that another thread finishes.
#[derive(Default)]
pub struct Pool {
    /// Idle slots.
    pub spare: Mutex<Vec<u16>>,
    /// Slot, log, and whether it will commit.
    left: Mutex<Vec<(u16, Log, bool)>>,
}

impl Pool {
    /// Finishes one of them; false: there is none.
    pub fn finish(&self, w: &World) -> bool {
        let Some((slot, log, commits)) = self.left.lock().unwrap().pop() else { return false };
        let p = Jitter::new(w, slot, 1);
        assert!(w.e.kept_slots().any(|s| s == slot));
        let mut t = Txn::take_over(w.e, slot).expect("no other thread has it");
        assert!(t.is_prepared() && Txn::take_over(w.e, slot).is_none());
        if commits {
            t.decide_prepared();
            let csn = Some(t.csn()).filter(|&c| c != 0);
            t.publish(&p);
            log.commit(csn);
        } else {
            t.abort();
            log.abort();
        }
        w.e.region.flush_slot(slot as usize);
        self.spare.lock().unwrap().push(slot);
        true
    }
}

/// A session: one thread, one slot.
pub struct Client<'w> {
    pub w: &'w World,
    pub t: Txn,
    pub p: Jitter,
    session: checker::Session,
    log: Option<Log>,
    pub mood: Mood,
    snapshot: Csn,
    depth: u32,
    open: Vec<(Savepoint, u32)>,
    cid: u32,
    /// A fault is on: what is wrong is the checker's to find.
    pub faulty: bool,
    /// See [`crate::load::Load::keyed`].
    pub keyed: bool,
    /// The columns that its updates change.
    pub changes: Columns,
    /// Percent of its commits that are held: they wait between *committed* and *done*.
    pub holds: u64,
    /// Do these give up locks before they are done?
    pub releases: bool,
    /// Percent of its commits that are prepared first, and finished some time after.
    pub prepares: u64,
    /// Where it leaves half of what it has prepared, with its slot.
    pub pool: Option<&'w Pool>,
    /// Percent of the statements of its snapshots before which it has rested (INV-POINT).
    pub rests: u64,
    /// The slot that it had first.
    pub id: u16,
    /// Has the transaction inserted a key that only this thread inserts, and that it does not
    /// check?
    unchecked: bool,
    holding: Rng,
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        self.t.abort(); // a test that fails must not leave the other threads waiting
    }
}

fn describe(f: &Found) -> String {
    // SAFETY: found under our pin, or our own.
    let stamp = f.version.map(|v| unsafe { v.as_ref() }.stamp());
    format!("record {} {:?} {stamp:?}", f.r.no, f.row)
}

fn gone(r: RecordRef) -> Error {
    Error::Abort { reason: AbortReason::WriteConflict, table: r.table.id, partition: r.touch().no }
}

impl<'w> Client<'w> {
    pub fn new(w: &'w World, slot: u16, session: checker::Session, seed: u64) -> Client<'w> {
        Client {
            w,
            t: Txn::new(w.e, slot),
            p: Jitter::new(w, slot, seed),
            session,
            log: None,
            mood: Mood::Serializable,
            snapshot: 0,
            depth: 1,
            open: Vec::new(),
            cid: 0,
            faulty: false,
            keyed: true,
            changes: Columns::ALL,
            holds: 0,
            releases: false,
            prepares: 0,
            pool: None,
            rests: 0,
            id: slot,
            unchecked: false,
            holding: Rng::new(seed),
        }
    }

    pub fn begin(&mut self, mood: Mood) {
        self.log = Some(self.session.begin(mood.checked()));
        self.mood = mood;
        self.depth = 1;
        self.unchecked = false;
        self.open.clear();
        self.p.threads.tag.set(0);
        self.t.begin(mood.level(), self.w.ident());
        if self.releases {
            self.t.release_before_done();
        }
        self.statement();
    }

    pub fn log(&mut self) -> &mut Log {
        self.log.as_mut().expect("a transaction runs")
    }

    /// A new statement: at read committed, a new snapshot.
    pub fn statement(&mut self) {
        self.rest();
        self.cid += 1;
        self.log().statement();
        self.t.next_step();
        if self.mood == Mood::ReadCommitted || self.snapshot == 0 {
            // A prefix, as of the other levels of the checker.
            self.snapshot = self.t.take_prefix(&mut Vec::new()).0;
        }
    }

    /// The clock of its snapshot.
    pub fn snapshot(&self) -> Csn {
        self.snapshot
    }

    /// Rests between two statements that read by one snapshot, perhaps, and wakes again.
    fn rest(&mut self) {
        let has_one = matches!(self.mood, Mood::RepeatableRead | Mood::ReadOnly) && self.snapshot != 0;
        if has_one && self.holding.percent(self.rests) && self.t.take_rest(&open::Seen::prefix(self.snapshot)) {
            std::thread::sleep(Duration::from_micros(self.holding.below(100)));
            self.t.wake();
        }
    }

    pub fn commit(&mut self) -> Result<(), Error> {
        if self.holding.percent(self.prepares) {
            self.prepare()?;
            if !self.leave(true) {
                self.commit_prepared();
            }
            return Ok(());
        }
        let csn = Cell::new(None);
        let hold = self.holding.percent(self.holds);
        self.t.prepare_locks(&self.p)?;
        let held = self.t.depends_on_open() || hold;
        self.t.prepare_decide(&self.p, held, &|_, c| csn.set(Some(c)))?;
        self.t.let_go_early();
        if hold && !self.t.depends_on_open() && self.holding.percent(50) {
            // Another authority decides, after some time.
            self.t.rest_undecided();
            std::thread::sleep(Duration::from_micros(self.holding.below(300)));
        }
        self.p.jitter();
        if hold {
            self.publish_late();
        } else {
            self.t.publish(&self.p);
        }
        self.snapshot = 0;
        self.log.take().expect("a transaction runs").commit(csn.get());
        Ok(())
    }

    /// The first half of a two-phase commit, and a pause.
    pub fn prepare(&mut self) -> Result<(), Error> {
        self.t.prepare_ahead(&self.p)?;
        std::thread::sleep(Duration::from_micros(self.holding.below(200)));
        Ok(())
    }

    /// The second half.
    pub fn commit_prepared(&mut self) {
        self.t.decide_prepared();
        self.p.jitter();
        let csn = Some(self.t.csn()).filter(|&c| c != 0);
        self.t.publish(&self.p);
        self.snapshot = 0;
        self.log.take().expect("a transaction runs").commit(csn);
    }

    /// Leaves its prepared transaction to the pool, perhaps; takes another slot then.
    pub fn leave(&mut self, commits: bool) -> bool {
        let leaves = self.holding.percent(50) && !self.unchecked;
        let Some(pool) = self.pool.filter(|_| leaves) else { return false };
        let Some(to) = pool.spare.lock().unwrap().pop() else { return false };
        let slot = self.t.slot;
        self.t.hand_over(to);
        self.p.threads.slot = to;
        self.snapshot = 0;
        self.p.threads.tag.set(0);
        let mut log = self.log.take().expect("a transaction runs");
        log.leave_session();
        pool.left.lock().unwrap().push((slot, log, commits));
        true
    }

    /// Makes the commit visible, and waits until it is done: some time, and for all that it depends
    /// on.
    fn publish_late(&mut self) {
        self.t.mark_committed();
        self.t.settle();
        self.t.rest();
        self.t.release_written(&self.p);
        std::thread::sleep(Duration::from_micros(self.holding.below(300)));
        while self.t.depends_on_open() {
            std::thread::yield_now();
        }
        self.t.done();
        self.p.jitter();
        self.t.finish(&self.p);
    }

    pub fn abort(&mut self) {
        self.t.abort();
        self.snapshot = 0;
        self.p.threads.tag.set(0);
        if let Some(l) = self.log.take() {
            l.abort();
        }
    }

    pub fn savepoint(&mut self) {
        self.depth += 1;
        let tag = self.p.threads.tag.replace(self.w.tag());
        let sp = self.log().savepoint();
        self.open.push((sp, tag));
        self.t.set_depth(self.depth);
    }

    /// Ends the innermost savepoint, if there is one.
    pub fn end_savepoint(&mut self, keep: bool) {
        let Some((sp, tag)) = self.open.pop() else { return };
        if keep {
            self.t.commit_sub(self.depth);
        } else {
            self.t.keep_scanned(&self.p, self.depth);
            self.t.abort_sub(self.depth);
            self.log().rollback_to(sp);
        }
        self.p.threads.tag.set(tag);
        self.depth -= 1;
        self.t.set_depth(self.depth);
    }

    /// What we see of a record: our own row, a committed one, or none.
    fn look(&mut self, r: RecordRef, for_write: bool) -> Result<Option<Found>, Error> {
        self.look_in(r, for_write, None)
    }

    /// The same of a record that a scan found.
    pub fn look_scanned(&mut self, r: RecordRef, for_write: bool, scan: ScanId) -> Result<Option<Found>, Error> {
        self.look_in(r, for_write, Some(scan))
    }

    fn look_in(&mut self, r: RecordRef, for_write: bool, scan: Option<ScanId>) -> Result<Option<Found>, Error> {
        match self.t.own(r, None) {
            Own::Write(n) => {
                let w = self.t.write(n).expect("an own write");
                if w.kind == Kind::Delete {
                    return Ok(None);
                }
                return Ok(Some(Found { r, row: Row::read(w.version), version: None }));
            }
            Own::Later => unreachable!("every write is visible to the next statement"),
            Own::Nothing => {}
        }
        self.p.jitter();
        let v = match (self.mood, scan) {
            (Mood::Serializable, Some(id)) => self.t.read_scanned(&self.p, r, for_write, id)?,
            (Mood::Serializable, None) => self.t.read(&self.p, r, for_write)?,
            _ => self.t.read_snapshot(&self.p, r, open::Seen::prefix(self.snapshot))?,
        };
        Ok(v.map(|v| Found { r, row: Row::read(v), version: Some(v) }))
    }

    fn row_with(&mut self, key: i64, for_write: bool) -> Result<Option<Found>, Error> {
        let mut found = None;
        for r in self.w.records(key) {
            if let Some(f) = self.look(r, for_write)?.filter(|f| f.row.key == key) {
                if let (Some(g), false) = (&found, self.faulty) {
                    let (mood, id) = (self.mood, self.log().id());
                    panic!("two rows with key {key} for {mood:?} {id}: {} and {}", describe(g), describe(&f));
                }
                found = Some(f);
            }
        }
        Ok(found)
    }

    fn find(&mut self, key: i64, for_write: bool) -> Result<Option<Found>, Error> {
        let at = self.w.touch(partition_of(key));
        let start = match self.mood {
            Mood::Serializable => Some(self.t.before_lookup(&self.p, at)?),
            _ => None,
        };
        // A look-up is protected by the key's range, if there are any.
        let ranges =
            self.w.index_ranges((self.cid % 2) as usize).filter(|_| self.keyed && start.is_some() && self.cid % 5 != 0);
        let key_there = encode((self.cid % 2) as usize, key);
        // Its position is taken before it, or after it: then it is made again if somebody has
        // inserted meanwhile.
        let late = self.cid % 3 == 0;
        let mut seen = None;
        if let Some(r) = ranges.filter(|_| !late) {
            seen = Some(self.t.look_position(&self.p, at, r, &key_there)?);
        }
        let mut found = self.row_with(key, for_write)?;
        if let (Some(r), Some(start)) = (ranges.filter(|_| late && found.is_none()), start) {
            self.p.stop_event(StopEvent::Read)?; // others may insert the row now
            seen = Some(self.t.look_position(&self.p, at, r, &key_there)?);
            if !at.partition().ring.list().is_quiet_since(start) {
                found = self.row_with(key, for_write)?;
            }
        }
        match (&found, start, seen) {
            (None, _, Some(seen)) => self.t.add_point_predicate(&self.p, &seen, &key_there),
            (None, Some(start), None) => self.t.add_predicate(at, start),
            _ => {}
        }
        if found.is_none() && self.t.looks_again(&self.p)? {
            found = self.row_with(key, for_write)?;
        }
        Ok(found)
    }

    /// SELECT by key.
    pub fn get(&mut self, key: i64) -> Result<Option<Row>, Error> {
        self.statement();
        let found = self.find(key, false)?;
        let seen = found.map_or(Seen::Absent, |f| f.row.seen());
        self.log().read(checked(key), seen);
        Ok(found.map(|f| f.row))
    }

    /// SELECT of a partition's shared keys.
    pub fn scan(&mut self, partition: u32) -> Result<Vec<Row>, Error> {
        self.scan_keys(partition, WIDTH)
    }

    /// The same of some of the keys, with a condition.
    pub fn scan_some(&mut self, partition: u32) -> Result<Vec<Row>, Error> {
        self.scan_keys(partition, 1 + self.cid as i64 % SHARED)
    }

    fn scan_keys(&mut self, partition: u32, keys: i64) -> Result<Vec<Row>, Error> {
        self.statement();
        let low = partition as i64 * WIDTH;
        let high = low + keys - 1;
        let at = self.w.touch(partition);
        match self.mood {
            Mood::Serializable if keys == WIDTH => self.t.scan(&self.p, at)?,
            Mood::Serializable => self.t.scan_where(&self.p, at, high as u32 + 1)?,
            _ => {}
        }
        let mut rows = Vec::new();
        for (key, r) in self.w.scan(low, high) {
            if let Some(f) = self.look(r, false)?.filter(|f| f.row.key == key) {
                rows.push(f.row);
            }
        }
        let seen = rows.iter().map(|r| (checked(r.key), r.seen())).collect();
        self.log().scan(Predicate::range(0, low, high), seen);
        Ok(rows)
    }

    /// Locks a row that was found and returns the version to replace; `None` if it is gone (read
    /// committed only). The row may be newer than the one found.
    fn lock(&mut self, f: &mut Found, mode: Mode, at_once: bool) -> Result<Option<Option<NonNull<Version>>>, Error> {
        if let Some(n) = self.t.last_write(f.r) {
            let w = self.t.write(n).expect("an own write");
            return Ok((w.kind != Kind::Delete).then_some(w.base));
        }
        let how = match self.mood {
            Mood::Serializable => How::Policy(f.r.partition().policy()),
            _ => How::Wait,
        };
        let Some((newest, csn)) = self.t.lock_for_write(&self.p, f.r, mode, how, at_once)? else {
            return Err(gone(f.r));
        };
        if Some(newest) == f.version {
            return Ok(Some(Some(newest)));
        }
        match self.mood {
            Mood::ReadCommitted => {
                // SAFETY: newest under our pin.
                if unsafe { newest.as_ref() }.is_tombstone() {
                    return Ok(None);
                }
                f.row = Row::read(newest);
                Ok(Some(Some(newest)))
            }
            Mood::RepeatableRead => {
                assert!(csn > self.snapshot || self.faulty, "another version, but not a later one");
                Err(gone(f.r))
            }
            _ => Err(gone(f.r)),
        }
    }

    fn own_row(&mut self, key: i64, kind: WriteKind, value: i64) -> Row {
        let txn = self.log().id();
        let nth = self.log().write(checked(key), kind, Payload::Opaque) as u64;
        Row { key, txn, nth, value }
    }

    /// UPDATE by key; false if there is no row.
    pub fn update(&mut self, key: i64, at_once: bool) -> Result<bool, Error> {
        self.add(key, 1, at_once)
    }

    /// UPDATE ... SET value = value + delta.
    pub fn add(&mut self, key: i64, delta: i64, at_once: bool) -> Result<bool, Error> {
        self.statement();
        let found = self.find(key, true)?;
        if self.mood != Mood::ReadCommitted {
            let seen = found.map_or(Seen::Absent, |f| f.row.seen());
            self.log().read(checked(key), seen);
        }
        let Some(mut f) = found else { return Ok(false) };
        let Some(base) = self.lock(&mut f, Mode::NoKeyUpdate, at_once)? else { return Ok(false) };
        let row = self.own_row(key, WriteKind::Update, f.row.value + delta);
        let v = self.w.version(&mut self.t, row)?;
        let n = self.t.update(f.r, base, v, self.cid);
        self.t.note_changed(n, self.changes);
        self.w.note(&mut self.t, &self.p, n, key)?;
        Ok(true)
    }

    /// DELETE by key, or the first half of a move to another record.
    pub fn delete(&mut self, key: i64, at_once: bool, successor: bool) -> Result<bool, Error> {
        self.statement();
        let found = self.find(key, true)?;
        if self.mood != Mood::ReadCommitted {
            let seen = found.map_or(Seen::Absent, |f| f.row.seen());
            self.log().read(checked(key), seen);
        }
        let Some(mut f) = found else { return Ok(false) };
        if let Some(n) = if successor { None } else { self.delete_seen(&f)? } {
            self.w.note(&mut self.t, &self.p, n, key)?;
            self.own_row(key, WriteKind::Delete, 0);
            return Ok(true);
        }
        let Some(base) = self.lock(&mut f, Mode::Update, at_once)? else { return Ok(false) };
        let tomb = self.t.new_tombstone(Successor { record: if successor { u64::MAX } else { 0 } }, None)?;
        let held = f.r.rec.lock.held_by(self.t.slot).is_some_and(|h| h.mode == Mode::Update);
        let xid = if held { self.t.slot as u32 + 1 } else { 0 };
        let n = self.t.delete(f.r, base, tomb, self.cid, xid);
        self.w.note(&mut self.t, &self.p, n, key)?;
        self.own_row(key, WriteKind::Delete, 0);
        Ok(true)
    }

    /// Deletes a row by a look, if that is enough.
    fn delete_seen(&mut self, f: &Found) -> Result<Option<u32>, Error> {
        if self.mood == Mood::Serializable || f.version.is_none() || self.holding.percent(30) {
            return Ok(None);
        }
        self.t.begin_following(&self.p)?;
        let seen = open::Seen::prefix(self.snapshot);
        let Some(old) = self.t.newest_seen(f.r, &seen) else { return Ok(None) };
        self.p.jitter();
        let done = self.t.delete_seen(f.r, (&seen, old), None, self.cid, self.t.slot as u32 + 1);
        assert!(done.is_none() || f.version == Some(old) || self.faulty, "a snapshot has seen two versions");
        Ok(done)
    }

    /// INSERT; false if the key exists.
    pub fn insert(&mut self, key: i64) -> Result<bool, Error> {
        self.statement();
        let found = self.find(key, false)?;
        if self.mood == Mood::Serializable {
            let seen = found.map_or(Seen::Absent, |f| f.row.seen());
            self.log().read(checked(key), seen);
        }
        if found.is_some() {
            return Ok(false);
        }
        self.unchecked |= self.mood != Mood::Serializable;
        let row = self.own_row(key, WriteKind::Insert, 0);
        self.w.insert(&mut self.t, &self.p, row, self.cid)?;
        Ok(true)
    }

    /// UPDATE of the key: a tombstone and a new record.
    pub fn relocate(&mut self, from: i64, to: i64, at_once: bool) -> Result<bool, Error> {
        if self.get(to)?.is_some() || !self.delete(from, at_once, true)? {
            return Ok(false);
        }
        self.insert(to)
    }

    /// A key below `WIDTH` that no other client of this test inserts.
    pub fn private_key(&self, partition: u32, i: i64) -> i64 {
        partition as i64 * WIDTH + SHARED + (self.id as i64) * 4 + i
    }
}
