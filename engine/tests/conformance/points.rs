//! Long snapshots beside many updates: the versions between them are pruned, and what they read is
//! right (INV-POINT, INV-PRUNE, INV-UNLINK, INV-LOOSE).

use crate::client::{Client, Mood};
use crate::load::{assert_serializable, run, run_in, Load};
use crate::switches::{switch_at_random, Plan};
use crate::world::{initial_keys, Row, World};
use mixedcc_engine::checker::{check, Options, Recorder};
use mixedcc_engine::csn::SlotId;
use mixedcc_engine::faults::{self, Fault};
use mixedcc_engine::open::Seen;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::record::Version;
use mixedcc_engine::{Policy, Protocol, ProtocolSet, RecordRef};
use std::ptr::NonNull;

/// Versions that wait to be looked at: two segments of a queue, and the commits between two looks.
const YOUNG: u64 = 2 * 41 + 16;

fn occ(slots: u16) -> World {
    World::new(&[ProtocolSet::of(Protocol::Occ)], Policy::Wait, slots)
}

fn rows() -> u64 {
    initial_keys().count() as u64
}

fn pruned(w: &World) -> u64 {
    w.e.shared.pruned.load(Ordering::SeqCst)
}

/// Commits `n` updates of each of these rows, one by one.
fn update_all(c: &mut Client, keys: &[i64], n: usize) {
    for _ in 0..n {
        for key in keys {
            c.begin(Mood::ReadCommitted);
            assert_eq!(c.update(*key, true), Ok(true));
            c.commit().expect("nobody is in the way");
        }
    }
}

fn all_keys() -> Vec<i64> {
    initial_keys().collect()
}

/// The versions of a record. No other thread runs, and the caller keeps all of them.
fn chain(r: RecordRef) -> Vec<NonNull<Version>> {
    // SAFETY: the caller keeps the versions, and no other thread prunes meanwhile.
    let next = |v: &NonNull<Version>| NonNull::new(unsafe { v.as_ref() }.older());
    std::iter::successors(NonNull::new(r.rec.head()), next).collect()
}

/// What a reader sees of all keys, by its snapshot.
fn sees(c: &mut Client) -> Vec<Option<i64>> {
    initial_keys().map(|key| c.get(key).expect("a read").map(|row| row.value)).collect()
}

/// A reader that has a snapshot, has read one row, and rests.
fn resting<'w>(w: &'w World, recorder: &Recorder, slot: SlotId) -> (Client<'w>, Vec<Option<i64>>) {
    let mut c = Client::new(w, slot, recorder.session(), 7);
    c.begin(Mood::ReadOnly);
    let seen = sees(&mut c);
    rest(&mut c);
    (c, seen)
}

fn rest(c: &mut Client) {
    let at = c.snapshot();
    assert!(c.t.take_rest(&Seen::prefix(at)), "it has only read");
}

fn judge(recorder: &Recorder) {
    let mut h = recorder.history();
    h.initial.extend(initial_keys().map(|k| (crate::world::checked(k), 0)));
    let v = check(&h, &Options::strict());
    assert!(v.accepts(), "{v}");
}

#[test]
fn a_long_snapshot_keeps_one_version_of_each_row() {
    let (w, recorder) = (occ(2), Recorder::new());
    let mut writer = Client::new(&w, 1, recorder.session(), 7);
    update_all(&mut writer, &all_keys(), 2);
    let (mut reader, seen) = resting(&w, &recorder, 0);
    for _ in 0..20 {
        update_all(&mut writer, &all_keys(), 50);
        assert!(w.e.retired() <= rows() + YOUNG, "{} versions wait", w.e.retired());
        reader.t.wake();
        assert_eq!(sees(&mut reader), seen);
        rest(&mut reader);
    }
    assert!(pruned(&w) > 20 * 50 * rows() - rows() - YOUNG, "only {} were pruned", pruned(&w));
    reader.t.wake();
    reader.commit().expect("it has read a snapshot");
    update_all(&mut writer, &all_keys(), 20);
    assert!(w.e.retired() <= YOUNG, "{} versions wait without a snapshot", w.e.retired());
    judge(&recorder);
}

#[test]
fn a_reader_that_does_not_rest_keeps_all() {
    let (w, recorder) = (occ(2), Recorder::new());
    let mut writer = Client::new(&w, 1, recorder.session(), 7);
    let (mut reader, seen) = resting(&w, &recorder, 0);
    reader.t.wake();
    update_all(&mut writer, &all_keys(), 50);
    assert_eq!(w.e.retired(), 50 * rows());
    assert_eq!((pruned(&w), sees(&mut reader)), (0, seen));
}

