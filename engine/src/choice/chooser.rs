//! The coordinator's part: decisions about the partitions of all tables.

use super::blame::{worst, Suspect, PARTNER};
use super::decide::{Peer, State};
use super::decision::{Decision, Status};
use super::features::Reading;
use super::learned::Learned;
use super::model::Model;
use super::settings::Settings;
use crate::partition::Partition;
use crate::primitive::processor_ticks;
use crate::protocol::Protocol;
use crate::shared::Engine;
use crate::switch::Why;
use crate::table::Table;
use std::collections::HashMap;

#[cfg(all(test, not(loom)))]
mod tests;

/// The coordinator's knowledge. What has to outlive it is in shared memory too.
pub struct Chooser {
    /// The model in use.
    pub model: Model,
    learned: Learned,
    /// By table and partition; the address tells maps apart.
    states: HashMap<(u64, u32), (usize, State)>,
    /// Passes since the last look at tables that are not looked at in every one.
    passes: HashMap<u64, u32>,
    /// Commits of all partitions at the last pass, and when.
    last: (u64, u64),
}

/// A decision that asked for a protocol.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The table's platform's name.
    pub key: [u32; 4],
    /// The partition.
    pub partition: u32,
    /// From which protocol, to which, and why.
    pub from: Protocol,
    /// See `from`.
    pub to: Protocol,
    /// See `from`.
    pub why: Why,
    /// The reasons.
    pub decision: Decision,
}

/// Transactions of the cluster that are sampled in a second, about, where that is not one in `most`: so many cost
/// nothing (two microseconds each), and are enough for decisions about each of some partitions.
const SAMPLED: u64 = 1500;
/// Partitions of a table with the same protocol that are compared with others: enough for a mean.
const PEERS: usize = 32;

impl Chooser {
    /// With a model, and with what the coordinator before this one has learned.
    pub fn new(e: &Engine, model: Model) -> Chooser {
        let learned = Learned::new(e.shared.learned.read());
        Chooser { model, learned, states: HashMap::new(), passes: HashMap::new(), last: (0, 0) }
    }

