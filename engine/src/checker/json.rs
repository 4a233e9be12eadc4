//! The text form: one JSON object per line. README.md documents it.

use super::history::{Event, History, Key, Level, Payload, Predicate, Seen, Status, Transaction, Write, WriteKind};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, BufRead};

#[derive(Debug)]
pub enum ParseError {
    Io(io::Error),
    /// The line number, from 1, and the error in it.
    Line(usize, String),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::Line(line, text) => write!(f, "line {line}: {text}"),
        }
    }
}

impl std::error::Error for ParseError {}

/// The kind of a line.
#[derive(Deserialize)]
struct Probe {
    initial: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct InitialLine {
    initial: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    keys: Vec<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    low: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    high: Option<i64>,
    #[serde(default)]
    value: i64,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TransactionLine {
    id: u64,
    status: String,
    level: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    csn: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    begin: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ending: Option<u64>,
    #[serde(default, skip_serializing_if = "is_false")]
    last: bool,
    events: Vec<EventLine>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum ListText {
    Ids(Vec<u64>),
    Text(String),
}

#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct SeenLine {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    t: String,
    k: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    list: Option<ListText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    txn: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nth: Option<u32>,
    #[serde(default, skip_serializing_if = "is_false")]
    absent: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    initial: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
enum EventLine {
    Read {
        #[serde(default, skip_serializing_if = "String::is_empty")]
        t: String,
        k: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        list: Option<ListText>,
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<i64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        count: Option<i64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        txn: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        nth: Option<u32>,
        #[serde(default, skip_serializing_if = "is_false")]
        absent: bool,
        #[serde(default, skip_serializing_if = "is_false")]
        initial: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        stmt: Option<u32>,
        #[serde(default, skip_serializing_if = "is_false")]
        locked: bool,
    },
    Insert(WriteLine),
    Update(WriteLine),
    Delete(WriteLine),
    Scan {
        #[serde(default, skip_serializing_if = "String::is_empty")]
        t: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        low: Option<i64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        high: Option<i64>,
        rows: Vec<SeenLine>,
        #[serde(skip_serializing_if = "Option::is_none")]
        stmt: Option<u32>,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WriteLine {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    t: String,
    k: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    append: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<i64>,
    /// The version that RETURNING, or a locking read, showed.
    #[serde(skip_serializing_if = "Option::is_none")]
    saw: Option<SawLine>,
    #[serde(default, skip_serializing_if = "is_false")]
    undone: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum SawLine {
    List(ListText),
    Value { value: i64 },
    Count { count: i64 },
    Version { txn: u64, nth: Option<u32> },
    Absent { absent: bool },
    Initial { initial: bool },
}

fn list_of(text: ListText) -> Result<Vec<u64>, String> {
    match text {
        ListText::Ids(ids) => Ok(ids),
        ListText::Text(text) => {
            let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
            parts.map(|part| part.parse().map_err(|_| format!("{part:?} is not the id of an append"))).collect()
        }
    }
}

fn seen_of(line: SeenLine) -> Result<Seen, String> {
    let mut all = Vec::new();
    if let Some(list) = line.list {
        all.push(Seen::List(list_of(list)?));
    }
    all.extend(line.value.map(Seen::Value));
    all.extend(line.count.map(Seen::Count));
    all.extend(line.txn.map(|txn| Seen::Version { txn, nth: line.nth }));
    all.extend(line.absent.then_some(Seen::Absent));
    all.extend(line.initial.then_some(Seen::Initial));
    match all.pop() {
        Some(seen) if all.is_empty() => Ok(seen),
        _ => Err("exactly one of list, value, count, txn, absent, initial is needed".to_owned()),
    }
}

fn write_of(history: &mut History, line: WriteLine, kind: WriteKind) -> Result<Event, String> {
    let payload = match (line.append, line.value, line.count) {
        (None, None, None) => Payload::Opaque,
        (Some(id), None, None) => Payload::Append(id),
        (None, Some(value), None) => Payload::Value(value),
        (None, None, Some(count)) => Payload::Count(count),
        _ => return Err("at most one of append, value, count".to_owned()),
    };
    let saw = match line.saw {
        None => None,
        Some(SawLine::List(list)) => Some(Seen::List(list_of(list)?)),
        Some(SawLine::Value { value }) => Some(Seen::Value(value)),
        Some(SawLine::Count { count }) => Some(Seen::Count(count)),
        Some(SawLine::Version { txn, nth }) => Some(Seen::Version { txn, nth }),
        Some(SawLine::Absent { .. }) => Some(Seen::Absent),
        Some(SawLine::Initial { .. }) => Some(Seen::Initial),
    };
    let key = Key::new(history.table(&line.t), line.k);
    Ok(Event::Write(Write { key, kind, payload, saw, undone: line.undone, at: line.at }))
}

fn event_of(history: &mut History, line: EventLine, number: u32) -> Result<Event, String> {
    match line {
        EventLine::Read { t, k, list, value, count, txn, nth, absent, initial, stmt, locked } => {
            let key = Key::new(history.table(&t), k);
            let line = SeenLine { t, k, list, value, count, txn, nth, absent, initial };
            let seen = seen_of(line)?;
            Ok(Event::Read { key, seen, statement: stmt.unwrap_or(number), locked })
        }
        EventLine::Insert(line) => write_of(history, line, WriteKind::Insert),
        EventLine::Update(line) => write_of(history, line, WriteKind::Update),
        EventLine::Delete(line) => write_of(history, line, WriteKind::Delete),
        EventLine::Scan { t, low, high, rows, stmt } => {
            let table = history.table(&t);
            let rows = rows.into_iter().map(|row| Ok((Key::new(table, row.k), seen_of(row)?)));
            let rows = rows.collect::<Result<Vec<_>, String>>()?;
            let predicate = Predicate { table, low, high, filter: None };
            Ok(Event::Scan { predicate, rows, statement: stmt.unwrap_or(number) })
        }
    }
}

fn transaction_of(history: &mut History, line: TransactionLine) -> Result<Transaction, String> {
    let level = match line.level.as_str() {
        "serializable" => Level::Serializable,
        "repeatable read" | "snapshot" => Level::Snapshot,
        "read committed" => Level::ReadCommitted,
        "serializable read only" => Level::SerializableReadOnly,
        other => return Err(format!("unknown level {other:?}")),
    };
    let status = match line.status.as_str() {
        "committed" => Status::Committed,
        "aborted" => Status::Aborted,
        "unknown" => Status::Unknown,
        other => return Err(format!("unknown status {other:?}")),
    };
    let events = line.events.into_iter().enumerate();
    // Without a number each event is a statement of its own.
    let events = events.map(|(number, event)| event_of(history, event, 1_000_000 + number as u32));
    Ok(Transaction {
        id: line.id,
        client: line.client,
        status,
        level,
        csn: line.csn,
        begin: line.begin,
        commit: line.commit,
        ending: line.ending,
        last: line.last,
        events: events.collect::<Result<_, _>>()?,
    })
}

/// Adds the transactions of a JSON lines text to `history`. Skips empty lines and lines that begin
/// with `#`.
pub fn read_lines(history: &mut History, input: impl BufRead) -> Result<(), ParseError> {
    for (number, text) in input.lines().enumerate() {
        let text = text.map_err(ParseError::Io)?;
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let fail = |message: String| ParseError::Line(number + 1, message);
        let is_initial = text.contains("\"initial\"")
            && serde_json::from_str::<Probe>(text).is_ok_and(|probe| probe.initial.is_some());
        if is_initial {
            let line = serde_json::from_str(text).map_err(|error| fail(error.to_string()))?;
            add_initial(history, &line).map_err(fail)?;
        } else {
            let line = serde_json::from_str(text).map_err(|error| fail(error.to_string()))?;
            let transaction = transaction_of(history, line).map_err(fail)?;
            history.transactions.push(transaction);
        }
    }
    Ok(())
}

fn add_initial(history: &mut History, line: &InitialLine) -> Result<(), String> {
    let table = history.table(&line.initial);
    let range = match (line.low, line.high) {
        (Some(low), Some(high)) if high.saturating_sub(low) < 100_000_000 => low..=high,
        (None, None) => {
            #[allow(clippy::reversed_empty_ranges)]
            let nothing = 1..=0;
            nothing
        }
        _ => return Err("low and high belong together, at most 100 million apart".to_owned()),
    };
    for key in line.keys.iter().copied().chain(range) {
        history.initial.insert(Key::new(table, key), line.value);
    }
    Ok(())
}

fn lines_of_seen(table: &str, key: Key, seen: &Seen) -> SeenLine {
    let mut line = SeenLine { t: table.to_owned(), k: key.key, ..SeenLine::default() };
    match seen {
        Seen::Absent => line.absent = true,
        Seen::Initial => line.initial = true,
        Seen::Version { txn, nth } => (line.txn, line.nth) = (Some(*txn), *nth),
        Seen::Value(value) => line.value = Some(*value),
        Seen::Count(count) => line.count = Some(*count),
        Seen::List(list) => line.list = Some(ListText::Ids(list.clone())),
    }
    line
}

fn line_of_write(table: &str, write: &Write) -> EventLine {
    let (mut append, mut value, mut count) = (None, None, None);
    match write.payload {
        Payload::Opaque => {}
        Payload::Append(id) => append = Some(id),
        Payload::Value(written) => value = Some(written),
        Payload::Count(written) => count = Some(written),
    }
    let saw = write.saw.as_ref().map(|saw| match saw {
        Seen::Absent => SawLine::Absent { absent: true },
        Seen::Initial => SawLine::Initial { initial: true },
        Seen::Version { txn, nth } => SawLine::Version { txn: *txn, nth: *nth },
        Seen::Value(value) => SawLine::Value { value: *value },
        Seen::Count(count) => SawLine::Count { count: *count },
        Seen::List(list) => SawLine::List(ListText::Ids(list.clone())),
    });
    let (t, k, undone, at) = (table.to_owned(), write.key.key, write.undone, write.at);
    let line = WriteLine { t, k, append, value, count, saw, undone, at };
    match write.kind {
        WriteKind::Insert => EventLine::Insert(line),
        WriteKind::Update => EventLine::Update(line),
        WriteKind::Delete => EventLine::Delete(line),
    }
}

fn line_of_event(history: &History, event: &Event) -> io::Result<EventLine> {
    let name = |table: u32| history.tables.get(table as usize).cloned().unwrap_or_default();
    Ok(match event {
        Event::Read { key, seen, statement, locked } => {
            let line = lines_of_seen(&name(key.table), *key, seen);
            let SeenLine { t, k, list, value, count, txn, nth, absent, initial } = line;
            let (stmt, locked) = (Some(*statement), *locked);
            EventLine::Read { t, k, list, value, count, txn, nth, absent, initial, stmt, locked }
        }
        Event::Write(write) => line_of_write(&name(write.key.table), write),
        Event::Scan { predicate, rows, statement } => {
            if predicate.filter.is_some() {
                let text = "a predicate with a filter function has no text form";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            let rows = rows.iter().map(|(key, seen)| lines_of_seen("", *key, seen)).collect();
            let (low, high, stmt) = (predicate.low, predicate.high, Some(*statement));
            EventLine::Scan { t: name(predicate.table), low, high, rows, stmt }
        }
    })
}

/// Writes a history as JSON lines. Tables without a name in `history.tables` become the nameless
/// table, so name them if there is more than one.
pub fn write_lines(history: &History, output: &mut impl io::Write) -> io::Result<()> {
    let mut initial: Vec<_> = history.initial.iter().collect();
    initial.sort_unstable();
    for (key, &value) in initial {
        let table = history.tables.get(key.table as usize).cloned().unwrap_or_default();
        let line = InitialLine { initial: table, keys: vec![key.key], low: None, high: None, value };
        writeln!(output, "{}", serde_json::to_string(&line)?)?;
    }
    for txn in &history.transactions {
        let events = txn.events.iter().map(|event| line_of_event(history, event));
        let status = match txn.status {
            Status::Committed => "committed",
            Status::Aborted => "aborted",
            Status::Unknown => "unknown",
        };
        let line = TransactionLine {
            id: txn.id,
            status: status.to_owned(),
            level: txn.level.to_string(),
            client: txn.client,
            csn: txn.csn,
            begin: txn.begin,
            commit: txn.commit,
            ending: txn.ending,
            last: txn.last,
            events: events.collect::<io::Result<_>>()?,
        };
        writeln!(output, "{}", serde_json::to_string(&line)?)?;
    }
    Ok(())
}
