//! Settings.

use mixedcc_engine::partition::SampleEvery;
use mixedcc_engine::{Policy, Protocol};
use pgrx::guc::{GucContext, GucEnum, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};
use pgrx::{pg_sys, PgLogLevel};
use std::ffi::{CStr, CString};

/// Values of `mixedcc.default_protocol`: the engine's protocols, by their places in
/// [`Protocol::ALL`].
#[derive(Clone, Copy)]
pub struct ProtocolName(Protocol);

/// Longest name of a protocol, and a zero byte.
const NAME_BYTES: usize = 16;

/// The protocols' names as C strings.
static PROTOCOL_NAMES: [[u8; NAME_BYTES]; Protocol::COUNT] = {
    let mut all = [[0; NAME_BYTES]; Protocol::COUNT];
    let mut p = 0;
    while p < Protocol::COUNT {
        let name = Protocol::ALL[p].name().as_bytes();
        assert!(name.len() < NAME_BYTES);
        all[p].split_at_mut(name.len()).0.copy_from_slice(name);
        p += 1;
    }
    all
};

/// The list of values as PostgreSQL wants it: an entry without a name ends it.
struct ProtocolEntries([pg_sys::config_enum_entry; Protocol::COUNT + 1]);

// SAFETY: its pointers lead to static data that is never written.
unsafe impl Sync for ProtocolEntries {}

static PROTOCOL_ENTRIES: ProtocolEntries = {
    let end = pg_sys::config_enum_entry { name: std::ptr::null(), val: 0, hidden: false };
    let mut all = [end; Protocol::COUNT + 1];
    let mut p = 0;
    while p < Protocol::COUNT {
        all[p].name = PROTOCOL_NAMES[p].as_ptr().cast();
        all[p].val = p as i32;
        p += 1;
    }
    ProtocolEntries(all)
};

// SAFETY: the pointer leads to `PROTOCOL_ENTRIES`: static, never written, and ended by an entry
// without a name.
unsafe impl GucEnum for ProtocolName {
    fn from_ordinal(place: i32) -> Self {
        ProtocolName(Protocol::ALL[place as usize])
    }
    fn to_ordinal(&self) -> i32 {
        self.0.index() as i32
    }
    const CONFIG_ENUM_ENTRY: *const pg_sys::config_enum_entry = PROTOCOL_ENTRIES.0.as_ptr();
}

/// Values of `mixedcc.group_by`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum GroupBy {
    /// Nothing.
    #[name = c"none"]
    None,
    /// The name of the application.
    #[name = c"application_name"]
    Application,
    /// The identifier of the first statement.
    #[name = c"statement"]
    Statement,
}

/// Do the settings give a group to transactions?
#[inline]
pub fn names_groups() -> bool {
    // SAFETY: a process has one thread. The first setting is null or a C string, the second the
    // number of a value, of which 0 is `none`.
    unsafe {
        let name = *TRANSACTION_GROUP.as_ptr();
        *GROUP_BY.as_ptr() != GroupBy::None as i32 || !name.is_null() && *name != 0
    }
}

/// Runs `f` with the bytes of a setting, if it is not empty.
pub fn with_bytes<R>(setting: &GucSetting<Option<CString>>, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
    // SAFETY: a process has one thread. The setting is null or a C string, which stays as long as
    // no command changes settings: `f` runs none.
    let text = unsafe {
        let p = *setting.as_ptr();
        (!p.is_null()).then(|| CStr::from_ptr(p).to_bytes())
    };
    text.filter(|t| !t.is_empty()).map(f)
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
    /// Keep it serializable.
    #[name = c"serializable"]
    Serializable,
}

/// Values of `mixedcc.serializable_at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum SerializableAt {
    /// SERIALIZABLE only.
    #[name = c"serializable"]
    Serializable,
    /// REPEATABLE READ too.
    #[name = c"repeatable read"]
    RepeatableRead,
}

/// Values of `mixedcc.extension_tables`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum ExtensionTables {
    /// Heap, where the default access method is mixedcc.
    #[name = c"heap"]
    Heap,
    /// The default access method.
    #[name = c"default"]
    Default,
}

