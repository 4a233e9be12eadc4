//! Scans under way whose predicates were merged, because there were too many: their rows stay
//! protected.

use crate::client::{Client, Mood};
use crate::spans::{borrowed, encode};
use crate::world::{Jitter, World, PARTITIONS, WIDTH};
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::range::Looked;
use mixedcc_engine::txn::{OpenEnd, Scan, ScanId, MAX_PREDICATES};
use mixedcc_engine::{Policy, Protocol, ProtocolSet};
use std::ops::Bound::{self, Excluded, Included};

/// `2pl`, and two ranges.
fn world() -> World {
    let w = World::new(&[ProtocolSet::of(Protocol::TwoPhase)], Policy::NoWait, 4);
    let p = Jitter::new(&w, w.slots, 1);
    w.activate(&p, w.slots, 0, &[WIDTH, 2 * WIDTH], 64).expect("room for ranges");
    w
}

fn scan(c: &mut Client, lo: i64, hi: Bound<i64>) -> ScanId {
    let at: Vec<_> = (0..PARTITIONS).map(|p| c.w.touch(p)).collect();
    let (lo, hi) = (Included(encode(0, lo)), hi.map(|k| encode(0, k)));
    let s =
        Scan { at: &at, lo: borrowed(&lo), hi: borrowed(&hi), open: OpenEnd::No, snapshot: None, looked: Looked::ALL };
    let ranges = c.w.index_ranges(0).expect("active ranges");
    c.t.begin_scan(&c.p, ranges, &s).expect("nobody is in the way")
}

/// So many scans of pieces of the first range, behind the rows.
fn more(c: &mut Client, n: usize) {
    for i in 0..n as i64 {
        scan(c, 10 + i % 500, Included(10 + i % 500));
    }
}

/// `reader` reads the row 0 with this scan, then another one writes it that has read what the
/// reader writes next: one of them must fail.
fn one_of_two_fails(reader: &mut Client, writer: &mut Client, way: ScanId) {
    let r = reader.w.records(0)[0];
    assert!(reader.look_scanned(r, false, way).expect("nobody writes").is_some());
    writer.begin(Mood::Serializable);
    let done = writer.get(4).and_then(|_| writer.update(0, false)).and_then(|_| writer.commit());
    writer.abort();
    let done = done.and_then(|()| reader.update(4, false)).and_then(|_| reader.commit());
    reader.abort();
    assert!(done.is_err(), "each has read what the other one wrote, before");
}

/// A scan that asks for each row whether its rows are locked (a filtered sequential scan).
#[test]
fn rows_of_a_merged_scan_are_locked() {
    let w = world();
    let recorder = Recorder::new();
    let (mut reader, mut writer) =
        (Client::new(&w, 0, recorder.session(), 1), Client::new(&w, 1, recorder.session(), 2));
    for n in [0, 2 * MAX_PREDICATES] {
        reader.begin(Mood::Serializable);
        let id = scan(&mut reader, 0, Included(1));
        assert!(reader.t.locks_rows(id));
        more(&mut reader, n);
        let way = if reader.t.locks_rows(id) { id } else { id.outside() };
        one_of_two_fails(&mut reader, &mut writer, way);
    }
}

/// Scans whose rows are not told apart, one of which has locked a range (bitmaps): the rows are not
/// locked then, so that writes of them count.
#[test]
fn rows_of_a_merged_scan_that_are_not_locked_are_validated() {
    let w = world();
    let recorder = Recorder::new();
    let (mut reader, mut writer) =
        (Client::new(&w, 0, recorder.session(), 1), Client::new(&w, 1, recorder.session(), 2));
    for n in [0, MAX_PREDICATES - 1] {
        reader.begin(Mood::Serializable);
        let one = scan(&mut reader, 0, Included(1));
        more(&mut reader, n);
        let other = scan(&mut reader, WIDTH, Excluded(2 * WIDTH));
        let way = reader.t.share_rows(&mut [one, other]);
        one_of_two_fails(&mut reader, &mut writer, way);
    }
}
