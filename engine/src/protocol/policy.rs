//! What a transaction does when another one holds a row lock that it needs.

/// What a transaction does when a row lock conflicts: a setting of each partition, for protocols
/// that lock rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Policy {
    /// Wait; the platform's detector finds deadlocks.
    Wait = 0,
    /// Abort at once.
    NoWait = 1,
    /// Wait for younger transactions, abort for older ones.
    WaitDie = 2,
}

impl Policy {
    /// All policies.
    pub const ALL: [Policy; 3] = [Policy::Wait, Policy::NoWait, Policy::WaitDie];
    pub(crate) fn from_bits(b: u32) -> Policy {
        match b {
            1 => Policy::NoWait,
            2 => Policy::WaitDie,
            _ => Policy::Wait,
        }
    }
    /// The name in settings and views.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Wait => "wait",
            Policy::NoWait => "no_wait",
            Policy::WaitDie => "wait_die",
        }
    }
    /// The policy of a name.
    pub fn parse(s: &str) -> Option<Policy> {
        Policy::ALL.into_iter().find(|p| p.name() == s)
    }
}
