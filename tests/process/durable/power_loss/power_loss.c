/*
 * Loaded before the C library into all processes of a server (LD_PRELOAD). It keeps a second copy
 * of the data directory: what the disk has for certain if the power is lost now. SIGKILL is no such
 * test, since the kernel's cache survives it.
 *
 * A write notes the blocks that it changes. fsync and fdatasync copy the noted blocks of the file,
 * whichever process has written them, and do nothing else. fsync of a directory copies its names.
 * fsync of a file keeps its own name too, as ext4, XFS and btrfs do, and as PostgreSQL relies on.
 * sync_file_range is no promise, and copies nothing.
 *
 * POWER_DATA  the data directory, without symbolic links in it
 * POWER_DISK  the directory of the copy, made by tests/lib/power.py:
 *               files/INODE  what the disk has of a file
 *               tree/        the names that the disk has: hard links to files/
 *               notes/INODE  the blocks that the disk may not have, mapped by all processes
 *               lock         held while names are copied
 *               pause        while it is there, the first process waits that is about to make a file
 *                            longer by its second page; it makes the file paused
 * POWER_DEAF  files whose path has this text are not copied: a fault, for tests of the test
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define BLOCK 4096
#define WORDS 4096				/* of 64 blocks: a segment of 1 GB */

typedef struct Notes
{
	uint64_t	written[WORDS];
	/* Taken from `written`, and perhaps not copied: their process may have been killed. */
	uint64_t	taken[WORDS];
	/* Blocks may be missing in `written`: the whole file is copied. */
	uint32_t	all;
} Notes;

typedef struct Known
{
	ino_t		inode;
	Notes	   *notes;
} Known;

#define KNOWN 65536
static Known known[KNOWN];

static const char *data, *disk, *deaf;
static size_t data_length;

