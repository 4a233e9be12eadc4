//! The last state, which must contain all committed writes.

use super::build::Builder;
use super::history::{Event, Payload, Seen, Status, WriteKind};
use super::index::Named;
use super::verdict::AnomalyKind;
use hashbrown::{HashMap, HashSet};

impl Builder<'_, '_> {
    /// Checks that every committed append is in the state at the end.
    pub fn check_last(&mut self, txn: u32) {
        let index = self.index;
        let mut state: HashMap<u32, &Seen> = HashMap::new();
        let mut covered: HashSet<u32> = HashSet::new();
        for event in &index.history.transactions[txn as usize].events {
            match event {
                Event::Read { key, seen, .. } => {
                    state.insert(index.key_of[key], seen);
                }
                Event::Scan { predicate, rows, .. } if predicate.filter.is_none() => {
                    let range = index.range(predicate.table, predicate.low, predicate.high);
                    covered.extend(range.iter().map(|&(_, key)| key));
                    state.extend(rows.iter().map(|(key, seen)| (index.key_of[key], seen)));
                }
                Event::Scan { .. } | Event::Write(_) => {}
            }
        }
        covered.extend(state.keys());
        for key in covered {
            self.check_last_key(key, state.get(&key).copied().unwrap_or(&Seen::Absent));
        }
    }

    fn check_last_key(&mut self, key: u32, seen: &Seen) {
        let index = self.index;
        let writes = || index.by_key[key as usize].iter().copied().filter(|&w| index.stays(w));
        let committed = |write: &u32| {
            let writer = index.writes[*write as usize].txn;
            index.history.transactions[writer as usize].status == Status::Committed
        };
        let lost: Vec<u32> = match seen {
            Seen::List(list) => {
                let deleted = writes().any(|w| index.writes[w as usize].kind == WriteKind::Delete);
                let listed: HashSet<u64> = list.iter().copied().collect();
                let missing = |write: &u32| match index.writes[*write as usize].payload {
                    Payload::Append(id) => !deleted && !listed.contains(&id),
                    _ => false,
                };
                writes().filter(missing).filter(committed).collect()
            }
            // A row of several lives may be absent in the end. The graph judges that.
            Seen::Absent => return,
            other => {
                let order = &self.orders.of_key[key as usize];
                let newest = order.versions.last().map(|version| version.write);
                let named = index.named(key, other);
                let stale = newest.filter(|&write| named != Named::Write(write));
                stale.filter(|_| order.tail.is_empty()).into_iter().filter(committed).collect()
            }
        };
        for write in lost {
            let info = &index.writes[write as usize];
            let text = format!(
                "{:?} of {} by T{} is missing in the last state, {seen:?}",
                info.payload,
                index.describe(key),
                index.id(info.txn)
            );
            self.report(AnomalyKind::LostWrite, &[info.txn], text);
        }
    }
}
