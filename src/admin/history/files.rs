//! The files of the history: one a day, named after the day's number since 2000-01-01.

use super::{Interval, FORMAT};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// In the data directory, which is the working directory of each process of the server.
const DIRECTORY: &str = "mixedcc_history";
const DAY_US: u64 = 86_400_000_000;
/// A day's file that has this size gets no more lines.
const MOST_BYTES: u64 = 256 << 20;
/// No line is longer: one of [`super::MOST_PARTITIONS`] partitions takes some 80 kB.
const LONGEST_LINE: u64 = 1 << 20;

fn path(directory: &Path, day: u64) -> PathBuf {
    directory.join(format!("day-{day}.jsonl"))
}

/// The days that have a file, in order. Other files are not looked at.
fn days(directory: &Path) -> io::Result<Vec<u64>> {
    let mut days = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let number = |n: &str| n.strip_prefix("day-")?.strip_suffix(".jsonl")?.parse::<u32>().ok();
        days.extend(name.to_str().and_then(number).map(u64::from));
    }
    days.sort_unstable();
    Ok(days)
}

/// Adds a line, and deletes the files whose last line is older than `keep` microseconds.
pub fn append(interval: &Interval, keep: u64) -> io::Result<()> {
    append_in(Path::new(DIRECTORY), interval, keep)
}

fn append_in(directory: &Path, interval: &Interval, keep: u64) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let mut line = serde_json::to_vec(interval)?;
    line.insert(0, b'\n'); // ends what a crash has left of the line before
    line.push(b'\n');
    let today = interval.end / DAY_US;
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(path(directory, today))?;
    if file.metadata()?.len() >= MOST_BYTES {
        return Err(io::Error::other(format!("the history of this day has {} MB", MOST_BYTES >> 20)));
    }
    file.write_all(&line)?;
    for day in days(directory)? {
        if (day + 1) * DAY_US + keep < interval.end {
            fs::remove_file(path(directory, day))?;
        }
    }
    Ok(())
}

/// The intervals that end after `since` and begin before `until`, in order.
pub fn read(since: u64, until: u64) -> io::Result<Vec<Interval>> {
    read_in(Path::new(DIRECTORY), since, until)
}

fn read_in(directory: &Path, since: u64, until: u64) -> io::Result<Vec<Interval>> {
    let days = match days(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        days => days?,
    };
    let mut found = Vec::new();
    // A line is in the file of its end.
    for day in days.into_iter().filter(|d| (d + 1) * DAY_US > since && d * DAY_US <= until + DAY_US) {
        let file = match File::open(path(directory, day)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // deleted meanwhile
            file => file?,
        };
        let mut lines = BufReader::new(file);
        loop {
            let mut line = Vec::new();
            if io::Read::take(&mut lines, LONGEST_LINE).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            let Ok(interval) = serde_json::from_slice::<Interval>(&line) else { continue };
            if interval.format > FORMAT {
                continue;
            }
            if interval.end > since && interval.end - interval.length.min(interval.end) < until {
                found.push(interval);
            }
        }
    }
    found.sort_by_key(|i| i.end);
    Ok(found)
}

#[cfg(test)]
mod unit {
    use super::*;

    fn at(end: u64) -> Interval {
        Interval { end, length: 10, ..Interval::default() }
    }

    fn ends(found: Vec<Interval>) -> Vec<u64> {
        found.into_iter().map(|i| i.end).collect()
    }

    #[test]
    fn lines_are_found_by_their_time_and_go_when_they_are_old() {
        let directory = std::env::temp_dir().join(format!("mixedcc-history-{}", std::process::id()));
        let all = || read_in(&directory, 0, u64::MAX - DAY_US).map(ends);
        assert_eq!(all().unwrap(), [0u64; 0]);
        for end in [DAY_US, DAY_US + 100, 3 * DAY_US] {
            append_in(&directory, &at(end), 10 * DAY_US).unwrap();
        }
        assert_eq!(all().unwrap(), [DAY_US, DAY_US + 100, 3 * DAY_US]);
        assert_eq!(ends(read_in(&directory, DAY_US, 2 * DAY_US).unwrap()), [DAY_US + 100]);
        assert_eq!(ends(read_in(&directory, 0, DAY_US + 90).unwrap()), [DAY_US]);
        // What a crash leaves: half a line, which costs no other.
        let mut file = OpenOptions::new().append(true).open(path(&directory, 3)).unwrap();
        file.write_all(b"\n{\"end\": 12").unwrap();
        append_in(&directory, &at(3 * DAY_US + 1), 10 * DAY_US).unwrap();
        assert_eq!(all().unwrap().len(), 4);
        // A line of the first version, and one of a library that is newer.
        let line = serde_json::to_string(&at(3 * DAY_US + 2)).unwrap();
        let old = line.replace("\"format\":0,", "");
        let new = line.replace("\"format\":0", &format!("\"format\":{}", FORMAT + 1));
        assert!(old.len() < line.len() && new != line);
        file.write_all(format!("\n{old}\n{new}\n").as_bytes()).unwrap();
        assert_eq!(all().unwrap()[4..], [3 * DAY_US + 2]);
        append_in(&directory, &at(5 * DAY_US), DAY_US).unwrap();
        assert_eq!(all().unwrap(), [3 * DAY_US, 3 * DAY_US + 1, 3 * DAY_US + 2, 5 * DAY_US]);
        fs::remove_dir_all(&directory).unwrap();
    }
}
