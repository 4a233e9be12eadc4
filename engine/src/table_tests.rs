//! Record numbers: those that are free, and the order in which inserts take them.

use super::*;
use crate::protocol::Protocol;
use crate::threads::Block;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

fn with_table(test: impl FnOnce(&Engine, &'static Table)) {
    let block = Block::new(8 << 20, 4).expect("a block");
    let e = block.engine;
    let map = Table::new_map(&e, 0, 1, 0, b"", ProtocolSet::of(Protocol::Occ), Policy::Wait).expect("a map");
    let table = Table::create(&e, 0, [1; 4], map).expect("a table");
    test(&e, table);
    // SAFETY: INV-TABLE: there are no other users of the table.
    unsafe { table.destroy(&e, 0) };
}

fn take(e: &Engine, table: &'static Table, n: usize) -> Vec<u64> {
    (0..n).map(|_| table.take_record(e, 0, &mut Run::default(), ([0; 2], 0)).expect("memory").0).collect()
}

#[test]
fn freed_numbers_are_taken_in_ascending_order() {
    with_table(|e, table| {
        assert_eq!(take(e, table, 600), Vec::from_iter(0..600));
        // Several batches: some are free already, some wait for their grace period, some are not
        // sorted.
        for batch in [&[5, 3, 4][..], &[300, 299], &[9, 0, 8]] {
            batch.iter().for_each(|n| table.give_back(*n, e.now()));
            e.tick();
            table.order_free(e.now());
        }
        assert_eq!(take(e, table, 2), [0, 3]);
        [1, 7].iter().for_each(|n| table.give_back(*n, e.now()));
        e.tick();
        e.shared.min_pin.0.store(e.now(), Ordering::SeqCst);
        assert_eq!(take(e, table, 1), [4], "a number that is free goes first");
        [2, 6].iter().for_each(|n| table.give_back(*n, e.now()));
        e.tick();
        table.order_free(e.now());
        assert_eq!(take(e, table, 11), [1, 2, 5, 6, 7, 8, 9, 299, 300, 600, 601]);
    });
}

#[test]
fn a_number_in_its_grace_period_is_not_put_in_order() {
    with_table(|e, table| {
        take(e, table, 10);
        let pin = e.now();
        [4, 2].iter().for_each(|n| table.give_back(*n, e.now()));
        e.tick();
        table.order_free(pin);
        assert_eq!(take(e, table, 1), [10]);
        table.order_free(pin + 1);
        assert_eq!(take(e, table, 3), [2, 4, 11]);
    });
}

#[test]
fn a_number_is_taken_once_while_another_thread_puts_them_in_order() {
    const ROUNDS: usize = 20_000;
    with_table(|e, table| {
        let taken: Vec<AtomicBool> = (0..4096).map(|_| AtomicBool::new(false)).collect();
        let left = AtomicUsize::new(3);
        let work = |slot: u16| {
            for round in 0..ROUNDS {
                let mut run = Run::default();
                let numbers: Vec<u64> = (0..1 + round % 9)
                    .map(|_| table.take_record(e, slot, &mut run, ([0; 2], 0)).expect("memory").0)
                    .collect();
                run.give_back();
                assert!(numbers.iter().all(|n| !taken[*n as usize].swap(true, SeqCst)), "a number is taken twice");
                numbers.iter().for_each(|n| taken[*n as usize].store(false, SeqCst));
                numbers.iter().for_each(|n| table.give_back(*n, e.now()));
                e.tick();
                e.shared.min_pin.0.store(e.now(), SeqCst);
            }
            left.fetch_sub(1, SeqCst);
        };
        std::thread::scope(|s| {
            for slot in 0..3 {
                let work = &work;
                s.spawn(move || work(slot));
            }
            while left.load(SeqCst) > 0 {
                table.order_free(e.now());
            }
        });
        e.tick();
        table.order_free(e.now());
        let len = table.len();
        assert_eq!(take(e, table, len as usize), Vec::from_iter(0..len), "none is lost");
        assert_eq!(table.len(), len);
    });
}

#[test]
fn who_inserts_alone_leaves_no_gaps() {
    with_table(|e, table| {
        let mut run = Run::default();
        for n in [1, 2, 5, 100, 700] {
            let first = table.len();
            let taken: Vec<u64> =
                (0..n).map(|_| table.take_record(e, 0, &mut run, ([0; 2], 0)).expect("memory").0).collect();
            assert_eq!(taken, Vec::from_iter(first..first + n));
            run.give_back();
            assert_eq!(table.len(), first + n);
        }
    });
}

#[test]
fn runs_share_no_number_and_their_rest_comes_back() {
    with_table(|e, table| {
        let take = |run: &mut Run, n: usize| -> Vec<u64> {
            (0..n).map(|_| table.take_record(e, 0, run, ([0; 2], 0)).expect("memory").0).collect()
        };
        let (mut one, mut two) = (Run::default(), Run::default());
        // Runs of 1, 2 and 4.
        assert_eq!((take(&mut one, 4), take(&mut two, 2)), (vec![0, 1, 2, 3], vec![7, 8]));
        assert_eq!((take(&mut one, 3), take(&mut two, 1)), (vec![4, 5, 6], vec![9]));
        assert_eq!((take(&mut one, 1), take(&mut two, 1)), (vec![10], vec![18]));
        one.give_back(); // 11 to 17, and then 19 to 21
        two.give_back();
        assert_eq!(table.len(), 19, "the last ones were not given out");
        // Off the list, in runs of 1, 2 and 4, of which four remain.
        assert_eq!(take(&mut one, 3), [11, 12, 13]);
        assert_eq!(take(&mut two, 1), [14]);
        assert_eq!(take(&mut one, 1), [15]);
        assert_eq!(take(&mut two, 1), [19], "one has the others");
        one.give_back();
        assert_eq!(take(&mut two, 3), [20, 16, 17]);
    });
}

#[test]
fn sizes_of_many_partitions_are_counted_again_after_some_time() {
    let block = Block::new(8 << 20, 4).expect("a block");
    let e = block.engine;
    for (n, stale) in [(1, false), (64, false), (65, true), (200, true)] {
        let map = Table::new_map(&e, 0, n, 0, b"", ProtocolSet::of(Protocol::Occ), Policy::Wait).expect("a map");
        let table = Table::create(&e, 0, [n; 4], map).expect("a table");
        let add = |partition: u32, rows: u64| {
            let stripe = table.map().partitions()[partition as usize].stats.stripe(0);
            stripe.rows.fetch_add(rows, SeqCst);
            stripe.bytes.fetch_add(100 * rows, SeqCst);
        };
        let now = 1_000_000;
        add(0, 1);
        assert_eq!(table.map().sizes(now), (1, 100));
        add(n - 1, 2);
        assert_eq!(table.map().sizes(now + 9_000), if stale { (1, 100) } else { (3, 300) });
        assert_eq!(table.map().sizes(now + 11_000), (3, 300));
        add(0, 4);
        assert_eq!(table.map().sizes(now), (7, 700), "a clock that was set back");
        // SAFETY: INV-TABLE: there are no other users of the table.
        unsafe { table.destroy(&e, 0) };
    }
}