/// Values of `mixedcc.switch_method`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum SwitchMethod {
    /// Old, both, new: no transaction waits.
    #[name = c"mediated"]
    Mediated,
    /// All transactions wait until none runs.
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
pub static DEFAULT_PROTOCOL: GucSetting<ProtocolName> =
    GucSetting::<ProtocolName>::new(ProtocolName(Protocol::DEFAULT));
/// Partitions of new tables that have a key.
pub static DEFAULT_PARTITIONS: GucSetting<i32> = GucSetting::<i32>::new(1);
/// Waiting policy of new tables.
pub static WAITING_POLICY: GucSetting<PolicyName> = GucSetting::<PolicyName>::new(PolicyName::Wait);
/// What to do when a serializable transaction touches tables of mixedcc and of another method.
pub static MIXED_SERIALIZABLE: GucSetting<Mixed> = GucSetting::<Mixed>::new(Mixed::Serializable);
/// From which level on are transactions serializable on mixedcc tables?
pub static SERIALIZABLE_AT: GucSetting<SerializableAt> =
    GucSetting::<SerializableAt>::new(SerializableAt::Serializable);
/// Workers that load permanent tables after a start.
pub static LOAD_WORKERS: GucSetting<i32> = GucSetting::<i32>::new(2);
/// May a serializable transaction that has only read go on as a snapshot?
pub static FREEZE_READERS: GucSetting<bool> = GucSetting::<bool>::new(true);
/// Do transactions that only read keep no versions between those that their snapshot needs?
pub static PRUNE_VERSIONS: GucSetting<bool> = GucSetting::<bool>::new(true);
/// Does a commit that waits for its flush give up the locks of what it has written?
pub static EARLY_RELEASE: GucSetting<bool> = GucSetting::<bool>::new(false);
/// Access method of tables that extensions' scripts make.
pub static EXTENSION_TABLES: GucSetting<ExtensionTables> = GucSetting::<ExtensionTables>::new(ExtensionTables::Heap);
/// How exact recovery to a point in time is, ms. Below 0: no commit takes care of it.
pub static TIME_MARKS_MS: GucSetting<i32> = GucSetting::<i32>::new(1000);
/// How the coordinator switches partitions.
pub static SWITCH_METHOD: GucSetting<SwitchMethod> = GucSetting::<SwitchMethod>::new(SwitchMethod::Mediated);
/// At which level the coordinator logs switches.
pub static LOG_SWITCHES: GucSetting<LogLevel> = GucSetting::<LogLevel>::new(LogLevel::Debug1);
/// Does the coordinator choose protocols, where a table does not say?
pub static ADAPTIVE: GucSetting<bool> = GucSetting::<bool>::new(true);
/// Length of its intervals, ms.
pub static ADAPTIVE_INTERVAL_MS: GucSetting<i32> = GucSetting::<i32>::new(1000);
/// Protocols that it chooses from; empty: all.
pub static ADAPTIVE_CANDIDATES: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);
/// Gain that is worth a switch, percent.
pub static ADAPTIVE_MIN_GAIN: GucSetting<f64> = GucSetting::<f64>::new(10.0);
/// Growth of the cost at which a switch is taken back, percent.
pub static ADAPTIVE_MAX_LOSS: GucSetting<f64> = GucSetting::<f64>::new(5.0);
/// Intervals in which a protocol must be better.
pub static ADAPTIVE_CONFIRM: GucSetting<i32> = GucSetting::<i32>::new(2);
/// Sampled transactions that a decision needs.
pub static ADAPTIVE_MIN_SAMPLES: GucSetting<i32> = GucSetting::<i32>::new(20);
/// Half-life of what was learned, s.
pub static ADAPTIVE_FORGET_S: GucSetting<i32> = GucSetting::<i32>::new(600);
/// No protocol that locks partitions above this share of weak writers, or of transactions idle
/// between statements; percent.
pub static PARTITION_LOCK_MAX_SHARE: GucSetting<f64> = GucSetting::<f64>::new(5.0);
/// The model's file; empty: the built-in one.
pub static MODEL_FILE: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);
/// Time that a line of the history covers, s; 0: it is not kept.
pub static HISTORY_INTERVAL_S: GucSetting<i32> = GucSetting::<i32>::new(60);
/// How long lines of the history are kept, s.
pub static HISTORY_RETENTION_S: GucSetting<i32> = GucSetting::<i32>::new(7 * 86400);
/// At which level the coordinator logs decisions.
pub static LOG_DECISIONS: GucSetting<LogLevel> = GucSetting::<LogLevel>::new(LogLevel::Debug1);
/// One transaction in so many is sampled for the statistics of partitions.
pub static SAMPLE_EVERY: GucSetting<i32> = GucSetting::<i32>::new(SampleEvery::DEFAULT as i32);
/// Members of this role may switch protocols of all tables.
pub static ADMIN_ROLE: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);
/// Rows that a logical range is to hold.
pub static RANGE_ROWS: GucSetting<i32> = GucSetting::<i32>::new(1000);
/// Writes that the list of a logical range remembers.
pub static RANGE_LIST_SIZE: GucSetting<i32> = GucSetting::<i32>::new(256);
/// The group of transactions.
pub static TRANSACTION_GROUP: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);
/// What gives a group to transactions that have none otherwise.
pub static GROUP_BY: GucSetting<GroupBy> = GucSetting::<GroupBy>::new(GroupBy::None);
/// Does EXPLAIN show our lines?
pub static EXPLAIN: GucSetting<bool> = GucSetting::<bool>::new(true);
/// Do statements by key run without the executor?
pub static ENABLE_BYPASS: GucSetting<bool> = GucSetting::<bool>::new(true);
/// May plans scan the primary index?
pub static ENABLE_PRIMARY_SCAN: GucSetting<bool> = GucSetting::<bool>::new(true);
/// Where a process ends itself or sleeps: see `state/stop.rs`.
pub static KILL_AT: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);
/// How long commits are held, in milliseconds: see `state/stop.rs`.
pub static HOLD_COMMITS: GucSetting<i32> = GucSetting::<i32>::new(0);
/// `mixedcc.standby_interval`, ms.
pub static STANDBY_INTERVAL_MS: GucSetting<i32> = GucSetting::<i32>::new(50);
/// Rows that a round of a checkpoint images a second; 0: no limit.
pub static IMAGE_RATE: GucSetting<i32> = GucSetting::<i32>::new(100_000);
/// How long a client's snapshot may keep old versions, in milliseconds; 0: as long as it lives.
pub static OLD_SNAPSHOT_TIMEOUT: GucSetting<i32> = GucSetting::<i32>::new(0);
/// Greatest length of the periods in which tables learn which columns change, in milliseconds; 0:
/// they do not.
pub static COLUMN_PERIOD_MS: GucSetting<i32> = GucSetting::<i32>::new(60_000);
/// May additions by key wait until their transaction looks at the row, or ends?
pub static DEFER_ADDITIONS: GucSetting<bool> = GucSetting::<bool>::new(false);
/// Are stop events on?
pub static STOP_EVENTS: GucSetting<bool> = GucSetting::<bool>::new(false);

