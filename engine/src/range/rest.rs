//! Ranges at rest: those that no scan has used for some time are asleep, and writers leave them out.

use crate::csn::{Csn, SlotId};
use crate::faults::{self, Fault};
use crate::primitive::{AtomicU64, Ordering};

/// So many CSNs after the last scan ranges grow drowsy: few in tests, which are short.
pub const SLEEP_AFTER: u64 = if cfg!(loom) {
    0
} else if cfg!(feature = "faults") {
    16
} else {
    1 << 16
};

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
/// ceased to be awake; and awake from there only after every commit that was under way has ended.
#[repr(C)]
pub struct Rest {
    word: AtomicU64,
    /// The clock, about, when a scan used the ranges last.
    used_at: AtomicU64,
    /// Every commit with a larger CSN has registered.
    complete_since: AtomicU64,
    /// Times that they fell asleep.
    sleeps: AtomicU64,
}

impl Rest {
    /// A word of the model checker.
    #[cfg(loom)]
    pub fn model() -> Rest {
        let zero = || AtomicU64::new(0);
        Rest { word: zero(), used_at: zero(), complete_since: zero(), sleeps: zero() }
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

    /// A scan, whose pin stays, will rely on the ranges: all writers register when this returns.
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
        let (now, used) = (now(), self.used_at.load(Ordering::Relaxed));
        if now > used + SLEEP_AFTER / 8 {
            self.used_at.store(now, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A writer looks, now and then, whether the ranges are needed. `min_pin`: a lower bound of all pins.
    pub fn tire(&self, me: SlotId, now: impl Fn() -> Csn, min_pin: impl FnOnce() -> Csn) {
        let w = self.word.load(Ordering::SeqCst);
        match w & STATE {
            AWAKE if now() > self.used_at.load(Ordering::Relaxed) + SLEEP_AFTER => {
                let early = if faults::on(Fault::LooksAtClockBeforeDrowsy) { now() } else { 0 };
                let mine = DROWSY | NOT_YET | (me as u64) << 2;
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
