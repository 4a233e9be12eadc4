//! The lessons of verification: how wrong the model's predictions were, and for which loads.
//!
//! A lesson is the result of one switch that was verified. Predictions for similar loads are
//! corrected by it. Its weight falls with the distance of the loads, and by half in `forget_us`. So
//! a protocol that was bad once is tried again, but less and less often if it stays bad: a lesson
//! that confirms another one doubles that time.

use super::features::{distance, FEATURES};
use crate::primitive::{AtomicU64, Ordering};
use crate::protocol::{Protocol, ProtocolSet};

/// The number of lessons remembered, over all tables.
pub const LESSONS: usize = 128;
/// A lesson is remembered at most 2^this times as long as one that stands alone.
const REPEATS: u32 = 6;
/// The weight of the model itself beside lessons.
const MODEL: f64 = 0.05;

/// The result of one switch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lesson {
    /// The table.
    pub table: u64,
    /// The protocol before, by its place in [`Protocol::ALL`].
    pub from: usize,
    /// The protocol after.
    pub to: usize,
    /// The load's features before the switch.
    pub features: [f64; FEATURES],
    /// The logarithm of the cost after the switch over the cost before.
    pub measured: f64,
    /// `measured` less the model's prediction.
    pub residual: f64,
    /// The number of lessons before it with the same result.
    pub repeats: u32,
    /// The time in microseconds.
    pub at_us: u64,
}

/// The number of words of a lesson, as it is shared and saved. It does not depend on the number of
/// protocols: a lesson names its two by their places in [`Protocol::ALL`], which never change.
pub const WORDS: usize = 6 + FEATURES;

impl Lesson {
    /// Packs the lesson into words.
    pub fn pack(&self) -> [u64; WORDS] {
        let mut w = [0; WORDS];
        w[0] = self.table;
        w[1] = self.from as u64 | (self.to as u64) << 8 | (self.repeats as u64) << 16;
        (w[2], w[3], w[4]) = (self.measured.to_bits(), self.residual.to_bits(), self.at_us);
        for (to, f) in w[6..].iter_mut().zip(self.features) {
            *to = f.to_bits();
        }
        w
    }
    /// Unpacks words. `None`: they are about a protocol that does not exist.
    pub fn unpack(w: &[u64; WORDS]) -> Option<Lesson> {
        let (from, to) = (w[1] as usize & 255, w[1] as usize >> 8 & 255);
        (from.max(to) < Protocol::COUNT).then(|| Lesson {
            table: w[0],
            from,
            to,
            repeats: (w[1] >> 16) as u32,
            measured: f64::from_bits(w[2]),
            residual: f64::from_bits(w[3]),
            at_us: w[4],
            features: std::array::from_fn(|i| f64::from_bits(w[6 + i])),
        })
    }
    /// Are all of its figures finite numbers?
    pub fn is_sound(&self) -> bool {
        self.features.iter().chain([&self.measured, &self.residual]).all(|f| f.is_finite())
    }
    fn age_weight(&self, now_us: u64, forget_us: u64) -> f64 {
        let half = forget_us.max(1) as f64 * f64::from(1u32 << self.repeats.min(REPEATS));
        0.5f64.powf(now_us.saturating_sub(self.at_us) as f64 / half)
    }
    /// Its weight for a load at present.
    pub fn weight(&self, f: &[f64; FEATURES], now_us: u64, forget_us: u64) -> f64 {
        let d = distance(f, &self.features);
        (-d * d / 2.0).exp() * self.age_weight(now_us, forget_us)
    }
}

/// All lessons.
#[derive(Clone, Debug, Default)]
pub struct Learned {
    all: Vec<Lesson>,
}

/// The lessons about the protocols other than the current one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Correction {
    /// The addition to the model's prediction for a protocol, relative to the current one.
    pub add: [f64; Protocol::COUNT],
    /// The weight of the lessons about it. 1: one new lesson for exactly this load.
    pub weight: [f64; Protocol::COUNT],
}

impl Learned {
    /// The stored lessons.
    pub fn new(all: Vec<Lesson>) -> Learned {
        Learned { all }
    }
    /// All lessons, oldest first.
    pub fn all(&self) -> &[Lesson] {
        &self.all
    }

