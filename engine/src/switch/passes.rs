//! The coordinator's passes over partitions, and what all see of it.

use super::{AtStep, Done, Event, Passed, Step, StepEvent};
use crate::primitive::{AtomicU32, AtomicU64, Ordering};
use crate::shared::Engine;
use crate::table::Table;

/// The coordinator, as shared memory shows it. All-zero: there was none.
#[repr(C)]
pub struct Coordinator {
    /// The platform's name of the process; 0: none runs.
    pub ident: AtomicU32,
    /// Its slot + 1, whose pin is its own affair; 0: none.
    pub slot: AtomicU32,
    /// When it started, and its last pass; times of the platform.
    pub started_at: AtomicU64,
    /// See `started_at`.
    pub last_pass_at: AtomicU64,
    /// Passes since the start of shared memory.
    pub passes: AtomicU64,
    /// Times that a coordinator started.
    pub starts: AtomicU64,
    /// Switches under way after the last pass.
    pub under_way: AtomicU64,
}

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passes {
    /// Switches that are under way.
    pub under_way: u64,
    /// Steps made, switches completed.
    pub steps: u64,
    /// See `steps`.
    pub done: u64,
}

impl Engine {
    /// Which boundaries all slots have passed.
    pub fn passed(&self) -> Passed {
        self.shared.epochs.look(self.slots.iter().map(|s| &s.following))
    }

    /// One pass of the coordinator over the partitions of some tables: begins the switches that
    /// are asked for, and makes every step that can be made. The caller is pinned since before it
    /// found the tables.
    pub fn advance_switches(&self, tables: &[&'static Table], now: u64, stop_all: bool) -> Passes {
        self.advance_switches_by(tables, now, stop_all, &|_| ())
    }

    /// As [`Self::advance_switches`]; calls `at` at each event. Wherever it ends the coordinator, the next pass
    /// goes on from there, and a complete switch gets into the history, once (unless who excludes everybody puts another
    /// set in use before it is recorded).
    pub fn advance_switches_by(&self, tables: &[&'static Table], now: u64, stop_all: bool, at: AtStep) -> Passes {
        let passed = self.passed();
        let mut out = Passes::default();
        let mut stopping = false;
        for t in tables {
            for (no, p) in t.map().partitions().iter().enumerate() {
                let record = |d: Done| {
                    self.shared.switches.push(t.id, t.key, no as u32, d);
                    p.switch.recorded();
                };
                if let Some(d) = p.switch.unrecorded(now) {
                    record(d);
                    out.done += 1;
                }
                match p.switch.advance_by(&self.shared.epochs, passed, now, stop_all, at) {
                    Event::Settled => continue,
                    Event::Waits => {}
                    Event::Stepped => out.steps += 1,
                    Event::Done(d) => {
                        out.done += 1;
                        at(StepEvent::Finished);
                        record(d);
                    }
                }
                let v = p.switch.view();
                out.under_way += v.is_open() as u64;
                stopping |= v.step == Step::Stopping;
            }
        }
        if !stopping && self.shared.epochs.is_stopped() {
            self.shared.epochs.go_on();
        }
        let c = &self.shared.coordinator;
        c.passes.fetch_add(1, Ordering::Relaxed);
        c.last_pass_at.store(now, Ordering::Relaxed);
        c.under_way.store(out.under_way, Ordering::Relaxed);
        out
    }
}
