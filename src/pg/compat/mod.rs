//! What differs between PostgreSQL's major versions, 15 to 18, and nothing else. All tests run on
//! version 15. Versions 17 and 18 pass the regression tests and isolation specs, with the same
//! expected output, and the process tests (`scripts/in-version 17 scripts/test build process`). The
//! stage `newest` of `scripts/test` runs some of them on 18, the stage `versions` all on both.
//! Version 16 passes the isolation specs and those regression tests that need no module of contrib:
//! its build has none (`scripts/in-version`). Functions that are declared here by hand were
//! compared with the headers of 15, 17 and 18.
//!
//! `scripts/check-source` fails if another file names a symbol of the list below. A symbol that
//! differs goes there, and gets a function here that hides it. Functions on hot paths are inlined.
//!
//! | what differs | where |
//! |---|---|
//! | RelFileNode is RelFileLocator (16); smgr and storage functions take it, and backend ids (17) | `storage` |
//! | INDEX_ATTR_BITMAP_ALL is gone (16): HOT_BLOCKING and SUMMARIZED together | `catalog` |
//! | attributes are compact, generated columns can be virtual (18) | `catalog` |
//! | ownership and rights: object_ownercheck, object_aclcheck (16); MAINTAIN and pg_maintain (17) | `catalog` |
//! | CLUSTER tells what it leaves out, REINDEX has event triggers (17) | `maintenance` |
//! | how a fork is extended (16); smgrread and smgrtruncate have other arguments (17, 18), smgrcloseall frees nothing (17) | `buffers` |
//! | relation_set_new_filelocator; update_indexes is an enum (16); ANALYZE reads a stream of blocks (17); bitmap scans iterate by themselves (18) | `callbacks` |
//! | a statement counts the rows of all its runs (16) | `executor` |
//! | ExecutorRun_hook has one argument less (18); rights are in a list besides the range table, ExecInsertIndexTuples has one argument more (16) | `executor` |
//! | EXPLAIN of one query: standard_ExplainOneQuery (17) | `callbacks` |
//! | rs_mintid is in a union (18); prefetch of bitmap scans is gone (18) | `callbacks` |
//! | MyBackendId is MyProcNumber, from 0; lxid and the number of a PGPROC move (17) | `process` |
//! | LockHeldByMe has one argument more (17) | `process` |
//! | signals: pqsignal is pqsignal_be (18) | `process` |
//! | the interrupts of the startup process have another name (18) | `recovery` |
//! | how the list of settings is asked for (16) | `process` |
//! | numbers of AddinShmemInitLock, ProcArrayLock and ReplicationSlotControlLock | `process`, `replication` |
//! | entries of pg_stat_activity (16); an ERROR's clean-up in a worker (16, 18) | `process` |
//! | arguments of XLogRegisterData have other types (17, 18) | `wal` |
//! | tuples of the reorder buffer have no struct of their own (17); functions that allocate have other names (18) | `decoding` |
//! | walkers of trees are named `_impl` (16); names and arrays' lengths have more arguments (16, 17); lc_collate_is_c is a field (18) | `nodes` |
//! | index_beginscan has one argument more (18), RelationGetPrimaryKeyIndex too (18) | `executor`, `catalog` |
//! | IndexVacuumInfo.heaprel (16); VACOPT bits (16); relation statistics and their report (18) | `maintenance` |
//! | VACUUM goes on with the tables that inherit from a named one (18) | `maintenance` |
//! | VACUUM's progress counts dead rows elsewhere, and indexes (17) | `maintenance` |
//! | VacuumPageHit and others are fields of pgBufferUsage, autovacuum's processes are known by their type (17) | `usage` |
//! | entries of serializable transactions have a link more (16) | `predicate` |
//! | kinds of waits have names (17) | `waits` |
//! | counters of a relation's statistics have other names; an update says whether it left the page (16) | `maintenance` |
//!
//! Not hidden, because no code of ours depends on it yet: MERGE and BEFORE triggers refetch with
//! SnapshotAny in new places (17, 18: `access/visible.rs: any`), slot operations have new members
//! (ours are heap's), the executor's part in what the bypass does (`paths/bypass/`: read execMain.c
//! and nodeModifyTable.c of the version again).
//!
//! What newer versions offer, and is not used: injection points (17), which Debian's builds lack;
//! `mixedcc.set_stop_event` stands for them. Reads that are started ahead (18, read_stream.h): the
//! processor bound loads when that was measured. Kinds of cumulative statistics (18,
//! pgstat_internal.h): the counters are in the region with what they count, on all versions.
//! `pg_stat_io` (16) needs nothing: blocks of permanent tables go through buffers.

