//! The coordinator's intervals: readings of all partitions, decisions, and what is logged of them.

use crate::admin::options;
use crate::pg::guc;
use crate::state::rel;
use mixedcc_engine::choice::{Asked, Chooser, Model, Role, Settings, NAMES};
use mixedcc_engine::{Engine, Protocol, ProtocolSet, Table};
use pgrx::prelude::*;
use std::time::SystemTime;

/// The choice of protocols, between two intervals.
pub struct Choice {
    chooser: Chooser,
    settings: Settings,
    adaptive: bool,
    /// Name of the model's file in use, or tried last, and what the file was like then.
    file: String,
    stamp: Option<Stamp>,
    last: u64,
}

/// When a file was changed last, and its bytes.
type Stamp = (SystemTime, u64);

/// `None`: it cannot be seen.
fn stamp(file: &str) -> Option<Stamp> {
    let m = std::fs::metadata(file).ok()?;
    Some((m.modified().ok()?, m.len()))
}

/// A setting that is text; empty if it is not set.
fn text(setting: &pgrx::GucSetting<Option<std::ffi::CString>>) -> String {
    setting.get().map_or(String::new(), |s| s.to_string_lossy().trim().to_owned())
}

fn warn(message: String, detail: String) {
    ereport!(PgLogLevel::WARNING, PgSqlErrorCode::ERRCODE_CONFIG_FILE_ERROR, message, detail);
}

/// Candidates of the whole cluster.
fn candidates() -> ProtocolSet {
    let names = text(&guc::ADAPTIVE_CANDIDATES);
    let all = || Settings::default().candidates;
    if names.is_empty() {
        return all();
    }
    let list = names.split(',').map(|n| n.trim().to_owned()).collect();
    options::candidates(list).unwrap_or_else(|| {
        let available = Protocol::ALL.map(Protocol::name).join(", ");
        warn(
            format!("mixedcc.adaptive_candidates is not a list of protocols: \"{names}\""),
            format!("All are candidates. Available protocols: {available}."),
        );
        all()
    })
}

/// What the settings say.
pub fn settings() -> Settings {
    let share = guc::PARTITION_LOCK_MAX_SHARE.get() / 100.0;
    Settings {
        interval_us: Choice::length_us(),
        candidates: candidates(),
        min_gain: guc::ADAPTIVE_MIN_GAIN.get() / 100.0,
        max_loss: guc::ADAPTIVE_MAX_LOSS.get() / 100.0,
        confirm: guc::ADAPTIVE_CONFIRM.get() as u32,
        min_samples: guc::ADAPTIVE_MIN_SAMPLES.get() as u64,
        max_weak_writers: share,
        max_idle: share,
        forget_us: guc::ADAPTIVE_FORGET_S.get() as u64 * 1_000_000,
        role: Role::Tries,
    }
}

/// Reads the model's file; `None`: it cannot be used, which is logged.
fn read_model(file: &str) -> Option<Model> {
    let read = std::fs::read_to_string(file).map_err(|e| format!("It cannot be read: {e}."));
    match read.and_then(|t| Model::parse(&t).map_err(|e| format!("In the file, {e}."))) {
        Ok(m) => {
            log!("mixedcc chooses by the model in \"{file}\": {}", m.about);
            Some(m)
        }
        Err(why) => {
            warn(format!("mixedcc cannot use the model in \"{file}\"; the model in use stays"), why);
            None
        }
    }
}

impl Choice {
    pub fn start(e: &Engine, now: u64) -> Choice {
        let chooser = Chooser::new(e, Model::built_in());
        let (settings, file) = (settings(), String::new());
        let mut c = Choice { chooser, settings, adaptive: false, file, stamp: None, last: now };
        c.reload();
        c
    }

    /// Settings may have changed.
    pub fn reload(&mut self) {
        self.settings = settings();
        self.adaptive = guc::ADAPTIVE.get();
        let file = text(&guc::MODEL_FILE);
        // Looked at before it is read: a change in between shows at the next reload.
        let stamp = stamp(&file);
        if file != self.file || stamp != self.stamp {
            match file.as_str() {
                "" => self.chooser.model = Model::built_in(),
                _ => {
                    if let Some(m) = read_model(&file) {
                        self.chooser.model = m;
                    }
                }
            }
            (self.file, self.stamp) = (file, stamp);
        }
    }

    fn length_us() -> u64 {
        guc::ADAPTIVE_INTERVAL_MS.get() as u64 * 1000
    }
    pub fn is_due(&self, now: u64) -> bool {
        // A clock that was set back ends the interval.
        now < self.last || now - self.last >= Self::length_us()
    }
    pub fn due_in_ms(&self, now: u64) -> i64 {
        let left = if self.is_due(now) { 0 } else { self.last + Self::length_us() - now };
        (left / 1000 + 1) as i64
    }

    /// An interval is over: decides about all partitions; how many switches were asked for.
    pub fn interval(&mut self, e: &Engine, tables: &[&'static Table], now: u64) -> usize {
        self.last = now;
        let asked = self.chooser.pass(e, tables, now, self.adaptive, &self.settings);
        let sets = tables.iter().flat_map(|t| t.map().partitions()).map(|p| p.protocols_and_wanted());
        e.shared.protocols.look_who_wants_declarations(sets);
        let counted = self.chooser.counted();
        let most = guc::SAMPLE_EVERY.get() as u32;
        // Weighted by transactions and partitions: rather too many partitions a transaction, so
        // rather more samples.
        let partitions = counted.partitions as f64 / counted.sampled.max(1) as f64;
        e.shared.sample_every.set(self.chooser.sample_every(counted.commits, partitions, now, most));
        for a in &asked {
            log_decision(a, &rel::called(tables.iter().find(|t| t.key == a.key).copied(), a.key));
        }
        asked.len()
    }
}

fn log_decision(a: &Asked, name: &str) {
    let Some(level) = guc::LOG_DECISIONS.get().level() else { return };
    let d = &a.decision;
    let features: Vec<_> = NAMES.iter().zip(d.load.features).map(|(n, f)| format!("{n} {f:.3}")).collect();
    let scores: Vec<_> =
        Protocol::ALL.iter().zip(d.scores).map(|(p, s)| format!("{} {:.2}", p.name(), s.exp())).collect();
    ereport!(
        level,
        PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION,
        format!(
            "mixedcc switches partition {} of {name} from {} to {} ({})",
            a.partition,
            a.from.name(),
            a.to.name(),
            a.why.name()
        ),
        match d.load.txns {
            0 => "Next to nothing has committed since the switch before, or much less than before it.".to_owned(),
            _ => format!("Predicted costs: {}. Features: {}.", scores.join(", "), features.join(", ")),
        }
    );
}
