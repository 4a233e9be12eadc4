use super::*;
use crate::threads::Block;

fn block() -> Block {
    Block::new(8 << 20, 40).expect("8 MB suffice")
}
fn h(slot: u16, mode: Mode) -> Holder {
    Holder { slot, mode, tag: 0 }
}

#[test]
fn modes_conflict_as_in_readme_tuplock() {
    use Mode::*;
    let table = [
        (KeyShare, [false, false, false, true]),
        (Share, [false, false, true, true]),
        (NoKeyUpdate, [false, true, true, true]),
        (Update, [true, true, true, true]),
    ];
    for (a, row) in table {
        for (b, want) in [KeyShare, Share, NoKeyUpdate, Update].into_iter().zip(row) {
            assert_eq!(a.conflicts(b), want, "{a:?} {b:?}");
            assert_eq!(a.conflicts(b), b.conflicts(a));
        }
    }
}

#[test]
fn intent_is_for_writers_of_a_range() {
    use Mode::*;
    for (mode, intent, change) in [
        (KeyShare, true, false),
        (Share, true, true),
        (Update, true, true),
        (Intent, false, false),
        (Change, false, false),
    ] {
        assert_eq!((Intent.conflicts(mode), mode.conflicts(Intent)), (intent, intent), "{mode:?}");
        assert_eq!((Change.conflicts(mode), mode.conflicts(Change)), (change, change), "{mode:?}");
    }
    let all = [KeyShare, Share, NoKeyUpdate, Update, Intent, Change];
    for a in all {
        assert_eq!(Mode::from_bits(a as u64), Some(a));
        for b in all {
            let j = a.join(b);
            assert!(j.covers(a) && j.covers(b) && b.join(a) == j);
            // A mode that conflicts with one of them conflicts with both together.
            assert!(all.iter().all(|&c| j.conflicts(c) || !(a.conflicts(c) || b.conflicts(c))), "{a:?} {b:?}");
        }
    }
    assert_eq!((Share.join(Intent), NoKeyUpdate.join(Share)), (Update, NoKeyUpdate));
    assert_eq!((Change.join(Intent), Change.join(KeyShare)), (Intent, Update));

    let b = block();
    let region = b.engine.region;
    let w = LockWord::new();
    for s in 0..3 {
        assert_eq!(w.try_acquire(region, h(s, Intent), Claim::Waits), Ok(Acquired::New));
    }
    assert!(
        matches!(w.try_acquire(region, h(1, Share), Claim::Waits), Err(Conflict::With(_))),
        "others write in the range"
    );
    assert!(matches!(w.try_acquire(region, h(9, Share), Claim::Waits), Err(Conflict::With(_))));
    w.release(region, 0, None);
    w.release(region, 2, None);
    assert_eq!(w.try_acquire(region, h(1, Share), Claim::Waits), Ok(Acquired::Upgraded(h(1, Intent))));
    assert_eq!(w.held_by(1), Some(h(1, Update)));
    assert!(matches!(w.try_acquire(region, h(2, Intent), Claim::Waits), Err(Conflict::With(_))));
    w.release(region, 1, None);
    assert!(w.is_free());
}

#[test]
fn many_share_and_one_is_left() {
    let b = block();
    let region = b.engine.region;
    let w = LockWord::new();
    for s in 0..30 {
        assert_eq!(w.try_acquire(region, h(s, Mode::Share), Claim::Waits), Ok(Acquired::New));
    }
    assert_eq!(w.try_acquire(region, h(3, Mode::Share), Claim::Waits), Ok(Acquired::Held));
    assert!(matches!(w.try_acquire(region, h(31, Mode::NoKeyUpdate), Claim::Waits), Err(Conflict::With(_))));
    assert_eq!(w.try_acquire(region, h(31, Mode::KeyShare), Claim::Waits), Ok(Acquired::New));
    for s in 0..30 {
        w.release(region, s, None);
    }
    assert_eq!(w.held_by(31), Some(h(31, Mode::KeyShare)));
    assert_eq!(w.try_acquire(region, h(31, Mode::Update), Claim::Waits), Ok(Acquired::Upgraded(h(31, Mode::KeyShare))));
    w.release(region, 31, Some(h(31, Mode::KeyShare)));
    assert_eq!(w.try_acquire(region, h(1, Mode::NoKeyUpdate), Claim::Waits), Ok(Acquired::New));
    w.release(region, 31, None);
    w.release(region, 1, None);
    assert!(w.is_free());
}

