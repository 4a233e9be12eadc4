//! The interface of a protocol: its capabilities and what it does in each phase.

use super::Policy;
use crate::error::Error;
use crate::lock::Mode;
use crate::partition::Partition;
use crate::platform::Platform;
use crate::txn::{RecordRef, Txn, Write};

/// A partition of a table, as it is touched.
#[derive(Clone, Copy)]
pub struct Touch {
    /// The table.
    pub table: &'static crate::table::Table,
    /// Number of the partition in the table's map.
    pub no: u32,
}

impl Touch {
    /// The partition itself.
    pub fn partition(self) -> &'static Partition {
        &self.table.map().partitions()[self.no as usize]
    }
}

/// Why a record is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// For its row, by its key or its place.
    Row,
    /// For its row, by a scan.
    ScannedRow,
    /// For its key, and columns that updates in place hardly change: by a scan whose predicate
    /// answers for all updates in place, or by a look-up that remembers what it has looked at.
    Key,
    /// For its row, by a scan that has locked the range of the row's key.
    RowInLockedRange,
    /// In order to write it next.
    ToWrite,
}

impl Reading {
    /// A read of one record: will it be written next?
    #[inline]
    pub fn of(for_write: bool) -> Reading {
        if for_write {
            Reading::ToWrite
        } else {
            Reading::Row
        }
    }
}

/// A phase of a partition that may lock, wait and fail.
pub(crate) type AtPartition = Option<fn(&mut Txn, &dyn Platform, Touch) -> Result<(), Error>>;
/// A phase of the commit of a partition: the same, where the table is not known.
pub(crate) type AtCommit = Option<fn(&mut Txn, &dyn Platform, &'static Partition) -> Result<(), Error>>;
/// A phase of a record that is read.
pub(crate) type AtRead = Option<fn(&mut Txn, &dyn Platform, RecordRef, Reading) -> Result<(), Error>>;
/// The mode of the lock of a record that is read; `None`: there is none.
pub(crate) type ModeToRead = Option<fn(&mut Txn, RecordRef, Reading) -> Option<Mode>>;
/// A phase of a record that is written.
pub(crate) type AtWrite = Option<fn(&mut Txn, &dyn Platform, RecordRef, Mode) -> Result<(), Error>>;
/// A phase of the commit of a write that replaces a version.
pub(crate) type AtLock = Option<fn(&mut Txn, &dyn Platform, Write) -> Result<(), Error>>;
/// A phase that is only told: it neither waits nor fails.
pub(crate) type Told<T> = Option<fn(&mut Txn, T)>;

/// What a serializable transaction does in a partition under one protocol.
///
/// Two kinds of constants describe a protocol. *Capabilities* tell the rest of the engine what it
/// may rely on and what it must prepare; each is false unless the protocol sets it. *Phases* are
/// functions of the protocol; each is `None` unless the protocol has something to do there. All of
/// them are constants, so what no protocol uses is not in the compiled program, and a question
/// about a set of protocols is one AND with a constant.
///
/// What all protocols share is not here: buffered writes, registration, linking, the CSN,
/// publication and undoing (`txn/commit.rs`, `txn/abort.rs`).
pub(crate) trait Rules {
    /// The partition's lock is taken before anything in it is touched, and held to the end. A
    /// transaction of a weaker level takes it before it writes or locks a row.
    ///
    /// Of today's protocols only `partcc` has it: this lock is all that `partcc` does. It is a
    /// capability because writers of weaker levels, which follow no other rules, must take it too.
    const LOCKS_PARTITIONS: bool = false;
    /// A row is locked before it is read, and that lock is what protects the read. It is held to
    /// the end, also when the savepoint is rolled back in which it was taken. Scans that lock no
    /// range lock their rows, and then their predicates need not answer for updates (INV-ROWS).
    ///
    /// Of today's protocols only `2pl` has it. It is apart from `LOCKS_WRITES` because a protocol
    /// may lock what it writes and validate what it reads.
    const LOCKS_READS: bool = false;
    /// A row is locked before a write of it is buffered, and the lock is held to the end. Where a
    /// protocol locks reads too, and the transaction holds that lock, `WRITE` may be left out.
    const LOCKS_WRITES: bool = false;
    /// A scan locks the ranges that it covers and publishes the parts of others that it reads;
    /// writers of every level lock the range of their key and wait for such parts.
    ///
    /// Of today's protocols only `2pl` has it. It is apart from `LOCKS_READS` because it only saves
    /// failures: predicates are validated under every protocol, locked ranges or not.
    const LOCKS_RANGES: bool = false;
    /// A hot row may be locked before a look-up reads it. Nothing relies on that lock (INV-HEAT):
    /// the protocol has what protects its reads besides. Failures heat the rows that caused them.
    const LOCKS_HOT: bool = false;
    /// The version that a read has seen is remembered, and compared again at the commit.
    const VALIDATES_READS: bool = false;

    /// The phases of [`Phase`](super::Phase), as bits, in which transactions wait for others.
    /// `declared`: do transactions declare their partitions before their first statement?
    fn waits(policy: Policy, declared: bool) -> u8;

    /// The transaction follows the protocol in this partition from now on.
    const START: Told<&'static Partition> = None;
    /// The partition was declared before the first statement.
    const PREPROCESS: AtPartition = None;
    /// The partition will be looked at, in an index or as a whole.
    const BEFORE_SCAN: AtPartition = None;
    /// A record will be read.
    const READ: AtRead = None;
    /// The mode in which `READ` locks the record, if that is all that it does. Then a look takes
    /// the lock where it is free (INV-LOCKED-LOOK).
    const MODE_TO_READ: ModeToRead = None;
    /// A record will get a buffered write.
    const WRITE: AtWrite = None;
    /// A write was buffered: its number.
    const EXPOSE: Told<u32> = None;
    /// A statement of the client begins; the transaction has touched the partition before.
    const STEP: Told<&'static Partition> = None;
    /// The commit begins. Whatever the protocol must wait for at the commit is waited for here.
    const BEFORE_COMMIT: AtCommit = None;
    /// Step 1 of the commit: a row is locked that was written, in canonical order (table, record).
    ///
    /// A protocol needs this phase if it has neither `LOCKS_WRITES` nor `LOCKS_PARTITIONS`: the
    /// commit links a version under a lock only, and above the version that it replaces.
    const LOCK_AT_COMMIT: AtLock = None;
    /// The outcome is settled: stamps are set, locks are released.
    const ENDED: Told<&'static Partition> = None;
}
