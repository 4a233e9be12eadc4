//! The settings for decisions: those of the cluster, and those of a table that override them.

use crate::partition::Tuning;
use crate::protocol::ProtocolSet;

/// What a partition may do in this interval beside those that it is used together with
/// (`blame.rs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It may choose a better protocol, and try another one where work is lost.
    #[default]
    Tries,
    /// It may choose.
    Chooses,
    /// It tries the protocol that differs from the one in use only where attempts have failed,
    /// because another partition tries it now.
    Joins,
    /// It leaves its protocol only where a rule, or a trial of its own, says so.
    Waits,
}

/// The settings for decisions.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The time between two passes of the coordinator, in microseconds. For a table: between two
    /// examinations of it.
    pub interval_us: u64,
    /// The protocols to choose from.
    pub candidates: ProtocolSet,
    /// The gain that is worth a switch, as a share: 0.1 is 10 %.
    pub min_gain: f64,
    /// A switch is taken back if the cost grew by this share and by more than noise.
    pub max_loss: f64,
    /// The number of intervals in which the same protocol must be better.
    pub confirm: u32,
    /// The number of sampled transactions that make a load.
    pub min_samples: u64,
    /// The largest share of transactions that write below SERIALIZABLE with which protocols that
    /// lock partitions may be chosen.
    pub max_weak_writers: f64,
    /// The largest share of transactions that are idle between statements with which protocols that
    /// lock partitions may be chosen.
    pub max_idle: f64,
    /// The time in which a lesson loses half of its weight, in microseconds.
    pub forget_us: u64,
    /// What the partition may do.
    pub role: Role,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            interval_us: 1_000_000,
            candidates: ProtocolSet::ALL,
            min_gain: 0.1,
            max_loss: 0.05,
            confirm: 2,
            min_samples: 20,
            max_weak_writers: 0.05,
            max_idle: 0.05,
            forget_us: 600_000_000,
            role: Role::Tries,
        }
    }
}

impl Settings {
    /// A table is examined in one of this number of passes: its interval is rounded up to a
    /// multiple of the cluster's.
    pub fn every(&self, t: &Tuning) -> u32 {
        let n = t.interval_us.map_or(1, |us| us.div_ceil(self.interval_us.max(1)));
        n.clamp(1, u32::MAX as u64) as u32
    }

    /// The settings for a table.
    pub fn of_table(&self, t: &Tuning) -> Settings {
        Settings {
            interval_us: self.interval_us.saturating_mul(self.every(t) as u64),
            candidates: t.candidates.unwrap_or(self.candidates),
            min_gain: t.min_gain.unwrap_or(self.min_gain),
            max_loss: t.max_loss.unwrap_or(self.max_loss),
            confirm: t.confirm.unwrap_or(self.confirm),
            min_samples: t.min_samples.unwrap_or(self.min_samples),
            max_weak_writers: t.partition_lock_max_share.unwrap_or(self.max_weak_writers),
            max_idle: t.partition_lock_max_share.unwrap_or(self.max_idle),
            forget_us: t.forget_us.unwrap_or(self.forget_us),
            role: self.role,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_a_table_says_goes_before() {
        let s = Settings { min_gain: 0.2, interval_us: 300_000, ..Settings::default() };
        assert_eq!(s.of_table(&Tuning::default()), s);
        let own = Tuning {
            interval_us: Some(1_000_000),
            max_loss: Some(0.5),
            confirm: Some(7),
            partition_lock_max_share: Some(0.0),
            ..Tuning::default()
        };
        let of_it = s.of_table(&own);
        assert_eq!((s.every(&own), of_it.interval_us), (4, 1_200_000));
        assert_eq!((of_it.min_gain, of_it.max_loss, of_it.confirm), (0.2, 0.5, 7));
        assert_eq!((of_it.max_weak_writers, of_it.max_idle), (0.0, 0.0));
        let short = Tuning { interval_us: Some(1), ..Tuning::default() };
        assert_eq!((s.every(&short), s.of_table(&short)), (1, s.clone()), "no table is looked at more often");
        assert_eq!(s.every(&Tuning { interval_us: Some(600_000), ..Tuning::default() }), 2);
    }
}
