//! VACUUM and statistics.

use pgrx::pg_sys;

/// ClusterParams: bits of options.
#[repr(C)]
pub struct ClusterParams {
    options: u32,
}

const CLUOPT_VERBOSE: u32 = 1;
/// The table may have changed since it was looked up, and need not be marked as clustered by the
/// index any more.
const CLUOPT_RECHECK: u32 = 2 | 4;

mod raw {
    use super::ClusterParams;
    extern "C-unwind" {
        pub fn pgstat_get_xact_stack_level(level: core::ffi::c_int) -> *mut super::Counted;
        // Raises nothing in the ways we call it.
        pub fn pgstat_count_heap_update(
            rel: pgrx::pg_sys::Relation,
            hot: bool,
            #[cfg(not(feature = "pg15"))] new_page: bool,
        );
        #[cfg(not(feature = "pg18"))]
        pub fn cluster_rel(table: pgrx::pg_sys::Oid, index: pgrx::pg_sys::Oid, params: *mut ClusterParams);
        #[cfg(feature = "pg18")]
        pub fn cluster_rel(table: pgrx::pg_sys::Relation, index: pgrx::pg_sys::Oid, params: *mut ClusterParams);
    }
}

/// The parameter of VACUUM's progress for the number of dead rows.
#[cfg(any(feature = "pg15", feature = "pg16"))]
pub const PROGRESS_OF_DEAD_ROWS: u32 = pg_sys::PROGRESS_VACUUM_NUM_DEAD_TUPLES;
/// The parameter of VACUUM's progress for the number of dead rows.
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
pub const PROGRESS_OF_DEAD_ROWS: u32 = pg_sys::PROGRESS_VACUUM_NUM_DEAD_ITEM_IDS;

/// The parameters of VACUUM's progress for the number of indexes, and of those that are done.
#[cfg(any(feature = "pg15", feature = "pg16"))]
pub const PROGRESS_OF_INDEXES: Option<(u32, u32)> = None;
/// The parameters of VACUUM's progress for the number of indexes, and of those that are done.
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
pub const PROGRESS_OF_INDEXES: Option<(u32, u32)> =
    Some((pg_sys::PROGRESS_VACUUM_INDEXES_TOTAL, pg_sys::PROGRESS_VACUUM_INDEXES_PROCESSED));

/// What an index's clean-up is told about its table. The table itself is asked for from 16 on.
pub fn index_vacuum_info(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    rows: f64,
    strategy: pg_sys::BufferAccessStrategy,
) -> pg_sys::IndexVacuumInfo {
    #[cfg(feature = "pg15")]
    let _ = table;
    pg_sys::IndexVacuumInfo {
        index,
        #[cfg(not(feature = "pg15"))]
        heaprel: table,
        analyze_only: false,
        report_progress: false,
        estimated_count: false,
        message_level: pg_sys::DEBUG2 as i32,
        num_heap_tuples: rows,
        strategy,
    }
}

/// Size and rows of a relation, for pg_class.
pub struct Size {
    /// Blocks.
    pub pages: u32,
    /// Rows; negative: not known.
    pub rows: f64,
    /// Has a table indexes?
    pub has_index: bool,
}

/// Writes size and rows of an index into pg_class.
///
/// # Safety
/// An open index, locked as VACUUM does.
pub unsafe fn update_statistics(index: pg_sys::Relation, size: Size) {
    // SAFETY: `index` is open and locked as VACUUM does (contract of this function).
    unsafe { update(index, size, pg_sys::InvalidTransactionId, pg_sys::MultiXactId::from(0u32)) }
}

/// Writes size and rows of a table into pg_class, and the horizons that VACUUM has come to.
/// `frozen`: no older transaction id is needed; 0: unknown. Rows of ours hold no multixacts, so
/// that horizon is the newest that is sane.
///
/// # Safety
/// An open table, locked as VACUUM does.
pub unsafe fn update_table_statistics(rel: pg_sys::Relation, size: Size, frozen: pg_sys::TransactionId) {
    // SAFETY: `rel` is open and locked as VACUUM does (contract of this function).
    unsafe { update(rel, size, frozen, pg_sys::GetOldestMultiXactId()) }
}

/// # Safety
/// An open relation, locked as VACUUM does.
unsafe fn update(rel: pg_sys::Relation, size: Size, frozen: pg_sys::TransactionId, multi: pg_sys::MultiXactId) {
    let none = std::ptr::null_mut;
    // SAFETY: `rel` is open and locked as VACUUM does (contract of this function);
    // vac_update_relstats takes null for the flags that are not asked for.
    unsafe {
        pg_sys::vac_update_relstats(
            rel,
            size.pages,
            size.rows,
            0,
            #[cfg(feature = "pg18")]
            0,
            size.has_index,
            frozen,
            multi,
            none(),
            none(),
            false,
        );
    }
}

