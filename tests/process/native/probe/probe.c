/*
 * Each function of mixedcc's interface as an SQL function, for tables (k int PRIMARY KEY, l bigint[]), or (k, a int, b bigint) where
 * columns of fixed width are changed; and what a caller may do wrong, or meet, in the middle.
 */
#include "mixedcc.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type_d.h"
#include "executor/tuptable.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(probe_open);
PG_FUNCTION_INFO_V1(probe_version);
PG_FUNCTION_INFO_V1(probe_get);
PG_FUNCTION_INFO_V1(probe_append);
PG_FUNCTION_INFO_V1(probe_set);
PG_FUNCTION_INFO_V1(probe_insert);
PG_FUNCTION_INFO_V1(probe_remove);
PG_FUNCTION_INFO_V1(probe_scan);
PG_FUNCTION_INFO_V1(probe_subtransaction);
PG_FUNCTION_INFO_V1(probe_nested);
PG_FUNCTION_INFO_V1(probe_loop);
PG_FUNCTION_INFO_V1(probe_change);
PG_FUNCTION_INFO_V1(probe_put);
PG_FUNCTION_INFO_V1(probe_dirty);
PG_FUNCTION_INFO_V1(probe_at_commit);

/* Opened tables, which are kept over transactions. */
#define KEPT 16
static Oid	kept_oids[KEPT];
static MixedccTable *kept[KEPT];

static MixedccTable *
table(Oid oid)
{
	static const Oid key[] = {INT4OID};
	static const MixedccColumn columns[] = {{"l", INT8ARRAYOID}, {"k", INT4OID}};
	static int	next = 0;
	int			i;

	for (i = 0; i < KEPT; i++)
		if (kept[i] != NULL && kept_oids[i] == oid)
			return kept[i];
	i = next++ % KEPT;
	if (kept[i] != NULL)
		mixedcc_native()->release(kept[i]);
	kept[i] = NULL;
	kept[i] = mixedcc_native()->open(oid, 1, key, 2, columns);
	kept_oids[i] = oid;
	return kept[i];
}

/* The same without the key, whose columns an UPDATE would move. */
static MixedccTable *
list_of(Oid oid)
{
	static const Oid key[] = {INT4OID};
	static const MixedccColumn columns[] = {{"l", INT8ARRAYOID}};

	return mixedcc_native()->open(oid, 1, key, 1, columns);
}

/* probe_open(regclass, key regtype[], names text[], types regtype[]) */
Datum
probe_open(PG_FUNCTION_ARGS)
{
	Datum	   *keys, *names, *types;
	Oid			key_types[INDEX_MAX_KEYS];
	MixedccColumn columns[32];
	int			nkeys, n, ntypes;

	deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), REGTYPEOID, 4, true, TYPALIGN_INT, &keys, NULL, &nkeys);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(2), TEXTOID, -1, false, TYPALIGN_INT, &names, NULL, &n);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(3), REGTYPEOID, 4, true, TYPALIGN_INT, &types, NULL, &ntypes);
	for (int i = 0; i < nkeys; i++)
		key_types[i] = DatumGetObjectId(keys[i]);
	for (int i = 0; i < n; i++)
	{
		columns[i].name = TextDatumGetCString(names[i]);
		columns[i].type = DatumGetObjectId(types[i]);
	}
	mixedcc_native()->release(mixedcc_native()->open(PG_GETARG_OID(0), nkeys, key_types, n, columns));
	PG_RETURN_VOID();
}

/* probe_version(major int, minor int, size int): as if mixedcc had these; major 0: as if it was not loaded. */
Datum
probe_version(PG_FUNCTION_ARGS)
{
	void	  **variable = find_rendezvous_variable(MIXEDCC_NATIVE_VARIABLE);
	void	   *real = *variable;
	MixedccNative other = *(const MixedccNative *) real;

	other.major = PG_GETARG_INT32(0);
	other.minor = PG_GETARG_INT32(1);
	other.size = other.size + PG_GETARG_INT32(2);
	*variable = other.major == 0 ? NULL : &other;
	PG_TRY();
	{
		mixedcc_native();
	}
	PG_FINALLY();
	{
		*variable = real;
	}
	PG_END_TRY();
	PG_RETURN_BOOL(true);
}