#[test]
fn each_snapshot_keeps_its_own_versions() {
    let (w, recorder) = (occ(9), Recorder::new());
    let mut writer = Client::new(&w, 8, recorder.session(), 7);
    let mut readers = Vec::new();
    for slot in 0..8 {
        readers.push(resting(&w, &recorder, slot));
        update_all(&mut writer, &all_keys(), 60);
        let n = readers.len() as u64;
        assert!(w.e.retired() <= n * rows() + YOUNG, "{} versions wait beside {n} snapshots", w.e.retired());
    }
    // Some in the middle end.
    for i in [5, 3, 1] {
        let (mut reader, seen) = readers.remove(i);
        reader.t.wake();
        assert_eq!(sees(&mut reader), seen);
        reader.commit().expect("it has read a snapshot");
    }
    update_all(&mut writer, &all_keys(), 400);
    assert!(w.e.retired() <= 5 * rows() + YOUNG, "{} versions wait beside 5 snapshots", w.e.retired());
    for (reader, seen) in &mut readers {
        reader.t.wake();
        assert_eq!(sees(reader), *seen);
        reader.commit().expect("it has read a snapshot");
    }
    judge(&recorder);
}

#[test]
fn rows_that_come_and_go_between_snapshots_leave_no_versions() {
    let (w, recorder) = (occ(2), Recorder::new());
    let mut writer = Client::new(&w, 1, recorder.session(), 7);
    let (mut reader, seen) = resting(&w, &recorder, 0);
    const KEY: i64 = 500;
    for _ in 0..300 {
        writer.begin(Mood::ReadCommitted);
        assert_eq!(writer.insert(KEY), Ok(true));
        writer.commit().expect("nobody is in the way");
        update_all(&mut writer, &[KEY, 0], 3);
        // Undone and overwritten versions wait for no snapshot.
        writer.begin(Mood::ReadCommitted);
        assert_eq!((writer.update(0, true), writer.update(0, true)), (Ok(true), Ok(true)));
        writer.abort();
        writer.begin(Mood::ReadCommitted);
        assert_eq!(writer.delete(KEY, true, false), Ok(true));
        writer.commit().expect("nobody is in the way");
    }
    assert!(w.e.retired() <= rows() + 2 * YOUNG, "{} versions wait", w.e.retired());
    reader.t.wake();
    assert_eq!(sees(&mut reader), seen);
    judge(&recorder);
}

/// A reader has an address when it wakes, or within a walk. Are the versions there after many
/// updates, until it rests again? It wakes at several moments between the looks of a pruner.
fn keeps_what_it_finds(fault: Fault, find: impl Fn(&mut Client, RecordRef) -> NonNull<Version>) -> bool {
    (10..16).all(|n| keeps_after(n, fault, &find))
}

fn keeps_after(n: usize, fault: Fault, find: impl Fn(&mut Client, RecordRef) -> NonNull<Version>) -> bool {
    let (w, recorder) = (occ(2), Recorder::new());
    let mut writer = Client::new(&w, 1, recorder.session(), 7);
    let (mut reader, seen) = resting(&w, &recorder, 0);
    update_all(&mut writer, &all_keys(), n);
    faults::set(Some(fault));
    reader.t.wake();
    let found = find(&mut reader, w.records(0)[0]);
    let row = Row::read(found);
    update_all(&mut writer, &all_keys(), 100);
    faults::set(None);
    // SAFETY: the block is there, whatever lies at the address now.
    let there = unsafe { Version::payload(found.as_ptr()).cast::<Row>().read_unaligned() } == row;
    if there {
        assert_eq!(sees(&mut reader), seen);
        rest(&mut reader);
        let before = w.e.retired();
        update_all(&mut writer, &all_keys(), 10);
        assert!(w.e.retired() < before, "it rests, and keeps what it has found");
    }
    there
}

fn newest(c: &mut Client, r: RecordRef) -> NonNull<Version> {
    c.t.newest(&c.p, r.rec).expect("no wait").expect("a row").0
}

/// The last step of the walk down to what the reader's snapshot sees.
fn above_its_own(c: &mut Client, r: RecordRef) -> NonNull<Version> {
    let at = c.snapshot();
    // SAFETY: as for `chain`.
    let newer = |v: &NonNull<Version>| unsafe { v.as_ref() }.csn().is_some_and(|csn| csn > at);
    chain(r).into_iter().filter(newer).next_back().expect("a newer version")
}

#[test]
fn who_wakes_keeps_the_newest_versions() {
    assert!(keeps_what_it_finds(Fault::FreesAtPin, newest), "without a fault of this kind");
    assert!(!keeps_what_it_finds(Fault::WakesLate, newest), "the fault was not found");
}

#[test]
fn who_walks_keeps_what_is_unlinked() {
    assert!(keeps_what_it_finds(Fault::FreesAtPin, above_its_own), "without a fault of this kind");
    assert!(!keeps_what_it_finds(Fault::FreesUnlinked, above_its_own), "the fault was not found");
}

