//! Unit tests of what a primary tells and a standby shows.

use super::*;
use crate::csn::{SlotWord, State};
use crate::threads::Block;
use crate::txn::Txn;

fn told(csn: Csn, open: &[u64]) -> Option<Told> {
    Some(Told::new(csn, open.to_vec()))
}

#[test]
fn what_is_told_is_decided() {
    let block = Block::new(8 << 20, 3).expect("a block");
    let e = block.engine;
    let now = (e.tick(), e.tick(), e.tick()).2;
    assert_eq!(e.stable_upto(&[]), told(now, &[]));
    let open = e.tick();
    e.slots[1].word.store(SlotWord::new(0, open, State::Committing).0, Ordering::SeqCst);
    e.tick();
    assert_eq!(e.stable_upto(&[]), told(open - 1, &[]));
    e.slots[1].word.store(SlotWord::new(0, open, State::Committed).0, Ordering::SeqCst);
    assert_eq!(e.stable_upto(&[]), told(e.now(), &[]));
}

#[test]
fn what_is_prepared_is_told_as_open_until_its_commit_is_told() {
    let block = Block::new(8 << 20, 3).expect("a block");
    let e = block.engine;
    let prepared = e.tick();
    e.slots[1].xid.store(7, Ordering::SeqCst);
    e.slots[1].logged_at.store(prepared, Ordering::SeqCst);
    let other = e.tick();
    assert_eq!(e.stable_upto(&[]), told(other, &[7]));
    // Another commit is under way below the CSN of the end.
    e.slots[2].word.store(SlotWord::new(0, other, State::Committing).0, Ordering::SeqCst);
    let end = e.tick();
    e.slots[1].word.store(SlotWord::new(0, end, State::Committing).0, Ordering::SeqCst);
    assert_eq!(e.stable_upto(&[]), told(other - 1, &[7]));
    e.shared.standby.note_end(End { xid: 7, logged: prepared, ended: end, what: 0 });
    assert_eq!(e.stable_upto(&[]), told(other - 1, &[7]), "it is named once");
    e.slots[1].logged_at.store(0, Ordering::SeqCst);
    assert_eq!(e.stable_upto(&[]), told(other - 1, &[7]), "it would be seen at {}, below {end}", other - 1);
    e.slots[1].word.store(SlotWord::new(0, end, State::Committed).0, Ordering::SeqCst);
    assert_eq!(e.stable_upto(&[]), told(other - 1, &[7]));
    faults::set(Some(Fault::EndsForgotten));
    e.shared.standby.note_end(End { xid: 8, logged: prepared, ended: end, what: 0 });
    faults::set(None);
    assert_eq!(e.stable_upto(&[]), None, "who was open at {} is not known", other - 1);
    e.slots[2].word.store(SlotWord::new(0, other, State::Committed).0, Ordering::SeqCst);
    assert_eq!(e.stable_upto(&[]), told(end, &[]));
}

#[test]
fn changes_of_definitions_and_too_many_hold_it_back() {
    let block = Block::new(8 << 20, OPEN_MAX + 3).expect("a block");
    let e = block.engine;
    e.shared.guards.0.enter();
    let first = e.tick();
    e.slots[0].logged_as.store(REDEFINES, Ordering::SeqCst);
    e.slots[0].logged_at.store(first, Ordering::SeqCst);
    e.tick();
    assert_eq!(e.stable_upto(&[]), told(first - 1, &[]));
    assert!(e.is_held_back(first + 1) && !e.is_held_back(first));
    e.slots[0].logged_at.store(0, Ordering::SeqCst);
    let room = e.room();
    let all: Vec<_> = (1..=OPEN_MAX as u64 + 2).collect();
    let csns: Vec<_> = all.iter().map(|_| e.tick()).collect();
    for (i, csn) in csns.iter().enumerate() {
        e.slots[i].logged_as.store(0, Ordering::SeqCst);
        e.slots[i].xid.store(all[i], Ordering::SeqCst);
        e.slots[i].logged_at.store(*csn, Ordering::SeqCst);
    }
    assert_eq!(e.stable_upto(&[]), told(csns[room] - 1, &all[..room]));
    assert!(e.is_held_back(Csn::MAX) && !e.is_held_back(csns[room]));
    // They have logged nothing.
    e.slots[..all.len() - room].iter().for_each(|slot| slot.xid.store(0, Ordering::SeqCst));
    assert!(!e.is_held_back(Csn::MAX), "all of the others are told");
    assert_eq!(e.stable_upto(&[]), told(e.now(), &all[all.len() - room..]));
}