/// What each protocol does, for the description of a setting; made once.
fn about_protocols() -> &'static CStr {
    let each: Vec<_> = Protocol::ALL.iter().map(|p| format!("{} {}", p.name(), p.about())).collect();
    let text = CString::new(format!("{}.", each.join(", "))).expect("there is no zero byte in it");
    Box::leak(text.into_boxed_c_str())
}

/// The default protocol.
pub fn default_protocol() -> Protocol {
    DEFAULT_PROTOCOL.get().0
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

/// Ranges that settings of the choice and options of tables have in common: of intervals, ms;
pub const INTERVAL_MS: (i32, i32) = (100, 3_600_000);
/// of gains and losses, percent;
pub const MAX_PERCENT: f64 = 1000.0;
/// of shares, percent;
pub const MAX_SHARE: f64 = 100.0;
/// of intervals in which a protocol must be better;
pub const CONFIRM: (i32, i32) = (1, 1000);
/// of samples;
pub const MIN_SAMPLES: (i32, i32) = (1, 1_000_000);
/// of half-lives, s.
pub const FORGET_S: (i32, i32) = (1, i32::MAX);

/// The settings of the choice of protocols.
fn define_adaptive() {
    let percent = |name, what, more, of: &'static GucSetting<f64>, most| {
        GucRegistry::define_float_guc(name, what, more, of, 0.0, most, GucContext::Sighup, GucFlags::default());
    };
    let number = |name, what, more, of: &'static GucSetting<i32>, range: (i32, i32), flags| {
        GucRegistry::define_int_guc(name, what, more, of, range.0, range.1, GucContext::Sighup, flags);
    };
    GucRegistry::define_bool_guc(
        c"mixedcc.adaptive",
        c"Lets the coordinator choose the protocols of partitions by their load.",
        c"Of tables whose options name neither mixedcc.adaptive nor mixedcc.protocol. Pinned partitions keep their protocol.",
        &ADAPTIVE,
        GucContext::Sighup,
        GucFlags::default(),
    );
    number(
        c"mixedcc.adaptive_interval",
        c"Time between two looks of the coordinator at the load of the partitions.",
        c"",
        &ADAPTIVE_INTERVAL_MS,
        INTERVAL_MS,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_string_guc(
        c"mixedcc.adaptive_candidates",
        c"Protocols that the coordinator chooses from, separated by commas.",
        c"Empty: all.",
        &ADAPTIVE_CANDIDATES,
        GucContext::Sighup,
        GucFlags::default(),
    );
    percent(
        c"mixedcc.adaptive_min_gain",
        c"Reduction of a transaction's cost, in percent, for which the coordinator switches a partition.",
        c"",
        &ADAPTIVE_MIN_GAIN,
        MAX_PERCENT,
    );
    percent(
        c"mixedcc.adaptive_max_loss",
        c"Growth of a transaction's cost, in percent, for which the coordinator takes a switch back.",
        c"At once if the growth is larger than the noise of the measurements, too; after five measured intervals in any case.",
        &ADAPTIVE_MAX_LOSS,
        MAX_PERCENT,
    );
    number(
        c"mixedcc.adaptive_confirm",
        c"Intervals in which another protocol must be better before the coordinator switches a partition.",
        c"Twice as many, up to 32 times, for each switch of a like load that was reversed before.",
        &ADAPTIVE_CONFIRM,
        CONFIRM,
        GucFlags::default(),
    );
    number(
        c"mixedcc.adaptive_min_samples",
        c"Sampled transactions of a partition that the coordinator needs for a decision.",
        c"With fewer in an interval, it waits for more.",
        &ADAPTIVE_MIN_SAMPLES,
        MIN_SAMPLES,
        GucFlags::default(),
    );
    number(
        c"mixedcc.adaptive_forget",
        c"Time in which what the coordinator has learned from a switch loses half of its weight.",
        c"Longer where it has learned the same before.",
        &ADAPTIVE_FORGET_S,
        FORGET_S,
        GucFlags::UNIT_S,
    );
    percent(
        c"mixedcc.partcc_max_share",
        c"Share of transactions, in percent, that write below SERIALIZABLE, or are idle between their statements, up to which the coordinator chooses a protocol that locks partitions.",
        c"Such transactions hold a partition's lock while nothing happens, or make all others wait.",
        &PARTITION_LOCK_MAX_SHARE,
        MAX_SHARE,
    );
    GucRegistry::define_string_guc(
        c"mixedcc.model_file",
        c"File of the model by which the coordinator chooses.",
        c"Empty: the built-in one. Read again at a reload of the configuration if it has changed. A file that cannot be used is logged, and the model in use stays.",
        &MODEL_FILE,
        GucContext::Sighup,
        GucFlags::SUPERUSER_ONLY,
    );
    GucRegistry::define_enum_guc(
        c"mixedcc.log_decisions",
        c"Level at which the coordinator logs its decisions to switch a partition, with their reasons.",
        c"off, debug1 or log.",
        &LOG_DECISIONS,
        GucContext::Sighup,
        GucFlags::default(),
    );
}

