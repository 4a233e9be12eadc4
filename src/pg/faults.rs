//! Deliberate faults of the scans' bounds, and of permanent tables. With them tests show that they
//! would find such an error.
//!
//! Only a build with the feature `faults` has them, and the setting `mixedcc.fault` that switches
//! them and the engine's on: in a session, or in all processes if a file of the server has it (see
//! tests/README.md). Elsewhere they cost nothing.

/// A fault of the extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A place without a row is not looked at again when it is protected.
    TidLookedOnce,
    /// An inclusive upper bound is taken for an exclusive one.
    UpperBound,
    /// A lower bound of a descending column is taken for an upper one.
    DescendingBounds,
    /// A scan without bounds does not protect NULLs.
    NullsLeftOut,
    /// IS NULL protects the other end of the index.
    NullMarker,
    /// Of an array only the first value is protected.
    FirstOfArray,
    /// A row comparison is cut off as if it were strict in its first columns.
    RowComparison,
    /// A scan that ends early does not protect the last row that it returned.
    LimitTooLittle,
    /// Statements look at tables beside additions that wait.
    LooksBesideDeferred,
    /// What the statement of a deferred addition has returned is not compared.
    AnswersForgotten,
    /// An addition in a savepoint is deferred, and outlives the rollback to it.
    DeferredWithin,
    /// That statements have seen an addition, in a savepoint that is rolled back, does not count.
    UndoneForgotten,
    /// An addition does not follow its row into another record.
    MovesNotFollowed,
    /// A look-up of a row that is to be written looks at none of its columns.
    WrittenByColumn,
    /// A row that a hint leads to is taken without a look at its key.
    GuessUnproved,
    /// Whole rows and system columns are not looked at.
    WholeRowForgotten,
    /// What a statement returns is not looked at.
    ListForgotten,
    /// The conditions of a statement are not looked at.
    ConditionsForgotten,
    /// A version names none of the columns that its statement sets.
    SetsForgotten,
    /// COMMIT without a transaction id answers without a flush.
    FlushLeftOut,
    /// Buffers of image pages are not marked dirty, so no checkpoint writes and syncs them.
    ImagesNotDirty,
    /// Buffers of journal pages are not marked dirty.
    JournalNotDirty,
    /// Redo makes the file of a storage that has none.
    RedoMakesFiles,
    /// Numbers are not reserved in WAL.
    ReserveLeftOut,
    /// Checkpoints are not held.
    NoHold,
    /// A row in pieces, of which no chain of blocks has all, is not written again at load.
    ChainForgotten,
    /// Index entries are marked as dead before the deletion is flushed.
    DeadUnflushed,
    /// A round does not rest.
    PaceForgotten,
    /// The WAL writer does not hear of asynchronous commits.
    LazyForgotten,
    /// A logged commit that waits for another authority keeps its pin.
    PinKept,
    /// A process that is terminated leaves in memory what it was making there.
    MadeLeft,
    /// An abort forgets what a second change of a table's partitions has overwritten.
    PartsForgotten,
    /// Nothing keeps two processes from loading one table.
    LoadedTwice,
    /// A table that does not fit is taken for an empty one.
    LargeIsEmpty,
    /// A mixed transaction commits although what it has read in heap was replaced.
    MixedMissed,
    /// Mixed transactions commit side by side.
    MixedTogether,
    /// A READ ONLY mixed transaction may miss a mixed commit in heap alone.
    MixedTorn,
    /// Of two READ ONLY mixed transactions the one that is later in heap may be earlier in ours.
    MixedCrossed,
    /// A mixed transaction that writes nothing in heap is a reader there.
    MixedReader,
    /// A serializable transaction does not wait for the marks of those that it has missed.
    MixedUnmarked,
    /// PREPARE waits for locks behind the gate.
    PreparedWindowEarly,
    /// The end of a prepared transaction does not make its rows dirty.
    PreparedStaysPending,
    /// A table that a prepared transaction has used may be loaded.
    NotAsleep,
    /// A table that is loaded after the end of a prepared transaction shows its rows to all.
    EndForgotten,
    /// A load leaves pending entries in blocks that others may use.
    PendingHomeless,
    /// No process waits for the locks of ranges that a prepared transaction had before the start.
    RangesForgotten,
    /// Writers do not wait for prepared transactions that keep a table from them.
    DozingForgotten,
    /// Nor do those that change keys, for those that keep keys.
    KeysForgotten,
    /// A process that loads a table overlooks indexes that prepared transactions have made.
    MakersForgotten,
    /// A table that a prepared transaction may drop is left with dirty rows.
    LeavesDirty,
    /// A process uses a table beside the change that a decided transaction has left.
    KeptIgnored,
    /// A snapshot leaves out a commit that is done meanwhile, although PostgreSQL's shows it.
    HalfShown,
    /// Changes are decoded without the old row or its key.
    OldKeyLeftOut,
    /// Changes of other databases are decoded, too.
    DecodesAll,
    /// The first copy of a table shows commits that its changes bring again.
    CopiesTooMuch,
    /// The anchor moves although the maker of a slot needs it.
    AnchorDrags,
    /// A standby passes over a page of the journal.
    PageSkipped,
    /// A load on a standby forgets pieces of a row whose other pieces come later.
    PiecesForgotten,
    /// Standbys are not told of index entries that go.
    HorizonLeftOut,
    /// That tables left the memory is not remembered.
    UnloadForgotten,
    /// Rows that move while a standby loads their table are not looked for.
    MovedForgotten,
    /// A standby shows what it has loaded before that is stable.
    LowForgotten,
    /// A commit forgets that other code acts before it is decided.
    LaterForgotten,
    /// A standby leaves what applied rows have replaced to the sessions that have applied them.
    AppliedPilesUp,
    /// A load on a standby does not ask whether there is room.
    LoadFillsMemory,
    /// A standby forgets a prepared transaction of which it has passed over an image.
    PassedForgotten,
    /// A prepared transaction counts on a standby at the CSN of its PREPARE.
    CountsAtPrepare,
    /// A standby does not come back to what it has passed over when VACUUM has given the id up.
    OpenGivenUp,
    /// A standby takes an open prepared transaction that has committed as decided.
    OpenCounts,
    /// A load of a standby takes rows of an earlier life of the primary as older than all
    /// snapshots, also if their transaction was prepared, and open.
    OldCounts,
    /// A primary does not tell that other transactions are open at the same CSN.
    ListKept,
    /// A primary tells transactions of before its life that have changed definitions as others.
    DefinersTold,
    /// A load does not tick the clock.
    LoadKeepsClock,
    /// A load asks the files of the present which index is hollow, not those that are committed.
    FilesOfNow,
    /// A SERIALIZABLE transaction of a standby goes on after a promotion.
    AskedForgotten,
    /// A promotion does not end what uses snapshots of before.
    ReadersStay,
    /// A tombstone has the key of one index.
    OneTombKey,
    /// A load fills one index.
    OneIndexLoaded,
    /// A load enters the rows of prepared transactions in one index.
    OneKeyHeld,
    /// A standby enters a row in one index.
    OneKeyFollowed,
    /// A row is entered behind a rival.
    EntersBehind,
    /// Storages tell no CSN of their birth.
    BirthForgotten,
    /// They tell one from before their commit.
    BirthEarly,
    /// A round forgets that of a storage.
    BirthLost,
    /// A standby goes by the LSNs of pages, which those of a copied database have anew.
    CopiedIsNew,
}

