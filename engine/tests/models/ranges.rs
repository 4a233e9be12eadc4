//! Logical ranges: the list with keys is the engine's own; the handshakes of commits with a session
//! that gives an index ranges, or other boundaries, are modelled with the engine's words.
//!
//! Fences stand between a store and a load whose order matters: the model checker knows the total
//! order of sequentially consistent accesses of fences only.

use crate::{fails, model, model_within, validate_list, Record, World};
use loom::sync::atomic::{fence, AtomicU64, Ordering::SeqCst};
use loom::sync::Arc;
use loom::thread;
use mixedcc_engine::csn::{Csn, Stamp, State};
use mixedcc_engine::faults::{self, Fault as Broken};
use mixedcc_engine::range::{
    Dormancy, Effect, EntryHead, KeyEntry, List, ListHead, Look, Part, Position, Ring, Room, Subject, UnderWay, Verdict,
};

/// A list with two keyed entries.
struct Keyed(ListHead, [KeyEntry; 2]);

impl Keyed {
    fn new() -> Keyed {
        Keyed(ListHead::model(), [KeyEntry::model(), KeyEntry::model()])
    }
    fn list(&self) -> List<'_, KeyEntry> {
        List::new(&self.0, &self.1)
    }
    fn register(&self, tag: Stamp, key: &[u8]) -> u64 {
        self.list().register(tag, |e| e.fill(Subject::Short(key), Effect::New)).0
    }
}

/// A key that a reader finds in an entry is the key of that registration, however often it is
/// overwritten.
fn key_of_an_entry(in_turn: bool) {
    let w = Arc::new(Keyed::new());
    let (short, long) = ([1; 9], [2; 16]);
    w.register(Stamp::tag(0, 0), &short);
    let writer = {
        let w = w.clone();
        thread::spawn(move || {
            if in_turn {
                w.register(Stamp::tag(0, 1), &long);
                w.register(Stamp::tag(0, 2), &long);
            } else {
                w.list().entry(0).fill(Subject::Short(&long), Effect::New); // not marked busy
            }
        })
    };
    if let Some(k) = w.list().key(0) {
        assert_eq!(k.bytes(), Some(&short[..]));
    }
    writer.join().unwrap();
}

#[test]
fn a_key_is_read_whole() {
    model(|| key_of_an_entry(true));
}
#[test]
fn changed_under_the_reader_it_is_not() {
    assert!(fails(|| key_of_an_entry(false)));
}

/// A slot's transaction takes back the part of a range that it has published, and the next one
/// publishes another one in its place. A writer that finds a part finds all of it, with the name of
/// its own transaction.
fn part_of_a_transaction(looks_again: bool) {
    let w = Arc::new((AtomicU64::new(1), Part::model()));
    w.1.model_put(&[1]);
    let owner = {
        let w = w.clone();
        thread::spawn(move || {
            w.1.model_clear();
            w.0.store(2, SeqCst);
            w.1.model_put(&[2]);
        })
    };
    if let Some((copy, lo, hi)) = w.1.model_get() {
        assert_eq!(lo, hi, "two halves");
        let ident = w.0.load(SeqCst);
        if !looks_again || w.1.still(&copy) {
            assert_eq!(lo, [ident as u8], "of another transaction");
        }
    }
    owner.join().unwrap();
}

#[test]
fn a_part_is_read_whole_and_with_its_owner() {
    model(|| part_of_a_transaction(true));
}
#[test]
fn without_a_second_look_it_may_be_anothers() {
    assert!(fails(|| part_of_a_transaction(false)));
}

/// A writer commits, and its registration is overwritten, while another transaction scans its
/// snapshot and commits.
fn scan_of_a_snapshot(position_of_newest: bool, laps: u64) {
    let w = Arc::new((World::new(), Record::new(), Ring::model()));
    let writer = {
        let w = w.clone();
        thread::spawn(move || {
            let (world, row, ring) = &*w;
            let csn = commit(world, row, &[ring.list()]);
            for _ in 0..laps {
                let tag = Stamp::tag(0, 1);
                let (pos, _) = ring.list().register(tag, |_| ());
                ring.list().finish(pos, tag, Stamp::ABORTED);
            }
            csn
        })
    };
    let (world, row, ring) = &*w;
    let snapshot = world.clock.load(SeqCst);
    let start = if position_of_newest { ring.list().position() } else { ring.list().position_at(snapshot) };
    let seen = row.is_new_at(world, snapshot, true);
    let csn = world.take_csn(1);
    let valid = validate_list(world, ring.list(), start, Stamp::tag(1, 0), csn);
    let theirs = writer.join().unwrap();
    assert_eq!(seen, theirs <= snapshot);
    assert!(!valid || seen || theirs > csn, "missed: their CSN {theirs}, snapshot {snapshot}, ours {csn}");
}

