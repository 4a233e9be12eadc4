//! The partitions in which another protocol is tried first when work is lost.
//!
//! A transaction over many partitions is slow in all of them because of a few: those that made it
//! fail or wait. A trial in one of them changes the cost in all, so two trials at a time could not
//! be told apart. Hence, of the partitions that are used together, only the one for which most time
//! is lost is tried. No other is tried before its trial is over.
//!
//! There is an exception: a protocol that differs from the one in use only where attempts have
//! failed (`mocc` from `occ`). If the worst partition tries it, all others join it that use the
//! same protocol and in which sessions conflict, although little is lost because of them yet. What
//! fails a transaction in one of them makes it lose its work in all. So one trial after another
//! would show little, and take long: what no longer fails in one of them waits there, and then
//! fails in the next.
//!
//! While something is to be tried, or is tried, the others leave their protocols as they are, for
//! ten intervals at most. A choice there would keep the trial waiting, as it has to be verified
//! itself, beside work that is lost for another reason.

use super::settings::Role;
use crate::protocol::Protocol;
use std::collections::HashMap;

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
    /// Is something lost because of it, or is a protocol being tried for that reason?
    pub seeks: bool,
    /// Will it try, in the next interval, a protocol that others join?
    pub leads: bool,
    /// The protocol in use.
    pub uses: Option<Protocol>,
    /// Do sessions conflict in its rows?
    pub clashes: bool,
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

/// What partitions may do; see the module. One that is not named has nothing to do with what is
/// lost.
pub fn roles(all: &[Suspect]) -> HashMap<(u64, u32), Role> {
    if !all.iter().any(|s| s.seeks) {
        return HashMap::new();
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
    let mut seeks = HashMap::new();
    for (i, s) in all.iter().enumerate() {
        *seeks.entry(groups.root(i)).or_insert(false) |= s.seeks;
    }
    let table: HashMap<u64, u64> = all.iter().map(|s| (s.address, s.at.0)).collect();
    let alone = |s: &Suspect| s.partners.iter().all(|p| table.get(p) != Some(&s.at.0));
    let with = |w: &Suspect, s: &Suspect| {
        s.at == w.at || s.at.0 == w.at.0 && alone(w) && alone(s) && s.fault >= JOINTLY * w.fault
    };
    let joins = |w: &Suspect, s: &Suspect| w.leads && s.uses == w.uses && (s.clashes || s.fault > 0.0);
    let role = |(i, s): (usize, &Suspect)| {
        let root = groups.root(i);
        let role = match worst[&root].filter(|w| w.fault > 0.0) {
            Some(w) if s.at != w.at && joins(w, s) => Role::Joins,
            Some(w) if with(w, s) => Role::Tries,
            _ => Role::Waits,
        };
        seeks[&root].then_some((s.at, role))
    };
    all.iter().enumerate().filter_map(role).collect()
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
            seeks: fault > 0.0,
            leads: false,
            uses: Some(Protocol::Occ),
            clashes: false,
            busy: false,
        }
    }

    /// Those that have this role, in order.
    fn who(all: &[Suspect], role: Role) -> Vec<(u64, u32)> {
        let mut v: Vec<_> = roles(all).into_iter().filter(|(_, r)| *r == role).map(|(at, _)| at).collect();
        v.sort();
        v
    }

    #[test]
    fn what_clashes_joins_the_worst_one() {
        let leads = |table, no, fault, partners: &[u64]| Suspect { leads: true, ..suspect(table, no, fault, partners) };
        let clashes = |s: Suspect| Suspect { clashes: true, ..s };
        let mut all = vec![
            leads(1, 0, 0.3, &[20]),
            suspect(1, 1, 0.01, &[10]),
            clashes(suspect(2, 0, 0.0, &[])),
            leads(2, 1, 0.2, &[]),
            suspect(2, 2, 0.0, &[]),
            clashes(suspect(3, 0, 0.1, &[])),
        ];
        assert_eq!(who(&all, Role::Tries), [(1, 0), (3, 0)]);
        assert_eq!(who(&all, Role::Joins), [(1, 1), (2, 0), (2, 1)], "however little is lost");
        assert_eq!(who(&all, Role::Waits), [(2, 2)], "no session conflicts there");
        all[2].uses = Some(Protocol::TwoPhase);
        assert_eq!(who(&all, Role::Joins), [(1, 1), (2, 1)], "it has another protocol");
        all[0].leads = false;
        assert_eq!(who(&all, Role::Joins), [], "the worst one tries another one, or later");
        assert_eq!(who(&all, Role::Tries), [(1, 0), (3, 0)]);
        all[4].busy = true;
        assert_eq!(who(&all, Role::Tries), [(3, 0)], "a trial is under way");
        assert_eq!(who(&all, Role::Waits).len(), 5);
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
        let found = |all: &[Suspect]| who(all, Role::Tries);
        assert_eq!(found(&all), [(1, 0), (1, 1), (3, 0)], "the table's other one is as bad, and never with it");
        assert_eq!(who(&all, Role::Waits), [(2, 0), (2, 1)]);
        all[1].partners = vec![11, 10];
        assert_eq!(found(&all), [(1, 0), (3, 0)], "it is used with it");
        all[1] = suspect(1, 1, 0.1, &[]);
        assert_eq!(found(&all), [(1, 0), (3, 0)], "it is not as bad");
        all[3].busy = true;
        assert_eq!(found(&all), [(3, 0)], "something that is used with it is tried");
        (all[4].fault, all[4].seeks) = (0.0, false);
        assert_eq!(found(&all), []);
        assert_eq!(roles(&all).get(&(3, 0)), None, "nothing is lost there");
        for s in &mut all {
            (s.fault, s.seeks) = (0.0, false);
        }
        assert!(roles(&all).is_empty());
        all[3].seeks = true;
        assert_eq!(who(&all, Role::Waits), [(1, 0), (1, 1), (2, 0), (2, 1)], "one is tried because work was lost");
    }
}
