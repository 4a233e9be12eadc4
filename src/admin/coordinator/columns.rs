//! The periods in which tables learn which columns updates change (`Table::changing`).

use crate::pg::guc;
use mixedcc_engine::Table;

/// The period that runs.
pub struct Periods {
    ends_at: u64,
}

impl Periods {
    pub fn start(now: u64) -> Periods {
        Periods { ends_at: now + length() }
    }

    /// Milliseconds until the period ends.
    pub fn due_in_ms(&self, now: u64) -> i64 {
        (self.ends_at.saturating_sub(now) / 1000).max(1) as i64
    }

    /// Once a pass: ends the period in all tables, if it is over. Without a length tables know
    /// nothing, and look-ups lock their rows.
    pub fn watch(&mut self, now: u64, with_tables: impl FnOnce(&dyn Fn(&[&'static Table]))) {
        // A shorter setting counts at once.
        self.ends_at = self.ends_at.min(now + length());
        if now < self.ends_at {
            return;
        }
        let off = guc::COLUMN_PERIOD_MS.get() == 0;
        with_tables(&|tables| {
            for t in tables {
                if off {
                    t.changing.forget();
                } else {
                    t.changing.end_period();
                }
            }
        });
        self.ends_at = now + length();
    }
}

/// Microseconds. The setting 0 has a length too: its periods only forget.
fn length() -> u64 {
    let ms = guc::COLUMN_PERIOD_MS.get();
    if ms == 0 {
        1_000_000
    } else {
        ms as u64 * 1000
    }
}
