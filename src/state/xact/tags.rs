//! Lock tags of subtransactions, and of locks that are given up early: what waiters for their locks
//! sleep on.

use crate::pg::local::Local;
use crate::state::{platform, shmem};
use mixedcc_engine::platform::{AT_COMMIT, EARLY};
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::Txn;
use pgrx::pg_sys;

/// Of the transaction: tags that hold a heavyweight lock now: depth of the subtransaction, tag.
static TAGS: Local<Vec<(i32, u32)>> = Local::new(Vec::new());

fn tags() -> &'static mut Vec<(i32, u32)> {
    // SAFETY: a process has one thread, and no caller keeps the reference across a call that comes
    // back here.
    unsafe { TAGS.get_mut() }
}

fn of(level: i32) -> Option<u32> {
    tags().iter().find(|t| t.0 == level).map(|t| t.1)
}

/// Runs `f` with the subtransaction's own resource owner: PostgreSQL hands its locks to the parent.
///
/// # Safety
/// Within a transaction. An ERROR of `f` ends the subtransaction.
unsafe fn as_owner(f: impl FnOnce()) {
    // SAFETY: `CurTransactionResourceOwner` is the owner of the current subtransaction, as
    // `owned_by` wants.
    unsafe { owned_by(pg_sys::CurTransactionResourceOwner, f) }
}

/// Runs `f` with a resource owner.
///
/// # Safety
/// A resource owner of the running transaction. An ERROR of `f` ends the subtransaction.
pub(super) unsafe fn owned_by(owner: pg_sys::ResourceOwner, f: impl FnOnce()) {
    // SAFETY: `owner` lives while `f` runs (contract of this function). An ERROR ends the
    // subtransaction, which sets its owner again.
    unsafe {
        let before = pg_sys::CurrentResourceOwner;
        pg_sys::CurrentResourceOwner = owner;
        f();
        pg_sys::CurrentResourceOwner = before;
    }
}

fn next_tag() -> u32 {
    let last = &shmem::engine().slots[shmem::my_slot() as usize].last_tag;
    (last.fetch_add(1, Ordering::SeqCst) + 1) & !(EARLY | AT_COMMIT)
}

/// A tag with this bit for locks that may be given up before the transaction ends: a heavyweight
/// lock of that name, the top transaction's.
pub fn early_lock_tag(bit: u32) -> u32 {
    let tag = next_tag() | bit;
    // SAFETY: a transaction is running, so it has an owner. An ERROR unwinds before anything has
    // changed.
    unsafe {
        owned_by(pg_sys::TopTransactionResourceOwner, || {
            pg_sys::LockAcquire(&lock_tag_of(tag), pg_sys::ExclusiveLock as i32, false, false);
        });
    }
    tag
}

/// The locks of an early tag are given up: their waiters go on.
pub fn give_up(tag: u32) {
    // SAFETY: `early_lock_tag` took the lock in this transaction, for the same owner. In an abort
    // this runs before locks are released.
    unsafe {
        owned_by(pg_sys::TopTransactionResourceOwner, || {
            pg_sys::LockRelease(&lock_tag_of(tag), pg_sys::ExclusiveLock as i32, false);
        });
    }
}

/// The name of the transaction is the one that its slot shows: in the COMMIT callback PostgreSQL
/// has taken it from the process already.
fn lock_tag_of(tag: u32) -> pg_sys::LOCKTAG {
    let slot = shmem::my_slot();
    let ident = shmem::engine().slots[slot as usize].ident.load(Ordering::SeqCst);
    platform::subxact_tag(slot, ident, tag)
}

/// Tag of the current subtransaction for its locks: waiters wait for the heavyweight lock of that
/// name, which PostgreSQL releases with the subtransaction, or hands to its parent. 0 at the top.
pub fn subxact_lock_tag() -> u32 {
    // SAFETY: a transaction is running, so it has an owner. An ERROR unwinds before anything has
    // changed.
    unsafe {
        let level = pg_sys::GetCurrentTransactionNestLevel();
        if level <= 1 {
            return 0;
        }
        if let Some(t) = of(level) {
            return t;
        }
        let tag = next_tag();
        as_owner(|| {
            pg_sys::LockAcquire(&lock_tag_of(tag), pg_sys::ExclusiveLock as i32, false, false);
        });
        tags().push((level, tag));
        tag
    }
}

/// The subtransaction at `level` commits: its locks are its parent's. They get the parent's tag,
/// so that a loop of subtransactions does not fill PostgreSQL's lock table.
pub fn hand_to_parent(txn: &mut Txn, level: u32) {
    let level = level as i32;
    let Some(at) = tags().iter().position(|t| t.0 == level) else { return };
    let tag = tags()[at].1;
    let parent = if level <= 2 { Some(0) } else { of(level - 1) };
    let Some(parent) = parent else {
        // The parent has none of its own: it takes this one, and PostgreSQL gives it the lock.
        tags()[at].0 = level - 1;
        return;
    };
    txn.retag(level as u32, tag, parent);
    tags().swap_remove(at);
    // SAFETY: this subtransaction took the lock, or was handed it by a child: its owner has it.
    unsafe {
        as_owner(|| {
            pg_sys::LockRelease(&lock_tag_of(tag), pg_sys::ExclusiveLock as i32, false);
        });
    }
}

/// The subtransaction at `level` aborted: PostgreSQL releases its locks.
pub fn drop_from(level: u32) {
    tags().retain(|t| (t.0 as u32) < level);
}

/// Forgets all.
pub fn end_transaction() {
    tags().clear();
}
