//! What unit tests link in place of PostgreSQL: they call pure functions only, and see errors as
//! panics (`raised`). The linker names what is missing here when a test comes to code that needs
//! more; then that code is not pure, and belongs into the tests that have a server.

use core::ffi::c_void;
use pgrx::pg_sys::panic::ErrorReportWithLevel;

/// The message of the error that `f` raises.
pub fn raised<R>(f: impl FnOnce() -> R) -> Option<String> {
    let e = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).err()?;
    Some(e.downcast_ref::<ErrorReportWithLevel>().expect("an error as `report` raises it").message().to_owned())
}

macro_rules! functions {
    ($($name:ident)*) => { $(
        #[no_mangle]
        extern "C" fn $name() -> ! {
            panic!(concat!("a unit test has called PostgreSQL's ", stringify!($name)))
        }
    )* };
}
functions! {
    CopyErrorData FlushErrorState FreeErrorData errcode errcontext_msg errdetail errfinish errhint errmsg errstart
    message_level_is_interesting palloc0 pfree
}

/// The database's encoding is UTF8.
#[no_mangle]
extern "C" fn GetDatabaseEncoding() -> i32 {
    pgrx::pg_sys::pg_enc::PG_UTF8 as i32
}

macro_rules! variables {
    ($($name:ident)*) => { $(
        #[no_mangle]
        static mut $name: *mut c_void = std::ptr::null_mut();
    )* };
}
variables! { CurrentMemoryContext ErrorContext PG_exception_stack error_context_stack }
