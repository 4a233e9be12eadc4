//! Single steps of sessions in one thread, with scans of key ranges: for the tests of predicates
//! and range locks.

use crate::client::{Client, Mood};
use crate::spans::{borrowed, encode};
use crate::world::{Jitter, World, PARTITIONS};
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::csn::SlotId;
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::platform::{Platform, Queue, StopEvent, WaitFor};
use mixedcc_engine::protocol::Touch;
use mixedcc_engine::range::{IndexRanges, Looked};
use mixedcc_engine::txn::{OpenEnd, Scan, ScanId};
use mixedcc_engine::{Error, Policy, Protocol, ProtocolSet};
use std::cell::RefCell;
use std::ops::Bound;
use Mood::{ReadCommitted, Serializable};

/// A world whose indexes have ranges from the start on.
pub fn world(p: Protocol, policy: Policy, cuts: &[i64], list: u32) -> World {
    let w = World::new(&[ProtocolSet::of(p)], policy, 4);
    let jitter = Jitter::new(&w, w.slots, 1);
    for i in [0, 1] {
        w.activate(&jitter, w.slots, i, cuts, list).expect("room for ranges");
    }
    w
}

/// A session whose transactions are validated at their commit, also those that write nothing.
pub fn session<'w>(w: &'w World, r: &Recorder, slot: u16) -> Client<'w> {
    let c = Client::new(w, slot, r.session(), 77);
    c.p.threads.writers.set(true);
    c
}

pub fn ranges(w: &World, i: usize) -> &'static IndexRanges {
    w.index_ranges(i).expect("active ranges")
}

pub fn all(w: &World) -> Vec<Touch> {
    (0..PARTITIONS).map(|p| w.touch(p)).collect()
}

/// The bounds in the terms of index `i`, which may run downwards.
pub fn bounds(i: usize, lo: Bound<i64>, hi: Bound<i64>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let (lo, hi) = if i == 0 { (lo, hi) } else { (hi, lo) };
    (lo.map(|k| encode(i, k)), hi.map(|k| encode(i, k)))
}

pub fn begin_scan(c: &mut Client, i: usize, lo: Bound<i64>, hi: Bound<i64>, open: OpenEnd) -> Result<ScanId, Error> {
    begin_scan_of(c, i, (lo, hi), open, Looked::ALL)
}

/// A scan that looks at these columns.
pub fn begin_scan_of(
    c: &mut Client,
    i: usize,
    (lo, hi): (Bound<i64>, Bound<i64>),
    open: OpenEnd,
    looked: Looked,
) -> Result<ScanId, Error> {
    let (lo, hi) = bounds(i, lo, hi);
    let at = all(c.w);
    let scan = Scan { at: &at, lo: borrowed(&lo), hi: borrowed(&hi), open, snapshot: None, looked };
    c.t.begin_scan(&c.p, ranges(c.w, i), &scan)
}

pub fn scan(c: &mut Client, i: usize, lo: Bound<i64>, hi: Bound<i64>) -> ScanId {
    begin_scan(c, i, lo, hi, OpenEnd::No).expect("a scan")
}

pub fn failed_with(r: Result<(), Error>, reason: AbortReason) {
    match r {
        Err(Error::Abort { reason: why, .. }) => assert_eq!(why, reason),
        other => panic!("{other:?}, not {reason:?}"),
    }
}

pub fn compare(i: usize, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
    if i == 0 {
        a.cmp(b)
    } else {
        b.cmp(a)
    }
}

/// Writes a key in one of four ways; whatever is there.
pub fn write(c: &mut Client, key: i64, there: bool, how: u32) {
    c.begin([Serializable, ReadCommitted][how as usize % 2]);
    let done = match (there, how) {
        (false, _) => c.insert(key),
        (true, 0 | 1) => c.update(key, false),
        (true, _) => c.delete(key, false, false),
    };
    assert_eq!(done, Ok(true), "{key} {there} {how}");
    c.commit().expect("a write that nobody disturbs");
}

/// A platform on which something else happens once at a stop event.
pub struct Meanwhile<'a> {
    p: &'a Jitter,
    at: StopEvent,
    then: RefCell<Option<Box<dyn FnOnce() + 'a>>>,
}

impl<'a> Meanwhile<'a> {
    /// Between the CSN of a commit and its validation.
    pub fn new(p: &'a Jitter, then: impl FnOnce() + 'a) -> Meanwhile<'a> {
        Meanwhile::at(p, StopEvent::CommitValidate, then)
    }
    pub fn at(p: &'a Jitter, at: StopEvent, then: impl FnOnce() + 'a) -> Meanwhile<'a> {
        Meanwhile { p, at, then: RefCell::new(Some(Box::new(then))) }
    }
}

impl Platform for Meanwhile<'_> {
    fn wait_for(&self, who: WaitFor) -> Result<(), Error> {
        self.p.wait_for(who)
    }
    fn enter_queue(&self, q: Queue) -> Result<(), Error> {
        self.p.enter_queue(q)
    }
    fn leave_queue(&self, q: Queue) {
        self.p.leave_queue(q);
    }
    fn pause(&self, n: u32) -> Result<(), Error> {
        self.p.pause(n)
    }
    fn lock_tag(&self) -> u32 {
        self.p.lock_tag()
    }
    fn take_tag(&self, bit: u32) -> Result<u32, Error> {
        self.p.take_tag(bit)
    }
    fn give_up(&self, tag: u32) {
        self.p.give_up(tag);
    }
    fn quiescent(&self, slot: SlotId) -> bool {
        self.p.quiescent(slot)
    }
    fn has_written(&self) -> bool {
        self.p.has_written()
    }
    fn freezes_readers(&self) -> bool {
        self.p.freezes_readers()
    }
    fn stop_event(&self, e: StopEvent) -> Result<(), Error> {
        let then = self.then.borrow_mut().take_if(|_| e == self.at);
        then.into_iter().for_each(|f| f());
        self.p.stop_event(e)
    }
}
