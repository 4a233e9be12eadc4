//! Commits, the rounds of the checkpointer's companion, and checkpoints (INV-WINDOW, INV-DIRTY,
//! INV-GATE, INV-RELEASE): the code is the engine's. WAL, one record with its images, and the
//! checkpointer are modelled.

use crate::model_within;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use mixedcc_engine::durable::table::Words;
use mixedcc_engine::durable::window::{log, Checkpoints, Companion, Dirty, Gate, Window};
use mixedcc_engine::faults::{self, Fault};

/// One record, whose versions have the numbers of the commits in WAL.
#[derive(Default)]
struct World {
    /// What one lock of WAL protects, 16 bits each: the end, the commits before it, the redo
    /// pointer, and the commits before that.
    wal: AtomicU64,
    /// Excludes looks of the checkpointer at `hold`.
    processes: Mutex<()>,
    hold: AtomicU64,
    /// The number of looks.
    looks: AtomicU64,
    /// A checkpoint has begun, has looked, or is released. Sleeps stand for polling, which the
    /// model checker would follow without end.
    news: Condvar,
    window: Window,
    gate: Gate,
    flag: AtomicU32,
    bits: [AtomicU64; 1],
    /// The newest committed version.
    committed: AtomicU64,
    /// A version that was logged with a transaction id, and the one that the commit log has
    /// decided.
    logged: AtomicU64,
    decided: AtomicU64,
    /// The newest version in images, and the newest one in pending entries of images.
    images: AtomicU64,
    pending: AtomicU64,
    over: AtomicU32,
}

/// What failures say.
const LOST: &str = "a commit or a checkpoint is lost";

const END: u32 = 0;
const COMMITS: u32 = 16;
const REDO: u32 = 32;
const COMMITS_BEFORE_REDO: u32 = 48;

fn part(wal: u64, shift: u32) -> u64 {
    wal >> shift & 0xFFFF
}

impl Checkpoints for World {
    fn redo(&self) -> u64 {
        part(self.wal.load(SeqCst), REDO)
    }
    fn excluding_looks<T>(&self, f: impl FnOnce() -> T) -> T {
        let _guard = self.processes.lock().unwrap();
        f()
    }
    fn renew_hold(&self) {
        self.hold.fetch_add(1, SeqCst);
        self.news.notify_all();
    }
}

impl World {
    fn new() -> Arc<World> {
        let w = World::default();
        w.gate.open();
        Arc::new(w)
    }
    fn dirty(&self) -> Dirty<'_> {
        Dirty::new(&self.flag, &self.bits)
    }
    /// Inserts a commit's record.
    fn insert(&self) {
        self.wal.fetch_add(1 << END | 1 << COMMITS, SeqCst);
    }
    /// Begins a checkpoint, and says how many commits are before its redo pointer.
    fn fix_redo(&self) -> u64 {
        loop {
            let wal = self.wal.load(SeqCst);
            let (end, commits) = (part(wal, END) + 1, part(wal, COMMITS));
            let fixed = end << END | commits << COMMITS | end << REDO | commits << COMMITS_BEFORE_REDO;
            if self.wal.compare_exchange(wal, fixed, SeqCst, SeqCst).is_ok() {
                self.tell();
                return commits;
            }
        }
    }
    fn tell(&self) {
        let _guard = self.processes.lock().unwrap();
        self.news.notify_all();
    }
    fn sleep_while(&self, so: impl Fn() -> bool) {
        let mut guard = self.processes.lock().unwrap();
        while so() {
            guard = self.news.wait(guard).unwrap();
        }
    }
    /// Looks which process holds the checkpoint that has begun.
    fn look(&self) -> u64 {
        self.excluding_looks(|| {
            self.looks.fetch_add(1, SeqCst);
            self.news.notify_all();
            self.hold.load(SeqCst)
        })
    }
    /// A checkpoint. It demands that all commits before its redo pointer are in images.
    fn checkpoint(&self) {
        let covered = self.fix_redo();
        let holder = self.look();
        self.sleep_while(|| self.hold.load(SeqCst) == holder);
        let imaged = self.images.load(SeqCst).max(self.pending.load(SeqCst));
        assert!(imaged >= covered, "{LOST}: {covered} before the redo pointer, {imaged} in images");
    }
    /// Images the record, if it is dirty.
    fn image_dirty(&self) {
        if !self.dirty().take_flag() {
            return;
        }
        let result = self.dirty().take(|taken| {
            let logged = self.logged.load(SeqCst);
            let committed = self.committed.load(SeqCst).max(self.decided.load(SeqCst));
            if logged > committed {
                self.pending.store(logged, SeqCst);
            }
            self.images.store(committed, SeqCst);
            taken.imaged();
            Ok::<(), ()>(())
        });
        assert_eq!(result, Ok(()));
    }
    /// A pass of the companion. It looks again when there is news.
    fn pass(&self, companion: &mut Companion) {
        let image = |_| {
            self.image_dirty();
            Ok::<(), ()>(())
        };
        let _ = companion.pass(self, [&self.window], |_| thread::yield_now(), image);
    }
    /// The companion's loop.
    fn companion(&self) {
        let (mut companion, mut redo, mut looks) = (Companion::default(), 0, 0);
        loop {
            self.sleep_while(|| self.redo() == redo && self.looks.load(SeqCst) == looks && self.over.load(SeqCst) == 0);
            if self.over.load(SeqCst) != 0 {
                return;
            }
            (redo, looks) = (self.redo(), self.looks.load(SeqCst));
            self.pass(&mut companion);
        }
    }
    /// The commit without a transaction id of the version with this number, if the gate is open.
    fn commit(&self, version: u64) -> bool {
        if self.window.enter(&self.gate).is_err() {
            return false;
        }
        log(&self.window, || self.insert(), |_| self.committed.store(version, SeqCst), || self.dirty().set(0));
        self.window.leave();
        true
    }
}

