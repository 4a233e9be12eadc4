//! Settings.

use mixedcc_engine::partition::SampleEvery;
use mixedcc_engine::{Policy, Protocol};
use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};
use pgrx::PgLogLevel;
use std::ffi::CString;

/// Values of `mixedcc.default_protocol`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum ProtocolName {
    /// H-Store's partition locks.
    #[name = c"partcc"]
    PartCc,
    /// Silo's optimistic concurrency control.
    #[name = c"occ"]
    Occ,
    /// VLL's two-phase locking.
    #[name = c"2pl"]
    TwoPhase,
}

/// Values of `mixedcc.waiting_policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum PolicyName {
    /// Wait; deadlocks are detected.
    #[name = c"wait"]
    Wait,
    /// Abort at once.
    #[name = c"no_wait"]
    NoWait,
    /// Wait for younger transactions only.
    #[name = c"wait_die"]
    WaitDie,
}

/// Values of `mixedcc.mixed_serializable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum Mixed {
    /// Raise an error.
    #[name = c"error"]
    Error,
    /// Raise a warning, once a transaction.
    #[name = c"warning"]
    Warning,
    /// Say nothing.
    #[name = c"allow"]
    Allow,
}

/// Values of `mixedcc.switch_method`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum SwitchMethod {
    /// Old, both, new: nobody waits.
    #[name = c"mediated"]
    Mediated,
    /// Everybody waits until nobody runs.
    #[name = c"stop_all"]
    StopAll,
}

/// Values of `mixedcc.log_switches`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum LogLevel {
    /// Not at all.
    #[name = c"off"]
    Off,
    /// For developers.
    #[name = c"debug1"]
    Debug1,
    /// For administrators.
    #[name = c"log"]
    Log,
}

impl LogLevel {
    /// PostgreSQL's level.
    pub fn level(self) -> Option<PgLogLevel> {
        match self {
            LogLevel::Off => None,
            LogLevel::Debug1 => Some(PgLogLevel::DEBUG1),
            LogLevel::Log => Some(PgLogLevel::LOG),
        }
    }
}

/// Size of the shared region, MB.
pub static MEMORY_MB: GucSetting<i32> = GucSetting::<i32>::new(256);
/// Is the region divided over the machine's memory nodes?
pub static NUMA: GucSetting<bool> = GucSetting::<bool>::new(false);
/// Protocol of new tables.
pub static DEFAULT_PROTOCOL: GucSetting<ProtocolName> = GucSetting::<ProtocolName>::new(ProtocolName::Occ);
/// Partitions of new tables that have a key.
pub static DEFAULT_PARTITIONS: GucSetting<i32> = GucSetting::<i32>::new(1);
/// Waiting policy of new tables.
pub static WAITING_POLICY: GucSetting<PolicyName> = GucSetting::<PolicyName>::new(PolicyName::Wait);
/// What to do when a serializable transaction touches tables of mixedcc and of another method.
pub static MIXED_SERIALIZABLE: GucSetting<Mixed> = GucSetting::<Mixed>::new(Mixed::Error);
/// How the coordinator switches partitions.
pub static SWITCH_METHOD: GucSetting<SwitchMethod> = GucSetting::<SwitchMethod>::new(SwitchMethod::Mediated);
/// At which level the coordinator logs switches.
pub static LOG_SWITCHES: GucSetting<LogLevel> = GucSetting::<LogLevel>::new(LogLevel::Debug1);
/// One transaction in so many is sampled for the statistics of partitions.
pub static SAMPLE_EVERY: GucSetting<i32> = GucSetting::<i32>::new(SampleEvery::DEFAULT as i32);
/// Members of this role may switch protocols of all tables.
pub static ADMIN_ROLE: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);
/// Rows that a logical range is to hold.
pub static RANGE_ROWS: GucSetting<i32> = GucSetting::<i32>::new(1000);
/// Writes that the list of a logical range remembers.
pub static RANGE_LIST_SIZE: GucSetting<i32> = GucSetting::<i32>::new(256);
/// Does EXPLAIN show our lines?
pub static EXPLAIN: GucSetting<bool> = GucSetting::<bool>::new(true);
/// Do statements by key run without the executor?
pub static ENABLE_BYPASS: GucSetting<bool> = GucSetting::<bool>::new(true);
/// May plans scan the primary index?
pub static ENABLE_PRIMARY_SCAN: GucSetting<bool> = GucSetting::<bool>::new(true);
/// Are stop events on?
pub static STOP_EVENTS: GucSetting<bool> = GucSetting::<bool>::new(false);

/// The default protocol.
pub fn default_protocol() -> Protocol {
    match DEFAULT_PROTOCOL.get() {
        ProtocolName::PartCc => Protocol::PartCc,
        ProtocolName::Occ => Protocol::Occ,
        ProtocolName::TwoPhase => Protocol::TwoPhase,
    }
}

