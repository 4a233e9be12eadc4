//! Durable tables: recovery, images and loads. Commits are logged in `state/durable`.
//!
//! `docs/design/durability.md` is the design; its invariants are named D-... in the comments.

mod absorb;
pub mod bulk;
mod companion;
mod decode;
mod describe;
mod files;
mod held;
pub mod images;
mod journal;
pub mod live;
pub mod load;
pub mod loader;
mod redo;
mod room;

use crate::pg::wal;
use pgrx::pg_sys;

/// Registers the resource manager and the companion. The library must be in
/// `shared_preload_libraries`: PostgreSQL refuses to replay the records of a resource manager that
/// it does not know.
pub fn init() {
    let mut manager = pg_sys::RmgrData {
        rm_name: c"mixedcc".as_ptr(),
        rm_redo: Some(redo::redo),
        rm_desc: Some(describe::describe),
        rm_identify: Some(describe::identify),
        rm_startup: Some(redo::startup),
        rm_cleanup: Some(redo::cleanup),
        rm_mask: None,
        rm_decode: Some(decode::decode),
    };
    // SAFETY: `_PG_init` of a preloaded library, so no WAL is read yet. PostgreSQL copies the
    // struct; name and functions live as long as the library.
    unsafe { pg_sys::RegisterCustomRmgr(wal::MANAGER, &raw mut manager) };
    companion::init();
}