/// A snapshot leaves out a commit that is held. What that replaces is what the snapshot reads.
fn reads_beside_a_held_commit(fault: Option<Fault>) -> bool {
    let (w, recorder) = (occ(4), Recorder::new());
    let mut writer = Client::new(&w, 1, recorder.session(), 7);
    let mut held = Client::new(&w, 2, recorder.session(), 7);
    // What the oldest point may see is not touched at all.
    let _older = resting(&w, &recorder, 3);
    update_all(&mut writer, &all_keys(), 2);
    held.begin(Mood::ReadCommitted);
    assert_eq!(held.update(0, true), Ok(true));
    held.t.prepare_locks(&held.p).expect("nobody is in the way");
    held.t.prepare_decide(&held.p, true, &|_, _| {}).expect("nobody is in the way");
    held.t.mark_committed();
    held.t.settle();
    update_all(&mut writer, &[2], 3);

    let mut reader = Client::new(&w, 0, recorder.session(), 7);
    reader.begin(Mood::RepeatableRead);
    let mut list = Vec::new();
    let (upto, floor) = reader.t.take_seen(&mut list);
    let excluded: Vec<_> = list.iter().map(|(csn, _)| *csn).collect();
    let seen = Seen { upto, floor, excluded: &excluded };
    assert_eq!(excluded.len(), 1, "the commit is not done");
    let r = w.records(0)[0];
    let read = |c: &mut Client| c.t.read_snapshot(&c.p, r, seen).expect("no wait").map(|v| Row::read(v).value);
    let before = read(&mut reader);
    assert!(reader.t.take_rest(&seen));
    held.t.done();
    held.t.finish(&held.p);
    faults::set(fault);
    update_all(&mut writer, &all_keys(), 100);
    faults::set(None);
    reader.t.wake();
    read(&mut reader) == before
}

#[test]
fn a_snapshot_keeps_what_a_commit_replaces_that_it_leaves_out() {
    assert!(reads_beside_a_held_commit(None));
    assert!(!reads_beside_a_held_commit(Some(Fault::PrunesByClock)), "the fault was not found");
}

#[test]
fn only_who_reads_by_one_snapshot_rests() {
    let (w, recorder) = (occ(1), Recorder::new());
    let mut c = Client::new(&w, 0, recorder.session(), 7);
    let rests = |c: &mut Client| {
        let rests = c.t.take_rest(&Seen::prefix(c.snapshot()));
        c.t.wake();
        rests
    };
    c.begin(Mood::RepeatableRead);
    assert!(rests(&mut c) && c.get(0).is_ok() && rests(&mut c));
    assert_eq!(c.update(0, true), Ok(true));
    assert!(!rests(&mut c), "it has written");
    c.abort();
    c.begin(Mood::RepeatableRead);
    c.t.rest_no_more();
    assert!(!rests(&mut c), "it has said so");
    c.abort();
    c.begin(Mood::Serializable);
    assert!(c.get(0).is_ok() && !rests(&mut c), "it remembers its reads");
    c.abort();
    c.begin(Mood::RepeatableRead);
    w.e.tick();
    let earlier = Seen::prefix(w.e.now() - 2);
    assert!(!c.t.take_rest(&earlier), "the snapshot is not of this pin");
    c.abort();
}

/// Long snapshots that rest, beside others that rest and write later, and writers of all kinds.
fn load(sets: &[ProtocolSet], policy: Policy, seed: u64) -> Load {
    use Mood::*;
    let mut l = Load::new(sets, policy, seed);
    l.moods = vec![ReadOnly, ReadOnly, RepeatableRead, Serializable, Serializable, ReadCommitted];
    (l.rests, l.long, l.commits, l.holds, l.yields) = (80, 300, 4000, 5, 10);
    l
}

#[test]
fn histories_with_long_snapshots_are_right_under_each_protocol() {
    // Over all runs: on a loaded machine one may have snapshots only that hold everything back.
    let mut all = 0;
    for p in Protocol::ALL {
        let set = ProtocolSet::of(p);
        let l = load(&[set], Policy::Wait, 5000 + p.index() as u64);
        let w = World::new(&l.sets, l.policy, l.slots());
        let (h, counts) = run_in(&w, &l, |_, enough| enough());
        assert_serializable(&h, &counts, l.seed);
        all += pruned(&w);
    }
    assert!(all > 100, "only {all} versions were pruned");
    let sets = Protocol::ALL.map(ProtocolSet::of);
    let l = load(&sets, Policy::Wait, 5100);
    let (h, counts) = run(&l);
    assert_serializable(&h, &counts, l.seed);
}

#[test]
fn histories_with_long_snapshots_are_right_while_protocols_are_switched() {
    let mut all = 0;
    for (i, from) in Protocol::ALL.into_iter().enumerate() {
        let l = load(&[ProtocolSet::of(from)], Policy::Wait, 5200 + i as u64);
        let plan = Plan { seed: l.seed, switches: 30, deaths: 10, stop_all: 10, fault: None };
        let w = World::new(&l.sets, l.policy, l.slots());
        let (h, counts) = run_in(&w, &l, |stop, enough| switch_at_random(&w, &plan, stop, enough));
        assert_serializable(&h, &counts, l.seed);
        all += pruned(&w);
    }
    assert!(all > 100, "only {all} versions were pruned");
}
