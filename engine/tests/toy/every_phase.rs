
    // Every phase that is only told, and step 0 of the commit: are they called, and in order?
    const START: super::rules::Told<&'static crate::partition::Partition> = Some(|_, _| {
        FOLLOWED.set(FOLLOWED.get() + 1);
        assert!(FOLLOWED.get() <= 8, "a partition was not ended");
    });
    const EXPOSE: super::rules::Told<u32> = Some(|t, write| {
        assert!(FOLLOWED.get() > 0 && t.write(write).is_some());
        CALLED.fetch_or(1, Relaxed);
    });
    const STEP: super::rules::Told<&'static crate::partition::Partition> = Some(|_, _| {
        assert!(FOLLOWED.get() > 0);
        CALLED.fetch_or(2, Relaxed);
    });
    const BEFORE_COMMIT: super::rules::AtCommit = Some(|_, _, _| {
        assert!(FOLLOWED.get() > 0);
        CALLED.fetch_or(4, Relaxed);
        Ok(())
    });
    const ENDED: super::rules::Told<&'static crate::partition::Partition> = Some(|_, _| {
        FOLLOWED.set(FOLLOWED.get().checked_sub(1).expect("a partition began before it ended"));
        ENDS.set(ENDS.get() + 1);
        assert!(ENDS.get() < 1000 || CALLED.load(Relaxed) == 7, "a phase is never called");
    });
}

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The phases that some thread was called in, as bits. One that only reads exposes nothing: the
/// threads beside it do.
static CALLED: AtomicU32 = AtomicU32::new(0);

std::thread_local! {
    static FOLLOWED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    static ENDS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
