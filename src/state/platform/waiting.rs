//! What a sleep is for, in the context of messages: those of log_lock_waits and of ERRORs that end
//! it. The lock manager itself knows only whose end is awaited, or a queue's number.

use crate::pg::Tid;
use crate::state::rel;
use mixedcc_engine::platform::Queue;
use pgrx::pg_sys;
use std::ffi::CString;

mod raw {
    use core::ffi::{c_char, c_int};
    extern "C-unwind" {
        pub fn set_errcontext_domain(domain: *const c_char) -> c_int;
        pub fn errcontext_msg(format: *const c_char, ...) -> c_int;
    }
}

/// Adds a line to the context of every message while it lives. It does not move after
/// [`Waiting::enter`].
pub struct Waiting {
    lock: Queue,
    callback: pg_sys::ErrorContextCallback,
}

impl Waiting {
    /// For a sleep that is for this lock.
    pub fn new(lock: Queue) -> Waiting {
        Waiting { lock, callback: pg_sys::ErrorContextCallback::default() }
    }

    /// The sleep begins.
    ///
    /// # Safety
    /// The value stays where it is until it is dropped, and goes before what was entered earlier.
    pub unsafe fn enter(&mut self) {
        let me = std::ptr::from_mut(self);
        // SAFETY: the value stays where it is until it is dropped, in the order of the stack
        // (contract of this function). One thread uses the stack.
        unsafe {
            let previous = pg_sys::error_context_stack;
            (*me).callback = pg_sys::ErrorContextCallback { previous, callback: Some(describe), arg: me.cast() };
            pg_sys::error_context_stack = &raw mut (*me).callback;
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.callback.callback.is_some() {
            // SAFETY: one thread uses the stack; all that was entered later is gone (contract of
            // `enter`), also after an ERROR.
            unsafe { pg_sys::error_context_stack = self.callback.previous };
        }
    }
}

/// As heap says it (XactLockTableWaitErrorCb).
unsafe extern "C-unwind" fn describe(arg: *mut core::ffi::c_void) {
    // SAFETY: `arg` is what `enter` has put there: a `Waiting` that has not been dropped (contract
    // of `enter`).
    let text = unsafe { line((*arg.cast::<Waiting>()).lock) };
    let Some(text) = text.and_then(|t| CString::new(t).ok()) else { return };
    // SAFETY: PostgreSQL calls this within an error's report (elog.h: error context callbacks); the
    // formats are C strings.
    unsafe {
        raw::set_errcontext_domain(std::ptr::null());
        raw::errcontext_msg(c"%s".as_ptr(), text.as_ptr());
    }
}

/// Looks at no catalog: it is called while the process is in a queue of the lock manager.
fn line(lock: Queue) -> Option<String> {
    let (Queue::Record(table, _) | Queue::Partition(table, _) | Queue::Range(table, ..)) = lock;
    let relation = &rel::by_table_id(table)?.name;
    Some(match lock {
        Queue::Record(_, n) => {
            let tid = Tid::Record(n).item();
            let block = (tid.ip_blkid.bi_hi as u32) << 16 | tid.ip_blkid.bi_lo as u32;
            format!("while locking tuple ({block},{}) in relation \"{relation}\"", tid.ip_posid)
        }
        Queue::Partition(_, n) => format!("while locking partition {n} of relation \"{relation}\""),
        Queue::Range(..) => format!("while locking a range of keys in relation \"{relation}\""),
    })
}
