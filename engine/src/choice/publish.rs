//! The last decision about a partition, in shared memory for those who look. One coordinator writes.

use super::decide::{Decision, Status};
use super::features::FEATURES;
use crate::primitive::{AtomicU64, Ordering};

/// What can be seen of a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shown {
    /// When, microseconds of the platform; 0: never.
    pub at_us: u64,
    /// The decision; what it asked for is in the history of switches.
    pub decision: Decision,
}

/// Figures of the load beside its features and its transactions.
const FIGURES: usize = 10;
const WORDS: usize = 3 + FEATURES + FIGURES + 12;

/// Room for a decision. All-zero: there was none.
#[repr(C)]
pub struct Published {
    seq: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Published {
    /// Shows a decision. One that found too few transactions leaves the figures of the last one that did not.
    pub fn write(&self, at_us: u64, d: &Decision) {
        let mut d = *d;
        if matches!(d.status, Status::FewSamples | Status::Pinned | Status::Off | Status::Switching | Status::New) {
            d = Decision { status: d.status, ..self.read().decision };
        }
        let l = &d.load;
        let seq = self.seq.load(Ordering::SeqCst);
        self.seq.store(seq | 1, Ordering::SeqCst);
        let head = [at_us, d.status as u64 | (d.allowed as u64) << 8 | (d.best as u64) << 16, l.txns];
        let load: [f64; FIGURES] =
            [l.cost_us, l.rate, l.weak_writers, l.idle, l.lost, d.before_us, l.slept, l.busy, l.own_lost, l.own_slept];
        let figures = [d.predicted, d.learned.add, d.learned.weight, d.scores];
        let floats = l.features.into_iter().chain(load).chain(figures.into_iter().flatten());
        for (to, w) in self.words.iter().zip(head.into_iter().chain(floats.map(f64::to_bits))) {
            to.store(w, Ordering::SeqCst);
        }
        self.seq.store((seq | 1) + 1, Ordering::SeqCst);
    }

    /// The last decision; a whole one.
    pub fn read(&self) -> Shown {
        for n in 0.. {
            let seq = self.seq.load(Ordering::SeqCst);
            let w: [u64; WORDS] = std::array::from_fn(|i| self.words[i].load(Ordering::SeqCst));
            if seq & 1 == 0 && self.seq.load(Ordering::SeqCst) == seq {
                return unpack(&w);
            }
            if n > 1000 {
                break; // a coordinator that died in the middle
            }
            crate::primitive::relax(n);
        }
        Shown::default()
    }
}

fn unpack(w: &[u64; WORDS]) -> Shown {
    let float = |i: usize| f64::from_bits(w[i]);
    let three = |at: usize| [float(at), float(at + 1), float(at + 2)];
    let mut d = Decision {
        status: *Status::ALL.get(w[1] as usize & 255).unwrap_or(&Status::New),
        allowed: (w[1] >> 8 & 255) as u32,
        best: (w[1] >> 16 & 255).min(2) as usize,
        ..Decision::default()
    };
    d.load.txns = w[2];
    d.load.features = std::array::from_fn(|i| float(3 + i));
    let at = 3 + FEATURES;
    (d.load.cost_us, d.load.rate, d.load.weak_writers) = (float(at), float(at + 1), float(at + 2));
    (d.load.idle, d.load.lost, d.before_us) = (float(at + 3), float(at + 4), float(at + 5));
    (d.load.slept, d.load.busy) = (float(at + 6), float(at + 7));
    (d.load.own_lost, d.load.own_slept) = (float(at + 8), float(at + 9));
    let at = at + FIGURES;
    (d.predicted, d.learned.add) = (three(at), three(at + 3));
    (d.learned.weight, d.scores) = (three(at + 6), three(at + 9));
    Shown { at_us: w[0], decision: d }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn decisions_come_back_and_their_figures_stay() {
        // SAFETY: all-zero is an empty one.
        let p: Box<Published> = unsafe { Box::new(std::mem::zeroed()) };
        assert_eq!(p.read(), Shown::default());
        let mut d = Decision { status: Status::Verifies, allowed: 7, best: 2, before_us: 4.5, ..Decision::default() };
        d.load.features = std::array::from_fn(|i| i as f64 + 0.5);
        (d.load.cost_us, d.load.rate, d.load.txns) = (1.5, 2.5, 30);
        (d.load.weak_writers, d.load.idle, d.load.lost) = (0.1, 0.2, 0.3);
        (d.load.slept, d.load.busy) = (0.4, 0.6);
        (d.load.own_lost, d.load.own_slept) = (0.15, 0.25);
        (d.predicted, d.scores) = ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]);
        (d.learned.add, d.learned.weight) = ([7.0, 8.0, 9.0], [0.7, 0.8, 0.9]);
        p.write(77, &d);
        assert_eq!(p.read(), Shown { at_us: 77, decision: d });
        p.write(78, &Decision { status: Status::FewSamples, ..Decision::default() });
        assert_eq!(p.read(), Shown { at_us: 78, decision: Decision { status: Status::FewSamples, ..d } });
    }
}
