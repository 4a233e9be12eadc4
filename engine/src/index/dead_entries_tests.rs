//! Record numbers are reused only after their old entries are gone (INV-DEAD).

use super::Reuse;
use crate::csn::SlotId;
use crate::error::Error;
use crate::faults::{self, Fault};
use crate::protocol::Touch;
use crate::record::Version;
use crate::threads::{Block, Threads, Waits};
use crate::txn::Row;
use crate::{Engine, Level, Policy, Protocol, ProtocolSet, Table, Txn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

const KEYS: u64 = 24;
const THREADS: u16 = 3;
const ROUNDS: u64 = 6000;

/// A thread with keys of its own: every row that it finds under them is its own.
struct Owner {
    table: &'static Table,
    t: Txn,
    p: Threads,
    slot: SlotId,
    /// Whether each of its keys has a row.
    rows: [bool; KEYS as usize],
    random: u64,
}

/// Half of the keys are long.
fn key(n: u64) -> Vec<u8> {
    let long: &[u8] = if n.is_multiple_of(2) { b"" } else { b" and more" };
    [&n.to_be_bytes()[..], long].concat()
}

impl Owner {
    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 20) % below
    }

    /// Inserts or deletes a row. It has this value afterwards.
    fn flip(&mut self, n: u64, row: Option<Row>) -> Result<(), Error> {
        let key = key(n);
        match row {
            Some(row) => self.t.delete_row(&self.p, &row, &key, 0),
            None => {
                let v = self.t.new_version(0, 8, 0)?;
                // SAFETY: INV-VERSION: a fresh version with 8 bytes of payload, not yet linked.
                unsafe { Version::payload(v.as_ptr()).cast::<u64>().write_unaligned(n) };
                let at = Touch { table: self.table, no: 0 };
                self.t.insert_row(&self.p, at, &key, v, 0).map(drop)
            }
        }
    }

    /// Runs a transaction that changes some rows, and is undone now and then. Fails if a key leads
    /// to a row of another thread.
    fn round(&mut self, round: u64) -> Result<(), String> {
        self.t.begin(Level::Serializable, 1 + self.slot as u64 + 8 * round);
        let mut rows = self.rows;
        let mut done = Ok(());
        for _ in 0..1 + self.random(4) {
            let i = self.random(KEYS);
            let n = (i * THREADS as u64 + self.slot as u64) | 1 << 40;
            let at = Touch { table: self.table, no: 0 };
            let row = match self.t.find_row(&self.p, at, &key(n), true, None) {
                Ok(row) => row,
                Err(e) => {
                    done = Err(e);
                    break;
                }
            };
            // SAFETY: INV-VERSION, INV-RETIRE: a version under our pin; every row has 8 bytes.
            let is = row.map(|r| unsafe { Version::payload(r.version.as_ptr()).cast::<u64>().read_unaligned() });
            if is != rows[i as usize].then_some(n) {
                self.t.abort();
                return Err(format!("round {round}: {is:?} where {n} should be there: {}", rows[i as usize]));
            }
            done = self.flip(n, row);
            if done.is_err() {
                break;
            }
            rows[i as usize] ^= true;
        }
        let undone = self.random(4) == 0;
        if undone || done.and_then(|()| self.t.prepare(&self.p, &|_, _| {})).is_err() {
            self.t.abort();
            return Ok(());
        }
        self.t.publish(&self.p);
        self.rows = rows;
        Ok(())
    }
}

/// Returns the first error after threads have inserted, deleted and undone, so that numbers were
/// reused all the time.
fn churn(order: u32, fault: Option<Fault>) -> Result<(), String> {
    let block = Block::new(16 << 20, THREADS as usize).expect("a block");
    let e: Engine = block.engine;
    let map = Table::new_map(&e, 0, 1, 0, b"", ProtocolSet::of(Protocol::Occ), Policy::Wait).expect("a map");
    let table = Table::create(&e, 0, [1; 4], map).expect("a table");
    table.create_primary(&e, 0, order, Reuse::AtOnce).expect("an index");
    let waits: Arc<Waits> = Arc::default();
    let stop = AtomicBool::new(false);
    let deadline = Instant::now() + Duration::from_secs(20);
    let work = |slot: SlotId| {
        faults::set(fault);
        let p = Threads::new(e, slot, waits.clone());
        let random = 88_172_645_463_325_252 ^ (slot as u64) << 20;
        let mut o = Owner { table, t: Txn::new(e, slot), p, slot, rows: [false; KEYS as usize], random };
        let ends = |round: &u64| *round == ROUNDS || stop.load(Ordering::Relaxed) || Instant::now() > deadline;
        let done = (0..).take_while(|round| !ends(round)).try_for_each(|round| o.round(round));
        stop.fetch_or(done.is_err(), Ordering::Relaxed);
        faults::set(None);
        done
    };
    let done: Result<Vec<()>, String> = std::thread::scope(|s| {
        let work = &work;
        let all: Vec<_> = (0..THREADS).map(|slot| s.spawn(move || work(slot))).collect();
        all.into_iter().map(|t| t.join().expect("a thread")).collect()
    });
    done?;
    let p = Threads::new(e, 0, waits);
    let mut t = Txn::new(e, 0);
    e.tick(); // Behind all commits so far.
    t.begin(Level::Serializable, 1);
    e.refresh_min_pin(&p);
    t.purge_marked(&p, table).expect("memory");
    while t.sweep(&p, table, 64) > 0 {}
    t.abort();
    let (entries, rows) = (table.primary().expect("an index").index.len(), table.rows());
    if table.dead_entries() > 0 || entries != rows || table.len() > 10_000 {
        return Err(format!("{entries} entries, {rows} rows, {} dead, {} numbers", table.dead_entries(), table.len()));
    }
    Ok(())
}

#[test]
fn a_number_that_is_used_again_has_no_old_entry() {
    for order in [0, 1] {
        assert_eq!(churn(order, None), Ok(()), "order {order}");
    }
}

/// Shows that the test above finds the error.
#[test]
fn an_entry_that_is_forgotten_is_found() {
    assert!(churn(0, Some(Fault::EntryForgotten)).is_err());
}
