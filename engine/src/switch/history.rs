//! The last switches, in a ring that all processes may read and add to.

use super::state::{Done, Why};
use crate::name::Name;
use crate::primitive::{relax, AtomicU64, Ordering};
use crate::protocol::ProtocolSet;
use std::ops::Range;

/// The number of switches that the history remembers.
pub const HISTORY: usize = 256;

/// A complete switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The number of the switch since the start, from 0.
    pub number: u64,
    /// The id of the table.
    pub table: u64,
    /// The platform's identifier of its storage.
    pub key: [u32; 4],
    /// Its name at that time, if it had one. It may be dropped or have another one by now.
    pub name: Option<String>,
    /// The partition.
    pub partition: u32,
    /// The switch.
    pub done: Done,
}

const WORDS: usize = 9;

/// An entry. `seq` is twice its number + 2, and odd while it is being written.
#[repr(C)]
struct Cell {
    seq: AtomicU64,
    words: [AtomicU64; WORDS],
    name: Name,
}

/// The ring. All-zero is an empty one.
#[repr(C)]
pub struct History {
    next: AtomicU64,
    cells: [Cell; HISTORY],
}

fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

impl History {
    /// The number of switches so far.
    pub fn len(&self) -> u64 {
        self.next.load(Ordering::SeqCst)
    }
    /// Was there none?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a switch of the table with this id, storage and name.
    pub fn push(&self, table: u64, key: [u32; 4], name: Option<&str>, partition: u32, d: Done) {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        self.write(number, table, key, name, partition, d);
    }

    fn write(&self, number: u64, table: u64, key: [u32; 4], name: Option<&str>, partition: u32, d: Done) {
        let c = self.cell(number);
        let mut n = 0;
        // Another writer may be a lap behind. It finishes its few stores first.
        let seq = loop {
            let s = c.seq.load(Ordering::SeqCst);
            if s > 2 * number {
                return; // This one is a lap behind: its entry is gone already.
            }
            let free = s & 1 == 0;
            if free && c.seq.compare_exchange(s, 2 * number + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                break 2 * number + 2;
            }
            relax(n);
            n += 1;
        };
        const { assert!(ProtocolSet::BITS <= 8) };
        let sets = d.from.bits() | d.to.bits() << 8 | (d.why as u32) << 16;
        let words = [
            table,
            pair(key[0], key[1]),
            pair(key[2], key[3]),
            pair(partition, d.by),
            sets as u64,
            d.times[0],
            d.times[1],
            d.times[2],
            d.times[3],
        ];
        for (to, w) in c.words.iter().zip(words) {
            to.store(w, Ordering::SeqCst);
        }
        c.name.set(name.unwrap_or_default());
        c.seq.store(seq, Ordering::SeqCst);
    }

    /// The switches that are remembered, oldest first.
    pub fn entries(&self) -> Vec<Entry> {
        self.numbers().filter_map(|n| self.entry(n)).collect()
    }

    /// The numbers of those, and of some that their processes have not written yet.
    fn numbers(&self) -> Range<u64> {
        let end = self.len();
        end.saturating_sub(HISTORY as u64)..end
    }

    /// The remembered switches from the number `from` on, oldest first, and the number to begin
    /// with next time. It stops at one whose process has not written it yet, so that a reader that
    /// goes on from there misses none of them.
    pub fn since(&self, from: u64) -> (Vec<Entry>, u64) {
        let Range { start, end } = self.numbers();
        let mut all = Vec::new();
        for n in from.max(start)..end {
            match self.entry(n) {
                Some(entry) => all.push(entry),
                None if self.is_to_come(n) => return (all, n),
                // Another one has its place by now.
                None => {}
            }
        }
        (all, end)
    }

    /// Is the entry with this number not written yet?
    fn is_to_come(&self, number: u64) -> bool {
        self.cell(number).seq.load(Ordering::SeqCst) < 2 * number + 2
    }

    fn cell(&self, number: u64) -> &Cell {
        &self.cells[number as usize % HISTORY]
    }

