//! Faults that are one at a certain moment only: what others do then is made to happen there. Each
//! test is found to fail with its fault.

use crate::client::{Client, Mood};
use crate::spans::{encode, INDEXES};
use crate::steps::{all, ranges, Meanwhile};
use crate::world::{Jitter, World, WIDTH};
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::csn::{Csn, SlotId, Stamp};
use mixedcc_engine::faults::{self, Fault, Moment};
use mixedcc_engine::lock::Mode;
use mixedcc_engine::open::Seen;
use mixedcc_engine::platform::{Platform, Queue, StopEvent, WaitFor};
use mixedcc_engine::range::{Columns, Dormancy, Look, Looked, Ring, RING_SIZE};
use mixedcc_engine::retire::RetireQueue;
use mixedcc_engine::threads::Block;
use mixedcc_engine::txn::{OpenEnd, Peek, Scan};
use mixedcc_engine::{Error, Policy, Protocol, ProtocolSet};
use std::cell::{Cell, RefCell};
use std::ops::Bound::Included;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{channel, Receiver, Sender};

/// A platform that asks this function whether a process has a snapshot, and this one for a pause.
struct Asks<Q, P>(Q, P);

impl<Q: Fn(SlotId) -> bool, P: Fn()> Platform for Asks<Q, P> {
    fn wait_for(&self, _: WaitFor) -> Result<(), Error> {
        panic!("nobody is in the way")
    }
    fn enter_queue(&self, _: Queue) -> Result<(), Error> {
        panic!("nobody is in the way")
    }
    fn leave_queue(&self, _: Queue) {}
    fn pause(&self, _: u32) -> Result<(), Error> {
        (self.1)();
        Ok(())
    }
    fn lock_tag(&self) -> u32 {
        0
    }
    fn quiescent(&self, slot: SlotId) -> bool {
        (self.0)(slot)
    }
}

/// With a fault of this thread on.
fn with<R>(fault: Option<Fault>, f: impl FnOnce() -> R) -> R {
    faults::set(fault);
    let r = f();
    faults::set(None);
    r
}

/// Neither fails without a fault, nor is overlooked with it.
fn finds(fault: Fault, is_right: impl Fn() -> bool) {
    assert!(with(None, &is_right), "without a fault");
    assert!(!with(Some(fault), &is_right), "{fault:?} was not found");
}

fn under(p: Protocol) -> &'static World {
    Box::leak(Box::new(World::new(&[ProtocolSet::of(p)], Policy::Wait, 4)))
}

fn occ() -> &'static World {
    under(Protocol::Occ)
}

/// A process pins right behind the look of a reclaimer at its slot, and the clock goes on: memory
/// retired from then on stays.
#[test]
fn a_pin_behind_the_look_at_its_slot_is_not_missed() {
    finds(Fault::LooksAtClockLast, || {
        let block = Block::new(8 << 20, 2).expect("a block");
        let e = block.engine;
        let pinned: Cell<Csn> = Cell::new(0);
        e.pin(1);
        let min = e.refresh_min_pin(&Asks(
            |slot| {
                assert_eq!(slot, 1);
                e.pin(0);
                pinned.set(e.now());
                e.tick();
                true
            },
            || (),
        ));
        min <= pinned.get()
    });
}

/// Memory retired at the very CSN of a pin stays.
#[test]
fn what_is_retired_at_the_csn_of_a_pin_stays() {
    finds(Fault::FreesAtPin, || {
        let block = Block::new(8 << 20, 2).expect("a block");
        let e = block.engine;
        e.pin(0);
        RetireQueue::reserve(&e, 1, 1).expect("memory");
        RetireQueue::push(&e, 1, e.region.alloc(1, 64).expect("memory"), e.now());
        let min = e.refresh_min_pin(&Asks(|_| false, || ()));
        RetireQueue::drain(&e, 1, min, usize::MAX);
        let stays = RetireQueue::len(&e, 1) == 1;
        e.unpin(0);
        e.tick();
        RetireQueue::drain(&e, 1, e.refresh_min_pin(&Asks(|_| false, || ())), usize::MAX);
        assert_eq!(RetireQueue::len(&e, 1), 0, "without the pin it is freed");
        stays
    });
}

