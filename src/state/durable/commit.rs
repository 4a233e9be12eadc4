//! The part of a commit that logs: steps P1 to P8 before the commit, and C1 to C10 in it, of the
//! design of durable tables. The engine does the rest (`engine/src/txn/commit.rs`).
//!
//! A transaction *logs* if it has written in a permanent table whose storage it has not made itself
//! (INV-LOGGED). Without a transaction id its one record is inserted when PostgreSQL has decided to
//! commit: nothing can fail any more. With an id its records are inserted before PostgreSQL's own
//! commit record, and the commit log decides about them.
//!
//! **INV-LAST**: From the CSN of a transaction without an id to its decision no code runs but ours,
//! and PostgreSQL's, which does not wait and takes no id. PostgreSQL flushes the commit of an id,
//! and waits for standbys, before our record would come: a crash there would lose our rows of a
//! transaction that the commit log, or another node, takes for committed. And readers of its rows,
//! and the companion that shuts the gate, would wait as long as such code does. So a transaction
//! has its id before if it notifies, or if another extension has a callback behind ours. (The one
//! of PL/pgSQL frees memory only.) Its commit is held.

use super::{enter_window, marks, my_window, slot};
use crate::pg::errors::complain;
use crate::pg::faults::{self, Fault};
use crate::pg::{others, wal};
use crate::state::platform::PG;
use crate::state::shmem;
use crate::state::standby;
use crate::state::stop::{self, reach};
use crate::state::xact::{self, copies, depends, mixed};
use mixedcc_engine::csn::{Csn, SlotId};
use mixedcc_engine::durable::table::Bits;
use mixedcc_engine::durable::wal::{rows_of, Builder, Head, Op, TABLES_MAX};
use mixedcc_engine::durable::window::log;
use mixedcc_engine::durable::{Lsn, Storage};
use mixedcc_engine::platform::Platform;
use mixedcc_engine::primitive::Ordering;
use mixedcc_engine::txn::LoggedWrite;
use mixedcc_engine::{Error, Table, Txn};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode};

/// How the transaction logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Way {
    /// It logs nothing.
    #[default]
    Nothing,
    /// By one record, in its commit.
    Record,
    /// Before its commit, under this full transaction id.
    Xid(u64),
    /// It logs nothing of ours, and PostgreSQL's commit record decides, under this full transaction
    /// id. COMMIT may wait for its flush and its standbys.
    Elsewhere(u64),
}

/// What the commit of one transaction logs. The memory is kept for the next one.
#[derive(Default)]
pub struct Commit {
    way: Way,
    /// Does it take its turn among the mixed ones (INV-MIXED)?
    mixed: bool,
    /// Does COMMIT wait for the flush, and for synchronous standbys?
    synchronous: bool,
    /// What other code does before the decision (INV-LAST).
    later: Later,
    /// Did it depend on commits that were not done when its locks were taken?
    depended: bool,
    /// The commit is decided, and perhaps in WAL: it cannot be undone any more.
    is_decided: bool,
    /// With a transaction id: a time before that of PostgreSQL's commit record.
    began: u64,
    builder: Builder,
    tables: Vec<&'static Table>,
}

/// What other code does between our validation and PostgreSQL's decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Later {
    /// PostgreSQL takes the lock of NOTIFY, and an id.
    notifies: bool,
    /// Callbacks of other extensions may do anything.
    others: bool,
}

impl Later {
    fn look() -> Later {
        if faults::on(Fault::LaterForgotten) {
            return Later::default();
        }
        Later { notifies: others::notifies(), others: xact::may_others_follow() }
    }
}

/// Above so many bytes of items the memory is not kept.
const KEPT: usize = 1 << 16;

impl Commit {
    /// Steps P1 to P8, but for bulk. May wait, and may raise. After an error the transaction is
    /// undone by [`Commit::abort`]. `mixed`: it is over tables of ours and of heap, and has a
    /// transaction id.
    pub fn before_commit(&mut self, t: &mut Txn, mixed: bool) -> Result<(), Error> {
        self.mixed = mixed;
        self.before_any(t)?;
        copies::note_commit_of(t); // INV-COPY
        Ok(())
    }

    fn before_any(&mut self, t: &mut Txn) -> Result<(), Error> {
        self.later = if t.has_writes() { Later::look() } else { Later::default() };
        if self.later.notifies {
            wal::full_xid();
        }
        if t.logs() {
            return self.before_logged(t);
        }
        if PG.has_written() {
            depends::await_before(t)?;
            if waits_elsewhere(t) {
                return self.before_elsewhere(t);
            }
        }
        self.prepare(t, stop::hold_ms() > 0 || self.later.others)
    }