/// Writes the row under the tag of slot 0, registered in these lists.
fn commit(world: &World, row: &Record, lists: &[List<'_, EntryHead>]) -> Csn {
    let tag = Stamp::tag(0, 0);
    let registered: Vec<u64> = lists.iter().map(|l| l.register(tag, |_| ()).0).collect();
    row.link(tag);
    let csn = world.take_csn(0);
    world.set(0, 0, State::Committed, csn);
    row.stamp.store(Stamp::csn(csn).0, SeqCst);
    for (l, pos) in lists.iter().zip(registered) {
        l.finish(pos, tag, Stamp::csn(csn));
    }
    csn
}

#[test]
fn a_snapshot_scan_misses_nothing() {
    model(|| scan_of_a_snapshot(false, 0));
}
#[test]
fn nor_what_is_in_no_entry_any_more() {
    model_within(2, || scan_of_a_snapshot(false, 2));
}
#[test]
fn from_the_position_of_the_newest_versions_it_does() {
    assert!(fails(|| scan_of_a_snapshot(true, 0)));
}

/// The table that has the ranges, and another one.
const TABLE: u64 = 1;
const OTHER: u64 = 2;

/// Waits as `Engine::await_commits`.
fn await_commit(commits: &UnderWay) {
    if let Some(commit) = commits.of_table(TABLE) {
        while commits.is(commit) {
            thread::yield_now();
        }
    }
}

fn enter(commits: &UnderWay) {
    commits.enter([TABLE].into_iter());
}

/// An index gets ranges, and is scanned, while a writer commits.
fn activation(looks_first: bool) {
    let w = Arc::new((World::new(), Record::new(), Ring::model(), AtomicU64::new(0), UnderWay::model()));
    let writer = {
        let w = w.clone();
        thread::spawn(move || {
            let (world, row, ring, published, commits) = &*w;
            let early = published.load(SeqCst);
            enter(commits);
            let there = if looks_first { early } else { published.load(SeqCst) };
            let lists = [ring.list()];
            let csn = commit(world, row, &lists[..there as usize]);
            commits.leave();
            csn
        })
    };
    let (world, row, ring, published, commits) = &*w;
    published.store(1, SeqCst);
    await_commit(commits);
    let start = ring.list().position();
    let seen = row.is_new_at(world, Csn::MAX >> 16, true);
    let csn = world.take_csn(1);
    let valid = validate_list(world, ring.list(), start, Stamp::tag(1, 0), csn);
    let theirs = writer.join().unwrap();
    assert!(!valid || seen == (theirs < csn), "a phantom: seen {seen}, their CSN {theirs}, ours {csn}");
}

#[test]
fn ranges_can_appear_at_any_moment() {
    model(|| activation(false));
}
#[test]
fn not_if_commits_look_for_them_before_they_say_so() {
    assert!(fails(|| activation(true)));
}

/// A list whose entries come with its first writer.
struct Late(ListHead, Room<EntryHead>, [EntryHead; 2]);

impl Late {
    fn list(&self) -> List<'_, EntryHead> {
        List::in_room(&self.0, &self.1, 2)
    }
    fn give(&self) {
        // SAFETY: INV-ROOM: the two entries live as long as the room, and have atomics only.
        unsafe { self.1.put(self.2.as_ptr().cast_mut(), 2) };
    }
}

/// A writer registers in a list that has no entries yet, while another transaction scans.
fn first_writer(gives_late: bool) {
    let entries = [EntryHead::model(), EntryHead::model()];
    let w = Arc::new((World::new(), Record::new(), Late(ListHead::model(), Room::model(), entries)));
    let writer = {
        let w = w.clone();
        thread::spawn(move || {
            let (world, row, late) = &*w;
            if gives_late {
                let csn = commit(world, row, &[List::new(&late.0, &late.2)]);
                late.give();
                return csn;
            }
            late.give();
            commit(world, row, &[late.list()])
        })
    };
    let (world, row, late) = &*w;
    let list = late.list();
    let start = list.position();
    let seen = row.is_new_at(world, Csn::MAX >> 16, true);
    let csn = world.take_csn(1);
    let valid = validate_list(world, list, start, Stamp::tag(1, 0), csn);
    let theirs = writer.join().unwrap();
    assert!(!valid || seen == (theirs < csn), "a phantom: seen {seen}, their CSN {theirs}, ours {csn}");
}