    /// Adds a lesson; if there are too many, the oldest is forgotten. Partitions that were switched
    /// alike together give one lesson.
    pub fn add(&mut self, mut l: Lesson, forget_us: u64) {
        let same = |o: &&Lesson| {
            (o.table, o.from, o.to) == (l.table, l.from, l.to) && (o.measured > 0.0) == (l.measured > 0.0)
        };
        let once = |o: &Lesson| same(&o) && o.at_us == l.at_us && distance(&o.features, &l.features) < 1.0;
        if self.all.iter().any(once) {
            return;
        }
        let near = |o: &&Lesson| distance(&o.features, &l.features) < 1.0 && o.age_weight(l.at_us, forget_us) > 0.1;
        l.repeats = self.all.iter().filter(same).filter(near).map(|o| o.repeats + 1).max().unwrap_or(0);
        if self.all.len() == LESSONS {
            self.all.remove(0);
        }
        self.all.push(l);
    }

    /// The correction for a load of a table under its current protocol. The model has no costs of
    /// those that are `borrowed`.
    pub fn correction(
        &self,
        (table, now): (u64, usize),
        f: &[f64; FEATURES],
        at_us: u64,
        forget_us: u64,
        borrowed: ProtocolSet,
    ) -> Correction {
        let borrows = |p: usize| borrowed.has(Protocol::ALL[p]);
        let mut c = Correction::default();
        let (mut model, mut weights) = ([0.0; Protocol::COUNT], [0.0; Protocol::COUNT]);
        for l in self.all.iter().filter(|l| l.table == table) {
            let w = l.weight(f, at_us, forget_us);
            // A lesson does not say which of its two protocols was mispredicted, so half of the
            // error is assigned to each. It thus says something about a third protocol as well, if
            // no lesson is about that one itself. But if the model has no costs of one of the two,
            // all of the error is that one's.
            let part = |p: usize| if borrows(l.from) == borrows(l.to) { 0.5 } else { borrows(p) as i32 as f64 };
            let part = |p: usize| part(p) * l.residual * ((p == l.to) as i32 - (p == l.from) as i32) as f64;
            for other in (0..Protocol::COUNT).filter(|p| *p != now) {
                let error = w * (part(other) - part(now));
                if [l.from, l.to].contains(&now) && [l.from, l.to].contains(&other) {
                    c.add[other] += error;
                    c.weight[other] += w;
                } else {
                    model[other] += error;
                    weights[other] += w;
                }
            }
        }
        for (i, add) in c.add.iter_mut().enumerate() {
            *add = (*add + MODEL * model[i] / (weights[i] + MODEL)) / (c.weight[i] + MODEL);
        }
        c
    }
}

#[repr(C)]
struct Cell {
    seq: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// The lessons in shared memory, for views and for the next coordinator. One coordinator writes.
/// All-zero: there are none.
#[repr(C)]
pub struct Blackboard {
    next: AtomicU64,
    cells: [Cell; LESSONS],
}

impl Blackboard {
    /// Adds a lesson.
    pub fn write(&self, l: &Lesson) {
        let n = self.next.load(Ordering::SeqCst);
        let c = &self.cells[n as usize % LESSONS];
        c.seq.store(2 * n + 1, Ordering::SeqCst);
        for (to, w) in c.words.iter().zip(l.pack()) {
            to.store(w, Ordering::SeqCst);
        }
        c.seq.store(2 * n + 2, Ordering::SeqCst);
        self.next.store(n + 1, Ordering::SeqCst);
    }

    /// All complete lessons, oldest first.
    pub fn read(&self) -> Vec<Lesson> {
        let end = self.next.load(Ordering::SeqCst);
        (end.saturating_sub(LESSONS as u64)..end).filter_map(|n| self.lesson(n)).collect()
    }