#define REAL(result, name, ...) \
	static result (*real_##name) (__VA_ARGS__); \
	if (real_##name == NULL) \
		*(void **) &real_##name = dlsym(RTLD_NEXT, #name)

/* A copy: a server writes the title of its processes over the environment. */
static const char *
setting(const char *name)
{
	const char *text = getenv(name);

	return text ? strdup(text) : NULL;
}

__attribute__((constructor)) static void
begin(void)
{
	disk = setting("POWER_DISK");
	data = disk ? setting("POWER_DATA") : NULL;
	deaf = setting("POWER_DEAF");
	data_length = data ? strlen(data) : 0;
}

static void
die(const char *what)
{
	dprintf(2, "power_loss: %s: %s\n", what, strerror(errno));
	abort();
}

static int
real_open_at(const char *path, int flags)
{
	REAL(int, openat, int, const char *, int, ...);
	return real_openat(AT_FDCWD, path, flags | O_CLOEXEC, 0600);
}

static void
place(char *to, const char *folder, ino_t inode)
{
	snprintf(to, PATH_MAX, "%s/%s/%llu", disk, folder, (unsigned long long) inode);
}

/* The path of an open file below the data directory; NULL: it lies elsewhere, or is deleted. */
static const char *
path_of(int fd, char *buffer)
{
	char		link[40];
	ssize_t		n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, buffer, PATH_MAX - 1);
	buffer[n < 0 ? 0 : n] = 0;
	if (n <= (ssize_t) data_length || memcmp(buffer, data, data_length) != 0 || buffer[data_length] != '/')
		return NULL;
	if (n > 10 && strcmp(buffer + n - 10, " (deleted)") == 0)
		return NULL;
	return buffer + data_length + 1;
}

static Notes *
notes_of_inode(ino_t inode)
{
	size_t		at = (size_t) inode * 2654435761u % KNOWN;
	char		path[PATH_MAX];
	int			fd;

	while (known[at].notes != NULL && known[at].inode != inode)
		at = (at + 1) % KNOWN;
	if (known[at].notes != NULL)
		return known[at].notes;
	place(path, "notes", inode);
	fd = real_open_at(path, O_RDWR | O_CREAT);
	if (fd < 0)
		die(path);
	REAL(int, ftruncate, int, off_t);
	if (real_ftruncate(fd, sizeof(Notes)) != 0)
		die(path);
	known[at].notes = mmap(NULL, sizeof(Notes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (known[at].notes == MAP_FAILED)
		die(path);
	known[at].inode = inode;
	close(fd);
	return known[at].notes;
}

/* NULL: not a file of the data directory. */
static Notes *
notes_of(int fd, struct stat *st)
{
	char		path[PATH_MAX];

	if (data == NULL || fstat(fd, st) != 0 || !S_ISREG(st->st_mode) || path_of(fd, path) == NULL)
		return NULL;
	return notes_of_inode(st->st_ino);
}

static void
note(Notes *notes, off_t from, off_t to)
{
	for (off_t block = from / BLOCK; block * BLOCK < to; block++)
	{
		if (block / 64 < WORDS)
			__atomic_fetch_or(&notes->written[block / 64], (uint64_t) 1 << block % 64, __ATOMIC_SEQ_CST);
		else
			__atomic_store_n(&notes->all, 1, __ATOMIC_SEQ_CST);
	}
}

/* A file was made: the inode's number may have been another file's. */
static void
made(ino_t inode)
{
	char		path[PATH_MAX];
	Notes	   *notes = notes_of_inode(inode);

	place(path, "files", inode);
	unlink(path);
	memset(notes, 0, sizeof(Notes));
}

/* --- syncs ------------------------------------------------------------------ */

static void
copy_block(int from, int to, off_t block, off_t size)
{
	char		buffer[BLOCK];
	ssize_t		n = pread(from, buffer, block * BLOCK + BLOCK > size ? size - block * BLOCK : BLOCK, block * BLOCK);

	REAL(ssize_t, pwrite, int, const void *, size_t, off_t);
	if (n > 0 && real_pwrite(to, buffer, n, block * BLOCK) != n)
		die("copy");
}

static off_t
size_of(int fd)
{
	struct stat st;

	if (fstat(fd, &st) != 0)
		die("size");
	return st.st_size;
}

static void
copy_blocks(int from, int to, Notes *notes)
{
	uint32_t	all = __atomic_load_n(&notes->all, __ATOMIC_SEQ_CST);

	for (off_t word = 0; word * 64 * BLOCK < size_of(from); word++)
	{
		uint64_t	bits = ~(uint64_t) 0;
		off_t		size;

		if (word < WORDS)
		{
			uint64_t	written = __atomic_load_n(&notes->written[word], __ATOMIC_SEQ_CST);

			notes->taken[word] |= written;
			__atomic_fetch_and(&notes->written[word], ~written, __ATOMIC_SEQ_CST);
			bits = all ? bits : notes->taken[word];
		}
		/* Asked only now: a write that was noted may have made the file longer meanwhile. */
		size = size_of(from);
		for (; bits != 0; bits &= bits - 1)
		{
			off_t		block = word * 64 + __builtin_ctzll(bits);

			if (block * BLOCK < size)
				copy_block(from, to, block, size);
		}
		if (word < WORDS)
			notes->taken[word] = 0;
	}
	if (all)
		__atomic_store_n(&notes->all, 0, __ATOMIC_SEQ_CST);
}

/* Opens what the disk has of a file; makes an empty one. */
static int
open_copy(ino_t inode, Notes *notes)
{
	char		path[PATH_MAX];
	int			fd;

	place(path, "files", inode);
	fd = real_open_at(path, O_RDWR);
	if (fd < 0)
	{
		__atomic_store_n(&notes->all, 1, __ATOMIC_SEQ_CST);
		fd = real_open_at(path, O_RDWR | O_CREAT);
	}
	if (fd < 0)
		die(path);
	return fd;
}

/* From now on the disk has this name for this file. */
static void
keep_name(const char *name, ino_t inode)
{
	char		file[PATH_MAX], there[PATH_MAX + 8], fresh[PATH_MAX + 64];
	struct stat a, b;

	place(file, "files", inode);
	snprintf(there, sizeof(there), "%s/tree/%s", disk, name);
	if (stat(file, &a) == 0 && stat(there, &b) == 0 && a.st_ino == b.st_ino)
		return;
	for (char *slash = there + strlen(disk) + 6; (slash = strchr(slash, '/')) != NULL; slash++)
	{
		*slash = 0;
		mkdir(there, 0700);
		*slash = '/';
	}
	snprintf(fresh, sizeof(fresh), "%s/link.%d", disk, (int) getpid());
	unlink(fresh);
	if (link(file, fresh) != 0 || rename(fresh, there) != 0)
		die(there);
	unlink(fresh);
}

static void
sync_file(int fd, const char *name, struct stat *st)
{
	Notes	   *notes = notes_of_inode(st->st_ino);
	char		path[PATH_MAX], self[40];
	int			lock, from, to;

	place(path, "notes", st->st_ino);
	lock = real_open_at(path, O_RDWR);
	snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
	from = real_open_at(self, O_RDONLY);
	if (lock < 0 || from < 0)
		die(name);
	while (flock(lock, LOCK_EX) != 0)
		if (errno != EINTR)
			die(path);
	to = open_copy(st->st_ino, notes);
	if (fstat(fd, st) != 0)
		die(name);
	REAL(int, ftruncate, int, off_t);
	if (real_ftruncate(to, st->st_size) != 0)
		die(name);
	copy_blocks(from, to, notes);
	keep_name(name, st->st_ino);
	close(to);
	close(from);
	close(lock);
}

static void
remove_copy(const char *path)
{
	DIR		   *folder;
	struct dirent *entry;
	char		below[PATH_MAX];

	if (unlink(path) == 0 || errno == ENOENT || (folder = opendir(path)) == NULL)
		return;
	while ((entry = readdir(folder)) != NULL)
	{
		snprintf(below, sizeof(below), "%s/%s", path, entry->d_name);
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			remove_copy(below);
	}
	closedir(folder);
	rmdir(path);
}

/* The names that are in the directory now, and none else. */
static void
sync_names(const char *name)
{
	char		live[PATH_MAX], copy[PATH_MAX], below[2 * PATH_MAX];
	DIR		   *folder;
	struct dirent *entry;
	struct stat st;
	int			lock;

	snprintf(below, sizeof(below), "%s/lock", disk);
	lock = real_open_at(below, O_RDWR | O_CREAT);
	while (flock(lock, LOCK_EX) != 0)
		if (errno != EINTR)
			die("lock");
	snprintf(live, sizeof(live), "%s%s%s", data, *name ? "/" : "", name);
	snprintf(copy, sizeof(copy), "%s/tree%s%s", disk, *name ? "/" : "", name);
	mkdir(copy, 0700);
	folder = opendir(live);
	while (folder && (entry = readdir(folder)) != NULL)
	{
		snprintf(below, sizeof(below), "%s/%s", live, entry->d_name);
		if (entry->d_name[0] == '.' || lstat(below, &st) != 0)
			continue;
		snprintf(below, sizeof(below), "%s%s%s", name, *name ? "/" : "", entry->d_name);
		if (S_ISREG(st.st_mode))
		{
			close(open_copy(st.st_ino, notes_of_inode(st.st_ino)));
			keep_name(below, st.st_ino);
		}
		snprintf(below, sizeof(below), "%s/%s", copy, entry->d_name);
		if (S_ISDIR(st.st_mode))
			mkdir(below, 0700);
	}
	if (folder)
		closedir(folder);
	folder = opendir(copy);
	while (folder && (entry = readdir(folder)) != NULL)
	{
		snprintf(below, sizeof(below), "%s/%s", live, entry->d_name);
		if (entry->d_name[0] == '.' || lstat(below, &st) == 0)
			continue;
		snprintf(below, sizeof(below), "%s/%s", copy, entry->d_name);
		remove_copy(below);
	}
	if (folder)
		closedir(folder);
	close(lock);
}

/* False: it is no file of the data directory, and the kernel may sync it. */
static int
sync_it(int fd)
{
	struct stat st;
	char		path[PATH_MAX];
	const char *name;
	int			before = errno;

	if (data == NULL || fstat(fd, &st) != 0)
		return 0;
	name = path_of(fd, path);
	if (name == NULL && S_ISDIR(st.st_mode) && strcmp(path, data) == 0)
		name = "";
	if (name == NULL)
		return 0;
	if (S_ISDIR(st.st_mode))
		sync_names(name);
	else if (S_ISREG(st.st_mode) && !(deaf && strstr(name, deaf)))
		sync_file(fd, name, &st);
	errno = before;
	return 1;
}

int
fsync(int fd)
{
	REAL(int, fsync, int);
	return sync_it(fd) ? 0 : real_fsync(fd);
}

int
fdatasync(int fd)
{
	REAL(int, fdatasync, int);
	return sync_it(fd) ? 0 : real_fdatasync(fd);
}

/* --- writes ----------------------------------------------------------------- */

/* POWER_DISK/pause. The size is that before the write. */
static void
wait_there(off_t size, off_t at, off_t upto)
{
	char		path[PATH_MAX];
	int			fd;

	if (size > 2 * BLOCK || at != 2 * BLOCK || upto != 4 * BLOCK)
		return;
	snprintf(path, sizeof(path), "%s/pause", disk);
	if (access(path, F_OK) != 0)
		return;
	snprintf(path, sizeof(path), "%s/paused", disk);
	fd = real_open_at(path, O_RDWR | O_CREAT | O_EXCL);
	if (fd < 0)
		return;
	close(fd);
	snprintf(path, sizeof(path), "%s/pause", disk);
	while (access(path, F_OK) == 0)
		usleep(1000);
}

/* Noted before, since a process may be killed behind the write. Noted behind it, since a sync
 * may have come in between. */
#define WRITE(fd, from, length, call) \
	struct stat st; \
	int			errno_after; \
	Notes	   *notes = notes_of(fd, &st); \
	off_t		at = notes ? (from) : 0, upto = at + (off_t) (length); \
	if (notes) \
	{ \
		wait_there(st.st_size, at, upto); \
		note(notes, at, upto); \
	} \
	ssize_t		done = call; \
	errno_after = errno; \
	if (notes) \
		note(notes, at, upto); \
	if (notes && fcntl(fd, F_GETFL) & O_DSYNC) \
		sync_it(fd); \
	errno = errno_after; \
	return done

static off_t
position(int fd, struct stat *st)
{
	return fcntl(fd, F_GETFL) & O_APPEND ? st->st_size : lseek(fd, 0, SEEK_CUR);
}

static size_t
length_of(const struct iovec *parts, int n)
{
	size_t		length = 0;

	while (n-- > 0)
		length += parts[n].iov_len;
	return length;
}

ssize_t
write(int fd, const void *from, size_t n)
{
	REAL(ssize_t, write, int, const void *, size_t);
	WRITE(fd, position(fd, &st), n, real_write(fd, from, n));
}

ssize_t
writev(int fd, const struct iovec *parts, int n)
{
	REAL(ssize_t, writev, int, const struct iovec *, int);
	WRITE(fd, position(fd, &st), length_of(parts, n), real_writev(fd, parts, n));
}

ssize_t
pwrite(int fd, const void *from, size_t n, off_t offset)
{
	REAL(ssize_t, pwrite, int, const void *, size_t, off_t);
	WRITE(fd, offset, n, real_pwrite(fd, from, n, offset));
}

ssize_t
pwritev(int fd, const struct iovec *parts, int n, off_t offset)
{
	REAL(ssize_t, pwritev, int, const struct iovec *, int, off_t);
	WRITE(fd, offset, length_of(parts, n), real_pwritev(fd, parts, n, offset));
}

ssize_t		pwrite64(int, const void *, size_t, off_t) __attribute__((alias("pwrite")));
ssize_t		pwritev64(int, const struct iovec *, int, off_t) __attribute__((alias("pwritev")));

int
ftruncate(int fd, off_t size)
{
	REAL(int, ftruncate, int, off_t);
	WRITE(fd, size, st.st_size > size ? st.st_size - size : 0, real_ftruncate(fd, size));
}

int			ftruncate64(int, off_t) __attribute__((alias("ftruncate")));

int
truncate(const char *path, off_t size)
{
	int			fd = real_open_at(path, O_RDWR), result;

	if (fd < 0)
		return -1;
	result = ftruncate(fd, size);
	close(fd);
	return result;
}

int			truncate64(const char *, off_t) __attribute__((alias("truncate")));

/* --- new files -------------------------------------------------------------- */

static void
opened(int fd, int existed, off_t size, int by_stdio)
{
	struct stat st;
	int			before = errno;
	Notes	   *notes = notes_of(fd, &st);

	if (notes && !existed && st.st_size == 0)
		made(st.st_ino);
	else if (notes && size > st.st_size)
		note(notes, st.st_size, size);
	/* The C library's own writes are not seen. */
	if (notes && by_stdio)
		notes->all = 1;
	errno = before;
}

static int
open_noted(int folder, const char *path, int flags, mode_t mode)
{
	struct stat st;
	int			changes = data != NULL && flags & (O_CREAT | O_TRUNC);
	int			existed = changes && fstatat(folder, path, &st, 0) == 0;
	int			fd;

	REAL(int, openat, int, const char *, int, ...);
	fd = real_openat(folder, path, flags, mode);
	if (fd >= 0 && changes)
		opened(fd, existed, existed ? st.st_size : 0, 0);
	return fd;
}

#define MODE(flags) \
	mode_t		mode = 0; \
	if ((flags) & (O_CREAT | __O_TMPFILE)) \
	{ \
		va_list		more; \
		va_start(more, flags); \
		mode = va_arg(more, mode_t); \
		va_end(more); \
	}

int
open(const char *path, int flags, ...)
{
	MODE(flags);
	return open_noted(AT_FDCWD, path, flags, mode);
}

int
openat(int folder, const char *path, int flags, ...)
{
	MODE(flags);
	return open_noted(folder, path, flags, mode);
}

int			open64(const char *, int, ...) __attribute__((alias("open")));
int			openat64(int, const char *, int, ...) __attribute__((alias("openat")));

FILE *
fopen(const char *path, const char *how)
{
	struct stat st;
	int			changes = data != NULL && strpbrk(how, "wa+") != NULL;
	int			existed = changes && stat(path, &st) == 0;
	FILE	   *file;

	REAL(FILE *, fopen, const char *, const char *);
	file = real_fopen(path, how);
	if (file && changes)
		opened(fileno(file), existed, existed ? st.st_size : 0, 1);
	return file;
}

FILE	   *fopen64(const char *, const char *) __attribute__((alias("fopen")));