/// Tells the statistics of a VACUUM, and when it began (used from 18 on).
///
/// # Safety
/// An open relation.
pub unsafe fn report_vacuum(rel: pg_sys::Relation, live: u64, dead: u64, started: pg_sys::TimestampTz) {
    // SAFETY: `rel` is open (contract of this function).
    #[cfg(not(feature = "pg18"))]
    unsafe {
        let _ = started;
        pg_sys::pgstat_report_vacuum((*rel).rd_id, (*(*rel).rd_rel).relisshared, live as i64, dead as i64)
    }
    // SAFETY: `rel` is open (contract of this function).
    #[cfg(feature = "pg18")]
    unsafe {
        pg_sys::pgstat_report_vacuum((*rel).rd_id, (*(*rel).rd_rel).relisshared, live as i64, dead as i64, started)
    }
}

/// Does VACUUM of a table go on with the tables that inherit from it?
pub const VACUUM_DESCENDS: bool = cfg!(feature = "pg18");

/// Sorts a table by an index, if both are there still and the user may do it. Within a transaction
/// with a snapshot.
pub fn cluster(table: pg_sys::Oid, index: pg_sys::Oid, verbose: bool) {
    let mut params = ClusterParams { options: CLUOPT_RECHECK | if verbose { CLUOPT_VERBOSE } else { 0 } };
    // SAFETY: `cluster_rel` takes an OID that names no relation. An ERROR jumps over this frame,
    // which owns nothing.
    #[cfg(not(feature = "pg18"))]
    unsafe {
        raw::cluster_rel(table, index, &mut params)
    };
    // From 18 on the caller opens the table, which is closed at the end.
    // SAFETY: `rel` is open and locked when `cluster_rel` gets it. An ERROR jumps over this frame,
    // which owns nothing.
    #[cfg(feature = "pg18")]
    unsafe {
        let rel = pg_sys::try_table_open(table, pg_sys::AccessExclusiveLock as i32);
        if !rel.is_null() {
            raw::cluster_rel(rel, index, &mut params);
        }
    };
}

/// A state for a command's errors: its text.
///
/// # Safety
/// A text that ends with a zero byte and lives as long as the statement.
unsafe fn parse_state(query: *const core::ffi::c_char) -> *mut pg_sys::ParseState {
    // SAFETY: `make_parsestate` returns a new state. `query` lives as long as the statement
    // (contract of this function).
    unsafe {
        let p = pg_sys::make_parsestate(std::ptr::null_mut());
        (*p).p_sourcetext = query;
        p
    }
}

/// Runs REINDEX, which may commit and go on in another transaction.
///
/// # Safety
/// A statement whose memory outlives the transaction. The caller is the top of a client's command.
pub unsafe fn reindex(s: *mut pg_sys::ReindexStmt, query: *const core::ffi::c_char) {
    // SAFETY: `s` and `query` outlive the transaction, and a client's command calls this (contract
    // of this function).
    unsafe { pg_sys::ExecReindex(parse_state(query), s, true) }
}

/// Builds an index anew, in a new file, within another command.
///
/// # Safety
/// An index of a table that the transaction has locked exclusively. It is not open here, and
/// `persistence` is its own.
pub unsafe fn rebuild_index(index: pg_sys::Oid, persistence: core::ffi::c_char) {
    let mut params = pg_sys::ReindexParams::default();
    // SAFETY: the index exists, and its table is locked (contract of this function). An ERROR
    // unwinds.
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    unsafe {
        pg_sys::reindex_index(index, false, persistence, &mut params)
    }
    // SAFETY: as above.
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    unsafe {
        pg_sys::reindex_index(std::ptr::null(), index, false, persistence, &mut params)
    }
    // SAFETY: the command has changed its catalogs, and holds nothing of them.
    unsafe { pg_sys::CommandCounterIncrement() }
}

/// Runs `f`, which does what REINDEX does, with the event triggers that it has since 17.
///
/// # Safety
/// A statement whose memory outlives the transactions of `f`, of a client's command.
pub unsafe fn with_reindex_events(s: *mut pg_sys::ReindexStmt, f: impl FnOnce()) {
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    {
        let _ = s;
        f()
    }
    // As ProcessUtilitySlow does it (utility.c).
    // SAFETY: the statement is valid until the end (contract of this function). What begins here is
    // ended here, also by an ERROR, which goes on.
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    unsafe {
        use std::panic::AssertUnwindSafe;
        let collects = pg_sys::EventTriggerBeginCompleteQuery();
        pgrx::PgTryBuilder::new(AssertUnwindSafe(|| {
            pg_sys::EventTriggerDDLCommandStart(s.cast());
            f();
            pg_sys::EventTriggerSQLDrop(s.cast());
            pg_sys::EventTriggerDDLCommandEnd(s.cast());
        }))
        .finally(|| {
            if collects {
                pg_sys::EventTriggerEndCompleteQuery();
            }
        })
        .execute()
    }
}

