//! Transactions under `2pl` that look at a row under a lock of its key, and want more of it later.

use crate::client::{Client, Mood};
use crate::looks::{change, look, mode_of, two_phase, A, B, KEY, OTHER};
use crate::steps::{failed_with, session};
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::lock::Mode;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::range::Columns;
use mixedcc_engine::txn::How;
use mixedcc_engine::{Error, Policy};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::yield_now();
    }
}

/// How a look locks the row, in a transaction that does nothing else.
fn mode_of_look(c: &mut Client, looked: Columns) -> Option<Mode> {
    c.begin(Mood::Serializable);
    look(c, looked).expect("nobody is in the way").expect("a row");
    let mode = mode_of(c);
    c.abort();
    mode
}

/// A reader loses the upgrade of its look to SHARE: to a holder that wants FOR UPDATE, or in a
/// circle of two rows. Then: how it looks again, and how another session looks at a column that
/// changes.
fn lost_share(for_update: bool, fault: Option<Fault>) -> [Option<Mode>; 2] {
    let w = &two_phase(Policy::Wait);
    let r = Recorder::new();
    let (mut loser, mut other, theirs) = (session(w, &r, 0), session(w, &r, 1), r.session());
    let (writes, looked) = (&AtomicBool::new(false), &AtomicBool::new(false));
    std::thread::scope(|s| {
        let holder = s.spawn(move || {
            let mut holder = Client::new(w, 2, theirs, 7);
            holder.begin(Mood::Serializable);
            change(&mut holder, KEY, B).expect("nobody reads");
            writes.store(true, Ordering::SeqCst);
            until("the other one looks", || looked.load(Ordering::SeqCst));
            let got = match for_update {
                true => holder.t.lock_row(&holder.p, w.records(KEY)[0], Mode::Update, How::Wait),
                false => change(&mut holder, OTHER, B),
            };
            holder.abort();
            got
        });
        until("the holder writes", || writes.load(Ordering::SeqCst));
        loser.begin(Mood::Serializable);
        look(&mut loser, A).expect("a lock of the key").expect("a row");
        change(&mut loser, OTHER, B).expect("the first one to come there");
        looked.store(true, Ordering::SeqCst);
        until("the holder sleeps", || w.e.asleep() > 0);
        faults::set(fault);
        let lost = look(&mut loser, B).map(|_| ());
        faults::set(None);
        match for_update {
            true => failed_with(lost, AbortReason::UpgradeConflict),
            false => assert_eq!(lost, Err(Error::Deadlock)),
        }
        loser.abort();
        holder.join().expect("a thread").expect("the loser gave way");
    });
    [mode_of_look(&mut loser, A), mode_of_look(&mut other, B)]
}

/// A lost upgrade to SHARE is no write: others go on to share the row. The loser takes the lock as
/// it lost it (INV-LOSER).
#[test]
fn a_lost_upgrade_to_share_is_no_write() {
    for for_update in [false, true] {
        assert_eq!(lost_share(for_update, None), [Some(Mode::Share); 2], "{for_update}");
        let fault = lost_share(for_update, Some(Fault::LostReadIsWrite));
        assert_eq!(fault, [Some(Mode::NoKeyUpdate); 2], "{for_update}: the fault");
    }
}

/// A holder that waits ends its transaction because of a circle. Then: how others look at what the
/// one in its way had looked at before it wanted more of the row, and waited.
fn mode_after_a_late_wait(fault: Option<Fault>) -> Option<Mode> {
    let w = &two_phase(Policy::Wait);
    let r = Recorder::new();
    let (mut holder, theirs) = (session(w, &r, 0), r.session());
    std::thread::scope(|s| {
        holder.begin(Mood::Serializable);
        change(&mut holder, KEY, B).expect("nobody reads");
        let late = s.spawn(move || {
            let mut late = Client::new(w, 1, theirs, 7);
            late.begin(Mood::Serializable);
            look(&mut late, A)?;
            change(&mut late, OTHER, B)?;
            faults::set(fault);
            look(&mut late, B)?;
            late.commit()
        });
        until("it sleeps", || w.e.asleep() > 0);
        assert_eq!(change(&mut holder, OTHER, B), Err(Error::Deadlock));
        holder.abort();
        late.join().expect("a thread").expect("the holder gave way");
    });
    let mut other = session(w, &r, 2);
    mode_of_look(&mut other, A)
}

/// A transaction that has to wait for more of a row than it has locked at its look tells the
/// others. It does not matter which one fails then, or if one does.
#[test]
fn who_waits_late_tells_before_anybody_loses() {
    assert_eq!(mode_after_a_late_wait(None), Some(Mode::Share));
    assert_eq!(mode_after_a_late_wait(Some(Fault::LearnsNothing)), Some(Mode::KeyShare), "the fault");
}

/// A later lock for which its transaction need not wait tells nothing: others that only look would
/// have to wait.
#[test]
fn who_does_not_wait_tells_nothing() {
    let w = two_phase(Policy::Wait);
    let r = Recorder::new();
    let mut c = session(&w, &r, 0);
    c.begin(Mood::Serializable);
    for looked in [A, B] {
        look(&mut c, looked).expect("nobody is in the way").expect("a row");
    }
    assert_eq!((mode_of(&c), c.commit()), (Some(Mode::Share), Ok(())));
    assert_eq!(mode_of_look(&mut c, A), Some(Mode::KeyShare));
}

/// The most tries that a transaction needs, of some in a row, if each time a column is changed at
/// which it looks, although nothing is known of that.
fn most_tries(fault: Option<Fault>) -> u32 {
    let w = two_phase(Policy::NoWait);
    let r = Recorder::new();
    let (mut reader, mut writer) = (session(&w, &r, 0), session(&w, &r, 1));
    faults::set(fault);
    let mut tries_of = |most: u32| {
        for n in 1..=most {
            w.table.changing.guess_none();
            reader.begin(Mood::Serializable);
            look(&mut reader, A).expect("nobody writes").expect("a row");
            writer.begin(Mood::Serializable);
            match change(&mut writer, KEY, A) {
                Ok(()) => writer.commit().expect("nobody is in the way"),
                Err(_) => writer.abort(),
            }
            if change(&mut reader, OTHER, B).and_then(|()| reader.commit()).is_ok() {
                return n;
            }
            reader.abort();
        }
        most
    };
    let most = (0..5).map(|_| tries_of(20)).max();
    faults::set(None);
    most.expect("some")
}

/// A guess that is wrong again and again costs each transaction one try.
#[test]
fn a_retry_does_not_lose_to_the_same_guess() {
    assert_eq!(most_tries(None), 2);
    assert_eq!(most_tries(Some(Fault::RetriesLookAgain)), 20, "the fault");
}
