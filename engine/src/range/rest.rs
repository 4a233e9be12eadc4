//! Ranges at rest: those that no scan has used for some time are asleep, and writers leave them out.

use crate::csn::{Csn, SlotId};
use crate::faults::{self, Fault};
use crate::primitive::{AtomicU64, Ordering};

/// How long nobody has scanned an index when its ranges grow drowsy.
pub const SLEEP_AFTER_NS: u64 = 10_000_000_000;

/// Writers register; scans wait until every commit that might not know that has ended.
const WAKING: u64 = 0;
/// Writers register, and scans rely on that.
const AWAKE: u64 = 1;
/// Writers register; scans that rely on it may be under way, new ones make it awake. The rest of the word: the clock's value
/// when it became so, or [`NOT_YET`] and who is reading the clock.
const DROWSY: u64 = 2;
/// Writers do not register.
const ASLEEP: u64 = 3;
const STATE: u64 = 3;
const NOT_YET: u64 = 1 << 63;

/// Whether writers register in the ranges of an index. All-zero: they do, and nobody relies on it yet.
///
/// INV-REST: whoever scans is pinned, for as long as it relies on the ranges, before it looks at the word, and makes it
/// *awake*. It becomes *asleep* only when every pin is larger than a value of the clock that was read after it had
/// ceased to be awake; and awake from there only after every commit that was under way, and may write the table, has
/// ended. When it begins to grow drowsy is a matter of time, and of no proof.
#[repr(C)]
pub struct Rest {
    word: AtomicU64,
    /// Has a scan used the ranges since a writer looked last?
    used: AtomicU64,
    /// When a writer found that none had, or the first look after a scan, ns.
    idle_since: AtomicU64,
    /// Every commit with a larger CSN has registered.
    complete_since: AtomicU64,
    /// Times that they fell asleep.
    sleeps: AtomicU64,
}

/// A look of a writer: when, how long ranges stay awake without a scan, and who it is.
#[derive(Clone, Copy)]
pub struct Look {
    /// Now, nanoseconds of any clock that all processes share.
    pub at_ns: u64,
    /// So long after the last scan ranges grow drowsy.
    pub after_ns: u64,
    /// The writer.
    pub me: SlotId,
}

impl Rest {
    /// A word of the model checker.
    #[cfg(loom)]
    pub fn model() -> Rest {
        let zero = || AtomicU64::new(0);
        Rest { word: zero(), used: zero(), idle_since: zero(), complete_since: zero(), sleeps: zero() }
    }

    /// May a commit that is under way leave the ranges out?
    #[inline]
    pub fn is_asleep(&self) -> bool {
        self.word.load(Ordering::SeqCst) == ASLEEP
    }
    /// Does a scan that is pinned since before this call find all writers registered?
    #[inline]
    pub fn is_awake(&self) -> bool {
        self.word.load(Ordering::SeqCst) == AWAKE
    }
    /// Times that they fell asleep.
    pub fn sleeps(&self) -> u64 {
        self.sleeps.load(Ordering::Relaxed)
    }
    /// Commits with a CSN at or below this one may not be in the lists, though they are not visible to a snapshot before them.
    pub fn complete_since(&self) -> Csn {
        self.complete_since.load(Ordering::SeqCst)
    }
    /// New lists begin: what committed up to `now` is not in them.
    pub fn begin(&self, now: Csn) {
        self.complete_since.fetch_max(now, Ordering::SeqCst);
    }

    /// A scan, whose pin stays, will rely on the ranges: all writers register when this returns. `await_commits` waits for
    /// commits under way that may write the table.
    pub fn wake<E>(&self, now: impl Fn() -> Csn, mut await_commits: impl FnMut() -> Result<(), E>) -> Result<(), E> {
        loop {
            let w = self.word.load(Ordering::SeqCst);
            let next = match w & STATE {
                AWAKE => break,
                ASLEEP => WAKING,
                WAKING => {
                    let early = if faults::on(Fault::BeginsBeforeItWaits) { now() } else { 0 };
                    if !faults::on(Fault::WakesAtOnce) {
                        await_commits()?;
                    }
                    self.begin(if early != 0 { early } else { now() });
                    AWAKE
                }
                _ => AWAKE,
            };
            let _ = self.word.compare_exchange(w, next, Ordering::SeqCst, Ordering::SeqCst);
        }
        if self.used.load(Ordering::Relaxed) == 0 {
            self.used.store(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Has no scan used them for long? A writer asks, now and then.
    fn is_idle(&self, look: Look) -> bool {
        if self.used.load(Ordering::Relaxed) != 0 {
            self.used.store(0, Ordering::Relaxed);
            self.idle_since.store(look.at_ns, Ordering::Relaxed);
            return false;
        }
        look.at_ns.saturating_sub(self.idle_since.load(Ordering::Relaxed)) > look.after_ns
    }

    /// A writer looks, now and then, whether the ranges are needed. `min_pin`: a lower bound of all pins.
    pub fn tire(&self, look: Look, now: impl Fn() -> Csn, min_pin: impl FnOnce() -> Csn) {
        let w = self.word.load(Ordering::SeqCst);
        match w & STATE {
            AWAKE if self.is_idle(look) => {
                let early = if faults::on(Fault::LooksAtClockBeforeDrowsy) { now() } else { 0 };
                let mine = DROWSY | NOT_YET | (look.me as u64) << 2;
                if self.word.compare_exchange(w, mine, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                    // After the change: who found it awake has a pin that is not larger.
                    let drowsy = DROWSY | if early != 0 { early } else { now() } << 2;
                    let _ = self.word.compare_exchange(mine, drowsy, Ordering::SeqCst, Ordering::SeqCst);
                }
            }
            DROWSY if w & NOT_YET == 0 && (w >> 2 < min_pin() || faults::on(Fault::SleepsAtOnce)) => {
                if self.word.compare_exchange(w, ASLEEP, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                    self.sleeps.fetch_add(1, Ordering::Relaxed);
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
    fn they_fall_asleep_when_no_scan_has_come_for_some_time() {
        // SAFETY: all-zero is valid.
        let r: Rest = unsafe { std::mem::zeroed() };
        let wake = || r.wake(|| 7, || Ok::<(), ()>(())).expect("nobody is waited for");
        let tire = |at_ns| r.tire(Look { at_ns, after_ns: 100, me: 3 }, || 7, || 8);
        wake();
        tire(1000); // finds that they were used
        for at in [1001, 1100, 1050] {
            tire(at);
            assert!(r.is_awake(), "{at}");
        }
        wake();
        tire(1101); // used meanwhile
        tire(1201);
        assert!(r.is_awake());
        tire(1202);
        assert!(!r.is_awake() && !r.is_asleep(), "drowsy");
        wake();
        assert!(r.is_awake(), "a scan came in time");
        tire(1300);
        tire(1401);
        tire(1401);
        assert!(r.is_asleep());
        assert_eq!(r.sleeps(), 1);
        tire(9000);
        assert!(r.is_asleep());
        wake();
        assert!(r.is_awake());
    }
}
