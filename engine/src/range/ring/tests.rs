//! Positions and registrations in sequence.

use super::*;

fn ring() -> Box<Ring> {
    // SAFETY: INV-RING: all-zero memory is an empty ring.
    unsafe { Box::new(std::mem::zeroed()) }
}
fn add(r: List<'_, EntryHead>, tag: Stamp) -> u64 {
    r.register(tag, |_| ()).0
}

#[test]
fn own_aborted_and_later_are_ignored() {
    let ring = ring();
    let r = ring.list();
    let me = Stamp::tag(1, 1);
    let start = r.position();
    let p = add(r, me);
    assert_eq!(r.look(&start, 0, me, 5), Verdict::Valid);
    let other = Stamp::tag(2, 1);
    let q = add(r, other);
    assert_eq!(r.look(&start, 0, me, 5), Verdict::Look(other, q + 1));
    r.finish(q, other, Stamp::csn(9));
    assert_eq!(r.look(&start, 0, me, 5), Verdict::Valid);
    assert_eq!(r.look(&start, 0, me, 9), Verdict::Look(Stamp::csn(9), q + 1));
    let a = add(r, other);
    r.finish(a, other, Stamp::ABORTED);
    assert_eq!(r.look(&start, q + 1, me, 20), Verdict::Valid);
    r.finish(p, me, Stamp::csn(20));
    assert_eq!(r.position(), Position::from_low(3));
}

#[test]
fn a_scan_looks_at_what_was_open_at_its_start_and_not_at_what_was_finished() {
    let ring = ring();
    let r = ring.list();
    let me = Stamp::tag(1, 1);
    let (slow, slower) = (Stamp::tag(7, 3), Stamp::tag(9, 3));
    let p = add(r, slow);
    for i in 0..3 {
        let t = Stamp::tag(8, i);
        let q = add(r, t);
        r.finish(q, t, Stamp::csn(i as u64 + 1));
    }
    let q = add(r, slower);
    let start = r.position();
    assert_eq!(start, Position { low: p, tail: 5, open: 0b10001 });
    assert_eq!(r.look(&start, start.low, me, 20), Verdict::Look(slow, p + 1));
    assert_eq!(r.look(&start, p + 1, me, 20), Verdict::Look(slower, q + 1), "finished before the scan");
    r.finish(p, slow, Stamp::csn(10));
    r.finish(q, slower, Stamp::ABORTED);
    assert_eq!(r.look(&start, start.low, me, 20), Verdict::Look(Stamp::csn(10), p + 1));
    assert_eq!(r.look(&start, p + 1, me, 20), Verdict::Valid);
    assert_eq!(r.position(), Position::from_low(5));
}

#[test]
fn a_wrapped_ring_fails_the_predicate_and_never_the_writer() {
    let ring = ring();
    let r = ring.list();
    let start = r.position();
    for i in 0..RING_SIZE as u64 + 1 {
        let t = Stamp::tag(3, (i % 100) as u16);
        let q = add(r, t);
        r.finish(q, t, Stamp::ABORTED);
    }
    let me = Stamp::tag(1, 1);
    assert_eq!(r.look(&start, start.low, me, 5), Verdict::Wrapped);
    let now = r.position();
    assert_eq!(r.look(&now, now.low, me, 5), Verdict::Valid);
}

#[test]
fn open_ones_are_found_however_many_are_finished_after_them() {
    let ring = ring();
    let r = ring.list();
    let t = |i: u64| Stamp::tag(3, i as u16);
    for i in 0..40 {
        let q = add(r, t(i));
        r.finish(q, t(i), Stamp::csn(i + 1));
    }
    let slow = Stamp::tag(5, 5);
    let p = add(r, slow);
    for i in 41..41 + RING_SIZE as u64 - 1 {
        assert_eq!(r.position().low, p);
        let q = add(r, t(i));
        r.finish(q, t(i), Stamp::csn(i + 1));
    }
    assert_eq!(r.position().low, p);
    add(r, t(0));
    assert_eq!(r.position(), Position::LOST, "it is in no entry any more");
    r.finish(p, slow, Stamp::csn(500));
    assert_eq!(r.position().low, 41 + RING_SIZE as u64 - 1);
}

