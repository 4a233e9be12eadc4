//! Which library a function is in.

use std::ffi::{c_char, c_int, c_void, CStr};
use std::mem::MaybeUninit;

/// What dladdr says of an address (`Dl_info` of dlfcn.h).
#[repr(C)]
struct Symbol {
    library: *const c_char,
    base: *mut c_void,
    name: *const c_char,
    address: *mut c_void,
}

mod raw {
    extern "C" {
        pub fn dladdr(address: *const super::c_void, symbol: *mut super::Symbol) -> super::c_int;
    }
}

/// Is the function in a library whose path ends so?
pub fn is_in(function: *const c_void, path: &[u8]) -> bool {
    let mut symbol = MaybeUninit::<Symbol>::uninit();
    // SAFETY: dladdr takes any address, and fills the struct if it does not return 0. A library's
    // name is a C string that lives as long as the library.
    unsafe {
        if raw::dladdr(function, symbol.as_mut_ptr()) == 0 {
            return false;
        }
        let library = symbol.assume_init().library;
        !library.is_null() && CStr::from_ptr(library).to_bytes().ends_with(path)
    }
}
