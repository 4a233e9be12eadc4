//! The result of an interval, and its reasons.

use super::features::Load;
use super::learned::Correction;
use crate::protocol::{Protocol, ProtocolSet};

/// The result of an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// The partition was not examined yet.
    #[default]
    New = 0,
    /// Too few transactions were sampled.
    FewSamples = 1,
    /// No protocol is better by the margin.
    Keeps = 2,
    /// Another protocol is better, but not for long enough.
    Confirms = 3,
    /// A switch to another protocol was requested.
    Switches = 4,
    /// The last switch is being verified.
    Verifies = 5,
    /// The last switch was verified, and it stays.
    Accepts = 6,
    /// The last switch made the load slower: the old protocol was requested.
    TakesBack = 7,
    /// A protocol that the model does not prefer was requested, because much work is lost.
    Probes = 8,
    /// A user set the protocol.
    Pinned = 9,
    /// Not adaptive.
    Off = 10,
    /// A switch is under way.
    Switching = 11,
}

impl Status {
    /// All, by number.
    pub const ALL: [Status; 12] = [
        Status::New,
        Status::FewSamples,
        Status::Keeps,
        Status::Confirms,
        Status::Switches,
        Status::Verifies,
        Status::Accepts,
        Status::TakesBack,
        Status::Probes,
        Status::Pinned,
        Status::Off,
        Status::Switching,
    ];
    /// The text in views.
    pub fn text(self) -> &'static str {
        match self {
            Status::New => "not looked at yet",
            Status::FewSamples => "too few transactions were sampled",
            Status::Keeps => "no protocol is better by the margin",
            Status::Confirms => "another protocol is better, but not for long enough yet",
            Status::Switches => "another protocol is better: switched",
            Status::Verifies => "the last switch is being verified",
            Status::Accepts => "the last switch was verified and stays",
            Status::TakesBack => "the last switch made it worse: taken back",
            Status::Probes => "much work is lost: another protocol is tried",
            Status::Pinned => "pinned",
            Status::Off => "not adaptive",
            Status::Switching => "a switch is under way",
        }
    }
}

/// A decision, with its reasons.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Decision {
    /// The result of the interval.
    pub status: Status,
    /// The load of the interval.
    pub load: Load,
    /// The model's predictions, in the order of [`Protocol::ALL`]: logarithms of relative costs.
    pub predicted: [f64; Protocol::COUNT],
    /// The lessons about the protocols other than the current one.
    pub learned: Correction,
    /// The predictions corrected by lessons. Lower is better.
    pub scores: [f64; Protocol::COUNT],
    /// The protocols that the model knows. The figures of the others mean nothing.
    pub known: ProtocolSet,
    /// Those of them whose figures the model has taken from another one.
    pub borrowed: ProtocolSet,
    /// Those of them that candidates and rules allow.
    pub allowed: ProtocolSet,
    /// The best of them, by its place in [`Protocol::ALL`].
    pub best: usize,
    /// The protocol in use, by its place in [`Protocol::ALL`].
    pub used: usize,
    /// How much worse the protocol in use is than the best one, as a logarithm of costs.
    pub gain: f64,
    /// How much worse it must be for a switch, as a logarithm of costs.
    pub margin: f64,
    /// Intervals so far, and intervals needed. With [`Status::Confirms`]: those in which another
    /// protocol was better. With [`Status::Verifies`]: those in which the last switch was measured,
    /// at most.
    pub intervals: (u32, u32),
    /// Successive intervals in which much is lost, and the number needed to try another protocol.
    pub lossy: (u32, u32),
    /// No protocol is tried before this time in microseconds, because one was tried recently. 0: no
    /// limit.
    pub no_probe_before_us: u64,
    /// The cost before the switch that is being verified, in microseconds. 0: no switch is.
    pub before_us: f64,
    /// The protocol to request.
    pub ask: Option<Protocol>,
    /// Do most of the table's partitions that are like this one use the best protocol already?
    pub alone: bool,
}
