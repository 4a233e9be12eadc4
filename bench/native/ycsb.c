/*
 * YCSB as one call: reads and updates by key of the table `item` of the search path, with the keys that the functions of
 * bench/sql/functions.sql draw, so that both can be compared.
 */
#include "mixedcc.h"

#include "catalog/namespace.h"
#include "catalog/pg_type_d.h"
#include "nodes/makefuncs.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(mixedcc_example_nothing);
PG_FUNCTION_INFO_V1(mixedcc_example_read20);
PG_FUNCTION_INFO_V1(mixedcc_example_read10_update10);

/* Lehmer's generator. */
static int64
next_state(int64 state)
{
	return state * 48271 % 2147483647;
}

static MixedccTable *
open_item(const MixedccNative *native)
{
	static MixedccTable *item;
	static Oid	opened;
	static const Oid key[] = {INT4OID};
	static const MixedccColumn columns[] = {{"value", INT4OID}};
	Oid			oid = RelnameGetRelid("item");

	if (!OidIsValid(oid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("there is no table \"item\" in the search path")));
	if (oid != opened)
	{
		if (item != NULL)
			native->release(item);
		item = NULL;
		opened = InvalidOid;
		item = native->open(oid, lengthof(key), key, lengthof(columns), columns);
		opened = oid;
	}
	return item;
}

static bool
add_one(void *arg, Datum *values, bool *isnull)
{
	values[0] = Int32GetDatum(DatumGetInt32(values[0]) + 1);
	return true;
}

/* Each step reads a row, and updates another one. */
static int64
run(int64 state, int32 row_count, int32 steps, bool updates)
{
	const MixedccNative *native = mixedcc_native();
	MixedccTable *item = open_item(native);
	int64		total = 0;

	for (int32 i = 0; i < steps; i++)
	{
		Datum		key;
		Datum		value;
		bool		isnull;

		state = next_state(state);
		key = Int32GetDatum((int32) (1 + state % row_count));
		if (native->get(item, &key, &value, &isnull))
			total += DatumGetInt32(value);
		if (updates)
		{
			state = next_state(state);
			key = Int32GetDatum((int32) (1 + state % row_count));
			native->modify(item, &key, add_one, NULL);
		}
	}
	return total;
}

/* read20(seed bigint, row_count int) */
Datum
mixedcc_example_read20(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(run(PG_GETARG_INT64(0), PG_GETARG_INT32(1), 20, false));
}

/* read10_update10(seed bigint, row_count int) */
Datum
mixedcc_example_read10_update10(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(run(PG_GETARG_INT64(0), PG_GETARG_INT32(1), 10, true));
}

/* nothing(...): 1. What calling a function costs, for bench/instructions. */
Datum
mixedcc_example_nothing(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(1);
}
