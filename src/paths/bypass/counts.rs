//! How many statements took the bypass, and why others did not.

use super::Reason;
use crate::state::counters::{add, total};
use pgrx::pg_sys::CmdType;

/// Statements that took the bypass have the first counters, the others those behind, by reason.
const KINDS: [&str; 4] = ["SELECT", "INSERT", "UPDATE", "DELETE"];

/// A statement takes the bypass.
#[inline]
pub fn taken(op: CmdType::Type) {
    add(kind(op));
}

fn kind(op: CmdType::Type) -> usize {
    match op {
        CmdType::CMD_INSERT => 1,
        CmdType::CMD_UPDATE => 2,
        CmdType::CMD_DELETE => 3,
        _ => 0,
    }
}

/// A statement on a table of ours goes to the executor.
pub fn refused(why: Reason) {
    add(KINDS.len() + why as usize);
}

/// The counters since the last reset: statement or null, reason or null, number.
pub fn all() -> Vec<(Option<&'static str>, Option<&'static str>, i64)> {
    let kinds = KINDS.iter().enumerate().map(|(n, k)| (Some(*k), None, total(n) as i64));
    let reasons = Reason::ALL.iter().map(|r| (None, Some(r.name()), total(KINDS.len() + *r as usize) as i64));
    kinds.chain(reasons).collect()
}
