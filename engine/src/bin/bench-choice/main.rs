//! Benchmarks of the choice of protocols, with threads. `engine/model/train` and `bench/choice` run
//! them.
//!
//! All commands print CSV:
//! * `bench-choice measure`: features and costs of synthesized workloads under each protocol, with
//!   `--tpcc` those of phases of TPC-C.
//! * `bench-choice schedule`: commits under changing loads.
//! * `bench-choice switches`: commits while partitions are switched. `bench/switches --engine` runs
//!   it.
//! * `bench-choice mixed`: transactions over several protocols. `bench/mixed` counts its
//!   instructions.
//! * `bench-choice heat`: commits and attempts while one row is read and written by turns, by
//!   thresholds of `mocc`'s heat, if the engine has the feature `thresholds`. `bench/heat` runs it.
//! * `bench-choice contended`: commits and attempts of transactions over a few records, by their
//!   number of writes, with the same feature. `bench/contended` runs it.

#[cfg(feature = "thresholds")]
mod contended;
#[cfg(feature = "thresholds")]
mod heat;
mod hybrid;
mod mixed;
mod outside;
mod run;
mod schedule;
mod store;
mod switches;
mod tpcc;
mod workload;

use mixedcc_engine::choice::{Model, NAMES};
use mixedcc_engine::Protocol;
use schedule::{Kind, Models, Synthesized};
use std::collections::HashMap;
use store::Store;
use tpcc::Tpcc;
use workload::Workload;

struct Args(Vec<String>);

impl Args {
    fn text(&self, name: &str) -> Option<&str> {
        let at = self.0.iter().position(|a| a == name)?;
        self.0.get(at + 1).map(String::as_str)
    }
    fn number(&self, name: &str, default: f64) -> f64 {
        self.text(name).map_or(default, |v| v.parse().expect("a number"))
    }
    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|a| a == name)
    }
}

/// Runs each workload under each protocol, `rounds` times in turns.
fn measure(a: &Args) {
    let (from, to) = (a.number("--from", 0.0) as u64, a.number("--to", 10.0) as u64);
    let (seconds, rounds) = (a.number("--seconds", 0.12), a.number("--rounds", 1.0) as u64);
    let unseen = a.has("--unseen");
    println!(
        "number,round,protocol,threads,table_partitions,skew,reads,ops,crossed,cross,home,declared,ordered,yields,work_ns,{},commits,attempts,cpu_us,elapsed_us,cost_us,load_cost_us,busy,lost,slept",
        NAMES.join(",")
    );
    let mut stores: HashMap<u64, Store> = HashMap::new();
    for number in from..to {
        let w = Workload::random(number, unseen);
        let store = stores.entry(w.partitions).or_insert_with(|| Store::new(w.partitions, w.rows, 0));
        let programs = run::programs(&w, number);
        for round in 0..rounds {
            let mut order = Protocol::ALL;
            order.rotate_left(((number + round) % Protocol::COUNT as u64) as usize);
            for p in order {
                store.set(Some(p));
                let r = run::run(store, &w, &programs, seconds);
                let Some(load) = r.load else { continue };
                let features: Vec<_> = load.features.iter().map(|f| format!("{f:.5}")).collect();
                let per = |s: f64| s * 1e6 / r.commits.max(1) as f64;
                println!(
                    "{number},{round},{},{},{},{},{},{:.3},{:.3},{:.3},{:.3},{:.4},{:.4},{:.4}",
                    p.name(),
                    w.describe(),
                    features.join(","),
                    r.commits,
                    r.attempts,
                    per(r.cpu_s),
                    per(r.elapsed_s),
                    r.cost_us(w.threads),
                    load.cost_us,
                    load.busy,
                    load.lost,
                    load.slept
                );
            }
        }
    }
}

/// The model in the file that this argument names.
fn model(a: &Args, name: &str) -> Option<Model> {
    let text = a.text(name).map(|f| std::fs::read_to_string(f).expect("a model's file"));
    text.map(|t| Model::parse(&t).expect("a model"))
}

/// Phases of TPC-C's schedules under each protocol: features of partitions, and costs of
/// transactions.
fn measure_tpcc(a: &Args) {
    println!("number,round,protocol,partition,work_ns,{},commits,cost_us", NAMES.join(","));
    // No coordinator chooses here.
    let models = Models { adaptive: Model::built_in(), wrong: None };
    for seed in a.number("--from", 1001.0) as u64..a.number("--to", 1002.0) as u64 {
        let interval_s = a.number("--seconds", 0.1);
        let plan = schedule::Plan { seed, phases: 8, intervals: 3, interval_s, explain: false, features: true };
        schedule::run(&Tpcc::new(&plan), &plan, &Protocol::ALL.map(Protocol::name), &models);
    }
}

