//! Rows that are usually written after they were read are locked for writing at the read.

use crate::client::{Client, Mood};
use crate::world::World;
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::error::AbortReason;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::lock::Mode;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::{Error, Policy, Protocol, ProtocolSet};
use std::sync::atomic::AtomicU64;

const KEY: i64 = 0;
const OTHER: i64 = 2;

fn world() -> World {
    World::new(&[ProtocolSet::of(Protocol::TwoPhase)], Policy::Wait, 4)
}

/// The mode in which the row is locked when a transaction of this client reads it.
fn mode_of_read(c: &mut Client, key: i64) -> Option<Mode> {
    c.begin(Mood::Serializable);
    c.get(key).expect("nobody is in the way");
    let found = c.w.scan(key, key).first().expect("the row is there").1;
    let mode = found.rec.lock.held_by(c.id).map(|h| h.mode);
    c.abort();
    mode
}

fn write_after_read(c: &mut Client, key: i64) -> Result<(), Error> {
    c.begin(Mood::Serializable);
    c.get(key)?;
    c.update(key, false)?;
    c.commit()
}

/// Threads read one row and write it; the upgrades that they lost.
fn race(w: &World, fault: Option<Fault>, transactions: u64) -> u64 {
    let recorder = Recorder::new();
    let lost = AtomicU64::new(0);
    std::thread::scope(|s| {
        for slot in 0..4 {
            let (lost, session) = (&lost, recorder.session());
            s.spawn(move || {
                let mut c = Client::new(w, slot, session, 40 + slot as u64);
                faults::set(fault);
                c.p.yields.set(60);
                for _ in 0..transactions {
                    while let Err(e) = write_after_read(&mut c, KEY) {
                        c.abort();
                        match e {
                            Error::Abort { reason: AbortReason::UpgradeConflict, .. } => {
                                lost.fetch_add(1, Ordering::Relaxed);
                            }
                            Error::Abort { .. } | Error::Deadlock => {}
                            e => panic!("{e:?}"),
                        }
                    }
                }
                faults::set(None);
            });
        }
    });
    lost.into_inner()
}

#[test]
fn a_lost_upgrade_makes_others_lock_for_writing_at_the_read() {
    let lost = race(&world(), None, 500);
    assert!(lost <= 20, "2,000 transactions lost {lost} upgrades");
    let fault = Some(Fault::IntentForgotten);
    assert!((0..50).any(|_| race(&world(), fault, 500) > 20), "the fault was not found");
}

#[test]
fn rows_that_are_only_read_become_shared_again() {
    let w = world();
    let recorder = Recorder::new();
    let (mut a, mut b) = (Client::new(&w, 0, recorder.session(), 1), Client::new(&w, 1, recorder.session(), 2));
    assert_eq!(mode_of_read(&mut a, KEY), Some(Mode::Share), "nothing is known yet");
    while race(&w, None, 50) == 0 {}
    assert_eq!(mode_of_read(&mut b, OTHER), Some(Mode::Share), "another row");
    for _ in 0..100 {
        write_after_read(&mut a, KEY).expect("nobody is in the way");
    }
    assert_eq!(mode_of_read(&mut b, KEY), Some(Mode::NoKeyUpdate), "it is written again and again");
    for _ in 0..100 {
        // It writes another row, so that it is no reader that could freeze.
        a.begin(Mood::Serializable);
        a.get(KEY).expect("nobody is in the way");
        a.update(OTHER, false).expect("nobody is in the way");
        a.commit().expect("nobody is in the way");
    }
    assert_eq!(mode_of_read(&mut b, KEY), Some(Mode::Share), "transactions read it, and do not write it");
}
