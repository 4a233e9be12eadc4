//! The partitions in which another protocol is tried first when work is lost.
//!
//! A transaction over many partitions is slow in all of them because of a few: those that made it
//! fail or wait. A trial in one of them changes the cost in all, so two trials at a time could not
//! be told apart. Hence, of the partitions that are used together, only the one for which most time
//! is lost is tried. No other is tried before its trial is over.
//!
//! There is an exception: a protocol that differs from the one in use only where attempts have
//! failed (`mocc` from `occ`). If the worst partition is to try it, all that are to try it do so
//! together. What fails a transaction in one of them makes it lose its work in all. So one trial
//! after another would show little, and take long.

use std::collections::{HashMap, HashSet};

/// A partition that is used, as far as this matters.
#[derive(Clone, Debug)]
pub struct Suspect {
    /// Its table and number.
    pub at: (u64, u32),
    /// Its address.
    pub address: u64,
    /// The addresses of the partitions that are often used together with it.
    pub partners: Vec<u64>,
    /// The time lost because of it, in sessions. 0: it is not to be tried.
    pub fault: f64,
    /// Is the protocol to be tried one that may be tried together with others?
    pub joint: bool,
    /// Is it being switched, or is a switch of it being verified?
    pub busy: bool,
}

/// A partner is used in at least one of this number of the partition's transactions.
pub const PARTNER: u64 = 20;
/// Partitions of one table that are not used together are tried together, if at least this share of
/// the worst one's lost time is lost because of them. They are the same case, and no transaction
/// waits in two of them.
const JOINTLY: f64 = 0.5;

/// Groups of partitions that are used together.
struct Groups(Vec<usize>);

impl Groups {
    fn of(all: &[Suspect]) -> Groups {
        let place: HashMap<u64, usize> = all.iter().enumerate().map(|(i, s)| (s.address, i)).collect();
        let mut first = HashMap::new();
        let mut g = Groups((0..all.len()).collect());
        for (i, s) in all.iter().enumerate() {
            g.unite(i, *first.entry(s.at.0).or_insert(i)); // A table's partitions are in one group.
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

/// The partitions to try; see the module.
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
    let mut found = HashSet::new();
    for (root, w) in worst.iter().filter_map(|(root, w)| Some((*root, (*w)?))).filter(|w| w.1.fault > 0.0) {
        let joint = |i: usize, s: &Suspect| w.joint && s.joint && s.fault > 0.0 && groups.root(i) == root;
        found.extend(all.iter().enumerate().filter(|(i, s)| with(w, s) || joint(*i, s)).map(|(_, s)| s.at));
    }
    found
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn suspect(table: u64, no: u32, fault: f64, partners: &[u64]) -> Suspect {
        Suspect {
            at: (table, no),
            address: 10 * table + no as u64,
            partners: partners.to_vec(),
            fault,
            joint: false,
            busy: false,
        }
    }

    #[test]
    fn what_may_be_tried_together_is() {
        let joint = |table, no, fault, partners: &[u64]| Suspect { joint: true, ..suspect(table, no, fault, partners) };
        let mut all = vec![
            joint(1, 0, 0.3, &[20]),
            joint(1, 1, 0.01, &[10]),
            joint(2, 0, 0.1, &[]),
            suspect(2, 1, 0.2, &[]),
            joint(2, 2, 0.0, &[]),
            joint(3, 0, 0.1, &[]),
        ];
        let found = |all: &[Suspect]| {
            let mut v: Vec<_> = worst(all).into_iter().collect();
            v.sort();
            v
        };
        assert_eq!(found(&all), [(1, 0), (1, 1), (2, 0), (3, 0)], "however little, but not what would try another one");
        all[3].fault = 0.4;
        assert_eq!(found(&all), [(2, 1), (3, 0)], "the worst one would try another one");
        all[3] = Suspect { busy: true, ..all[3].clone() };
        assert_eq!(found(&all), [(3, 0)], "a trial is under way");
    }

    #[test]
    fn the_worst_of_what_is_used_together_is_tried() {
        // Two tables that are used together, and one apart. Partitions with the same number are
        // used together.
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
