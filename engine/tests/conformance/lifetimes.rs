//! What a transaction may still reach when its process has no snapshot any more, and others end its
//! pin: at its end, after a savepoint was rolled back, and in what the platform retires after its
//! end.

use mixedcc_engine::csn::{Csn, SlotId};
use mixedcc_engine::faults;
use mixedcc_engine::index::Reuse;
use mixedcc_engine::open::Seen;
use mixedcc_engine::partition::PartitionMap;
use mixedcc_engine::platform::{Platform, Queue, WaitFor};
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::protocol::Touch;
use mixedcc_engine::record::Version;
use mixedcc_engine::retire::RetireQueue;
use mixedcc_engine::threads::Block;
use mixedcc_engine::{Engine, Error, Level, Policy, Protocol, ProtocolSet, Table, Txn};
use std::ptr::NonNull;
use std::sync::mpsc::channel;

/// The platform of processes between two statements of READ COMMITTED: none has a snapshot.
struct Idle;

impl Platform for Idle {
    fn wait_for(&self, _: WaitFor) -> Result<(), Error> {
        panic!("nobody is in the way")
    }
    fn enter_queue(&self, _: Queue) -> Result<(), Error> {
        panic!("nobody is in the way")
    }
    fn leave_queue(&self, _: Queue) {}
    fn pause(&self, _: u32) -> Result<(), Error> {
        panic!("nobody is in the way")
    }
    fn lock_tag(&self) -> u32 {
        0
    }
    fn quiescent(&self, _: SlotId) -> bool {
        true
    }
}

const PARTITIONS: u32 = 3;

fn table(e: &Engine, protocol: Protocol) -> &'static Table {
    let set = ProtocolSet::of(protocol);
    let map = Table::new_map(e, 0, PARTITIONS, 0, b"", set, Policy::Wait).expect("a map");
    let t = Table::create(e, 0, [1; 4], map).expect("a table");
    t.create_primary(e, 0, 0, Reuse::AtOnce).expect("an index");
    t
}

fn insert(t: &mut Txn, at: Touch, key: &[u8]) {
    let v = t.new_version(0, 8, 0).expect("memory for a row");
    // SAFETY: 8 bytes, ours.
    unsafe { Version::payload(v.as_ptr()).write_bytes(7, 8) };
    t.insert_row(&Idle, at, key, v, 0).expect("nobody is in the way");
}

fn commit(t: &mut Txn) {
    t.prepare(&Idle, &|_, _| {}).expect("nobody is in the way");
    t.publish(&Idle);
}

/// A transaction removes the entries of its own inserts under a pin, also if its pin was ended: the
/// engine asserts that (INV-PIN).
#[test]
fn undone_inserts_leave_the_index_with_a_pin() {
    let block = Block::new(8 << 20, 2).expect("a block");
    let e = block.engine;
    let table = table(&e, Protocol::Occ);
    let at = Touch { table, no: 0 };
    let mut t = Txn::new(e, 0);
    for whole in [false, true] {
        t.begin(Level::Snapshot, 1);
        insert(&mut t, at, b"stays, unless all is undone");
        t.set_depth(2);
        insert(&mut t, at, b"undone");
        e.refresh_min_pin(&Idle);
        assert!(!e.is_pinned(0), "others end the pin of who has no snapshot");
        if !whole {
            t.abort_sub(2);
            assert_eq!(table.primary().expect("an index").index.len(), 1);
        }
        t.abort();
        assert_eq!(table.primary().expect("an index").index.len(), 0);
    }
}

/// Others may drop a table that only a savepoint has touched which was rolled back.
#[test]
fn a_table_that_only_a_savepoint_has_read_is_forgotten() {
    let block = Block::new(8 << 20, 2).expect("a block");
    let e = block.engine;
    let table = table(&e, Protocol::Occ);
    let mut writer = Txn::new(e, 1);
    writer.begin(Level::Snapshot, 1);
    insert(&mut writer, Touch { table, no: 1 }, b"a row");
    commit(&mut writer);
    let mut t = Txn::new(e, 0);
    t.begin(Level::Snapshot, 2);
    t.set_depth(2);
    let r = mixedcc_engine::RecordRef::find(table, 0).expect("a record");
    assert!(t.read_snapshot(&Idle, r, Seen::prefix(e.now())).expect("no wait").is_some());
    t.abort_sub(2);
    let reads = &table.map().partitions()[1].stats;
    assert_eq!(reads.sum(|s| &s.reads), 1, "what it has read is counted");
    table.retire(&e);
    Table::free_dropped(&e, 1, e.refresh_min_pin(&Idle));
    // Somebody else has the memory now.
    let size = PartitionMap::size(PARTITIONS);
    let others: Vec<NonNull<u8>> = (0..4).map(|_| e.region.alloc(1, size).expect("memory")).collect();
    for p in &others {
        // SAFETY: ours, of that size.
        unsafe { p.as_ptr().write_bytes(0x55, size) };
    }
    commit(&mut t);
    for p in others {
        // SAFETY: as above.
        let now = unsafe { std::slice::from_raw_parts(p.as_ptr(), size) };
        assert!(now.iter().all(|b| *b == 0x55), "the transaction has written into memory of others");
    }
}

