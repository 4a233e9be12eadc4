//! The coordinator's part: decisions about the partitions of all tables.

use super::blame::{roles, Suspect, PARTNER};
use super::decide::{Peer, Rest, State};
use super::decision::{Decision, Status};
use super::features::Reading;
use super::learned::Learned;
use super::model::Model;
use super::settings::{Role, Settings};
use crate::partition::Partition;
use crate::primitive::processor_ticks;
use crate::protocol::Protocol;
use crate::shared::Engine;
use crate::switch::Why;
use crate::table::Table;
use std::collections::HashMap;

#[cfg(all(test, not(loom)))]
mod tests;

/// The coordinator's knowledge. The part that must outlive it is in shared memory too.
pub struct Chooser {
    /// The model in use.
    pub model: Model,
    learned: Learned,
    /// By table and partition.
    states: HashMap<(u64, u32), Known>,
    /// The number of passes.
    nth: u64,
    /// Is time lost because of some partition ([`State::fault`])?
    is_lost: bool,
    /// The number of all partitions, and their sum, at the last pass.
    partitions: u64,
    counted: Counted,
    /// Passes since the last examination of tables that are not examined in every pass.
    passes: HashMap<u64, u32>,
    /// The commits of all partitions at the last pass, and its time.
    last: (u64, u64),
}

/// A partition's counters that are added up over all partitions, as they were read last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Transactions that committed.
    pub commits: u64,
    /// Sampled ones.
    pub sampled: u64,
    /// The partitions that these touched.
    pub partitions: u64,
}

impl Counted {
    fn add(&mut self, other: &Counted) {
        self.commits += other.commits;
        self.sampled += other.sampled;
        self.partitions += other.partitions;
    }
}

/// A partition that is examined.
struct Examined {
    no: u32,
    p: &'static Partition,
    reading: Reading,
    state: Box<State>,
}

/// What its examination depends on, besides counters. `None`: a switch is asked for or under way.
fn rest_of(p: &Partition, adaptive: bool, s: &Settings) -> Option<Rest> {
    let v = p.switch.view();
    let protocol = v.set.single().filter(|_| !v.is_open())?;
    Some(Rest { protocol, chooses: adaptive && !v.pinned, pinned: v.pinned, min_samples: s.min_samples })
}

/// The interval in some of these partitions of a table for each protocol, as similar ones are
/// judged together.
fn peers(examined: &[Examined], s: &Settings) -> Vec<Peer> {
    let (mut all, mut n) = (Vec::new(), [0; Protocol::COUNT]);
    for Examined { no, p, reading, state } in examined {
        let v = p.switch.view();
        // A protocol that a user has set does not show which one is best.
        let Some(protocol) = v.set.single().filter(|_| !v.is_open() && !v.pinned) else { continue };
        let of_it = &mut n[protocol.index()];
        if *of_it < PEERS {
            if let Some(peer) = state.peer(*no, protocol, reading, s) {
                all.push(peer);
                *of_it += 1;
            }
        }
    }
    all
}

/// A partition as the coordinator knows it.
#[derive(Default)]
struct Known {
    /// Its address, which distinguishes maps.
    at: usize,
    /// The pass that has found it.
    seen: u64,
    state: Box<State>,
    counted: Counted,
    /// What was so when the last examination found no load, and had nothing to do.
    rest: Option<Rest>,
    /// Has it had transactions since the last examination?
    active: bool,
}

impl Known {
    /// A look at a partition, once a pass: have its counters changed (INV-ACTIVITY)?
    fn look(&mut self, p: &Partition, nth: u64) {
        let at = std::ptr::from_ref(p) as usize;
        if at != self.at {
            *self = Known { at, active: true, ..Known::default() };
        }
        self.seen = nth;
        if !p.take_activity() && !self.active {
            return;
        }
        self.active = true;
        let sample = p.stats.sampled.get();
        let commits = p.stats.sum(|s| &s.commits);
        self.counted = Counted { commits, sampled: sample.txns, partitions: sample.partitions };
        p.stats.sampled.clear_marks();
    }
}

/// A decision that requested a protocol.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The platform's identifier of the table's storage.
    pub key: [u32; 4],
    /// The partition.
    pub partition: u32,
    /// The old protocol.
    pub from: Protocol,
    /// The new protocol.
    pub to: Protocol,
    /// The reason.
    pub why: Why,
    /// The decision with its figures.
    pub decision: Decision,
}

