//! The phases of protocols that a transaction goes through in every partition that it has touched.
//!
//! Phases that belong to one operation are called where that operation is: declarations in
//! `mod.rs`, looks and reads in `read.rs` and `scan.rs`, writes in `write.rs`. Where no protocol
//! takes part in a phase, its set of protocols is a constant that is empty, and nothing is left of
//! the function in the compiled program.

use super::Txn;
use crate::error::Error;
use crate::partition::Partition;
use crate::platform::Platform;
use crate::protocol::ProtocolSet;

impl Txn {
    /// The transaction is about to follow the protocols that a partition has `now`. The caller has
    /// read them once: a second look may find those of a switch, which would not be told of it.
    #[inline(always)]
    pub(super) fn start_in(&mut self, partition: &'static Partition, now: ProtocolSet) {
        if ProtocolSet::START == ProtocolSet::EMPTY {
            return;
        }
        let t = self.touch(partition);
        let new = now.minus(t.set);
        t.set = t.set.union(now);
        if new.meets(ProtocolSet::START) {
            new.start(self, partition);
        }
    }

    /// The write that was buffered last may be shown to other transactions from now on.
    #[inline(always)]
    pub(super) fn expose_last(&mut self) {
        if ProtocolSet::EXPOSE == ProtocolSet::EMPTY {
            return;
        }
        let Some(last) = self.writes.last() else { return };
        let (set, write) = (self.followed(last.r.partition()), self.writes.len() as u32 - 1);
        if set.meets(ProtocolSet::EXPOSE) {
            set.expose(self, write);
        }
    }

    /// A statement of the client begins. The platform calls it between the statements of a
    /// transaction.
    #[inline(always)]
    pub fn next_step(&mut self) {
        // It cannot fail: no phase of this loop does.
        let _ = self.in_touched(ProtocolSet::STEP, |t, partition, set| {
            set.step(t, partition);
            Ok(())
        });
    }

    /// Does a protocol want to be told of the beginning of statements?
    pub const fn has_steps() -> bool {
        ProtocolSet::STEP.bits() != 0
    }

    /// The commit begins: step 0.
    #[inline(always)]
    pub(super) fn before_commit(&mut self, p: &dyn Platform) -> Result<(), Error> {
        self.in_touched(ProtocolSet::BEFORE_COMMIT, |t, partition, set| set.before_commit(t, p, partition))
    }

    /// The outcome is settled, and no lock is held any more.
    #[inline(always)]
    pub(super) fn ended(&mut self) {
        // It cannot fail, as above.
        let _ = self.in_touched(ProtocolSet::ENDED, |t, partition, set| {
            set.ended(t, partition);
            Ok(())
        });
    }

    /// Goes through the partitions in which it follows one of these protocols, in the order of
    /// their first touch.
    #[inline(always)]
    fn in_touched(
        &mut self,
        those: ProtocolSet,
        mut phase: impl FnMut(&mut Txn, &'static Partition, ProtocolSet) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if those == ProtocolSet::EMPTY {
            return Ok(());
        }
        let mut n = 0;
        while let Some((partition, set)) = self.touched.iter().nth(n).map(|t| (t.partition, t.set)) {
            if set.meets(those) {
                phase(self, partition, set)?;
            }
            n += 1;
        }
        Ok(())
    }
}
