/*
 * TPC-C's payment as one call (clause 2.5), by the customer's number: the statements of the function payment_sql of
 * mixedcc_examples.sql, on the tables that it makes.
 */
#include "mixedcc.h"

#include "catalog/namespace.h"
#include "catalog/pg_type_d.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/numeric.h"

PG_FUNCTION_INFO_V1(mixedcc_example_payment);

/* The tables, once opened; their columns in the order of these lists. */
static MixedccTable *warehouse;
static MixedccTable *district;
static MixedccTable *customer;
static MixedccTable *history;

/* What a payment changes in a row, and what it wants to know of it. */
typedef struct Payment
{
	Datum		amount;
	char	   *name;
	Numeric		balance;
} Payment;

static void
open_tables(const MixedccNative *native)
{
	static const Oid keys[] = {INT4OID, INT4OID, INT4OID};
	static const Oid serial[] = {INT8OID};
	static const MixedccColumn of_warehouse[] = {{"w_ytd", NUMERICOID}, {"w_name", VARCHAROID}};
	static const MixedccColumn of_district[] = {{"d_ytd", NUMERICOID}, {"d_name", VARCHAROID}};
	static const MixedccColumn of_customer[] = {
		{"c_balance", NUMERICOID}, {"c_ytd_payment", NUMERICOID}, {"c_payment_cnt", INT4OID}
	};
	static const MixedccColumn of_history[] = {
		{"h_id", INT8OID}, {"h_c_id", INT4OID}, {"h_c_d_id", INT4OID}, {"h_c_w_id", INT4OID},
		{"h_d_id", INT4OID}, {"h_w_id", INT4OID}, {"h_amount", NUMERICOID}, {"h_data", VARCHAROID}
	};

	if (history != NULL)
		return;
#define OPEN(name, n, types) \
	native->open(RelnameGetRelid(#name), n, types, lengthof(of_##name), of_##name)
	/* An error leaves some of them open, and the next call goes on. */
	if (warehouse == NULL)
		warehouse = OPEN(warehouse, 1, keys);
	if (district == NULL)
		district = OPEN(district, 2, keys);
	if (customer == NULL)
		customer = OPEN(customer, 3, keys);
	history = OPEN(history, 1, serial);
#undef OPEN
}

static Datum
plus(Datum a, Datum b)
{
	return DirectFunctionCall2(numeric_add, a, b);
}

static bool
add_to_year(void *arg, Datum *values, bool *isnull)
{
	Payment    *p = arg;

	values[0] = plus(values[0], p->amount);
	p->name = TextDatumGetCString(values[1]);
	return true;
}

static bool
pay(void *arg, Datum *values, bool *isnull)
{
	Payment    *p = arg;

	values[0] = DirectFunctionCall2(numeric_sub, values[0], p->amount);
	values[1] = plus(values[1], p->amount);
	values[2] = Int32GetDatum(DatumGetInt32(values[2]) + 1);
	p->balance = DatumGetNumericCopy(values[0]);
	return true;
}

static void
must_be_there(bool found, const char *what)
{
	if (!found)
		ereport(ERROR,
				(errcode(ERRCODE_NO_DATA_FOUND),
				 errmsg("there is no such %s", what)));
}

/* payment(h_id bigint, w_id int, d_id int, c_id int, amount numeric): the customer's balance. */
Datum
mixedcc_example_payment(PG_FUNCTION_ARGS)
{
	const MixedccNative *native = mixedcc_native();
	Payment		to_warehouse = {PG_GETARG_DATUM(4)};
	Payment		to_district = {PG_GETARG_DATUM(4)};
	Payment		by_customer = {PG_GETARG_DATUM(4)};
	Datum		key[] = {PG_GETARG_DATUM(1), PG_GETARG_DATUM(2), PG_GETARG_DATUM(3)};
	Datum		row[8];
	bool		isnull[8] = {false};
	char	   *data;

	open_tables(native);
	must_be_there(native->modify(warehouse, key, add_to_year, &to_warehouse), "warehouse");
	must_be_there(native->modify(district, key, add_to_year, &to_district), "district");
	must_be_there(native->modify(customer, key, pay, &by_customer), "customer");
	data = psprintf("%s    %s", to_warehouse.name, to_district.name);
	row[0] = PG_GETARG_DATUM(0);
	row[1] = key[2];
	row[2] = row[4] = key[1];
	row[3] = row[5] = key[0];
	row[6] = PG_GETARG_DATUM(4);
	row[7] = CStringGetTextDatum(data);
	native->insert(history, row, isnull);
	PG_RETURN_NUMERIC(by_customer.balance);
}
