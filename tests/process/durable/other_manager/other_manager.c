/*
 * Registers a resource manager with the id for experiments, which mixedcc has too.
 */
#include "postgres.h"

#include "access/xlog_internal.h"
#include "fmgr.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

static void
redo(XLogReaderState *record)
{
	elog(PANIC, "there are no records of this resource manager");
}

static const RmgrData manager = {
	.rm_name = "other manager",
	.rm_redo = redo,
};

void
_PG_init(void)
{
	RegisterCustomRmgr(RM_EXPERIMENTAL_ID, &manager);
}
