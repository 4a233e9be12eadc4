//! What a round finds of a record in each state of its writer, and the words of a table.

use super::{Durable, Found, Logged, Look};
use crate::csn::{Csn, SlotId};
use crate::durable::entry::Kind;
use crate::durable::window::{Place, Taken};
use crate::faults::{self, Fault};
use crate::primitive::Ordering;
use crate::protocol::Touch;
use crate::record::Version;
use crate::table::Run;
use crate::threads::{Block, Threads, Waits};
use crate::{index::Reuse, Engine, Level, Policy, Protocol, ProtocolSet, Table, Txn};
use std::sync::Arc;

const WRITER: SlotId = 0;
const COMPANION: SlotId = 1;
const KEY: &[u8] = b"key";

struct World {
    e: Engine,
    table: &'static Table,
    durable: &'static Durable,
    t: Txn,
    p: Threads,
    ident: u64,
    _block: Block,
}

impl World {
    fn new() -> World {
        let block = Block::new(16 << 20, 2).expect("a block");
        let e = block.engine;
        let map = Table::new_map(&e, 0, 1, 0, b"", ProtocolSet::of(Protocol::Occ), Policy::Wait).expect("a map");
        let table = Table::create(&e, 0, [1; 4], map).expect("a table");
        table.create_primary(&e, 0, 0, Reuse::AtOnce).expect("an index");
        let durable = table.make_durable(&e, 0, false).expect("memory");
        let p = Threads::new(e, WRITER, Arc::<Waits>::default());
        World { e, table, durable, t: Txn::new(e, WRITER), p, ident: 0, _block: block }
    }
    fn begin(&mut self) {
        self.ident += 1;
        self.t.begin(Level::Serializable, self.ident);
    }
    fn put(&mut self, value: u64) {
        let at = Touch { table: self.table, no: 0 };
        let row = self.t.find_row(&self.p, at, KEY, true, None).expect("a look");
        let v = self.t.new_version(0, 8, 0).expect("memory");
        // SAFETY: INV-VERSION: a fresh version with 8 bytes of payload, not yet linked.
        unsafe { Version::payload(v.as_ptr()).cast::<u64>().write_unaligned(value) };
        match row {
            Some(row) => self.t.update_row(&self.p, &row, KEY, v, 0),
            None => self.t.insert_row(&self.p, at, KEY, v, 0).map(drop),
        }
        .expect("a write");
    }
    fn delete(&mut self) {
        let at = Touch { table: self.table, no: 0 };
        let row = self.t.find_row(&self.p, at, KEY, true, None).expect("a look").expect("a row");
        self.t.delete_row(&self.p, &row, KEY, 0).expect("a write");
    }
    fn prepare(&mut self) -> Csn {
        self.t.prepare(&self.p, &|_, _| {}).expect("no conflict");
        self.e.word(WRITER).csn()
    }
    fn commit(&mut self) -> Csn {
        let csn = self.prepare();
        self.t.publish(&self.p);
        csn
    }
    /// The entries of record 0: CSN, value (`None`: a tombstone), transaction id.
    fn look(&self, logged: Logged) -> Vec<(Csn, Option<u64>, Option<u64>)> {
        self.e.pin(COMPANION);
        let look = Look { e: &self.e, table: self.table, durable: self.durable, clock: self.e.now() };
        let mut found = Vec::new();
        look.entries_of(0, |_, _| logged, &mut found);
        let value = |f: &Found| {
            // SAFETY: the pin lasts.
            let bytes = unsafe { f.payload() };
            assert_eq!(bytes.is_empty(), f.kind == Kind::Tomb);
            bytes.try_into().ok().map(u64::from_le_bytes)
        };
        let all = found.iter().map(|f| (f.csn, value(f), f.pending)).collect();
        self.e.unpin(COMPANION);
        all
    }
    fn image(&self) {
        self.durable.set_home(0, Some(Place { block: 1, long: false }));
    }
}

#[test]
fn a_round_finds_what_is_committed() {
    let mut w = World::new();
    assert_eq!(w.look(Logged::No), []);
    w.begin();
    w.put(7);
    assert_eq!(w.look(Logged::No), [], "an insert that is not committed");
    let first = w.commit();
    assert_eq!(w.look(Logged::No), [(first, Some(7), None)]);
    w.begin();
    w.put(8);
    assert_eq!(w.look(Logged::No), [(first, Some(7), None)]);
    w.t.abort();
    assert_eq!(w.look(Logged::No), [(first, Some(7), None)]);
    w.begin();
    w.delete();
    let deleted = w.commit();
    assert_eq!(w.look(Logged::No), [(deleted, None, None)]);
}

