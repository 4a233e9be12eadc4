//! Record numbers are reserved in WAL before an index entry may name them.
//!
//! A number of a permanent table is compared with the table's `high` before the executor gets it.
//! So the WAL records of its index entries come after a record that reserves it (D-TID). All
//! permanent tables do this, also those without indexes: it is one record for hundreds of numbers,
//! and an index that is created later finds its numbers reserved.

use super::{enter_window, my_window};
use crate::pg::faults::{self, Fault};
use crate::pg::wal;
use crate::state::stop;
use mixedcc_engine::durable::wal::{reserve as main_data, Op};
use mixedcc_engine::durable::window::log;
use mixedcc_engine::durable::Durable;
use mixedcc_engine::table::MAX_RECORDS;
use mixedcc_engine::Table;

/// At least so many numbers are reserved at a time.
const AT_LEAST: u64 = 256;

/// The executor is about to get the number of a record that the transaction has inserted. May wait,
/// and may raise an error, which unwinds.
#[inline]
pub fn reserve(table: &'static Table, no: u64) {
    if let Some(durable) = table.durable() {
        if no >= durable.high() as u64 && !durable.is_new() {
            reserve_from(table, durable, no);
        }
    }
}

#[cold]
fn reserve_from(table: &'static Table, durable: &'static Durable, no: u64) {
    enter_window();
    let upto = upto(no, table.len());
    let data = main_data(table.key.into(), upto);
    let insert = || {
        if faults::on(Fault::ReserveLeftOut) {
            return 0;
        }
        // SAFETY: in a critical section, in which no other record is begun.
        let end = unsafe { wal::insert(Op::Reserve, 0, &[&data]) };
        stop::reach("reserve-inserted");
        end
    };
    wal::critical(|| log(my_window(), insert, |_| (), || durable.raise_high(upto)));
    my_window().leave();
    stop::reach("reserve-raised");
}

/// Numbers below it are reserved for the sake of number `no` of a table with so many records.
fn upto(no: u64, records: u64) -> u32 {
    (no + 1 + AT_LEAST.max(records / 64)).min(MAX_RECORDS) as u32
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn reservations_grow_with_the_table_and_end_with_its_numbers() {
        assert_eq!(upto(0, 1), 257);
        assert_eq!(upto(1_000_000, 1_000_001), 1_000_001 + 15_625);
        assert_eq!(upto(MAX_RECORDS - 1, MAX_RECORDS) as u64, MAX_RECORDS);
    }
}
