//! The time that transactions take with two threads. It is CPU time of the threads, so that other
//! load of the machine disturbs little.

use crate::store::{Method, Store, Worker};
use crate::workload::{Program, Rng, Workload, Zipf};
use crate::{Setting, LIST, RANGE};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const THREADS: usize = 2;

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

extern "C" {
    fn clock_gettime(clock: i32, to: *mut Timespec) -> i32;
}

/// CPU time of this thread in ns.
fn cpu_ns() -> u64 {
    const THREAD_CPU: i32 = 3;
    let mut t = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: the C library's function on Linux. `t` has the layout of its `timespec` on 64-bit
    // machines.
    let failed = unsafe { clock_gettime(THREAD_CPU, &raw mut t) } != 0;
    assert!(!failed, "no clock of CPU time");
    t.seconds as u64 * 1_000_000_000 + t.nanoseconds as u64
}

#[derive(Clone, Copy, Default)]
struct Sums {
    commits: u64,
    aborts: u64,
    scans: u64,
    scan_ns: u64,
    cpu_ns: u64,
    sum: u64,
}

fn line(test: &str, theta: f64, scan: u64, method: &str, round: u64, s: Sums) {
    let us = |ns: u64, n: u64| ns as f64 / 1000.0 / n.max(1) as f64;
    let (scan_us, us) = (us(s.scan_ns, s.scans), us(s.cpu_ns, s.commits));
    println!("{test},{theta},{scan},{method},{round},{},{},{scan_us:.3},{us:.4},{}", s.commits, s.scans, s.aborts);
    std::hint::black_box(s.sum);
}

/// Programs are made before the measurement.
fn programs(w: &Workload, thread: u64, seed: u64) -> Vec<Program> {
    let mut rng = Rng::new(seed * 1000 + thread);
    (0..4096).map(|i| w.next(thread, i, &mut rng)).collect()
}

fn run(store: &Store, w: &Workload, method: Method, seed: u64, seconds: f64) -> Sums {
    let stop = AtomicBool::new(false);
    let work = |thread: u64| {
        let all = programs(w, thread, seed);
        let mut me = Worker::new(store, thread as u16 + 1, method);
        let mut s = Sums::default();
        let start = cpu_ns();
        for program in all.iter().cycle() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let scan = program.scan().is_some();
            let began = if scan { cpu_ns() } else { 0 };
            if !me.run(program) {
                s.aborts += 1;
                continue;
            }
            s.commits += 1;
            if scan {
                s.scans += 1;
                s.scan_ns += cpu_ns() - began;
            }
        }
        s.cpu_ns = cpu_ns() - start;
        s.sum = me.sum.get();
        s
    };
    std::thread::scope(|sc| {
        let (work, stop) = (&work, &stop);
        let threads: Vec<_> = (0..THREADS as u64).map(|i| sc.spawn(move || work(i))).collect();
        std::thread::sleep(Duration::from_secs_f64(seconds));
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|t| t.join().expect("a worker")).fold(Sums::default(), |a, b| Sums {
            commits: a.commits + b.commits,
            aborts: a.aborts + b.aborts,
            scans: a.scans + b.scans,
            scan_ns: a.scan_ns + b.scan_ns,
            cpu_ns: a.cpu_ns + b.cpu_ns,
            sum: a.sum.wrapping_add(b.sum),
        })
    })
}

/// Runs `s.transactions` transactions in one thread, for profilers. `what` is `registered`,
/// `asleep` or `unregistered` for point operations, or the name of a method whose transactions all
/// scan 1500 keys.
pub fn repeat(s: &Setting, what: &str) {
    let keys = Zipf::new(s.rows, s.theta);
    let registered = matches!(what, "registered" | "asleep" | "rv");
    let method = Method::by_name(what);
    let workload = match method {
        None => Workload::Points { keys },
        Some(_) => Workload::Ycsb { keys, scan: 1500 },
    };
    let store = Store::new(&workload, 1);
    store.set_ranges(if registered { (s.rows / RANGE) as usize } else { 0 }, LIST);
    let mut all = programs(&workload, 0, s.seed);
    all.retain(|p| method.is_none() || p.scan().is_some());
    if what == "asleep" {
        store.fall_asleep();
    }
    let mut me = Worker::new(&store, 1, method.unwrap_or(Method::Rv));
    counted(&mut me, &all, s.transactions / 10);
    println!("commits,cpu_us");
    let before = cpu_ns();
    let commits = counted(&mut me, &all, s.transactions);
    println!("{commits},{:.4}", (cpu_ns() - before) as f64 / 1000.0 / commits as f64);
    std::hint::black_box(me.sum.get());
}

/// A separate function, so that a profiler can count in it only.
#[inline(never)]
fn counted(me: &mut Worker<'_>, all: &[Program], n: u64) -> u64 {
    all.iter().cycle().take(n as usize).map(|p| u64::from(me.run(p))).sum()
}

pub fn all(s: &Setting) {
    println!("test,theta,scan,method,round,commits,scans,scan_us,transaction_us,aborts");
    let methods = [Method::Rv, Method::Lrv, Method::Rescan, Method::Gwv];
    let ranges = (s.rows / RANGE) as usize;
    let mut workload = Workload::Ycsb { keys: Zipf::new(s.rows, 0.7), scan: 100 };
    let store = Store::new(&workload, THREADS);
    for round in 0..s.rounds {
        for scan in [10, 100, 300, 1000, 1500, 3000] {
            let Workload::Ycsb { keys, .. } = workload else { unreachable!("made above") };
            workload = Workload::Ycsb { keys, scan };
            let mut order = methods;
            if round % 2 == 1 {
                order.reverse();
            }
            for m in order {
                store.set_ranges(if m == Method::Rv { ranges } else { 0 }, LIST);
                let sums = run(&store, &workload, m, s.seed + round, s.seconds);
                line("length", 0.7, scan, m.name(), round, sums);
            }
        }
    }
    drop(store);
    // Registration without scans.
    for theta in [0.0, 0.7, 0.88, 1.04] {
        let workload = Workload::Points { keys: Zipf::new(s.rows, theta) };
        let store = Store::new(&workload, THREADS);
        for round in 0..2 * s.rounds {
            let mut order = ["registered", "asleep", "unregistered"];
            if round % 2 == 1 {
                order.reverse();
            }
            for name in order {
                store.set_ranges(if name == "unregistered" { 0 } else { ranges }, LIST);
                if name == "asleep" {
                    store.fall_asleep();
                }
                let sums = run(&store, &workload, Method::Rv, s.seed + round, s.seconds);
                line("registration", theta, 0, name, round, sums);
            }
        }
    }
}