/// Takes the memory that a dropped table's partitions had, and fills it with zeros.
fn reuse(e: &Engine) -> Vec<NonNull<u8>> {
    Table::free_dropped(e, 1, e.refresh_min_pin(&Idle));
    let size = PartitionMap::size(PARTITIONS);
    let others: Vec<NonNull<u8>> = (0..4).map(|_| e.region.alloc(1, size).expect("memory")).collect();
    for p in &others {
        // SAFETY: ours, of that size.
        unsafe { p.as_ptr().write_bytes(0, size) };
    }
    others
}

fn assert_untouched(others: Vec<NonNull<u8>>, who: &str) {
    for p in others {
        // SAFETY: as in `reuse`.
        let now = unsafe { std::slice::from_raw_parts(p.as_ptr(), PartitionMap::size(PARTITIONS)) };
        assert!(now.iter().all(|b| *b == 0), "{who} has written into memory of others");
    }
}

/// A transaction that has inserted into `kept`, and whose savepoint into `dropped`; the savepoint
/// was rolled back, and others have dropped that table.
/// The second value: what the oldest pin must not exceed while it keeps that table.
fn with_a_dropped_table(e: Engine, kept: &'static Table, dropped: &'static Table) -> (Txn, Csn) {
    let mut t = Txn::new(e, 0);
    t.begin(Level::Snapshot, 1);
    insert(&mut t, Touch { table: kept, no: 0 }, b"stays");
    t.set_depth(2);
    t.before_write(&Idle, Touch { table: dropped, no: 1 }).expect("nobody is in the way");
    insert(&mut t, Touch { table: dropped, no: 1 }, b"undone");
    t.abort_sub(2);
    let before = e.now();
    dropped.retire(&e);
    assert!(e.refresh_min_pin(&Idle) <= before, "the transaction keeps the table");
    (t, before)
}

/// Others may drop a table that only a savepoint has touched which was rolled back, before the
/// prepared transaction is handed over, or cannot be prepared after all.
#[test]
fn a_table_that_only_a_savepoint_has_touched_is_forgotten_by_who_is_prepared() {
    for (protocol, aborts) in
        [(Protocol::Occ, false), (Protocol::Occ, true), (Protocol::PartCc, false), (Protocol::PartCc, true)]
    {
        let block = Block::new(16 << 20, 3).expect("a block");
        let e = block.engine;
        let (mut t, before) = with_a_dropped_table(e, table(&e, Protocol::Occ), table(&e, protocol));
        t.prepare_ahead(&Idle).expect("nobody is in the way");
        let keeps = e.refresh_min_pin(&Idle) <= before;
        assert_eq!(keeps, protocol == Protocol::PartCc, "it keeps the table whose partition it has locked");
        let others = reuse(&e);
        if aborts {
            t.abort();
        } else {
            t.hand_over(2);
            Txn::take_over(e, 0).expect("the transaction").abort();
        }
        assert_untouched(others, "who is prepared");
        e.tick();
        Table::free_dropped(&e, 1, e.refresh_min_pin(&Idle));
        assert!(!e.is_pinned(0), "nothing is kept any more");
    }
}

/// The same of a commit that waits until it is done.
#[test]
fn a_table_that_only_a_savepoint_has_touched_stays_for_who_rests() {
    for protocol in [Protocol::Occ, Protocol::PartCc] {
        let block = Block::new(16 << 20, 3).expect("a block");
        let e = block.engine;
        let (mut t, before) = with_a_dropped_table(e, table(&e, Protocol::Occ), table(&e, protocol));
        t.prepare_held(&Idle, true, &|_, _| {}).expect("nobody is in the way");
        t.mark_committed();
        t.settle();
        t.rest();
        assert!(e.refresh_min_pin(&Idle) <= before, "it keeps the table");
        let others = reuse(&e);
        t.done();
        t.finish(&Idle);
        assert_untouched(others, "who rests");
        assert!(!e.is_pinned(0), "nothing is kept any more");
    }
}