#[test]
fn two_upgrades_cannot_wait_for_each_other() {
    let b = block();
    let region = b.engine.region;
    let w = LockWord::new();
    w.try_acquire(region, h(1, Mode::Share), Claim::Waits).unwrap();
    w.try_acquire(region, h(2, Mode::Share), Claim::Waits).unwrap();
    assert_eq!(w.try_acquire(region, h(1, Mode::NoKeyUpdate), Claim::Waits), Err(Conflict::With(h(2, Mode::Share))));
    assert_eq!(w.try_acquire(region, h(2, Mode::NoKeyUpdate), Claim::Waits), Err(Conflict::Upgrade));
    w.release(region, 2, None);
    assert!(matches!(w.try_acquire(region, h(1, Mode::NoKeyUpdate), Claim::Waits), Ok(Acquired::Upgraded(_))));
    w.release(region, 1, None);
    assert!(w.is_free());
}

#[test]
fn who_will_not_wait_is_in_nobodys_way() {
    let b = block();
    let region = b.engine.region;
    let w = LockWord::new();
    w.try_acquire(region, h(1, Mode::Share), Claim::Waits).unwrap();
    w.try_acquire(region, h(2, Mode::Share), Claim::Waits).unwrap();
    let (one, two) = (Conflict::With(h(1, Mode::Share)), Conflict::With(h(2, Mode::Share)));
    assert_eq!(w.try_acquire(region, h(1, Mode::NoKeyUpdate), Claim::Now), Err(two));
    assert_eq!(w.try_acquire(region, h(2, Mode::NoKeyUpdate), Claim::Waits), Err(one), "its wait can end");
    assert_eq!(w.try_acquire(region, h(1, Mode::NoKeyUpdate), Claim::Now), Err(two), "it does not wait");
    assert_eq!(w.try_acquire(region, h(1, Mode::NoKeyUpdate), Claim::Waits), Err(Conflict::Upgrade));
    w.release(region, 2, None);
    assert!(matches!(w.try_acquire(region, h(1, Mode::NoKeyUpdate), Claim::Now), Ok(Acquired::Upgraded(_))));
    w.release(region, 1, None);
    assert!(w.is_free());
}

/// Threads take and release all modes. Each checks that no conflicting thread is inside.
#[test]
fn no_two_conflicting_holders() {
    use std::sync::atomic::{AtomicU32, Ordering};
    let b = block();
    let region = b.engine.region;
    let w = LockWord::new();
    let inside: [AtomicU32; 7] = Default::default();
    std::thread::scope(|scope| {
        for s in 0..4u16 {
            let (w, inside) = (&w, &inside);
            scope.spawn(move || {
                let mut x = 88172645463325252u64 ^ (s as u64 + 1) << 7;
                for _ in 0..20_000 {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    use Mode::*;
                    let mode = [KeyShare, Share, NoKeyUpdate, Update, Intent, Change][(x >> 33) as usize % 6];
                    if w.try_acquire(region, h(s, mode), Claim::Waits).is_err() {
                        continue;
                    }
                    inside[mode as usize].fetch_add(1, Ordering::SeqCst);
                    let n = |m: Mode| inside[m as usize].load(Ordering::SeqCst);
                    match mode {
                        Mode::KeyShare => assert_eq!(n(Update) + n(Intent), 0),
                        Mode::Share => assert_eq!(n(Update) + n(NoKeyUpdate) + n(Intent) + n(Change), 0),
                        Mode::NoKeyUpdate => assert_eq!((n(mode), n(Mode::Share), n(Mode::Update)), (1, 0, 0)),
                        Mode::Update => assert_eq!(n(KeyShare) + n(Share) + n(NoKeyUpdate) + n(Intent) + n(Change), 0),
                        Mode::Change => assert_eq!(n(Share) + n(NoKeyUpdate) + n(Update), 0),
                        Mode::Intent => assert_eq!(n(KeyShare) + n(Share) + n(NoKeyUpdate) + n(Update), 0),
                    }
                    inside[mode as usize].fetch_sub(1, Ordering::SeqCst);
                    w.release(region, s, None);
                }
            });
        }
    });
    assert!(w.is_free());
}

/// Asks for a lock as a newcomer, or as a holder of a weaker mode.
fn ask(w: &LockWord, b: &Block, slot: u16, mode: Mode) -> Result<Acquired, Conflict> {
    w.try_acquire(b.engine.region, h(slot, mode), Claim::Waits)
}

const BEHIND: Result<Acquired, Conflict> = Err(Conflict::Behind(First::OfQueue));

