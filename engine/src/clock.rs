//! Clocks for statistics. Every transaction reads one twice, so reading it must be very cheap.

/// A clock for the time between two moments on one machine.
///
/// On x86-64, Linux may use the processor's counter (TSC) as its own clock. Then the counter is
/// read directly: a few instructions instead of a call of the C library. Linux does so only if it
/// has found that all processors count alike, at one rate. Elsewhere this is the system's monotonic
/// clock. The choice is made once, at the start of the server. If Linux gives up the counter later,
/// times are wrong until the next start.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Nanoseconds in a tick of the counter, times 2^32. 0: the system's clock is used, whose ticks
    /// are nanoseconds.
    scale: u64,
}

impl Clock {
    /// The clock of this process. The first call takes some milliseconds. Processes that are forked
    /// later have the same clock without that delay, and can compare their times.
    pub fn of_process() -> Clock {
        static CLOCK: std::sync::OnceLock<Clock> = std::sync::OnceLock::new();
        *CLOCK.get_or_init(|| Clock { scale: counter::scale().unwrap_or(0) })
    }

    /// The present moment, for [`Clock::ns_since`].
    #[inline]
    pub fn now(self) -> u64 {
        match self.scale {
            0 => monotonic_ns(),
            _ => counter::read(),
        }
    }

    /// Nanoseconds since a moment. 0 if that is still to come, as processors may differ by some
    /// ticks.
    #[inline]
    pub fn ns_since(self, then: u64) -> u64 {
        let passed = (self.now().wrapping_sub(then) as i64).max(0) as u64;
        match self.scale {
            0 => passed,
            scale => ((u128::from(passed) * u128::from(scale)) >> 32) as u64,
        }
    }
}

/// The processor's counter.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod counter {
    use super::monotonic_ns;

    /// The file that names the source of Linux's clock.
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    /// The time for which the counter is compared with the clock. Either is read within some tens
    /// of nanoseconds.
    const COMPARED: std::time::Duration = std::time::Duration::from_millis(2);

    #[inline(always)]
    pub fn read() -> u64 {
        // SAFETY: all processors of this architecture have the instruction. Linux makes its clock
        // of the counter, so user space may execute it.
        unsafe { std::arch::x86_64::_rdtsc() }
    }

    /// The counter and the clock at one moment. Of several attempts it takes the one with the least
    /// time between the two reads.
    fn both() -> (u64, u64) {
        let attempt = |_| {
            let before = read();
            let ns = monotonic_ns();
            let took = read().wrapping_sub(before);
            (took, before.wrapping_add(took / 2), ns)
        };
        let (_, ticks, ns) = (0..10).map(attempt).min().unwrap_or_default();
        (ticks, ns)
    }

    /// Nanoseconds in a tick, times 2^32. `None` if the counter cannot serve as a clock.
    pub fn scale() -> Option<u64> {
        if std::fs::read_to_string(SOURCE).ok()?.trim() != "tsc" {
            return None;
        }
        let from = both();
        std::thread::sleep(COMPARED);
        let to = both();
        let (ticks, ns) = (to.0.checked_sub(from.0)?, to.1.checked_sub(from.1)?);
        let scale = (u128::from(ns) << 32).checked_div(u128::from(ticks))?;
        // Between 62 MHz and 32 GHz; any other value is an error of measurement.
        u64::try_from(scale).ok().filter(|s| (1 << 27..1 << 36).contains(s))
    }
}

/// Stubs for systems without a usable counter.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
mod counter {
    pub fn read() -> u64 {
        0
    }
    pub fn scale() -> Option<u64> {
        None
    }
}

/// A clock of the system in nanoseconds. 0 if there is no such clock.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn system_ns(clock: i32) -> u64 {
    #[repr(C)]
    struct Timespec {
        seconds: i64,
        nanoseconds: i64,
    }
    extern "C" {
        fn clock_gettime(clock: i32, to: *mut Timespec) -> i32;
    }
    let mut t = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: the C library's function; `t` has the layout of its `timespec` on these systems.
    match unsafe { clock_gettime(clock, &raw mut t) } {
        0 => t.seconds as u64 * 1_000_000_000 + t.nanoseconds as u64,
        _ => 0,
    }
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[cold]
fn monotonic_ns() -> u64 {
    const MONOTONIC: i32 = 1;
    system_ns(MONOTONIC)
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
#[cold]
fn monotonic_ns() -> u64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed().as_nanos() as u64
}

/// Processor time of the calling thread in nanoseconds. 0 if the system does not tell.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub fn thread_cpu_ns() -> u64 {
    const THREAD: i32 = 3;
    system_ns(THREAD)
}

/// Processor time of the calling thread: not known on this system.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
pub fn thread_cpu_ns() -> u64 {
    0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn both_clocks_tell_the_time_that_passes() {
        for clock in [Clock::of_process(), Clock { scale: 0 }] {
            let outer = Instant::now();
            let then = clock.now();
            let inner = Instant::now();
            std::thread::sleep(Duration::from_millis(30));
            let inner = inner.elapsed().as_nanos() as f64;
            let ns = clock.ns_since(then) as f64;
            let outer = outer.elapsed().as_nanos() as f64;
            assert!(inner * 0.99 <= ns && ns <= outer * 1.01, "{clock:?}: {ns} ns, which was {inner} to {outer}");
        }
    }

    #[test]
    fn what_is_still_to_come_is_no_time_ago() {
        for clock in [Clock::of_process(), Clock { scale: 0 }] {
            assert_eq!(clock.ns_since(clock.now() + (1 << 40)), 0);
        }
    }

    #[test]
    fn the_processors_time_stands_still_while_a_thread_sleeps() {
        let before = thread_cpu_ns();
        std::thread::sleep(Duration::from_millis(30));
        assert!(thread_cpu_ns() - before < 20_000_000);
        if cfg!(all(target_os = "linux", target_pointer_width = "64")) {
            let (began, mut n) = (Instant::now(), 0u64);
            while began.elapsed() < Duration::from_millis(1) {
                n = std::hint::black_box(n + 1);
            }
            assert!(thread_cpu_ns() > before, "but goes on while it works");
        }
    }
}