/// A partition's lock outlives the savepoint that took it; so does the pin, and with it the table.
#[test]
fn a_table_in_which_a_savepoint_has_left_a_lock_stays() {
    let block = Block::new(8 << 20, 2).expect("a block");
    let e = block.engine;
    let table = table(&e, Protocol::PartCc);
    let mut t = Txn::new(e, 0);
    t.begin(Level::Snapshot, 1);
    t.set_depth(2);
    t.before_write(&Idle, Touch { table, no: 1 }).expect("nobody is in the way");
    e.refresh_min_pin(&Idle);
    t.abort_sub(2);
    let lock = &table.map().partitions()[1].lock;
    assert!(!lock.is_free(), "a partition's lock stays to the end");
    let before = e.now();
    table.retire(&e);
    assert!(e.refresh_min_pin(&Idle) <= before, "the transaction keeps the table");
    commit(&mut t);
    assert!(lock.is_free() && e.refresh_min_pin(&Idle) > before, "to its end");
    Table::free_dropped(&e, 1, e.refresh_min_pin(&Idle));
}

/// Versions below a tombstone may be freed, if the slot is pinned since the delete; others may look
/// at them.
#[test]
fn below_a_tombstone_looks_only_who_is_pinned_before_it() {
    let block = Block::new(8 << 20, 3).expect("a block");
    let e = block.engine;
    let table = table(&e, Protocol::Occ);
    let at = Touch { table, no: 0 };
    let (mut old, mut writer, mut new) = (Txn::new(e, 0), Txn::new(e, 1), Txn::new(e, 2));
    writer.begin(Level::Snapshot, 1);
    insert(&mut writer, at, b"a row");
    commit(&mut writer);
    let rec = mixedcc_engine::RecordRef::find(table, 0).expect("a record").rec;
    let row = rec.head();
    old.begin(Level::Snapshot, 2);
    writer.begin(Level::Serializable, 3);
    let found = writer.find_row(&Idle, at, b"a row", true, None).expect("nobody is in the way").expect("a row");
    writer.delete_row(&Idle, &found, b"a row", 0).expect("nobody is in the way");
    writer.prepare(&Idle, &|_, _| {}).expect("nobody is in the way");
    assert_eq!(old.any_row(rec).map(NonNull::as_ptr), Some(row), "the delete is pending");
    writer.publish(&Idle);
    e.tick(); // a pin at the very CSN would keep the row
    new.begin(Level::Snapshot, 4);
    assert_eq!(old.any_row(rec).map(NonNull::as_ptr), Some(row), "its snapshot may see the row");
    assert_eq!(new.any_row(rec), None, "its snapshots see no row, and others may free it");
    old.abort();
    new.abort();
}

/// What others free while a process takes its pin is nothing that it takes for kept (INV-HONEST).
#[test]
fn a_pin_keeps_what_is_retired_from_its_csn_on() {
    let block = Block::new(8 << 20, 2).expect("a block");
    let e = block.engine;
    let table = table(&e, Protocol::Occ);
    let at = Touch { table, no: 0 };
    let (mut writer, mut reader) = (Txn::new(e, 1), Txn::new(e, 0));
    writer.begin(Level::Snapshot, 1);
    insert(&mut writer, at, b"a row");
    commit(&mut writer);
    let rec = mixedcc_engine::RecordRef::find(table, 0).expect("a record").rec;
    faults::meanwhile(move || {
        writer.begin(Level::Serializable, 2);
        let found = writer.find_row(&Idle, at, b"a row", true, None).expect("nobody is in the way").expect("a row");
        writer.delete_row(&Idle, &found, b"a row", 0).expect("nobody is in the way");
        commit(&mut writer);
        e.tick();
        RetireQueue::drain(&e, 1, e.refresh_min_pin(&Idle), usize::MAX);
    });
    reader.begin(Level::Snapshot, 3);
    assert_eq!(e.retired(), RetireQueue::len(&e, 1), "no other slot has retired anything");
    let is_freed = RetireQueue::len(&e, 1) == 0;
    assert!(reader.any_row(rec).is_none() || !is_freed, "it looks at a row that was freed before its pin");
    reader.abort();
    e.tick();
    RetireQueue::drain(&e, 1, e.refresh_min_pin(&Idle), usize::MAX);
    assert_eq!(RetireQueue::len(&e, 1), 0);
}

