//! mixedcc's interface for extensions that are written in Rust: what `mixedcc.h` declares for C,
//! without dependencies. The header says what callers may rely on and must see to; the names here
//! are its names.
//!
//! Calls raise PostgreSQL's errors: one that fails does not return, and jumps over the frames
//! between it and the catcher of the error. So frames that make calls must own nothing that is to
//! be dropped. A panic must not leave a function of the extension, also not one that mixedcc calls
//! ([`Modify`], [`Visit`]). `bench/native/rust` is an example of both.

use std::ffi::{c_char, c_void, CStr};

/// `MIXEDCC_NATIVE_MAJOR`: another one is another interface.
pub const MAJOR: u16 = 1;
/// `MIXEDCC_NATIVE_MINOR`: grows with functions that are added at the end.
pub const MINOR: u16 = 0;
/// `MIXEDCC_NATIVE_VARIABLE`: the rendezvous variable that points to [`Native`].
pub const VARIABLE: &CStr = c"mixedcc_native";

/// PostgreSQL's `Datum`: a value, or its address.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datum(pub usize);

/// PostgreSQL's `Oid`.
pub type Oid = u32;

/// `MixedccTable`: a table as a caller uses it, by its address.
#[repr(C)]
pub struct Table {
    _private: [u8; 0],
}

/// `MixedccColumn`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its name.
    pub name: *const c_char,
    /// The type of the caller's values.
    pub typid: Oid,
}

/// `MixedccRange`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// So many columns of the key equal `equal`.
    pub nequal: i32,
    /// Their values.
    pub equal: *const Datum,
    /// Of the next column; null: none.
    pub lower: *const Datum,
    /// The same.
    pub upper: *const Datum,
    /// Is the bound itself left out?
    pub lower_excluded: bool,
    /// The same.
    pub upper_excluded: bool,
    /// In the opposite order of the key?
    pub descending: bool,
    /// 0: all.
    pub limit: u64,
}

/// `MixedccModify`: changes values in place; false: the row stays as it is.
pub type Modify = unsafe extern "C-unwind" fn(arg: *mut c_void, values: *mut Datum, isnull: *mut bool) -> bool;
/// `MixedccVisit`: false ends the scan.
pub type Visit = unsafe extern "C-unwind" fn(arg: *mut c_void, values: *const Datum, isnull: *const bool) -> bool;

/// `MixedccNative`: the functions, as the header describes them.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct Native {
    pub major: u16,
    pub minor: u16,
    pub size: u32,
    pub open: unsafe extern "C-unwind" fn(
        table: Oid,
        nkeys: i32,
        keytypes: *const Oid,
        ncolumns: i32,
        columns: *const Column,
    ) -> *mut Table,
    pub release: unsafe extern "C-unwind" fn(t: *mut Table),
    pub get:
        unsafe extern "C-unwind" fn(t: *mut Table, key: *const Datum, values: *mut Datum, isnull: *mut bool) -> bool,
    pub update: unsafe extern "C-unwind" fn(
        t: *mut Table,
        key: *const Datum,
        values: *const Datum,
        isnull: *const bool,
    ) -> bool,
    pub modify: unsafe extern "C-unwind" fn(t: *mut Table, key: *const Datum, f: Modify, arg: *mut c_void) -> bool,
    pub insert: unsafe extern "C-unwind" fn(t: *mut Table, values: *const Datum, isnull: *const bool),
    pub remove: unsafe extern "C-unwind" fn(t: *mut Table, key: *const Datum) -> bool,
    pub scan: unsafe extern "C-unwind" fn(t: *mut Table, range: *const Range, f: Visit, arg: *mut c_void) -> u64,
}

/// Why the interface cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// mixedcc is not loaded.
    Absent,
    /// It has another version: major and minor.
    Version(u16, u16),
}

impl Native {
    /// The interface, if it is there and has all that this crate knows of it. `value`: that of the
    /// rendezvous variable.
    ///
    /// # Safety
    /// Null, or what mixedcc has put into the variable.
    pub unsafe fn accept<'a>(value: *const Native) -> Result<&'a Native, Refused> {
        // SAFETY: the caller's: the first three fields are there in each version, and more of them
        // only in the right ones.
        unsafe {
            if value.is_null() {
                return Err(Refused::Absent);
            }
            let (major, minor, size) = ((*value).major, (*value).minor, (*value).size);
            // A newer minor version is fine.
            let whole = size as usize >= std::mem::size_of::<Native>();
            if major == MAJOR && minor.checked_sub(MINOR).is_some() && whole {
                Ok(&*value)
            } else {
                Err(Refused::Version(major, minor))
            }
        }
    }
}
