//! The lock word, which is the engine's own, with lists of holders on the heap.

use crate::{fails, fails_with, model};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, Ordering::SeqCst};
use loom::sync::Arc;
use loom::thread;
use mixedcc_engine::csn::SlotId;
use mixedcc_engine::faults::Fault;
use mixedcc_engine::lock::{Acquired, Claim, Conflict, Heads, Holder, LockWord, Mode};
use mixedcc_engine::memory::OutOfMemory;
use std::alloc::{alloc, dealloc, Layout};
use std::ptr::NonNull;

/// Lists of up to so many bytes.
struct Heap;
const LIST: Layout = Layout::new::<[u64; 32]>();

impl Heads for Heap {
    fn allocate(&self, _: SlotId, bytes: usize) -> Result<NonNull<u8>, OutOfMemory> {
        assert!(bytes <= LIST.size());
        // SAFETY: the layout is not empty.
        NonNull::new(unsafe { alloc(LIST) }).ok_or(OutOfMemory)
    }
    unsafe fn release(&self, _: SlotId, p: NonNull<u8>) {
        // SAFETY: the caller's: it is from above.
        unsafe { dealloc(p.as_ptr(), LIST) }
    }
}

fn take(lock: &LockWord, slot: SlotId, mode: Mode, claim: Claim) -> Result<Acquired, Conflict> {
    lock.try_acquire(&Heap, Holder { slot, mode, tag: 0 }, claim)
}

/// Two take the lock, upgrade it, go back and release it.
fn one_holder() {
    let l = Arc::new((LockWord::new(), UnsafeCell::new(0u32)));
    let run = |me: SlotId| {
        let l = l.clone();
        thread::spawn(move || {
            let (lock, cell) = &*l;
            if take(lock, me, Mode::NoKeyUpdate, Claim::Now).is_err() {
                return;
            }
            // SAFETY: a holder is alone; the model checker proves it.
            cell.with_mut(|c| unsafe { *c += 1 });
            let upgraded = take(lock, me, Mode::Update, Claim::Now);
            let Ok(Acquired::Upgraded(before)) = upgraded else { panic!("an upgrade of the only holder") };
            lock.release(&Heap, me, Some(before));
            // SAFETY: as above.
            cell.with_mut(|c| unsafe { *c += 1 });
            lock.release(&Heap, me, None);
        })
    };
    let (a, b) = (run(1), run(2));
    a.join().unwrap();
    b.join().unwrap();
    assert!(l.0.is_free());
}

#[test]
fn the_lock_word_has_one_holder() {
    model(one_holder);
}
#[test]
fn without_compare_exchange_it_has_two() {
    assert!(fails_with(Fault::StoresLockWord, one_holder));
}

/// Two share the lock, and the last to release it leaves it free: lists come and go.
fn shared_holders() {
    let l = Arc::new(LockWord::new());
    let run = |me: SlotId| {
        let l = l.clone();
        thread::spawn(move || {
            assert_eq!(take(&l, me, Mode::Share, Claim::Now), Ok(Acquired::New));
            assert_eq!(l.held_by(me).map(|h| h.mode), Some(Mode::Share));
            l.release(&Heap, me, None);
        })
    };
    let (a, b) = (run(1), run(2));
    a.join().unwrap();
    b.join().unwrap();
    assert!(l.is_free());
}

#[test]
fn lists_of_holders_come_and_go() {
    model(shared_holders);
}

/// Others than the waiter: one that holds the lock, and one that comes.
const HOLDER: SlotId = 1;
const WAITER: SlotId = 2;
const NEWCOMER: SlotId = 3;

/// A mark that is made while holders come and go is there afterwards.
fn mark_beside(held: Mode) {
    let lock = Arc::new(LockWord::new());
    take(&lock, HOLDER, held, Claim::Waits).expect("nobody has it");
    let other = {
        let lock = lock.clone();
        thread::spawn(move || {
            if take(&lock, NEWCOMER, Mode::KeyShare, Claim::Now).is_ok() {
                lock.release(&Heap, NEWCOMER, None);
            }
            lock.release(&Heap, HOLDER, None);
        })
    };
    lock.mark(Some(Mode::Update));
    other.join().unwrap();
    assert!(matches!(take(&lock, NEWCOMER, Mode::Share, Claim::Waits), Err(Conflict::Behind(_))));
    take(&lock, WAITER, Mode::Update, Claim::Turn).expect("its turn");
    lock.release(&Heap, WAITER, None);
    assert!(lock.is_free());
}

#[test]
fn a_mark_survives_holders_that_come_and_go() {
    for held in [Mode::Share, Mode::Update] {
        model(move || mark_beside(held));
    }
}
#[test]
fn wiped_away_by_a_holder_it_does_not() {
    assert!(fails_with(Fault::ReleaseForgetsMark, || mark_beside(Mode::Update)));
}

struct Turn {
    lock: LockWord,
    marked: AtomicBool,
    /// The waiter has had the lock, or has given up.
    over: AtomicBool,
}

/// INV-TURN: a waiter marks a lock that is held in `held`, and takes it when it is free, or gives
/// up. A newcomer that comes later takes it after that only.
fn turn(held: Mode, gives_up: bool, takes_mark_back: bool) {
    let flag = || AtomicBool::new(false);
    let t = Arc::new(Turn { lock: LockWord::new(), marked: flag(), over: flag() });
    take(&t.lock, HOLDER, held, Claim::Waits).expect("nobody has it");
    let newcomer = {
        let t = t.clone();
        thread::spawn(move || {
            let behind = t.marked.load(SeqCst);
            if take(&t.lock, NEWCOMER, Mode::Share, Claim::Waits).is_ok() {
                assert!(!behind || t.over.load(SeqCst), "it came before the waiter");
                t.lock.release(&Heap, NEWCOMER, None);
            }
        })
    };
    t.lock.mark(Some(Mode::Update));
    t.marked.store(true, SeqCst);
    t.lock.release(&Heap, HOLDER, None);
    if !gives_up && take(&t.lock, WAITER, Mode::Update, Claim::Turn).is_ok() {
        t.over.store(true, SeqCst);
        t.lock.release(&Heap, WAITER, None);
    } else {
        t.over.store(true, SeqCst);
        if takes_mark_back {
            t.lock.mark(None);
        }
    }
    newcomer.join().unwrap();
    take(&t.lock, NEWCOMER, Mode::Share, Claim::Waits).expect("nobody waits");
    t.lock.release(&Heap, NEWCOMER, None);
    assert!(t.lock.is_free());
}

#[test]
fn a_waiter_has_its_turn_before_newcomers() {
    for held in [Mode::Share, Mode::Update] {
        model(move || turn(held, false, true));
    }
}
#[test]
fn whose_mark_is_ignored_has_not() {
    assert!(fails_with(Fault::MarkIgnored, || turn(Mode::Share, false, true)));
}
#[test]
fn newcomers_go_on_behind_a_waiter_that_gives_up() {
    model(|| turn(Mode::Share, true, true));
}
#[test]
fn behind_one_that_leaves_its_mark_they_do_not() {
    assert!(fails(|| turn(Mode::Share, true, false)));
}
