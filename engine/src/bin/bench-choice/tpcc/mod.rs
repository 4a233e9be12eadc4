//! TPC-C as a changing load. Every phase has another mix of the transactions, other warehouses with
//! remote ones, and another share of these (CormCC, figure 10). `bench/choice-server` runs the same
//! load through a server.
//!
//! The tables are partitioned by warehouse, except for the items, which are only read. A thread has
//! a home warehouse. It declares all partitions that it knows before it begins, and yields its core
//! after each access. Differences from TPC-C: customers are found only by number, no New-Order is
//! rolled back, and terminals do not think. Rows have the numbers that transactions compute with,
//! and room for the texts of those that have long ones.

mod tables;
mod terminal;

use crate::schedule::{Phased, Plan, THREADS};
use crate::workload::Rng;
use tables::Tables;
use terminal::Terminal;

const WAREHOUSES: u32 = 4;
const DISTRICTS: u32 = 10;
/// The customers of a district. Each has an order before the first transaction.
const CUSTOMERS: u64 = 60;
const ITEMS: u64 = 2000;
/// The number of a thread's transactions in a phase, which it repeats.
const CALLS: usize = 256;
/// The bytes that one second of transactions inserts. If they do not suffice, the run says so.
const SECOND: f64 = 32e6;
const SPARE: usize = 128 << 20;

/// A line of an order.
#[derive(Clone, Copy, Debug)]
struct Line {
    item: u64,
    /// The warehouse from whose stock it is taken.
    from: u32,
    quantity: u64,
}

/// A transaction, with its arguments except for the home warehouse.
#[derive(Clone, Debug)]
enum Call {
    NewOrder {
        d: u32,
        c: u64,
        lines: Vec<Line>,
    },
    /// A payment by the customer `c` of a district of a warehouse.
    Payment {
        d: u32,
        of: (u32, u32),
        c: u64,
        amount: u64,
    },
    OrderStatus {
        d: u32,
        c: u64,
    },
    Delivery,
    StockLevel {
        d: u32,
        threshold: u64,
    },
}

/// The standard's weights of the transactions, in their order above.
const STANDARD: [u64; 5] = [45, 43, 4, 4, 4];

/// The transactions of a phase.
#[derive(Clone, Copy, Debug)]
struct Phase {
    mix: [u64; 5],
    /// The number of leading warehouses with remote transactions.
    crossed: u32,
    /// The percentage of their payments by customers of another warehouse. A fifteenth of it is the
    /// percentage of order lines from the stock of another warehouse, as in the standard.
    cross: u64,
}

impl Phase {
    /// Draws a phase. The first one is the standard's mix without remote transactions.
    fn random(seed: u64, no: u64) -> Phase {
        let mut r = Rng::new(seed * 1000 + no);
        if no == 0 {
            return Phase { mix: STANDARD, crossed: 0, cross: 0 };
        }
        let (crossed, cross) = (r.below(WAREHOUSES as u64 + 1) as u32, 50 + r.below(51));
        let standard = r.percent(10);
        let mix = STANDARD.map(|weight| if standard { weight } else { 1 + r.below(49) });
        Phase { mix, crossed, cross }
    }

    fn warehouse(&self, home: u32, percent: u64, r: &mut Rng) -> u32 {
        if home < self.crossed && r.percent(percent) {
            (home + 1 + r.below(WAREHOUSES as u64 - 1) as u32) % WAREHOUSES
        } else {
            home
        }
    }

    fn line(&self, home: u32, r: &mut Rng) -> Line {
        let item = uneven(8191, ITEMS, 7911, r);
        Line { item, from: self.warehouse(home, self.cross / 15, r), quantity: 1 + r.below(10) }
    }

    fn call(&self, home: u32, r: &mut Rng) -> Call {
        let mut at = r.below(self.mix.iter().sum());
        let kind = self.mix.iter().position(|&weight| {
            let here = at < weight;
            at = at.saturating_sub(weight);
            here
        });
        let (d, c) = (r.below(DISTRICTS as u64) as u32, uneven(1023, CUSTOMERS, 259, r));
        match kind {
            Some(0) => {
                let mut lines: Vec<Line> = (0..5 + r.below(11)).map(|_| self.line(home, r)).collect();
                lines.sort_by_key(|l| (l.from, l.item)); // Stock is locked in one order.
                Call::NewOrder { d, c, lines }
            }
            Some(1) => {
                let w = self.warehouse(home, self.cross, r);
                let of = (w, if w == home { d } else { r.below(DISTRICTS as u64) as u32 });
                Call::Payment { d, of, c, amount: 1 + r.below(5000) }
            }
            Some(2) => Call::OrderStatus { d, c },
            Some(3) => Call::Delivery,
            _ => Call::StockLevel { d, threshold: 10 + r.below(11) },
        }
    }
}

/// TPC-C's clause 2.1.6: one of `n`, unevenly distributed.
fn uneven(a: u64, n: u64, constant: u64, r: &mut Rng) -> u64 {
    ((r.below(a + 1) | r.below(n)) + constant) % n
}