/// Does CLUSTER of all tables tell of those that its user may not cluster?
pub const CLUSTER_TELLS: bool = cfg!(not(any(feature = "pg15", feature = "pg16")));

/// Says that VACUUM passes over a table that its user may not vacuum.
pub fn tell_not_vacuumed(table: pg_sys::Oid) {
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    use pg_sys::vacuum_is_permitted_for_relation as may_vacuum;
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    use pg_sys::vacuum_is_relation_owner as may_vacuum;
    // SAFETY: catalog look-up: any OID is answered, by a row or null. The row is released after its
    // last use, or by an ERROR's clean-up.
    unsafe {
        let row = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::RELOID as i32, table.into());
        if !row.is_null() {
            may_vacuum(table, pg_sys::GETSTRUCT(row).cast(), pg_sys::VACOPT_VACUUM);
            pg_sys::ReleaseSysCache(row);
        }
    }
}

/// Runs VACUUM, which commits and goes on in other transactions.
///
/// # Safety
/// As for [`reindex`].
pub unsafe fn vacuum(s: *mut pg_sys::VacuumStmt, query: *const core::ffi::c_char) {
    // SAFETY: `s` and `query` outlive the transaction, and a client's command calls this (contract
    // of this function).
    unsafe { pg_sys::ExecVacuum(parse_state(query), s, true) }
}

/// Was VERBOSE given?
///
/// # Safety
/// VACUUM's parameters.
pub unsafe fn is_verbose(params: *const pg_sys::VacuumParams) -> bool {
    // SAFETY: `params` are VACUUM's (contract of this function).
    unsafe { (*params).options & pg_sys::VACOPT_VERBOSE != 0 }
}

/// Counts an update. `in_place`: no index was touched.
///
/// # Safety
/// An open relation.
#[inline]
pub unsafe fn count_update(rel: pg_sys::Relation, in_place: bool) {
    // SAFETY: `rel` is open (contract of this function).
    #[cfg(feature = "pg15")]
    unsafe {
        raw::pgstat_count_heap_update(rel, in_place)
    }
    // SAFETY: `rel` is open (contract of this function).
    #[cfg(not(feature = "pg15"))]
    unsafe {
        raw::pgstat_count_heap_update(rel, in_place, false)
    }
}

/// Counts rows that were found dead. VACUUM tells its own number.
///
/// # Safety
/// An open relation.
pub unsafe fn count_dead(rel: pg_sys::Relation, n: u64) {
    // SAFETY: `rel` is open (contract of this function). A process has the entry that MyProc names,
    // and changes its flags alone.
    unsafe {
        if (*pg_sys::MyProc).statusFlags & pg_sys::PROC_IN_VACUUM as u8 == 0 {
            pg_sys::pgstat_update_heap_dead_tuples(rel, -(n.min(1 << 30) as i32));
        }
    }
}

/// PgStat_SubXactStatus (pgstat_internal.h): what a transaction's counters will become.
#[repr(C)]
struct Counted {
    level: core::ffi::c_int,
    above: *mut Counted,
    drops: [*mut core::ffi::c_void; 2],
    drops_count: core::ffi::c_int,
    first: *mut pg_sys::PgStat_TableXactStatus,
}

/// The relations in which the running transaction, which is in no subtransaction, has written a
/// row, or which it has truncated. `None`: they are not counted (`track_counts`). An ERROR unwinds.
pub fn written_relations() -> Option<Vec<pg_sys::Oid>> {
    // SAFETY: `pgstat_get_xact_stack_level` makes the list of a level where there is none. The
    // entries and their parents live to the end of the transaction.
    unsafe {
        if !pg_sys::pgstat_track_counts {
            return None;
        }
        let counted = pg_sys::ffi::pg_guard_ffi_boundary(|| {
            raw::pgstat_get_xact_stack_level(pg_sys::GetCurrentTransactionNestLevel())
        });
        let mut found = Vec::new();
        let mut at = (*counted).first;
        while let Some(one) = at.as_ref() {
            #[cfg(feature = "pg15")]
            found.push((*one.parent).t_id);
            #[cfg(not(feature = "pg15"))]
            found.push((*one.parent).id);
            at = one.next;
        }
        Some(found)
    }
}