#[test]
fn of_a_commit_under_way_it_finds_what_the_commit_log_says() {
    let mut w = World::new();
    w.begin();
    w.put(7);
    let first = w.commit();
    w.begin();
    w.put(8);
    let second = w.prepare();
    assert_eq!(w.look(Logged::No), [(first, Some(7), None)]);
    assert_eq!(w.look(Logged::Aborted), [(first, Some(7), None)]);
    assert_eq!(w.look(Logged::Open(55)), [(second, Some(8), Some(55)), (first, Some(7), None)]);
    assert_eq!(w.look(Logged::Committed), [(second, Some(8), None)]);
    w.t.publish(&w.p);
    assert_eq!(w.look(Logged::No), [(second, Some(8), None)]);
}

#[test]
fn a_prepared_transaction_is_pending_at_the_csn_of_its_log() {
    let mut w = World::new();
    w.begin();
    w.put(7);
    let first = w.commit();
    w.begin();
    w.put(8);
    let logged = w.t.prepare_ahead(&w.p).expect("no conflict");
    w.e.tick();
    assert_eq!(w.look(Logged::No), [(first, Some(7), None)], "its log has not begun");
    let pending = [(logged, Some(8), Some(55)), (first, Some(7), None)];
    assert_eq!(w.look(Logged::Open(55)), pending);
    assert_eq!(w.look(Logged::Aborted), [(first, Some(7), None)]);
    w.e.slots[w.t.slot as usize].xid.store(55, Ordering::SeqCst);
    assert_eq!(w.look(Logged::Committed), pending, "it was not finished here");
    faults::set(Some(Fault::DecidedEarly));
    assert_eq!(w.look(Logged::Committed), [(logged, Some(8), None)]);
    faults::set(Some(Fault::PreparedPassed));
    assert_eq!(w.look(Logged::Open(55)), [(first, Some(7), None)]);
    faults::set(None);
    w.t.decide_prepared();
    let csn = w.t.csn();
    assert!(csn > logged);
    w.t.mark_committed();
    let told = w.e.stable_upto(&[]).expect("its CSN is told");
    assert!(told.csn >= csn && told.open.is_empty(), "it is open no more: {told:?}");
    w.t.publish(&w.p);
    assert_eq!(w.look(Logged::No), [(csn, Some(8), None)]);
    // The slot's next transaction is not prepared.
    w.begin();
    w.put(9);
    assert_eq!(w.look(Logged::Open(55)), [(csn, Some(8), None)]);
    w.t.abort();
}

/// A transaction may wait for locks before it is prepared: so far it has no CSN, and nothing of it
/// is logged.
#[test]
fn a_transaction_that_has_only_its_locks_is_not_prepared() {
    let mut w = World::new();
    w.begin();
    w.put(7);
    let first = w.commit();
    w.begin();
    w.put(8);
    let clock = w.e.now();
    w.t.prepare_ahead_locks(&w.p).expect("no conflict");
    assert!(!w.t.is_prepared());
    assert_eq!(w.e.now(), clock);
    assert_eq!(w.look(Logged::Open(55)), [(first, Some(7), None)]);
    let logged = w.t.prepare_ahead_decide(&w.p).expect("no conflict");
    assert!(w.t.is_prepared() && logged > clock);
    assert_eq!(w.look(Logged::Open(55))[0], (logged, Some(8), Some(55)));
    w.t.abort();
    assert_eq!(w.look(Logged::Open(55)), [(first, Some(7), None)]);
}

/// The version of an insert is at the head of its record before it is linked, and another one may
/// take its place then.
#[test]
fn of_an_insert_that_its_owner_has_changed_the_last_version_is_found() {
    let mut w = World::new();
    w.begin();
    w.put(7);
    w.put(8);
    let logged = w.t.prepare_ahead(&w.p).expect("no conflict");
    assert_eq!(w.look(Logged::Open(5))[0], (logged, Some(8), Some(5)));
    w.t.abort();
}

/// What lies below gets a CSN below that of the log: a loaded row has none in memory.
#[test]
fn below_a_prepared_transaction_nothing_is_newer_than_its_log() {
    let mut w = World::new();
    w.begin();
    w.put(7);
    w.image();
    let logged = w.t.prepare_ahead(&w.p).expect("no conflict");
    w.e.tick();
    w.e.tick();
    assert_eq!(w.look(Logged::No), [(logged - 1, None, None)]);
    assert_eq!(w.look(Logged::Open(5)), [(logged, Some(7), Some(5)), (logged - 1, None, None)]);
    w.t.abort();
    assert_eq!(w.look(Logged::Open(5)), [(w.e.now(), None, None)]);
}

