//! Options of a table: how it is partitioned, and with which protocol it starts.
//!
//! They are kept as a security label of the provider `mixedcc`, so that pg_dump writes them and
//! restores them before the data. `WITH (mixedcc....)` and `ALTER TABLE ... SET` write the label.

use crate::pg::errors::complain;
use crate::pg::guc;
use mixedcc_engine::partition::Tuning;
use mixedcc_engine::{Policy, Protocol, ProtocolSet};
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;
use std::ffi::CStr;

mod apply;
mod numbers;
pub use apply::{can_hash, check_is_ours, check_table, fits, inherit, initial_map, partition_key, sync, Apply};
pub use numbers::{Number, NUMBERS};

/// The label provider, and the namespace of the options.
pub const PROVIDER: &CStr = c"mixedcc";
const NAMES: [&str; 8] = [
    "partitions",
    "partition_by",
    "partition_method",
    "bounds",
    "protocol",
    "waiting_policy",
    "adaptive",
    "candidates",
];

/// How a key maps to partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// By its hash.
    Hash,
    /// By bounds.
    Range,
}

/// Options as the user gave them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Number of partitions.
    pub partitions: Option<u32>,
    /// Columns of the partition key.
    pub partition_by: Option<Vec<String>>,
    /// Hash or range.
    pub method: Option<Method>,
    /// Bounds of a range key.
    pub bounds: Option<Vec<String>>,
    /// Initial protocol.
    pub protocol: Option<Protocol>,
    /// Initial waiting policy.
    pub policy: Option<Policy>,
    /// Does the coordinator choose the protocols?
    pub adaptive: Option<bool>,
    /// From which?
    pub candidates: Option<ProtocolSet>,
    /// And how; see [`NUMBERS`].
    pub numbers: numbers::Values,
}

/// Protocol of a table whose options name none.
pub const BUILT_IN_PROTOCOL: Protocol = Protocol::DEFAULT;
/// Policy of a table whose options name none.
pub const BUILT_IN_POLICY: Policy = Policy::Wait;

fn invalid(message: &str, hint: &str) -> ! {
    complain(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, message, hint)
}

/// Registers the label provider.
pub fn init() {
    // SAFETY: `_PG_init` runs alone; the name is a constant, and the callback a function of this
    // library, which is never unloaded.
    unsafe { pg_sys::register_label_provider(PROVIDER.as_ptr(), Some(check_label)) };
}

/// Refuses wrong labels. What they say is applied after the command (`hooks/utility.rs`).
#[pg_guard]
unsafe extern "C-unwind" fn check_label(object: *const pg_sys::ObjectAddress, label: *const core::ffi::c_char) {
    // SAFETY: PostgreSQL calls this with an object, and null or a C string (seclabel.h:
    // check_object_relabel_type).
    unsafe {
        let text = (!label.is_null()).then(|| crate::pg::text::read(label));
        let o = *object;
        if o.objectSubId != 0 {
            complain(PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE, "mixedcc has no labels of columns", "Label the table.");
        }
        match o.classId {
            pg_sys::RelationRelationId => {
                check_table(o.objectId, &text.map_or(Options::default(), |t| Options::parse(&t)))
            }
            pg_sys::ProcedureRelationId => {
                if let Some(t) = text {
                    crate::admin::annotate::check(o.objectId, &t);
                }
                crate::admin::annotate::changed(o.objectId);
            }
            _ => complain(PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE, "mixedcc labels tables and functions only", ""),
        }
    }
}

/// Splits outside double quotes.
fn split(text: &str, separators: &[char]) -> Vec<String> {
    let mut out = vec![String::new()];
    let mut quoted = false;
    for c in text.chars() {
        quoted ^= c == '"';
        if !quoted && separators.contains(&c) {
            out.push(String::new());
        } else if let Some(last) = out.last_mut() {
            last.push(c);
        }
    }
    if quoted {
        invalid("unterminated double quote in a mixedcc option", "Write a double quote within quotes twice.");
    }
    out.iter().map(|s| trim(s).to_owned()).collect()
}

/// The text of an item, and whether it was quoted.
fn unquote(item: &str) -> (String, bool) {
    match item.strip_prefix('"').and_then(|s| s.strip_suffix('"')) {
        Some(inner) => (inner.replace("\"\"", "\""), true),
        None => (item.to_owned(), false),
    }
}

