//! What other code does in a commit, after our callback has validated: callbacks of other
//! extensions, and NOTIFY.
//!
//! **INV-FRONT-ITEM**: The item of our callback in front is known by its address. PostgreSQL's list
//! of callbacks is its own. But an item is a piece of memory of one size. PostgreSQL takes it when
//! a callback is registered, and frees it when that is taken out. So it is the piece that was freed
//! last. That is proved each time: its last word is cleared while it is free, and has our argument
//! after that. If it has not, the list is not known, and others may act in each commit.

use crate::pg::libraries;
use crate::pg::local::Local;
use pgrx::pg_sys;
use std::ffi::c_void;
use std::panic::AssertUnwindSafe;

/// An item of PostgreSQL's list (`XactCallbackItem` of xact.c).
#[repr(C)]
struct Item {
    next: *const Item,
    callback: pg_sys::XactCallback,
    arg: *mut c_void,
}

mod raw {
    use pgrx::pg_sys;
    extern "C-unwind" {
        // Without the guard of the bindings: they free and allocate a few bytes. Out of memory is
        // an ERROR, after which the callback that does not move is still there.
        pub fn RegisterXactCallback(f: pg_sys::XactCallback, arg: *mut core::ffi::c_void);
        pub fn UnregisterXactCallback(f: pg_sys::XactCallback, arg: *mut core::ffi::c_void);
        // Raises an ERROR if the transaction has notified, or listened; changes nothing.
        pub fn AtPrepare_Notify();
    }
}

/// The piece of memory that is the item in front, if it is known (INV-FRONT-ITEM).
static PIECE: Local<*mut Item> = Local::new(std::ptr::null_mut());
/// Does it have our callback at the moment?
static IS_FRONT: Local<bool> = Local::new(false);
/// The last callback of another extension that was looked up, and whether it does nothing of
/// interest.
static LOOKED_UP: Local<(usize, bool)> = Local::new((0, false));

/// Registers a callback for the first time.
///
/// # Safety
/// `_PG_init` runs alone. The callback lives as long as the library.
pub unsafe fn register(callback: pg_sys::XactCallback, arg: *mut c_void) {
    // SAFETY: the contract of this function. The piece is in a block of a context that lives as
    // long as the process: small pieces stay in their blocks when they are freed.
    unsafe {
        let piece = pg_sys::MemoryContextAlloc(pg_sys::TopMemoryContext, size_of::<Item>()).cast::<Item>();
        (*piece).arg = std::ptr::null_mut();
        pg_sys::pfree(piece.cast());
        PIECE.set(piece);
        raw::RegisterXactCallback(callback, arg);
    }
    note_front(callback, arg);
}

/// Puts a callback in front of all others. An ERROR leaves it out of the list.
///
/// # Safety
/// It is in the list, where PostgreSQL does not stand on it.
#[inline]
pub unsafe fn put_in_front(callback: pg_sys::XactCallback, arg: *mut c_void) {
    let piece = PIECE.get();
    // SAFETY: the contract of this function. INV-FRONT-ITEM: the piece is memory of the process,
    // whether or not it is free. A free one has words of the allocator at its begin, at most.
    unsafe {
        raw::UnregisterXactCallback(callback, arg);
        if IS_FRONT.replace(false) {
            (*piece).arg = std::ptr::null_mut();
        }
        raw::RegisterXactCallback(callback, arg);
    }
    note_front(callback, arg);
}

#[inline]
fn note_front(callback: pg_sys::XactCallback, arg: *mut c_void) {
    // SAFETY: INV-FRONT-ITEM: as in `put_in_front`.
    let item = unsafe { &*PIECE.get() };
    IS_FRONT.set(item.arg == arg && is_same(item.callback, callback));
}

fn is_same(a: pg_sys::XactCallback, b: pg_sys::XactCallback) -> bool {
    address(a) == address(b)
}

fn address(callback: pg_sys::XactCallback) -> usize {
    callback.map_or(0, |f| f as usize)
}

/// May another extension's callback act after the one in front, which is `ours`?
pub fn may_follow(ours: pg_sys::XactCallback) -> bool {
    if !IS_FRONT.get() {
        return true;
    }
    // SAFETY: INV-FRONT-ITEM: it is the item in front, so its `next` is the rest of PostgreSQL's
    // list, whose items live until they are taken out. Nothing is taken out meanwhile.
    unsafe {
        let mut next = (*PIECE.get()).next;
        while let Some(item) = next.as_ref() {
            if !is_same(item.callback, ours) && !is_harmless(address(item.callback)) {
                return true;
            }
            next = item.next;
        }
    }
    false
}

/// Is it PL/pgSQL's, which frees memory only?
fn is_harmless(callback: usize) -> bool {
    let (known, harmless) = LOOKED_UP.get();
    if known == callback {
        return harmless;
    }
    let harmless = libraries::is_in(callback as *const c_void, b"/plpgsql.so");
    LOOKED_UP.set((callback, harmless));
    harmless
}

/// Will the commit notify, or change what the session listens to?
pub fn notifies() -> bool {
    // SAFETY: in the transaction that commits. The function changes nothing, so its ERROR leaves
    // nothing behind.
    let look = AssertUnwindSafe(|| unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| raw::AtPrepare_Notify());
        false
    });
    // With `exit_on_error` each ERROR ends the session, also one that is caught.
    // SAFETY: a variable of this process.
    let exits = unsafe { std::mem::replace(&mut *(&raw mut pg_sys::ExitOnAnyError), false) };
    let found = pgrx::PgTryBuilder::new(look).catch_others(|_| true).execute();
    // SAFETY: the same.
    unsafe { pg_sys::ExitOnAnyError = exits };
    found
}

/// Takes the lock that PostgreSQL takes for a commit that notifies. An ERROR unwinds.
pub fn lock_notifications() {
    // SAFETY: any object may be locked; the lock ends with the transaction.
    unsafe {
        let mode = pg_sys::AccessExclusiveLock as pg_sys::LOCKMODE;
        pg_sys::LockSharedObject(pg_sys::DatabaseRelationId, pg_sys::InvalidOid, 0, mode);
    }
}