/// INV-TURN: while a word is marked, newcomers that conflict with the mark do not take the lock,
/// however many transactions hold it.
#[test]
fn a_mark_keeps_newcomers_behind() {
    use Mode::*;
    let b = block();
    let region = b.engine.region;
    for holders in [0, 1, 2, 20] {
        let w = LockWord::new();
        (1..=holders).for_each(|s| assert_eq!(ask(&w, &b, s, KeyShare), Ok(Acquired::New)));
        w.mark(Some(NoKeyUpdate));
        for claim in [Claim::Waits, Claim::Now] {
            let got = w.try_acquire(region, h(30, Share), claim);
            assert_eq!(got, BEHIND, "{holders} holders, {claim:?}");
        }
        assert_eq!(ask(&w, &b, 31, KeyShare), Ok(Acquired::New), "no conflict with the waiter");
        assert_eq!(ask(&w, &b, 31, Share), Ok(Acquired::Upgraded(h(31, KeyShare))), "a holder stays");
        assert_eq!(ask(&w, &b, 30, Share), BEHIND);
        w.release(region, 31, Some(h(31, KeyShare)));
        assert_eq!(ask(&w, &b, 30, Share), BEHIND, "the mark survives");
        for s in (1..=holders).chain([31]) {
            w.release(region, s, None);
            assert_eq!(ask(&w, &b, 30, Share), BEHIND, "also while it has no holder");
        }
        assert!(!w.is_free());
        assert_eq!(w.try_acquire(region, h(29, NoKeyUpdate), Claim::Turn), Ok(Acquired::New));
        assert_eq!(ask(&w, &b, 30, Share), Err(Conflict::With(h(29, NoKeyUpdate))));
        w.release(region, 29, None);
        assert!(w.is_free(), "the mark went with the lock");
    }
}

/// The mark survives when the word gets a list and when the list grows. A newcomer that passes
/// leaves the mark.
#[test]
fn a_mark_survives_lists() {
    use Mode::*;
    let b = block();
    let region = b.engine.region;
    let w = LockWord::new();
    w.mark(Some(Update));
    for s in 0..20 {
        assert_eq!(ask(&w, &b, s, KeyShare), BEHIND);
        assert_eq!(w.try_acquire(region, h(s, KeyShare), Claim::Pass), Ok(Acquired::New), "it has to pass");
    }
    for s in 0..20 {
        assert_eq!(ask(&w, &b, 30, KeyShare), BEHIND);
        w.release(region, s, None);
    }
    assert_eq!(ask(&w, &b, 30, KeyShare), BEHIND);
    w.mark(None);
    assert_eq!(ask(&w, &b, 30, KeyShare), Ok(Acquired::New), "the waiter has given up");
    w.mark(Some(Update));
    w.mark(None);
    w.release(region, 30, None);
    assert!(w.is_free());
}

/// A holder that waits for a stronger mode keeps newcomers behind in the same way.
#[test]
fn an_upgrade_keeps_newcomers_behind() {
    use Mode::*;
    let b = block();
    let region = b.engine.region;
    let w = LockWord::new();
    ask(&w, &b, 1, Share).unwrap();
    ask(&w, &b, 2, Share).unwrap();
    assert_eq!(ask(&w, &b, 1, NoKeyUpdate), Err(Conflict::With(h(2, Share))));
    ask(&w, &b, 3, Share).expect("not marked yet");
    w.mark_upgrade(2);
    ask(&w, &b, 4, Share).expect("the other one does not wait");
    w.mark_upgrade(1);
    assert_eq!(ask(&w, &b, 5, Share), Err(Conflict::Behind(First::Upgrader(1))));
    assert_eq!(ask(&w, &b, 5, KeyShare), Ok(Acquired::New));
    w.end_upgrade(1);
    assert_eq!(ask(&w, &b, 5, Share), Ok(Acquired::Upgraded(h(5, KeyShare))));
    ask(&w, &b, 6, Share).expect("it has given up");
    assert!(matches!(ask(&w, &b, 1, NoKeyUpdate), Err(Conflict::With(_))));
    ask(&w, &b, 7, Share).expect("another wait, not marked yet");
    w.mark_upgrade(1);
    (2..=7).for_each(|s| w.release(region, s, None));
    assert_eq!(ask(&w, &b, 1, NoKeyUpdate), Ok(Acquired::Upgraded(h(1, Share))));
    w.release(region, 1, None);
    assert!(w.is_free());
}
