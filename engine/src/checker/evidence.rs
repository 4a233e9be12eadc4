//! Evidence about the order of ids, from the lists that were read.

use super::history::{Event, Key, Seen, TxnId, WriteKind};
use super::index::Index;
use super::verdict::{AnomalyKind, Verdict};
use super::Options;
use hashbrown::{HashMap, HashSet};

/// A key's row lives from an insert to a delete. Each life has a list of its own, named by the id
/// that its insert put first. `None`: the row that existed before the history.
pub(super) type Life = (u32, Option<u64>);

#[derive(Default)]
pub(super) struct Evidence<'h> {
    /// The longest list seen in each life.
    pub longest: HashMap<Life, &'h [u64]>,
    /// Keys seen in their initial state.
    pub initial: HashSet<u32>,
}

pub(super) fn life_of(index: &Index<'_>, key: u32, list: &[u64]) -> Option<u64> {
    let &first = list.first()?;
    let number = index.appended(key, first)?;
    (index.writes[number as usize].kind == WriteKind::Insert).then_some(first)
}

/// Calls `see(txn, key, seen)` for all that transactions which count have seen.
pub(super) fn each_seen<'h>(index: &Index<'h>, mut see: impl FnMut(u32, Key, &'h Seen)) {
    for (txn, transaction) in index.history.transactions.iter().enumerate() {
        if !index.effective[txn] {
            continue;
        }
        for event in &transaction.events {
            match event {
                Event::Read { key, seen, .. } => see(txn as u32, *key, seen),
                Event::Scan { rows, .. } => {
                    rows.iter().for_each(|(key, seen)| see(txn as u32, *key, seen));
                }
                Event::Write(write) => {
                    if let Some(saw) = &write.saw {
                        see(txn as u32, write.key, saw);
                    }
                }
            }
        }
    }
}

pub(super) fn collect<'h>(index: &Index<'h>, options: &Options, verdict: &mut Verdict) -> Evidence<'h> {
    let mut evidence = Evidence::default();
    evidence.initial.extend(index.history.initial.keys().map(|key| index.key_of[key]));
    each_seen(index, |txn, key, seen| {
        let key = index.key_of[&key];
        match seen {
            Seen::Initial => {
                evidence.initial.insert(key);
            }
            Seen::Value(_) | Seen::Count(_) => {
                if index.named(key, seen) == super::index::Named::Initial {
                    evidence.initial.insert(key);
                }
            }
            Seen::List(list) => {
                let life = life_of(index, key, list);
                let list = index.without_undone(txn, key, list);
                if list.is_empty() && life.is_some() {
                    return;
                }
                if life.is_none() {
                    evidence.initial.insert(key);
                }
                let longest = evidence.longest.entry((key, life)).or_insert(&[]);
                if list.len() > longest.len() {
                    *longest = list;
                }
            }
            Seen::Absent | Seen::Version { .. } => {}
        }
    });
    check_elements(index, &evidence, options, verdict);
    check_prefixes(index, &evidence, options, verdict);
    evidence
}

/// Reports ids in the longest lists that no transaction wrote, that occur twice, or whose writer
/// rolled back.
fn check_elements(index: &Index<'_>, evidence: &Evidence<'_>, options: &Options, verdict: &mut Verdict) {
    let mut seen = HashSet::new();
    let mut lists: Vec<_> = evidence.longest.iter().collect();
    lists.sort_unstable();
    for (&(key, _), list) in lists {
        seen.clear();
        for &id in *list {
            let name = index.describe(key);
            if !seen.insert(id) {
                let text = format!("the list {name} contains {id} twice: {list:?}");
                verdict.report(options.limit, AnomalyKind::Duplicate, Vec::new(), text);
            }
            match index.appended(key, id) {
                None => {
                    let text = format!("the list {name} contains {id}, which no transaction wrote");
                    verdict.report(options.limit, AnomalyKind::GarbageRead, Vec::new(), text);
                }
                Some(number) if !index.stays(number) => {
                    let writer = index.id(index.writes[number as usize].txn);
                    let text = format!("the list {name} contains {id}, though T{writer} rolled that write back");
                    verdict.report(options.limit, AnomalyKind::G1a, vec![writer], text);
                }
                Some(_) => {}
            }
        }
    }
}

/// Every list must be a prefix of the longest one of its life.
fn check_prefixes(index: &Index<'_>, evidence: &Evidence<'_>, options: &Options, verdict: &mut Verdict) {
    each_seen(index, |txn, key, seen| {
        let Seen::List(list) = seen else { return };
        let key = index.key_of[&key];
        let list = index.without_undone(txn, key, list);
        let Some(longest) = evidence.longest.get(&(key, life_of(index, key, list))) else {
            return;
        };
        if longest.starts_with(list) {
            return;
        }
        let fork = list.iter().zip(*longest).take_while(|(one, other)| one == other).count();
        let (mine, theirs) = (list[fork], longest[fork]);
        let updates_lost = !longest.contains(&mine) && !list.contains(&theirs);
        let kind = if updates_lost { AnomalyKind::LostUpdate } else { AnomalyKind::IncompatibleOrder };
        let writer =
            |id| -> Option<TxnId> { index.appended(key, id).map(|number| index.id(index.writes[number as usize].txn)) };
        let writers = [writer(mine), writer(theirs)].into_iter().flatten().collect();
        let text = format!(
            "T{} saw {} as {list:?}, others as {longest:?}: after {:?} once {mine}, once {theirs}",
            index.id(txn),
            index.describe(key),
            &list[..fork],
        );
        verdict.report(options.limit, kind, writers, text);
    });
}
