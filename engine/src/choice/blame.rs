//! Which partitions are tried first where work is lost.
//!
//! A transaction over many partitions is slow in all of them for the sake of a few: those that made it fail, or wait.
//! And whatever is tried in one of them changes the cost in all, so that two trials at a time could not be told apart.
//! Hence: of the partitions that are used together only the one that most time is lost for is tried, and no other
//! before its trial is over.

use std::collections::{HashMap, HashSet};

/// A partition that is used, as far as this matters.
#[derive(Clone, Debug)]
pub struct Suspect {
    /// Table and number.
    pub at: (u64, u32),
    /// Its address, and those of the partitions that are often used together with it.
    pub address: u64,
    /// See `address`.
    pub partners: Vec<u64>,
    /// Time that is lost for its sake, in sessions; 0: it is not to be tried.
    pub fault: f64,
    /// Is it being switched, or a switch of it verified?
    pub busy: bool,
}

/// Partners are those that at least one in so many of its transactions uses too.
pub const PARTNER: u64 = 20;
/// Partitions of one table that are used without others of it are tried together, if so much of the worst one's time is
/// lost for them: they are the same case, and no transaction waits in two of them.
const JOINTLY: f64 = 0.5;

/// Sets of what is used together.
struct Groups(Vec<usize>);

impl Groups {
    fn of(all: &[Suspect]) -> Groups {
        let place: HashMap<u64, usize> = all.iter().enumerate().map(|(i, s)| (s.address, i)).collect();
        let mut first = HashMap::new();
        let mut g = Groups((0..all.len()).collect());
        for (i, s) in all.iter().enumerate() {
            g.unite(i, *first.entry(s.at.0).or_insert(i)); // a table's partitions
            for p in s.partners.iter().filter_map(|a| place.get(a)) {
                g.unite(i, *p);
            }
        }
        g
    }
    fn root(&self, mut i: usize) -> usize {
        while self.0[i] != i {
            i = self.0[i];
        }
        i
    }
    fn unite(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a.max(b)] = a.min(b);
    }
}

/// Those to try: see the module.
pub fn worst(all: &[Suspect]) -> HashSet<(u64, u32)> {
    if all.iter().all(|s| s.fault <= 0.0) {
        return HashSet::new();
    }
    let groups = Groups::of(all);
    let mut worst: HashMap<usize, Option<&Suspect>> = HashMap::new();
    for (i, s) in all.iter().enumerate() {
        let of_group = worst.entry(groups.root(i)).or_insert(Some(s));
        if s.busy {
            *of_group = None;
        } else if of_group.is_some_and(|o| s.fault > o.fault) {
            *of_group = Some(s);
        }
    }
    let table: HashMap<u64, u64> = all.iter().map(|s| (s.address, s.at.0)).collect();
    let alone = |s: &Suspect| s.partners.iter().all(|p| table.get(p) != Some(&s.at.0));
    let with = |w: &Suspect, s: &Suspect| {
        s.at == w.at || s.at.0 == w.at.0 && alone(w) && alone(s) && s.fault >= JOINTLY * w.fault
    };
    let found = worst.values().flatten().filter(|w| w.fault > 0.0);
    found.flat_map(|w| all.iter().filter(move |s| with(w, s)).map(|s| s.at)).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn suspect(table: u64, no: u32, fault: f64, partners: &[u64]) -> Suspect {
        Suspect { at: (table, no), address: 10 * table + no as u64, partners: partners.to_vec(), fault, busy: false }
    }

    #[test]
    fn the_worst_of_what_is_used_together_is_tried() {
        // Two tables that are used together, and one apart. Partitions of a number are used together.
        let mut all = vec![
            suspect(1, 0, 0.3, &[20]),
            suspect(1, 1, 0.2, &[]),
            suspect(2, 0, 0.2, &[]),
            suspect(2, 1, 0.0, &[11]),
            suspect(3, 0, 0.1, &[]),
        ];
        let found = |all: &[Suspect]| {
            let mut v: Vec<_> = worst(all).into_iter().collect();
            v.sort();
            v
        };
        assert_eq!(found(&all), [(1, 0), (1, 1), (3, 0)], "the table's other one is as bad, and never with it");
        all[1].partners = vec![11, 10];
        assert_eq!(found(&all), [(1, 0), (3, 0)], "it is used with it");
        all[1] = suspect(1, 1, 0.1, &[]);
        assert_eq!(found(&all), [(1, 0), (3, 0)], "it is not as bad");
        all[3].busy = true;
        assert_eq!(found(&all), [(3, 0)], "something that is used with it is tried");
        all[4].fault = 0.0;
        assert_eq!(found(&all), []);
    }
}