#[test]
fn a_list_gets_its_entries_from_its_first_writer() {
    model(|| first_writer(false));
}
#[test]
fn not_after_it_has_taken_a_position() {
    assert!(fails(|| first_writer(true)));
}

/// What a rebuild can leave out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// It does not wait for the commits that do not know the new set.
    NoWait,
    /// It ends the old set although somebody who uses it is pinned.
    NoPins,
}

struct Rebuilt {
    world: World,
    row: Record,
    rings: [Ring; 2],
    /// Does the set exist?
    sets: [AtomicU64; 2],
    current: AtomicU64,
    commits: UnderWay,
    /// The scanner's pin; `u64::MAX`: none.
    pin: AtomicU64,
}

/// Boundaries are rebuilt, and the old ones ended, while one transaction writes and another one
/// scans.
fn rebuild(fault: Fault) {
    let w = Arc::new(Rebuilt {
        world: World::new(),
        row: Record::new(),
        rings: [Ring::model(), Ring::model()],
        sets: [AtomicU64::new(1), AtomicU64::new(0)],
        current: AtomicU64::new(0),
        commits: UnderWay::model(),
        pin: AtomicU64::new(u64::MAX),
    });
    let rebuilder = {
        let w = w.clone();
        thread::spawn(move || {
            w.sets[1].store(1, SeqCst);
            if fault != Fault::NoWait {
                await_commit(&w.commits);
            }
            w.current.store(1, SeqCst);
            fence(SeqCst);
            let switched = w.world.clock.load(SeqCst);
            w.world.clock.fetch_add(1, SeqCst);
            let min = w.world.clock.load(SeqCst).min(w.pin.load(SeqCst));
            if switched < min || fault == Fault::NoPins {
                w.sets[0].store(0, SeqCst);
            }
        })
    };
    let writer = {
        let w = w.clone();
        thread::spawn(move || {
            enter(&w.commits);
            let there = |i: usize| w.sets[i].load(SeqCst) == 1;
            let lists: Vec<_> = (0..2).filter(|&i| there(i)).map(|i| w.rings[i].list()).collect();
            let csn = commit(&w.world, &w.row, &lists);
            w.commits.leave();
            csn
        })
    };
    w.pin.store(w.world.clock.load(SeqCst), SeqCst);
    fence(SeqCst);
    let list = w.rings[w.current.load(SeqCst) as usize].list();
    let start = list.position();
    let seen = w.row.is_new_at(&w.world, Csn::MAX >> 16, true);
    let csn = w.world.take_csn(1);
    let valid = validate_list(&w.world, list, start, Stamp::tag(1, 0), csn);
    let theirs = writer.join().unwrap();
    rebuilder.join().unwrap();
    assert!(!valid || seen == (theirs < csn), "a phantom: seen {seen}, their CSN {theirs}, ours {csn}");
}

#[test]
fn boundaries_can_change_at_any_moment() {
    model_within(2, || rebuild(Fault::None));
}
#[test]
fn not_without_waiting_for_commits() {
    assert!(fails(|| rebuild(Fault::NoWait)));
}
#[test]
fn not_without_looking_at_pins() {
    assert!(fails(|| rebuild(Fault::NoPins)));
}

/// What can be left out when ranges sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hurry {
    None,
    /// They fall asleep although somebody is pinned.
    NoPins,
    /// They are awake before the commits that do not know it have ended.
    NoWait,
    /// A commit says that it writes another table only.
    Elsewhere,
}

