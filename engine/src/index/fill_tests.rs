//! An index that is filled has all rows, and tells two with one key.

use super::Filler;
use crate::csn::SlotId;
use crate::index::tests::check_tree;
use crate::index::{Direction, Primary, Reuse};
use crate::threads::{Block, Threads, Waits};
use crate::Engine;
use std::ops::Bound;

const SLOT: SlotId = 0;

fn key(n: u64) -> Vec<u8> {
    match n % 3 {
        0 => n.to_be_bytes().to_vec(),
        1 => [b"one pref", &n.to_be_bytes()[..]].concat(),
        _ => [&n.to_be_bytes()[..], b" and more"].concat(),
    }
}

/// Fills an index with the rows, which are numbers of keys; their record numbers count up. Returns
/// its entries and the duplicate.
fn fill(order: u32, unique: bool, rows: &[u64]) -> (Vec<(Vec<u8>, u64)>, Option<(u64, u64)>) {
    let block = Block::new(16 << 20, 1).expect("a block");
    let e: Engine = block.engine;
    let p = Threads::new(e, SLOT, Waits::default().into());
    let primary = Primary::create(&e, SLOT, order, Reuse::Vacuum, b"keys").expect("an index");
    e.pin(SLOT);
    let mut filler = Filler::new(primary);
    for (no, n) in rows.iter().enumerate() {
        filler.add(&e, SLOT, &p, no as u64, &key(*n), unique).expect("memory");
    }
    filler.finish(&e, SLOT, &p).expect("memory");
    check_tree(&primary.index, &p);
    let mut all = primary.index.scan(Bound::Unbounded, Bound::Unbounded, Direction::Forward);
    let mut found = Vec::new();
    while let Some((k, no)) = all.next(&p) {
        found.push((k.to_vec(), no));
    }
    e.unpin(SLOT);
    (found, filler.duplicate())
}

#[test]
fn rows_in_any_order_are_all_there() {
    let spread: Vec<u64> = (0..2000).map(|i| i * 7919 % 2003).collect();
    for rows in [(0..2000).collect::<Vec<u64>>(), (0..2000).rev().collect(), spread] {
        for (order, unique) in [(0, true), (0, false), (1, true)] {
            let mut all: Vec<(Vec<u8>, u64)> = rows.iter().zip(0..).map(|(n, no)| (key(*n), no)).collect();
            all.sort();
            assert_eq!(fill(order, unique, &rows), (all, None), "order {order}");
        }
    }
}

#[test]
fn two_rows_with_one_key_are_told() {
    // Near each other, and so far that they are not sorted together.
    for (first, second) in [(5, 6), (5, 1900)] {
        let mut rows: Vec<u64> = (0..2000).rev().collect();
        rows[second] = rows[first];
        for order in [0, 1] {
            let (found, duplicate) = fill(order, true, &rows);
            assert_eq!((found.len(), duplicate), (1999, Some((first as u64, second as u64))));
        }
        assert_eq!(fill(0, false, &rows).1, None, "it is not checked");
    }
}
