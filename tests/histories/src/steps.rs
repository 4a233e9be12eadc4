//! The statements of the random transactions, and what each of them tells the history.

use crate::wire::{Answer, Session};
use mixedcc_engine::checker::{Event, Key, Payload, Predicate, Seen, Write, WriteKind};

pub const TABLES: [&str; 2] = ["a", "b"];
/// The table that is mixedcc's, whose interface some steps use.
pub const OURS: u32 = 0;

const LOCKS: [&str; 4] = ["UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE"];
const READ_ONLY: &str = "SERIALIZABLE READ ONLY";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    Serializable,
    ReadOnly,
    Deferrable,
    ReadCommitted,
}

impl Level {
    pub const ALL: [Self; 4] = [Self::Serializable, Self::ReadOnly, Self::Deferrable, Self::ReadCommitted];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Serializable => "serializable",
            Self::ReadOnly => "serializable read only",
            Self::Deferrable => "serializable read only deferrable",
            Self::ReadCommitted => "read committed",
        }
    }

    pub const fn reads_only(self) -> bool {
        matches!(self, Self::ReadOnly | Self::Deferrable)
    }
}

/// A statement of a transaction. Keys have the number of their table.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Begin(Level),
    Read(Key),
    /// With the kind of lock.
    Lock(Key, usize),
    Scan(Key, i64),
    ScanAll(u32),
    Update(Key, u64),
    Upsert(Key, u64),
    Insert(Key, u64),
    Delete(Key),
    /// By mixedcc's interface. What `Get` has read is what `Set` and `Remove` change.
    Get(Key),
    Set(Key, u64),
    Remove(Key),
    /// The server sleeps for a millisecond.
    Pause,
    Savepoint,
    RollbackTo,
    Release,
    Commit,
    Rollback,
}

/// Prepares all statements in a session.
pub fn prepare(session: &mut Session) -> std::io::Result<Option<String>> {
    for level in Level::ALL {
        let sql = match level {
            Level::Serializable => "SERIALIZABLE".to_owned(),
            Level::ReadOnly => READ_ONLY.to_owned(),
            Level::Deferrable => format!("{READ_ONLY} DEFERRABLE"),
            Level::ReadCommitted => "READ COMMITTED".to_owned(),
        };
        session.prepare(&begin(level), &format!("BEGIN ISOLATION LEVEL {sql}"));
    }
    for (name, sql) in [
        ("pause", "SELECT pg_sleep(0.001)"),
        ("savepoint", "SAVEPOINT s"),
        ("rollback to", "ROLLBACK TO SAVEPOINT s"),
        ("release", "RELEASE SAVEPOINT s"),
        ("commit", "COMMIT"),
        ("rollback", "ROLLBACK"),
        ("get a", "SELECT (mixedcc.get(NULL::a, $1::int)).l"),
        ("set a", "SELECT mixedcc.set(NULL::a, 'l', $1::bigint[], $2::int)"),
        ("remove a", "SELECT mixedcc.remove(NULL::a, $1::int)"),
    ] {
        session.prepare(name, sql);
    }
    for table in TABLES {
        for lock in LOCKS {
            session.prepare(&format!("{lock} {table}"), &format!("SELECT l FROM {table} WHERE k = $1 FOR {lock}"));
        }
        let insert = format!("INSERT INTO {table} AS t VALUES ($1::int, ARRAY[$2::bigint]) ON CONFLICT");
        for (name, sql) in [
            ("read", format!("SELECT l FROM {table} WHERE k = $1")),
            ("scan", format!("SELECT k, l FROM {table} WHERE k BETWEEN $1 AND $2")),
            ("all", format!("SELECT k, l FROM {table}")),
            ("update", format!("UPDATE {table} SET l = l || $2::bigint WHERE k = $1 RETURNING l")),
            ("upsert", format!("{insert} (k) DO UPDATE SET l = t.l || $2::bigint RETURNING l")),
            ("insert", format!("{insert} DO NOTHING RETURNING k")),
            ("delete", format!("DELETE FROM {table} WHERE k = $1 RETURNING l")),
        ] {
            session.prepare(&format!("{name} {table}"), &sql);
        }
    }
    let (_, failure) = session.run()?;
    Ok(failure.map(|failure| failure.message))
}

fn begin(level: Level) -> String {
    format!("begin {}", level.name())
}

/// The ids of an array's text: `{1,2}`.
fn list(text: &[u8]) -> Vec<u64> {
    let mut ids = Vec::new();
    let mut id = None;
    for &byte in text {
        if byte.is_ascii_digit() {
            id = Some(id.unwrap_or(0) * 10 + u64::from(byte - b'0'));
        } else {
            ids.extend(id.take());
        }
    }
    ids
}

fn integer(text: &[u8]) -> i64 {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(i64::MIN)
}

fn read(key: Key, seen: Seen, statement: u32) -> Event {
    Event::Read { key, seen, statement, locked: false }
}

fn write(key: Key, kind: WriteKind, payload: Payload, saw: Option<Seen>) -> Event {
    Event::Write(Write { key, kind, payload, saw, undone: false, at: None })
}

/// A change by the interface is made if there is the row that was read before, and only then.
fn accepted(row: Option<Vec<Option<&[u8]>>>, seen: &Option<Vec<u64>>) -> Result<(), String> {
    let done = row.and_then(|row| row.first().copied().flatten()) == Some(b"t");
    if done == seen.is_some() {
        Ok(())
    } else {
        Err(format!("a change by the interface says {done}, and the row was {seen:?}"))
    }
}