/// Ranges fall asleep, and are woken up by a scan, while a transaction commits.
fn sleep(hurry: Hurry, asleep: bool) {
    struct Shared {
        world: World,
        row: Record,
        ring: Ring,
        rest: Dormancy,
        commits: UnderWay,
        pin: AtomicU64,
    }
    let w = Arc::new(Shared {
        world: World::new(),
        row: Record::new(),
        ring: Ring::model(),
        rest: Dormancy::model(),
        commits: UnderWay::model(),
        pin: AtomicU64::new(UNPINNED),
    });
    fn tire(w: &Shared, hurry: Hurry) {
        let now = || {
            fence(SeqCst);
            w.world.clock.load(SeqCst)
        };
        let look = Look { at_ns: w.world.clock.load(SeqCst), after_ns: 0, me: 0 };
        w.rest.check_use(look, now, || {
            let min = now().min(w.pin.load(SeqCst));
            if hurry == Hurry::NoPins {
                UNPINNED
            } else {
                min
            }
        });
        w.world.clock.fetch_add(1, SeqCst);
    }
    w.rest.wake(|| 1, || Ok::<(), ()>(())).unwrap();
    w.world.clock.fetch_add(1, SeqCst);
    tire(&w, hurry); // it finds that they were used
    if asleep {
        tire(&w, hurry);
        tire(&w, hurry);
        assert!(w.rest.is_dormant());
    }
    let writer = {
        let w = w.clone();
        thread::spawn(move || {
            if !asleep {
                tire(&w, hurry);
                tire(&w, hurry);
            }
            if hurry == Hurry::Elsewhere {
                w.commits.enter([OTHER].into_iter());
            } else {
                enter(&w.commits);
            }
            let lists = [w.ring.list()];
            let csn = commit(&w.world, &w.row, &lists[..!w.rest.is_dormant() as usize]);
            w.commits.leave();
            csn
        })
    };
    w.pin.store(w.world.clock.load(SeqCst), SeqCst);
    fence(SeqCst);
    let wait = || {
        if hurry != Hurry::NoWait {
            await_commit(&w.commits);
        }
        Ok::<(), ()>(())
    };
    w.rest.wake(|| w.world.clock.load(SeqCst), wait).unwrap();
    let start = w.ring.list().position();
    let seen = w.row.is_new_at(&w.world, Csn::MAX >> 16, true);
    let csn = w.world.take_csn(1);
    let valid = validate_list(&w.world, w.ring.list(), start, Stamp::tag(1, 0), csn);
    let theirs = writer.join().unwrap();
    assert!(!valid || seen == (theirs < csn), "a phantom: seen {seen}, their CSN {theirs}, ours {csn}");
}

#[test]
fn ranges_can_fall_asleep_at_any_moment() {
    model(|| sleep(Hurry::None, false));
}
#[test]
fn and_be_woken_up() {
    model(|| sleep(Hurry::None, true));
}
#[test]
fn not_under_a_pin() {
    assert!(fails(|| sleep(Hurry::NoPins, false)));
}
#[test]
fn not_before_all_commits_know() {
    assert!(fails(|| sleep(Hurry::NoWait, true)));
}
#[test]
fn nor_before_one_that_says_it_writes_elsewhere() {
    assert!(fails(|| sleep(Hurry::Elsewhere, true)));
}

/// A slot commits into another table, then into the one whose ranges are woken up. The session that
/// wakes them finds the names of the tables of either commit, or of both in turn.
fn one_commit_after_another(told: bool) {
    let w = Arc::new((World::new(), Record::new(), Ring::model(), AtomicU64::new(0), UnderWay::model()));
    let writer = {
        let w = w.clone();
        thread::spawn(move || {
            let (world, row, ring, published, commits) = &*w;
            if told {
                commits.enter([TABLE].into_iter());
            } else {
                commits.enter([OTHER].into_iter());
            }
            let lists = [ring.list()];
            let csn = commit(world, row, &lists[..published.load(SeqCst) as usize]);
            commits.leave();
            commits.enter([OTHER].into_iter());
            commits.leave();
            csn
        })
    };
    let (world, row, ring, published, commits) = &*w;
    published.store(1, SeqCst);
    await_commit(commits);
    let start = ring.list().position();
    let seen = row.is_new_at(world, Csn::MAX >> 16, true);
    let csn = world.take_csn(1);
    let valid = validate_list(world, ring.list(), start, Stamp::tag(1, 0), csn);
    let theirs = writer.join().unwrap();
    assert!(!valid || seen == (theirs < csn), "a phantom: seen {seen}, their CSN {theirs}, ours {csn}");
}

#[test]
fn the_next_commit_of_a_slot_may_write_elsewhere() {
    model(|| one_commit_after_another(true));
}
#[test]
fn a_commit_that_does_not_name_its_table_is_not_waited_for() {
    assert!(fails(|| one_commit_after_another(false)));
}

const UNPINNED: u64 = u64::MAX;

