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
