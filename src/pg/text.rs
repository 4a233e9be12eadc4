//! Names and texts between PostgreSQL, which has them in the database's encoding, and Rust, whose
//! strings are UTF-8.
//!
//! In a database that is not UTF8 each byte of a text is one character of the Rust string, of
//! U+0000 to U+00FF. That can always be done and undone, for bytes of SQL_ASCII and for characters
//! that UTF-8 has not, and needs no conversion function and no transaction. Bytes below 128 are
//! ASCII in every encoding of a server and parts of no other character: names may be taken apart at
//! commas and quotes. Other bytes must be left as they are (no `to_lowercase`, no `trim`).

use pgrx::pg_sys;
use std::ffi::{c_char, CStr, CString};

mod raw {
    extern "C-unwind" {
        // Without the guard of the bindings: it raises no ERROR.
        pub fn GetDatabaseEncoding() -> core::ffi::c_int;
    }
}

fn is_utf8() -> bool {
    // SAFETY: `GetDatabaseEncoding` reads a variable of this process and raises nothing.
    unsafe { raw::GetDatabaseEncoding() == pg_sys::pg_enc::PG_UTF8 as i32 }
}

/// A text of PostgreSQL's.
///
/// # Safety
/// A C string.
pub unsafe fn read(p: *const c_char) -> String {
    // SAFETY: `p` is a C string (contract of this function), and is copied before this returns.
    of_bytes(unsafe { CStr::from_ptr(p) }.to_bytes())
}

/// The same, by its bytes.
pub fn of_bytes(bytes: &[u8]) -> String {
    if bytes.is_ascii() || is_utf8() {
        String::from_utf8_lossy(bytes).into_owned()
    } else {
        bytes.iter().map(|b| char::from(*b)).collect()
    }
}

/// The bytes of a text for PostgreSQL.
pub fn bytes(s: &str) -> Vec<u8> {
    if s.is_ascii() || is_utf8() {
        s.into()
    } else {
        s.chars().map(|c| u8::try_from(c).unwrap_or(b'?')).collect()
    }
}

/// A text for PostgreSQL.
pub fn write(s: &str) -> CString {
    CString::new(bytes(s)).unwrap_or_default()
}

/// A text for a message. The bindings write these as UTF-8: where that is not the database's
/// encoding, bytes that are not ASCII are shown as escapes.
pub fn shown(s: &str) -> String {
    if s.is_ascii() || is_utf8() {
        return s.to_owned();
    }
    let one = |c: char| if c.is_ascii() { c.to_string() } else { format!("\\x{:02x}", c as u32) };
    s.chars().map(one).collect()
}

/// The text in a value of type text.
///
/// # Safety
/// Such a value.
pub unsafe fn of_datum(d: pg_sys::Datum) -> String {
    // SAFETY: `d` is a value of type text (contract of this function); text_to_cstring returns a C
    // string, a copy in the current memory context.
    unsafe { read(pg_sys::text_to_cstring(d.cast_mut_ptr())) }
}

/// The texts in an array of them.
///
/// # Safety
/// Such an array.
pub unsafe fn of_array(array: pg_sys::Datum) -> Vec<Option<String>> {
    let (mut values, mut nulls, mut n) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
    // SAFETY: `array` is an array of texts (contract of this function). Both arrays have `n`
    // entries, and an element that is not NULL is a text.
    unsafe {
        let array = pg_sys::pg_detoast_datum(array.cast_mut_ptr()).cast::<pg_sys::ArrayType>();
        let align = pg_sys::TYPALIGN_INT as c_char;
        pg_sys::deconstruct_array(array, pg_sys::TEXTOID, -1, false, align, &mut values, &mut nulls, &mut n);
        (0..n as usize).map(|i| (!*nulls.add(i)).then(|| of_datum(*values.add(i)))).collect()
    }
}
