//! What the counters of partitions say of an interval.

use super::{Load, Switch};
use crate::state::rel;
use mixedcc_engine::partition::{Partition, WaitReason};
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::{AbortReason, Engine, Table};
use std::collections::{BTreeMap, HashMap};

/// The counters of all partitions at a moment, by the table's id and the partition's number.
pub struct Counters(HashMap<(u64, u32), Load>);

/// A table as messages name it, without the word.
fn name(name: Option<String>, key: [u32; 4]) -> String {
    name.unwrap_or_else(|| rel::called_by(None, key))
}

impl Counters {
    /// Those of these tables.
    pub fn of(tables: &[&'static Table]) -> Counters {
        let mut all = HashMap::new();
        for t in tables {
            let called = name(t.name.get(), t.key);
            for (no, p) in t.map().partitions().iter().enumerate() {
                let no = no as u32;
                all.insert((t.id, no), load(p, no, t.key[1], &called));
            }
        }
        Counters(all)
    }

    /// The differences from the counters of then. A counter that was reset meanwhile counts from 0.
    pub fn since(&self, before: &Counters) -> Vec<Load> {
        let none = Load::default();
        self.0.iter().map(|(id, now)| difference(now, before.0.get(id).unwrap_or(&none))).collect()
    }
}

fn load(p: &Partition, no: u32, database: u32, table: &str) -> Load {
    let s = &p.stats;
    let aborts = AbortReason::ALL.iter().zip(&s.aborts).map(|(r, n)| (format!("{r:?}"), n.load(Ordering::Relaxed)));
    let waits = WaitReason::ALL.iter().map(|r| (format!("{r:?}"), s.waits.of(*r)));
    Load {
        database,
        table: table.to_owned(),
        no,
        protocol: p.protocols().name(),
        rows: s.sum(|s| &s.rows),
        commits: s.sum(|s| &s.commits),
        reads: s.sum(|s| &s.reads),
        writes: s.sum(|s| &s.writes),
        aborts: aborts.filter(|(_, n)| *n != 0).collect(),
        waits: waits.filter(|(_, n)| *n != 0).collect(),
        wait_us: s.waits.us(),
    }
}

fn difference(now: &Load, before: &Load) -> Load {
    let minus = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
    let each = |now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>| {
        let all = now.iter().map(|(r, n)| (crate::admin::sql::snake(r), minus(*n, *before.get(r).unwrap_or(&0))));
        all.filter(|(_, n)| *n != 0).collect()
    };
    Load {
        database: now.database,
        table: now.table.clone(),
        no: now.no,
        protocol: now.protocol.clone(),
        rows: now.rows,
        commits: minus(now.commits, before.commits),
        reads: minus(now.reads, before.reads),
        writes: minus(now.writes, before.writes),
        aborts: each(&now.aborts, &before.aborts),
        waits: each(&now.waits, &before.waits),
        wait_us: minus(now.wait_us, before.wait_us),
    }
}

/// The switches from this number on that have ended, and the number to begin with next time.
pub fn switches(e: &Engine, from: u64) -> (Vec<Switch>, u64) {
    let (new, next) = e.shared.switches.since(from);
    let switch = |s: mixedcc_engine::switch::Entry| Switch {
        database: s.key[1],
        table: name(s.name, s.key),
        no: s.partition,
        at: s.done.times[3],
        old: s.done.from.name(),
        new: s.done.to.name(),
        why: s.done.why.name().to_owned(),
        took: s.done.times[3].saturating_sub(s.done.times[1]),
    };
    (new.into_iter().map(switch).collect(), next)
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn what_was_reset_counts_from_zero() {
        let at = |commits, conflicts| Load {
            commits,
            aborts: [("ReadChanged".to_owned(), conflicts)].into(),
            ..Load::default()
        };
        let d = difference(&at(10, 5), &at(4, 5));
        assert_eq!((d.commits, d.aborts.len()), (6, 0));
        let d = difference(&at(3, 2), &at(4, 5));
        assert_eq!((d.commits, d.aborts["read_changed"]), (3, 2));
    }
}
