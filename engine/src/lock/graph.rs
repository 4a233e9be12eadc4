//! The waits-for graph of the transactions, stored in their slots. The transaction whose sleep
//! would complete a deadlock finds it at once.
//!
//! **INV-CYCLE**: A cycle that is found existed at one moment, with all of its transactions asleep
//! or about to sleep; and the last member of a cycle to sleep finds it. A transaction publishes its
//! edge before it looks for a cycle and before it sleeps, and takes the edge back after the sleep.
//! So the member that publishes last sees all other edges. While its edge is published the owner
//! does nothing. It sleeps to the end of the transaction that it waits for, or until that
//! transaction gives up locks early. A holder counts locks that it gives up (`early_releases`)
//! before it sleeps itself, so that an edge from before leads nowhere; the edge's owner wakes up
//! and looks again. Every change advances `turn`: if all turns on a path are the same before and
//! after the search, all of its edges existed in between.
//!
//! A newcomer that stands back behind a waiter (INV-TURN) publishes an edge to it too, a *soft*
//! one: no holder conflicts. A cycle with a soft edge is no deadlock, because the newcomer can take
//! the lock: it passes. If the newcomer completes such a cycle, it sees that before it stands back.
//! If another transaction completes one, that wakes the newcomer up and sleeps. The newcomer
//! searches again whenever it wakes up, and passes. So a cycle with a soft edge lasts for one nap
//! at most.
//!
//! A part of a range that another transaction has read (`txn/parts.rs`) counts as a lock of that
//! transaction: a writer that waits for the part waits for the transaction's end.
//!
//! An edge names one holder even if a lock has several. The waiter finds the others when it wakes
//! up and waits for the next. An edge for a lock of one scan also leads nowhere if its holder has
//! given up the locks of another scan since.
//!
//! Two kinds of waits are not in the graph, and are left to the platform's deadlock detector. One
//! is the wait for a lock of a subtransaction, which may end before its transaction. The other is a
//! wait that the platform makes by itself.

use super::{LockWord, Mode};
use crate::csn::SlotId;
use crate::faults::{self, Fault};
use crate::platform::{Queue, WaitFor};
use crate::primitive::{AtomicU64, Ordering};
use crate::shared::Engine;

/// The longest path that is followed. Longer cycles are left to the platform's detector.
const LONGEST: usize = 32;

/// The edge that a slot's owner has published. All zero: none.
#[repr(C)]
pub(crate) struct Waiting {
    /// Odd while the next five fields are an edge.
    turn: AtomicU64,
    /// Slot of the holder, plus 1. 0: the owner waits for a place in `queue`.
    holder: AtomicU64,
    /// The holder's transaction.
    ident: AtomicU64,
    /// The holder's `early_releases` when it was seen to hold the lock, plus 1. 0: it holds the
    /// lock to its end.
    until: AtomicU64,
    /// A queue, by a hash that is not 0.
    queue: AtomicU64,
    /// 1: the owner stands back behind a waiter, and no holder conflicts.
    soft: AtomicU64,
    /// The queue in which the owner is the first waiter. 0: none.
    first_in: AtomicU64,
    /// Address of the lock word that the owner has marked as first waiter of a queue. 0: none.
    marked: AtomicU64,
    /// How often the owner of this slot has given up locks early.
    early_releases: AtomicU64,
}

/// The event that a transaction is about to sleep for.
#[derive(Clone, Copy)]
pub(crate) enum Edge {
    /// The end of the transaction with this ident in this slot.
    Holder(SlotId, u64),
    /// The transaction gives up a lock, or ends. The last number is its `early_releases` before it
    /// was seen to hold this lock.
    Early(SlotId, u64, u64),
    /// To become the first waiter of this queue.
    Queue(u64),
}

