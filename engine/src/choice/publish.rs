//! The last decision about a partition, in shared memory, for views. One coordinator writes it.

use super::decision::{Decision, Status};
use super::features::FEATURES;
use crate::primitive::{AtomicU64, Ordering};
use crate::protocol::{Protocol, ProtocolSet};

/// The visible parts of a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shown {
    /// The time of the decision, in microseconds of the platform. 0: never.
    pub at_us: u64,
    /// The time of its figures, which are all of it but the status. 0: there are none.
    pub figures_at_us: u64,
    /// The decision. The protocol that it asked for is in the history of switches.
    pub decision: Decision,
}

/// The number of figures of the load, besides its features and its transactions.
const FIGURES: usize = 12;
const HEAD: usize = 7;
/// The number of figures for each protocol.
const OF_EACH: usize = 4;
const WORDS: usize = HEAD + FEATURES + FIGURES + OF_EACH * Protocol::COUNT;
const _: () = assert!(ProtocolSet::BITS <= 8, "a set is a byte of the second word");

/// Room for a decision. All-zero: there was none.
#[repr(C)]
pub struct Published {
    seq: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Published {
    /// Publishes a decision. A decision without a load, for lack of transactions, leaves the
    /// figures of the last one that had a load.
    pub fn write(&self, at_us: u64, d: &Decision) {
        let (mut d, mut figures_at_us) = (*d, at_us);
        if d.load.txns == 0 {
            let old = self.read();
            d = Decision { status: d.status, ..old.decision };
            figures_at_us = old.figures_at_us;
        }
        let l = &d.load;
        let two = |(a, b): (u32, u32)| a as u64 | (b as u64) << 32;
        let seq = self.seq.load(Ordering::SeqCst);
        self.seq.store(seq | 1, Ordering::SeqCst);
        let [allowed, known, borrowed] = [d.allowed, d.known, d.borrowed].map(|set| set.bits() as u8);
        let bytes = [d.status as u8, allowed, d.best as u8, d.used as u8, known, borrowed, 0, 0];
        let status = u64::from_le_bytes(bytes);
        let head: [u64; HEAD] =
            [at_us, status, l.txns, figures_at_us, two(d.intervals), two(d.lossy), d.no_probe_before_us];
        let own = [d.before_us, l.own_lost, l.own_slept, d.gain, d.margin];
        let load = [l.cost_us, l.rate, l.weak_writers, l.idle, l.lost, l.slept, l.busy];
        let figures: [_; OF_EACH] = [d.predicted, d.learned.add, d.learned.weight, d.scores];
        let floats = l.features.into_iter().chain(load).chain(own).chain(figures.into_iter().flatten());
        for (to, w) in self.words.iter().zip(head.into_iter().chain(floats.map(f64::to_bits))) {
            to.store(w, Ordering::SeqCst);
        }
        self.seq.store((seq | 1) + 1, Ordering::SeqCst);
    }

    /// The last decision, read consistently.
    pub fn read(&self) -> Shown {
        for n in 0.. {
            let seq = self.seq.load(Ordering::SeqCst);
            let w: [u64; WORDS] = std::array::from_fn(|i| self.words[i].load(Ordering::SeqCst));
            if seq & 1 == 0 && self.seq.load(Ordering::SeqCst) == seq {
                return unpack(&w);
            }
            if n > 1000 {
                break; // A coordinator has died in the middle.
            }
            crate::primitive::relax(n);
        }
        Shown::default()
    }
}

fn unpack(w: &[u64; WORDS]) -> Shown {
    let float = |i: usize| f64::from_bits(w[i]);
    let [status, allowed, best, used, known, borrowed, ..] = w[1].to_le_bytes();
    let set = |bits: u8| ProtocolSet::from_bits(bits as u32 & ProtocolSet::ALL.bits());
    let place = |p: u8| (p as usize).min(Protocol::COUNT - 1);
    let mut d = Decision {
        status: *Status::ALL.get(status as usize).unwrap_or(&Status::New),
        allowed: set(allowed),
        best: place(best),
        used: place(used),
        known: set(known),
        borrowed: set(borrowed),
        ..Decision::default()
    };
    let two = |w: u64| (w as u32, (w >> 32) as u32);
    (d.load.txns, d.intervals, d.lossy, d.no_probe_before_us) = (w[2], two(w[4]), two(w[5]), w[6]);
    d.load.features = std::array::from_fn(|i| float(HEAD + i));
    let at = HEAD + FEATURES;
    (d.load.cost_us, d.load.rate, d.load.weak_writers) = (float(at), float(at + 1), float(at + 2));
    (d.load.idle, d.load.lost, d.load.slept, d.load.busy) =
        (float(at + 3), float(at + 4), float(at + 5), float(at + 6));
    (d.before_us, d.load.own_lost, d.load.own_slept) = (float(at + 7), float(at + 8), float(at + 9));
    (d.gain, d.margin) = (float(at + 10), float(at + 11));
    let each = |n: usize| std::array::from_fn(|i| float(at + FIGURES + n * Protocol::COUNT + i));
    (d.predicted, d.learned.add) = (each(0), each(1));
    (d.learned.weight, d.scores) = (each(2), each(3));
    Shown { at_us: w[0], figures_at_us: w[3], decision: d }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn decisions_come_back_and_their_figures_stay() {
        // SAFETY: all-zero memory is an empty `Published`.
        let p: Box<Published> = unsafe { Box::new(std::mem::zeroed()) };
        assert_eq!(p.read(), Shown::default());
        let (known, allowed) = (ProtocolSet::ALL, ProtocolSet::of(Protocol::ALL[1]));
        let borrowed = ProtocolSet::of(Protocol::ALL[3]);
        let mut d = Decision { known, borrowed, allowed, best: 2, used: 1, before_us: 4.5, ..Decision::default() };
        d.status = Status::Verifies;
        d.load.features = std::array::from_fn(|i| i as f64 + 0.5);
        (d.load.cost_us, d.load.rate, d.load.txns) = (1.5, 2.5, 30);
        (d.load.weak_writers, d.load.idle, d.load.lost) = (0.1, 0.2, 0.3);
        (d.load.slept, d.load.busy) = (0.4, 0.6);
        (d.load.own_lost, d.load.own_slept) = (0.15, 0.25);
        let each = |from: f64| std::array::from_fn(|i| from + i as f64);
        (d.predicted, d.scores) = (each(1.0), each(11.0));
        (d.learned.add, d.learned.weight) = (each(21.0), each(0.7));
        (d.gain, d.margin, d.intervals, d.lossy, d.no_probe_before_us) = (0.25, 0.125, (3, 16), (1, 5), 99);
        p.write(77, &d);
        assert_eq!(p.read(), Shown { at_us: 77, figures_at_us: 77, decision: d });
        // Their age can be told.
        for (at_us, status) in [(78, Status::FewSamples), (79, Status::Switching), (80, Status::Pinned)] {
            p.write(at_us, &Decision { status, ..Decision::default() });
            assert_eq!(p.read(), Shown { at_us, figures_at_us: 77, decision: Decision { status, ..d } });
        }
        d.status = Status::Pinned;
        p.write(81, &d);
        assert_eq!(p.read(), Shown { at_us: 81, figures_at_us: 81, decision: d });
    }
}