    /// Takes the lock of NOTIFY, if PostgreSQL would wait for it when we have a CSN. Commits that
    /// have it wait for no lock of ours: they have all of them. It is not taken before a callback
    /// of another extension, which may wait for a commit elsewhere that wants it, too.
    fn lock_notifications(&self) {
        if self.later.notifies && !self.later.others {
            others::lock_notifications();
        }
    }

    /// The locks of the cluster that a commit takes when it has all others: the turn of mixed
    /// transactions, and then that of NOTIFY.
    fn take_last_locks(&self) {
        if self.mixed {
            mixed::enter_commit(|| self.lock_notifications());
        } else {
            self.lock_notifications();
        }
    }

    /// A commit that logs nothing of ours.
    fn prepare(&mut self, t: &mut Txn, held: bool) -> Result<(), Error> {
        if !self.mixed && !self.later.notifies {
            return t.prepare_held(&PG, held, &|_, _| {});
        }
        t.prepare_locks(&PG)?;
        self.take_last_locks();
        let held = t.has_writes() && (held || self.later.notifies || t.depends_on_open());
        t.prepare_decide(&PG, held, &|_, _| {})
    }

    fn before_elsewhere(&mut self, t: &mut Txn) -> Result<(), Error> {
        let xid = wal::full_xid();
        self.way = Way::Elsewhere(xid);
        self.began = marks::now();
        self.prepare(t, true)?;
        slot().xid.store(xid, Ordering::SeqCst);
        rest(t);
        Ok(())
    }

    fn before_logged(&mut self, t: &mut Txn) -> Result<(), Error> {
        let bytes = self.measure(t);
        let xid = wal::full_xid_if_any();
        self.way = match xid {
            Some(xid) => Way::Xid(xid),
            None if self.needs_xid(bytes) => Way::Xid(wal::full_xid()),
            None => Way::Record,
        };
        if matches!(self.way, Way::Xid(_)) {
            depends::await_before(t)?;
        }
        if self.builder.reserve(bytes).is_err() {
            complain(PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY, "out of memory for the record of a commit", "");
        }
        t.prepare_locks(&PG)?;
        self.take_last_locks();
        self.synchronous = wal::is_synchronous();
        self.depended = t.depends_on_open();
        enter_window();
        if self.way == Way::Record && marks::is_due() {
            self.become_mark(t)?;
        }
        if self.way != Way::Record {
            self.began = marks::now();
        }
        let held = self.synchronous || self.depended || self.way != Way::Record;
        t.prepare_decide(&PG, held, &|_, _| {})?;
        match self.way {
            Way::Xid(xid) => self.log_under(xid, t.csn(), t),
            _ => self.build(t, None, t.csn(), |_, _, _| ()),
        }
        if matches!(self.way, Way::Xid(_)) {
            rest(t);
        } else {
            let_go(t);
        }
        Ok(())
    }

    /// The commit is to be a time mark: it takes a transaction id (INV-MARK). It has asked after
    /// all waits for locks, so that no commit waits for hours between the mark and its record.
    #[cold]
    fn become_mark(&mut self, t: &mut Txn) -> Result<(), Error> {
        my_window().leave();
        depends::await_before(t)?;
        self.way = Way::Xid(wal::full_xid());
        self.depended = false;
        enter_window();
        Ok(())
    }

    /// PREPARE TRANSACTION: validates, and logs as a commit with a transaction id does. Returns
    /// after that, and the commit log decides when the transaction is finished. `keep`: what is
    /// done when the transaction has all its locks, and nothing is logged. May wait, and may raise.
    pub fn before_prepare(&mut self, t: &mut Txn, keep: impl FnOnce(&Txn)) -> Result<(), Error> {
        let logs = t.logs();
        if logs {
            let bytes = self.measure(t);
            self.way = Way::Xid(wal::full_xid());
            if self.builder.reserve(bytes).is_err() {
                complain(PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY, "out of memory for the record of a commit", "");
            }
        }
        if logs && faults::on(Fault::PreparedWindowEarly) {
            enter_window();
        }
        t.prepare_ahead_locks(&PG)?;
        keep(t);
        if let Way::Xid(xid) = self.way {
            // Before it has its CSN (INV-STABLE).
            slot().xid.store(xid, Ordering::SeqCst);
            enter_window();
        }
        let csn = t.prepare_ahead_decide(&PG)?;
        if let Way::Xid(xid) = self.way {
            self.log_under(xid, csn, t);
        }
        Ok(())
    }

