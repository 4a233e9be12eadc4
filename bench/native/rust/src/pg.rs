//! What the examples use of PostgreSQL, of the version that PG_MAJOR names at build (15 without
//! it).

use mixedcc_native::{Datum, Native, Oid, Refused, VARIABLE};
use std::any::Any;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::fmt::Write;
use std::mem::offset_of;
use std::panic::{catch_unwind, AssertUnwindSafe};

const ERROR: c_int = 21;

const MAJOR: c_int = match option_env!("PG_MAJOR") {
    None => 15,
    Some(text) => match c_int::from_str_radix(text, 10) {
        Ok(major) => major,
        Err(_) => panic!("PG_MAJOR is no number"),
    },
};

extern "C-unwind" {
    fn find_rendezvous_variable(name: *const c_char) -> *mut *mut c_void;
    fn RelnameGetRelid(name: *const c_char) -> Oid;
    fn errstart(level: c_int, domain: *const c_char) -> bool;
    fn errcode(sqlstate: c_int) -> c_int;
    fn errmsg_internal(format: *const c_char, ...) -> c_int;
    fn errhint(format: *const c_char, ...) -> c_int;
    fn errfinish(file: *const c_char, line: c_int, function: *const c_char);
}

/// `Pg_magic_struct`.
#[repr(C)]
#[allow(dead_code)] // PostgreSQL reads it
pub struct Magic {
    len: c_int,
    version: c_int,
    most_arguments: c_int,
    most_keys: c_int,
    name_len: c_int,
    float8_by_value: c_int,
    abi: [u8; 32],
    /// The module's name and version, from PostgreSQL 18 on: null pointers.
    named: [usize; 2],
}

/// `PG_MODULE_MAGIC`.
#[no_mangle]
#[allow(non_snake_case)]
pub extern "C" fn Pg_magic_func() -> &'static Magic {
    const fn abi() -> [u8; 32] {
        let (mut all, name) = ([0; 32], b"PostgreSQL");
        let mut i = 0;
        while i < name.len() {
            all[i] = name[i];
            i += 1;
        }
        all
    }
    static MAGIC: Magic = Magic {
        len: if MAJOR < 18 { offset_of!(Magic, named) } else { size_of::<Magic>() } as c_int,
        version: MAJOR * 100,
        most_arguments: 100,
        most_keys: 32,
        name_len: 64,
        float8_by_value: 1,
        abi: abi(),
        named: [0; 2],
    };
    &MAGIC
}

/// `Pg_finfo_record`.
#[repr(C)]
pub struct Info {
    /// 1.
    pub version: c_int,
}

/// `NullableDatum`.
#[repr(C)]
#[allow(dead_code)] // as above
struct Argument {
    value: Datum,
    isnull: bool,
}

/// `FunctionCallInfoBaseData`, up to its arguments.
#[repr(C)]
#[allow(dead_code)] // PostgreSQL fills it
pub struct FunctionCall {
    flinfo: *mut c_void,
    context: *mut c_void,
    resultinfo: *mut c_void,
    collation: Oid,
    isnull: bool,
    nargs: i16,
    args: [Argument; 0],
}

impl FunctionCall {
    /// An argument's value, as a word; 0 if the call has no such argument. (The functions are
    /// STRICT.)
    pub fn word(&self, i: usize) -> usize {
        if i as i64 >= i64::from(self.nargs) {
            return 0;
        }
        // SAFETY: PostgreSQL's contract: `nargs` arguments follow the struct.
        unsafe { (*self.args.as_ptr().add(i)).value.0 }
    }
}

/// Declares a function for `CREATE FUNCTION ... LANGUAGE C`.
macro_rules! function {
    ($info:ident, $name:ident, |$call:ident| $body:expr) => {
        /// `PG_FUNCTION_INFO_V1`.
        #[no_mangle]
        pub extern "C" fn $info() -> &'static $crate::pg::Info {
            static INFO: $crate::pg::Info = $crate::pg::Info { version: 1 };
            &INFO
        }

        /// See the SQL file.
        ///
        /// # Safety
        /// PostgreSQL's contract of function calls.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(call: *const FunctionCall) -> Datum {
            // SAFETY: the caller's.
            let $call = unsafe { &*call };
            $body
        }
    };
}
pub(crate) use function;

/// A message that lies in a frame over which an ERROR may jump. What does not fit is cut.
struct Message {
    text: [u8; 200],
    len: usize,
}

impl Message {
    fn of(what: std::fmt::Arguments<'_>) -> Message {
        let mut m = Message { text: [0; 200], len: 0 };
        let _ = m.write_fmt(what);
        m
    }
}

impl Write for Message {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        let room = self.text.len() - 1 - self.len; // a zero byte stays
        let mut n = s.len().min(room);
        while !s.is_char_boundary(n) {
            n -= 1;
        }
        self.text[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

/// Raises an ERROR. The frames above own nothing.
fn raise(sqlstate: &[u8; 5], message: &Message, hint: Option<&CStr>) -> ! {
    let code = sqlstate.iter().rev().fold(0, |all, c| all << 6 | c_int::from((c - b'0') & 0x3f));
    // SAFETY: elog.h's sequence for an ERROR, which ends this function.
    unsafe {
        if errstart(ERROR, std::ptr::null()) {
            errcode(code);
            errmsg_internal(c"%s".as_ptr(), message.text.as_ptr());
            if let Some(hint) = hint {
                errhint(c"%s".as_ptr(), hint.as_ptr());
            }
            errfinish(c"mixedcc-examples-rust".as_ptr(), line!() as c_int, c"raise".as_ptr());
        }
    }
    std::process::abort() // an ERROR does not return
}

fn describe(panic: Box<dyn Any + Send>) -> Message {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(|s| &s[..]));
    Message::of(format_args!("panic: {}", text.unwrap_or("of an unknown kind")))
}

/// Computes something that makes no calls of PostgreSQL or mixedcc; a panic becomes an ERROR.
pub fn pure<T: Copy>(f: impl FnOnce() -> T) -> T {
    let message = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(value) => return value,
        Err(panic) => describe(panic),
    };
    raise(b"XX000", &message, None)
}

/// The interface, or an ERROR.
pub fn accepted(native: Result<&'static Native, Refused>) -> &'static Native {
    let message = match native {
        Ok(native) => return native,
        Err(Refused::Absent) => Message::of(format_args!("mixedcc is not loaded")),
        Err(Refused::Version(major, minor)) => Message::of(format_args!(
            "mixedcc has version {major}.{minor} of its native interface, and version {}.{} is needed",
            mixedcc_native::MAJOR,
            mixedcc_native::MINOR
        )),
    };
    raise(
        b"55000",
        &message,
        Some(c"Load mixedcc by shared_preload_libraries, and build the extension with its crate."),
    )
}

/// mixedcc's interface.
pub fn native() -> &'static Native {
    // SAFETY: the variable is mixedcc's, or unset.
    let value = unsafe { *find_rendezvous_variable(VARIABLE.as_ptr()) };
    // SAFETY: null, or what mixedcc has put there for the life of the backend.
    accepted(unsafe { Native::accept(value.cast_const().cast()) })
}

/// The table of this name in the search path, or an ERROR.
pub fn table_of(name: &CStr) -> Oid {
    // SAFETY: within a transaction.
    let oid = unsafe { RelnameGetRelid(name.as_ptr()) };
    if oid == 0 {
        let message =
            Message::of(format_args!("there is no table \"{}\" in the search path", name.to_str().unwrap_or("?")));
        raise(b"42P01", &message, None);
    }
    oid
}
