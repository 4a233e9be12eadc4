//! Looks ahead of sequential scans find what a read of each record finds (INV-GLANCE).

use crate::world::{Jitter, Rng, World};
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::lock::Mode;
use mixedcc_engine::open::Seen;
use mixedcc_engine::record::{Successor, Version};
use mixedcc_engine::txn::{Found, How, Look, WriteKind};
use mixedcc_engine::{Level, Policy, Protocol, ProtocolSet, RecordRef, Table, Txn};
use std::ptr::NonNull;

/// Records of the table at the start: several runs, and more than one chunk.
const ROWS: u64 = 600;
/// At most so many are looked at together.
const RUN: usize = 64;

/// A table of its own in a world, with so many partitions.
struct Rows<'w> {
    w: &'w World,
    table: &'static Table,
    partitions: u64,
}

/// A transaction of a slot.
struct Session {
    t: Txn,
    p: Jitter,
}

impl Rows<'_> {
    fn new(w: &World, partitions: u32) -> Rows<'_> {
        let set = ProtocolSet::of(Protocol::Occ);
        let map = Table::new_map(&w.e, 0, partitions, 0, b"", set, Policy::Wait).expect("a map");
        let table = Table::create(&w.e, 0, [9, 9, 9, partitions], map).expect("a table");
        let rows = Rows { w, table, partitions: partitions as u64 };
        let mut s = rows.begin(0);
        (0..ROWS).for_each(|n| rows.insert(&mut s, n));
        rows.commit(s);
        rows
    }

    fn begin(&self, slot: u16) -> Session {
        let mut s = Session { t: Txn::new(self.w.e, slot), p: Jitter::new(self.w, slot, 1) };
        s.t.begin(Level::Snapshot, self.w.ident());
        s
    }

    fn commit(&self, mut s: Session) {
        s.t.prepare(&s.p, &|_, _| {}).expect("nobody is in the way");
        s.t.publish(&s.p);
    }

    fn insert(&self, s: &mut Session, n: u64) {
        let v = s.t.new_version(0, 8, 0).expect("memory");
        s.t.insert(&s.p, self.table, [(n % self.partitions) as u16, 0], v, 1, 0).expect("an insert");
    }

    /// Updates or deletes a row, if there is one that the transaction has not written.
    fn write(&self, s: &mut Session, no: u64, deletes: bool) {
        let r = self.record(no);
        if s.t.last_write(r).is_some() {
            return;
        }
        let locked = s.t.lock_for_write(&s.p, r, Mode::Update, How::Wait, false).expect("nobody is in the way");
        // SAFETY: the newest version, under our pin.
        let Some((base, _)) = locked.filter(|(v, _)| !unsafe { v.as_ref() }.is_tombstone()) else { return };
        if deletes {
            let tomb = s.t.new_tombstone(Successor { record: 0 }, None).expect("memory");
            s.t.delete(r, Some(base), tomb, 1, 0);
        } else {
            let v = s.t.new_version(0, 8, 0).expect("memory");
            s.t.update(r, Some(base), v, 1);
        }
    }

    fn write_some(&self, s: &mut Session, rng: &mut Rng, n: u64) {
        for _ in 0..n {
            match rng.below(10) {
                0 => self.insert(s, rng.below(8)),
                kind => self.write(s, rng.below(self.table.len()), kind < 3),
            }
        }
    }

    fn record(&self, no: u64) -> RecordRef {
        RecordRef::find(self.table, no).expect("a record")
    }

    /// What a snapshot sees of one record.
    fn read(&self, s: &mut Session, no: u64, seen: Seen<'_>) -> Option<NonNull<Version>> {
        let r = self.record(no);
        match s.t.last_write(r).and_then(|n| s.t.write(n)) {
            Some(w) => Some(w.version).filter(|_| w.kind != WriteKind::Delete),
            None => s.t.read_snapshot(&s.p, r, seen).expect("a read"),
        }
    }

    fn one_by_one(&self, s: &mut Session, len: u64, seen: Seen<'_>) -> Vec<Found> {
        let mut all = Vec::new();
        for no in 0..len {
            all.extend(self.read(s, no, seen).map(|v| Found { no, version: v.as_ptr() }));
        }
        all
    }

    /// The same with looks ahead, and how many records needed more than that.
    fn ahead(&self, s: &mut Session, len: u64, seen: Seen<'_>) -> (Vec<Found>, u64) {
        let (mut all, mut slow, mut next) = (Vec::new(), 0, 0);
        while next < len {
            let mut to = [Found { no: 0, version: std::ptr::null_mut() }; RUN];
            let looked = s.t.look_ahead(self.table, (next, len), Look::Snapshot(seen), &mut to);
            all.extend_from_slice(&to[..looked.rows]);
            if looked.next == next {
                all.extend(self.read(s, next, seen).map(|v| Found { no: next, version: v.as_ptr() }));
                (slow, next) = (slow + 1, next + 1);
            } else {
                next = looked.next;
            }
        }
        (all, slow)
    }
}

