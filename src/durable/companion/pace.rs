//! Pacing: the round of a checkpoint rests between batches, so that the checkpoint is no burst.
//!
//! A round images at most `mixedcc.image_rate` rows a second. It is faster if half of the
//! checkpoint's time, or of its WAL, would else be over before its end: the other half is for the
//! flush of buffers. It does not rest at all for a checkpoint that a process waits for. A waiting
//! process is seen by its wait event, as checkpoints do not say for whom they are made.
//!
//! The checkpointer waits for the round, and does little else meanwhile. So these end the rests of
//! a round, too: a process that waits for an answer of the checkpointer, a process that asks for a
//! round and wants it soon, and the end of the companion. Autovacuum's rounds rest.

use super::hold;
use crate::pg::compat::Wait;
use crate::pg::faults::{self, Fault};
use crate::pg::{compat, guc, wal, worker};
use crate::state::standby;
use crate::state::xact::anchors;
use mixedcc_engine::durable::flushed::Flushed;
use mixedcc_engine::durable::report::Activity;
use mixedcc_engine::durable::wal::RoundKind;
use mixedcc_engine::durable::Lsn;
use mixedcc_engine::Engine;
use std::time::Instant;

/// The longest time between two looks whether the round is to rest no more, ms.
const LOOK_MS: i64 = 50;
/// The least number of rows between two rests.
const LEAST: u64 = 512;
/// The part of a checkpoint's time and WAL that is for its round.
const PART: f64 = 0.5;

/// The pace of a round.
pub struct Pace<'a> {
    e: &'a Engine,
    flushed: &'a mut Flushed,
    /// Does the round rest? Once it does not, it does so no more.
    rests: bool,
    begun: Instant,
    from: Lsn,
    /// The rounds that processes wanted soon, and that are complete.
    served: u64,
    /// The rows that were dirty then.
    total: u64,
    /// The rows that were written, and the number of them after which it is to rest.
    rows: u64,
    next: u64,
}

impl<'a> Pace<'a> {
    /// A round of this kind begins. So many rounds that processes wanted soon are complete.
    pub fn begin(e: &'a Engine, flushed: &'a mut Flushed, (kind, served): (RoundKind, u64)) -> Pace<'a> {
        let (begun, from) = (Instant::now(), wal::inserted());
        let rests = matches!(kind, RoundKind::Checkpoint | RoundKind::Asked);
        Pace { e, flushed, rests, begun, from, served, total: 0, rows: 0, next: LEAST }
    }
    /// So many rows are dirty, of all tables.
    pub fn expect(&mut self, rows: u64) {
        self.total = rows;
    }
    /// A row was written.
    pub fn count(&mut self) {
        self.rows += 1;
    }
    /// Is it time to rest?
    pub fn is_due(&self) -> bool {
        self.rests && self.rows >= self.next && !faults::on(Fault::PaceForgotten)
    }
    /// Rests, if the round is ahead. The caller holds nothing that others wait for.
    pub fn rest(&mut self) {
        let report = &self.e.shared.rounds.report;
        while self.rests && !self.is_urgent() {
            let rate = guc::IMAGE_RATE.get() as u64;
            if rate == 0 || self.is_late() {
                self.next = self.rows + LEAST;
                break;
            }
            let due_ms = self.rows.saturating_mul(1000) / rate;
            let left = due_ms as i64 - self.begun.elapsed().as_millis() as i64;
            if left <= 0 {
                self.next = self.rows + LEAST.max(rate / 50);
                break;
            }
            report.begin(Activity::Pacing, compat::now());
            hold::rest(left.min(standby::rest_ms(LOOK_MS)), Wait::ImageRound);
            worker::reload();
            self.flushed.advance(self.e, wal::inserted, wal::flushed);
            standby::tell_in_time();
            anchors::renew();
        }
        report.begin(Activity::Imaging, compat::now());
    }
    /// Does a process wait for the round, or for what the checkpointer will do after it?
    fn is_urgent(&mut self) -> bool {
        let urgent =
            worker::is_to_end() || self.e.shared.rounds.urgent() != self.served || compat::is_checkpointer_awaited();
        self.rests &= !urgent;
        urgent
    }
    /// Is more of its time, or of its WAL, over than of its rows?
    fn is_late(&self) -> bool {
        let (seconds, bytes) = compat::checkpoint_span();
        let time = self.begun.elapsed().as_secs_f64() / seconds;
        let wal = wal::inserted().saturating_sub(self.from) as f64 / bytes;
        let done = self.rows as f64 / self.total.max(1) as f64;
        // Not a number: the checkpoint is not spread at all.
        !(time.max(wal) / PART < done)
    }
}
