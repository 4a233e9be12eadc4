//! SERIALIZABLE transactions that use tables of ours and of other access methods: a setting
//! decides.

use crate::pg;
use crate::pg::errors::complain_with_detail;
use crate::pg::guc::{Mixed, MIXED_SERIALIZABLE};
use crate::pg::isolation;
use crate::state::standby;
use crate::state::xact::mixed::{self, kinds};
use crate::state::xact::{self, parallel, Mode, Touched};
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

/// Is the setting not asked any more for this transaction's next use of a table of ours?
#[inline]
pub fn is_checked() -> bool {
    let touched = xact::touched();
    !pg::is_serializable() || touched.ours && (!touched.others || touched.mixed || is_passed(touched))
}

/// Has the setting let the mixture pass, and does it do so still?
fn is_passed(t: &Touched) -> bool {
    t.passed && !mixed::is_wanted()
}

/// The transaction uses a table of ours.
#[inline]
pub fn check() {
    if !is_checked() {
        // SAFETY: the list of relations is empty.
        unsafe { check_tables(true, &[]) };
    }
}

/// Notes what a SERIALIZABLE transaction uses, and refuses a mixture as the setting says. `ours`:
/// is a table of ours among it?
///
/// # Safety
/// The relations are null or open.
pub unsafe fn check_tables(ours: bool, rels: &[pg_sys::Relation]) {
    let t = xact::touched();
    // SAFETY: the relations are null or open (contract of this function).
    let (others, foreign) =
        unsafe { (rels.iter().any(|r| kinds::is_other(*r)), rels.iter().any(|r| kinds::is_foreign(*r))) };
    t.foreign |= foreign;
    if parallel::is_worker() {
        (t.ours, t.others) = (t.ours | ours, t.others | others);
        return kinds::tell_leader(t); // it acts at its commit
    }
    if t.foreign {
        xact::validate_at_commit();
    }
    if t.mixed {
        mixed::refuse_foreign(t);
        if others {
            mixed::refuse_late();
        }
    } else if (t.ours | ours) && (t.others | others) && !is_passed(t) {
        decide(); // an ERROR leaves the kinds as they were
    }
    let t = xact::touched();
    (t.ours, t.others) = (t.ours | ours, t.others | others);
}

/// A transaction comes to tables of both kinds.
fn decide() {
    if mixed::is_wanted() {
        return mixed::begin();
    }
    let ours_alone = isolation::is_ours_alone();
    let report = |level| if ours_alone { mixture_of_ours_alone() } else { mixture() }.report(level);
    match MIXED_SERIALIZABLE.get() {
        Mixed::Allow => {}
        // Two snapshots, as at REPEATABLE READ: that is what pg_dump asks for.
        _ if ours_alone && xact::mode() == Mode::SerializableReadOnly => {}
        Mixed::Warning => report(PgLogLevel::WARNING),
        _ => report(PgLogLevel::ERROR),
    }
    xact::touched().passed = true;
}

/// A statement of a transaction that was asked for as SERIALIZABLE on a standby uses these tables
/// (INV-AS-ASKED). `foreign`: and foreign ones.
///
/// # Safety
/// The relations are null or open.
pub unsafe fn check_as_asked(rels: &[pg_sys::Relation], foreign: bool) {
    if !isolation::is_asked() {
        return;
    }
    standby::check_as_asked();
    // SAFETY: the relations are null or open (contract of this function).
    if foreign || rels.iter().any(|r| unsafe { kinds::is_other(*r) || kinds::is_foreign(*r) }) {
        complain_with_detail(
            PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
            "a SERIALIZABLE transaction on a standby can read mixedcc tables only",
            "PostgreSQL has no SERIALIZABLE in recovery: what it reads of other tables may be of another moment.",
            "Use REPEATABLE READ, or read the mixedcc tables in a transaction of their own.",
        );
    }
}

fn mixture() -> ErrorReport {
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
        "a SERIALIZABLE transaction uses both mixedcc tables and tables of another access method",
        "mixedcc",
    )
    .set_detail("It is atomic, but neither side alone guarantees that it is serializable.")
    .set_hint("Use tables of one access method, or set mixedcc.mixed_serializable to serializable, warning or allow.")
}

/// For a transaction that PostgreSQL runs at REPEATABLE READ.
fn mixture_of_ours_alone() -> ErrorReport {
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
        "a REPEATABLE READ transaction uses both mixedcc tables and tables of another access method",
        "mixedcc",
    )
    .set_detail(
        "mixedcc.serializable_at is \"repeatable read\", so it is serializable on the mixedcc tables, but not on the others.",
    )
    .set_hint(
        "Use tables of one access method, or set mixedcc.serializable_at to serializable, or mixedcc.mixed_serializable to warning or allow.",
    )
}

/// A statement writes these tables. Rows of partitioned ones go to partitions that no range table
/// lists. Some may be foreign tables, so the transaction counts as one that uses foreign tables.
///
/// # Safety
/// The relations are null or open.
pub unsafe fn note_routing(rels: &[pg_sys::Relation]) {
    // SAFETY: the relations are null or open (contract of this function).
    let partitioned = |r: &pg_sys::Relation| unsafe {
        !r.is_null() && (*(**r).rd_rel).relkind as u8 == pg_sys::RELKIND_PARTITIONED_TABLE
    };
    xact::touched().routed |= rels.iter().any(partitioned);
}