/// A reader begins after a commit has its CSN, and reads what that replaces before it is published.
#[test]
fn what_is_read_beside_a_commit_is_not_freed_with_it() {
    finds(Fault::RetiresAtOwnCsn, || {
        let (w, recorder) = (occ(), Recorder::new());
        let (mut writer, mut reader) =
            (Client::new(w, 0, recorder.session(), 7), Client::new(w, 1, recorder.session(), 7));
        reader.p.threads.freezes.set(false); // it would wait for the commit
        writer.begin(Mood::Serializable);
        writer.update(0, false).expect("nobody is in the way");
        writer.t.prepare(&writer.p, &|_, _| {}).expect("nobody is in the way");
        w.e.tick(); // another commit
        reader.begin(Mood::Serializable);
        assert_eq!(reader.get(0).expect("a read").map(|r| r.value), Some(100), "the version before");
        writer.t.publish(&writer.p);
        RetireQueue::drain(&w.e, 0, w.e.refresh_min_pin(&reader.p), usize::MAX);
        let stays = RetireQueue::len(&w.e, 0) == 1;
        faults::set(None);
        reader.abort();
        stays
    });
}

/// A commit is pinned from before its CSN on, although others have ended the pin of its process,
/// which has no snapshot (INV-PIN).
#[test]
fn a_commit_has_a_pin() {
    finds(Fault::CommitsUnpinned, || {
        let (w, recorder) = (occ(), Recorder::new());
        let mut writer = Client::new(w, 0, recorder.session(), 7);
        writer.begin(Mood::ReadCommitted);
        writer.update(0, false).expect("nobody is in the way");
        let nobody = Asks(|_| true, || ());
        w.e.refresh_min_pin(&nobody);
        assert!(!w.e.is_pinned(0), "others end the pin of who has no snapshot");
        let pinned = Cell::new(false);
        let p = Meanwhile::at(&writer.p, StopEvent::CommitValidate, || {
            w.e.refresh_min_pin(&nobody);
            pinned.set(w.e.is_pinned(0));
        });
        writer.t.prepare(&p, &|_, _| {}).expect("nobody is in the way");
        drop(p);
        writer.t.publish(&writer.p);
        pinned.get()
    });
}

/// A reclaimer comes while a slot begins to hold on to its pin (INV-HOLD).
#[test]
fn a_pin_that_is_about_to_be_held_is_not_ended() {
    finds(Fault::HoldsLate, || {
        let (w, recorder) = (occ(), Recorder::new());
        let p = Jitter::new(w, w.slots, 1);
        w.activate(&p, w.slots, 0, &[3], 16).expect("room for ranges");
        let mut reader = Client::new(w, 0, recorder.session(), 7);
        reader.begin(Mood::Serializable);
        faults::at(Moment::Holding, || {
            w.e.refresh_min_pin(&Asks(|_| true, || ()));
        });
        let (at, lo, hi) = (all(w), encode(0, 0), encode(0, 5));
        let scan = Scan {
            at: &at,
            lo: Included(&lo),
            hi: Included(&hi),
            open: OpenEnd::No,
            snapshot: None,
            looked: Looked::ALL,
        };
        reader.t.begin_scan(&reader.p, ranges(w, 0), &scan).expect("a scan");
        let pinned = w.e.is_pinned(0);
        faults::set(None);
        reader.abort();
        pinned
    });
}

/// While ranges are woken up, a commit that did not know it takes its CSN: lists do not answer for
/// it.
#[test]
fn lists_that_wake_up_begin_behind_the_commits_that_were_awaited() {
    finds(Fault::BeginsBeforeItWaits, || {
        // SAFETY: all-zero is a valid word.
        let (rest, clock): (Dormancy, _) = (unsafe { std::mem::zeroed() }, Cell::new(10));
        let awaits = || {
            clock.set(clock.get() + 5);
            Ok::<(), Error>(())
        };
        rest.wake(|| clock.get(), awaits).expect("it waits for nobody");
        rest.is_active() && rest.complete_since() >= 15
    });
}

/// Stops at an event until the other thread has come so far.
struct Stops(Sender<()>, Receiver<()>);

impl Stops {
    fn wait(&self) {
        self.0.send(()).expect("somebody listens");
        self.1.recv().expect("somebody goes on");
    }
}