/// The settings of the history.
fn define_history() {
    let seconds = |name, what, more, of: &'static GucSetting<i32>, range: (i32, i32)| {
        GucRegistry::define_int_guc(name, what, more, of, range.0, range.1, GucContext::Sighup, GucFlags::UNIT_S);
    };
    seconds(
        c"mixedcc.history_interval",
        c"Time between two lines that the coordinator adds to the history, which mixedcc.report shows.",
        c"0: it adds none.",
        &HISTORY_INTERVAL_S,
        (0, 3600),
    );
    seconds(
        c"mixedcc.history_retention",
        c"Time after which the coordinator deletes a part of the history.",
        c"Files are deleted as a whole; a file is that of a day.",
        &HISTORY_RETENTION_S,
        (0, 10 * 365 * 86400),
    );
}

/// Defines the settings.
pub fn init() {
    define_history();
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
        about_protocols(),
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
        c"What transactions do when a row lock conflicts, in partitions of new mixedcc tables whose protocol locks rows.",
        c"wait: sleep, deadlocks are detected; no_wait: abort; wait_die: sleep only for younger transactions.",
        &WAITING_POLICY,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"mixedcc.mixed_serializable",
        c"What happens when a SERIALIZABLE transaction touches both mixedcc tables and tables of another access method.",
        c"serializable: it stays serializable, such transactions commit one at a time; else it is atomic, but not guaranteed to be serializable. Catalogs and temporary tables do not count.",
        &MIXED_SERIALIZABLE,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"mixedcc.serializable_at",
        c"Lowest isolation level at which transactions are serializable on mixedcc tables.",
        c"With repeatable read, such transactions cost nothing in PostgreSQL's own serializable isolation, and may not mix mixedcc tables with others (mixedcc.mixed_serializable).",
        &SERIALIZABLE_AT,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"mixedcc.transaction_group",
        c"Group of the transaction, for the statistics of which group fails or waits for which.",
        c"Read at the first use of a mixedcc table. Empty: the label of the function that is called says it, or mixedcc.group_by.",
        &TRANSACTION_GROUP,
        GucContext::Userset,
        GucFlags::IS_NAME,
    );
    GucRegistry::define_enum_guc(
        c"mixedcc.group_by",
        c"What gives a group to transactions without mixedcc.transaction_group or a label of their function.",
        c"none; application_name; statement: the query identifier of the first statement.",
        &GROUP_BY,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"mixedcc.freeze_readers",
        c"Lets a SERIALIZABLE transaction that has only read go on as a snapshot where it would fail, or would probably lock in vain.",
        c"Its first write fails then, as the read would have. Off: it fails at once.",
        &FREEZE_READERS,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"mixedcc.prune_versions",
        c"Lets a long transaction that only reads by one snapshot keep one old version of each row, and not one for each update.",
        c"Counts for REPEATABLE READ and SERIALIZABLE READ ONLY transactions, while they do nothing or scan a table. Off: all are kept.",
        &PRUNE_VERSIONS,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"mixedcc.early_release",
        c"Lets others lock and write the rows of a commit that waits for its flush or its standbys.",
        c"Their commits wait until it is safe. Rows that they return before are provisional. For rows that many sessions update.",
        &EARLY_RELEASE,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"mixedcc.extension_tables",
        c"Access method of the tables that CREATE EXTENSION and ALTER EXTENSION UPDATE make, where default_table_access_method is mixedcc.",
        c"heap: an extension's own code may write them as heap's; default: they are mixedcc tables. Tables with a USING clause are not affected.",
        &EXTENSION_TABLES,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"mixedcc.time_marks",
        c"Time within which recovery to a point in time is exact for permanent mixedcc tables.",
        c"In half of this time one commit takes a transaction id, if some commit. 0: each one does. -1: none, and recovery to a time may end much later.",
        &TIME_MARKS_MS,
        -1,
        3_600_000,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_enum_guc(
        c"mixedcc.switch_method",
        c"How partitions get another protocol.",
        c"mediated: through a mix of both, no transaction waits; stop_all: new transactions wait until all others are over, for comparison in benchmarks only.",
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
    define_adaptive();
    GucRegistry::define_string_guc(
        c"mixedcc.admin_role",
        c"Members of this role may switch and pin the protocols of all mixedcc tables, and reset their statistics, as their owners may.",
        c"Empty: owners and superusers only.",
        &ADMIN_ROLE,
        GucContext::Sighup,
        GucFlags::default(),
    );
    // Not for all users: a reader of a table could fill the shared memory with lists.
    GucRegistry::define_int_guc(
        c"mixedcc.range_rows",
        c"Rows of each logical range of an index when its ranges are made.",
        c"A range is what a SERIALIZABLE scan is validated by. Ranges should be about as long as the scans.",
        &RANGE_ROWS,
        1,
        i32::MAX,
        GucContext::Suset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"mixedcc.range_list_size",
        c"Concurrent writes that each logical range of an index remembers when its ranges are made.",
        c"A SERIALIZABLE scan fails if more writes than this are made to one of its ranges before it commits. Rounded up to a power of two; each takes 64 bytes.",
        &RANGE_LIST_SIZE,
        8,
        65536,
        GucContext::Suset,
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
        c"mixedcc.defer_additions",
        c"Lets SERIALIZABLE updates that add to columns of a row wait until their transaction ends, or looks at the row.",
        c"For UPDATE ... SET x = x + c by primary key. The row is locked at the end only. An overflow may be an error of COMMIT.",
        &DEFER_ADDITIONS,
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
        c"Lets tests stop or fail transactions, or the coordinator, at named points (see mixedcc.set_stop_event).",
        c"For tests only.",
        &STOP_EVENTS,
        GucContext::Suset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"mixedcc.load_workers",
        c"Background workers that load permanent mixedcc tables after the server has started.",
        c"0: tables are loaded at their first use only.",
        &LOAD_WORKERS,
        0,
        64,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"mixedcc.image_rate",
        c"Rows of permanent tables that a checkpoint writes into images a second, if no process waits for it.",
        c"Faster where half of the checkpoint's time or WAL would not be enough. 0: as fast as it can.",
        &IMAGE_RATE,
        0,
        i32::MAX,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"mixedcc.standby_interval",
        c"Time between two records that tell standbys which commits they may show.",
        c"None is written while there are no commits. Commits at remote_apply are told at once, if all before them are decided within 20 ms. A short one wakes the companion as often.",
        &STANDBY_INTERVAL_MS,
        1,
        500, // A session of a standby that waits gives up after a second (`state/standby.rs`).
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"mixedcc.old_snapshot_timeout",
        c"Ends what a client does with a snapshot that keeps old versions of mixedcc rows for longer than this.",
        c"A statement is canceled; a session that is idle in its transaction is terminated. 0: neither.",
        &OLD_SNAPSHOT_TIMEOUT,
        0,
        i32::MAX,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"mixedcc.column_period",
        c"Greatest length of the periods in which tables learn which columns updates change.",
        c"Where reads lock rows, one by key of columns that have not changed lately locks the key of its row alone. 0: none does.",
        &COLUMN_PERIOD_MS,
        0,
        3_600_000,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_string_guc(
        c"mixedcc.kill_at",
        c"Ends a process at a named point of durable tables, as kill -9 does, or lets it sleep there.",
        c"EVENT, EVENT:PASS, EVENT:PASS:MILLISECONDS or EVENT:PASS:PATH. For tests only; needs mixedcc.stop_events.",
        &KILL_AT,
        GucContext::Suset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"mixedcc.hold_commits",
        c"Holds each commit that writes mixedcc tables so long before it is done, as a standby may.",
        c"For tests only; needs mixedcc.stop_events.",
        &HOLD_COMMITS,
        0,
        60_000,
        GucContext::Suset,
        GucFlags::UNIT_MS,
    );
}
