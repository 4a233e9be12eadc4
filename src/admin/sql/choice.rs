//! Why a partition has its protocol: the source of `mixedcc.explain_choice`.

use super::open_briefly;
use super::switches::chosen;
use crate::admin::coordinator;
use crate::admin::options::NUMBERS;
use crate::pg::guc;
use mixedcc_engine::choice::{Decision, Lesson, Settings, Shown, Status, NAMES};
use mixedcc_engine::partition::{Partition, Tuning};
use mixedcc_engine::{Protocol, ProtocolSet, Table};
use pgrx::iter::TableIterator;
use pgrx::pg_sys::Oid;
use pgrx::prelude::*;

type Row = (String, String, Option<f64>, Option<String>);

fn row(item: &str, name: &str, value: Option<f64>, note: String) -> Row {
    (item.to_owned(), name.to_owned(), value, Some(note).filter(|n| !n.is_empty()))
}

fn state(p: &Partition, t: &Tuning, s: &Settings, shown: &Shown, out: &mut Vec<Row>) {
    let v = p.switch.view();
    let adaptive = match (v.pinned, t.adaptive) {
        (true, _) => "no: the partition is pinned".to_owned(),
        (_, Some(true)) => "yes: the table's option".to_owned(),
        (_, Some(false)) => "no: the table's options say so, or name a protocol".to_owned(),
        (_, None) => format!("{}: mixedcc.adaptive", if guc::ADAPTIVE.get() { "yes" } else { "no" }),
    };
    out.push(row("state", "protocol", None, v.set.name()));
    out.push(row("state", "adaptive", None, adaptive));
    out.push(row("state", "candidates", None, s.candidates.name().replace('+', ", ")));
    let now = coordinator::now();
    let ago = |at_us: u64| (at_us != 0).then(|| now.saturating_sub(at_us) as f64 / 1e6);
    out.push(row("state", "decision", ago(shown.at_us), shown.decision.status.text().to_owned()));
    if shown.decision.load.txns > 0 {
        out.push(row(
            "state",
            "figures",
            ago(shown.figures_at_us),
            "seconds ago: when the load was as below".to_owned(),
        ));
        progress(v.set, s, &shown.decision, now, out);
    }
}

fn percent(log: f64) -> f64 {
    (log.exp() - 1.0) * 100.0
}

/// How far a decision is, and what it lacks.
fn progress(set: ProtocolSet, s: &Settings, d: &Decision, now: u64, out: &mut Vec<Row>) {
    let (best, used) = (Protocol::ALL[d.best], Protocol::ALL[d.used]);
    let pair = format!("percent, of {} over {}", best.name(), used.name());
    let mut note = if d.allowed == ProtocolSet::EMPTY {
        "nothing is allowed: the protocol stays".to_owned()
    } else if best == used {
        format!("{} is the best one", used.name())
    } else if !d.known.has(used) {
        format!("{}, as the model does not know {}", best.name(), used.name())
    } else if !d.allowed.has(used) {
        format!("{pair}, which is not allowed: any is enough")
    } else if d.margin == 0.0 && s.min_gain > 0.0 {
        format!("{pair}; any is enough, as most partitions like this one have it")
    } else {
        format!("{pair}; needs {:.1}", percent(d.margin))
    };
    if set != ProtocolSet::of(used) {
        note += &format!("; {} was in use then", used.name());
    }
    let gain = d.known.has(used).then(|| percent(d.gain));
    out.push(row("state", "gain", gain, note));
    let (n, of) = d.intervals;
    match d.status {
        Status::Confirms => {
            let mut note = format!("intervals running, of {of}");
            if of > s.confirm {
                note +=
                    &format!(": {} (adaptive_confirm), doubled where switches of like loads were reversed", s.confirm);
            }
            out.push(row("state", "confirmed", Some(n.into()), note));
        }
        Status::Verifies => {
            out.push(row("state", "verified", Some(n.into()), format!("intervals since the switch, of {of} at most")));
        }
        _ => {}
    }
    if d.lossy.0 > 0 {
        let note = format!("intervals running in which much is lost; after {} another protocol is tried", d.lossy.1);
        out.push(row("state", "lossy", Some(d.lossy.0.into()), note));
    }
    if d.no_probe_before_us > now {
        let left = (d.no_probe_before_us - now) as f64 / 1e6;
        let note = "seconds in which nothing is tried, because something was".to_owned();
        out.push(row("state", "no_trial", Some(left), note));
    }
}