#[test]
fn ends_above_what_is_stable_count_as_if_they_were_to_come() {
    let block = Block::new(8 << 20, 3).expect("a block");
    let (e, standby) = (block.engine, &block.engine.shared.standby);
    (0..100).for_each(|_| {
        e.tick();
    });
    let under_way = |csn| e.slots[2].word.store(SlotWord::new(0, csn, State::Committing).0, Ordering::SeqCst);
    let ends = |xid, logged, ended, what| standby.note_end(End { xid, logged, ended, what });
    ends(1, 10, 20, 0);
    ends(0, 10, 20, 0); // It has logged nothing.
    ends(2, 30, 60, REDEFINES);
    ends(3, 40, 50, 0);
    ends(4, 1000, 80, RECOVERED);
    let stable = |csn: Csn| {
        under_way(csn + 1);
        e.stable_upto(&[])
    };
    assert_eq!([stable(80), stable(90)], [told(80, &[]), told(90, &[])]);
    assert_eq!(stable(79), told(79, &[4 | ASLEEP]), "of which it is not noted that it defines nothing");
    assert_eq!(stable(60), told(60, &[4 | ASLEEP]));
    assert_eq!(stable(59), told(29, &[4 | ASLEEP]), "the files of 2 are in use");
    assert_eq!(stable(19), told(19, &[4 | ASLEEP, 1]));
    assert_eq!(stable(9), told(9, &[4 | ASLEEP]));
    ends(5, 15, 29, REDEFINES);
    assert_eq!(stable(59), told(29, &[4 | ASLEEP]));
    ends(6, 25, 30, REDEFINES);
    assert_eq!(stable(59), told(14, &[4 | ASLEEP, 1]), "one after the other");
    assert!(!standby.set_recovered(&[4]));
    assert_eq!(stable(79), told(79, &[4]), "its rows have its CSN in each table");
    for n in 0..ENDS as u64 {
        ends(100 + n, 90, 95 + n % 3, 0);
    }
    assert_eq!(stable(79), None, "who was open then is not known");
    assert_eq!([stable(80), stable(94)], [told(80, &[]), told(89, &[])], "there is no room for all");
    assert_eq!(stable(97), told(97, &[]));
}

#[test]
fn what_was_open_counts_after_the_last_time_that_it_was() {
    let block = Block::new(8 << 20, 3).expect("a block");
    let standby = &block.engine.shared.standby;
    let show = |csn, open: &[u64]| {
        standby.show(Shown { csn, life: 7, at: 100, time: 0 }, open.iter().copied());
    };
    assert_eq!(standby.shown_with(), None);
    show(50, &[3, 4]);
    let shown = || standby.shown_with().map(|t| (t.csn, t.open));
    assert_eq!(shown(), Some((50, vec![3, 4])));
    show(60, &[3]);
    show(55, &[3, 4]);
    assert_eq!(shown(), Some((60, vec![3])), "an older one comes late");
    assert_eq!(standby.counts_at(4), Ok(51));
    assert_eq!(standby.counts_at(3), Err(50));
    assert_eq!(standby.counts_at(9), Err(50), "what was before is not known");
    let live = Live::default();
    let now = || standby.shown_with().expect("it is known");
    live.pass(&now(), &[3]);
    let is_passed = |live: &Live| live.is_passed(&now());
    assert!(!is_passed(&live));
    let many = Live::default();
    many.pass(&now(), &[3; PASSED + 1]);
    assert!(!is_passed(&many));
    show(70, &[]);
    assert_eq!(standby.counts_at(3), Ok(61));
    assert!(is_passed(&live) && is_passed(&many));
    let at = [49, 50, 55, 60, 61, 70].map(|from| was_open(standby.counts_at(3), 45, from));
    assert_eq!(at, [true, true, true, true, false, false], "60 is the last CSN at which it was open");
    assert!(!was_open(Err(50), 45, 50) && !was_open(Err(50), 55, 49), "it was never");
    assert!(was_open(standby.counts_at(9), 45, 49), "what was before 50 is not known");
    for n in 0..=LEFT as u64 {
        show(100 + 2 * n, &[1000 + n]);
    }
    assert_eq!(standby.counts_at(3), Err(61), "there is no room to remember it");
    assert!(was_open(standby.counts_at(3), 45, 60) && !was_open(standby.counts_at(3), 45, 61));
    standby.turn(true);
    assert_eq!((standby.shown_with(), standby.counts_at(1000)), (None, Err(0)));
}