fn quote(item: &str, plain: impl Fn(char) -> bool) -> String {
    if !item.is_empty() && item.chars().all(plain) {
        item.to_owned()
    } else {
        format!("\"{}\"", item.replace('"', "\"\""))
    }
}

/// An item of a list that names a column: folded as SQL does.
pub fn column_name(item: &str) -> String {
    let (text, quoted) = unquote(item);
    if quoted {
        text
    } else {
        text.to_ascii_lowercase() // as SQL folds names, unless they are in a single-byte encoding
    }
}

/// Without spaces at the ends. (In other encodings than UTF8 parts of characters may look like
/// Unicode's spaces.)
pub fn trim(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_ascii_whitespace())
}

/// A name as a label has it.
pub fn quote_name(name: &str) -> String {
    quote(name, |c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '$')
}

/// Protocols by name; `None`: there is none, or an unknown one.
pub fn candidates(names: Vec<String>) -> Option<ProtocolSet> {
    let all: Option<Vec<Protocol>> = names.iter().map(|n| Protocol::parse(&unquote(n).0)).collect();
    all.filter(|all| !all.is_empty()).map(ProtocolSet::from_iter)
}

fn no_empty(name: &str, list: Vec<String>) -> Vec<String> {
    if list.iter().any(String::is_empty) {
        invalid(&format!("mixedcc.{name} has an empty item"), "Separate items by commas.");
    }
    list
}

impl Options {
    /// Reads a label.
    pub fn parse(label: &str) -> Options {
        let mut o = Options::default();
        for part in split(label, &[',']) {
            if part.is_empty() {
                continue;
            }
            let Some((name, value)) = part.split_once('=') else {
                invalid(
                    &format!("\"{part}\" in a mixedcc label is not of the form name=value"),
                    &format!("Example: 'partitions=16,partition_by=w_id,protocol={}'.", BUILT_IN_PROTOCOL.name()),
                );
            };
            o.set(trim(name), trim(value), &['+']);
        }
        o
    }

    /// The options of a table, from its label.
    pub fn of(relid: Oid) -> Options {
        label_of(relation(relid)).map_or(Options::default(), |l| Options::parse(&l))
    }

    /// Sets one option. `separators` of items in lists: labels use `+`, SQL a comma.
    pub fn set(&mut self, name: &str, value: &str, separators: &[char]) {
        let hint = |names: &[&str]| format!("Available values: {}.", names.join(", "));
        let wrong = |hint: &str| -> ! { invalid(&format!("invalid value for mixedcc.{name}: \"{value}\""), hint) };
        let (word, _) = unquote(value);
        if let Some(i) = Number::find(name) {
            match NUMBERS[i].parse(&word) {
                None => wrong(&NUMBERS[i].hint()),
                some => self.numbers[i] = some,
            }
            return;
        }
        match name {
            "partitions" => match word.parse::<i64>() {
                Ok(n) if (1..=guc::MAX_PARTITIONS as i64).contains(&n) => self.partitions = Some(n as u32),
                _ => wrong(&format!("A table has 1 to {} partitions.", guc::MAX_PARTITIONS)),
            },
            "partition_by" => {
                let list = split(value, &[&['+'], separators].concat());
                self.partition_by = Some(no_empty(name, list.iter().map(|s| column_name(s)).collect()));
            }
            "bounds" => {
                let list = split(value, separators);
                if list.iter().any(String::is_empty) {
                    wrong("Separate bounds by commas, and put text in double quotes.");
                }
                self.bounds = Some(list.iter().map(|s| unquote(s).0).collect());
            }
            "partition_method" => match word.as_str() {
                "hash" => self.method = Some(Method::Hash),
                "range" => self.method = Some(Method::Range),
                _ => wrong(&hint(&["hash", "range"])),
            },
            "protocol" => match Protocol::parse(&word) {
                Some(p) => self.protocol = Some(p),
                None => wrong(&hint(&Protocol::ALL.map(Protocol::name))),
            },
            "waiting_policy" => match Policy::parse(&word) {
                Some(p) => self.policy = Some(p),
                None => wrong(&hint(&Policy::ALL.map(Policy::name))),
            },
            "adaptive" => match word.to_lowercase().as_str() {
                "on" | "true" | "yes" | "1" => self.adaptive = Some(true),
                "off" | "false" | "no" | "0" => self.adaptive = Some(false),
                _ => wrong(&hint(&["on", "off"])),
            },
            "candidates" => match candidates(split(value, &[&['+'], separators].concat())) {
                Some(set) => self.candidates = Some(set),
                None => wrong(&hint(&Protocol::ALL.map(Protocol::name))),
            },
            _ => unknown(name),
        }
    }

