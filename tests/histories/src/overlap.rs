//! How strong a history is: how many transactions run beside each other, and conflict.

use mixedcc_engine::checker::{Event, History, Status, Transaction};

/// Keys of a table that a transaction has read or written, a bit each; keys of 64 and more share
/// bits.
#[derive(Clone, Copy, Default)]
struct Keys {
    read: u64,
    written: u64,
}

impl Keys {
    const fn conflict(self, other: Self) -> bool {
        self.written & (other.read | other.written) != 0 || self.read & other.written != 0
    }
}

const fn bit(key: i64) -> u64 {
    1 << (key & 63)
}

fn footprint(transaction: &Transaction) -> [Keys; 2] {
    let mut keys = [Keys::default(); 2];
    for event in &transaction.events {
        match event {
            Event::Read { key, .. } => keys[key.table as usize & 1].read |= bit(key.key),
            Event::Write(write) => keys[write.key.table as usize & 1].written |= bit(write.key.key),
            Event::Scan { predicate, .. } => {
                let (low, high) = (predicate.low.unwrap_or(0), predicate.high.unwrap_or(63));
                for key in low..=high.min(low + 63) {
                    keys[predicate.table as usize & 1].read |= bit(key);
                }
            }
        }
    }
    keys
}

/// Sums over the committed transactions of a history, of those that committed and overlapped with
/// each.
#[derive(Clone, Default, Debug)]
pub struct Overlap {
    pub committed: u64,
    pub transactions: u64,
    pub beside: u64,
    pub conflicting: u64,
    /// Transactions that used both tables, and those of them that had a conflict in each.
    pub both: u64,
    pub both_conflicting: u64,
}

pub fn measure(history: &History) -> Overlap {
    let mut sums = Overlap::default();
    let mut order: Vec<_> = history
        .transactions
        .iter()
        .filter(|txn| !txn.last)
        .inspect(|_| sums.transactions += 1)
        .filter(|txn| txn.status == Status::Committed)
        .filter_map(|txn| Some((txn.begin?, txn.commit?, footprint(txn))))
        .collect();
    order.sort_by_key(|&(begin, ..)| begin);
    let uses = |keys: Keys| keys.read | keys.written != 0;
    // Of those that still run: the end, the keys, and in which table it has had a conflict.
    let mut running: Vec<(u64, [Keys; 2], [bool; 2])> = Vec::new();
    let end = |one: (u64, [Keys; 2], [bool; 2]), both: &mut u64, conflicting: &mut u64| {
        if one.1.iter().all(|&keys| uses(keys)) {
            *both += 1;
            *conflicting += u64::from(one.2 == [true; 2]);
        }
    };
    for (begin, commit, keys) in order {
        running.retain(|&one| {
            if one.0 < begin {
                end(one, &mut sums.both, &mut sums.both_conflicting);
            }
            one.0 >= begin
        });
        sums.committed += 1;
        let mut own = [false; 2];
        for (_, other, conflicts) in &mut running {
            // Each of a pair has the other one beside it.
            sums.beside += 2;
            let met = [keys[0].conflict(other[0]), keys[1].conflict(other[1])];
            for table in 0..2 {
                conflicts[table] |= met[table];
                own[table] |= met[table];
            }
            sums.conflicting += 2 * u64::from(met != [false; 2]);
        }
        running.push((commit, keys, own));
    }
    for one in running {
        end(one, &mut sums.both, &mut sums.both_conflicting);
    }
    sums
}

impl Overlap {
    pub fn to_json(&self) -> String {
        format!(
            "{{\"transactions\": {}, \"committed\": {}, \"beside\": {}, \"conflicting\": {}, \"both\": {}, \"both_conflicting\": {}}}",
            self.transactions, self.committed, self.beside, self.conflicting, self.both, self.both_conflicting
        )
    }
}

#[cfg(test)]
mod tests {
    use super::measure;
    use mixedcc_engine::checker::{History, Key, Level, Predicate, Seen, Transaction};

    #[test]
    fn those_that_run_beside_each_other_and_conflict_are_counted() {
        let (x, y) = (Key::new(0, 1), Key::new(1, 2));
        let new = |id, begin, end| Transaction::new(id, Level::Serializable).with_times(begin, end);
        let mut history = History::default();
        history.transactions = vec![
            new(1, 10, 20).append(x, 1).read(y, Seen::Absent),
            new(2, 15, 30).scan(Predicate::range(0, 0, 3), vec![]).append(y, 2),
            // Beside the second one, without a conflict.
            new(3, 25, 40).read(x, Seen::List(vec![1])),
            new(4, 41, 50).append(x, 4),
        ];
        let sums = measure(&history);
        assert_eq!((sums.transactions, sums.committed, sums.beside, sums.conflicting), (4, 4, 4, 2));
        assert_eq!((sums.both, sums.both_conflicting), (2, 2));
    }
}