/// A queue's name in the graph. Two queues with the same name would produce a false deadlock; the
/// chance is one in 2^63.
pub(crate) fn name(q: Queue) -> u64 {
    let mix = |h: u64, v: u64| (h ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_add(v);
    let (kind, a, b, c) = match q {
        Queue::Record(t, n) => (1, t, n, 0),
        Queue::Partition(t, n) => (2, t, n as u64, 0),
        Queue::Range(t, index, n) => (3, t, index, n as u64),
    };
    [a, b, c].into_iter().fold(kind, mix) | 1
}

/// A published edge. Dropping it withdraws the edge, also when the platform unwinds.
pub(crate) struct PublishedEdge(Engine, SlotId);

impl Drop for PublishedEdge {
    fn drop(&mut self) {
        self.0.slots[self.1 as usize].waiting.end();
    }
}

/// A place as first waiter, with its mark. Dropping it gives up both.
pub(crate) struct First(Engine, SlotId);

impl First {
    /// Notes the slot as the first waiter of a queue.
    pub(crate) fn enter(e: Engine, slot: SlotId, queue: u64) -> First {
        e.slots[slot as usize].waiting.first_in.store(queue, Ordering::SeqCst);
        First(e, slot)
    }
    /// Makes newcomers stay behind from now on (INV-TURN). The word of a lock is neither freed nor
    /// reused while a transaction may wait for it or mark it.
    pub(crate) fn mark(&self, word: &'static LockWord, wants: Mode) {
        // The address comes first: the end of the transaction removes the mark of the word named
        // there.
        self.0.slots[self.1 as usize].waiting.marked.store(std::ptr::from_ref(word) as u64, Ordering::SeqCst);
        word.mark(Some(wants));
    }
}

impl Drop for First {
    fn drop(&mut self) {
        self.0.slots[self.1 as usize].waiting.leave();
    }
}

impl Waiting {
    fn publish(&self, edge: Edge, soft: bool) {
        self.end();
        let (holder, ident, until, queue) = match edge {
            Edge::Holder(slot, ident) => (slot as u64 + 1, ident, 0, 0),
            Edge::Early(slot, ident, early_releases) => (slot as u64 + 1, ident, early_releases + 1, 0),
            Edge::Queue(queue) => (0, 0, 0, queue),
        };
        self.holder.store(holder, Ordering::SeqCst);
        self.ident.store(ident, Ordering::SeqCst);
        self.until.store(until, Ordering::SeqCst);
        self.queue.store(queue, Ordering::SeqCst);
        self.soft.store(soft as u64, Ordering::SeqCst);
        self.turn.fetch_add(1, Ordering::SeqCst);
    }

    fn end(&self) {
        // Only the owner changes it.
        if self.turn.load(Ordering::Relaxed) & 1 == 1 {
            self.turn.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Withdraws everything when the transaction is over, however it ended.
    pub(crate) fn clear(&self) {
        self.end();
        if self.first_in.load(Ordering::Relaxed) != 0 {
            self.leave();
        }
    }

    /// The owner is no longer the first waiter of its queue. Removes its mark, unless it was
    /// removed when the owner got the lock.
    fn leave(&self) {
        let marked = self.marked.swap(0, Ordering::SeqCst) as *const LockWord;
        if !marked.is_null() && !faults::on(Fault::MarkLeftBehind) {
            // SAFETY: INV-TURN: a word is neither freed nor reused while it is marked or waited
            // for.
            unsafe { &*marked }.mark(None);
        }
        self.first_in.store(0, Ordering::SeqCst);
    }

    /// The edge, the value of `turn`, and whether the edge is soft.
    fn edge(&self) -> Option<(u64, Edge, bool)> {
        let turn = self.turn.load(Ordering::SeqCst);
        if turn & 1 == 0 {
            return None;
        }
        let edge = match self.holder.load(Ordering::SeqCst) {
            0 => Edge::Queue(self.queue.load(Ordering::SeqCst)),
            n => {
                let (slot, ident) = ((n - 1) as SlotId, self.ident.load(Ordering::SeqCst));
                match self.until.load(Ordering::SeqCst) {
                    0 => Edge::Holder(slot, ident),
                    early_releases => Edge::Early(slot, ident, early_releases - 1),
                }
            }
        };
        let soft = self.soft.load(Ordering::SeqCst) != 0;
        (self.turn.load(Ordering::SeqCst) == turn).then_some((turn, edge, soft))
    }
}

/// Where the path that begins with a slot's edge leads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Path {
    /// Not back to the slot.
    Away,
    /// Back to the slot, through holders and queues only.
    Back,
    /// Back to the slot, through this other slot that stands back.
    Soft(SlotId),
}

/// An edge that the search has seen.
#[derive(Clone, Copy)]
struct Step {
    slot: SlotId,
    turn: u64,
    edge: Edge,
}

impl Engine {
    /// Publishes the edge of a slot that is about to sleep. Returns `None`, and publishes nothing,
    /// if the sleep would complete a deadlock. `nudge` wakes up a slot that stands back and must
    /// now pass.
    pub(crate) fn publish_wait(&self, slot: SlotId, edge: Edge, nudge: impl FnOnce(SlotId)) -> Option<PublishedEdge> {
        self.slots[slot as usize].waiting.publish(edge, false);
        let asleep = PublishedEdge(*self, slot);
        match self.path_of(slot) {
            Path::Back if !faults::on(Fault::OverlooksCycles) => return None,
            Path::Soft(other) => nudge(other),
            _ => {}
        }
        Some(asleep)
    }

    /// Publishes the edge of a slot that is about to stand back behind a waiter. Returns `None`,
    /// and publishes nothing, if the slot must pass because the waiter waits for it or is gone.
    pub(crate) fn publish_soft_wait(&self, slot: SlotId, edge: Edge) -> Option<PublishedEdge> {
        self.slots[slot as usize].waiting.publish(edge, true);
        let asleep = PublishedEdge(*self, slot);
        let awaited = self.path_of(slot) != Path::Away && !faults::on(Fault::StandsBackForEver);
        (!awaited && self.leads_to(edge).is_some()).then_some(asleep)
    }

    /// The number of transactions that sleep for a lock, or are about to, and whose edges all
    /// others see. A transaction that stands back does not sleep for a lock.
    pub fn asleep(&self) -> usize {
        let waits = |w: &&Waiting| match w.edge() {
            Some((_, Edge::Queue(queue), false)) => self.first_in(queue).is_some(),
            Some((_, _, soft)) => !soft,
            None => false,
        };
        self.slots.iter().map(|s| &s.waiting).filter(waits).count()
    }

    /// The slots that stand back behind the owner of a slot, or behind the first waiter of a queue.
    pub(crate) fn behind(&self, first: SlotId, queue: u64) -> impl Iterator<Item = SlotId> {
        let behind = move |w: &Waiting| match w.edge() {
            Some((_, Edge::Queue(q), true)) => q == queue,
            Some((_, Edge::Holder(slot, _), true)) => slot == first,
            _ => false,
        };
        self.slots.iter().enumerate().filter(move |(_, s)| behind(&s.waiting)).map(|(i, _)| i as SlotId)
    }

    /// How often the owner of a slot has given up locks early.
    pub(crate) fn early_releases(&self, slot: SlotId) -> u64 {
        self.slots[slot as usize].waiting.early_releases.load(Ordering::SeqCst)
    }

    /// Counts that the owner of a slot has given up locks early. Transactions that waited for these
    /// locks no longer wait for it, and are about to wake up.
    pub(crate) fn note_early_release(&self, slot: SlotId) {
        self.slots[slot as usize].waiting.early_releases.fetch_add(1, Ordering::SeqCst);
    }

    /// Does the path that begins with the edge of `me` come back to it?
    fn path_of(&self, me: SlotId) -> Path {
        let mut path = [Step { slot: me, turn: 0, edge: Edge::Queue(0) }; LONGEST];
        let (mut at, mut soft) = (me, None);
        for n in 0..LONGEST {
            let Some((turn, edge, stands_back)) = self.slots[at as usize].waiting.edge() else { return Path::Away };
            path[n] = Step { slot: at, turn, edge };
            soft = soft.or((stands_back && at != me).then_some(at));
            let Some(next) = self.leads_to(edge) else { return Path::Away };
            if next == me {
                let there = path[..=n].iter().all(|s| self.is_still(s));
                return if there { soft.map_or(Path::Back, Path::Soft) } else { Path::Away };
            }
            if path[..=n].iter().any(|s| s.slot == next) {
                return Path::Away; // A cycle of other slots, which these find.
            }
            at = next;
        }
        Path::Away
    }

    /// The slot of the transaction that an edge leads to, if that transaction runs.
    fn leads_to(&self, edge: Edge) -> Option<SlotId> {
        let runs = |slot: SlotId, ident: u64| {
            self.slots.get(slot as usize).is_some_and(|s| s.ident.load(Ordering::SeqCst) == ident)
        };
        match edge {
            Edge::Holder(slot, ident) => runs(slot, ident).then_some(slot),
            Edge::Early(slot, ident, early_releases) => {
                (runs(slot, ident) && self.early_releases(slot) == early_releases).then_some(slot)
            }
            Edge::Queue(queue) => {
                let first = |w: &Waiting| w.first_in.load(Ordering::SeqCst) == queue;
                self.slots.iter().position(|s| first(&s.waiting)).map(|i| i as SlotId)
            }
        }
    }

    /// The transaction of a queue's first waiter, if there is one.
    pub(crate) fn first_in(&self, queue: u64) -> Option<WaitFor> {
        let slot = self.leads_to(Edge::Queue(queue))?;
        Some(WaitFor { ident: self.slots[slot as usize].ident.load(Ordering::SeqCst), slot, tag: 0, lock: None })
    }

    /// Is it still the edge that was seen, and does it lead to the same slot? A queue has one first
    /// waiter, and that stays the same while its own `turn` does.
    fn is_still(&self, s: &Step) -> bool {
        self.leads_to(s.edge).is_some() && self.slots[s.slot as usize].waiting.turn.load(Ordering::SeqCst) == s.turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::Block;

    /// Slots 0 to 3 run the transactions 10 to 13.
    fn engine() -> Block {
        let block = Block::new(8 << 20, 4).expect("memory");
        for (i, s) in block.engine.slots.iter().enumerate() {
            s.ident.store(10 + i as u64, Ordering::SeqCst);
        }
        block
    }
    fn holder(slot: SlotId) -> Edge {
        Edge::Holder(slot, 10 + slot as u64)
    }

    fn sleeps(e: Engine, slot: SlotId, edge: Edge) -> Option<PublishedEdge> {
        e.publish_wait(slot, edge, |other| panic!("{other} does not stand back"))
    }

    #[test]
    fn a_cycle_through_a_queue() {
        let block = engine();
        let e = block.engine;
        let queue = name(Queue::Record(1, 5));
        let first = First::enter(e, 0, queue);
        let waits = sleeps(e, 0, holder(2)).expect("2 does not wait");
        let queued = sleeps(e, 1, Edge::Queue(queue)).expect("2 does not wait");
        // 2 -> 1 -> the queue's first, 0 -> 2.
        assert!(sleeps(e, 2, holder(1)).is_none());
        assert!(e.slots[2].waiting.edge().is_none(), "what fails is not published");
        assert!(sleeps(e, 2, holder(3)).is_some());
        drop(waits);
        assert!(sleeps(e, 2, holder(1)).is_some(), "0 does not wait any more");
        let _waits = sleeps(e, 0, holder(2)).expect("2 does not wait");
        drop(first);
        assert!(sleeps(e, 2, holder(1)).is_some(), "the queue has no first waiter");
        let _first = First::enter(e, 0, queue);
        drop(queued);
        assert!(sleeps(e, 2, holder(1)).is_some(), "1 does not wait any more");
    }

    #[test]
    fn who_waits_for_a_transaction_that_is_over_does_not_count() {
        let block = engine();
        let e = block.engine;
        let _old = sleeps(e, 0, holder(1)).expect("1 does not wait");
        e.slots[1].ident.store(99, Ordering::SeqCst);
        assert!(sleeps(e, 1, holder(0)).is_some());
    }

    #[test]
    fn who_waits_for_what_was_given_up_does_not_count() {
        let block = engine();
        let e = block.engine;
        let _early = sleeps(e, 0, Edge::Early(1, 11, e.early_releases(1))).expect("1 does not wait");
        assert!(sleeps(e, 1, holder(0)).is_none(), "1 has the lock still");
        e.note_early_release(1);
        assert!(sleeps(e, 1, holder(0)).is_some());
        let _early = sleeps(e, 0, Edge::Early(1, 11, e.early_releases(1))).expect("1 does not wait");
        assert!(sleeps(e, 1, holder(0)).is_none(), "it waits for another one");
        drop(_early);
        let _to_the_end = sleeps(e, 0, holder(1)).expect("1 does not wait");
        e.note_early_release(1);
        assert!(sleeps(e, 1, holder(0)).is_none(), "that was not given up");
    }

    #[test]
    fn a_cycle_of_others_is_theirs() {
        let block = engine();
        let e = block.engine;
        e.slots[0].waiting.publish(holder(1), false);
        e.slots[1].waiting.publish(holder(0), false);
        assert!(sleeps(e, 2, holder(0)).is_some());
    }

    /// Slot 0 waits for 1. Slot 2 stands back behind 0, which is first in a queue or waits for a
    /// stronger mode.
    #[test]
    fn who_stands_back_is_woken_up_by_a_circle_and_passes() {
        let block = engine();
        let e = block.engine;
        let queue = name(Queue::Record(1, 5));
        for edge in [Edge::Queue(queue), holder(0)] {
            let _first = First::enter(e, 0, queue);
            let waits = sleeps(e, 0, holder(1)).expect("1 does not wait");
            let back = e.publish_soft_wait(2, edge).expect("no transaction waits for 2");
            assert_eq!(e.behind(0, queue).collect::<Vec<_>>(), [2]);
            let mut woken = None;
            let completes = e.publish_wait(1, holder(2), |slot| woken = Some(slot));
            assert!(completes.is_some() && woken == Some(2), "no deadlock: 2 can pass");
            drop(back);
            assert!(e.publish_soft_wait(2, edge).is_none(), "it has to pass");
            assert!(e.behind(0, queue).next().is_none());
            assert!(sleeps(e, 2, holder(0)).is_none(), "behind a holder it is a deadlock");
            drop(completes);
            drop(waits);
            assert!(e.publish_soft_wait(2, edge).is_some());
        }
        assert!(e.publish_soft_wait(2, Edge::Queue(queue)).is_none(), "the waiter is gone");
    }

    #[test]
    fn a_mark_goes_with_its_waiter() {
        let block = engine();
        let e = block.engine;
        let word: &'static LockWord = Box::leak(Box::default());
        let first = First::enter(e, 0, 7);
        first.mark(word, Mode::Update);
        assert!(!word.is_free());
        drop(first);
        assert!(word.is_free());
        let first = First::enter(e, 0, 7);
        first.mark(word, Mode::Update);
        std::mem::forget(first);
        e.slots[0].waiting.clear();
        assert!(word.is_free(), "also where its process has ended");
        // SAFETY: it came from a box, and no reference to it is used any more.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(word).cast_mut()) });
    }

    #[test]
    fn what_a_dead_owner_left_is_cleared() {
        let block = engine();
        let e = block.engine;
        std::mem::forget(sleeps(e, 0, holder(1)));
        std::mem::forget(First::enter(e, 0, 7));
        e.slots[0].waiting.clear();
        assert!(sleeps(e, 1, holder(0)).is_some());
        assert_eq!(e.slots[0].waiting.first_in.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn queues_have_names_of_their_own() {
        let some = [
            Queue::Record(1, 2),
            Queue::Record(2, 1),
            Queue::Partition(1, 2),
            Queue::Range(1, 2, 0),
            Queue::Range(1, 0, 2),
        ];
        let names: std::collections::HashSet<_> = some.into_iter().map(name).collect();
        assert_eq!(names.len(), some.len());
    }
}