/// What is set for the table's choice, and where. `cluster`: what is set for all.
fn settings(cluster: &Settings, own: &Settings, t: &Tuning, out: &mut Vec<Row>) {
    for n in &NUMBERS {
        let mut note = if (n.is_own)(t) { "the table's option".to_owned() } else { n.setting.to_owned() };
        let every = cluster.every(t);
        if n.name == "adaptive_interval" && every > 1 {
            note += &format!(": every {every} intervals of the cluster");
        }
        out.push(row("setting", n.name, Some((n.value)(own)), note));
    }
}

fn load(d: &Decision, out: &mut Vec<Row>) {
    let l = &d.load;
    for (name, value) in NAMES.iter().zip(l.features) {
        out.push(row("feature", name, Some(value), String::new()));
    }
    let before = if d.before_us > 0.0 {
        format!("{:.1} before the switch that is verified", d.before_us)
    } else {
        String::new()
    };
    out.push(row("load", "cost_us", Some(l.cost_us), before));
    out.push(row("load", "sampled", Some(l.txns as f64), String::new()));
    out.push(row("load", "commits_per_s", Some(l.rate), String::new()));
    out.push(row("load", "weak_writer_share", Some(l.weak_writers), String::new()));
    out.push(row("load", "idle_share", Some(l.idle), String::new()));
    out.push(row("load", "lost_share", Some(l.lost), String::new()));
    out.push(row("load", "own_lost_share", Some(l.own_lost), String::new()));
    out.push(row("load", "slept_share", Some(l.slept), String::new()));
    out.push(row("load", "own_slept_share", Some(l.own_slept), String::new()));
    out.push(row("load", "processors_busy", Some(l.busy), String::new()));
}

fn scores(p: &Partition, s: &Settings, d: &Decision, out: &mut Vec<Row>) {
    for (i, protocol) in Protocol::ALL.into_iter().enumerate() {
        let mut notes = Vec::new();
        if p.protocols() == ProtocolSet::of(protocol) {
            notes.push("in use".to_owned());
        }
        if !d.known.has(protocol) {
            notes.push("the model does not know it: never chosen, but can be pinned".to_owned());
            out.push(row("cost", protocol.name(), None, notes.join("; ")));
            continue;
        }
        if !s.candidates.has(protocol) {
            notes.push("not a candidate".to_owned());
        } else if !d.allowed.has(protocol) {
            notes.push("excluded by a rule: partcc_max_share".to_owned());
        } else if i == d.best {
            notes.push("best".to_owned());
        }
        notes.push(format!("model {:.2}", d.predicted[i].exp()));
        if d.borrowed.has(protocol) {
            notes.push(
                "which is that of another one: tried where attempts fail, and chosen by what that teaches".to_owned(),
            );
        }
        if d.learned.weight[i] > 0.01 {
            notes.push(format!("learned x {:.2} (weight {:.2})", d.learned.add[i].exp(), d.learned.weight[i]));
        }
        out.push(row("cost", protocol.name(), Some(d.scores[i].exp()), notes.join("; ")));
    }
}

fn lesson(l: &Lesson, d: &Decision, now: u64, forget_us: u64) -> Row {
    let name = |i: usize| Protocol::ALL[i].name();
    let note = format!(
        "{:.0} s ago: the cost became {:.2} times as large, the model had said {:.2}; weight for this load now {:.2}",
        now.saturating_sub(l.at_us) as f64 / 1e6,
        l.measured.exp(),
        (l.measured - l.residual).exp(),
        l.weight(&d.load.features, now, forget_us)
    );
    row("learned", &format!("{} to {}", name(l.from), name(l.to)), Some(l.measured.exp()), note)
}

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn explain_choice(
    table: Oid,
    partition: i32,
) -> TableIterator<
    'static,
    (name!(item, String), name!(name, String), name!(value, Option<f64>), name!(note, Option<String>)),
> {
    let rel = open_briefly(table);
    let (t, parts, _): (&Table, &[Partition], u32) = chosen(&rel, table, Some(partition));
    let p = &parts[0];
    let shown = p.decided.read();
    let d = &shown.decision;
    let tuning = t.map().tuning();
    let cluster = coordinator::settings();
    let own = cluster.of_table(&tuning);
    let mut out = Vec::new();
    state(p, &tuning, &own, &shown, &mut out);
    settings(&cluster, &own, &tuning, &mut out);
    if d.load.txns > 0 {
        load(d, &mut out);
        scores(p, &own, d, &mut out);
    }
    let now = coordinator::now();
    let lessons = crate::state::shmem::engine().shared.learned.read();
    out.extend(lessons.iter().rev().filter(|l| l.table == t.id).map(|l| lesson(l, d, now, own.forget_us)));
    TableIterator::new(out)
}
