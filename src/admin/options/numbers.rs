//! Options that are numbers: how the coordinator chooses the protocols of a table, each in place of
//! a setting of the cluster, with the same range and unit.

use crate::pg::guc;
use mixedcc_engine::choice::Settings;
use mixedcc_engine::partition::Tuning;

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Percent,
    Count,
    Ms,
    Seconds,
}

/// An option that is a number.
pub struct Number {
    /// Its name.
    pub name: &'static str,
    /// The setting of the cluster.
    pub setting: &'static str,
    /// What it is in what decisions go by.
    pub value: fn(&Settings) -> f64,
    /// Does the table say it?
    pub is_own: fn(&Tuning) -> bool,
    unit: Unit,
    range: (f64, f64),
}

const fn whole(range: (i32, i32)) -> (f64, f64) {
    (range.0 as f64, range.1 as f64)
}

const COUNT: usize = 7;
/// A share in percent, without what binary fractions add to it.
fn percent(share: f64) -> f64 {
    (share * 1e11).round() / 1e9
}

/// All of them.
pub static NUMBERS: [Number; COUNT] = [
    Number {
        name: "adaptive_interval",
        setting: "mixedcc.adaptive_interval",
        value: |s| s.interval_us as f64 / 1000.0,
        is_own: |t| t.interval_us.is_some(),
        unit: Unit::Ms,
        range: whole(guc::INTERVAL_MS),
    },
    Number {
        name: "adaptive_min_gain",
        setting: "mixedcc.adaptive_min_gain",
        value: |s| percent(s.min_gain),
        is_own: |t| t.min_gain.is_some(),
        unit: Unit::Percent,
        range: (0.0, guc::MAX_PERCENT),
    },
    Number {
        name: "adaptive_max_loss",
        setting: "mixedcc.adaptive_max_loss",
        value: |s| percent(s.max_loss),
        is_own: |t| t.max_loss.is_some(),
        unit: Unit::Percent,
        range: (0.0, guc::MAX_PERCENT),
    },
    Number {
        name: "adaptive_confirm",
        setting: "mixedcc.adaptive_confirm",
        value: |s| s.confirm.into(),
        is_own: |t| t.confirm.is_some(),
        unit: Unit::Count,
        range: whole(guc::CONFIRM),
    },
    Number {
        name: "adaptive_min_samples",
        setting: "mixedcc.adaptive_min_samples",
        value: |s| s.min_samples as f64,
        is_own: |t| t.min_samples.is_some(),
        unit: Unit::Count,
        range: whole(guc::MIN_SAMPLES),
    },
    Number {
        name: "adaptive_forget",
        setting: "mixedcc.adaptive_forget",
        value: |s| s.forget_us as f64 / 1e6,
        is_own: |t| t.forget_us.is_some(),
        unit: Unit::Seconds,
        range: whole(guc::FORGET_S),
    },
    Number {
        name: "partcc_max_share",
        setting: "mixedcc.partcc_max_share",
        value: |s| percent(s.max_idle),
        is_own: |t| t.partition_lock_max_share.is_some(),
        unit: Unit::Percent,
        range: (0.0, guc::MAX_SHARE),
    },
];

/// Values of the options, in the order of [`NUMBERS`]; `None`: as for the whole cluster.
pub type Values = [Option<f64>; COUNT];