/// A process that builds an index pins as others do: not at the values that they store while they
/// take their pins.
#[test]
fn the_oldest_pin_is_one_that_was_taken() {
    const CSN: u64 = 7;
    let block = Block::new(8 << 20, 3).expect("a block");
    let e = block.engine;
    e.advance_clock(20);
    e.slots[2].pin.store(5, Ordering::SeqCst);
    assert_eq!(e.oldest_pin(), None, "it is not taken yet");
    std::thread::scope(|s| {
        s.spawn(move || {
            let e = e; // all of it: a slot alone is no other thread's
            std::thread::sleep(std::time::Duration::from_millis(20));
            e.slots[2].pin.store(CSN << 16 | 5, Ordering::SeqCst);
        });
        assert_eq!(e.pin_oldest(0).pin, CSN);
    });
    assert_eq!(e.pins().collect::<Vec<_>>(), [(0, CSN), (2, CSN)]);
    e.unpin(0);
    assert_eq!(e.oldest_pin(), Some((2, CSN)));
    e.pin(1);
    assert_eq!(e.pins().collect::<Vec<_>>(), [(1, e.now()), (2, CSN)]);
    e.unpin(1);
    std::thread::scope(|s| {
        for slot in 0..2 {
            s.spawn(move || {
                for _ in 0..20_000 {
                    e.pin(slot);
                    assert_eq!(e.pin_oldest(slot).pin, CSN);
                    e.unpin(slot);
                }
            });
        }
    });
}

/// A process is stopped while it takes its pin. Processes that build indexes wait for it, and for
/// no other: not for each other, and no process waits for them at a latch. Nothing is freed
/// meanwhile.
#[test]
fn who_waits_for_a_pin_that_is_being_taken_blocks_nobody() {
    const CSN: u64 = 7;
    let block = Block::new(8 << 20, 4).expect("a block");
    let e = block.engine;
    e.advance_clock(9);
    e.pin(0);
    e.advance_clock(20);
    e.slots[2].pin.store(5, Ordering::SeqCst);
    std::thread::scope(|s| {
        let builders = [0, 1].map(|slot| s.spawn(move || (e, e.pin_oldest(slot).pin).1));
        let (passed, through) = channel();
        let other = s.spawn(move || {
            while !(e.is_pinned(0) && e.is_pinned(1)) {
                std::thread::yield_now();
            }
            e.with_dropped(|| ());
            passed.send(e.refresh_min_pin(&Idle)).expect("somebody listens");
        });
        let min_pin = through.recv_timeout(std::time::Duration::from_secs(10));
        let waiting = builders.iter().all(|b| !b.is_finished());
        e.slots[2].pin.store(CSN << 16 | 5, Ordering::SeqCst);
        assert_eq!(min_pin, Ok(0), "blocked, or something could be freed");
        assert!(waiting, "they cannot know the oldest pin yet");
        for b in builders {
            assert_eq!(b.join().expect("no panic"), CSN);
        }
        other.join().expect("no panic");
    });
    assert_eq!((e.refresh_min_pin(&Idle), e.is_pinned(0)), (e.now(), false), "their pins are pins as others are");
}

/// Room that was promised to the platform is there when the transaction has ended, however it did.
#[test]
fn promised_room_outlives_the_transaction() {
    const PROMISED: u64 = 700;
    for (end, sub) in [(true, false), (false, false), (true, true), (false, true)] {
        let block = Block::new(16 << 20, 2).expect("a block");
        let e = block.engine;
        let table = table(&e, Protocol::Occ);
        let mut t = Txn::new(e, 0);
        t.begin(Level::Snapshot, 1);
        t.make_room(PROMISED).expect("memory");
        t.make_room(2).expect("memory");
        for depth in 1..=1 + u32::from(sub) {
            t.set_depth(depth);
            for i in 0..300u32 {
                insert(&mut t, Touch { table, no: 0 }, format!("a key that is not short {depth} {i}").as_bytes());
            }
        }
        if sub {
            t.abort_sub(2);
        }
        if end {
            commit(&mut t);
        } else {
            t.abort();
        }
        assert!(RetireQueue::room(&e, 0) >= PROMISED, "{end} {sub}: {}", RetireQueue::room(&e, 0));
        for _ in 0..PROMISED {
            let p = e.region.alloc(0, 64).expect("memory");
            RetireQueue::push(&e, 0, p, e.now());
        }
        t.begin(Level::Snapshot, 2);
        t.abort();
        assert!(RetireQueue::room(&e, 0) < 300, "it is given back by the next one");
    }
}
