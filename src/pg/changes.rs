//! Changes of relations, of which PostgreSQL tells each process. It has room for ten callbacks
//! (inval.c, MAX_RELCACHE_CALLBACKS). A WAL sender of Citus needs nine of them with its own, those
//! of pgoutput and those of PostgreSQL. So all of this library share one.

use crate::pg::local::Local;
use pgrx::pg_sys::{self, Datum, Oid};

/// Gets the relation that has changed; the invalid OID: any may have. It must not fail.
pub type Listener = fn(Oid);

/// Of the process, which inherits it from the one that has loaded the library.
static LISTENERS: Local<Vec<Listener>> = Local::new(Vec::new());

/// Has the function called at each change. Only `_PG_init` may call it.
pub fn listen(listener: Listener) {
    // SAFETY: `_PG_init` runs alone, and no change is told meanwhile.
    let listeners = unsafe { LISTENERS.get_mut() };
    if listeners.is_empty() {
        // SAFETY: as above; the callback is a function of this library, which is never unloaded.
        unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(changed), Datum::from(0)) };
    }
    listeners.push(listener);
}

unsafe extern "C-unwind" fn changed(_arg: Datum, relation: Oid) {
    // SAFETY: one thread; the list does not change after `_PG_init`.
    for listener in unsafe { LISTENERS.get_mut() } {
        listener(relation);
    }
}

/// So many messages had come when a transaction ended last, and the listeners had heard of all.
static HEARD: Local<u64> = Local::new(0);

/// Messages of changes that this process has begun to work through (sinval.c).
fn messages() -> u64 {
    extern "C" {
        static SharedInvalidMessageCounter: u64;
    }
    // SAFETY: a variable of this process, which its one thread writes.
    unsafe { (&raw const SharedInvalidMessageCounter).read_volatile() }
}

/// A transaction ends well: no message was left half done.
pub fn note_end() {
    HEARD.set(messages());
}

/// A transaction or subtransaction aborts. PostgreSQL first rebuilds its own entries of a relation
/// that has changed, and calls listeners then. An ERROR in between leaves the listeners uncalled,
/// and the message does not come again. So if messages have come, any relation may have changed.
pub fn after_error() {
    if HEARD.get() != messages() {
        // SAFETY: the arguments are those of a change of any relation.
        unsafe { changed(Datum::from(0), pg_sys::InvalidOid) };
        HEARD.set(messages());
    }
}