    /// An interval is over: looks at all partitions of the tables whose own interval is over too, decides, and asks for
    /// switches. `adaptive` and `s`: where a table does not say. The caller is pinned since before it found the tables.
    pub fn pass(
        &mut self,
        e: &Engine,
        tables: &[&'static Table],
        now: u64,
        adaptive: bool,
        s: &Settings,
    ) -> Vec<Asked> {
        let mut asked = Vec::new();
        let mut seen = HashMap::with_capacity(self.states.len());
        let before = self.learned.all().len();
        let newest = self.learned.all().last().copied();
        let ticks = processor_ticks();
        let to_try = worst(&self.suspects(tables));
        for t in tables {
            let tuning = t.map().tuning();
            if !self.is_due(t.id, s.every(&tuning)) {
                self.skip(t, &mut seen);
                continue;
            }
            let (adaptive, s) = (tuning.adaptive.unwrap_or(adaptive), s.of_table(&tuning));
            let partitions: Vec<_> = t.map().partitions().iter().map(|p| (p, Reading::of(p, now, ticks))).collect();
            let peers = self.peers(t.id, &partitions, &s);
            for (no, (p, reading)) in partitions.iter().enumerate() {
                let no = no as u32;
                let at = std::ptr::from_ref(*p) as usize;
                let mut state = match self.states.remove(&(t.id, no)) {
                    Some((a, state)) if a == at => state,
                    _ => State::default(),
                };
                let others: Vec<Peer> = peers.iter().filter(|o| o.no != no).copied().collect();
                let s = Settings { probes: s.probes && to_try.contains(&(t.id, no)), ..s.clone() };
                let d = self.decide(t, (p, &others), &mut state, *reading, adaptive, &s);
                if let (Some(to), Some(from)) = (d.ask, p.protocols().single()) {
                    let why = match d.status {
                        Status::TakesBack => Why::TakenBack,
                        Status::Probes => Why::Probe,
                        _ => Why::Chosen,
                    };
                    if p.choose(e, to, why, now) {
                        asked.push(Asked { key: t.key, partition: no, from, to, why, decision: d });
                    }
                }
                p.decided.write(now, &d);
                seen.insert((t.id, no), (at, state));
            }
        }
        self.passes.retain(|table, _| seen.contains_key(&(*table, 0)));
        self.states = seen;
        self.keep_lessons(e, before, newest);
        asked
    }

    /// Is a table looked at in this pass, if it is in every so-manieth one?
    fn is_due(&mut self, table: u64, every: u32) -> bool {
        let since = self.passes.get(&table).map_or(every, |n| n + 1);
        self.passes.insert(table, if since >= every { 0 } else { since });
        since >= every
    }

    /// A table is not looked at: what is known of its partitions stays.
    fn skip(&mut self, t: &Table, seen: &mut HashMap<(u64, u32), (usize, State)>) {
        let known = (0..t.map().n).filter_map(|no| self.states.remove_entry(&(t.id, no)));
        seen.extend(known);
    }

    /// The partitions that are used, with what the last interval said of them.
    fn suspects(&self, tables: &[&'static Table]) -> Vec<Suspect> {
        let mut all = Vec::new();
        for t in tables {
            for (no, p) in t.map().partitions().iter().enumerate() {
                let address = std::ptr::from_ref(p) as usize;
                let at = (t.id, no as u32);
                let Some((_, state)) = self.states.get(&at).filter(|s| s.0 == address) else { continue };
                let txns = p.stats.sampled.get().txns;
                let often = p.stats.sampled.partners().into_iter().filter(|o| o.1 * PARTNER > txns);
                all.push(Suspect {
                    at,
                    address: address as u64,
                    partners: often.map(|o| o.0).collect(),
                    fault: state.fault(),
                    busy: state.is_being_verified() || p.switch.view().is_open(),
                });
            }
        }
        all
    }

    /// What the interval was like in partitions of a table, some of them for each protocol: those that are alike are
    /// judged together.
    fn peers(&self, table: u64, partitions: &[(&Partition, Reading)], s: &Settings) -> Vec<Peer> {
        let (mut all, mut n) = (Vec::new(), [0; Protocol::COUNT]);
        for (no, (p, reading)) in partitions.iter().enumerate() {
            let at = std::ptr::from_ref(*p) as usize;
            let v = p.switch.view();
            // What somebody has set says nothing of what is best.
            let Some(protocol) = v.set.single().filter(|_| !v.is_open() && !v.pinned) else { continue };
            let Some((_, state)) = self.states.get(&(table, no as u32)).filter(|s| s.0 == at) else { continue };
            let of_it = &mut n[protocol.index()];
            if *of_it < PEERS {
                if let Some(peer) = state.peer(no as u32, protocol, reading, s) {
                    all.push(peer);
                    *of_it += 1;
                }
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
            state.switching(reading);
            return Decision { status: Status::Switching, ..Decision::default() };
        };
        if v.pinned || !adaptive {
            let d = state.watch(t.id, (protocol, peers), reading, (&self.model, &self.learned, s));
            return Decision { status: if v.pinned { Status::Pinned } else { Status::Off }, ..d };
        }
        state.observe(t.id, (protocol, peers), reading, (&self.model, &mut self.learned, s))
    }

    /// New lessons are written where the next coordinator finds them.
    fn keep_lessons(&self, e: &Engine, before: usize, newest: Option<super::learned::Lesson>) {
        let all = self.learned.all();
        // The list is a ring: what comes behind the one that was last is new.
        let from = match newest {
            Some(l) => all.iter().rposition(|o| *o == l).map_or(0, |i| i + 1),
            None => before.min(all.len()),
        };
        for l in &all[from..] {
            e.shared.learned.write(l);
        }
    }

    /// How many transactions there are to a sample: all while there are few, and one in `most` while there are many.
    /// `commits` are those of all partitions, `partitions` how many of them a transaction uses.
    pub fn sample_every(&mut self, commits: u64, partitions: f64, now: u64, most: u32) -> u32 {
        let (last, at) = std::mem::replace(&mut self.last, (commits, now));
        let seconds = now.saturating_sub(at).max(1) as f64 / 1e6;
        let rate = commits.saturating_sub(last) as f64 / partitions.max(1.0) / seconds;
        ((rate as u64 / SAMPLED + 1).min(most as u64)) as u32
    }
}