impl Step {
    /// May it insert or delete a row?
    pub const fn begins_or_ends_rows(self) -> bool {
        matches!(self, Self::Upsert(..) | Self::Insert(..) | Self::Delete(_) | Self::Remove(_))
    }

    /// Adds it to what the session sends. `seen`: what `Get` has read before.
    pub fn add(self, session: &mut Session, seen: &[u64]) {
        let name = |what: &str, table: u32| format!("{what} {}", TABLES[table as usize]);
        let mut keyed = |what: &str, key: Key| session.add(&name(what, key.table), &[&key.key.to_string()]);
        match self {
            Self::Begin(level) => session.add(&begin(level), &[]),
            Self::Read(key) => keyed("read", key),
            Self::Lock(key, kind) => keyed(LOCKS[kind], key),
            Self::Scan(low, high) => {
                session.add(&name("scan", low.table), &[&low.key.to_string(), &high.to_string()]);
            }
            Self::ScanAll(table) => session.add(&name("all", table), &[]),
            Self::Update(key, id) | Self::Upsert(key, id) | Self::Insert(key, id) => {
                let what = match self {
                    Self::Update(..) => "update",
                    Self::Upsert(..) => "upsert",
                    _ => "insert",
                };
                session.add(&name(what, key.table), &[&key.key.to_string(), &id.to_string()]);
            }
            Self::Delete(key) => keyed("delete", key),
            Self::Get(key) => keyed("get", key),
            Self::Set(key, id) => {
                let ids: Vec<_> = seen.iter().chain([&id]).map(u64::to_string).collect();
                session.add("set a", &[&format!("{{{}}}", ids.join(",")), &key.key.to_string()]);
            }
            Self::Remove(key) => keyed("remove", key),
            Self::Pause => session.add("pause", &[]),
            Self::Savepoint => session.add("savepoint", &[]),
            Self::RollbackTo => session.add("rollback to", &[]),
            Self::Release => session.add("release", &[]),
            Self::Commit => session.add("commit", &[]),
            Self::Rollback => session.add("rollback", &[]),
        }
    }

    /// What the answer says: an event, if any, or a contradiction. `seen`: what `Get` has read
    /// before, and reads now.
    pub fn event(
        self,
        session: &Session,
        answer: &Answer,
        level: Level,
        statement: u32,
        seen: &mut Option<Vec<u64>>,
    ) -> Result<Option<Event>, String> {
        let mut rows = session.rows(answer);
        let mut first = || rows.next().and_then(|row| row.first().copied().flatten().map(list));
        let of_read = |key, found: Option<Vec<u64>>| read(key, found.map_or(Seen::Absent, Seen::List), statement);
        // At READ COMMITTED the row may have come after the snapshot, or gone during a wait.
        let absent = |key| (level != Level::ReadCommitted).then(|| read(key, Seen::Absent, statement));
        Ok(match self {
            Self::Read(key) => Some(of_read(key, first())),
            Self::Get(key) => {
                seen.clone_from(&first());
                // What is changed after that counts, as of a statement with RETURNING.
                Some(of_read(key, seen.clone()))
            }
            Self::Lock(key, _) => first().map(|list| {
                let seen = Seen::List(list);
                Event::Read { key, seen, statement, locked: true }
            }),
            Self::Scan(Key { table, .. }, _) | Self::ScanAll(table) => {
                let predicate = match self {
                    Self::Scan(low, high) => Predicate::range(table, low.key, high),
                    _ => Predicate::table(table),
                };
                let of_row = |row: Vec<Option<&[u8]>>| match row[..] {
                    [Some(key), Some(text)] => Ok((Key::new(table, integer(key)), Seen::List(list(text)))),
                    _ => Err(format!("a row of {} has NULL", TABLES[table as usize])),
                };
                let rows = rows.map(of_row).collect::<Result<_, _>>()?;
                Some(Event::Scan { predicate, rows, statement })
            }
            Self::Update(key, id) => match first() {
                Some(list) => Some(write(key, WriteKind::Update, Payload::Append(id), Some(Seen::List(list)))),
                None => absent(key),
            },
            Self::Upsert(key, id) => match first() {
                Some(list) if list.len() == 1 => Some(write(key, WriteKind::Insert, Payload::Append(id), None)),
                Some(list) => Some(write(key, WriteKind::Update, Payload::Append(id), Some(Seen::List(list)))),
                None => return Err(format!("an upsert of {key:?} returns nothing")),
            },
            Self::Insert(key, id) => rows.next().map(|_| write(key, WriteKind::Insert, Payload::Append(id), None)),
            Self::Delete(key) => match first() {
                Some(list) => Some(write(key, WriteKind::Delete, Payload::Opaque, Some(Seen::List(list)))),
                None => absent(key),
            },
            Self::Set(key, id) => {
                accepted(rows.next(), seen)?;
                let saw = seen.iter().flatten().copied().chain([id]).collect();
                Some(write(key, WriteKind::Update, Payload::Append(id), Some(Seen::List(saw))))
            }
            Self::Remove(key) => {
                accepted(rows.next(), seen)?;
                let saw = seen.clone().map(Seen::List);
                saw.map(|saw| write(key, WriteKind::Delete, Payload::Opaque, Some(saw)))
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::list;

    #[test]
    fn arrays_are_read() {
        assert_eq!(list(b"{}"), Vec::<u64>::new());
        assert_eq!(list(b"{1,20,300}"), [1, 20, 300]);
    }
}
