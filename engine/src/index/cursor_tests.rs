//! Scans that turn and go back to marks, against a list.

use super::{Cursor, Direction, Mark};
use crate::index::tests::{Comparer, World};
use std::ops::Bound;

fn key(n: u64) -> Vec<u8> {
    if n.is_multiple_of(2) {
        n.to_be_bytes().to_vec()
    } else {
        [&n.to_be_bytes()[..], b" and more"].concat()
    }
}

/// A place in the list: the entry that was returned last, if there is one.
type Place = (Option<usize>, Direction);

/// The scan that the cursor should be.
struct Listed<'a> {
    list: &'a [(Vec<u8>, u64)],
    at: Place,
    ended: bool,
}

impl Listed<'_> {
    fn next(&mut self) -> Option<(Vec<u8>, u64)> {
        if self.ended {
            return None;
        }
        let next = match self.at {
            (None, Direction::Forward) => Some(0),
            (None, Direction::Backward) => self.list.len().checked_sub(1),
            (Some(n), Direction::Forward) => Some(n + 1),
            (Some(n), Direction::Backward) => n.checked_sub(1),
        };
        self.at.0 = next.filter(|n| *n < self.list.len());
        self.ended = self.at.0.is_none();
        self.at.0.map(|n| self.list[n].clone())
    }
    fn go_to(&mut self, at: Place) {
        (self.at, self.ended) = (at, false);
    }
}

fn turned(way: Direction) -> Direction {
    match way {
        Direction::Forward => Direction::Backward,
        Direction::Backward => Direction::Forward,
    }
}

/// Random steps within these bounds.
fn walk(p: &Comparer, scan: &mut Cursor, list: &[(Vec<u8>, u64)], seed: u64) {
    let mut random = seed | 1;
    let mut want = Listed { list, at: (None, scan.way()), ended: false };
    let mut mark: (Mark, Place) = (scan.mark(), want.at);
    for step in 0..400 {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        match (random >> 33) % 20 {
            0 => {
                scan.turn();
                want.go_to((want.at.0, turned(want.at.1)));
            }
            1 => mark = (scan.mark(), want.at),
            2 => {
                scan.restore(&mark.0);
                want.go_to(mark.1);
            }
            _ => {
                let found = scan.next(p).map(|(k, no)| (k.to_vec(), no));
                assert_eq!(found, want.next(), "seed {seed}, step {step}");
            }
        }
        assert_eq!(scan.way(), want.at.1);
    }
}

#[test]
fn a_scan_turns_and_goes_back_to_its_marks() {
    for order in [0, 1] {
        let w = World::new(16 << 20, 1, order);
        let p = Comparer::default();
        let mut all: Vec<(Vec<u8>, u64)> = (0..60).map(|n| (key(n / 2), n)).collect();
        // Many entries with one key.
        all.extend((100..130).map(|n| (key(7), n)));
        all.sort_by(|a, b| if order == 0 { a.cmp(b) } else { b.0.cmp(&a.0).then(a.1.cmp(&b.1)) });
        w.pinned(0, || all.iter().for_each(|(k, no)| assert!(w.index.insert(&w.e, 0, &p, k, *no).unwrap())));
        let (first, last) = (key(5), key(20));
        let (lo, hi) = if order == 0 { (&first, &last) } else { (&last, &first) };
        let within =
            |(k, _): &&(Vec<u8>, u64)| if order == 0 { *k >= first && *k < last } else { *k > first && *k <= last };
        let part: Vec<(Vec<u8>, u64)> = all.iter().filter(within).cloned().collect();
        for seed in 0..300 {
            for way in [Direction::Forward, Direction::Backward] {
                w.pinned(0, || {
                    let mut scan = w.index.scan(Bound::Unbounded, Bound::Unbounded, way);
                    walk(&p, &mut scan, &all, seed);
                    let mut scan = w.index.scan(Bound::Included(lo), Bound::Excluded(hi), way);
                    walk(&p, &mut scan, &part, seed);
                });
            }
        }
    }
}
