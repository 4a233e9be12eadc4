//! The place of our transaction callback among those of other extensions.
//!
//! PostgreSQL calls the callback first that was registered last. A foreign data wrapper commits its
//! remote part in its own XACT_EVENT_PRE_COMMIT. Most register at their first connection, after us
//! and so before us in the list. Our validation would fail when the remote part cannot be undone
//! any more. So our callback is taken out of the list and put in front of it again whenever a
//! transaction begins to use our tables. The same happens after each statement from then on.
//!
//! **INV-FRONT**: Our callback is in the list twice. The one in front moves; the one that
//! `_PG_init` has registered never does. If the callback of another extension moved ours while
//! PostgreSQL walks the list, the walk would pass over the moved one, and would still come to the
//! other. The callback that comes second in a walk does nothing. Nothing moves once our callback
//! has begun to commit, so that PostgreSQL never stands on an item that is freed.
//!
//! The list of subtransaction callbacks stays as it is: nothing becomes durable in one, here or
//! there.

use crate::pg::local::Local;
use crate::pg::others;
use pgrx::pg_sys;

/// The argument of the callback in front. It is only compared.
const FRONT: *mut core::ffi::c_void = std::ptr::dangling_mut::<u8>().cast();

/// The callback. Of the process, written when the library is loaded.
static CALLBACK: Local<pg_sys::XactCallback> = Local::new(None);
/// Of a walk: the one in front has been called in it.
static CALLED: Local<bool> = Local::new(false);
/// Of the transaction: our callback has begun to commit, and the transaction has not ended.
static COMMITTING: Local<bool> = Local::new(false);
/// Of the transaction: its commit has logged, or is about to, and the transaction has not ended.
static LET_GO: Local<bool> = Local::new(false);
/// Of the transaction: PREPARE TRANSACTION has begun, and the transaction has not ended.
static PREPARING: Local<bool> = Local::new(false);

/// Registers the callback twice.
pub fn init(callback: pg_sys::XactCallback) {
    // SAFETY: `_PG_init` runs alone, so the callback has no caller yet.
    unsafe {
        CALLBACK.set(callback);
        pg_sys::RegisterXactCallback(callback, std::ptr::null_mut());
        others::register(callback, FRONT);
    }
}

/// Puts our callback in front of all others.
#[inline]
pub fn go_in_front() {
    if !COMMITTING.get() {
        let callback = CALLBACK.get();
        // SAFETY: our callback is in the list twice, and does not move once it has begun to commit
        // (INV-FRONT).
        unsafe { others::put_in_front(callback, FRONT) };
    }
}

/// May a callback of another extension act after ours, in the commit that has begun?
pub fn may_others_follow() -> bool {
    others::may_follow(CALLBACK.get())
}

/// A statement ends, which may have had other extensions register callbacks: ours comes before
/// theirs, if it will have something to validate.
#[inline]
pub fn note_end_of_statement() {
    if super::running().is_some() {
        go_in_front();
    }
}

/// PostgreSQL calls one of the two: is it the first of this walk?
pub fn comes_first(arg: *mut core::ffi::c_void) -> bool {
    let in_front = arg == FRONT;
    let before = CALLED.replace(in_front);
    in_front || !before
}

/// The commit has begun. From now on others' callbacks may not write.
pub fn begin_commit() {
    COMMITTING.set(true);
}

/// Has the commit begun?
#[inline]
pub fn is_committing() -> bool {
    COMMITTING.get()
}

/// PREPARE TRANSACTION has begun. From now on others' callbacks may not use our tables: what they
/// read or wrote there would neither be validated nor prepared.
pub fn begin_prepare() {
    COMMITTING.set(true);
    LET_GO.set(true);
    PREPARING.set(true);
}

/// Has PREPARE TRANSACTION begun?
pub fn is_preparing() -> bool {
    PREPARING.get()
}

/// The engine has given up what the transaction has read: it uses our tables no more.
pub fn let_go() {
    LET_GO.set(true);
}

/// See [`let_go`].
#[inline]
pub fn has_let_go() -> bool {
    LET_GO.get()
}

/// The transaction has ended.
pub fn end_transaction() {
    COMMITTING.set(false);
    LET_GO.set(false);
    PREPARING.set(false);
}
