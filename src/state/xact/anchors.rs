//! Moments before the start of replication slots. Sessions that import the snapshot of such a slot
//! (CREATE_REPLICATION_SLOT ... EXPORT_SNAPSHOT) read our tables by them, as `copies` does. No hook
//! comes before a slot is made, so the companion keeps such a moment at all times.
//!
//! **INV-ANCHOR**: The anchor lies before the start of each logical replication slot that is being
//! made, and of each one whose snapshot a WAL sender still has. All versions that were replaced
//! since stay, by the pin of a slot of the engine that has no process. Of some commits the entries
//! in the list of recent ones (INV-RECENT) are at `from` or behind that: of those with a
//! transaction id that were not done at the anchor, or have begun since.
//!
//! Why it holds: the companion pins the next anchor and notes it. Then it looks for slots that are
//! being made, and after that for WAL senders with snapshots. If there is one, the old anchor
//! stays. Else each slot that is made from now on starts later than the next anchor, which takes
//! the place of the old one. PostgreSQL enters a slot before it chooses its start, and its maker
//! has the snapshot for its own before it lets go of the slot (walsender.c, CreateReplicationSlot).

use super::copies::{self, Shared, ROOM};
use crate::pg::compat;
use crate::pg::faults::{self, Fault};
use crate::state::{rounds, shmem, slots};
use mixedcc_engine::primitive::{AtomicU64, Ordering};
use mixedcc_engine::recent::{Found, Recent};
use mixedcc_engine::Engine;

/// An anchor in shared memory.
#[repr(C)]
struct Words {
    from: AtomicU64,
    last_table: AtomicU64,
}

/// Two of them, of which one is current. All-zero: none is.
#[repr(C)]
pub struct Anchors {
    /// Its number + 1. Only the companion writes it.
    current: AtomicU64,
    of: [Words; 2],
}

/// What a session adopts.
pub struct Anchor {
    /// The first entry of the list of recent commits that may matter.
    pub from: u64,
    /// Tables with larger numbers have got their rows into memory since.
    pub last_table: u64,
}

/// Moves the anchor to the present, if no slot and no exported snapshot needs the old one. Only the
/// companion calls it.
pub fn renew() {
    let Some(shared) = copies::shared().filter(|_| !compat::in_recovery()) else { return };
    let (e, anchors) = (shmem::engine(), &shared.anchors);
    if is_needed() {
        return;
    }
    let current = anchors.current.load(Ordering::SeqCst);
    let next = current % 2;
    let words = &anchors.of[next as usize];
    let slot = slots::anchor(next as usize);
    e.pin(slot);
    let before = if current == 0 { 0 } else { anchors.of[current as usize - 1].from.load(Ordering::SeqCst) };
    let from = first_open(&e, copies::recent(shared), before);
    words.from.store(from.unwrap_or(before), Ordering::SeqCst);
    words.last_table.store(e.shared.last_table.load(Ordering::SeqCst), Ordering::SeqCst);
    if from.is_none() || is_needed() {
        e.unpin(slot);
        return;
    }
    anchors.current.store(next + 1, Ordering::SeqCst);
    if current != 0 {
        e.unpin(slots::anchor(current as usize - 1));
    }
}

/// A table has got its number: an anchor that knows it is to come soon.
pub fn note_table() {
    if copies::shared().is_some() {
        rounds::wake();
    }
}

/// Does a slot or an exported snapshot need the present anchor? In this order (INV-ANCHOR).
fn is_needed() -> bool {
    // A first copy keeps what it needs itself.
    let needs = |proc: compat::ProcNo| !slots::of_proc(proc).is_some_and(copies::keeps);
    !faults::on(Fault::AnchorDrags) && (compat::makes_slot() || compat::senders_with_snapshots().any(needs))
}

/// The first entry of a commit that is not done; else the next entry. Commits that were not done at
/// the anchor before have theirs at `before` or behind it. `None`: it cannot be told now, because
/// the list has lost entries since.
fn first_open(e: &Engine, list: Recent, before: u64) -> Option<u64> {
    let end = list.next();
    let mut open = Vec::new();
    e.take_seen(&mut open);
    // One without an id comes into the list later, or never. One that is done was logged.
    open.retain(|(csn, of)| e.slots[*of as usize].xid.load(Ordering::SeqCst) != 0 && e.open_commit(*of) == *csn);
    if open.is_empty() {
        return Some(end);
    }
    let last = list.next();
    let begin = before.max(last.saturating_sub(ROOM as u64));
    let (mut first, mut lost) = (end, begin > before);
    for n in begin..last {
        match list.read(n) {
            Found::Entry(entry) => {
                let all = open.len();
                open.retain(|(csn, _)| *csn != entry.csn);
                if open.len() < all {
                    first = first.min(n);
                }
            }
            Found::NotYet => first = first.min(n),
            Found::Lost => lost = true,
        }
    }
    // A commit that is not found is yet to come into the list, if that has lost none.
    (!lost || open.is_empty()).then_some(first)
}

/// The anchor. It does not move while a WAL sender has the snapshot that it has exported.
pub fn current(shared: &Shared) -> Option<Anchor> {
    let current = shared.anchors.current.load(Ordering::SeqCst);
    let words = shared.anchors.of.get((current as usize).checked_sub(1)?)?;
    Some(Anchor { from: words.from.load(Ordering::SeqCst), last_table: words.last_table.load(Ordering::SeqCst) })
}
