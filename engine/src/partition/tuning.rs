//! A table's own settings for the choice of its protocols, which override those of the cluster.

use crate::protocol::ProtocolSet;

/// The settings for the choice of the protocols of a table's partitions. `None`: as for the
/// cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tuning {
    /// Does the coordinator choose?
    pub adaptive: Option<bool>,
    /// The protocols to choose from.
    pub candidates: Option<ProtocolSet>,
    /// The time between two examinations, in microseconds.
    pub interval_us: Option<u64>,
    /// The gain that is worth a switch, as a share.
    pub min_gain: Option<f64>,
    /// The growth of the cost at which a switch is taken back, as a share.
    pub max_loss: Option<f64>,
    /// The number of examinations in which the same protocol must be better.
    pub confirm: Option<u32>,
    /// The number of sampled transactions that make a load.
    pub min_samples: Option<u64>,
    /// The largest share of transactions that write below SERIALIZABLE, or are idle between
    /// statements, with which protocols that lock partitions may be chosen.
    pub partition_lock_max_share: Option<f64>,
    /// The time in which a lesson loses half of its weight, in microseconds.
    pub forget_us: Option<u64>,
}

/// The number of words of a tuning, as it is shared and saved. The first word has
/// [`ProtocolSet::BITS`] bits for the candidates. Files from the time when there were four bits
/// have zeros in the others.
pub const TUNING_WORDS: usize = 8;

impl Tuning {
    /// Packs the settings into words: a number or its bits plus 1, or 0 for `None`. All-zero: all
    /// `None`.
    pub fn pack(&self) -> [u64; TUNING_WORDS] {
        let share = |x: Option<f64>| x.map_or(0, |x| x.to_bits().saturating_add(1));
        let number = |n: Option<u64>| n.map_or(0, |n| n.saturating_add(1));
        let adaptive = self.adaptive.map_or(0, |on| if on { 1 } else { 2 });
        [
            adaptive | (self.candidates.map_or(0, ProtocolSet::bits) as u64) << 4,
            number(self.interval_us),
            share(self.min_gain),
            share(self.max_loss),
            number(self.confirm.map(u64::from)),
            number(self.min_samples),
            share(self.partition_lock_max_share),
            number(self.forget_us),
        ]
    }

    /// Unpacks any words. The shares of the result are finite numbers.
    pub fn unpack(w: &[u64; TUNING_WORDS]) -> Tuning {
        let share = |w: u64| w.checked_sub(1).map(f64::from_bits).filter(|x| x.is_finite());
        let number = |w: u64| w.checked_sub(1);
        let candidates = ProtocolSet::from_bits((w[0] >> 4) as u32 & ProtocolSet::ALL.bits());
        Tuning {
            adaptive: [None, Some(true), Some(false), None][w[0] as usize & 3],
            candidates: (candidates != ProtocolSet::EMPTY).then_some(candidates),
            interval_us: number(w[1]),
            min_gain: share(w[2]),
            max_loss: share(w[3]),
            confirm: number(w[4]).map(|n| n.min(u32::MAX as u64) as u32),
            min_samples: number(w[5]),
            partition_lock_max_share: share(w[6]),
            forget_us: number(w[7]),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::protocol::Protocol;

    #[test]
    fn words_keep_what_was_said_and_what_was_not() {
        assert_eq!(Tuning::default().pack(), [0; TUNING_WORDS]);
        let all = Tuning {
            adaptive: Some(false),
            candidates: Some(ProtocolSet::mediated(Protocol::Occ, Protocol::TwoPhase)),
            interval_us: Some(5_000_000),
            min_gain: Some(0.0),
            max_loss: Some(0.125),
            confirm: Some(3),
            min_samples: Some(0),
            partition_lock_max_share: Some(1.0),
            forget_us: Some(1),
        };
        assert_eq!(Tuning::unpack(&all.pack()), all);
        let some = Tuning { max_loss: Some(0.0), ..Tuning::default() };
        assert_eq!(Tuning::unpack(&some.pack()), some);
        assert_eq!(Tuning::unpack(&[u64::MAX; TUNING_WORDS]).min_gain, None, "no number");
    }
}