#[test]
fn what_was_prepared_before_this_life_is_told_while_it_runs_or_has_a_slot() {
    let block = Block::new(8 << 20, 3).expect("a block");
    let (e, standby) = (block.engine, &block.engine.shared.standby);
    let now = e.tick();
    assert_eq!(standby.recovered(|_| true), None);
    assert!(!standby.set_recovered(&[7, 8 | ASLEEP]));
    assert_eq!(standby.recovered(|_| true), Some(vec![7, 8 | ASLEEP]));
    assert_eq!(standby.recovered(|xid| xid == 8), Some(vec![8 | ASLEEP]));
    let others = |xid| (xid == 8).then_some(true).expect("7 has ended: others may have its lower half");
    assert_eq!(standby.recovered(others), Some(vec![8 | ASLEEP]));
    let without = e.stable_upto(&[7, 8 | ASLEEP]);
    assert_eq!(without, told(now, &[7 | ASLEEP, 8 | ASLEEP]), "they may end without a slot");
    let without = without.expect("it is told");
    assert!(without.is_open(7) && without.is_asleep(7) && !without.is_open(9));
    let slots: Vec<_> = [7, 8].into_iter().zip(&e.slots[1..]).collect();
    for (xid, slot) in &slots {
        slot.xid.store(*xid, Ordering::SeqCst);
        slot.logged_as.store(RECOVERED, Ordering::SeqCst);
        // Of another life: above the clock.
        slot.logged_at.store(1000, Ordering::SeqCst);
    }
    assert_eq!(e.stable_upto(&[7, 8 | ASLEEP]), without.clone().into(), "the slot may go again");
    slots.iter().for_each(|(_, slot)| slot.kept.store(std::ptr::dangling_mut(), Ordering::SeqCst));
    assert_eq!(e.stable_upto(&[7, 8 | ASLEEP]), told(now, &[7, 8 | ASLEEP]));
    assert_eq!(e.stable_upto(&[8 | ASLEEP]), told(now, &[8 | ASLEEP, 7]), "it has ended, and is not finished");
    e.shared.guards.0.enter();
    assert!(!e.is_held_back(Csn::MAX));
    for (_, slot) in &slots {
        slot.logged_at.store(0, Ordering::SeqCst);
        slot.kept.store(std::ptr::null_mut(), Ordering::SeqCst);
    }
    assert_eq!(e.stable_upto(&[]), told(now, &[]));
}

