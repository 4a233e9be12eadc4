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
    for (mode, conflicts) in [(Share, true), (Update, true), (Intent, false)] {
        assert_eq!((Intent.conflicts(mode), mode.conflicts(Intent)), (conflicts, conflicts), "{mode:?}");
    }
    let all = [KeyShare, Share, NoKeyUpdate, Update, Intent];
    for a in all {
        assert_eq!(Mode::from_bits(a as u64), Some(a));
        for b in all {
            let j = a.join(b);
            assert!(j.covers(a) && j.covers(b) && b.join(a) == j);
            // What conflicts with one of them conflicts with both together.
            assert!(all.iter().all(|&c| j.conflicts(c) || !(a.conflicts(c) || b.conflicts(c))), "{a:?} {b:?}");
        }
    }
    assert_eq!((Share.join(Intent), NoKeyUpdate.join(Share)), (Update, NoKeyUpdate));

    let b = block();
    let region = b.engine.region;
    let w = LockWord::new();
    for s in 0..3 {
        assert_eq!(w.try_acquire(region, h(s, Intent)), Ok(Acquired::New));
    }
    assert!(matches!(w.try_acquire(region, h(1, Share)), Err(Conflict::With(_))), "others write in the range");
    assert!(matches!(w.try_acquire(region, h(9, Share)), Err(Conflict::With(_))));
    w.release(region, 0, None);
    w.release(region, 2, None);
    assert_eq!(w.try_acquire(region, h(1, Share)), Ok(Acquired::Upgraded(h(1, Intent))));
    assert_eq!(w.held_by(1), Some(h(1, Update)));
    assert!(matches!(w.try_acquire(region, h(2, Intent)), Err(Conflict::With(_))));
    w.release(region, 1, None);
    assert!(w.is_free());
}

#[test]
fn many_share_and_one_is_left() {
    let b = block();
    let region = b.engine.region;
    let w = LockWord::new();
    for s in 0..30 {
        assert_eq!(w.try_acquire(region, h(s, Mode::Share)), Ok(Acquired::New));
    }
    assert_eq!(w.try_acquire(region, h(3, Mode::Share)), Ok(Acquired::Held));
    assert!(matches!(w.try_acquire(region, h(31, Mode::NoKeyUpdate)), Err(Conflict::With(_))));
    assert_eq!(w.try_acquire(region, h(31, Mode::KeyShare)), Ok(Acquired::New));
    for s in 0..30 {
        w.release(region, s, None);
    }
    assert_eq!(w.held_by(31), Some(h(31, Mode::KeyShare)));
    assert_eq!(w.try_acquire(region, h(31, Mode::Update)), Ok(Acquired::Upgraded(h(31, Mode::KeyShare))));
    w.release(region, 31, Some(h(31, Mode::KeyShare)));
    assert_eq!(w.try_acquire(region, h(1, Mode::NoKeyUpdate)), Ok(Acquired::New));
    w.release(region, 31, None);
    w.release(region, 1, None);
    assert!(w.is_free());
}

#[test]
fn two_upgrades_cannot_wait_for_each_other() {
    let b = block();
    let region = b.engine.region;
    let w = LockWord::new();
    w.try_acquire(region, h(1, Mode::Share)).unwrap();
    w.try_acquire(region, h(2, Mode::Share)).unwrap();
    assert_eq!(w.try_acquire(region, h(1, Mode::NoKeyUpdate)), Err(Conflict::With(h(2, Mode::Share))));
    assert_eq!(w.try_acquire(region, h(2, Mode::NoKeyUpdate)), Err(Conflict::Upgrade));
    w.release(region, 2, None);
    assert!(matches!(w.try_acquire(region, h(1, Mode::NoKeyUpdate)), Ok(Acquired::Upgraded(_))));
    w.release(region, 1, None);
    assert!(w.is_free());
}

#[test]
fn who_will_not_wait_is_in_nobodys_way() {
    let b = block();
    let region = b.engine.region;
    let w = LockWord::new();
    w.try_acquire(region, h(1, Mode::Share)).unwrap();
    w.try_acquire(region, h(2, Mode::Share)).unwrap();
    let (one, two) = (Conflict::With(h(1, Mode::Share)), Conflict::With(h(2, Mode::Share)));
    assert_eq!(w.try_acquire_now(region, h(1, Mode::NoKeyUpdate)), Err(two));
    assert_eq!(w.try_acquire(region, h(2, Mode::NoKeyUpdate)), Err(one), "its wait can end");
    assert_eq!(w.try_acquire_now(region, h(1, Mode::NoKeyUpdate)), Err(two), "it does not wait");
    assert_eq!(w.try_acquire(region, h(1, Mode::NoKeyUpdate)), Err(Conflict::Upgrade));
    w.release(region, 2, None);
    assert!(matches!(w.try_acquire_now(region, h(1, Mode::NoKeyUpdate)), Ok(Acquired::Upgraded(_))));
    w.release(region, 1, None);
    assert!(w.is_free());
}

/// Threads take and release all modes; each checks that nobody conflicting is inside.
#[test]
fn no_two_conflicting_holders() {
    use std::sync::atomic::{AtomicU32, Ordering};
    let b = block();
    let region = b.engine.region;
    let w = LockWord::new();
    let inside: [AtomicU32; 6] = Default::default();
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
                    let mode = [KeyShare, Share, NoKeyUpdate, Update, Intent][(x >> 33) as usize % 5];
                    if w.try_acquire(region, h(s, mode)).is_err() {
                        continue;
                    }
                    inside[mode as usize].fetch_add(1, Ordering::SeqCst);
                    let n = |m: Mode| inside[m as usize].load(Ordering::SeqCst);
                    match mode {
                        Mode::KeyShare => assert_eq!(n(Mode::Update), 0),
                        Mode::Share => assert_eq!(n(Mode::Update) + n(Mode::NoKeyUpdate), 0),
                        Mode::NoKeyUpdate => assert_eq!((n(mode), n(Mode::Share), n(Mode::Update)), (1, 0, 0)),
                        Mode::Update => assert_eq!(n(KeyShare) + n(Share) + n(NoKeyUpdate) + n(Intent), 0),
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