#[test]
fn below_a_pending_insert_it_finds_a_tombstone() {
    let mut w = World::new();
    w.begin();
    w.put(7);
    let csn = w.prepare();
    assert_eq!(w.look(Logged::No), []);
    assert_eq!(w.look(Logged::Open(5)), [(csn, Some(7), Some(5)), (csn - 1, None, None)]);
    faults::set(Some(Fault::PendingLeftOut));
    assert_eq!(w.look(Logged::Open(5)), []);
    faults::set(None);
    w.t.abort();
}

#[test]
fn a_record_with_an_image_and_without_a_version_has_a_tombstone() {
    let mut w = World::new();
    w.begin();
    w.put(7);
    w.image();
    let tomb = |w: &World| [(w.e.now(), None, None)];
    assert_eq!(w.look(Logged::No), tomb(&w));
    let csn = w.prepare();
    assert_eq!(w.look(Logged::No), [(csn - 1, None, None)]);
    w.t.abort();
    w.e.tick();
    assert_eq!(w.look(Logged::No), tomb(&w));
    faults::set(Some(Fault::FreedForgotten));
    assert_eq!(w.look(Logged::No), []);
    faults::set(None);
}

#[test]
fn a_loaded_row_has_a_csn_between_its_entry_and_the_next_commit() {
    let w = World::new();
    w.e.tick();
    let payload = w.table.load_row(&w.e, WRITER, [0; 2], 8).expect("memory");
    // SAFETY: INV-VERSION: a row that is being loaded, of 8 bytes.
    unsafe { payload.cast::<u64>().write_unaligned(3) };
    assert_eq!(w.look(Logged::No), [(w.e.now(), Some(3), None)]);
}

#[test]
fn bits_and_homes_of_many_records_are_kept() {
    let w = World::new();
    let some: Vec<u64> = vec![0, 63, 64, 255, 256, 16383, 16384, 20000];
    for n in 0..=20000 {
        assert_eq!(w.table.take_record(&w.e, WRITER, &mut Run::default(), ([0; 2], 0)).expect("memory").0, n);
    }
    some.iter().for_each(|n| w.durable.set_dirty(*n));
    assert!(w.durable.is_flagged() && w.durable.take_flag() && !w.durable.take_flag());
    let mut seen = Vec::new();
    for chunk in w.durable.chunks() {
        let done: Result<(), ()> = chunk.dirty.take(|taken: Taken| {
            seen.extend(taken.records().map(|n| chunk.first + n as u64));
            taken.imaged();
            Ok(())
        });
        assert_eq!(done, Ok(()));
    }
    assert_eq!(seen, some);
    assert!(!some.iter().any(|n| w.durable.is_dirty(*n)));
    let place = Place { block: 9, long: true };
    assert_eq!(w.durable.set_home(20000, Some(place)), None);
    assert_eq!(w.durable.set_home(20000, None), Some(place));
    assert!(w.durable.home(30000).is_none());
    // SAFETY: INV-TABLE: there are no other users of the table.
    unsafe { w.table.clear(&w.e, WRITER) };
    assert!(w.durable.home(0).is_none() && w.durable.chunks().count() == 0);
}

#[test]
fn a_table_that_is_new_or_dropped_has_no_batches() {
    let mut w = World::new();
    assert!(w.durable.words().begin_batch().is_some());
    w.durable.words().mark_leaving(|_| panic!("no batch is under way"));
    w.begin();
    w.put(1);
    assert!(w.durable.is_leaving() && w.durable.words().begin_batch().is_none());
    assert_eq!(w.t.durable_writes().count(), 0, "INV-LEAVING: nothing is logged");
    w.durable.words().stays();
    assert!(!w.durable.is_leaving() && w.durable.words().begin_batch().is_some());
    assert_eq!(w.t.durable_writes().count(), 1);
    w.t.abort();
    w.durable.words().mark_dropped(|_| panic!("no batch is under way"));
    assert!(w.durable.is_dropped() && w.durable.words().begin_batch().is_none());
    w.durable.begins();
    assert!(w.durable.is_dropped(), "for good");
    let map = w.table.map();
    let map = Table::new_map(&w.e, 0, map.n, 0, b"", ProtocolSet::of(Protocol::Occ), Policy::Wait).expect("a map");
    let other = Table::create(&w.e, 0, [2; 4], map).expect("a table");
    let new = other.make_durable(&w.e, 0, true).expect("memory");
    new.words().stays(); // it was not leaving
    assert!(new.is_new() && new.words().begin_batch().is_none());
    new.begins();
    assert!(!new.is_new() && new.words().begin_batch().is_some());
    new.raise_high(7);
    new.raise_high(3);
    assert!(new.high() == 7 && new.is_flagged());
    // SAFETY: INV-TABLE: there are no other users of the table.
    unsafe { other.destroy(&w.e, 0) };
}
