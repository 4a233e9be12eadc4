/*
 * An index access method for one int4 column that reads its entries by their distance from a value, as the indexes of pgvector
 * do, or those equal to it; and like these it insists on an MVCC snapshot. Entries lie in pages in order of arrival.
 */
#include "postgres.h"

#include "access/amapi.h"
#include "access/generic_xlog.h"
#include "access/relscan.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "commands/vacuum.h"
#include "fmgr.h"
#include "nodes/execnodes.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "nodes/tidbitmap.h"
#include "utils/float.h"
#include "utils/rel.h"
#include "utils/selfuncs.h"
#include "utils/snapmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(insists_handler);
PG_FUNCTION_INFO_V1(insists_distance);

typedef struct
{
	ItemPointerData tid;
	int32		key;
} Entry;

typedef struct
{
	Entry	   *entries;
	int			n;
	int			next;
	int32		from;
} Near;

Datum
insists_distance(PG_FUNCTION_ARGS)
{
	PG_RETURN_FLOAT8(fabs((float8) PG_GETARG_INT32(0) - (float8) PG_GETARG_INT32(1)));
}

static void
add(Relation index, Datum key, ItemPointer tid)
{
	Entry		e = {*tid, DatumGetInt32(key)};
	BlockNumber last;
	Buffer		buffer;

	LockRelationForExtension(index, ExclusiveLock);
	last = RelationGetNumberOfBlocks(index);
	buffer = ReadBuffer(index, last == 0 ? P_NEW : last - 1);
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	if (last == 0)
		PageInit(BufferGetPage(buffer), BLCKSZ, 0);
	else if (PageGetFreeSpace(BufferGetPage(buffer)) < MAXALIGN(sizeof(e)))
	{
		UnlockReleaseBuffer(buffer);
		buffer = ReadBuffer(index, P_NEW);
		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
		PageInit(BufferGetPage(buffer), BLCKSZ, 0);
	}
	if (PageAddItem(BufferGetPage(buffer), (Item) &e, sizeof(e), InvalidOffsetNumber, false, false) == InvalidOffsetNumber)
		elog(ERROR, "no room for an entry");
	MarkBufferDirty(buffer);
	UnlockReleaseBuffer(buffer);
	UnlockRelationForExtension(index, ExclusiveLock);
}

static bool
insists_insert(Relation index, Datum *values, bool *isnull, ItemPointer tid, Relation heap, IndexUniqueCheck check,
			   bool unchanged, IndexInfo *info)
{
	if (!isnull[0])
		add(index, values[0], tid);
	return false;
}

static void
built(Relation index, ItemPointer tid, Datum *values, bool *isnull, bool alive, void *state)
{
	if (!isnull[0])
		add(index, values[0], tid);
}

static IndexBuildResult *
insists_build(Relation heap, Relation index, IndexInfo *info)
{
	IndexBuildResult *result = palloc0(sizeof(IndexBuildResult));

	result->heap_tuples = table_index_build_scan(heap, index, info, true, false, built, NULL, NULL);
	result->index_tuples = result->heap_tuples;
	return result;
}

static void
insists_buildempty(Relation index)
{
}

static IndexBulkDeleteResult *
insists_bulkdelete(IndexVacuumInfo *info, IndexBulkDeleteResult *stats, IndexBulkDeleteCallback dead, void *state)
{
	BlockNumber n = RelationGetNumberOfBlocks(info->index);

	if (stats == NULL)
		stats = palloc0(sizeof(*stats));
	for (BlockNumber b = 0; b < n; b++)
	{
		Buffer		buffer = ReadBuffer(info->index, b);
		OffsetNumber gone[MaxOffsetNumber];
		int			ngone = 0;
		Page		page = BufferGetPage(buffer);

		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
		for (OffsetNumber i = 1; i <= PageGetMaxOffsetNumber(page); i++)
			if (dead(&((Entry *) PageGetItem(page, PageGetItemId(page, i)))->tid, state))
				gone[ngone++] = i;
		PageIndexMultiDelete(page, gone, ngone);
		MarkBufferDirty(buffer);
		UnlockReleaseBuffer(buffer);
		stats->tuples_removed += ngone;
	}
	return stats;
}

static IndexBulkDeleteResult *
insists_cleanup(IndexVacuumInfo *info, IndexBulkDeleteResult *stats)
{
	return stats;
}

static void
insists_cost(PlannerInfo *root, IndexPath *path, double loops, Cost *startup, Cost *total, Selectivity *selectivity,
			 double *correlation, double *pages)
{
	*startup = 0;
	*total = 1;
	*selectivity = path->indexclauses == NIL ? 1.0 : 0.01;
	*correlation = 0;
	*pages = 1;
}

