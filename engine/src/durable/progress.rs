//! How far a load has come, for views. Only the slot's owner writes it. A reader may see values of
//! two moments.

use crate::primitive::{AtomicU32, AtomicU64, Ordering};

/// What a load does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// It absorbs the journal into the main fork.
    Journal,
    /// It looks for the newest entry of each record.
    Newest,
    /// It counts the memory that the rows need.
    Memory,
    /// It puts the rows into memory.
    Rows,
    /// It makes the primary index.
    Primary,
}

impl Phase {
    const ALL: [Phase; 5] = [Phase::Journal, Phase::Newest, Phase::Memory, Phase::Rows, Phase::Primary];

    /// Its name in views.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Journal => "absorbing the journal",
            Phase::Newest => "finding newest rows",
            Phase::Memory => "counting memory",
            Phase::Rows => "loading rows",
            Phase::Primary => "building primary index",
        }
    }
}

/// The load of a slot's owner.
#[derive(Default)]
pub struct Progress {
    /// The database in which the owner is a loader, not a session; 0: it is none.
    pub loader_in: AtomicU32,
    phase: AtomicU32,
    /// The relation that is loaded, with its database; 0: none is.
    of: AtomicU64,
    since: AtomicU64,
    done: AtomicU64,
    total: AtomicU64,
}

/// What a view shows of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The database.
    pub database: u32,
    /// The relation.
    pub relation: u32,
    /// What the load does.
    pub phase: Phase,
    /// When it began, in microseconds of the platform.
    pub since: u64,
    /// Blocks that this phase has seen.
    pub done: u64,
    /// Blocks that it will see.
    pub total: u64,
}

impl Progress {
    /// A load begins.
    pub fn begin(&self, database: u32, relation: u32, now: u64) {
        self.since.store(now, Ordering::Relaxed);
        self.enter(Phase::Journal, 0);
        self.of.store((database as u64) << 32 | relation as u64, Ordering::SeqCst);
    }

    /// The load enters a phase, which will see so many blocks.
    pub fn enter(&self, phase: Phase, total: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        self.phase.store(phase as u32, Ordering::Relaxed);
    }

    /// The phase has seen so many blocks.
    pub fn step(&self, done: u64) {
        self.done.store(done, Ordering::Relaxed);
    }

    /// The load has ended.
    pub fn end(&self) {
        self.of.store(0, Ordering::SeqCst);
    }

    /// The load under way.
    pub fn shown(&self) -> Option<Shown> {
        let of = self.of.load(Ordering::SeqCst);
        let phase = Phase::ALL[self.phase.load(Ordering::Relaxed) as usize % Phase::ALL.len()];
        let [since, done, total] = [&self.since, &self.done, &self.total].map(|a| a.load(Ordering::Relaxed));
        (of != 0).then_some(Shown { database: (of >> 32) as u32, relation: of as u32, phase, since, done, total })
    }
}

#[cfg(all(test, not(loom)))]
mod unit {
    use super::*;

    #[test]
    fn a_load_is_shown_until_it_ends() {
        let p = Progress::default();
        assert_eq!(p.shown(), None);
        p.begin(5, 16384, 77);
        p.enter(Phase::Rows, 10);
        p.step(3);
        let shown = Shown { database: 5, relation: 16384, phase: Phase::Rows, since: 77, done: 3, total: 10 };
        assert_eq!(p.shown(), Some(shown));
        p.end();
        assert_eq!(p.shown(), None);
    }
}