/// A commit that knows only the old boundaries of an index takes its CSN while a rebuild waits for
/// it; a snapshot from before scans by the new ones.
#[test]
fn new_boundaries_begin_behind_the_commits_that_were_awaited() {
    finds(Fault::BeginsBeforeItWaits, || {
        let (w, recorder) = (occ(), Recorder::new());
        let p = Jitter::new(w, w.slots, 1);
        w.activate(&p, w.slots, 0, &[3], 16).expect("room for ranges");
        let mut reader = Client::new(w, 1, recorder.session(), 7);
        reader.begin(Mood::RepeatableRead);
        let snapshot = w.e.now();
        let ((ready, is_ready), (go, goes)) = (channel(), channel());
        let session = recorder.session();
        std::thread::scope(|s| {
            let writer = s.spawn(move || {
                let mut c = Client::new(w, 0, session, 7);
                c.begin(Mood::ReadCommitted);
                c.update(0, false).expect("nobody is in the way");
                let stops = Stops(ready, goes);
                let p = Meanwhile::at(&c.p, StopEvent::CommitPrepare, || stops.wait());
                c.t.prepare(&p, &|_, _| {}).expect("nobody is in the way");
                drop(p);
                c.t.publish(&c.p);
            });
            is_ready.recv().expect("it registers");
            let once = Cell::new(Some(go));
            let pauses = || {
                once.take().map(|go| go.send(()).expect("it waits"));
                std::thread::yield_now();
            };
            let rebuilt = ranges(w, 0).rebuild(&w.e, 2, &Asks(|_| false, pauses), &[&encode(0, 2)], 16);
            assert_eq!(rebuilt, Ok(true));
            writer.join().expect("a thread");
        });
        assert_eq!(ranges(w, 0).index, INDEXES[0]);
        let (lo, hi) = (encode(0, 0), encode(0, WIDTH));
        let scan = Scan {
            at: &[],
            lo: Included(&lo),
            hi: Included(&hi),
            open: OpenEnd::No,
            snapshot: Some(Seen::prefix(snapshot)),
            looked: Looked::ALL,
        };
        reader.t.begin_scan(&reader.p, ranges(w, 0), &scan).expect("a scan");
        let end = reader.commit();
        reader.abort();
        end.is_err()
    });
}

/// Ranges grow drowsy: a scan that pinned right before that, and found them awake, relies on them
/// still.
#[test]
fn ranges_do_not_fall_asleep_on_a_scan_that_found_them_awake() {
    finds(Fault::LooksAtClockBeforeDrowsy, || {
        // SAFETY: all-zero is a valid word.
        let (rest, clock): (Dormancy, _) = (unsafe { std::mem::zeroed() }, Cell::new(1));
        rest.wake(|| clock.get(), || Ok::<(), Error>(())).expect("it waits for nobody");
        let look = |at_ns| Look { at_ns, after_ns: 0, me: 0 };
        rest.check_use(look(1), || clock.get(), || 0); // the scan is noticed
                                                       // A scan has pinned. Behind each look at the
                                                       // clock others commit, and another scan
                                                       // pins.
        let pin = Cell::new(clock.get());
        let now = || {
            let now = clock.replace(clock.get() + 1);
            if rest.is_active() {
                pin.set(clock.get());
            }
            now
        };
        rest.check_use(look(2), now, || pin.get());
        assert!(!rest.is_active(), "they are drowsy");
        rest.check_use(look(3), now, || pin.get());
        !rest.is_dormant()
    });
}

/// A ring wraps over the registration of a phantom. The scan's owner commits when the entry is
/// written that replaces it.
#[test]
fn a_phantom_is_noted_before_its_entry_is_another_ones() {
    finds(Fault::NotesEvictedLate, || {
        let (w, recorder) = (occ(), Recorder::new());
        let client = |slot| Client::new(w, slot, recorder.session(), 7);
        let (reader, mut writer, mut others) = (Rc::new(RefCell::new(client(0))), client(1), client(2));
        reader.borrow().p.threads.writers.set(true); // it is validated, though it only reads
        reader.borrow_mut().begin(Mood::Serializable);
        reader.borrow_mut().scan(0).expect("a scan");
        writer.begin(Mood::ReadCommitted);
        assert_eq!(writer.insert(1), Ok(true));
        writer.commit().expect("nobody is in the way");
        let end = Rc::new(Cell::new(None));
        for n in 0..RING_SIZE {
            others.begin(Mood::ReadCommitted);
            assert_eq!(others.insert(3), Ok(true));
            others.p.threads.fail_at.set(Some(StopEvent::CommitPrepare));
            if n + 1 == RING_SIZE {
                let (reader, end) = (reader.clone(), end.clone());
                faults::at(Moment::EntryWritten, move || end.set(Some(reader.borrow_mut().commit().is_err())));
            }
            assert_eq!(others.commit(), Err(Error::Injected));
            others.abort();
        }
        reader.borrow_mut().abort();
        end.take().expect("the reader has tried to commit")
    });
}

/// A registration is open. Another one comes and finishes while a scan counts the open ones: the
/// scan has to look at the first one still.
#[test]
fn a_registration_that_comes_and_goes_does_not_stand_for_an_open_one() {
    finds(Fault::ReadsTailFirst, || {
        // SAFETY: INV-RING: all-zero memory is an empty ring.
        let ring: &'static Ring = Box::leak(Box::new(unsafe { std::mem::zeroed() }));
        let (open, passing) = (Stamp::tag(1, 1), Stamp::tag(2, 1));
        ring.register(open);
        faults::at(Moment::Counting, move || ring.register(passing).finish(passing, Stamp::ABORTED));
        ring.list().position().looks_at(0)
    });
}