fn spawn(w: &Arc<World>, f: impl FnOnce(&World) + 'static) -> thread::JoinHandle<()> {
    let w = w.clone();
    thread::spawn(move || f(&w))
}

/// Commits beside checkpoints. Before the last checkpoint one is begun that fails, if asked for.
fn checkpoints(commits: u64, checkpoints: usize, one_fails: bool) {
    let w = World::new();
    let companion = spawn(&w, World::companion);
    let committer = spawn(&w, move |w| (1..=commits).for_each(|version| assert!(w.commit(version))));
    for n in 1..=checkpoints {
        if one_fails && n == checkpoints {
            w.fix_redo();
        }
        w.checkpoint();
    }
    w.over.store(1, SeqCst);
    w.tell();
    committer.join().unwrap();
    companion.join().unwrap();
}

/// A checkpoint that looks at any moment is released, at the latest by the companion's next pass.
fn no_hang() {
    let w = World::new();
    let companion = spawn(&w, |w| {
        let mut companion = Companion::default();
        w.sleep_while(|| w.redo() == 0);
        w.pass(&mut companion);
        w.sleep_while(|| w.looks.load(SeqCst) == 0);
        w.pass(&mut companion);
    });
    w.fix_redo();
    let holder = w.look();
    companion.join().unwrap();
    assert_ne!(w.hold.load(SeqCst), holder, "{LOST}: its checkpoint hangs");
}

/// A commit with a transaction id: logged, and decided later by the commit log. It sets the bits
/// `twice`, as it should, or not.
fn with_xid(twice: bool) {
    let w = World::new();
    let companion = spawn(&w, World::companion);
    let committer = spawn(&w, move |w| {
        w.window.enter(&w.gate).unwrap();
        w.logged.store(1, SeqCst);
        log(&w.window, || w.insert(), |_| (), || w.dirty().set(0));
        w.window.leave();
        w.decided.store(1, SeqCst);
        if twice {
            log(&w.window, || (), |_| w.committed.store(1, SeqCst), || w.dirty().set(0));
        }
    });
    w.checkpoint();
    committer.join().unwrap();
    w.checkpoint();
    w.over.store(1, SeqCst);
    w.tell();
    companion.join().unwrap();
    assert_eq!(w.images.load(SeqCst), 1, "{LOST}: it is pending in images");
}

/// The companion closes the gate and makes its last round beside a committer.
fn closing() {
    let w = World::new();
    let committer = spawn(&w, |w| {
        let _ = w.commit(1) && w.commit(2);
    });
    w.gate.close([&w.window], |_| thread::yield_now());
    w.image_dirty();
    committer.join().unwrap();
    assert_eq!(w.images.load(SeqCst), part(w.wal.load(SeqCst), COMMITS), "{LOST} at the end");
}

