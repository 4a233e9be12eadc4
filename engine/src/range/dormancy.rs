//! Dormant ranges: when no scan has used an index for some time, writers stop registering in its
//! ranges.
//!
//! **INV-REST**: A scanner pins its slot and keeps that pin before it checks whether the index's
//! ranges are active; it activates dormant ranges. Writers leave dormant ranges out. So ranges
//! become dormant only when every pin is larger than a value of the clock that was read after they
//! had ceased to be active. Dormant ranges count as active again only after every commit that was
//! under way, and may write the table, has ended. How long no scan has come decides only when they
//! begin to become dormant; the proof does not depend on it.

use crate::csn::{Csn, SlotId};
use crate::faults::{self, Fault};
use crate::primitive::{AtomicU64, Ordering};

/// The time without a scan after which an index's ranges become idle.
pub const DORMANT_AFTER_NS: u64 = 10_000_000_000;

/// Writers register. Scans wait until every commit that might not know that has ended.
const WAKING: u64 = 0;
/// Writers register, and scans rely on that.
const ACTIVE: u64 = 1;
/// Writers register, and scans that rely on that may be under way; a new scan makes the ranges
/// active again. The rest of the word is the clock's value at the change, or [`NOT_YET`] and the
/// slot that is reading the clock.
const IDLE: u64 = 2;
/// Writers do not register.
const DORMANT: u64 = 3;
const STATE: u64 = 3;
const NOT_YET: u64 = 1 << 63;

/// Whether writers register in the ranges of an index. All-zero: they do, but scans do not rely on
/// it yet.
#[repr(C)]
pub struct Dormancy {
    word: AtomicU64,
    /// Has a scan used the ranges since a writer's last check?
    used: AtomicU64,
    /// The time of a writer's first check that found no use after the last scan, in nanoseconds.
    idle_since: AtomicU64,
    /// Every commit with a larger CSN has registered.
    complete_since: AtomicU64,
    /// The number of times that they became dormant.
    times_dormant: AtomicU64,
}

/// A writer's check: its time, the time that ranges stay active without a scan, and the writer.
#[derive(Clone, Copy)]
pub struct Look {
    /// The present time in nanoseconds, by a clock that all processes share.
    pub at_ns: u64,
    /// The time after the last scan at which ranges become idle.
    pub after_ns: u64,
    /// The writer's slot.
    pub me: SlotId,
}

impl Dormancy {
    /// An initial word made of the model checker's atomics.
    #[cfg(loom)]
    pub fn model() -> Dormancy {
        let zero = || AtomicU64::new(0);
        Dormancy { word: zero(), used: zero(), idle_since: zero(), complete_since: zero(), times_dormant: zero() }
    }

    /// May a commit that is under way leave the ranges out?
    #[inline]
    pub fn is_dormant(&self) -> bool {
        self.word.load(Ordering::SeqCst) == DORMANT
    }
    /// Does a scan that has been pinned since before this call find all writers registered?
    #[cfg(any(test, feature = "faults"))]
    pub fn is_active(&self) -> bool {
        self.word.load(Ordering::SeqCst) == ACTIVE
    }
    /// The number of times that they became dormant.
    pub fn times_dormant(&self) -> u64 {
        self.times_dormant.load(Ordering::Relaxed)
    }
    /// Commits with a CSN at or below this one may be missing in the lists, although a snapshot
    /// before them does not see them.
    pub fn complete_since(&self) -> Csn {
        self.complete_since.load(Ordering::SeqCst)
    }
    /// Notes that new lists begin: commits up to `now` are not in them.
    pub fn begin(&self, now: Csn) {
        self.complete_since.fetch_max(now, Ordering::SeqCst);
    }

    /// Makes a scan, whose pin stays, rely on the ranges: all writers register when this returns.
    /// `await_commits` waits for the commits under way that may write the table.
    pub fn wake<E>(&self, now: impl Fn() -> Csn, mut await_commits: impl FnMut() -> Result<(), E>) -> Result<(), E> {
        loop {
            let w = self.word.load(Ordering::SeqCst);
            let next = match w & STATE {
                ACTIVE => break,
                DORMANT => WAKING,
                WAKING => {
                    let early = if faults::on(Fault::BeginsBeforeItWaits) { now() } else { 0 };
                    if !faults::on(Fault::WakesAtOnce) {
                        await_commits()?;
                    }
                    self.begin(if early != 0 { early } else { now() });
                    ACTIVE
                }
                _ => ACTIVE,
            };
            let _ = self.word.compare_exchange(w, next, Ordering::SeqCst, Ordering::SeqCst);
        }
        if self.used.load(Ordering::Relaxed) == 0 {
            self.used.store(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Has no scan used the ranges for the given time? A writer asks from time to time.
    fn is_idle(&self, look: Look) -> bool {
        if self.used.load(Ordering::Relaxed) != 0 {
            self.used.store(0, Ordering::Relaxed);
            self.idle_since.store(look.at_ns, Ordering::Relaxed);
            return false;
        }
        look.at_ns.saturating_sub(self.idle_since.load(Ordering::Relaxed)) > look.after_ns
    }

    /// A writer checks from time to time whether the ranges are needed. `min_pin` is a lower bound
    /// of all pins.
    pub fn check_use(&self, look: Look, now: impl Fn() -> Csn, min_pin: impl FnOnce() -> Csn) {
        let w = self.word.load(Ordering::SeqCst);
        match w & STATE {
            ACTIVE if self.is_idle(look) => {
                let early = if faults::on(Fault::LooksAtClockBeforeDrowsy) { now() } else { 0 };
                let mine = IDLE | NOT_YET | (look.me as u64) << 2;
                if self.word.compare_exchange(w, mine, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                    // Read after the change: a scan that found the ranges active has no larger pin.
                    let idle = IDLE | if early != 0 { early } else { now() } << 2;
                    let _ = self.word.compare_exchange(mine, idle, Ordering::SeqCst, Ordering::SeqCst);
                }
            }
            IDLE if w & NOT_YET == 0 && (w >> 2 < min_pin() || faults::on(Fault::SleepsAtOnce)) => {
                if self.word.compare_exchange(w, DORMANT, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                    self.times_dormant.fetch_add(1, Ordering::Relaxed);
                }
            }
            _ => {}
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn ranges_become_dormant_when_no_scan_has_come_for_some_time() {
        // SAFETY: INV-REST: all-zero memory is a valid `Dormancy`.
        let r: Dormancy = unsafe { std::mem::zeroed() };
        let wake = || r.wake(|| 7, || Ok::<(), ()>(())).expect("there is no wait");
        let check_use = |at_ns| r.check_use(Look { at_ns, after_ns: 100, me: 3 }, || 7, || 8);
        wake();
        check_use(1000); // Finds that they were used.
        for at in [1001, 1100, 1050] {
            check_use(at);
            assert!(r.is_active(), "{at}");
        }
        wake();
        check_use(1101); // They were used meanwhile.
        check_use(1201);
        assert!(r.is_active());
        check_use(1202);
        assert!(!r.is_active() && !r.is_dormant(), "idle");
        wake();
        assert!(r.is_active(), "a scan came in time");
        check_use(1300);
        check_use(1401);
        check_use(1401);
        assert!(r.is_dormant());
        assert_eq!(r.times_dormant(), 1);
        check_use(9000);
        assert!(r.is_dormant());
        wake();
        assert!(r.is_active());
    }
}