#[test]
fn too_many_of_before_this_life_are_told_as_all_that_is_older() {
    let block = Block::new(8 << 20, OPEN_MAX + BEFORE_MAX).expect("a block");
    let (e, standby) = (block.engine, &block.engine.shared.standby);
    let now = e.tick();
    let ids: Vec<u64> = (1..=BEFORE_MAX as u64 + 1).collect();
    let below = ids.len() as u64 + 1;
    assert!(standby.set_recovered(&ids));
    let before = standby.recovered(|_| panic!("none is asked for")).expect("they are known");
    let all = e.stable_upto(&before).expect("it is told");
    assert_eq!((all.csn, all.open.len()), (now, 1));
    assert!(all.is_asleep(1) && all.is_open(below - 1) && !all.is_open(below));
    let show = |csn, open: &[u64]| {
        standby.show(Shown { csn, life: 7, at: 100, time: 0 }, open.iter().copied());
    };
    show(50, &all.open);
    let then = standby.shown_with().expect("it is known");
    assert!(then.is_asleep(3) && !then.is_open(below));
    let more: Vec<u64> = ids.iter().copied().chain([below + 5]).collect();
    assert!(standby.set_recovered(&more));
    assert_eq!(standby.recovered(|_| true), Some(before), "ids of this life are not below");
    // Some leave the word, and are not finished yet. They are told beside others.
    let few = BEFORE_MAX / 2;
    assert!(standby.set_recovered(&[&ids[..few], &[1; BEFORE_MAX]].concat()));
    for (i, slot) in e.slots.iter().enumerate() {
        let xid = if i < few { few + i + 1 } else { 1000 + i };
        slot.xid.store(xid as u64, Ordering::SeqCst);
        slot.logged_as.store(if i < few { RECOVERED } else { 0 }, Ordering::SeqCst);
        slot.logged_at.store(e.tick(), Ordering::SeqCst);
    }
    let some = e.stable_upto(&standby.recovered(|_| true).expect("they are known"));
    assert_eq!(some.map(|told| told.open.len()), Some(1 + few + e.room()));
    e.slots.iter().for_each(|slot| slot.logged_at.store(0, Ordering::SeqCst));
    assert!(!standby.set_recovered(&ids[..2]));
    assert_eq!(standby.recovered(|_| true), Some(vec![1, 2]));
    assert!(!standby.set_recovered(&ids[..3]));
    assert_eq!(standby.recovered(|_| true), Some(vec![1, 2]), "others read the list");
    show(60, &[1, 2]);
    assert!(standby.shown_with().expect("it is known").lefts > then.lefts);
    assert_eq!(standby.counts_at(3), Err(51), "it was open at 50, and is not named");
    assert!(was_open(standby.counts_at(3), 45, 50));
}

#[test]
fn the_companion_finds_what_others_have_told() {
    let block = Block::new(8 << 20, 3).expect("a block");
    let standby = &block.engine.shared.standby;
    assert!(standby.find(&[]), "it has found nothing yet");
    assert!(!standby.find(&[]));
    assert!(standby.find(&[7]) && !standby.find(&[7]));
    standby.tell(&Told::new(50, vec![7]), 0);
    assert!(!standby.find(&[7]));
    // It was asleep for a moment.
    standby.tell(&Told::new(51, vec![7 | ASLEEP]), 0);
    assert!(standby.find(&[7]), "a standby has it asleep at 51");
    assert!(!standby.find(&[7]));
    standby.tell(&Told::new(0, Vec::new()), 60);
    assert!(!standby.find(&[7]), "a horizon has no list");
    assert_eq!(standby.told(), (51, 60));
}

#[test]
fn one_that_has_ended_before_it_has_a_slot_is_not_told() {
    let block = Block::new(8 << 20, 3).expect("a block");
    let e = block.engine;
    let (now, open) = (e.tick(), |running: &[u64]| e.stable_upto(running).expect("it is told").open);
    assert!(Txn::begin_recovered(e, 1, 77, (9, now), || false).is_none());
    assert!(open(&[]).is_empty());
    let raises = || Txn::begin_recovered(e, 1, 77, (9, now), || panic!("an error of the platform")).is_some();
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(raises)).is_err());
    assert!(open(&[]).is_empty(), "and no look waits for it");
    faults::set(Some(Fault::EndedListed));
    let mut t = Txn::begin_recovered(e, 1, 77, (9, now), || false).expect("it begins");
    faults::set(None);
    assert_eq!(open(&[]), [9 | ASLEEP], "it was not open before");
    t.abort();
    let mut t = Txn::begin_recovered(e, 1, 77, (9, now), || true).expect("it begins");
    assert_eq!(open(&[9]), [9 | ASLEEP]);
    assert_eq!(open(&[]), [9 | ASLEEP], "its end is found in the slot");
    t.abort();
    assert!(open(&[]).is_empty());
    let mut t = Txn::begin_ended(e, 1, 77, 9);
    assert!(open(&[]).is_empty(), "one that has ended has its CSN");
    t.abort();
}

