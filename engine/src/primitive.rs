//! The atomics that the engine uses: the standard ones, or a model checker's.
//!
//! Build with `RUSTFLAGS="--cfg loom"` to run the models in `tests/`.

#[cfg(loom)]
pub use loom::sync::atomic::{fence, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
pub use std::sync::atomic::{fence, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// One step of a short wait for a latch: spin first, then give the core away.
///
/// `n` counts the steps of this wait. Never sleeps for long and never raises.
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

/// Between a sequentially consistent store and a sequentially consistent load of something else: the
/// order of such accesses is total by itself, but the model checker knows that of fences only.
#[cfg(not(loom))]
#[inline(always)]
pub fn model_fence() {}

/// See above.
#[cfg(loom)]
pub fn model_fence() {
    fence(Ordering::SeqCst);
}

/// Asks for the cache line at an address that will be read soon. Any address will do.
#[inline(always)]
pub fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint: it reads nothing and never faults.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Processor time that the calling thread has used, nanoseconds; 0 where the system does not tell.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub fn thread_cpu_ns() -> u64 {
    #[repr(C)]
    struct Timespec {
        seconds: i64,
        nanoseconds: i64,
    }
    extern "C" {
        fn clock_gettime(clock: i32, to: *mut Timespec) -> i32;
    }
    const THREAD: i32 = 3;
    let mut t = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: the C library's function; `t` has the layout of its `timespec` on these systems.
    match unsafe { clock_gettime(THREAD, &raw mut t) } {
        0 => t.seconds as u64 * 1_000_000_000 + t.nanoseconds as u64,
        _ => 0,
    }
}

/// See above.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
pub fn thread_cpu_ns() -> u64 {
    0
}
