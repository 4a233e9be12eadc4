//! A platform of threads that sleep until they are woken up. Queues are first come, first served,
//! and there is a deadlock timeout, as in a database server. The engine's own platform polls, at a
//! cost that grows with the number of waiting threads.

use mixedcc_engine::csn::{SlotId, State};
use mixedcc_engine::platform::{Napped, Platform, Queue, WaitFor};
use mixedcc_engine::primitive::relax;
use mixedcc_engine::{Engine, Error};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// The time after which a waiter searches for a deadlock that the engine has not found at once. As
/// in PostgreSQL it is some hundred times the duration of a transaction.
const DEADLOCK_TIMEOUT: Duration = Duration::from_millis(10);

/// The wake-up state of one slot.
#[derive(Default)]
struct Bed {
    waiters: AtomicU32,
    lock: Mutex<()>,
    wake: Condvar,
}

/// The state that all threads share.
pub struct Dormitory {
    beds: Vec<Bed>,
    queues: Mutex<HashMap<Queue, VecDeque<SlotId>>>,
    turns: Vec<Condvar>,
    edges: Mutex<HashMap<SlotId, SlotId>>,
}

fn guard<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}

impl Dormitory {
    pub fn new(slots: usize) -> Arc<Dormitory> {
        Arc::new(Dormitory {
            beds: (0..slots).map(|_| Bed::default()).collect(),
            queues: Mutex::default(),
            turns: (0..slots).map(|_| Condvar::new()).collect(),
            edges: Mutex::default(),
        })
    }

    fn closes_a_cycle(&self, me: SlotId) -> bool {
        let edges = guard(&self.edges);
        let mut at = me;
        for _ in 0..=edges.len() {
            match edges.get(&at) {
                Some(&next) if next == me => return true,
                Some(&next) => at = next,
                None => return false,
            }
        }
        false
    }
}

pub struct Outside {
    e: Engine,
    me: SlotId,
    all: Arc<Dormitory>,
}

impl Outside {
    pub fn new(e: Engine, me: SlotId, all: Arc<Dormitory>) -> Outside {
        Outside { e, me, all }
    }

    /// Called when the transaction of this slot is over: its waiters go on.
    pub fn ended(&self) {
        let bed = &self.all.beds[self.me as usize];
        if bed.waiters.load(Ordering::SeqCst) != 0 {
            drop(guard(&bed.lock));
            bed.wake.notify_all();
        }
    }

    fn point_at(&self, who: Option<SlotId>) {
        let mut edges = guard(&self.all.edges);
        match who {
            Some(who) => edges.insert(self.me, who),
            None => edges.remove(&self.me),
        };
    }
}

impl Platform for Outside {
    fn wait_for(&self, who: WaitFor) -> Result<(), Error> {
        let bed = &self.all.beds[who.slot as usize];
        bed.waiters.fetch_add(1, Ordering::SeqCst);
        self.point_at(Some(who.slot));
        let mut held = guard(&bed.lock);
        let mut deadlock = false;
        loop {
            let same = self.e.slots[who.slot as usize].ident.load(Ordering::SeqCst) == who.ident;
            if !same || self.e.word(who.slot).state() == State::Idle {
                break;
            }
            let (again, late) = bed.wake.wait_timeout(held, DEADLOCK_TIMEOUT).unwrap_or_else(|e| e.into_inner());
            held = again;
            if late.timed_out() && self.all.closes_a_cycle(self.me) {
                deadlock = true;
                break;
            }
        }
        drop(held);
        self.point_at(None);
        bed.waiters.fetch_sub(1, Ordering::SeqCst);
        if deadlock {
            return Err(Error::Deadlock);
        }
        Ok(())
    }

    fn enter_queue(&self, q: Queue) -> Result<(), Error> {
        let mut queues = guard(&self.all.queues);
        queues.entry(q).or_default().push_back(self.me);
        loop {
            let queue = &queues[&q];
            let at = queue.iter().position(|s| *s == self.me).expect("it is in the queue");
            if at == 0 {
                self.point_at(None);
                return Ok(());
            }
            self.point_at(Some(queue[at - 1]));
            let turn = &self.all.turns[self.me as usize];
            let (again, late) = turn.wait_timeout(queues, DEADLOCK_TIMEOUT).unwrap_or_else(|e| e.into_inner());
            queues = again;
            if late.timed_out() && self.all.closes_a_cycle(self.me) {
                self.point_at(None);
                drop(queues);
                self.leave_queue(q);
                return Err(Error::Deadlock);
            }
        }
    }

    fn leave_queue(&self, q: Queue) {
        let mut queues = guard(&self.all.queues);
        let Some(queue) = queues.get_mut(&q) else { return };
        queue.retain(|s| *s != self.me);
        match queue.front() {
            Some(&next) => self.all.turns[next as usize].notify_one(),
            None => drop(queues.remove(&q)),
        }
    }

    fn stand_back(&self, _: Queue, _: u32) -> Result<Napped, Error> {
        let turn = &self.all.turns[self.me as usize];
        // A nudge from before the nap is missed.
        drop(turn.wait_timeout(guard(&self.all.queues), Duration::from_millis(1)));
        Ok(Napped::Short)
    }
    fn nudge(&self, slot: SlotId) {
        self.all.turns[slot as usize].notify_one();
    }

    fn pause(&self, n: u32) -> Result<(), Error> {
        relax(n);
        Ok(())
    }
    fn lock_tag(&self) -> u32 {
        0
    }
    fn quiescent(&self, _: SlotId) -> bool {
        false
    }
}