/// Random writes before, beside and after snapshots. True: looks ahead found what reads find.
fn agrees(partitions: u32, seed: u64) -> bool {
    let w = World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 4);
    let rows = Rows::new(&w, partitions);
    let mut rng = Rng::new(seed);
    let mut good = true;
    for round in 0..20 {
        let mut before = rows.begin(0);
        rows.write_some(&mut before, &mut rng, 40);
        rows.commit(before);
        let mut reader = rows.begin(1);
        let seen = Seen::prefix(reader.t.take_seen(&mut Vec::new()).0);
        let len = rows.table.len();
        // One goes on, and one commits after the snapshot.
        let mut beside = rows.begin(2);
        rows.write_some(&mut beside, &mut rng, 5 * (round % 3));
        let mut after = rows.begin(3);
        let free: Vec<u64> = (0..len).filter(|no| rows.record(*no).rec.lock.is_free()).collect();
        for _ in 0..5 * (round % 4) {
            let no = free[rng.below(free.len() as u64) as usize];
            rows.write(&mut after, no, rng.percent(30));
        }
        rows.commit(after);
        if round % 2 == 1 {
            let free: Vec<u64> = (0..len).filter(|no| rows.record(*no).rec.lock.is_free()).collect();
            for _ in 0..10 {
                let no = free[rng.below(free.len() as u64) as usize];
                if rows.read(&mut reader, no, seen).map(|v| v.as_ptr()) == Some(rows.record(no).rec.head()) {
                    rows.write(&mut reader, no, rng.percent(30));
                }
            }
        }
        let wanted = rows.one_by_one(&mut reader, len, seen);
        let (found, slow) = rows.ahead(&mut reader, len, seen);
        good &= wanted == found;
        assert!(slow < 60, "most rows need only a look: {slow} did not");
        beside.t.abort();
        reader.t.abort();
    }
    good
}

#[test]
fn a_look_ahead_finds_what_reads_find() {
    for seed in 1..20 {
        assert!(agrees(1, seed), "seed {seed}, one partition");
        assert!(agrees(5, seed), "seed {seed}, several partitions");
    }
}

/// Is a fault found within some seeds?
fn is_found(fault: Fault, partitions: u32) -> bool {
    faults::set(Some(fault));
    let found = (1..5).any(|seed| !agrees(partitions, seed));
    faults::set(None);
    found
}

#[test]
fn a_look_ahead_of_its_snapshot_is_found() {
    assert!(is_found(Fault::AheadOfSnapshot, 1));
}

#[test]
fn a_look_ahead_that_forgets_own_writes_is_found() {
    assert!(is_found(Fault::AheadOfOwnWrites, 1));
    assert!(is_found(Fault::AheadOfOwnWrites, 5));
}