/// The default waiting policy.
pub fn default_policy() -> Policy {
    match WAITING_POLICY.get() {
        PolicyName::Wait => Policy::Wait,
        PolicyName::NoWait => Policy::NoWait,
        PolicyName::WaitDie => Policy::WaitDie,
    }
}

/// Most partitions of a table.
pub const MAX_PARTITIONS: i32 = 4096;

/// Defines the settings.
pub fn init() {
    GucRegistry::define_int_guc(
        c"mixedcc.memory",
        c"Size of the shared memory for the rows of all mixedcc tables.",
        c"Rows, their versions and the partitions' data live in it; indexes do not. Taken from the operating system page by page as it fills.",
        &MEMORY_MB,
        8,
        1 << 20,
        GucContext::Postmaster,
        GucFlags::UNIT_MB,
    );
    GucRegistry::define_bool_guc(
        c"mixedcc.numa",
        c"Divides mixedcc.memory over the machine's memory nodes (NUMA).",
        c"Rows of partition n lie on node n modulo the number of nodes that the server may use.",
        &NUMA,
        GucContext::Postmaster,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"mixedcc.default_protocol",
        c"Concurrency-control protocol of the partitions of new mixedcc tables.",
        c"partcc locks partitions, occ validates at commit, 2pl locks rows.",
        &DEFAULT_PROTOCOL,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"mixedcc.default_partitions",
        c"Number of partitions of new mixedcc tables, once they have a primary key.",
        c"A table without a partition key has one partition.",
        &DEFAULT_PARTITIONS,
        1,
        MAX_PARTITIONS,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"mixedcc.waiting_policy",
        c"What transactions do when a row lock of a 2pl partition of a new mixedcc table conflicts.",
        c"wait: sleep, deadlocks are detected; no_wait: abort; wait_die: sleep only for younger transactions.",
        &WAITING_POLICY,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"mixedcc.mixed_serializable",
        c"What happens when a SERIALIZABLE transaction touches both mixedcc tables and tables of another access method.",
        c"Such a transaction is atomic, but neither side alone guarantees that it is serializable. Catalogs and temporary tables do not count.",
        &MIXED_SERIALIZABLE,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"mixedcc.switch_method",
        c"How partitions get another protocol.",
        c"mediated: through a mix of both, nobody waits; stop_all: new transactions wait until all others are over, for comparison in benchmarks only.",
        &SWITCH_METHOD,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"mixedcc.log_switches",
        c"Level at which the coordinator logs completed switches of partitions.",
        c"off, debug1 or log.",
        &LOG_SWITCHES,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"mixedcc.sample_every",
        c"One transaction in so many is sampled for the statistics of partitions.",
        c"0: none is.",
        &SAMPLE_EVERY,
        0,
        1 << 20,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"mixedcc.admin_role",
        c"Members of this role may switch and pin the protocols of all mixedcc tables, as their owners may.",
        c"Empty: owners and superusers only.",
        &ADMIN_ROLE,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"mixedcc.range_rows",
        c"Rows of each logical range of an index when its ranges are made.",
        c"A range is what a SERIALIZABLE scan is validated by. Ranges should be about as long as the scans.",
        &RANGE_ROWS,
        1,
        i32::MAX,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"mixedcc.range_list_size",
        c"Concurrent writes that each logical range of an index remembers when its ranges are made.",
        c"A SERIALIZABLE scan fails if more writes than this are made to one of its ranges before it commits. Rounded up to a power of two; each takes 64 bytes.",
        &RANGE_LIST_SIZE,
        8,
        65536,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"mixedcc.explain",
        c"Lets EXPLAIN (VERBOSE) show partitions and protocols, and EXPLAIN (ANALYZE) the keys that a SERIALIZABLE transaction protects.",
        c"",
        &EXPLAIN,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"mixedcc.enable_bypass",
        c"Runs simple statements by primary key on mixedcc tables without the executor's nodes.",
        c"The view mixedcc.bypass tells how many take it, and why others do not.",
        &ENABLE_BYPASS,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"mixedcc.enable_primary_scan",
        c"Enables the planner's use of scans of the primary index of mixedcc tables.",
        c"Off, or with enable_indexscan off, plans use PostgreSQL's index of the primary key. The primary index is kept up in any case.",
        &ENABLE_PRIMARY_SCAN,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"mixedcc.stop_events",
        c"Lets tests stop or fail transactions at named points (see mixedcc.set_stop_event).",
        c"For tests only.",
        &STOP_EVENTS,
        GucContext::Suset,
        GucFlags::default(),
    );
}