/// The counters of a relation, if it has any (pgstat_should_count_relation's macro).
///
/// # Safety
/// An open relation, which stays open as long as the result is used, and no other counters of it
/// are in use.
#[inline(always)]
unsafe fn counters<'a>(rel: pg_sys::Relation) -> Option<Counters<'a>> {
    // SAFETY: `rel` is open (contract of this function). `pgstat_info` is null or the entry of this
    // backend; `pgstat_assoc_relation` sets it.
    unsafe {
        if (*rel).pgstat_info.is_null() {
            if !(*rel).pgstat_enabled {
                return None;
            }
            pg_sys::pgstat_assoc_relation(rel);
        }
        #[cfg(feature = "pg15")]
        let counts = &mut (*(*rel).pgstat_info).t_counts;
        #[cfg(not(feature = "pg15"))]
        let counts = &mut (*(*rel).pgstat_info).counts;
        Some(Counters(counts))
    }
}

/// The counters by names of ours.
struct Counters<'a>(&'a mut pg_sys::PgStat_TableCounts);

#[cfg(feature = "pg15")]
impl Counters<'_> {
    fn scans(&mut self) -> &mut i64 {
        &mut self.0.t_numscans
    }
    fn returned(&mut self) -> &mut i64 {
        &mut self.0.t_tuples_returned
    }
    fn fetched(&mut self) -> &mut i64 {
        &mut self.0.t_tuples_fetched
    }
}
#[cfg(not(feature = "pg15"))]
impl Counters<'_> {
    fn scans(&mut self) -> &mut i64 {
        &mut self.0.numscans
    }
    fn returned(&mut self) -> &mut i64 {
        &mut self.0.tuples_returned
    }
    fn fetched(&mut self) -> &mut i64 {
        &mut self.0.tuples_fetched
    }
}

/// Counts a scan.
///
/// # Safety
/// An open relation.
pub unsafe fn count_scan(rel: pg_sys::Relation) {
    // SAFETY: `rel` is open (contract of this function).
    if let Some(mut c) = unsafe { counters(rel) } {
        *c.scans() += 1;
    }
}

/// Counts a scan of an index, in its statistics and, from version 18 on, for EXPLAIN.
///
/// # Safety
/// A scan that has begun and not ended.
pub unsafe fn count_index_scan(scan: pg_sys::IndexScanDesc) {
    // SAFETY: the scan's index is open, and its instrument is null or lives as long as the scan
    // (contract of this function).
    unsafe {
        count_scan((*scan).indexRelation);
        #[cfg(feature = "pg18")]
        if let Some(instrument) = (*scan).instrument.as_mut() {
            instrument.nsearches += 1;
        }
    }
}

/// Counts rows that a scan of an index has found.
///
/// # Safety
/// An open relation and an index of it.
#[inline]
pub unsafe fn count_fetched_rows(rel: pg_sys::Relation, index: pg_sys::Relation, n: u32) {
    // SAFETY: `rel` and `index` are open (contract of this function); each pair of counters is
    // dropped before the next is taken.
    unsafe {
        if let Some(mut c) = counters(index) {
            *c.returned() += n as i64;
        }
        if let Some(mut c) = counters(rel) {
            *c.fetched() += n as i64;
        }
    }
}

/// Counts a row of a table that was fetched for what an index has found.
///
/// # Safety
/// An open relation.
#[inline]
pub unsafe fn count_fetched(rel: pg_sys::Relation) {
    // SAFETY: `rel` is open (contract of this function).
    if let Some(mut c) = unsafe { counters(rel) } {
        *c.fetched() += 1;
    }
}

/// Makes that [`counts_rows_at_once`] is true of a table.
///
/// # Safety
/// An open relation. An ERROR jumps over this frame.
#[inline]
pub unsafe fn ready_to_count(rel: pg_sys::Relation) {
    // SAFETY: `rel` is open (contract of this function).
    _ = unsafe { counters(rel) };
}

/// Can [`count_returned_rows_of`] count rows of the table, or need none be counted?
#[inline]
pub fn counts_rows_at_once(rel: &pg_sys::RelationData) -> bool {
    !rel.pgstat_info.is_null() || !rel.pgstat_enabled
}

/// Counts rows that a scan has returned, where [`counts_rows_at_once`].
///
/// # Safety
/// An open relation.
#[inline(always)]
pub unsafe fn count_returned_rows_of(rel: &pg_sys::RelationData, n: u32) {
    if !rel.pgstat_info.is_null() {
        // SAFETY: `rel` is open (contract of this function), and has its entry: `counters` only
        // takes it.
        if let Some(mut c) = unsafe { counters(std::ptr::from_ref(rel).cast_mut()) } {
            *c.returned() += i64::from(n);
        }
    }
}

/// Counts a row that a scan has returned.
///
/// # Safety
/// An open relation.
#[inline]
pub unsafe fn count_returned_row(rel: pg_sys::Relation) {
    // SAFETY: `rel` is open (contract of this function).
    if let Some(mut c) = unsafe { counters(rel) } {
        *c.returned() += 1;
    }
}