static bytea *
insists_options(Datum options, bool validate)
{
	return NULL;
}

static bool
insists_validate(Oid class)
{
	return true;
}

static IndexScanDesc
insists_beginscan(Relation index, int nkeys, int norderbys)
{
	IndexScanDesc scan = RelationGetIndexScan(index, nkeys, norderbys);

	scan->opaque = palloc0(sizeof(Near));
	if (norderbys > 0)
	{
		scan->xs_orderbyvals = palloc0(sizeof(Datum) * norderbys);
		scan->xs_orderbynulls = palloc0(sizeof(bool) * norderbys);
	}
	return scan;
}

static void
insists_rescan(IndexScanDesc scan, ScanKey keys, int nkeys, ScanKey orderbys, int norderbys)
{
	Near	   *s = scan->opaque;

	if (keys && scan->numberOfKeys > 0)
		memmove(scan->keyData, keys, scan->numberOfKeys * sizeof(ScanKeyData));
	if (orderbys && scan->numberOfOrderBys > 0)
		memmove(scan->orderByData, orderbys, scan->numberOfOrderBys * sizeof(ScanKeyData));
	s->entries = NULL;
}

static int
by_distance(const void *a, const void *b, void *from)
{
	int64		x = labs((int64) ((const Entry *) a)->key - *(int32 *) from);
	int64		y = labs((int64) ((const Entry *) b)->key - *(int32 *) from);

	return x < y ? -1 : x > y;
}

static void
collect(IndexScanDesc scan)
{
	Near	   *s = scan->opaque;
	Relation	index = scan->indexRelation;
	BlockNumber n = RelationGetNumberOfBlocks(index);

	if (!IsMVCCSnapshot(scan->xs_snapshot))
		elog(ERROR, "non-MVCC snapshots are not supported with insists");
	s->entries = palloc((n + 1) * sizeof(Entry) * MaxOffsetNumber);
	s->n = s->next = 0;
	for (BlockNumber b = 0; b < n; b++)
	{
		Buffer		buffer = ReadBuffer(index, b);
		Page		page = BufferGetPage(buffer);

		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		for (OffsetNumber i = 1; i <= PageGetMaxOffsetNumber(page); i++)
		{
			Entry	   *e = (Entry *) PageGetItem(page, PageGetItemId(page, i));

			if (scan->numberOfKeys == 0 || e->key == DatumGetInt32(scan->keyData[0].sk_argument))
				s->entries[s->n++] = *e;
		}
		UnlockReleaseBuffer(buffer);
	}
	if (scan->numberOfOrderBys > 0)
	{
		s->from = DatumGetInt32(scan->orderByData[0].sk_argument);
		qsort_arg(s->entries, s->n, sizeof(Entry), by_distance, &s->from);
	}
}

static bool
insists_gettuple(IndexScanDesc scan, ScanDirection direction)
{
	Near	   *s = scan->opaque;

	if (s->entries == NULL)
		collect(scan);
	if (s->next == s->n)
		return false;
	if (scan->numberOfOrderBys > 0)
		scan->xs_orderbyvals[0] = Float8GetDatum(fabs((float8) s->entries[s->next].key - (float8) s->from));
	scan->xs_heaptid = s->entries[s->next++].tid;
	scan->xs_recheck = false;
	scan->xs_recheckorderby = false;
	return true;
}

static int64
insists_getbitmap(IndexScanDesc scan, TIDBitmap *tbm)
{
	Near	   *s = scan->opaque;

	collect(scan);
	for (int i = 0; i < s->n; i++)
		tbm_add_tuples(tbm, &s->entries[i].tid, 1, false);
	return s->n;
}

static void
insists_endscan(IndexScanDesc scan)
{
}

Datum
insists_handler(PG_FUNCTION_ARGS)
{
	IndexAmRoutine *am = makeNode(IndexAmRoutine);

	am->amstrategies = 2;
	am->amcanorderbyop = true;
	am->amoptionalkey = true;
	am->amkeytype = InvalidOid;
	am->ambuild = insists_build;
	am->ambuildempty = insists_buildempty;
	am->aminsert = insists_insert;
	am->ambulkdelete = insists_bulkdelete;
	am->amvacuumcleanup = insists_cleanup;
	am->amcostestimate = insists_cost;
	am->amoptions = insists_options;
	am->amvalidate = insists_validate;
	am->ambeginscan = insists_beginscan;
	am->amrescan = insists_rescan;
	am->amgettuple = insists_gettuple;
	am->amgetbitmap = insists_getbitmap;
	am->amendscan = insists_endscan;
	PG_RETURN_POINTER(am);
}
