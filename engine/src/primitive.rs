//! The atomics that the engine uses: the standard ones, or a model checker's.
//!
//! Build with `RUSTFLAGS="--cfg loom"` to run the models in `tests/`.

#[cfg(loom)]
pub use loom::sync::atomic::{fence, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering};
#[cfg(not(loom))]
pub use std::sync::atomic::{fence, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering};

/// One step of a short wait for a latch: spins first, then yields the core.
///
/// `n` counts the steps of this wait. Never sleeps for long and never raises an error.
#[cfg(not(loom))]
pub fn relax(n: u32) {
    if n < 64 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// One step of a short wait under the model checker.
#[cfg(loom)]
pub fn relax(_n: u32) {
    loom::thread::yield_now();
}

/// Orders a sequentially consistent store before a sequentially consistent load of another word.
/// Real processors need nothing for it. The model checker knows such an order only of fences.
#[cfg(not(loom))]
#[inline(always)]
pub fn model_fence() {}

/// The fence for the model checker.
#[cfg(loom)]
pub fn model_fence() {
    fence(Ordering::SeqCst);
}

/// Prefetches the cache line at an address that will be read soon. Any address is allowed.
#[inline(always)]
pub fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint: it reads nothing and never faults.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Lets the system map the pages from that of one address up to that of another, which will be
/// written soon: one call takes less time than a fault for each page. The content stays. A system
/// that cannot do it does nothing, and a process asks it once.
#[cold]
pub fn populate<T>(from: *mut T, to: *mut T) {
    use std::sync::atomic::AtomicBool;
    static CANNOT: AtomicBool = AtomicBool::new(false);
    populate_unless(&CANNOT, from.cast(), to.cast());
}

/// The same, unless it has failed before: it would fail again (EINVAL: a kernel before 5.14), or
/// what is lacking is so for longer (ENOMEM). A process that then writes to the page has the fault.
/// Was the system asked?
fn populate_unless(cannot: &std::sync::atomic::AtomicBool, from: *mut u8, to: *mut u8) -> bool {
    #[cfg(target_os = "linux")]
    {
        use std::sync::atomic::Ordering::Relaxed;
        const PAGE: usize = 4096;
        const POPULATE_WRITE: i32 = 23;
        extern "C" {
            fn madvise(from: *mut u8, len: usize, advice: i32) -> i32;
        }
        let before = from.addr() % PAGE;
        let len = (to.addr() / PAGE * PAGE).saturating_sub(from.addr() - before);
        if len > 0 && !cannot.load(Relaxed) {
            // SAFETY: the C library's function. With this advice the system makes what the first
            // writes to these pages would make, whatever they are, and changes no content.
            let failed = unsafe { madvise(from.wrapping_sub(before), len, POPULATE_WRITE) } != 0;
            if failed {
                cannot.store(true, Relaxed);
            }
            return true;
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (cannot, from, to);
    false
}

/// Busy ticks and all ticks of the machine's processors since its start. Both are 0 if the system
/// does not tell.
pub fn processor_ticks() -> (u64, u64) {
    let Ok(text) = std::fs::read_to_string("/proc/stat") else { return (0, 0) };
    ticks_of(&text).unwrap_or((0, 0))
}

/// The ticks in the text of Linux's `/proc/stat`: user, nice, system, idle, iowait, irq, softirq,
/// steal.
fn ticks_of(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = line.split_whitespace().take(8).map(|n| n.parse().ok()).collect::<Option<_>>()?;
    let all = fields.iter().sum::<u64>();
    Some((all - fields.get(3)? - fields.get(4)?, all))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_cannot_map_is_asked_for_once() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let cannot = AtomicBool::new(false);
        let mut there = vec![7u8; 1 << 16];
        let all = there.as_mut_ptr_range();
        let is_linux = cfg!(target_os = "linux");
        assert_eq!(populate_unless(&cannot, all.start, all.end), is_linux);
        assert!(there.iter().all(|byte| *byte == 7));
        // Nothing is mapped there: ENOMEM.
        let none = |page: usize| std::ptr::without_provenance_mut(page << 12);
        cannot.store(false, Ordering::Relaxed);
        assert_eq!(populate_unless(&cannot, none(1), none(4)), is_linux);
        assert_eq!(cannot.load(Ordering::Relaxed), is_linux);
        assert!(!populate_unless(&cannot, none(1), none(4)), "it is not asked again");
    }

    #[test]
    fn processors_are_busy_when_they_are_not_idle_and_do_not_wait_for_disks() {
        let text = "cpu  10 2 3 60 5 1 1 8 4 0\ncpu0 5 1 1 30 2 1 1 4 2 0\n";
        assert_eq!(ticks_of(text), Some((25, 90)), "guests' time is in user time already");
        for bad in ["", "cpu", "cpu  1 2 3", "cpu  1 2 3 x 5 6 7 8", "intr 5"] {
            assert_eq!(ticks_of(bad), None, "{bad}");
        }
    }
}
