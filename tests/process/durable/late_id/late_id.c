/*
 * An extension whose callback takes a transaction id in a commit, and logs something, as Citus does
 * when it has prepared transactions of other nodes. With the setting late_id.enabled = false it does
 * nothing.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "fmgr.h"
#include "utils/guc.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

static bool on = false;

static void
callback(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_PRE_COMMIT || !on)
		return;
	(void) GetTopTransactionId();
	(void) XLogRestorePoint("late_id");
}

void
_PG_init(void)
{
	DefineCustomBoolVariable("late_id.enabled", "Take an id in commits.", NULL, &on, false, PGC_USERSET, 0, NULL, NULL, NULL);
	RegisterXactCallback(callback, NULL);
}