    /// The transaction is prepared, and no transaction of this process any more. The window is out,
    /// and the slot, which the transaction keeps, has the transaction id.
    pub fn prepared(&mut self) {
        self.end();
    }

    /// The tables that the transaction logs, and the bytes of what it logs.
    fn measure(&mut self, t: &Txn) -> usize {
        self.tables.clear();
        let mut bytes = 0;
        for w in t.durable_writes() {
            if !self.tables.last().is_some_and(|last| last.id == w.table.id) && self.place_of(&w).is_none() {
                self.tables.push(w.table);
            }
            // SAFETY: the transaction has not settled.
            let (_, payload) = unsafe { w.content() };
            let [a, b] = packed(payload);
            bytes += Builder::bytes_of(a.len() + b.len());
        }
        bytes
    }

    fn place_of(&self, w: &LoggedWrite) -> Option<usize> {
        self.tables.iter().rposition(|table| table.id == w.table.id)
    }

    fn needs_xid(&self, bytes: usize) -> bool {
        self.later.others || Builder::needs_xid(bytes, self.tables.len()) || wal::has_origin() || wal::is_logical()
    }

    /// P6: builds the record, or the records, one for each of which `insert` is called with its
    /// tables. Without an id there is one record, which stays in the builder.
    fn build(&mut self, t: &mut Txn, xid: Option<u64>, csn: Csn, mut insert: impl FnMut(&[&'static Table], Op, &[u8])) {
        let head = Head { csn, token: t.token(), xid, reply: xid.is_none() && wal::awaits_apply() };
        for tables in self.tables.chunks(TABLES_MAX) {
            self.builder.begin(head, tables.iter().map(|table| Storage::from(table.key)));
            for w in t.durable_writes() {
                let Some(table) = tables.iter().rposition(|table| table.id == w.table.id) else { continue };
                // SAFETY: the transaction has not settled.
                let (kind, payload) = unsafe { w.content() };
                let row = packed(payload);
                self.builder.add(table as u8, kind, w.no as u32, row, |op, data| insert(tables, op, data));
            }
            let (op, data) = self.builder.end();
            reach("commit-built");
            insert(tables, op, data);
        }
    }

    /// P6 and P7: the records go into WAL, and their rows are dirty. The commit log decides.
    fn log_under(&mut self, xid: u64, csn: Csn, t: &mut Txn) {
        slot().xid.store(xid, Ordering::SeqCst);
        self.build(t, Some(xid), csn, |tables, op, data| {
            let insert = || insert(op, data, "xcommit-inserted");
            wal::critical(|| log(my_window(), insert, |_| (), || set_dirty_by(tables, op, data)));
            reach("xcommit-marked");
        });
        my_window().leave();
    }

    /// Steps C1 to C10: PostgreSQL has decided to commit. Cannot fail.
    pub fn commit(&mut self, t: &mut Txn) {
        if t.is_active() {
            self.is_decided = true;
            match self.way {
                Way::Nothing => self.publish(t),
                Way::Record => self.commit_by_record(t),
                Way::Xid(_) | Way::Elsewhere(_) => self.commit_by_xid(t),
            }
        }
        self.end();
    }

    fn publish(&mut self, t: &mut Txn) {
        if !t.is_held() {
            t.publish(&PG);
            return;
        }
        t.mark_committed();
        t.settle();
        t.rest();
        t.release_written(&PG);
        stop::hold();
        depends::await_after(t);
        t.done();
        t.finish(&PG);
    }

    fn commit_by_record(&mut self, t: &mut Txn) {
        let (synchronous, builder) = (self.synchronous, &mut self.builder);
        let lsn = wal::critical(|| {
            let insert = || {
                let (op, data) = builder.end();
                insert(op, data, "commit-inserted")
            };
            let lsn = decide(t, insert);
            t.release_written(&PG);
            if synchronous && !faults::on(Fault::FlushLeftOut) {
                wal::flush(lsn);
            } else {
                // INV-LAZY
                slot().lazy.store(lsn, Ordering::SeqCst);
            }
            lsn
        });
        reach("commit-flushed");
        if synchronous {
            wal::await_standbys(lsn);
            await_shown(t, lsn);
            stop::hold();
        }
        reach("commit-replicated");
        if self.depended {
            depends::await_after(t);
        }
        t.done();
        reach("commit-done");
        t.finish(&PG);
        wal::set_last_commit(lsn);
    }

    /// PostgreSQL has logged, flushed and replicated the commit.
    fn commit_by_xid(&mut self, t: &mut Txn) {
        marks::set(self.began);
        wal::critical(|| decide(t, || 0));
        await_shown(t, wal::last_commit());
        t.done();
        reach("commit-done");
        t.finish(&PG);
        slot().xid.store(0, Ordering::SeqCst);
    }

    /// The transaction aborts, or its process exits, in any state. After an error in
    /// [`Commit::commit`] only a restart of the server can help, as in PostgreSQL's own commits.
    pub fn abort(&mut self, t: &mut Txn) {
        if self.is_decided {
            panic_after_decision();
        }
        t.abort();
        if self.way != Way::Nothing {
            my_window().leave();
            slot().xid.store(0, Ordering::SeqCst);
        }
        self.end();
    }

    fn end(&mut self) {
        (self.way, self.is_decided) = (Way::Nothing, false);
        if self.tables.is_empty() {
            return;
        }
        self.tables.clear();
        if self.builder.capacity() > KEPT {
            *self = Commit::default();
        }
    }
}

/// A prepared transaction of a slot is decided, and committed: the word, and the dirty bits of the
/// rows that it has logged (INV-DIRTY), in the window of its slot. In a critical section. The
/// caller publishes it, and sets the slot's transaction id to 0 after that.
pub fn mark_prepared(t: &Txn, slot: SlotId) {
    let window = &shmem::engine().slots[slot as usize].logging;
    let set_dirty = || {
        if !faults::on(Fault::PreparedStaysPending) {
            t.durable_writes().for_each(|w| w.durable.set_dirty(w.no));
        }
    };
    log(window, || (), |()| t.mark_committed(), set_dirty);
}

/// Does a COMMIT that logs nothing of ours wait for the flush of what it has changed elsewhere?
/// Snapshots leave it out meanwhile, and no reader waits for it.
fn waits_elsewhere(t: &Txn) -> bool {
    t.has_writes() && wal::is_synchronous() && wal::has_logged()
}

/// Forgets what only the validation of a commit needed.
fn let_go(t: &mut Txn) {
    t.let_go_early();
    xact::let_go();
}

/// The same for a commit that is logged, and that its transaction id decides.
fn rest(t: &mut Txn) {
    let_go(t);
    if !faults::on(Fault::PinKept) {
        t.rest_undecided();
    }
}

#[cold]
fn panic_after_decision() {
    let message = "cannot abort a transaction that has committed";
    ErrorReport::new(PgSqlErrorCode::ERRCODE_INTERNAL_ERROR, message, "mixedcc").report(PgLogLevel::PANIC);
}

/// With `synchronous_commit` at `remote_apply`: waits until the next snapshots of the standbys that
/// are waited for show the commit, whose word says that it is decided. They have applied its
/// record, which ends there, unless that wait was cancelled: then there is no other.
fn await_shown(t: &Txn, lsn: Lsn) {
    if wal::awaits_appliers() && t.csn() != 0 && wal::is_applied(lsn) {
        if let Some(end) = standby::tell_commit(t.csn()) {
            wal::await_standbys(end);
        }
    }
}

/// A row as a record has it; nothing for a tombstone.
fn packed(payload: &[u8]) -> [&[u8]; 2] {
    if payload.is_empty() {
        [&[], &[]]
    } else {
        crate::pg::stored::parts(payload)
    }
}

/// Inserts the record of a commit. Called in a critical section.
fn insert(op: Op, data: &[u8], event: &str) -> Lsn {
    // SAFETY: in a critical section, in which no other record is begun.
    let lsn = unsafe { wal::insert(op, wal::WITH_ORIGIN, &[data]) };
    reach(event);
    lsn
}

/// Steps C2 to C5, in a critical section: `insert`, then the word, then the dirty bits, then the
/// rest.
fn decide(t: &mut Txn, insert: impl FnOnce() -> Lsn) -> Lsn {
    let writer: &Txn = t;
    let set_dirty = || {
        reach("commit-bits");
        let mut bits = Bits::default();
        writer.durable_writes().for_each(|w| bits.add(w.durable, w.no));
        drop(bits);
        reach("commit-marked");
    };
    let lsn = log(my_window(), insert, |_| writer.mark_committed(), set_dirty);
    t.settle();
    reach("commit-settled");
    my_window().leave();
    t.rest();
    lsn
}

/// The dirty bits of a record's items, which name these tables.
fn set_dirty_by(tables: &[&'static Table], op: Op, data: &[u8]) {
    let mut bits = Bits::default();
    for (table, record) in rows_of(op, data) {
        if let Some(durable) = tables[table as usize].durable() {
            bits.add(durable, record.into());
        }
    }
}