/// Changing loads under each mode.
fn schedule(a: &Args) {
    let name = a.text("--kind").unwrap_or("varied");
    let plan = schedule::Plan {
        seed: a.number("--seed", 1.0) as u64,
        phases: a.number("--phases", 10.0) as u64,
        intervals: a.number("--intervals", 8.0) as u64,
        interval_s: a.number("--interval", 0.2),
        explain: a.has("--explain"),
        features: false,
    };
    println!("seed,mode,interval,phase,seconds,commits,attempts,cpu_s,asked,protocols");
    let all = format!("{},hybrid,adaptive", Protocol::ALL.map(Protocol::name).join(","));
    let modes: Vec<&str> = a.text("--modes").unwrap_or(&all).split(',').collect();
    let models = Models { adaptive: model(a, "--model").unwrap_or_else(Model::built_in), wrong: model(a, "--wrong") };
    if name == "tpcc" {
        return schedule::run(&Tpcc::new(&plan), &plan, &modes, &models);
    }
    let kind = Kind::parse(name.trim_end_matches("_home")).expect("a kind of schedule");
    schedule::run(&Synthesized::new(kind, name.ends_with("_home"), &plan), &plan, &modes, &models);
}

/// Switches of protocols under a long transaction.
fn switches(a: &Args) {
    let pair = |text: &str| {
        let (old, new) = text.split_once('-').expect("old-new");
        (Protocol::parse(old).expect("a protocol"), Protocol::parse(new).expect("a protocol"))
    };
    let list = |name: &str| a.text(name).expect("a list").split(',');
    switches::run(&switches::Plan {
        seed: a.number("--seed", 1.0) as u64,
        pairs: list("--pairs").map(pair).collect(),
        lengths: list("--long").map(|l| l.parse().expect("seconds")).collect(),
        seconds: a.number("--seconds", 0.5),
        stop_all: a.has("--stop-all"),
        yields: a.number("--yields", 1.0) as u64,
    });
}

/// The shifting load of the MOCC paper.
#[cfg(feature = "thresholds")]
fn heat(a: &Args) {
    heat::run(&heat::Plan {
        modes: a.text("--modes").expect("modes").split(',').map(heat::Mode::parse).collect(),
        seed: a.number("--seed", 1.0) as u64,
        rounds: a.number("--rounds", 1.0) as u64,
        threads: a.number("--threads", 2.0) as u64,
        rows: a.number("--rows", 100_000.0) as u64,
        records: a.number("--records", 8.0) as u64,
        phases: a.number("--phases", 8.0) as u64,
        buckets: a.number("--buckets", 8.0) as u64,
        bucket_s: a.number("--bucket", 0.05),
        yields: a.number("--yields", 0.0) as u64,
    });
}

/// The contended load of the MOCC paper.
#[cfg(feature = "thresholds")]
fn contended(a: &Args) {
    contended::run(&contended::Plan {
        modes: a.text("--modes").expect("modes").split(',').map(contended::Mode::parse).collect(),
        writes: a.text("--writes").expect("writes").split(',').map(|n| n.parse().expect("a number")).collect(),
        seed: a.number("--seed", 1.0) as u64,
        rounds: a.number("--rounds", 1.0) as u64,
        threads: a.number("--threads", 8.0) as u64,
        records: a.number("--records", 50.0) as u64,
        accesses: a.number("--accesses", 10.0) as usize,
        seconds: a.number("--seconds", 0.5),
        yields: a.number("--yields", 1.0) as u64,
    });
}

fn main() {
    let a = Args(std::env::args().collect());
    match a.0.get(1).map(String::as_str) {
        Some("measure") if a.has("--tpcc") => measure_tpcc(&a),
        Some("measure") => measure(&a),
        Some("schedule") => schedule(&a),
        Some("switches") => switches(&a),
        #[cfg(feature = "thresholds")]
        Some("heat") => heat(&a),
        #[cfg(feature = "thresholds")]
        Some("contended") => contended(&a),
        Some("mixed") => mixed::run(
            a.text("--protocols").unwrap_or(Protocol::DEFAULT.name()),
            a.has("--apart"),
            a.number("--transactions", 1000.0) as u64,
        ),
        _ => {
            eprintln!("bench-choice measure [--from N] [--to N] [--seconds S] [--rounds N] [--unseen]");
            eprintln!("bench-choice measure --tpcc [--from SEED] [--to SEED] [--seconds S]");
            eprintln!("bench-choice schedule [--seed N] [--phases N] [--intervals N] [--interval S] [--kind tpcc|varied|half|undeclared|table1|figure13|figure14, each but the first also ..._home] [--explain] [--model FILE] [--wrong FILE] [--modes M,...]");
            eprintln!("bench-choice switches --pairs OLD-NEW,... --long S,... [--stop-all] [--seed N] [--seconds S] [--yields N]");
            eprintln!("bench-choice mixed [--protocols P+...] [--apart] [--transactions N]");
            #[cfg(feature = "thresholds")]
            eprintln!("bench-choice heat --modes PROTOCOL[:THRESHOLD],... [--seed N] [--rounds N] [--threads N] [--rows N] [--records N] [--phases N] [--buckets N] [--bucket S] [--yields N]");
            #[cfg(feature = "thresholds")]
            eprintln!("bench-choice contended --modes PROTOCOL[:THRESHOLD][/POLICY],... --writes N,... [--seed N] [--rounds N] [--threads N] [--records N] [--accesses N] [--seconds S] [--yields N]");
            std::process::exit(2);
        }
    }
}