#[test]
fn one_that_leaves_meanwhile_is_not_missed_by_a_table_that_passes_over_many() {
    let block = Block::new(8 << 20, 3).expect("a block");
    let standby = &block.engine.shared.standby;
    let show = |csn, open: &[u64]| {
        standby.show(Shown { csn, life: 7, at: 100, time: 0 }, open.iter().copied());
    };
    show(50, &[3, 4]);
    let told = standby.shown_with().expect("it is known");
    show(60, &[3]);
    let live = Live::default();
    live.pass(&told, &[3; PASSED + 1]);
    assert!(live.is_passed(&standby.shown_with().expect("it is known")), "4 is open no more");
}

#[test]
fn a_snapshot_is_met_by_its_horizon() {
    let block = Block::new(8 << 20, 3).expect("a block");
    let (e, standby) = (block.engine, &block.engine.shared.standby);
    assert_eq!(e.take_stable(0, true), None);
    assert_eq!(e.showing_below(Csn::MAX).count(), 0);
    let show = |csn| standby.show(Shown { csn, life: 7, at: 100, time: 0 }, std::iter::empty());
    show(50);
    assert_eq!(e.take_stable(0, true), Some(50));
    show(60);
    assert_eq!(e.take_stable(1, true), Some(60));
    assert_eq!(e.take_stable(0, false), Some(60), "and the old one is in use still");
    assert_eq!(e.showing_below(60).collect::<Vec<_>>(), [0]);
    assert_eq!(e.take_stable(0, true), Some(60));
    assert_eq!(e.showing_below(60).count(), 0);
    e.slots[2].shows.store(TAKING, Ordering::SeqCst);
    assert_eq!(e.showing_below(2).collect::<Vec<_>>(), [2], "it may take anything");
    assert!(standby.is_life(7) && !standby.is_life(8));
    standby.require(55);
    assert_eq!(standby.shown(), Some(60));
    standby.require(70);
    assert_eq!(standby.shown(), None, "what is below is shown no more");
    show(65);
    assert_eq!(standby.shown(), None);
    show(70);
    assert_eq!(standby.shown(), Some(70));
    standby.forget();
    assert_eq!(standby.shown(), None);
}

#[test]
fn eras_differ_and_tell_whether_there_is_replay() {
    let block = Block::new(8 << 20, 3).expect("a block");
    let standby = &block.engine.shared.standby;
    let mut before = 0;
    for in_replay in [true, true, false, true, false] {
        standby.turn(in_replay);
        assert!(standby.era() > before && (standby.era() % 2 == 1) == in_replay);
        before = standby.era();
    }
}

#[test]
fn blocks_that_move_are_met_again_or_too_many() {
    let block = Block::new(8 << 20, 3).expect("a block");
    let standby = &block.engine.shared.standby;
    let (s, other) = ([1, 2, 3, 0].into(), [1, 2, 4, 0].into());
    standby.restored(s, 1);
    let (mut moved, mut found) = (standby.moved(), Vec::new());
    assert!(moved.look(standby, s, &mut found) && found.is_empty());
    standby.restored(s, 2);
    standby.restored(other, 3);
    assert!(moved.look(standby, s, &mut found));
    assert_eq!(found, [2]);
    (0..MOVED).for_each(|n| standby.restored(s, n as u32));
    assert!(!moved.look(standby, s, &mut found), "some may be lost");
}