    fn entry(&self, number: u64) -> Option<Entry> {
        let c = self.cell(number);
        let whole = |c: &Cell| c.seq.load(Ordering::SeqCst) == 2 * number + 2;
        if !whole(c) {
            return None;
        }
        let w: [u64; WORDS] = std::array::from_fn(|i| c.words[i].load(Ordering::SeqCst));
        let done = Done {
            from: ProtocolSet::from_bits(w[4] as u32 & ProtocolSet::MASK),
            to: ProtocolSet::from_bits((w[4] >> 8) as u32 & ProtocolSet::MASK),
            by: (w[3] >> 32) as u32,
            why: Why::from_bits(w[4] >> 16),
            times: [w[5], w[6], w[7], w[8]],
        };
        let key = [w[1] as u32, (w[1] >> 32) as u32, w[2] as u32, (w[2] >> 32) as u32];
        let name = c.name.get();
        whole(c).then_some(Entry { number, table: w[0], key, name, partition: w[3] as u32, done })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::protocol::Protocol;

    fn history() -> Box<History> {
        // SAFETY: all-zero memory is an empty history.
        unsafe { Box::new(std::mem::zeroed()) }
    }

    fn done(n: u64) -> Done {
        Done {
            from: ProtocolSet::of(Protocol::Occ),
            to: ProtocolSet::of(Protocol::TwoPhase),
            by: n as u32,
            why: Why::AtOnce,
            times: [n, n + 1, n + 2, n + 3],
        }
    }

    #[test]
    fn who_goes_on_from_a_number_misses_no_slow_writer() {
        let h = history();
        let push = |n| h.push(1, [1; 4], None, 0, done(n));
        let seen = |from| {
            let (all, next) = h.since(from);
            (all.iter().map(|e| e.number).collect::<Vec<_>>(), next)
        };
        assert_eq!(seen(0), (vec![], 0));
        push(0);
        // Another process has taken the number 1, and has not written its entry.
        h.next.fetch_add(1, Ordering::SeqCst);
        push(2);
        assert_eq!(seen(0), (vec![0], 1));
        assert_eq!(seen(1), (vec![], 1));
        h.cells[1].seq.store(3, Ordering::SeqCst);
        assert_eq!(seen(1), (vec![], 1));
        h.cells[1].seq.store(0, Ordering::SeqCst);
        h.write(1, 1, [1; 4], None, 0, done(1));
        assert_eq!(seen(1), (vec![1, 2], 3));
        assert_eq!(seen(3), (vec![], 3));
        // A reader that is a lap behind goes on with the entries that are left.
        (3..300).for_each(push);
        assert_eq!(seen(3), ((300 - HISTORY as u64..300).collect(), 300));
        // One that is a lap behind in a process: its place has another entry.
        let taken = h.next.fetch_add(1, Ordering::SeqCst);
        (taken + 1..taken + 1 + HISTORY as u64).for_each(push);
        h.write(taken, 1, [1; 4], None, 0, done(taken));
        assert_eq!(seen(taken), ((taken + 1..taken + 1 + HISTORY as u64).collect(), taken + 1 + HISTORY as u64));
    }

    #[test]
    fn entries_come_back_whole_and_in_order() {
        let h = history();
        assert!(h.entries().is_empty());
        std::thread::scope(|s| {
            for t in 0..4u64 {
                let h = &h;
                s.spawn(move || {
                    for i in 0..200 {
                        let name = format!("d.s.t{t}");
                        let name = (i % 2 == 0).then_some(name.as_str());
                        h.push(t, [1, 2, 3, t as u32], name, i, done(t * 1000 + i as u64));
                    }
                });
            }
            for _ in 0..50 {
                for e in h.entries() {
                    let n = e.done.times[0];
                    assert_eq!((e.table, e.key[3] as u64, e.partition as u64), (n / 1000, n / 1000, n % 1000));
                    assert_eq!(e.name, (n % 2 == 0).then(|| format!("d.s.t{}", n / 1000)));
                    assert_eq!(e.done, done(n));
                }
            }
        });
        let all = h.entries();
        assert_eq!((all.len(), h.len()), (HISTORY, 800));
        assert!(all.windows(2).all(|w| w[0].number + 1 == w[1].number));
    }
}