/// A process without a snapshot takes hold of something that another one takes away and frees.
fn hold(in_time: bool) {
    struct Shared {
        pin: AtomicU64,
        holds: AtomicU64,
        there: AtomicU64,
        freed: AtomicU64,
    }
    let w = Arc::new(Shared {
        pin: AtomicU64::new(10), // stale: the process has no snapshot
        holds: AtomicU64::new(0),
        there: AtomicU64::new(1),
        freed: AtomicU64::new(0),
    });
    let reclaimer = {
        let w = w.clone();
        thread::spawn(move || {
            w.there.store(0, SeqCst);
            fence(SeqCst);
            let pin = w.pin.load(SeqCst);
            let ended = w.holds.load(SeqCst) == 0 && w.pin.compare_exchange(pin, UNPINNED, SeqCst, SeqCst).is_ok();
            if pin == UNPINNED || ended {
                w.freed.store(1, SeqCst);
            }
        })
    };
    // As `Engine::hold`: a new tag at each pin.
    w.holds.store(in_time as u64, SeqCst);
    fence(SeqCst);
    let mut tag = 20;
    loop {
        let old = w.pin.load(SeqCst);
        if w.pin.compare_exchange(old, tag, SeqCst, SeqCst).is_ok() {
            break;
        }
        tag += 1;
    }
    fence(SeqCst);
    if w.there.load(SeqCst) == 1 {
        w.holds.store(1, SeqCst);
        thread::yield_now();
        assert_eq!(w.freed.load(SeqCst), 0, "freed under a pin");
    }
    reclaimer.join().unwrap();
}

#[test]
fn what_is_held_is_not_freed() {
    model(|| hold(true));
}
#[test]
fn unless_it_is_said_after_the_pin() {
    assert!(fails(|| hold(false)));
}

/// As `check_partition` of the validation, of a predicate whose position was quiet: what committed
/// at or before `since` does not matter, and there is none such in these models.
fn validate_wrapped(
    world: &World,
    list: List<'_, EntryHead>,
    start: Position,
    since: Csn,
    me: Stamp,
    csn: Csn,
) -> bool {
    if validate_list(world, list, start, me, csn) {
        return true;
    }
    if list.look(&start, start.low(), me, csn) != Verdict::Wrapped {
        return false;
    }
    validate_list(world, list, list.oldest(), me, csn) && list.has_lost_nothing_since(since)
}

/// A transaction that registers and aborts.
fn abort_one(list: List<'_, EntryHead>, serial: u16) {
    let tag = Stamp::tag(0, serial);
    let (pos, _) = list.register(tag, |_| ());
    list.finish(pos, tag, Stamp::ABORTED);
}

/// X (CSN 2) committed into what was scanned at 1. An aborted registration follows, then one that
/// overwrites X's entry while the scan is validated at 3.
fn a_place_is_taken() {
    let w = Arc::new((World::new(), Ring::model()));
    let list = w.1.list();
    let start = list.position();
    assert!(start.is_quiet());
    let x = Stamp::tag(0, 0);
    let (pos, _) = list.register(x, |_| ());
    list.finish(pos, x, Stamp::csn(2));
    abort_one(list, 1);
    let lapper = {
        let w = w.clone();
        thread::spawn(move || {
            w.1.list().register(Stamp::tag(0, 2), |_| ());
        })
    };
    assert!(!validate_wrapped(&w.0, list, start, 1, Stamp::tag(1, 0), 3), "X is missed");
    lapper.join().unwrap();
}

#[test]
fn what_is_being_overwritten_is_not_forgotten() {
    model(a_place_is_taken);
}
#[test]
fn unless_the_places_are_not_read() {
    assert!(breaks(Broken::LappedForgotten, a_place_is_taken));
}

/// X is still committing (CSN 2), and its entry was overwritten by an aborted registration. Another
/// one overwrites a finished entry while it is looked for open ones.
fn an_entry_changes_while_it_is_read() {
    let w = Arc::new((World::new(), Ring::model()));
    let list = w.1.list();
    let start = list.position();
    list.register(Stamp::tag(1, 0), |_| ());
    abort_one(list, 1);
    abort_one(list, 2);
    let lapper = {
        let w = w.clone();
        thread::spawn(move || {
            w.1.list().register(Stamp::tag(0, 3), |_| ());
        })
    };
    w.0.set(1, 0, State::Committing, 2);
    assert!(!validate_wrapped(&w.0, list, start, 1, Stamp::tag(5, 0), 3), "X is missed");
    lapper.join().unwrap();
}

#[test]
fn an_open_one_in_no_entry_is_not_forgotten() {
    model(an_entry_changes_while_it_is_read);
}
#[test]
fn unless_a_stamp_is_believed_to_be_of_its_place() {
    assert!(breaks(Broken::PlaceReadOnce, an_entry_changes_while_it_is_read));
}

/// Does the model checker find that X is missed with this fault?
fn breaks(fault: Broken, f: impl Fn() + Sync + Send + 'static) -> bool {
    faults::set(Some(fault));
    let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| model(f)));
    faults::set(None);
    end.is_err_and(|why| why.downcast_ref::<&str>().is_some_and(|text| text.contains("X is missed")))
}
