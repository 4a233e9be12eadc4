//! Passes over tables: the settings of a table count, and count for it alone.

use super::*;
use crate::choice::tests::{model, split};
use crate::partition::{Sample, Tuning};
use crate::primitive::Ordering;
use crate::protocol::{Policy, ProtocolSet, Touch};
use crate::threads::{Block, Threads};
use crate::txn::{Level, Txn};

const SECOND: u64 = 1_000_000;
const SAMPLES: u64 = 100;

struct World {
    block: Block,
    chooser: Chooser,
    now: u64,
}

/// A second of similar transactions.
fn run(p: &Partition) {
    let s = p.stats.stripe(0);
    s.commits.fetch_add(1000, Ordering::Relaxed);
    s.busy_ns.fetch_add(2_000_000_000, Ordering::Relaxed);
    p.stats.sampled.add(&Sample {
        txns: SAMPLES,
        reads: 5 * SAMPLES,
        writes: 5 * SAMPLES,
        partitions: SAMPLES,
        ordered: SAMPLES,
        duration_ns: 2_000_000 * SAMPLES,
        cpu_ns: 1_000_000 * SAMPLES,
        looks: 10 * SAMPLES,
        conflicts: SAMPLES,
        ..Sample::default()
    });
    p.note_activity();
}

impl World {
    /// The model always calls 2pl the best, by 22 % over occ, with which all tables begin.
    fn new() -> World {
        let block = Block::new(16 << 20, 4).unwrap();
        let always = |cost| split("records", 1.0, cost, cost);
        let chooser = Chooser::new(&block.engine, model(&always(1.0), &always(0.2), &always(0.0)));
        block.engine.pin(0);
        World { block, chooser, now: SECOND }
    }
    fn table(&self, no: u32, tuning: Tuning) -> &'static Table {
        let e = &self.block.engine;
        let mut map = Table::new_map(e, 0, 2, 0, b"", ProtocolSet::of(Protocol::Occ), Policy::Wait).unwrap();
        // SAFETY: INV-MAP: the map is not published yet.
        unsafe { map.as_mut() }.set_tuning(&tuning);
        Table::create(e, 0, [1, 2, no, 0], map).unwrap()
    }
    fn pass(&mut self, tables: &[&'static Table]) -> Vec<Asked> {
        self.now += SECOND;
        tables.iter().flat_map(|t| t.map().partitions()).for_each(run);
        self.chooser.pass(&self.block.engine, tables, self.now, true, &Settings::default())
    }
    /// The pass in which each table's partitions are asked to switch. 0: in none of `passes`.
    fn first_asked(&mut self, tables: &[&'static Table], passes: u32) -> Vec<u32> {
        let mut first = vec![0; tables.len()];
        for n in 1..=passes {
            let asked = self.pass(tables);
            for (t, first) in tables.iter().zip(&mut first).filter(|(_, first)| **first == 0) {
                let of_it = asked.iter().filter(|a| a.key == t.key && a.to == Protocol::TwoPhase).count();
                assert!([0, 2].contains(&of_it), "its partitions are alike");
                if of_it == 2 {
                    *first = n;
                }
            }
        }
        first
    }
}

#[test]
fn a_table_is_looked_at_in_its_own_interval() {
    let mut w = World::new();
    let own = |us| Tuning { interval_us: Some(us), adaptive: Some(false), ..Tuning::default() };
    let tables = [own(SECOND), own(5 * SECOND / 2), own(4 * SECOND), own(SECOND / 10)];
    let tables: Vec<_> = (1..).zip(tables).map(|(no, t)| w.table(no, t)).collect();
    let looked = |t: &Table, now| t.map().partitions().iter().all(|p| p.decided.read().at_us == now);
    let mut seen = vec![Vec::new(); tables.len()];
    for n in 1..=9 {
        w.pass(&tables);
        for (t, seen) in tables.iter().zip(&mut seen).filter(|(t, _)| looked(t, w.now)) {
            seen.push(n);
            assert!(t.map().n == 2);
        }
    }
    let all: Vec<u32> = (1..=9).collect();
    assert_eq!(seen, [all.clone(), vec![1, 4, 7], vec![1, 5, 9], all]);
    // A table that is gone is forgotten.
    w.pass(&tables[..1]);
    assert_eq!((w.chooser.passes.len(), w.chooser.states.len()), (1, 2));
}

#[test]
fn a_tables_own_thresholds_count() {
    let mut w = World::new();
    let occ_or_partcc = ProtocolSet::mediated(Protocol::Occ, Protocol::PartCc);
    // The first pass makes a reading. Then another protocol must be better in two.
    let all = [
        (Tuning::default(), 3),
        (Tuning { min_gain: Some(0.21), ..Tuning::default() }, 3),
        (Tuning { min_gain: Some(0.23), ..Tuning::default() }, 0),
        (Tuning { confirm: Some(5), ..Tuning::default() }, 6),
        (Tuning { min_samples: Some(5 * SAMPLES / 2), ..Tuning::default() }, 7),
        (Tuning { interval_us: Some(2 * SECOND), ..Tuning::default() }, 5),
        (Tuning { interval_us: Some(2 * SECOND), confirm: Some(1), ..Tuning::default() }, 3),
        (Tuning { candidates: Some(occ_or_partcc), ..Tuning::default() }, 0),
        (Tuning { adaptive: Some(false), ..Tuning::default() }, 0),
    ];
    let tables: Vec<_> = (1..).zip(&all).map(|(no, (t, _))| w.table(no, *t)).collect();
    let wanted: Vec<u32> = all.iter().map(|a| a.1).collect();
    assert_eq!(w.first_asked(&tables, 9), wanted);
}

#[test]
fn what_is_not_the_coordinators_to_choose_is_judged_all_the_same() {
    let mut w = World::new();
    let (pinned, off) =
        (w.table(1, Tuning::default()), w.table(2, Tuning { adaptive: Some(false), ..Tuning::default() }));
    let e = w.block.engine;
    for p in pinned.map().partitions() {
        p.put(&e, ProtocolSet::of(Protocol::Occ), Some(true)).unwrap();
    }
    assert_eq!(w.first_asked(&[pinned, off], 5), [0, 0]);
    for (t, status) in [(pinned, Status::Pinned), (off, Status::Off)] {
        let shown = t.map().partitions()[1].decided.read();
        let d = shown.decision;
        assert_eq!((d.status, shown.at_us, shown.figures_at_us), (status, w.now, w.now));
        assert_eq!((Protocol::ALL[d.best], d.load.txns, d.ask), (Protocol::TwoPhase, SAMPLES, None));
        assert!((d.gain - 0.2).abs() < 1e-9 && (d.margin - 1.1f64.ln()).abs() < 1e-9, "{d:?}");
    }
    // Figures of a load that has gone are marked as old.
    let before = w.now;
    w.now += SECOND;
    w.chooser.pass(&e, &[pinned, off], w.now, true, &Settings::default());
    let shown = pinned.map().partitions()[0].decided.read();
    assert_eq!((shown.at_us, shown.figures_at_us, shown.decision.load.txns), (w.now, before, SAMPLES));
    // After the pin is released only the confirmation is missing.
    assert!(pinned.map().partitions().iter().all(|p| p.switch.unpin()));
    assert_eq!(w.first_asked(&[pinned, off], 2), [2, 0]);
}

#[test]
fn a_decision_tells_how_far_it_is() {
    let mut w = World::new();
    let t = w.table(1, Tuning { confirm: Some(3), ..Tuning::default() });
    let shown = |w: &mut World| {
        w.pass(&[t]);
        let d = t.map().partitions()[0].decided.read().decision;
        (d.status, d.intervals)
    };
    assert_eq!(shown(&mut w).0, Status::New);
    assert_eq!(shown(&mut w), (Status::Confirms, (1, 3)));
    assert_eq!(shown(&mut w), (Status::Confirms, (2, 3)));
    assert_eq!(shown(&mut w), (Status::Switches, (3, 3)));
    // No transaction follows a protocol here, so the switch waits for none.
    while w.block.engine.advance_switches(&[t], w.now, false).under_way > 0 {}
    assert_eq!(shown(&mut w).0, Status::New, "the interval of the switch");
    assert_eq!(shown(&mut w), (Status::Verifies, (0, 5)));
    assert_eq!(shown(&mut w), (Status::Verifies, (1, 5)));
}

#[test]
fn samples_are_enough_and_never_too_many() {
    let mut w = World::new();
    let mut commits = 0;
    let mut every = |rate: u64, partitions: f64, most: u32| {
        commits += rate;
        w.now += SECOND;
        w.chooser.sample_every(commits, partitions, w.now, most)
    };
    every(0, 1.0, 16);
    assert_eq!(every(1000, 1.0, 16), 1, "all");
    assert_eq!(every(6000, 1.0, 16), 5);
    assert_eq!(every(6000, 4.0, 16), 2, "1,500 transactions");
    assert_eq!(every(200_000, 1.0, 16), 16, "one in `most`");
    assert_eq!(every(6_000_001, 1.0, 16), 101, "60,000 a second");
    assert_eq!(every(1_000_000_000_000, 1.0, 16), 1024);
    assert_eq!(every(6_000_000, 1.0, 0), 0, "none is wanted");
}

#[test]
fn a_partition_at_rest_is_looked_at_again_when_a_transaction_has_ended() {
    let mut w = World::new();
    let t = w.table(1, Tuning::default());
    let e = w.block.engine;
    let p = Threads::new(e, 1, Default::default());
    let looked = |w: &mut World, s: &Settings| {
        w.now += SECOND;
        w.chooser.pass(&e, &[t], w.now, true, s);
        [0, 1].map(|n: usize| t.map().partitions()[n].decided.read().at_us == w.now)
    };
    let s = Settings::default();
    w.pass(&[t]);
    w.pass(&[t]);
    assert_eq!(w.chooser.counted(), Counted { commits: 4000, sampled: 4 * SAMPLES, partitions: 4 * SAMPLES });
    assert_eq!(looked(&mut w, &s), [true, true], "without a load for the first time");
    assert_eq!([looked(&mut w, &s), looked(&mut w, &s)], [[false, false]; 2]);
    for commits in [false, true] {
        let mut txn = Txn::new(e, 1);
        txn.begin(Level::Serializable, 7);
        txn.scan(&p, Touch { table: t, no: 1 }).expect("nothing is locked");
        assert_eq!(looked(&mut w, &s), [false, false], "it has not ended");
        if commits {
            txn.prepare(&p, &|_, _| ()).expect("nothing was written");
            txn.publish(&p);
        } else {
            txn.abort();
        }
        assert_eq!(looked(&mut w, &s), [false, true], "commits: {commits}");
        assert_eq!(looked(&mut w, &s), [false, false]);
    }
    // What else an examination depends on.
    let fewer = Settings { min_samples: s.min_samples - 1, ..s.clone() };
    assert_eq!([looked(&mut w, &fewer), looked(&mut w, &fewer)], [[true, true], [false, false]]);
    t.map().partitions()[0].put(&e, ProtocolSet::of(Protocol::Occ), Some(true)).expect("no rule is against it");
    assert_eq!([looked(&mut w, &fewer), looked(&mut w, &fewer)], [[true, false], [false, false]]);
    t.map().partitions()[1].reset_counts();
    assert_eq!(looked(&mut w, &fewer), [false, true]);
    assert_eq!(w.chooser.counted().commits, 2000);
}
