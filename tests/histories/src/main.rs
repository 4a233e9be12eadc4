//! Histories of many transactions over a mixedcc table `a` and a heap table `b`, each
//! `(k int PRIMARY KEY, l bigint[])`: sessions run random transactions, and the checker of the
//! engine judges what they saw. `tests/lib/mixed.py` makes the tables, and calls this.
//!
//! It prints a line of JSON when the load has ended, so that the next one may begin: what each
//! client has counted, problems, seconds. Then it judges. It prints a second line, about the
//! overlap, and the verdict. Exit code 0: accepted, 1: anomalies, 2: bad usage or no load.

mod client;
mod overlap;
mod random;
mod steps;
mod wire;

use client::{Client, Run};
use mixedcc_engine::checker::{check, read_lines, write_lines, History, Level, Options, Transaction};
use random::Random;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};
use wire::{Server, Session};

const USAGE: &str = "usage: run-histories --database NAME --session OPTIONS... [option...]
  --host DIR --port N --user NAME   the server (else PGHOST, PGPORT, PGUSER)
  --session OPTIONS  a session with these settings; once for each
  --number N         transactions over both tables to commit (10000)
  --seconds N        the longest time for that (60)
  --keys N           of each table, at most 60 (12)
  --levels A,B,C,D   weights: serializable, read only, deferrable, read committed (32,8,1,2)
  --cut N            of a thousand statements, those after which the client waits for the answer (40)
  --pauses N         of a thousand statements, those after which the server sleeps a millisecond (60)
  --cancels N        milliseconds between cancels of a random session (0: none)
  --switches N       milliseconds between changes of a random partition's protocol (0: none)
  --protocols A,B... those that it changes to
  --partitions N     of table a (4)
  --seed N           another one gives other transactions (0)
  --keep FILE        a history with anomalies is written there, for check-history
   or: run-histories --overlap FILE...   measures the overlap of histories in files";

/// So many seconds beyond its time a run may go on, until each client has done something of each
/// kind.
const LATEST: u64 = 20;

/// What the sessions do.
pub struct Load {
    pub number: u64,
    pub seconds: u64,
    pub keys: u64,
    pub levels: [u64; 4],
    pub cut: u64,
    pub pauses: u64,
    pub cancels: u64,
    pub switches: u64,
    pub protocols: Vec<String>,
    pub partitions: u64,
    pub seed: u64,
}

struct Arguments {
    load: Load,
    server: Server,
    sessions: Vec<String>,
    keep: Option<String>,
}

fn arguments() -> Result<Arguments, String> {
    let environment = |name: &str, other: &str| std::env::var(name).unwrap_or_else(|_| other.to_owned());
    let mut server = Server {
        host: environment("PGHOST", "/tmp"),
        port: environment("PGPORT", "5432"),
        user: environment("PGUSER", "postgres"),
        database: String::new(),
    };
    let mut load = Load {
        number: 10_000,
        seconds: 60,
        keys: 12,
        levels: [32, 8, 1, 2],
        cut: 40,
        pauses: 60,
        cancels: 0,
        switches: 0,
        protocols: Vec::new(),
        partitions: 4,
        seed: 0,
    };
    let (mut sessions, mut keep) = (Vec::new(), None);
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let text = given.next().ok_or(USAGE)?;
        let number = || text.parse::<u64>().map_err(|_| format!("{name} needs a number"));
        match name.as_str() {
            "--host" => server.host = text,
            "--port" => server.port = text,
            "--user" => server.user = text,
            "--database" => server.database = text,
            "--session" => sessions.push(text),
            "--number" => load.number = number()?,
            "--seconds" => load.seconds = number()?,
            "--keys" => load.keys = number()?.clamp(1, 60),
            "--levels" => {
                let weights: Option<Vec<u64>> = text.split(',').map(|part| part.parse().ok()).collect();
                load.levels = weights.and_then(|list| list.try_into().ok()).ok_or("--levels needs four numbers")?;
            }
            "--cut" => load.cut = number()?,
            "--pauses" => load.pauses = number()?,
            "--cancels" => load.cancels = number()?,
            "--switches" => load.switches = number()?,
            "--protocols" => load.protocols = text.split(',').map(str::to_owned).collect(),
            "--partitions" => load.partitions = number()?,
            "--seed" => load.seed = number()?,
            "--keep" => keep = Some(text),
            _ => return Err(USAGE.to_owned()),
        }
    }
    if server.database.is_empty() || sessions.is_empty() || sessions.len() > 200 {
        return Err(USAGE.to_owned());
    }
    Ok(Arguments { load, server, sessions, keep })
}

/// Cancels sessions, and has partitions switched, until the run ends. Returns how many it has asked
/// for.
fn disturb(run: &Run, pids: &[i32]) -> io::Result<(u64, u64)> {
    let (mut session, mut random) = (Session::open(run.server, "")?, Random::new(run.load.seed ^ 0x5eed));
    let (mut canceled, mut switched) = (0, 0);
    let at = |every: u64| (every > 0).then(|| Instant::now() + Duration::from_millis(every));
    let (mut next_cancel, mut next_switch) = (at(run.load.cancels), at(run.load.switches));
    while !run.stopped() {
        sleep(Duration::from_millis(1));
        let now = Instant::now();
        if next_cancel.is_some_and(|next| next <= now) {
            next_cancel = at(run.load.cancels);
            let pid = pids[random.below(pids.len() as u64) as usize];
            session.ask("SELECT pg_cancel_backend($1::int)", &[&pid.to_string()])?.map_err(other)?;
            canceled += 1;
        }
        if next_switch.is_some_and(|next| next <= now) && !run.load.protocols.is_empty() {
            next_switch = at(run.load.switches);
            let protocol = &run.load.protocols[random.below(run.load.protocols.len() as u64) as usize];
            let partition = random.below(run.load.partitions).to_string();
            let sql = "SELECT mixedcc.set_protocol('a'::regclass, $1::text, $2::int)";
            session.ask(sql, &[protocol, &partition])?.map_err(other)?;
            switched += 1;
        }
    }
    Ok((canceled, switched))
}