/// Does the model checker find a loss, in the engine with this fault?
fn loses(preemptions: usize, fault: Option<Fault>, f: impl Fn() + Sync + Send + 'static) -> bool {
    faults::set(fault);
    let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| model_within(preemptions, f)));
    faults::set(None);
    let text = end.err().map(|why| format!("{:?}", why.downcast_ref::<String>()));
    text.is_some_and(|text| text.contains(LOST))
}

#[test]
fn commits_before_the_redo_pointer_are_in_images() {
    model_within(2, || checkpoints(2, 2, false));
}
#[test]
fn not_if_the_window_opens_after_the_insertion() {
    assert!(loses(2, Some(Fault::WindowOpensLate), || checkpoints(1, 1, false)));
}
#[test]
fn not_if_the_window_closes_before_the_bits_are_set() {
    assert!(loses(2, Some(Fault::WindowClosesEarly), || checkpoints(1, 1, false)));
}
#[test]
fn not_if_the_bits_are_set_before_the_mark() {
    assert!(loses(2, Some(Fault::BitsBeforeMark), || checkpoints(1, 2, false)));
}
#[test]
fn not_if_the_round_does_not_wait_for_windows() {
    assert!(loses(2, Some(Fault::WindowsNotAwaited), || checkpoints(1, 1, false)));
}
#[test]
fn not_if_bits_are_cleared_after_the_look() {
    assert!(loses(2, Some(Fault::BitClearedAfterLook), || checkpoints(2, 2, false)));
}
#[test]
fn not_if_the_flag_is_cleared_after_the_bits() {
    assert!(loses(2, Some(Fault::FlagClearedLast), || checkpoints(2, 2, false)));
}

#[test]
fn a_checkpoint_that_follows_a_failed_one_is_held_for_its_own_redo_pointer() {
    model_within(3, || checkpoints(1, 1, true));
}
#[test]
fn it_is_not_if_any_round_releases_it() {
    assert!(loses(3, Some(Fault::ReleasesBlindly), || checkpoints(1, 1, true)));
}

#[test]
fn no_checkpoint_hangs() {
    model_within(3, no_hang);
}
#[test]
fn one_hangs_if_it_is_released_only_once() {
    assert!(loses(3, Some(Fault::ReleasesOnce), no_hang));
}

#[test]
fn rows_replace_pending_entries() {
    model_within(2, || with_xid(true));
}
#[test]
fn they_do_not_if_the_bits_are_set_only_once() {
    assert!(loses(2, None, || with_xid(false)));
}

#[test]
fn after_the_gate_is_closed_all_commits_are_in_images() {
    model_within(3, closing);
}
#[test]
fn they_are_not_if_the_gate_is_tested_before_the_window() {
    assert!(loses(3, Some(Fault::GateLookedFirst), closing));
}
#[test]
fn they_are_not_if_the_companion_does_not_wait_for_windows() {
    assert!(loses(3, Some(Fault::WindowsNotAwaited), closing));
}

/// A drop of a table beside a batch: no page is written when the drop goes on.
fn drop_beside_batch() {
    let words = Arc::new(Words::default());
    let pages = Arc::new(AtomicU64::new(0));
    let companion = {
        let (words, pages) = (words.clone(), pages.clone());
        thread::spawn(move || {
            for _ in 0..2 {
                if let Some(_busy) = words.begin_batch() {
                    pages.store(1, SeqCst);
                    pages.store(0, SeqCst);
                }
            }
        })
    };
    words.mark_dropped(|_| thread::yield_now());
    assert_eq!(pages.swap(2, SeqCst), 0, "{LOST}: a page of a dropped table is written");
    companion.join().unwrap();
    assert_eq!(pages.load(SeqCst), 2, "{LOST}: a page of a dropped table was written");
}

#[test]
fn no_page_of_a_dropped_table_is_written() {
    model_within(3, drop_beside_batch);
}
#[test]
fn one_is_if_a_batch_looks_before_it_says_so() {
    assert!(loses(3, Some(Fault::LooksBeforeBusy), drop_beside_batch));
}
