//! The coordinator's passes over partitions, and the coordinator's state that is visible to all.

use super::{AtStep, Done, Event, Passed, Step, StepEvent};
use crate::primitive::{AtomicU32, AtomicU64, Ordering};
use crate::shared::Engine;
use crate::table::Table;

/// The coordinator's state in shared memory. All-zero: there was none.
#[repr(C)]
pub struct Coordinator {
    /// The platform's identifier of its process. 0: none runs.
    pub ident: AtomicU32,
    /// Its slot + 1; it manages the pin of that slot itself. 0: none.
    pub slot: AtomicU32,
    /// The platform's time of its start.
    pub started_at: AtomicU64,
    /// The platform's time of its last pass.
    pub last_pass_at: AtomicU64,
    /// The number of passes since the start of shared memory.
    pub passes: AtomicU64,
    /// The number of times that a coordinator started.
    pub starts: AtomicU64,
    /// The number of switches under way after the last pass.
    pub under_way: AtomicU64,
}

/// The result of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passes {
    /// The number of switches under way.
    pub under_way: u64,
    /// The number of steps made.
    pub steps: u64,
    /// The number of switches completed.
    pub done: u64,
}

impl Engine {
    /// The boundaries that all slots have passed.
    pub fn passed(&self) -> Passed {
        self.shared.epochs.look(self.slots.iter().map(|s| &s.following))
    }

    /// One pass of the coordinator over the partitions of some tables. It begins requested
    /// switches, and makes every step that can be made. The caller has been pinned since before it
    /// found the tables.
    pub fn advance_switches(&self, tables: &[&'static Table], now: u64, stop_all: bool) -> Passes {
        self.advance_switches_by(tables, now, stop_all, &|_| ())
    }

    /// As [`Self::advance_switches`], and calls `at` at each event. Wherever it ends the
    /// coordinator, the next pass goes on from there, and a complete switch gets into the history
    /// once. An exception is a process that excludes all others and puts another set in use before
    /// the switch is recorded.
    pub fn advance_switches_by(&self, tables: &[&'static Table], now: u64, stop_all: bool, at: AtStep) -> Passes {
        let passed = self.passed();
        let mut out = Passes::default();
        let mut stopping = false;
        for t in tables {
            for (no, p) in t.map().partitions().iter().enumerate() {
                let record = |d: Done| {
                    self.shared.switches.push(t.id, t.key, t.name.get().as_deref(), no as u32, d);
                    t.durable().into_iter().for_each(|durable| durable.set_flag());
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
