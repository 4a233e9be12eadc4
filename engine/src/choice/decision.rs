//! What came of an interval, and why.

use super::features::Load;
use super::learned::Correction;
use crate::protocol::{Protocol, ProtocolSet};

/// What came of an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// The partition was not looked at yet.
    #[default]
    New = 0,
    /// Too few transactions were sampled.
    FewSamples = 1,
    /// No protocol is better by the margin.
    Keeps = 2,
    /// Another one is, but not for long enough.
    Confirms = 3,
    /// A switch to another protocol was asked for.
    Switches = 4,
    /// The last switch is being verified.
    Verifies = 5,
    /// The last switch was verified: it stays.
    Accepts = 6,
    /// The last switch made it worse: the old protocol was asked for.
    TakesBack = 7,
    /// A protocol that the model does not prefer was asked for, because much work is lost.
    Probes = 8,
    /// The protocol was set by somebody.
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
    /// For views.
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
    /// What came of the interval.
    pub status: Status,
    /// The load that it is about.
    pub load: Load,
    /// The model's predictions, in the order of [`Protocol::ALL`]: logarithms of relative costs.
    pub predicted: [f64; Protocol::COUNT],
    /// What was learned about the protocols other than the current one.
    pub learned: Correction,
    /// Predictions with what was learned: lower is better.
    pub scores: [f64; Protocol::COUNT],
    /// The protocols that the model knows. The figures of the others mean nothing.
    pub known: ProtocolSet,
    /// Those of them that candidates and rules allow.
    pub allowed: ProtocolSet,
    /// The best of them, as a place in [`Protocol::ALL`].
    pub best: usize,
    /// The protocol in use, in the same way.
    pub used: usize,
    /// How much worse the protocol in use is than the best one, and how much it must be for a switch: logarithms of costs.
    pub gain: f64,
    /// See `gain`.
    pub margin: f64,
    /// Intervals so far, and how many it takes: in which another protocol was better ([`Status::Confirms`]), or in
    /// which the last switch was measured, at most ([`Status::Verifies`]).
    pub intervals: (u32, u32),
    /// Intervals running in which much is lost, and how many it takes to try another protocol.
    pub lossy: (u32, u32),
    /// Nothing is tried before this time, because something was not long ago; microseconds, 0: nothing forbids it.
    pub no_probe_before_us: u64,
    /// Cost before the switch that is being verified, microseconds; 0: none is.
    pub before_us: f64,
    /// The protocol to ask for.
    pub ask: Option<Protocol>,
    /// Do most of the table's partitions that are like this one use the best of them already?
    pub alone: bool,
}