    /// Whether, from what and how the coordinator chooses. A table whose options name its protocol
    /// keeps it, unless they say that it is adaptive.
    pub fn tuning(&self) -> Tuning {
        let adaptive = self.adaptive.or(self.protocol.map(|_| false));
        Tuning { adaptive, candidates: self.candidates, ..numbers::tuning(&self.numbers) }
    }

    /// Goes back to the default of one option.
    pub fn reset(&mut self, name: &str) {
        if let Some(i) = Number::find(name) {
            self.numbers[i] = None;
            return;
        }
        match name {
            "partitions" => self.partitions = None,
            "partition_by" => self.partition_by = None,
            "partition_method" => self.method = None,
            "bounds" => self.bounds = None,
            "protocol" => self.protocol = None,
            "waiting_policy" => self.policy = None,
            "adaptive" => self.adaptive = None,
            "candidates" => self.candidates = None,
            _ => unknown(name),
        }
    }

    /// Sets what the session's settings say and the options do not, as far as it is not built in: a
    /// new table keeps the defaults of the session that made it.
    pub fn keep_defaults(&mut self) {
        let n = guc::DEFAULT_PARTITIONS.get() as u32;
        if self.partitions.is_none() && self.bounds.is_none() && n != 1 {
            self.partitions = Some(n);
        }
        if self.protocol.is_none() && guc::default_protocol() != BUILT_IN_PROTOCOL {
            self.protocol = Some(guc::default_protocol());
        }
        if self.policy.is_none() && guc::default_policy() != BUILT_IN_POLICY {
            self.policy = Some(guc::default_policy());
        }
    }

    /// Names and values, as a label has them.
    pub fn items(&self) -> Vec<(&'static str, String)> {
        let list =
            |l: &Vec<String>, plain: fn(char) -> bool| l.iter().map(|s| quote(s, plain)).collect::<Vec<_>>().join("+");
        let values = [
            self.partitions.map(|n| n.to_string()),
            self.partition_by.as_ref().map(|l| l.iter().map(|s| quote_name(s)).collect::<Vec<_>>().join("+")),
            self.method.map(|m| if m == Method::Hash { "hash" } else { "range" }.to_owned()),
            self.bounds.as_ref().map(|l| list(l, |c| c.is_ascii_alphanumeric() || "_.:-".contains(c))),
            self.protocol.map(|p| p.name().to_owned()),
            self.policy.map(|p| p.name().to_owned()),
            self.adaptive.map(|on| if on { "on" } else { "off" }.to_owned()),
            self.candidates.map(ProtocolSet::name),
        ];
        let numbers = NUMBERS.iter().zip(self.numbers).map(|(n, v)| (n.name, v.map(|v| v.to_string())));
        NAMES.into_iter().zip(values).chain(numbers).filter_map(|(n, v)| v.map(|v| (n, v))).collect()
    }

    /// The label; `None` if no option is set.
    pub fn label(&self) -> Option<String> {
        let items = self.items();
        (!items.is_empty()).then(|| items.iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>().join(","))
    }

    /// Writes the label of a table. The caller has checked the options and the owner.
    pub fn store(&self, relid: Oid) {
        store_label(relation(relid), self.label().as_deref());
    }
}

fn unknown(name: &str) -> ! {
    let all = NAMES.into_iter().chain(NUMBERS.iter().map(|n| n.name)).map(|n| format!("mixedcc.{n}"));
    invalid(
        &format!("unrecognized option \"mixedcc.{name}\""),
        &format!("Options: {}.", all.collect::<Vec<_>>().join(", ")),
    )
}

/// Address of a relation.
pub fn relation(relid: Oid) -> pg_sys::ObjectAddress {
    pg_sys::ObjectAddress { classId: pg_sys::RelationRelationId, objectId: relid, objectSubId: 0 }
}

/// Our label of an object.
pub fn label_of(object: pg_sys::ObjectAddress) -> Option<String> {
    // SAFETY: catalog look-up: any object is answered, by null or a C string. `object` outlives the
    // call.
    unsafe {
        let l = pg_sys::GetSecurityLabel(&object, PROVIDER.as_ptr());
        (!l.is_null()).then(|| crate::pg::text::read(l))
    }
}

