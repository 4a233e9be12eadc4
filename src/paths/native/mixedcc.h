/*
 * mixedcc.h: rows of mixedcc tables by their primary key, for other extensions.
 *
 * A function of another extension gets the interface by mixedcc_native(), opens a table once, and then reads and writes rows in
 * the PostgreSQL transaction that it runs in. Each call does what one SQL statement would, as the comments say: at the transaction's
 * isolation level, with its locks, waits and errors (40001, 40P01, 23505, 23502, 42501, 57014 ...). What a statement would do besides
 * (triggers, constraints, policies, generated columns, rights on single columns) is done too: then the call runs the statement.
 *
 * Versions. `major` is another one when something here changes its meaning or place; functions that are added come last and raise
 * `minor`. Code that was compiled with this header runs with any mixedcc of the same major version whose minor one is not smaller;
 * mixedcc_native() sees to that. As all of PostgreSQL's interfaces for C this one belongs to one major version of the server.
 *
 * Where. In a backend, in a transaction, with an active snapshot: in an SQL function, or between PushActiveSnapshot and
 * PopActiveSnapshot. Not in parallel workers, and not from other threads: a backend has one.
 *
 * Statements. A call sees what the transaction did before it. At READ COMMITTED its snapshot is the active one, as for a statement of
 * a STABLE function; a caller who wants a new one pushes it (PushActiveSnapshot(GetTransactionSnapshot())). What a call changes is
 * the newest row, as with UPDATE. At the other levels all calls see the transaction's moment.
 *
 * Errors are PostgreSQL's: a call that fails does not return (ereport). Let the error pass: who catches it (PG_TRY) must either throw
 * it again or roll back a subtransaction that was begun before the call. Locks, pins and buffered writes go with the (sub)transaction.
 * No call holds a latch, a spinlock or a buffer while it waits or runs functions of others, so these may raise errors too. Long
 * functions are interrupted (cancel, timeouts) in any of these calls.
 *
 * Rights are those of the current user (SECURITY DEFINER counts), on the whole table or on the columns, as for the statement.
 *
 * Values that are passed by reference and were read last until the function that was called from SQL returns, or a subtransaction in
 * which the row was written is rolled back; use datumCopy for longer. They may be compressed (PG_DETOAST_DATUM), and must not be
 * changed. Values that are written are copied.
 *
 * What other extensions see: a call is no statement; pg_stat_statements, auto_explain and ExecutorRun_hook do not see it, unless it runs
 * one. With an ExecutorCheckPerms_hook every call runs its statement.
 */
#ifndef MIXEDCC_H
#define MIXEDCC_H

#include "postgres.h"

#include "access/attnum.h"
#include "fmgr.h"

#define MIXEDCC_NATIVE_MAJOR 1
#define MIXEDCC_NATIVE_MINOR 0
#define MIXEDCC_NATIVE_VARIABLE "mixedcc_native"

/* A table as a caller uses it: its key and some columns. Lives until it is released, or the backend ends. */
typedef struct MixedccTable MixedccTable;

/* A column by its name, and the type that the caller's values have: the type of the column, domains not looked through. */
typedef struct MixedccColumn
{
	const char *name;
	Oid			type;
} MixedccColumn;

/* Rows whose key's first columns equal `equal`, and whose next one is within bounds. */
typedef struct MixedccRange
{
	int32		nequal;			/* 0: no column */
	const Datum *equal;
	const Datum *lower;			/* NULL: none */
	const Datum *upper;			/* NULL: none */
	bool		lower_excluded;
	bool		upper_excluded;
	bool		descending;		/* in the opposite order of the key */
	uint64		limit;			/* 0: all */
} MixedccRange;

/*
 * Changes the values of a row's columns in place; false: the row stays as it is. It may be called a second time, with newer values, if
 * another transaction has changed the row in between (at READ COMMITTED). It may use the interface, and run statements; but if it has
 * written this row itself and does not return false, the call fails with SQLSTATE 27000, as an UPDATE does whose functions have
 * updated its row.
 */
typedef bool (*MixedccModify) (void *arg, Datum *values, bool *isnull);

/* Looks at a row's columns, which last until it returns; false: no more rows. It may use the interface. */
typedef bool (*MixedccVisit) (void *arg, const Datum *values, const bool *isnull);

typedef struct MixedccNative
{
	uint16		major;
	uint16		minor;
	uint32		size;			/* bytes of this struct */

	/*
	 * Opens a table: the types of its primary key's columns, in the key's order, and the columns that are read and written. The
	 * definition is compared now, and again before the first call after it has changed: 42P01 (XX000 by OID) no table, 42809 not of
	 * mixedcc, 55000 no primary key, 22023 another number of columns of the key, 42703 no such column, 42804 another type. Keep what
	 * it returns, also over transactions: calls lock the table as statements do (ACCESS SHARE, or ROW EXCLUSIVE to write), to the end
	 * of the transaction. Arrays and names are copied.
	 */
	MixedccTable *(*open) (Oid table, int32 nkeys, const Oid *keytypes, int32 ncolumns, const MixedccColumn *columns);
	void		(*release) (MixedccTable *t);

	/* Keys have a value, not NULL, for each column of the key; values and isnull an entry for each column of the table as opened. */

	/* SELECT columns FROM t WHERE key; false: there is no such row */
	bool		(*get) (MixedccTable *t, const Datum *key, Datum *values, bool *isnull);
	/* UPDATE t SET columns = values WHERE key; false: there is no such row */
	bool		(*update) (MixedccTable *t, const Datum *key, const Datum *values, const bool *isnull);
	/*
	 * the same with values that are computed from the row's: UPDATE t SET column = column + 1 WHERE key. If f has written
	 * the row itself: 27000
	 */
	bool		(*modify) (MixedccTable *t, const Datum *key, MixedccModify f, void *arg);
	/* INSERT INTO t (columns) VALUES (values) */
	void		(*insert) (MixedccTable *t, const Datum *values, const bool *isnull);
	/* DELETE FROM t WHERE key; false: there is no such row */
	bool		(*remove) (MixedccTable *t, const Datum *key);
	/* SELECT columns FROM t WHERE range ORDER BY key LIMIT limit; how many rows were visited */
	uint64		(*scan) (MixedccTable *t, const MixedccRange *range, MixedccVisit f, void *arg);
} MixedccNative;

/* The interface, or an error: mixedcc is not there, or of another version. */
static inline const MixedccNative *
mixedcc_native(void)
{
	const MixedccNative *native = *(const MixedccNative **) find_rendezvous_variable(MIXEDCC_NATIVE_VARIABLE);

	if (native == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("mixedcc is not loaded"),
				 errhint("Add mixedcc to shared_preload_libraries in postgresql.conf and restart the server.")));
	if (native->major != MIXEDCC_NATIVE_MAJOR || native->minor < MIXEDCC_NATIVE_MINOR || native->size < sizeof(MixedccNative))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("mixedcc has version %u.%u of its native interface, and version %u.%u is needed",
						native->major, native->minor, MIXEDCC_NATIVE_MAJOR, MIXEDCC_NATIVE_MINOR),
				 errhint("Build the extension with the header of this mixedcc.")));
	return native;
}

#endif							/* MIXEDCC_H */