#[test]
fn a_snapshot_looks_at_what_committed_after_it() {
    let ring = ring();
    let r = ring.list();
    let me = Stamp::tag(1, 1);
    for i in 0..10u64 {
        let t = Stamp::tag(3, i as u16);
        let q = add(r, t);
        r.finish(q, t, Stamp::csn(100 - i));
    }
    assert_eq!(r.position_at(100), Position::from_low(10));
    let start = r.position_at(95);
    assert_eq!(start.low, 0);
    assert!(matches!(r.look(&start, 0, me, 200), Verdict::Look(_, 1)));
    let mut late = 0;
    for i in 0..RING_SIZE as u64 {
        let t = Stamp::tag(4, i as u16);
        let q = add(r, t);
        if i == 0 {
            late = q; // This one finishes after it was overwritten.
        } else {
            r.finish(q, t, Stamp::csn(10 + i % 10));
        }
    }
    assert_eq!(r.position_at(99), Position::LOST, "a CSN of 100 was evicted");
    assert!(r.position_at(100).low != u64::MAX);
    add(r, Stamp::tag(6, 0));
    r.finish(late, Stamp::tag(4, 0), Stamp::csn(300));
    assert_eq!(r.position_at(299), Position::LOST, "a lapped one finished with 300");
    assert!(r.position_at(300).low != u64::MAX);
}

#[test]
fn positions_together_look_at_what_each_looks_at() {
    let ring = ring();
    let r = ring.list();
    let (a, b) = (Stamp::tag(1, 1), Stamp::tag(2, 1));
    let first = r.position();
    let p = add(r, a);
    let q = add(r, b);
    let second = r.position();
    r.finish(q, b, Stamp::csn(4));
    let third = r.position();
    r.finish(p, a, Stamp::csn(5));
    let fourth = r.position();
    let all = [first, second, third, fourth, Position::from_low(1), Position { low: 3, tail: 90, open: 0b1001 }];
    for x in all {
        for y in all {
            let z = x.both(y);
            for pos in x.low.min(y.low)..200 {
                let needs = |p: Position| pos >= p.low && p.needs(pos);
                assert!(z.needs(pos) || !(needs(x) || needs(y)), "{x:?} {y:?} {pos}");
            }
        }
        assert_eq!(x.both(x), x);
        assert_eq!(x.both(Position::LOST), Position::LOST);
    }
    assert_eq!(second.both(third), second, "nothing more than the older one");
}

thread_local! { static MEANWHILE: std::cell::Cell<Option<Box<dyn FnOnce()>>> = const { std::cell::Cell::new(None) }; }

/// An entry that runs a hook at its next use, once.
struct Hooked(EntryHead);

impl Entry for Hooked {
    fn head(&self) -> &EntryHead {
        if let Some(f) = MEANWHILE.take() {
            f();
        }
        &self.0
    }
}

/// As `check_partition` of the validation, if no registration is older than the scan and no owner
/// is awaited.
fn is_valid(list: List<'_, Hooked>, start: Position, since: Csn, me: Stamp, csn: Csn) -> bool {
    match list.look(&start, start.low(), me, csn) {
        Verdict::Valid => return true,
        Verdict::Look(..) => return false,
        Verdict::Wrapped => {}
    }
    let oldest = list.oldest();
    list.look(&oldest, oldest.low(), me, csn) == Verdict::Valid && list.has_lost_nothing_since(since)
}

#[test]
fn what_is_about_to_be_overwritten_is_not_lost() {
    // SAFETY: INV-RING: all-zero memory is an empty list.
    let (head, entries): (&'static ListHead, &'static [Hooked; RING_SIZE]) =
        unsafe { (Box::leak(Box::new(std::mem::zeroed())), Box::leak(Box::new(std::mem::zeroed()))) };
    let list = List::new(head, &entries[..]);
    let (since, csn) = (10, 12);
    let me = Stamp::tag(0, 1);
    let start = list.position();
    let committed = Stamp::tag(1, 1);
    let (pos, _) = list.register(committed, |_| ());
    list.finish(pos, committed, Stamp::csn(11)); // After the scan, and before our CSN.
    for i in 1..RING_SIZE as u16 {
        let aborted = Stamp::tag(2, i);
        let (pos, _) = list.register(aborted, |_| ());
        list.finish(pos, aborted, Stamp::ABORTED);
    }
    assert!(!is_valid(list, start, since, me, csn), "it is in its entry");
    let missed = std::rc::Rc::new(std::cell::Cell::new(None));
    let seen = missed.clone();
    MEANWHILE.set(Some(Box::new(move || seen.set(Some(is_valid(list, start, since, me, csn))))));
    let later = Stamp::tag(3, 1);
    let (pos, _) = list.register(later, |_| ());
    list.finish(pos, later, Stamp::ABORTED);
    assert_eq!(missed.get(), Some(false), "its place is taken, its entry is not overwritten");
    assert!(!is_valid(list, start, since, me, csn), "it is overwritten");
    assert!(is_valid(list, start, 11, me, csn), "what is older than the scan may be lost");
    // SAFETY: both came from boxes of these types, and no reference to them is used any more.
    unsafe {
        drop(Box::from_raw(std::ptr::from_ref(head).cast_mut()));
        drop(Box::from_raw(std::ptr::from_ref(entries).cast_mut()));
    }
}