/// Writes our label of an object, or removes it.
pub fn store_label(object: pg_sys::ObjectAddress, label: Option<&str>) {
    let text = label.map(crate::pg::text::write);
    // SAFETY: `object` and `text` outlive the call, which copies them. The next command of this
    // transaction sees the label.
    unsafe {
        pg_sys::SetSecurityLabel(&object, PROVIDER.as_ptr(), text.as_ref().map_or(std::ptr::null(), |t| t.as_ptr()));
        pg_sys::CommandCounterIncrement();
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn labels_round_trip() {
        let o = Options {
            partitions: Some(16),
            partition_by: Some(vec!["w_id".into(), "odd \"name\", +".into(), "Upper".into()]),
            method: Some(Method::Range),
            bounds: Some(vec!["-5".into(), "a,b".into(), "".into()]),
            protocol: Some(Protocol::TwoPhase),
            policy: Some(Policy::WaitDie),
            adaptive: Some(true),
            candidates: candidates(vec!["2pl".into(), "occ".into()]),
            numbers: [Some(5000.0), Some(12.5), None, Some(3.0), None, Some(60.0), Some(0.0)],
        };
        let label = o.label().unwrap();
        assert!(label.starts_with("partitions=16,partition_by=w_id+\"odd"), "{label}");
        assert_eq!(Options::parse(&label), o);
        assert_eq!(Options::default().label(), None);
    }

    #[test]
    fn a_protocol_that_is_named_stays_unless_the_table_is_adaptive() {
        let tuning = |label: &str| Options::parse(label).tuning().adaptive;
        assert_eq!(tuning("partitions=2"), None);
        assert_eq!(tuning("protocol=occ"), Some(false));
        assert_eq!(tuning("protocol=occ,adaptive=on"), Some(true));
        assert_eq!(tuning("adaptive=off"), Some(false));
    }

    #[test]
    fn sql_lists_use_commas() {
        let mut o = Options::default();
        o.set("partition_by", "W_ID, \"D_id\"", &[',']);
        assert_eq!(o.partition_by, Some(vec!["w_id".to_owned(), "D_id".to_owned()]));
        o.set("bounds", "1e+5, 7", &[',']);
        assert_eq!(o.bounds, Some(vec!["1e+5".to_owned(), "7".to_owned()]));
        o.reset("bounds");
        assert_eq!(o.bounds, None);
    }
    #[test]
    fn wrong_options_are_errors() {
        use crate::pg::stand_ins::raised;
        let set = |name: &str, value: &str| raised(|| Options::default().set(name, value, &[',']));
        assert_eq!(set("partitions", "1"), None);
        assert_eq!(set("candidates", "occ, 2pl"), None);
        assert_eq!(set("candidates", "occ, tea").unwrap(), "invalid value for mixedcc.candidates: \"occ, tea\"");
        assert_eq!(set("candidates", "").unwrap(), "invalid value for mixedcc.candidates: \"\"");
        assert_eq!(set("adaptive_min_gain", "12.5"), None);
        assert_eq!(set("adaptive_confirm", "0").unwrap(), "invalid value for mixedcc.adaptive_confirm: \"0\"");
        assert_eq!(set("adaptive_interval", "").unwrap(), "invalid value for mixedcc.adaptive_interval: \"\"");
        assert_eq!(set("adaptive", "maybe").unwrap(), "invalid value for mixedcc.adaptive: \"maybe\"");
        assert_eq!(set("partitions", "0").unwrap(), "invalid value for mixedcc.partitions: \"0\"");
        assert_eq!(set("partitions", "1e3").unwrap(), "invalid value for mixedcc.partitions: \"1e3\"");
        assert_eq!(set("colour", "red").unwrap(), "unrecognized option \"mixedcc.colour\"");
        assert_eq!(set("partition_by", "a,,b").unwrap(), "mixedcc.partition_by has an empty item");
        assert_eq!(set("bounds", "\"a").unwrap(), "unterminated double quote in a mixedcc option");
        let parse = |label: &str| raised(|| Options::parse(label));
        assert_eq!(parse("partitions=16,"), None);
        assert_eq!(parse("partitions").unwrap(), "\"partitions\" in a mixedcc label is not of the form name=value");
    }
}
