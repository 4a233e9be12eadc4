//! Tables whose rows are in a file and not in memory: what a use of them says.

use super::stamp;
use crate::pg::{compat, guc};
use crate::state::shmem::{self, Absence};
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::ffi::CStr;

const MB: u64 = 1 << 20;
const GIVE_UP: &str = "TRUNCATE or DROP TABLE gives its rows up.";

/// Why a table is not there, for a message.
struct Missing {
    code: PgSqlErrorCode,
    detail: String,
    hint: String,
}

/// Why the rows of a table are not in memory, but in a file; `None` if they are, or in no file.
///
/// # Safety
/// An open relation.
unsafe fn missing(rel: pg_sys::Relation) -> Option<Missing> {
    // SAFETY: `rel` is open (contract of this function).
    let key = unsafe { compat::storage_key(&compat::storage_of(rel)) };
    if shmem::find(key).is_some() {
        return None;
    }
    match shmem::absent(key) {
        Some((Absence::Memory, need)) => Some(too_large(need)),
        Some((Absence::WaitingPhases, _)) => Some(Missing {
            code: PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            detail: "Its protocols cannot be in use together without a deadlock detector.".into(),
            hint: GIVE_UP.into(),
        }),
        Some((Absence::TooLarge | Absence::Standby, _)) => None,
        None => elsewhere(key),
    }
}

/// Are the rows of a table in a file, and not in memory?
///
/// # Safety
/// An open relation.
pub unsafe fn is_missing(rel: pg_sys::Relation) -> bool {
    // SAFETY: `rel` is open (contract of this function).
    unsafe { missing(rel) }.is_some()
}

fn too_large(need: u64) -> Missing {
    let u = shmem::engine().region.usage();
    let used = u.total_bytes.saturating_sub(u.free_page_bytes) as u64;
    let all = shmem::absent_bytes();
    // The larger a region is, the more of it describes its pages.
    let wanted = (used + all + all / 32).div_ceil(MB) + 1;
    Missing {
        code: PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY,
        detail: format!(
            "Its rows were saved at a shutdown, and did not fit at the last start: they need about {} MB, and all tables that did not fit {} MB. mixedcc.memory is {} MB, of which {} MB are free.",
            need.div_ceil(MB),
            all.div_ceil(MB),
            guc::MEMORY_MB.get(),
            u.free_page_bytes as u64 / MB
        ),
        hint: format!("Set mixedcc.memory to {wanted} MB or more, and restart the server. {GIVE_UP}"),
    }
}

fn elsewhere(key: [u32; 4]) -> Option<Missing> {
    let state = PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
    let stamp = match stamp::read(key) {
        Ok(stamp) => stamp?,
        Err(x) => {
            let hint = "The rows cannot be loaded while that file cannot be read.".into();
            return Some(Missing { code: PgSqlErrorCode::ERRCODE_IO_ERROR, detail: x.to_string(), hint });
        }
    };
    // Loaded by an earlier start: the rows were in memory, and were not saved.
    if stamp.loaded.is_some() {
        return None;
    }
    // SAFETY: a variable of this process, which its one thread writes when it starts.
    if unsafe { pg_sys::IsBinaryUpgrade } {
        let detail = "Saved rows are not loaded during pg_upgrade.".into();
        return Some(Missing { code: state, detail, hint: "Use the table after pg_upgrade.".into() });
    }
    Some(Missing {
        code: state,
        detail: "Its rows were saved at a shutdown, in a file that was not there at the last start, or could not be used: the server's log has the reason.".into(),
        hint: format!("Stop the server, put the files mixedcc.rows* of that shutdown into the data directory (after pg_upgrade: those of the old cluster), and start it. {GIVE_UP}"),
    })
}

/// # Safety
/// An open relation.
unsafe fn name_of(rel: pg_sys::Relation) -> String {
    // SAFETY: `rel` is open (contract of this function); its name is a C string.
    unsafe { CStr::from_ptr((*(*rel).rd_rel).relname.data.as_ptr()) }.to_string_lossy().into_owned()
}

/// Raises an ERROR if the rows of a table are in a file: it must not be taken for empty.
///
/// # Safety
/// An open relation.
pub unsafe fn refuse(rel: pg_sys::Relation) {
    // SAFETY: `rel` is open (contract of this function).
    let Some((m, name)) = (unsafe { missing(rel).map(|m| (m, name_of(rel))) }) else { return };
    ErrorReport::new(m.code, format!("the rows of mixedcc table \"{name}\" are not in memory"), "mixedcc")
        .set_detail(m.detail)
        .set_hint(m.hint)
        .report(PgLogLevel::ERROR);
}

/// Does VACUUM pass over the table, because its rows are in a file? Says so.
///
/// # Safety
/// An open relation.
pub unsafe fn pass_over(rel: pg_sys::Relation) -> bool {
    // SAFETY: `rel` is open (contract of this function).
    let Some((m, name)) = (unsafe { missing(rel).map(|m| (m, name_of(rel))) }) else { return false };
    let message = format!("VACUUM passes over mixedcc table \"{name}\": its rows are not in memory");
    ErrorReport::new(PgSqlErrorCode::ERRCODE_WARNING, message, "mixedcc")
        .set_detail(m.detail)
        .set_hint(m.hint)
        .report(PgLogLevel::WARNING);
    true
}
