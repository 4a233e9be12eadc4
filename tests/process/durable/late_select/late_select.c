/*
 * Loaded before the C library into the postmaster (LD_PRELOAD). While the file LATE_SELECT exists,
 * each `select` on sockets begins LATE_MS later. A signal that comes in between is handled before
 * `select` begins, and does not end it. So the postmaster of PostgreSQL 15 always sleeps on, as it
 * does else if a signal comes within a microsecond.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/select.h>
#include <time.h>
#include <unistd.h>

#define LATE_MS 1000

static void
sleep_through(void)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += (until.tv_nsec / 1000000 + LATE_MS) / 1000;
	until.tv_nsec = (until.tv_nsec + LATE_MS * 1000000L) % 1000000000L;
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
		;
}

int
select(int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout)
{
	int			(*next) (int, fd_set *, fd_set *, fd_set *, struct timeval *) = dlsym(RTLD_NEXT, "select");
	const char *path = getenv("LATE_SELECT");

	if (n > 0 && path != NULL && access(path, F_OK) == 0)
		sleep_through();
	return next(n, r, w, e, timeout);
}
