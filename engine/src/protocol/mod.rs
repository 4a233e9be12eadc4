//! The protocols: the list of them, their interface, and the dispatch to their rules.
//!
//! A protocol is a folder below this one. It says which *capabilities* it has and what it does in
//! each *phase* of a transaction ([`Rules`]). A partition has a *set* of protocols: one normally,
//! the old and the new one during a switch. A transaction follows the rules of every protocol of
//! the set, which is CormCC's mediated protocol (section 4.3). Sets compose because writes are
//! always buffered, and because rules only add locks and validation.
//!
//! The rest of the engine never names a protocol: it asks a set for a capability, which is one AND
//! with a constant. `docs/adding-a-protocol.md` walks through a new protocol.

/// The list of protocols, from which everything else about them is made.
///
/// A line is `Name = bit, "name", "what it does", rules`. The bit is in saved files and in the
/// switch words of partitions. It never changes, and it is the place in the list. The name and the
/// few words are those in settings and views. The rules of a set run in the order of the list.
macro_rules! protocols {
    ($then:ident $with:tt) => {
        $then! { $with
            /// H-Store's partition locks.
            PartCc = 0, "partcc", "locks partitions", partcc::PartCc;
            /// Silo's optimistic concurrency control.
            Occ = 1, "occ", "validates at commit", occ::Occ;
            /// VLL's two-phase locking with lock words in the records.
            TwoPhase = 2, "2pl", "locks rows", two_phase::TwoPhase;
            /// MOCC: optimistic, with locks of hot records.
            Mocc = 3, "mocc", "validates at commit, locks hot rows", mocc::Mocc;
        }
    };
}

mod mocc;
mod occ;
mod partcc;
mod policy;
mod rules;
mod set;
mod two_phase;
mod waits;

pub use policy::Policy;
pub use rules::Touch;
pub(crate) use rules::{Reading, Rules};
pub use set::ProtocolSet;
pub use waits::{accepts, waits_in, InUse};

macro_rules! define {
    (
        ()
        $($(#[$doc:meta])*
        $name:ident = $bit:literal, $text:literal, $about:literal, $module:ident::$rules:ident;)*
    ) => {
        /// The protocols.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Protocol {
            $($(#[$doc])* $name = 1 << $bit,)*
        }

        impl Protocol {
            /// All protocols.
            pub const ALL: [Protocol; [$($bit),*].len()] = [$(Protocol::$name),*];

            /// The name in settings and views.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Protocol::$name => $text,)*
                }
            }
            /// What it does, in a few words, for settings and views.
            pub fn about(self) -> &'static str {
                match self {
                    $(Protocol::$name => $about,)*
                }
            }
            /// See [`waits_in`].
            fn waits(self, policy: Policy, declared: bool) -> u8 {
                match self {
                    $(Protocol::$name => <$module::$rules as Rules>::waits(policy, declared),)*
                }
            }
        }
    };
}
protocols!(define());

impl Protocol {
    /// How many protocols there are: the size of arrays that have an element for each.
    pub const COUNT: usize = Protocol::ALL.len();
    /// The protocol of tables where no setting and no option names another one.
    pub const DEFAULT: Protocol = Protocol::Occ;

    /// Its place in [`Protocol::ALL`], and in arrays that have an element for each protocol.
    pub fn index(self) -> usize {
        (self as u32).trailing_zeros() as usize
    }
    /// The protocol of a name.
    pub fn parse(s: &str) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|p| p.name() == s)
    }
}

/// The four phases of a transaction in which it may wait (CormCC, section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Before the transaction's logic.
    Preprocess = 1,
    /// The transaction's logic.
    Execute = 2,
    /// After the logic, before the outcome.
    Validate = 4,
    /// Publication or undoing.
    Finish = 8,
}