/// The approximate number of the cluster's transactions that are sampled in a second, unless that
/// is one in `most`. This number costs nothing noticeable (two microseconds each). It is enough for
/// decisions about each of several partitions.
const SAMPLED: u64 = 1500;
/// The most. Samples of a table of one partition change one cache line about twenty times each;
/// many processors would wait for it.
const MOST_SAMPLED: u64 = 60_000;
/// The number of a table's partitions with one protocol that are compared with others. It is enough
/// for a mean.
const PEERS: usize = 32;

impl Chooser {
    /// Makes a chooser with a model and the lessons of the coordinator before it.
    pub fn new(e: &Engine, model: Model) -> Chooser {
        let learned = Learned::new(e.shared.learned.read());
        let counted = Counted::default();
        Chooser {
            model,
            learned,
            states: HashMap::new(),
            nth: 0,
            is_lost: false,
            partitions: 0,
            counted,
            passes: HashMap::new(),
            last: (0, 0),
        }
    }

    /// Handles the end of an interval. It examines all partitions of the tables whose own interval
    /// is over too, decides, and requests switches. `adaptive` and `s` apply where a table has no
    /// settings of its own. The caller has been pinned since before it found the tables.
    pub fn pass(
        &mut self,
        e: &Engine,
        tables: &[&'static Table],
        now: u64,
        adaptive: bool,
        s: &Settings,
    ) -> Vec<Asked> {
        let mut asked = Vec::new();
        let before = self.learned.all().len();
        let newest = self.learned.all().last().copied();
        let ticks = processor_ticks();
        let roles = if std::mem::take(&mut self.is_lost) { roles(&self.suspects(tables)) } else { HashMap::new() };
        (self.nth, self.partitions, self.counted) = (self.nth + 1, 0, Counted::default());
        for &t in tables {
            let tuning = t.map().tuning();
            let is_due = self.is_due(t.id, s.every(&tuning));
            let (adaptive, s) = (tuning.adaptive.unwrap_or(adaptive), s.of_table(&tuning));
            let examined = self.look_at(t, is_due, (adaptive, &s), |p| Reading::of(p, now, ticks));
            let peers = peers(&examined, &s);
            for Examined { no, p, reading, mut state } in examined {
                let others: Vec<Peer> = peers.iter().filter(|o| o.no != no).copied().collect();
                let role = roles.get(&(t.id, no)).copied().unwrap_or(Role::Chooses);
                let s = Settings { role, ..s.clone() };
                let rest = rest_of(p, adaptive, &s);
                let d = self.decide(t, (p, &others), &mut state, reading, adaptive, &s);
                // A trial may end before its switch is complete.
                let v = p.switch.view();
                let from = if v.is_open() { v.target } else { v.set };
                if let (Some(to), Some(from)) = (d.ask, from.single()) {
                    let why = match d.status {
                        Status::TakesBack => Why::TakenBack,
                        Status::Probes => Why::Probe,
                        _ => Why::Chosen,
                    };
                    let done = if v.is_open() { p.switch.take_back(now) } else { p.choose(e, to, why, now) };
                    if done {
                        asked.push(Asked { key: t.key, partition: no, from, to, why, decision: d });
                    }
                }
                p.decided.write(now, &d);
                self.is_lost |= state.seeks();
                if let Some(known) = self.states.get_mut(&(t.id, no)) {
                    known.rest = rest.filter(|_| state.rests(&d));
                    (known.state, known.active) = (state, false);
                }
            }
        }
        let nth = self.nth;
        if self.states.len() as u64 > self.partitions {
            self.states.retain(|_, known| known.seen == nth);
        }
        if self.passes.len() > tables.len() {
            let states = &self.states;
            self.passes.retain(|table, _| states.contains_key(&(*table, 0)));
        }
        self.keep_lessons(e, before, newest);
        asked
    }

    /// Is a table examined in this pass, if it is examined in one of `every` passes?
    fn is_due(&mut self, table: u64, every: u32) -> bool {
        let since = self.passes.get(&table).map_or(every, |n| n + 1);
        self.passes.insert(table, if since >= every { 0 } else { since });
        since >= every
    }

    /// Looks at all partitions of a table. The answer is those that are to be examined: not one of
    /// which is known that this would find nothing.
    fn look_at(
        &mut self,
        t: &'static Table,
        is_due: bool,
        (adaptive, s): (bool, &Settings),
        reading: impl Fn(&Partition) -> Reading,
    ) -> Vec<Examined> {
        let mut examined = Vec::new();
        for (no, p) in t.map().partitions().iter().enumerate() {
            let no = no as u32;
            let known = self.states.entry((t.id, no)).or_default();
            known.look(p, self.nth);
            self.counted.add(&known.counted);
            self.partitions += 1;
            if !known.active && known.rest.is_some() && known.rest == rest_of(p, adaptive, s) {
                continue;
            }
            if !is_due {
                self.is_lost |= known.state.seeks();
            } else {
                examined.push(Examined { no, p, reading: reading(p), state: std::mem::take(&mut known.state) });
            }
        }
        examined
    }

    /// Counters of all partitions together, at the last pass.
    pub fn counted(&self) -> Counted {
        self.counted
    }

    /// The partitions that are used, with the findings of the last interval.
    fn suspects(&self, tables: &[&'static Table]) -> Vec<Suspect> {
        let mut all = Vec::new();
        for t in tables {
            for (no, p) in t.map().partitions().iter().enumerate() {
                let address = std::ptr::from_ref(p) as usize;
                let at = (t.id, no as u32);
                let Some(state) = self.states.get(&at).filter(|s| s.at == address).map(|s| &s.state) else { continue };
                let txns = p.stats.sampled.get().txns;
                let often = p.stats.sampled.partners().into_iter().filter(|o| o.1 * PARTNER > txns);
                all.push(Suspect {
                    at,
                    address: address as u64,
                    partners: often.map(|o| o.0).collect(),
                    fault: state.fault(),
                    seeks: state.seeks(),
                    leads: state.leads(),
                    uses: state.uses(),
                    clashes: state.clashes(),
                    busy: state.is_being_verified() || p.switch.view().is_open(),
                });
            }
        }
        all
    }

    fn decide(
        &mut self,
        t: &Table,
        (p, peers): (&Partition, &[Peer]),
        state: &mut State,
        reading: Reading,
        adaptive: bool,
        s: &Settings,
    ) -> Decision {
        let v = p.switch.view();
        let Some(protocol) = v.set.single().filter(|_| !v.is_open()) else {
            // What a user has asked for, or pinned, is not taken back.
            return match adaptive && !v.pinned {
                true => state.switching(t.id, reading, &mut self.learned, s),
                false => state.pass(reading),
            };
        };
        if v.pinned || !adaptive {
            let d = state.watch(t.id, (protocol, peers), reading, (&self.model, &self.learned, s));
            return Decision { status: if v.pinned { Status::Pinned } else { Status::Off }, ..d };
        }
        state.observe(t.id, (protocol, peers), reading, (&self.model, &mut self.learned, s))
    }

    /// Stores new lessons where the next coordinator finds them.
    fn keep_lessons(&self, e: &Engine, before: usize, newest: Option<super::learned::Lesson>) {
        let all = self.learned.all();
        // The list is a ring: entries behind the one that was last are new.
        let from = match newest {
            Some(l) => all.iter().rposition(|o| *o == l).map_or(0, |i| i + 1),
            None => before.min(all.len()),
        };
        for l in &all[from..] {
            e.shared.learned.write(l);
        }
    }

    /// The number of transactions for each sample: 1 while there are few, `most` while there are
    /// many, and up to 64 times that if there would be more than [`MOST_SAMPLED`] samples a second.
    /// `commits` are those of all partitions, whose sum may jump when a table comes or goes; a
    /// transaction uses `partitions` of them. With `most` = 0 it is 0.
    pub fn sample_every(&mut self, commits: u64, partitions: f64, now: u64, most: u32) -> u32 {
        let (last, at) = std::mem::replace(&mut self.last, (commits, now));
        let seconds = now.saturating_sub(at).max(1) as f64 / 1e6;
        let rate = commits.saturating_sub(last) as f64 / partitions.max(1.0) / seconds;
        if most == 0 {
            return 0;
        }
        let (rate, most) = (rate as u64, most as u64);
        (rate / SAMPLED + 1).min(most).max(rate.div_ceil(MOST_SAMPLED).min(64 * most)) as u32
    }
}