Datum
probe_get(PG_FUNCTION_ARGS)
{
	MixedccTable *t = table(PG_GETARG_OID(0));
	Datum		key = PG_GETARG_DATUM(1);
	Datum		values[2];
	bool		isnull[2];

	if (!mixedcc_native()->get(t, &key, values, isnull) || isnull[0])
		PG_RETURN_NULL();
	if (DatumGetInt32(values[1]) != DatumGetInt32(key))
		elog(ERROR, "another key");
	PG_RETURN_DATUM(PointerGetDatum(PG_DETOAST_DATUM_COPY(values[0])));
}

/* What probe_append wants, and gets. */
typedef struct Appending
{
	int64		value;
	Datum		list;
	Oid			fails;
	int			calls;
} Appending;

static bool
append(void *arg, Datum *values, bool *isnull)
{
	Appending	   *a = arg;
	ArrayType  *old = isnull[0] ? construct_empty_array(INT8OID) : DatumGetArrayTypeP(values[0]);
	Datum	   *items;
	int			n;

	a->calls++;
	if (a->fails)
		ereport(ERROR,
				(errcode(ERRCODE_RAISE_EXCEPTION),
				 errmsg("the caller's function failed")));
	deconstruct_array(old, INT8OID, 8, true, TYPALIGN_DOUBLE, &items, NULL, &n);
	items = n == 0 ? palloc(sizeof(Datum)) : repalloc(items, (n + 1) * sizeof(Datum));
	items[n] = Int64GetDatum(a->value);
	values[0] = PointerGetDatum(construct_array(items, n + 1, INT8OID, 8, true, TYPALIGN_DOUBLE));
	isnull[0] = false;
	a->list = values[0];
	return a->value != 0;
}

/* probe_append(regclass, k int, value bigint, fails boolean): the new list, or null; value 0: the row stays. */
Datum
probe_append(PG_FUNCTION_ARGS)
{
	MixedccTable *t = list_of(PG_GETARG_OID(0));
	Datum		key = PG_GETARG_DATUM(1);
	Appending		a = {PG_GETARG_INT64(2), 0, PG_GETARG_BOOL(3), 0};
	bool		found;

	found = mixedcc_native()->modify(t, &key, append, &a);
	mixedcc_native()->release(t);
	if (!found)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(a.list);
}

Datum
probe_set(PG_FUNCTION_ARGS)
{
	MixedccTable *t = list_of(PG_GETARG_OID(0));
	Datum		key = PG_GETARG_DATUM(1);
	Datum		value = PG_ARGISNULL(2) ? (Datum) 0 : PG_GETARG_DATUM(2);
	bool		isnull = PG_ARGISNULL(2);
	bool		found;

	found = mixedcc_native()->update(t, &key, &value, &isnull);
	mixedcc_native()->release(t);
	PG_RETURN_BOOL(found);
}

Datum
probe_insert(PG_FUNCTION_ARGS)
{
	Datum		values[] = {PG_ARGISNULL(2) ? (Datum) 0 : PG_GETARG_DATUM(2), PG_ARGISNULL(1) ? (Datum) 0 : PG_GETARG_DATUM(1)};
	bool		isnull[] = {PG_ARGISNULL(2), PG_ARGISNULL(1)};

	mixedcc_native()->insert(table(PG_GETARG_OID(0)), values, isnull);
	PG_RETURN_VOID();
}

Datum
probe_remove(PG_FUNCTION_ARGS)
{
	Datum		key = PG_GETARG_DATUM(1);

	PG_RETURN_BOOL(mixedcc_native()->remove(table(PG_GETARG_OID(0)), &key));
}

typedef struct Visit
{
	StringInfoData text;
	Oid			table;
	int			stop;
	int64		append;
} Visit;

