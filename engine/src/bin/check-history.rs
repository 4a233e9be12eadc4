//! Judges histories in JSON lines files: `check-history [options] FILE...`. Exit code 0: accepted,
//! 1: anomalies, 2: bad usage or bad input.

use mixedcc_engine::checker::{check, read_lines, History, Options};
use std::fs::File;
use std::io::{stdin, BufReader};
use std::process::ExitCode;

const USAGE: &str = "usage: check-history [--strict | --real-time | --csn | --no-session | --no-prefix]... FILE...
Judges the histories in FILE (JSON lines; - is the standard input), all files as one history.
  --real-time   also require that later transactions follow earlier ones (begin, commit)
  --csn         also require that the CSN order is a serial order
  --strict      both
  --no-session  do not require a session's transactions to follow one another
  --no-prefix   snapshots below serializable need not be prefixes of the serial order, but closed
                under dependencies
  --limit N     list at most N anomalies of each kind (20)";

fn run() -> Result<bool, String> {
    let mut options = Options::default();
    let mut files = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--strict" => (options.real_time, options.csn_order) = (true, true),
            "--real-time" => options.real_time = true,
            "--csn" => options.csn_order = true,
            "--no-session" => options.session = false,
            "--no-prefix" => options.prefixes = false,
            "--limit" => {
                let limit = arguments.next().and_then(|text| text.parse().ok());
                options.limit = limit.ok_or("--limit needs a number")?;
            }
            flag if flag.starts_with("--") => return Err(USAGE.to_owned()),
            _ => files.push(argument),
        }
    }
    if files.is_empty() {
        return Err(USAGE.to_owned());
    }
    let mut history = History::default();
    for file in files {
        let read = if file == "-" {
            read_lines(&mut history, stdin().lock())
        } else {
            let open = File::open(&file).map_err(|error| format!("{file}: {error}"))?;
            read_lines(&mut history, BufReader::new(open))
        };
        read.map_err(|error| format!("{file}: {error}"))?;
    }
    let verdict = check(&history, &options);
    print!("{verdict}");
    Ok(verdict.accepts())
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
