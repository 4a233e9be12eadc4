//! The cost of using several protocols in one transaction (CormCC, figure 15). There is one thread,
//! so that no protocol gains or loses by conflicts. `bench/mixed` counts the instructions of two
//! runs that differ in their transactions.

use crate::store::{Store, Worker};
use crate::workload::{Op, Program, Rng};
use mixedcc_engine::{Protocol, ProtocolSet};

/// As in the paper: 10 partitions with `occ`, 10 with `2pl`, 12 with `partcc`.
const PARTITIONS: [(Protocol, u32); 3] = [(Protocol::Occ, 10), (Protocol::TwoPhase, 10), (Protocol::PartCc, 12)];
const ROWS: u64 = 1000;
const OPS: u32 = 20;
/// The number of partitions that a transaction touches.
const TOUCHED: u32 = 6;

/// Runs transactions whose operations are spread evenly over the protocols of `names`. With `apart`
/// each transaction uses one protocol, and transactions take turns among them.
pub fn run(names: &str, apart: bool, transactions: u64) {
    let all: u32 = PARTITIONS.iter().map(|p| p.1).sum();
    let store = Store::new(all as u64, ROWS, 0);
    let mut first = 0;
    let mut ranges = Vec::new();
    for (protocol, n) in PARTITIONS {
        for p in &store.table.map().partitions()[first as usize..(first + n) as usize] {
            p.put(&store.e, ProtocolSet::of(protocol), None).expect("the platform sees deadlocks");
        }
        ranges.push((protocol, first, n));
        first += n;
    }
    let used: Vec<_> = names.split('+').map(|n| Protocol::parse(n).expect("a protocol")).collect();
    let of = |p: Protocol| *ranges.iter().find(|r| r.0 == p).expect("it has partitions");
    let mut rng = Rng::new(15);
    let mut me = Worker::new(&store, 1);
    me.declared = true;
    for i in 0..transactions {
        let mine = if apart { vec![used[i as usize % used.len()]] } else { used.clone() };
        let mut touched: Vec<u32> = Vec::new();
        while touched.len() < TOUCHED as usize {
            let (_, first, n) = of(mine[touched.len() % mine.len()]);
            let partition = first + rng.below(n as u64) as u32;
            if !touched.contains(&partition) {
                touched.push(partition);
            }
        }
        let op =
            |k: u32| Op { partition: touched[(k % TOUCHED) as usize], rank: rng.below(ROWS) as u32, write: k % 2 == 1 };
        let ops = (0..OPS).map(op).collect();
        touched.sort_unstable();
        assert!(me.run(&Program { touched, ops }), "there is no other transaction");
    }
}
