//! Statements that must not sleep for locks (NOWAIT): they get an error at once, or go on where
//! they need no lock.

use crate::client::{Client, Mood};
use crate::world::{PanicAt, World};
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::lock::Mode;
use mixedcc_engine::platform::SPINS;
use mixedcc_engine::txn::How;
use mixedcc_engine::{Error, Policy, Protocol, ProtocolSet};
use std::panic::{catch_unwind, AssertUnwindSafe};

const HELD: i64 = 0;
const FREE: i64 = 2;
const POLICIES: [Policy; 3] = [Policy::Wait, Policy::WaitDie, Policy::NoWait];

/// What a hurried transaction gets beside one that has written a row. `Err(None)`: it fell asleep.
fn beside_a_writer<T>(
    protocol: Protocol,
    policy: Policy,
    fault: Option<Fault>,
    f: impl FnOnce(&mut Client) -> Result<T, Error>,
) -> Result<T, Option<Error>> {
    let (w, recorder) = (World::new(&[ProtocolSet::of(protocol)], policy, 4), Recorder::new());
    // The older one would wait under wait-die.
    let [mut c, mut writer] = [0, 1].map(|slot| Client::new(&w, slot, recorder.session(), 5));
    c.begin(Mood::Serializable);
    writer.begin(Mood::Serializable);
    writer.update(HELD, false).expect("nobody is in the way");
    c.p.hurries.set(true);
    c.p.panic_at.set(Some(PanicAt::EnterQueue));
    faults::set(fault);
    let got = catch_unwind(AssertUnwindSafe(|| f(&mut c)));
    faults::set(None);
    c.p.hurries.set(false);
    c.abort();
    writer.commit().expect("nobody is in the way");
    assert!(w.records(0).iter().all(|r| r.rec.lock.is_free()));
    got.map_err(|_| None)?.map_err(Some)
}

#[test]
fn reads_fail_at_once_where_they_would_sleep_for_a_lock() {
    let blocked = Err(Some(Error::WouldBlock));
    let get = |c: &mut Client| c.get(HELD).map(|_| ());
    for policy in POLICIES {
        assert_eq!(beside_a_writer(Protocol::TwoPhase, policy, None, get), blocked, "{policy:?}");
    }
    assert_eq!(beside_a_writer(Protocol::PartCc, Policy::Wait, None, get), blocked);
    for protocol in [Protocol::TwoPhase, Protocol::PartCc] {
        let asleep = beside_a_writer(protocol, Policy::Wait, Some(Fault::SleepsAnyhow), get);
        assert_eq!(asleep, Err(None), "{protocol:?}: the fault");
    }
}

#[test]
fn scans_fail_at_once_where_they_would_sleep_for_a_range() {
    let scan = |c: &mut Client| {
        let p = &c.p;
        c.w.activate(p, c.w.slots, 0, &[], 64).expect("room for ranges");
        c.scan(0).map(|_| ())
    };
    assert_eq!(beside_a_writer(Protocol::TwoPhase, Policy::Wait, None, scan), Err(Some(Error::WouldBlock)));
}

/// They can go on after it.
#[test]
fn the_transaction_goes_on_with_other_rows() {
    let got = beside_a_writer(Protocol::TwoPhase, Policy::NoWait, None, |c| {
        assert_eq!(c.get(HELD).map(|_| ()), Err(Error::WouldBlock));
        c.get(FREE).map(|_| ())
    });
    assert_eq!(got, Ok(()));
}

/// A transaction that repeats another one does not wait for the other rows of that one.
#[test]
fn listed_locks_that_are_held_are_left_out() {
    let read_listed = |c: &mut Client| {
        // It fails: the row that it has read has changed. It has written a third one.
        let mut other = Client::new(c.w, 2, Recorder::new().session(), 5);
        c.get(FREE)?;
        c.update(FREE + 2, false)?;
        other.begin(Mood::Serializable);
        other.update(FREE, false)?;
        other.commit()?;
        c.p.hurries.set(false);
        let got = c.commit();
        assert!(matches!(got, Err(Error::Abort { reason: AbortReason::ReadChanged, .. })), "{got:?}");
        c.abort();
        other.begin(Mood::Serializable);
        let read = c.w.scan(FREE, FREE).first().expect("the row is there").1;
        other.t.lock_row(&other.p, read, Mode::Update, How::Wait)?;
        c.begin(Mood::Serializable);
        c.p.hurries.set(true);
        let got = c.get(FREE + 2).map(|_| ());
        other.abort();
        let found = c.w.scan(FREE + 2, FREE + 2).first().expect("the row is there").1;
        assert_eq!(found.rec.lock.held_by(c.id).map(|h| h.mode), Some(Mode::NoKeyUpdate));
        got
    };
    assert_eq!(beside_a_writer(Protocol::Mocc, Policy::Wait, None, read_listed), Ok(()));
    let asleep = beside_a_writer(Protocol::Mocc, Policy::Wait, Some(Fault::SleepsAnyhow), read_listed);
    assert_eq!(asleep, Err(None), "the fault");
}

/// The longest step of the wait beside a commit that does not end, as where its standby hangs, for
/// its row, and what came of it. `Err(None)`: it fell asleep.
fn beside_a_commit(mood: Mood, how: How, hurries: bool) -> (Result<(), Option<Error>>, u32) {
    let (w, recorder) = (World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, 4), Recorder::new());
    let [mut c, mut writer] = [0, 1].map(|slot| Client::new(&w, slot, recorder.session(), 5));
    writer.begin(Mood::Serializable);
    writer.update(HELD, false).expect("nobody is in the way");
    writer.t.prepare_locks(&writer.p).expect("nobody is in the way");
    writer.t.prepare_decide(&writer.p, true, &|_, _| {}).expect("nobody is in the way");
    c.begin(mood);
    c.p.hurries.set(hurries);
    c.p.panic_at.set(Some(PanicAt::EnterQueue));
    let row = w.records(HELD)[0];
    let got = catch_unwind(AssertUnwindSafe(|| c.t.lock_row(&c.p, row, Mode::NoKeyUpdate, how)));
    let paused = c.p.paused.get();
    c.abort();
    writer.t.publish(&writer.p);
    (got.map_err(|_| None).and_then(|got| got.map_err(Some)), paused)
}

#[test]
fn what_must_not_sleep_waits_only_a_moment_for_a_commit() {
    for mood in [Mood::Serializable, Mood::ReadCommitted] {
        for (how, hurries) in [(How::Try, false), (How::Wait, true)] {
            let (got, paused) = beside_a_commit(mood, how, hurries);
            assert_eq!(got, Err(Some(Error::WouldBlock)), "{mood:?}, {how:?}");
            assert!((1..SPINS).contains(&paused), "{mood:?}, {how:?}: {paused}");
        }
        let (got, paused) = beside_a_commit(mood, How::Wait, false);
        assert_eq!(got, Err(None), "{mood:?}");
        assert!(paused >= SPINS, "{mood:?}: {paused}");
    }
}