/// The transactions of all threads, by thread and phase. All modes run the same.
pub struct Tpcc {
    calls: Vec<Vec<Vec<Call>>>,
    phases: u64,
    /// The bytes for inserted rows.
    spare: usize,
}

fn home(thread: u64) -> u32 {
    (thread % WAREHOUSES as u64) as u32
}

impl Tpcc {
    pub fn new(p: &Plan) -> Tpcc {
        let of_phase = |thread: u64, no: u64| -> Vec<Call> {
            let (phase, mut r) = (Phase::random(p.seed, no), Rng::new(p.seed * 10_000 + no * 100 + thread));
            (0..CALLS).map(|_| phase.call(home(thread), &mut r)).collect()
        };
        let of_thread = |thread: u64| -> Vec<Vec<Call>> { (0..p.phases).map(|no| of_phase(thread, no)).collect() };
        let seconds = (p.phases * p.intervals) as f64 * p.interval_s;
        let spare = SPARE + (SECOND * seconds) as usize;
        Tpcc { calls: (0..THREADS).map(of_thread).collect(), phases: p.phases, spare }
    }
}

impl Phased for Tpcc {
    type Site = Tables;
    fn phases(&self) -> u64 {
        self.phases
    }
    fn site(&self, mode: &str) -> Tables {
        Tables::new(mode, self.spare)
    }
    fn worker<'a>(&'a self, tables: &'a Tables, thread: u64) -> Box<dyn FnMut(u64) -> bool + 'a> {
        let mut me = Terminal::new(tables, thread as u16 + 1, home(thread));
        let mut i = 0;
        Box::new(move |phase| {
            let done = me.run(&self.calls[thread as usize][phase as usize][i % CALLS]);
            i += done as usize;
            done
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Site;
    use mixedcc_engine::Protocol;

    const PLAN: Plan = Plan { seed: 3, phases: 3, intervals: 1, interval_s: 0.1, explain: false, features: false };

    /// Runs this number of transactions of each phase in each thread, under a mode.
    fn run(mode: &str, threads: u64, transactions: usize) -> Tables {
        let load = Tpcc { spare: 64 << 20, ..Tpcc::new(&PLAN) };
        let tables = load.site(mode);
        std::thread::scope(|sc| {
            for thread in 0..threads {
                let (load, tables) = (&load, &tables);
                sc.spawn(move || {
                    let mut attempt = load.worker(tables, thread);
                    for phase in 0..load.phases {
                        let mut done = 0;
                        while done < transactions {
                            done += attempt(phase) as usize;
                        }
                    }
                });
            }
        });
        tables
    }

    #[test]
    fn what_is_committed_is_there() {
        let fixed = Protocol::ALL.map(Protocol::name);
        for mode in fixed.into_iter().chain(["hybrid", "adaptive"]) {
            let tables = run(mode, 8, 100);
            assert_eq!(tables.check(), Ok(()), "{mode}");
            let done = *tables.done();
            assert!(done.payments > 100 && done.delivered > 42 * 40 && done.orders > 60 * 40 + 100, "{mode}: {done:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_missed() {
        let tables = run("adaptive", 1, 10);
        let lost = |what: fn(&mut tables::Done), text: &str| {
            let before = *tables.done();
            what(&mut tables.done());
            let found = tables.check().expect_err(text);
            assert!(found.starts_with(text), "{found}");
            *tables.done() = before;
            assert_eq!(tables.check(), Ok(()));
        };
        lost(|d| d.paid += 1, "paid at warehouses");
        lost(|d| d.payments += 1, "payments of customers");
        lost(|d| d.orders += 1, "orders by the districts' counters");
        lost(|d| d.lines += 1, "lines of orders");
        lost(|d| d.quantity += 1, "quantity taken from stock");
        lost(|d| d.delivered += 1, "orders to be delivered");
    }

    #[test]
    fn phases_differ_and_are_those_of_the_seed() {
        let (first, other) = (Phase::random(1, 0), Phase::random(1, 1));
        assert_eq!((first.mix, first.crossed), (STANDARD, 0));
        assert_ne!(other.mix, first.mix);
        assert_eq!(other.mix, Phase::random(1, 1).mix);
        let all: Vec<u32> = (1..100).map(|no| Phase::random(1, no).crossed).collect();
        assert!((0..=WAREHOUSES).all(|n| all.contains(&n)), "{all:?}");
        // Remote customers and stock are where the phase wants them, and only there.
        let phase = Phase { crossed: 2, cross: 60, ..first };
        let remote = |home: u32| {
            let mut r = Rng::new(home as u64);
            let calls = (0..1000).map(|_| phase.call(home, &mut r));
            let is = |c: &Call| match c {
                Call::Payment { of, .. } => of.0 != home,
                Call::NewOrder { lines, .. } => lines.iter().any(|l| l.from != home),
                _ => false,
            };
            calls.filter(is).count()
        };
        assert!(remote(0) > 200 && remote(1) > 200 && remote(2) == 0 && remote(3) == 0);
    }
}