fn other(failure: wire::Failure) -> io::Error {
    io::Error::other(format!("{}: {}", failure.code, failure.message))
}

/// The final state, as a transaction after all others.
fn last(run: &Run) -> io::Result<Transaction> {
    let mut session = Session::open(run.server, "")?;
    let mut transaction = Transaction::new(u64::MAX, Level::Snapshot).with_client(0);
    transaction.begin = Some(run.now());
    for (table, name) in (0..).zip(steps::TABLES) {
        session.prepare("", &format!("SELECT k, l FROM {name}"));
        session.add("", &[]);
        let (answers, failure) = session.run()?;
        if let Some(failure) = failure {
            return Err(other(failure));
        }
        let mut seen = None;
        for answer in &answers {
            let step = steps::Step::ScanAll(table);
            let event = step.event(&session, answer, steps::Level::Serializable, table, &mut seen);
            transaction.events.extend(event.map_err(io::Error::other)?);
        }
    }
    transaction.commit = Some(run.now());
    transaction.last = true;
    Ok(transaction)
}

fn json(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            _ if letter.is_control() => quoted.push(' '),
            _ => quoted.push(letter),
        }
    }
    quoted + "\""
}

fn json_of(counts: &BTreeMap<String, u64>) -> String {
    let parts: Vec<_> = counts.iter().map(|(name, count)| format!("{}: {count}", json(name))).collect();
    format!("{{{}}}", parts.join(", "))
}

/// Runs the load. Prints what it was.
fn load(arguments: &Arguments) -> io::Result<History> {
    let run = Run {
        load: &arguments.load,
        server: &arguments.server,
        start: Instant::now(),
        stop: AtomicBool::new(false),
        both: AtomicU64::new(0),
        enough: AtomicU64::new(0),
    };
    let opened = (1..).zip(&arguments.sessions).map(|(number, options)| Client::open(&run, number, options));
    let mut clients = opened.collect::<io::Result<Vec<_>>>()?;
    let pids: Vec<_> = clients.iter().map(Client::pid).collect();
    let end = run.now() + run.load.seconds * 1_000_000_000;
    let begun = Instant::now();
    let disturbed = scope(|threads| {
        let workers: Vec<_> = clients.iter_mut().map(|client| threads.spawn(|| client.work())).collect();
        let disturber = threads.spawn(|| disturb(&run, &pids));
        while !run.stopped() && workers.iter().any(|worker| !worker.is_finished()) {
            sleep(Duration::from_millis(5));
            let reached = run.both.load(Ordering::Relaxed) >= run.load.number || run.now() > end;
            let enough = run.enough.load(Ordering::Relaxed) == pids.len() as u64;
            if reached && enough || run.now() > end + LATEST * 1_000_000_000 {
                break;
            }
        }
        run.stop.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().map_err(|_| io::Error::other("a client has panicked"))?;
        }
        disturber.join().map_err(|_| io::Error::other("what ran beside the clients has panicked"))?
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let mut history = History::default();
    for name in steps::TABLES {
        history.table(name);
    }
    let (mut counts, mut problems) = (Vec::new(), Vec::new());
    for client in &mut clients {
        counts.push(json_of(&client.done));
        problems.extend(client.problems.iter().map(|problem| json(problem)));
        history.transactions.append(&mut client.transactions);
    }
    history.transactions.push(last(&run)?);
    println!(
        "{{\"clients\": [{}], \"problems\": [{}], \"seconds\": {seconds:.3}, \"canceled\": {}, \"switched\": {}}}",
        counts.join(", "),
        problems.join(", "),
        disturbed.0,
        disturbed.1
    );
    io::stdout().flush()?;
    Ok(history)
}

fn judge(history: &History, keep: Option<&str>) -> io::Result<bool> {
    let begun = Instant::now();
    // Heap's SSI keeps neither real-time nor session order. A snapshot of READ COMMITTED may leave
    // out a commit that waits for its flush, and have a later one that does not.
    let verdict = check(history, &Options { session: false, prefixes: false, ..Options::default() });
    let seconds = begun.elapsed().as_secs_f64();
    println!("{{\"overlap\": {}, \"judged in\": {seconds:.3}}}", overlap::measure(history).to_json());
    print!("{verdict}");
    if let (false, Some(path)) = (verdict.accepts(), keep) {
        write_lines(history, &mut BufWriter::new(File::create(path)?))?;
        println!("the history is in {path}");
    }
    Ok(verdict.accepts())
}

fn overlap_of(files: &[String]) -> Result<bool, String> {
    let mut history = History::default();
    for name in steps::TABLES {
        history.table(name);
    }
    for file in files {
        let open = File::open(file).map_err(|error| format!("{file}: {error}"))?;
        read_lines(&mut history, BufReader::new(open)).map_err(|error| format!("{file}: {error}"))?;
    }
    println!("{}", overlap::measure(&history).to_json());
    Ok(true)
}

fn run() -> Result<bool, String> {
    let given: Vec<_> = std::env::args().skip(1).collect();
    if let [first, files @ ..] = &given[..] {
        if first == "--overlap" {
            return overlap_of(files);
        }
    }
    let arguments = arguments()?;
    let history = load(&arguments).map_err(|error| error.to_string())?;
    judge(&history, arguments.keep.as_deref()).map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(text) => {
            eprintln!("{text}");
            ExitCode::from(2)
        }
    }
}