    fn lesson(&self, n: u64) -> Option<Lesson> {
        let c = &self.cells[n as usize % LESSONS];
        let whole = || c.seq.load(Ordering::SeqCst) == 2 * n + 2;
        if !whole() {
            return None;
        }
        let w: [u64; WORDS] = std::array::from_fn(|i| c.words[i].load(Ordering::SeqCst));
        whole().then(|| Lesson::unpack(&w))?
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000;

    fn lesson(at_us: u64) -> Lesson {
        Lesson { table: 7, from: 1, to: 2, features: [0.5; FEATURES], measured: 0.4, residual: 0.9, repeats: 0, at_us }
    }

    #[test]
    fn lessons_correct_what_is_like_them_both_ways() {
        let mut l = Learned::default();
        l.add(lesson(0), MINUTE);
        let at = |table, now, f: &[f64; FEATURES]| l.correction((table, now), f, 0, MINUTE, ProtocolSet::EMPTY);
        let c = at(7, 1, &[0.5; FEATURES]);
        assert!((c.add[2] - 0.9 / 1.05).abs() < 1e-9, "{c:?}");
        // Half of the error is that of the protocol in use. So the third one is not as good as it
        // seems beside it.
        assert!((c.add[0] - 0.45 / 1.05).abs() < 1e-9 && c.weight[0] == 0.0, "{c:?}");
        assert!((at(7, 2, &[0.5; FEATURES]).add[0] + 0.45 / 1.05).abs() < 1e-9);
        let third = at(7, 0, &[0.5; FEATURES]);
        assert!((third.add[1] + 0.45 / 1.05).abs() < 1e-9 && (third.add[2] - 0.45 / 1.05).abs() < 1e-9, "{third:?}");
        assert!((at(7, 2, &[0.5; FEATURES]).add[1] + 0.9 / 1.05).abs() < 1e-9);
        assert_eq!(at(8, 1, &[0.5; FEATURES]), Correction::default(), "another table");
        // Of a protocol without costs of its own the whole error is its own.
        let without =
            |p: usize, now| l.correction((7, now), &[0.5; FEATURES], 0, MINUTE, ProtocolSet::of(Protocol::ALL[p])).add;
        assert!((without(2, 1)[2] - 0.9 / 1.05).abs() < 1e-9 && without(2, 1)[0] == 0.0, "{:?}", without(2, 1));
        assert!((without(2, 0)[2] - 0.9 / 1.05).abs() < 1e-9 && without(2, 0)[1] == 0.0, "{:?}", without(2, 0));
        assert_eq!((without(1, 0)[2], without(0, 1)), (0.0, at(7, 1, &[0.5; FEATURES]).add));
        let mut far = [0.5; FEATURES];
        far[0] = 1.0;
        assert!(at(7, 1, &far).weight[2] < 0.2, "another load");
    }

    #[test]
    fn lessons_fade_and_those_that_repeat_fade_later() {
        let mut l = Learned::default();
        l.add(lesson(0), MINUTE);
        let weight = |l: &Learned, at| l.correction((7, 1), &[0.5; FEATURES], at, MINUTE, ProtocolSet::EMPTY).weight[2];
        assert!((weight(&l, MINUTE) - 0.5).abs() < 1e-9);
        assert!(weight(&l, 6 * MINUTE) < 0.02);
        l.add(lesson(MINUTE), MINUTE);
        assert_eq!(l.all()[1].repeats, 1);
        assert!(weight(&l, 3 * MINUTE) > 0.5, "two minutes after the second");
        for i in 0..2 * LESSONS as u64 {
            l.add(lesson(2 * MINUTE + i), MINUTE);
        }
        assert_eq!(l.all().len(), LESSONS);
        assert!(weight(&l, 40 * MINUTE) > 0.5);
    }

    #[test]
    fn the_next_coordinator_knows_them() {
        // SAFETY: all-zero memory is an empty list of lessons.
        let b: Box<Blackboard> = unsafe { Box::new(std::mem::zeroed()) };
        assert!(b.read().is_empty());
        for i in 0..LESSONS as u64 + 5 {
            b.write(&Lesson { repeats: 3, ..lesson(i) });
        }
        let all = b.read();
        assert_eq!((all.len(), all[0].at_us, all[9]), (LESSONS, 5, Lesson { repeats: 3, ..lesson(14) }));
    }
}
