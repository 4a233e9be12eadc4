/*
 * Counts what a library sees of a session's statements that audits them, as pgaudit does: starts in the executor, and checks of rights
 * on tables of users.
 */
#include "postgres.h"

#include "access/transam.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "nodes/parsenodes.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(probe_starts);
PG_FUNCTION_INFO_V1(probe_checks);

void		_PG_init(void);

static ExecutorStart_hook_type prev_start;
static ExecutorCheckPerms_hook_type prev_check;
static int32 starts;
static int32 checks;

static void
start(QueryDesc *query, int eflags)
{
	starts++;
	if (prev_start)
		prev_start(query, eflags);
	else
		standard_ExecutorStart(query, eflags);
}

#if PG_VERSION_NUM >= 160000
static bool
check(List *rtable, List *rights, bool abort)
#else
static bool
check(List *rtable, bool abort)
#endif
{
	ListCell   *cell;

	foreach(cell, rtable)
	{
		RangeTblEntry *entry = lfirst_node(RangeTblEntry, cell);

		if (entry->rtekind == RTE_RELATION && entry->relid >= FirstNormalObjectId)
			checks++;
	}
#if PG_VERSION_NUM >= 160000
	return prev_check == NULL || prev_check(rtable, rights, abort);
#else
	return prev_check == NULL || prev_check(rtable, abort);
#endif
}

Datum
probe_starts(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(starts);
}

Datum
probe_checks(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(checks);
}

void
_PG_init(void)
{
	prev_start = ExecutorStart_hook;
	ExecutorStart_hook = start;
	prev_check = ExecutorCheckPerms_hook;
	ExecutorCheckPerms_hook = check;
}
