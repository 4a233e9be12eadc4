//! Tests of the formats and of the merge, with a repeatable generator.

mod entries;
mod journal;
mod merging;
mod pages;
mod records;
mod space;
mod window;

use super::entry::{Entry, Kind, NO_RECORD, PIECE};
use super::page::{Page, PAGE};
use crate::csn::{Csn, CSN_MAX};
use crate::table::MAX_RECORDS;

/// A small, repeatable generator (splitmix64).
pub(super) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
    /// True once in so many times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
    /// A length of a row: short, around a page, or several pages.
    pub fn len(&mut self) -> usize {
        match self.below(20) {
            0 => 0,
            1 => PIECE - 2 + self.below(5) as usize,
            2 => PIECE + self.below(3 * PIECE as u64) as usize,
            _ => self.below(200) as usize,
        }
    }
}

/// The bytes of a row, which its record and CSN tell.
pub(super) fn row(record: u32, csn: Csn, len: usize) -> Vec<u8> {
    Random((record as u64) << 32 ^ csn).bytes(len)
}

/// An empty page.
pub(super) fn blank() -> Box<[u8; PAGE]> {
    Box::new([0; PAGE])
}

/// Reads a page that must be right.
pub(super) fn read(page: &[u8; PAGE], block: u32) -> Page<'_> {
    Page::read(page, block).expect("the page is right").expect("the page is not new")
}

/// Random entries that obey the rules, in pieces if they are long.
pub(super) fn entries<'a>(r: &mut Random, payload: &'a [u8]) -> Vec<Entry<'a>> {
    let kind = *r.pick(&[Kind::Row, Kind::Row, Kind::Row, Kind::Tomb, Kind::High, Kind::Hints]);
    let payload = if matches!(kind, Kind::Tomb | Kind::High) { &[][..] } else { payload };
    let record = match kind {
        Kind::Hints => NO_RECORD,
        _ if r.one_in(10) => MAX_RECORDS as u32 - 1,
        _ => r.below(1000) as u32,
    };
    let csn = match kind {
        Kind::High => 0,
        _ if r.one_in(10) => CSN_MAX,
        _ => 1 + r.below(1000),
    };
    let pending = (kind != Kind::High && r.one_in(3)).then(|| 1 + r.next() / 2);
    Entry { csn, kind, record, pending, fragment: None, payload }.pieces().collect()
}