/// Units of time, in milliseconds.
const TIMES: [(&str, i64); 5] = [("ms", 1), ("s", 1000), ("min", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// A whole number of units of so many milliseconds; another unit may follow it.
fn time(word: &str, unit_ms: i64) -> Option<f64> {
    let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    let (number, unit) = (word[..digits].parse::<i64>().ok()?, word[digits..].trim());
    let ms = match unit {
        "" => unit_ms,
        _ => TIMES.iter().find(|t| t.0 == unit)?.1,
    };
    let all = number.checked_mul(ms)?;
    (all % unit_ms == 0).then_some((all / unit_ms) as f64)
}

impl Number {
    /// Which of [`NUMBERS`] has this name?
    pub fn find(name: &str) -> Option<usize> {
        NUMBERS.iter().position(|n| n.name == name)
    }

    /// Reads a value; `None`: it is none.
    pub fn parse(&self, word: &str) -> Option<f64> {
        let value = match self.unit {
            Unit::Percent => word.parse::<f64>().ok(),
            Unit::Count => word.parse::<i64>().ok().map(|n| n as f64),
            Unit::Ms => time(word, 1),
            Unit::Seconds => time(word, 1000),
        };
        value.filter(|v| (self.range.0..=self.range.1).contains(v))
    }

    /// What a value may be.
    pub fn hint(&self) -> String {
        let what = match self.unit {
            Unit::Percent => "A number of percent",
            Unit::Count => "A whole number",
            Unit::Ms => "A time in milliseconds, or with a unit (ms, s, min, h)",
            Unit::Seconds => "A time in seconds, or with a unit (s, min, h, d)",
        };
        format!("{what}, from {} to {}.", self.range.0, self.range.1)
    }
}

/// What values mean for the coordinator.
pub fn tuning(v: &Values) -> Tuning {
    let [interval_ms, min_gain, max_loss, confirm, min_samples, forget_s, partition_lock_max_share] = *v;
    let share = |percent: Option<f64>| percent.map(|p| p / 100.0);
    Tuning {
        interval_us: interval_ms.map(|ms| ms as u64 * 1000),
        min_gain: share(min_gain),
        max_loss: share(max_loss),
        confirm: confirm.map(|n| n as u32),
        min_samples: min_samples.map(|n| n as u64),
        forget_us: forget_s.map(|s| s as u64 * 1_000_000),
        partition_lock_max_share: share(partition_lock_max_share),
        ..Tuning::default()
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    fn parse(name: &str, word: &str) -> Option<f64> {
        NUMBERS[Number::find(name).unwrap()].parse(word)
    }

    #[test]
    fn numbers_are_read_with_their_units_and_ranges() {
        assert_eq!(parse("adaptive_min_gain", "12.5"), Some(12.5));
        assert_eq!(parse("adaptive_min_gain", "0"), Some(0.0));
        for wrong in ["-1", "1000.5", "inf", "nan", "", "10 %"] {
            assert_eq!(parse("adaptive_min_gain", wrong), None, "{wrong}");
        }
        assert_eq!(parse("partcc_max_share", "100.5"), None);
        assert_eq!((parse("adaptive_confirm", "1"), parse("adaptive_confirm", "1000")), (Some(1.0), Some(1000.0)));
        for wrong in ["0", "1001", "2.5", "2ms"] {
            assert_eq!(parse("adaptive_confirm", wrong), None, "{wrong}");
        }
        for (word, ms) in [("250", 250.0), ("5s", 5000.0), ("2 min", 120_000.0), ("1h", 3_600_000.0)] {
            assert_eq!(parse("adaptive_interval", word), Some(ms), "{word}");
        }
        for wrong in ["99", "2h", "s", "1.5s", "-5s", "5 weeks", "99999999999999999999", "9223372036854775807d"] {
            assert_eq!(parse("adaptive_interval", wrong), None, "{wrong}");
        }
        assert_eq!((parse("adaptive_forget", "90"), parse("adaptive_forget", "1d")), (Some(90.0), Some(86_400.0)));
        assert_eq!((parse("adaptive_forget", "5000ms"), parse("adaptive_forget", "500ms")), (Some(5.0), None));
    }

    #[test]
    fn what_values_mean() {
        let mut v = Values::default();
        assert_eq!(tuning(&v), Tuning::default());
        for (n, value) in NUMBERS.iter().zip(&mut v) {
            *value = n.parse(if n.unit == Unit::Ms { "3s" } else { "50" });
        }
        let wanted = Tuning {
            interval_us: Some(3_000_000),
            min_gain: Some(0.5),
            max_loss: Some(0.5),
            confirm: Some(50),
            min_samples: Some(50),
            forget_us: Some(50_000_000),
            partition_lock_max_share: Some(0.5),
            ..Tuning::default()
        };
        assert_eq!(tuning(&v), wanted);
        let of_table = Settings::default().of_table(&wanted);
        for n in &NUMBERS {
            assert!((n.is_own)(&wanted) && !(n.is_own)(&Tuning::default()), "{}", n.name);
            assert_eq!((n.value)(&of_table), if n.unit == Unit::Ms { 3000.0 } else { 50.0 }, "{}", n.name);
        }
        v[1] = NUMBERS[1].parse("7.1");
        assert_eq!((NUMBERS[1].value)(&Settings::default().of_table(&tuning(&v))), 7.1);
    }
}