static bool
visit(void *arg, const Datum *values, const bool *isnull)
{
	Visit	   *v = arg;
	bool		varlena;
	Oid			out;

	getTypeOutputInfo(INT8ARRAYOID, &out, &varlena);
	appendStringInfo(&v->text, "%d %s\n", DatumGetInt32(values[1]),
					 isnull[0] ? "-" : OidOutputFunctionCall(out, values[0]));
	if (v->append)
	{
		MixedccTable *t = list_of(v->table);
		Appending		a = {v->append, 0, false, 0};
		Datum		key = values[1];

		if (!mixedcc_native()->modify(t, &key, append, &a))
			elog(ERROR, "a row that is visited is gone");
		mixedcc_native()->release(t);
	}
	return --v->stop != 0;
}

/* probe_scan(regclass, low int, high int, excluded boolean, descending boolean, max bigint, stop int, append bigint): rows as lines */
Datum
probe_scan(PG_FUNCTION_ARGS)
{
	Visit		v = {.table = PG_GETARG_OID(0), .stop = PG_GETARG_INT32(6), .append = PG_GETARG_INT64(7)};
	Datum		low = PG_ARGISNULL(1) ? (Datum) 0 : PG_GETARG_DATUM(1);
	Datum		high = PG_ARGISNULL(2) ? (Datum) 0 : PG_GETARG_DATUM(2);
	MixedccRange range = {
		.lower = PG_ARGISNULL(1) ? NULL : &low,
		.upper = PG_ARGISNULL(2) ? NULL : &high,
		.lower_excluded = PG_GETARG_BOOL(3),
		.upper_excluded = PG_GETARG_BOOL(3),
		.descending = PG_GETARG_BOOL(4),
		.limit = PG_GETARG_INT64(5)
	};
	uint64		n;

	initStringInfo(&v.text);
	n = mixedcc_native()->scan(table(v.table), &range, visit, &v);
	appendStringInfo(&v.text, "%d", (int) n);
	PG_RETURN_TEXT_P(cstring_to_text(v.text.data));
}

/* probe_subtransaction(regclass, k int, value bigint, fails boolean): appends in a subtransaction that is rolled back; the list after it. */
Datum
probe_subtransaction(PG_FUNCTION_ARGS)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		Appending		a = {PG_GETARG_INT64(2), 0, PG_GETARG_BOOL(3), 0};
		Datum		key = PG_GETARG_DATUM(1);

		mixedcc_native()->modify(list_of(PG_GETARG_OID(0)), &key, append, &a);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		FlushErrorState();
	}
	PG_END_TRY();
	RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return probe_get(fcinfo);
}

/* What probe_nested's function does with another row. */
static bool
nested(void *arg, Datum *values, bool *isnull)
{
	Visit	   *v = arg;
	Appending		a = {v->append, 0, false, 0};
	Datum		key = Int32GetDatum(v->stop);

	mixedcc_native()->modify(list_of(v->table), &key, append, &a);
	return append(&a, values, isnull);
}

/* probe_nested(regclass, k int, value bigint, other int): appends to a row from within the change of another one. */
Datum
probe_nested(PG_FUNCTION_ARGS)
{
	Visit		v = {.table = PG_GETARG_OID(0), .stop = PG_GETARG_INT32(3), .append = PG_GETARG_INT64(2)};
	Datum		key = PG_GETARG_DATUM(1);

	PG_RETURN_BOOL(mixedcc_native()->modify(list_of(v.table), &key, nested, &v));
}

/* probe_loop(regclass, k int): reads a row for ever. */
Datum
probe_loop(PG_FUNCTION_ARGS)
{
	MixedccTable *t = table(PG_GETARG_OID(0));
	Datum		key = PG_GETARG_DATUM(1);
	Datum		values[2];
	bool		isnull[2];

	for (;;)
		mixedcc_native()->get(t, &key, values, isnull);
	PG_RETURN_VOID();
}

/* The columns a int, b bigint of a table with the key k int. */
static MixedccTable *
numbers_of(Oid oid)
{
	static const Oid key[] = {INT4OID};
	static const MixedccColumn columns[] = {{"a", INT4OID}, {"b", INT8OID}};

	return mixedcc_native()->open(oid, 1, key, 2, columns);
}