/// A row is replaced or deleted between the look at it and the lock that the look takes
/// (INV-LOCKED-LOOK). The transaction then reads what its lock protects.
#[test]
fn a_look_that_locks_its_row_looks_again() {
    for (deletes, peek) in
        [Peek::Columns(Columns::ALL), Peek::Key, Peek::Write].into_iter().flat_map(|p| [(false, p), (true, p)])
    {
        finds(Fault::LocksUnlooked, || {
            let (w, recorder) = (under(Protocol::TwoPhase), Recorder::new());
            let client = |slot| Client::new(w, slot, recorder.session(), 7);
            let (mut reader, mut writer) = (client(0), client(1));
            let r = w.records(2)[0];
            reader.begin(Mood::Serializable);
            reader.t.begin_following(&reader.p).expect("no switch");
            let fault = [Fault::LocksUnlooked].into_iter().find(|f| faults::on(*f));
            faults::at(Moment::Locking, move || {
                faults::set(None);
                writer.begin(Mood::Serializable);
                let done = if deletes { writer.delete(2, false, false) } else { writer.update(2, false) };
                assert_eq!(done.and_then(|found| writer.commit().map(|()| found)), Ok(true));
                faults::set(fault);
            });
            let seen = reader.t.peek_row(&reader.p, r, peek);
            // The lock is there in any case, and the row stays as it is now.
            let mode = r.rec.lock.held_by(0).map(|h| h.mode);
            assert_eq!(mode.map(|m| m >= Mode::NoKeyUpdate), Some(peek == Peek::Write), "{mode:?}");
            let (newest, p) = (r.rec.head(), &reader.p);
            let read = match (seen, peek) {
                (Some(v), _) => Ok(Some(v)),
                (None, Peek::Key) => reader.t.read_key(p, r),
                (None, _) => reader.t.read(p, r, peek == Peek::Write),
            };
            reader.abort();
            assert!(r.rec.lock.is_free());
            read.expect("it has read nothing else").map(|v| v.as_ptr()) == Some(newest).filter(|_| !deletes)
        });
    }
}

/// A commit has planned its registrations. Then an index gets new boundaries, and a transaction
/// scans by them before the commit is under way.
#[test]
fn boundaries_that_appear_after_a_plan_are_not_overlooked() {
    finds(Fault::NewSetIgnored, || {
        let (w, recorder) = (occ(), Recorder::new());
        let p = Jitter::new(w, w.slots, 1);
        w.activate(&p, w.slots, 0, &[3], 16).expect("room for ranges");
        let (mut writer, mut reader) =
            (Client::new(w, 0, recorder.session(), 7), Client::new(w, 1, recorder.session(), 7));
        reader.p.threads.writers.set(true); // it is validated, though it only reads
        writer.begin(Mood::ReadCommitted);
        writer.update(0, false).expect("nobody is in the way");
        let stops = Meanwhile::at(&writer.p, StopEvent::CommitRegister, || {
            let nobody = Asks(|_| false, || ());
            assert_eq!(ranges(w, 0).rebuild(&w.e, 2, &nobody, &[&encode(0, 2)], 16), Ok(true));
            reader.begin(Mood::Serializable);
            let (lo, hi) = (encode(0, 0), encode(0, WIDTH));
            let scan = Scan {
                at: &[],
                lo: Included(&lo),
                hi: Included(&hi),
                open: OpenEnd::No,
                snapshot: None,
                looked: Looked::ALL,
            };
            reader.t.begin_scan(&reader.p, ranges(w, 0), &scan).expect("a scan");
        });
        writer.t.prepare(&stops, &|_, _| {}).expect("nobody is in the way");
        drop(stops);
        writer.t.publish(&writer.p);
        let end = reader.commit();
        reader.abort();
        end.is_err()
    });
}

/// The coordinator has looked at a slot. A transaction begins there, and a step of a switch is
/// announced, before the coordinator has looked at all slots: that transaction has not passed it.
#[test]
fn a_look_at_the_slots_says_nothing_of_steps_that_were_announced_since() {
    finds(Fault::ReadsEpochLast, || {
        let (epochs, slots) = (&occ().e.shared.epochs, [AtomicU64::new(0), AtomicU64::new(0)]);
        let step = Cell::new(0);
        let look = epochs.look(slots.iter().enumerate().map(|(i, slot)| {
            if i == 1 {
                assert!(epochs.enter(&slots[0]), "nothing keeps it from beginning");
                step.set(epochs.announce());
            }
            slot
        }));
        !look.has(step.get())
    });
}
