//! Commits that give up locks before they are done (INV-RELEASED): what others may do with their
//! rows then, and what these wait for.

use crate::client::{Client, Mood};
use crate::held::{finds, reader, snapshot, value, world, FINE};
use crate::load::{assert_serializable, policies, run, Load};
use crate::world::{Jitter, Row, World};
use mixedcc_engine::checker::Recorder;
use mixedcc_engine::faults::Fault;
use mixedcc_engine::lock::Mode;
use mixedcc_engine::txn::How;
use mixedcc_engine::{Error, Level, Policy, Protocol, ProtocolSet, Txn};

/// A transaction of `slot` that adds 1 to row 0, has given up its locks, and waits for its flush.
fn released(w: &'static World, slot: u16, r: &Recorder) -> Client<'static> {
    let mut c = Client::new(w, slot, r.session(), 7);
    c.releases = true;
    c.begin(Mood::Serializable);
    assert!(c.update(0, false).expect(FINE));
    release(&mut c);
    c
}

fn release(c: &mut Client) {
    c.t.prepare_locks(&c.p).expect(FINE);
    c.t.depends_on_open();
    c.t.prepare_decide(&c.p, true, &|_, _| {}).expect(FINE);
    c.t.let_go_early();
    c.t.mark_committed();
    c.t.settle();
    c.t.rest();
    c.t.release_written(&c.p);
}

fn end(c: &mut Client) {
    assert!(!c.t.depends_on_open());
    c.t.done();
    c.t.finish(&c.p);
}

/// What a snapshot that is taken now shows of row 0.
fn shown(w: &'static World) -> Option<i64> {
    let (mut t, p, kept) = reader(w, 3);
    let found = value(w, &mut t, &p, kept.seen(), 0);
    t.abort();
    found
}

#[test]
fn serializable_writers_follow_each_other_before_they_are_done() {
    for p in Protocol::ALL {
        let (w, r) = (world(p), Recorder::new());
        let mut a = released(w, 0, &r);
        let mut b = released(w, 1, &r);
        assert!(b.t.depends_on_open(), "{p:?}: it builds on a commit that is not done");
        assert_eq!(shown(w), Some(100), "{p:?}");
        end(&mut a);
        assert_eq!(shown(w), Some(101), "{p:?}");
        end(&mut b);
        assert_eq!(shown(w), Some(102), "{p:?}");
    }
}

/// Locks row 0 below SERIALIZABLE, behind a commit that is not done. Does it depend on that?
fn depends(lock: fn(&World, &mut Txn, &Jitter)) -> bool {
    let (w, r) = (world(Protocol::TwoPhase), Recorder::new());
    let mut a = released(w, 0, &r);
    let (mut b, p) = (Txn::new(w.e, 1), Jitter::new(w, 1, 7));
    b.begin(Level::Snapshot, w.ident());
    lock(w, &mut b, &p);
    let open = b.depends_on_open();
    end(&mut a);
    assert!(!b.depends_on_open(), "it is done");
    // The next snapshot shows it.
    let kept = snapshot(&mut b);
    let found = value(w, &mut b, &p, kept.seen(), 0);
    b.abort();
    assert_eq!(found, Some(101));
    open
}

#[test]
fn below_serializable_a_writer_depends_on_what_it_replaces() {
    finds(Fault::OpenForgotten, || {
        depends(|w, b, p| {
            let found = b.lock_for_write(p, w.records(0)[0], Mode::NoKeyUpdate, How::Try, true).expect(FINE);
            assert_eq!(Row::read(found.expect("a row").0).value, 101);
        })
    });
}

#[test]
fn below_serializable_a_lock_of_a_row_depends_on_its_newest_version() {
    finds(Fault::OpenForgotten, || {
        depends(|w, b, p| {
            let r = w.records(0)[0];
            b.lock_row(p, r, Mode::Update, How::Try).expect(FINE);
            let newest = b.newest(p, r.rec).expect(FINE);
            b.note_newest(newest);
        })
    });
}

/// Row 4 is locked, and not written: a lock that others take for a token of what the commit does
/// elsewhere, and no version of it names the commit.
#[test]
fn locks_of_rows_that_are_not_written_stay() {
    finds(Fault::ReleasesUnwritten, || {
        let (w, r) = (world(Protocol::TwoPhase), Recorder::new());
        let mut a = Client::new(w, 0, r.session(), 7);
        a.releases = true;
        a.begin(Mood::Serializable);
        let other = w.records(4)[0];
        a.t.lock_row(&a.p, other, Mode::Update, How::Wait).expect(FINE);
        assert!(a.update(0, false).expect(FINE));
        release(&mut a);
        let (mut b, p) = (Txn::new(w.e, 1), Jitter::new(w, 1, 7));
        b.begin(Level::Snapshot, w.ident());
        let kept = b.lock_row(&p, other, Mode::Share, How::Try) == Err(Error::WouldBlock);
        b.lock_row(&p, w.records(0)[0], Mode::Update, How::Try).expect("given up");
        end(&mut a);
        b.lock_row(&p, other, Mode::Share, How::Try).expect("it is done");
        b.abort();
        kept
    });
}

/// A transaction that has not asked for it, or whose commit is not held, keeps its locks.
#[test]
fn locks_stay_where_nothing_is_asked() {
    let (w, r) = (world(Protocol::TwoPhase), Recorder::new());
    let mut a = Client::new(w, 0, r.session(), 7);
    a.begin(Mood::Serializable);
    assert!(a.update(0, false).expect(FINE));
    release(&mut a);
    let (mut b, p) = (Txn::new(w.e, 1), Jitter::new(w, 1, 7));
    b.begin(Level::Snapshot, w.ident());
    let got = b.lock_row(&p, w.records(0)[0], Mode::Update, How::Try);
    assert_eq!(got, Err(Error::WouldBlock));
    end(&mut a);
    b.abort();
}

/// The second writer of a row, done, retires what the first one has written, and nothing that a
/// snapshot still shows.
#[test]
fn a_chain_of_commits_keeps_what_snapshots_show() {
    for p in Protocol::ALL {
        let (w, r) = (world(p), Recorder::new());
        let mut a = released(w, 0, &r);
        let (mut old, jitter, kept) = reader(w, 3);
        let mut b = released(w, 1, &r);
        let mut c = released(w, 2, &r);
        end(&mut a);
        end(&mut b);
        end(&mut c);
        w.e.refresh_min_pin(&jitter);
        for slot in 0..3 {
            let mut t = Txn::new(w.e, slot);
            t.begin(Level::Snapshot, w.ident());
            t.collect(&jitter);
            t.abort();
        }
        assert_eq!(value(w, &mut old, &jitter, kept.seen(), 0), Some(100), "{p:?}");
        old.abort();
        assert_eq!(shown(w), Some(103), "{p:?}");
    }
}

#[test]
fn histories_of_commits_that_release_early() {
    for p in Protocol::ALL {
        for &policy in policies(ProtocolSet::of(p)) {
            let mut l = Load::new(&[ProtocolSet::of(p)], policy, 7600 + 10 * p.index() as u64 + policy as u64);
            (l.holds, l.commits, l.releases) = (60, 1000, true);
            let (h, counts) = run(&l);
            assert_serializable(&h, &counts, l.seed);
        }
    }
}

#[test]
fn histories_of_commits_that_release_early_between_pairs_of_protocols() {
    for a in Protocol::ALL {
        for b in Protocol::ALL.into_iter().skip(a.index() + 1) {
            let both = ProtocolSet::mediated(a, b);
            let mut l = Load::new(&[both, ProtocolSet::of(a), both, ProtocolSet::of(b)], Policy::Wait, 7700);
            (l.seed, l.holds, l.releases) = (l.seed + 10 * a.index() as u64 + b.index() as u64, 60, true);
            (l.commits, l.spans) = (1000, 20);
            let (h, counts) = run(&l);
            assert_serializable(&h, &counts, l.seed);
        }
    }
}