/* What probe_change adds; NULL makes NULL. */
typedef struct Change
{
	int32		a;
	int64		b;
	bool		isnull[2];
	char	   *sql;
} Change;

static bool
change(void *arg, Datum *values, bool *isnull)
{
	Change	   *c = arg;

	if (c->sql != NULL)
	{
		SPI_connect();
		if (SPI_execute(c->sql, false, 0) < 0)
			elog(ERROR, "the statement failed");
		SPI_finish();
	}
	if (c->isnull[0] && c->isnull[1] && c->sql != NULL)
		return false;
	values[0] = Int32GetDatum((isnull[0] ? 0 : DatumGetInt32(values[0])) + c->a);
	values[1] = Int64GetDatum((isnull[1] ? 0 : DatumGetInt64(values[1])) + c->b);
	isnull[0] = c->isnull[0];
	isnull[1] = c->isnull[1];
	return true;
}

/*
 * probe_change(regclass, k int, a int, b bigint, sql text): adds to both columns, after running a statement in the middle if there is
 * one; two NULLs with a statement leave the row as it is.
 */
Datum
probe_change(PG_FUNCTION_ARGS)
{
	MixedccTable *t = numbers_of(PG_GETARG_OID(0));
	Datum		key = PG_GETARG_DATUM(1);
	Change		c = {
		.a = PG_ARGISNULL(2) ? 0 : PG_GETARG_INT32(2),
		.b = PG_ARGISNULL(3) ? 0 : PG_GETARG_INT64(3),
		.isnull = {PG_ARGISNULL(2), PG_ARGISNULL(3)},
		.sql = PG_ARGISNULL(4) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(4))
	};
	bool		found = mixedcc_native()->modify(t, &key, change, &c);

	mixedcc_native()->release(t);
	PG_RETURN_BOOL(found);
}

/* probe_put(regclass, k int, a int, b bigint) */
Datum
probe_put(PG_FUNCTION_ARGS)
{
	MixedccTable *t = numbers_of(PG_GETARG_OID(0));
	Datum		key = PG_GETARG_DATUM(1);
	Datum		values[] = {PG_ARGISNULL(2) ? (Datum) 0 : PG_GETARG_DATUM(2), PG_ARGISNULL(3) ? (Datum) 0 : PG_GETARG_DATUM(3)};
	bool		isnull[] = {PG_ARGISNULL(2), PG_ARGISNULL(3)};
	bool		found = mixedcc_native()->update(t, &key, values, isnull);

	mixedcc_native()->release(t);
	PG_RETURN_BOOL(found);
}

/* probe_dirty(regclass): the rows that a scan with a dirty snapshot sees, as logical replication scans tables without a key */
Datum
probe_dirty(PG_FUNCTION_ARGS)
{
	Relation	rel = table_open(PG_GETARG_OID(0), AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	SnapshotData dirty;
	TableScanDesc scan;
	int64		n = 0;

	InitDirtySnapshot(dirty);
	scan = table_beginscan(rel, &dirty, 0, NULL);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
		n++;
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, NoLock);
	PG_RETURN_INT64(n);
}

static char *at_commit = NULL;

static void
commits(XactEvent event, void *arg)
{
	char	   *sql = at_commit;

	if (sql == NULL)
		return;
	at_commit = NULL;
	if (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_PRE_PREPARE)
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		SPI_connect();
		SPI_execute(sql, false, 0);
		SPI_finish();
		PopActiveSnapshot();
	}
	pfree(sql);
}

/* probe_at_commit(sql text): runs a statement in a callback of this transaction's commit or PREPARE, as a foreign data wrapper might */
Datum
probe_at_commit(PG_FUNCTION_ARGS)
{
	static bool registered = false;

	if (!registered)
		RegisterXactCallback(commits, NULL);
	registered = true;
	at_commit = MemoryContextStrdup(TopMemoryContext, text_to_cstring(PG_GETARG_TEXT_PP(0)));
	PG_RETURN_VOID();
}