pub mod buffers;
mod callbacks;
mod catalog;
mod decoding;
mod executor;
mod maintenance;
mod nbtree;
mod nodes;
mod predicate;
mod process;
mod recovery;
mod replay;
mod replication;
mod storage;
mod usage;
mod waits;
mod wal;

pub use callbacks::{
    add_block_to_bitmap, add_to_bitmap, explain_query, routine, set_tid_bounds, without_prefetch, Callbacks,
};
pub use catalog::{
    active_slots, all_may_call, attribute, cached_offset, column_rights, has_virtual_columns, identity_columns,
    indexed_columns, is_enforced, is_never_null, is_template, key_columns, may_break_not_null, may_call,
    may_create_databases, may_drop, may_maintain, may_maintain_all, may_vacuum, owns_database, owns_function,
    owns_relation, primary_key_index, relation_rights, subscriptions, tablespace_of, tablespace_rights,
};
pub use decoding::{Decoding, Kind};
pub use executor::{
    add_processed, begin_guarded_index_scan, begin_index_scan, check_constraints, check_constraints_alone,
    clear_processed, has_rights, init_run, insert_index_entries, Tables,
};
pub use maintenance::{
    cluster, count_dead, count_fetched, count_fetched_rows, count_index_scan, count_returned_row,
    count_returned_rows_of, count_scan, count_update, counts_rows_at_once, index_vacuum_info, is_verbose,
    ready_to_count, rebuild_index, reindex, report_vacuum, tell_not_vacuumed, update_statistics,
    update_table_statistics, vacuum, with_reindex_events, written_relations, Size, CLUSTER_TELLS,
    PROGRESS_OF_DEAD_ROWS, PROGRESS_OF_INDEXES, VACUUM_DESCENDS,
};
pub use nbtree::{is_hollow, is_hollow_storage, may_be_hollow, poison, write_hollow_init, write_hollow_mark};
pub use nodes::{array_length, is_c_collation, is_of_row, mutated, relation_name, walk_children};
pub use predicate::{
    check_before_commit, count_as_writer, is_shown, missed_ones, serializable_standing, unmarked_missed, Standing,
};
pub use process::nap;
pub use process::{
    addin_shmem_lock, checkpoint_span, checkpointer, clean_up_after_error, client_doing, delays_checkpoints,
    end_process, enum_setting, exporter, handle_signal, has_no_snapshot, holds_relation, ident_of_recovered,
    is_awaited, is_checkpointer_awaited, is_postmaster_alive, is_recovered, leader_proc, max_prepared_transactions,
    my_ident, my_lxid, my_proc, now, pid_of, recovered_definers, recovered_holders, recovered_xids, relation_tag,
    renew_delay_of_checkpoints, send, wait_for_end, wake, wake_postmaster, with_processes_locked, Doing, ProcNo,
};
pub use recovery::{
    cancel_reader, has_no_portal, in_recovery, is_only_snapshot, replayed, standby_delay, standby_patience,
    startup_interrupts, with_relation,
};
pub use replay::{blocks_of, change_journal, restore};
pub use replication::{makes_slot, sender_exports, senders_with_snapshots};
pub use storage::{
    create_storage, empty_index, has_init_fork, is_permanent, main_file, name_parallel_scan, page_with, relation_of,
    storage, storage_key, storage_number, storage_of, Storage, PAGE_HEADER,
};
pub use usage::{is_autovacuum, Usage};
pub use waits::{name_waits, Wait};
pub use wal::{begin_record, insert_record, register_data};
