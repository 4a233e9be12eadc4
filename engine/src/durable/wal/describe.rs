//! Records in words, for pg_walinspect and messages.

use super::{Commit, Kind, Op, Record};
use crate::durable::standby;
use std::ffi::CStr;
use std::fmt::Write;

/// The most tables and items that a description names.
const NAMED: usize = 8;

/// The name of a record by its info byte, as PostgreSQL's callback `rm_identify` wants it.
pub fn identify(info: u8) -> Option<&'static CStr> {
    Op::of_info(info).ok().map(Op::name)
}

/// The content of a record in words, as `rm_desc` wants it. A record that cannot be read is
/// described as such.
pub fn describe(info: u8, data: &[u8]) -> String {
    let record = Op::of_info(info).and_then(|op| Record::parse(op, data));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = match record {
        Ok(Record::Commit(commit)) => put_commit(&mut text, &commit),
        Ok(Record::Reserve { storage, upto }) => write!(text, "rel {storage}; record numbers below {upto}"),
        Ok(Record::Image { kind, entries }) => write!(text, "{}; {entries} entries", kind.name()),
        Ok(Record::Round(r)) => write!(
            text,
            "{}; redo {:X}/{:X}; clock {}; token {}; time {}",
            r.kind.name(),
            r.redo >> 32,
            r.redo as u32,
            r.clock,
            r.token,
            r.time
        ),
        Ok(Record::Stable(s)) => {
            let written =
                write!(text, "csn {}; horizon {}; life {:X}/{:X}", s.csn, s.horizon, s.life >> 32, s.life as u32);
            s.open()
                .enumerate()
                .try_fold((), |(), (i, word)| {
                    let (xid, what) = standby::read_word(word);
                    write!(text, "{} {}:{}{what}", if i == 0 { "; prepared" } else { "," }, xid >> 32, xid as u32)
                })
                .and(written)
        }
        Ok(Record::Change(change)) => change.put(&mut text),
        Err(why) => write!(text, "cannot be read: {why}"),
    };
    text
}

fn put_commit(text: &mut String, commit: &Commit) -> std::fmt::Result {
    write!(text, "csn {}; token {}", commit.head.csn, commit.head.token)?;
    if let Some(xid) = commit.head.xid {
        write!(text, "; xid {}:{}", xid >> 32, xid as u32)?;
    }
    write!(text, "; rels")?;
    for storage in commit.tables().take(NAMED) {
        write!(text, " {storage}")?;
    }
    let rest = commit.tables().len().saturating_sub(NAMED);
    if rest > 0 {
        write!(text, " and {rest} more")?;
    }
    write!(text, "; {} items:", commit.nitems)?;
    for item in commit.items().take(NAMED) {
        let entry = item.entry;
        write!(text, " {}", entry.kind.name())?;
        if entry.kind != Kind::Hints {
            write!(text, " {}", entry.record)?;
        }
        match entry.fragment {
            Some(f) => {
                write!(text, " of table {} ({} bytes at {} of {})", item.table, entry.payload.len(), f.at, f.total)?
            }
            None => write!(text, " of table {} ({} bytes)", item.table, entry.payload.len())?,
        }
        text.push(',');
    }
    text.pop();
    if commit.nitems as usize > NAMED {
        write!(text, ", ...")?;
    }
    Ok(())
}
