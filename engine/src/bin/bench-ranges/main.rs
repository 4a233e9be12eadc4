//! Benchmarks of logical ranges against other ways to validate scans. `bench/ranges` runs it.
//!
//! `bench-ranges counts` (feature `counts`) prints the work of many logical workers. `bench-ranges
//! time` prints the time that it takes with two threads. `bench-ranges repeat` is for profilers.
//! All print CSV.

mod mvrcc;
mod sim;
mod store;
mod time;
mod workload;

use mixedcc_engine::counts;
use mixedcc_engine::txn::PRIMARY;
use sim::Config;
use store::{Method, Store};
use workload::{Workload, Zipf};

/// The number of rows in a range, as in the paper.
const RANGE: u64 = 610;
const LIST: u32 = 64;

/// The settings of all runs.
pub struct Setting {
    pub rows: u64,
    pub transactions: u64,
    pub seconds: f64,
    pub rounds: u64,
    pub seed: u64,
    pub theta: f64,
}

fn setting(args: &[String]) -> Setting {
    let number = |name: &str, default: f64| {
        let at = args.iter().position(|a| a == name);
        at.and_then(|i| args.get(i + 1)).map_or(default, |v| v.parse().expect("a number"))
    };
    Setting {
        rows: number("--rows", 1_000_000.0) as u64,
        transactions: number("--transactions", 5_000.0) as u64,
        seconds: number("--seconds", 0.4),
        rounds: number("--rounds", 7.0) as u64,
        seed: number("--seed", 1.0) as u64,
        theta: number("--theta", 0.0),
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let s = setting(&args);
    match args.get(1).map(String::as_str) {
        Some("counts") => {
            counts::add(|w| w.lists += 1);
            assert!(counts::take().lists == 1, "build it with the feature `counts`");
            count_all(&s);
        }
        Some("time") => {
            counts::add(|w| w.lists += 1);
            assert!(counts::take().lists == 0, "build it without the feature `counts`");
            time::all(&s);
        }
        Some("repeat") => time::repeat(&s, args.get(2).map_or("registered", String::as_str)),
        _ => {
            eprintln!("bench-ranges counts|time|repeat registered|asleep|unregistered|rv|lrv|lrv_rescan|gwv [--theta Z] [--rows N] [--transactions N] [--seconds S] [--rounds N] [--seed N]");
            std::process::exit(2);
        }
    }
}

/// One line in the CSV of counts.
struct Case<'a> {
    test: &'a str,
    theta: f64,
    scan: u64,
    ranges: u64,
    list: u32,
    workers: usize,
}

struct Runner<'a> {
    s: &'a Setting,
    store: Store,
    workload: Workload,
}

impl Runner<'_> {
    fn run(&self, case: &Case<'_>, method: Method) {
        let ranged = matches!(method, Method::Rv | Method::Mvrcc);
        self.store.set_ranges(if ranged { case.ranges as usize } else { 0 }, case.list);
        let boundaries = self.store.table.ranges(PRIMARY).map_or_else(Vec::new, |r| {
            let set = r.current();
            let key = |i| u64::from_be_bytes(set.boundary(i)[..8].try_into().expect("a key of 8 bytes"));
            (0..set.len() - 1).map(key).collect()
        });
        let c = Config {
            workload: &self.workload,
            method,
            workers: case.workers,
            transactions: self.s.transactions,
            boundaries,
            list_size: case.list as usize,
            seed: self.s.seed,
        };
        if method == Method::Rv && !matches!(case.test, "granularity" | "list_size") {
            // Boundaries follow the writes.
            sim::run(
                &Config { transactions: self.s.transactions / 4, seed: self.s.seed + 1, ..c.clone() },
                &self.store,
            );
            self.store.rebalance(case.list);
        }
        let r = sim::run(&c, &self.store);
        let each = |n: u64| n as f64 / r.scans.max(1) as f64;
        println!(
            "{},{},{},{},{},{},{},{},{},{:.2},{:.2},{:.2},{:.1},{:.2},{:.1},{:.3},{},{},{},{},{}",
            case.test,
            case.theta,
            case.scan,
            case.ranges,
            case.list,
            case.workers,
            method.name(),
            r.commits,
            r.scans,
            each(r.records),
            each(r.entries),
            each(r.lists),
            each(r.lines),
            r.register_lines as f64 / r.commits.max(1) as f64,
            each(r.scan_time),
            r.scans as f64 * 1e6 / r.time.max(1) as f64,
            r.scan_aborts,
            r.false_aborts,
            r.wraps,
            r.point_aborts,
            r.given_up,
        );
    }
}

const ALL: [Method; 5] = [Method::Rv, Method::Lrv, Method::Rescan, Method::Gwv, Method::Mvrcc];
const WORKERS: usize = 40;
/// How many others the sweeps have.
const FEWER: [usize; 4] = [1, 4, 10, 20];

fn count_all(s: &Setting) {
    println!(
        "test,theta,scan,ranges,list,workers,method,commits,scans,records_reread,entries_compared,lists,\
         validation_lines,register_lines,scan_lines,scans_per_mega_line,scan_aborts,false_aborts,wraps,point_aborts,given_up"
    );
    let ycsb = |theta: f64, scan: u64| {
        let workload = Workload::Ycsb { keys: Zipf::new(s.rows, theta), scan };
        let store = Store::new(&workload, WORKERS);
        Runner { s, store, workload }
    };
    for theta in [0.0, 0.7, 0.88, 1.04] {
        count_ycsb(theta, ycsb(theta, 100));
    }
    for scan in [100, 300, 1000, 3000] {
        count_tpcc(s, "tpcc", scan, WORKERS);
    }
    for workers in [1, 4, 8, 16, 24, 32] {
        count_tpcc(s, "tpcc_workers", 3000, workers);
    }
}

fn count_ycsb(theta: f64, mut r: Runner<'_>) {
    let rows = r.s.rows;
    let case = |test, scan, workers| Case { test, theta, scan, ranges: rows / RANGE, list: LIST, workers };
    let lengths: &[u64] = if theta == 0.7 { &[10, 30, 100, 300, 1000, 1500, 3000] } else { &[10, 100, 1000] };
    for &scan in lengths {
        let Workload::Ycsb { keys, .. } = r.workload else { unreachable!("the caller made it") };
        r.workload = Workload::Ycsb { keys, scan };
        for m in ALL {
            r.run(&case("length", scan, WORKERS), m);
        }
        if theta == 0.7 && (scan == 10 || scan == 100) {
            for workers in FEWER {
                for m in ALL {
                    r.run(&case("workers", scan, workers), m);
                }
            }
        }
        if matches!(theta, 0.7 | 1.04) && (scan == 100 || scan == 1000) {
            for n in [1, 16, rows / 2400, rows / 610, rows / 150, rows / 38] {
                r.run(&Case { ranges: n, ..case("granularity", scan, WORKERS) }, Method::Rv);
            }
        }
        if scan == 100 && theta > 0.7 {
            for list in [8, 16, 32, 64, 128, 512] {
                r.run(&Case { list, ..case("list_size", scan, WORKERS) }, Method::Rv);
            }
        }
    }
}

/// The modified TPC-C, with as many warehouses as workers.
fn count_tpcc(s: &Setting, test: &str, scan: u64, workers: usize) {
    let workload = Workload::Tpcc { warehouses: workers as u64, scan };
    let r = Runner { s, store: Store::new(&workload, workers), workload };
    let case = Case { test, theta: 0.0, scan, ranges: r.store.table.rows() / 600, list: LIST, workers };
    ALL.into_iter().for_each(|m| r.run(&case, m));
}
