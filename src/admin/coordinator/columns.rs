//! The periods in which tables learn which columns updates change (`Table::changing`).

use crate::pg::guc;
use mixedcc_engine::Table;

/// A table's first periods, ms (`Changing::tick`). A shorter setting counts.
const TICK_MS: i32 = 1000;

/// The clock of the periods.
pub struct Periods {
    ticks_at: u64,
}

impl Periods {
    pub fn start(now: u64) -> Periods {
        Periods { ticks_at: now + tick() }
    }

    /// Milliseconds until the next tick.
    pub fn due_in_ms(&self, now: u64) -> i64 {
        (self.ticks_at.saturating_sub(now) / 1000).max(1) as i64
    }

    /// Once a pass: the clock of all tables ticks, if it is time. With the setting 0 tables know
    /// nothing, and look-ups lock their rows.
    pub fn watch(&mut self, now: u64, with_tables: impl FnOnce(&dyn Fn(&[&'static Table]))) {
        // A shorter setting counts at once.
        self.ticks_at = self.ticks_at.min(now + tick());
        if now < self.ticks_at {
            return;
        }
        let period = guc::COLUMN_PERIOD_MS.get();
        with_tables(&|tables| {
            for t in tables {
                if period == 0 {
                    t.changing.forget();
                } else {
                    t.changing.tick((period / TICK_MS).max(1) as u32);
                }
            }
        });
        self.ticks_at = now + tick();
    }
}

/// Microseconds. The setting 0 has ticks, too, which only forget.
fn tick() -> u64 {
    match guc::COLUMN_PERIOD_MS.get() {
        0 => TICK_MS as u64 * 1000,
        ms => ms.min(TICK_MS) as u64 * 1000,
    }
}