#[cfg(feature = "faults")]
mod switch {
    use super::Fault;
    use mixedcc_engine::faults::{self, Fault as Engine};
    use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};
    use std::cell::Cell;
    use std::ffi::CString;

    const OURS: [(&str, Fault); 85] = [
        ("tid_looked_once", Fault::TidLookedOnce),
        ("upper_bound", Fault::UpperBound),
        ("descending_bounds", Fault::DescendingBounds),
        ("nulls_left_out", Fault::NullsLeftOut),
        ("null_marker", Fault::NullMarker),
        ("first_of_array", Fault::FirstOfArray),
        ("row_comparison", Fault::RowComparison),
        ("limit_too_little", Fault::LimitTooLittle),
        ("looks_beside_deferred", Fault::LooksBesideDeferred),
        ("answers_forgotten", Fault::AnswersForgotten),
        ("deferred_within", Fault::DeferredWithin),
        ("undone_forgotten", Fault::UndoneForgotten),
        ("moves_not_followed", Fault::MovesNotFollowed),
        ("written_by_column", Fault::WrittenByColumn),
        ("guess_unproved", Fault::GuessUnproved),
        ("whole_row_forgotten", Fault::WholeRowForgotten),
        ("list_forgotten", Fault::ListForgotten),
        ("conditions_forgotten", Fault::ConditionsForgotten),
        ("sets_forgotten", Fault::SetsForgotten),
        ("flush_left_out", Fault::FlushLeftOut),
        ("images_not_dirty", Fault::ImagesNotDirty),
        ("journal_not_dirty", Fault::JournalNotDirty),
        ("redo_makes_files", Fault::RedoMakesFiles),
        ("reserve_left_out", Fault::ReserveLeftOut),
        ("no_hold", Fault::NoHold),
        ("chain_forgotten", Fault::ChainForgotten),
        ("dead_unflushed", Fault::DeadUnflushed),
        ("pace_forgotten", Fault::PaceForgotten),
        ("lazy_forgotten", Fault::LazyForgotten),
        ("pin_kept", Fault::PinKept),
        ("made_left", Fault::MadeLeft),
        ("parts_forgotten", Fault::PartsForgotten),
        ("loaded_twice", Fault::LoadedTwice),
        ("large_is_empty", Fault::LargeIsEmpty),
        ("mixed_missed", Fault::MixedMissed),
        ("mixed_together", Fault::MixedTogether),
        ("mixed_torn", Fault::MixedTorn),
        ("mixed_crossed", Fault::MixedCrossed),
        ("mixed_reader", Fault::MixedReader),
        ("mixed_unmarked", Fault::MixedUnmarked),
        ("prepared_window_early", Fault::PreparedWindowEarly),
        ("prepared_stays_pending", Fault::PreparedStaysPending),
        ("not_asleep", Fault::NotAsleep),
        ("end_forgotten", Fault::EndForgotten),
        ("pending_homeless", Fault::PendingHomeless),
        ("ranges_forgotten", Fault::RangesForgotten),
        ("dozing_forgotten", Fault::DozingForgotten),
        ("keys_forgotten", Fault::KeysForgotten),
        ("makers_forgotten", Fault::MakersForgotten),
        ("leaves_dirty", Fault::LeavesDirty),
        ("kept_ignored", Fault::KeptIgnored),
        ("half_shown", Fault::HalfShown),
        ("old_key_left_out", Fault::OldKeyLeftOut),
        ("decodes_all", Fault::DecodesAll),
        ("copies_too_much", Fault::CopiesTooMuch),
        ("anchor_drags", Fault::AnchorDrags),
        ("page_skipped", Fault::PageSkipped),
        ("pieces_forgotten", Fault::PiecesForgotten),
        ("horizon_left_out", Fault::HorizonLeftOut),
        ("unload_forgotten", Fault::UnloadForgotten),
        ("moved_forgotten", Fault::MovedForgotten),
        ("low_forgotten", Fault::LowForgotten),
        ("later_forgotten", Fault::LaterForgotten),
        ("applied_piles_up", Fault::AppliedPilesUp),
        ("load_fills_memory", Fault::LoadFillsMemory),
        ("passed_forgotten", Fault::PassedForgotten),
        ("counts_at_prepare", Fault::CountsAtPrepare),
        ("open_given_up", Fault::OpenGivenUp),
        ("open_counts", Fault::OpenCounts),
        ("old_counts", Fault::OldCounts),
        ("list_kept", Fault::ListKept),
        ("definers_told", Fault::DefinersTold),
        ("load_keeps_clock", Fault::LoadKeepsClock),
        ("files_of_now", Fault::FilesOfNow),
        ("asked_forgotten", Fault::AskedForgotten),
        ("readers_stay", Fault::ReadersStay),
        ("one_tomb_key", Fault::OneTombKey),
        ("one_index_loaded", Fault::OneIndexLoaded),
        ("one_key_held", Fault::OneKeyHeld),
        ("one_key_followed", Fault::OneKeyFollowed),
        ("enters_behind", Fault::EntersBehind),
        ("birth_forgotten", Fault::BirthForgotten),
        ("birth_early", Fault::BirthEarly),
        ("birth_lost", Fault::BirthLost),
        ("copied_is_new", Fault::CopiedIsNew),
    ];
    const ENGINE: [(&str, Engine); 32] = [
        ("no_validation", Engine::NoValidation),
        ("late_csn", Engine::LateCsn),
        ("position_is_tail", Engine::PositionIsTail),
        ("slot_reused", Engine::SlotReused),
        ("preparing_is_active", Engine::PreparingIsActive),
        ("entry_reused", Engine::EntryReused),
        ("index_forgotten", Engine::IndexForgotten),
        ("limit_too_little", Engine::LimitTooLittle),
        ("no_mediation", Engine::NoMediation),
        ("look_before_committing", Engine::LookBeforeCommitting),
        ("window_opens_late", Engine::WindowOpensLate),
        ("window_closes_early", Engine::WindowClosesEarly),
        ("bits_before_mark", Engine::BitsBeforeMark),
        ("windows_not_awaited", Engine::WindowsNotAwaited),
        ("bit_cleared_after_look", Engine::BitClearedAfterLook),
        ("flag_cleared_last", Engine::FlagClearedLast),
        ("releases_blindly", Engine::ReleasesBlindly),
        ("releases_once", Engine::ReleasesOnce),
        ("pending_left_out", Engine::PendingLeftOut),
        ("freed_forgotten", Engine::FreedForgotten),
        ("journal_forgotten", Engine::JournalForgotten),
        ("intervals_mixed", Engine::IntervalsMixed),
        ("stable_too_large", Engine::StableTooLarge),
        ("stable_at_prepared", Engine::StableAtPrepared),
        ("decided_early", Engine::DecidedEarly),
        ("logged_forgotten_late", Engine::LoggedForgottenLate),
        ("ends_forgotten", Engine::EndsForgotten),
        ("ended_listed", Engine::EndedListed),
        ("rests_forgetfully", Engine::RestsForgetfully),
        ("key_look_forgotten", Engine::KeyLookForgotten),
        ("sweeps_one_index", Engine::SweepsOneIndex),
        ("undoes_one_entry", Engine::UndoesOneEntry),
    ];

    static NAME: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);

    thread_local! {
        static ON: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// Defines the setting.
    pub fn init() {
        GucRegistry::define_string_guc(
            c"mixedcc.fault",
            c"A deliberate fault, from the session's next transaction, or the companion's next pass on.",
            c"In test builds only.",
            &NAME,
            GucContext::Userset,
            GucFlags::default(),
        );
    }

    /// A transaction, a load, a pass of the companion, or replay begins: puts the setting in use.
    pub fn begin() {
        let name = NAME.get();
        let name = name.as_deref().and_then(|n| n.to_str().ok()).unwrap_or("");
        let ours = OURS.iter().find(|f| f.0 == name).map(|f| f.1);
        let engine = ENGINE.iter().find(|f| f.0 == name).map(|f| f.1);
        if !name.is_empty() && ours.is_none() && engine.is_none() {
            pgrx::error!("mixedcc has no fault \"{name}\"");
        }
        ON.set(ours);
        faults::set(engine);
    }

    /// Is the fault on?
    pub fn on(f: Fault) -> bool {
        ON.get() == Some(f)
    }
}
#[cfg(feature = "faults")]
pub use switch::{begin, init, on};

/// Is the fault on?
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub const fn on(_: Fault) -> bool {
    false
}
