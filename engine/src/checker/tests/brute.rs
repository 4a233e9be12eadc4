//! Compares the graph with all permutations, on small random histories.

use super::*;
use crate::checker::Event;
use hashbrown::HashMap;
use proptest::prelude::*;

const KEYS: i64 = 3;

/// A random history of named versions with CSNs, mostly plausible.
fn random_history(seed: u64, deletes: bool) -> Vec<Transaction> {
    let mut random = Random(seed);
    let count = 2 + random.below(5);
    let mut writers: Vec<Vec<u64>> = vec![Vec::new(); KEYS as usize];
    let mut plans = Vec::new();
    for id in 1..=count {
        let written: Vec<i64> = (0..KEYS).filter(|_| random.below(3) == 0).collect();
        written.iter().for_each(|&key| writers[key as usize].push(id));
        plans.push(written);
    }
    let dead = |id: u64, key: i64| deletes && (id + key as u64).is_multiple_of(3);
    let mut transactions = Vec::new();
    for id in 1..=count {
        let mut transaction = txn(id).with_csn(id);
        for key in 0..KEYS {
            let others: Vec<u64> = writers[key as usize].iter().copied().filter(|&other| other != id).collect();
            let choice = random.below(others.len() as u64 + 2);
            let seen = match choice {
                0 => continue,
                1 if deletes => Seen::Absent,
                1 => Seen::Initial,
                _ => {
                    let writer = others[choice as usize - 2];
                    if dead(writer, key) {
                        Seen::Absent
                    } else {
                        of(writer)
                    }
                }
            };
            transaction = transaction.read(Key::new(0, key), seen);
        }
        for &key in &plans[id as usize - 1] {
            let kind = if dead(id, key) { WriteKind::Delete } else { WriteKind::Update };
            transaction = transaction.write(Key::new(0, key), kind, Payload::Opaque);
        }
        transactions.push(transaction);
    }
    transactions
}

/// Does the serial execution in this order explain every read, and write each key in the order of
/// the CSNs?
fn explains(order: &[usize], transactions: &[Transaction], exists: bool) -> bool {
    let initial = if exists { Seen::Initial } else { Seen::Absent };
    let mut state: HashMap<Key, (u64, Seen)> = HashMap::new();
    for &number in order {
        let transaction = &transactions[number];
        for event in &transaction.events {
            match event {
                Event::Read { key, seen, .. } => {
                    if state.get(key).map_or(&initial, |(_, seen)| seen) != seen {
                        return false;
                    }
                }
                Event::Write(write) => {
                    let image = match write.kind {
                        WriteKind::Delete => Seen::Absent,
                        _ => of(transaction.id),
                    };
                    let before = state.insert(write.key, (transaction.id, image));
                    if before.is_some_and(|(csn, _)| csn > transaction.id) {
                        return false;
                    }
                }
                Event::Scan { .. } => unreachable!("none in these histories"),
            }
        }
    }
    true
}

fn some_order_explains(transactions: &[Transaction], exists: bool) -> bool {
    fn go(order: &mut Vec<usize>, transactions: &[Transaction], exists: bool) -> bool {
        if order.len() == transactions.len() {
            return explains(order, transactions, exists);
        }
        for next in 0..transactions.len() {
            if order.contains(&next) {
                continue;
            }
            order.push(next);
            if go(order, transactions, exists) {
                return true;
            }
            order.pop();
        }
        false
    }
    go(&mut Vec::new(), transactions, exists)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn the_graph_agrees_with_all_permutations(seed: u64) {
        let transactions = random_history(seed, false);
        let serializable = some_order_explains(&transactions, true);
        let verdict = judge(transactions);
        prop_assert_eq!(verdict.accepts(), serializable, "{}", verdict);
    }

    /// Absence may fit several stretches. So the checker may miss an anomaly, but never rejects a
    /// serializable history.
    #[test]
    fn what_is_serializable_with_deletes_is_accepted(seed: u64) {
        let transactions = random_history(seed, true);
        let verdict = judge(transactions.clone());
        if some_order_explains(&transactions, false) {
            prop_assert!(verdict.accepts(), "{}", verdict);
        } else if verdict.ambiguous_reads == 0 {
            prop_assert!(!verdict.accepts(), "{}", verdict);
        }
    }
}

#[test]
fn the_random_histories_are_of_both_kinds() {
    for deletes in [false, true] {
        let good = (0..300).filter(|&seed| some_order_explains(&random_history(seed, deletes), !deletes)).count();
        assert!((30..270).contains(&good), "{good} of 300 with deletes {deletes}");
    }
}
