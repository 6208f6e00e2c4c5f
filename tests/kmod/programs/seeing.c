/* SPDX-License-Identifier: MIT */
/* sysfs, procfs and tracepoints say what the calls say. */
#include "pool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define POOL    (32 * MIB)
#define SYSFS   "/sys/class/misc/computron"
#define TRACING "/sys/kernel/tracing"

static int fd;
static uint8_t *map;
static struct computron_ref clean, leased, loading;

static void setup(const char *name)
{
	fd = must_pool(name, POOL);
	map = must_map(fd, POOL, PROT_READ | PROT_WRITE);
	clean = must_frame(fd, map, 0x11, 4 * MIB, 0);
	leased = must_frame(fd, map, 0x22, 6 * MIB, COMPUTRON_SEAL_LEASE);
	EQUAL(frame_alloc(fd, 0x33, 2 * MIB, 0, &loading), 0, "alloc");
	EQUAL(frame_evict(fd, must_frame(fd, map, 0x44, 2 * MIB, 0)), 0, "evict");
	EQUAL(frame_evict(fd, leased), -EBUSY, "evict");
	EQUAL(frame_lease(fd, clean), 0, "lease");
	EQUAL(frame_release(fd, clean), 0, "release");
}

/* The whole of a small file, with a final 0. */
static const char *text_of(const char *path)
{
	static char text[16384];
	size_t length = 0;
	ssize_t got;
	int file = open(path, O_RDONLY);

	CHECK(file >= 0, "cannot open %s: errno %d", path, errno);
	while ((got = read(file, text + length, sizeof(text) - 1 - length)) > 0)
		length += (size_t)got;
	CHECK(got == 0, "%s: errno %d", path, errno);
	close(file);
	text[length] = 0;
	return text;
}

/* Every file below a folder of sysfs: holds one value, is not writable by others, and gives no
 * kernel address. */
static int look_at_files(const char *folder, int depth)
{
	DIR *dir = opendir(folder);
	struct dirent *entry;
	char path[512];
	struct stat st;
	int files = 0;

	CHECK(dir, "cannot open %s: errno %d", folder, errno);
	while ((entry = readdir(dir))) {
		const char *text;

		if (entry->d_name[0] == '.' || !strcmp(entry->d_name, "uevent") ||
		    !strcmp(entry->d_name, "power") || !strcmp(entry->d_name, "dev"))
			continue;
		snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
		CHECK(!lstat(path, &st), "%s: errno %d", path, errno);
		if (S_ISLNK(st.st_mode))
			continue;
		CHECK(!(st.st_mode & 0022), "%s has mode %o", path, st.st_mode & 07777);
		if (S_ISDIR(st.st_mode)) {
			CHECK(depth < 4, "%s is deep", path);
			files += look_at_files(path, depth + 1);
			continue;
		}
		text = text_of(path);
		CHECK(strlen(text) && strlen(text) < 64 && text[strlen(text) - 1] == '\n' &&
			      strchr(text, '\n') == text + strlen(text) - 1,
		      "%s: \"%s\"", path, text);
		CHECK(!strstr(text, "ffff8") && !strstr(text, "ffffffff"),
		      "%s holds an address: %s", path, text);
		files++;
	}
	closedir(dir);
	return files;
}

TEST(sysfs_is_one_value_a_file)
{
	int files;

	setup("one");
	files = look_at_files(SYSFS "/", 0);
	ktap_note("%d files", files);
	CHECK(files >= 12, "%d files", files);
}

/* The value of a file below SYSFS/pools/NAME, or of the module's with no name. */
static uint64_t value(const char *pool, const char *file)
{
	char path[256];

	snprintf(path, sizeof(path), pool ? SYSFS "/pools/%s/%s" : SYSFS "/%s%s", pool ? pool : "",
		 file);
	return number_of(path);
}

TEST(sysfs_equals_stat)
{
	struct computron_pool_stat stat;

	setup("equal");
	stat = must_stat(fd);
	EQUAL(value("equal", "bytes"), stat.bytes, "bytes");
	EQUAL(value("equal", "used"), stat.used, "used");
	EQUAL(value("equal", "clean"), stat.clean, "clean");
	EQUAL(value("equal", "leased"), stat.leased, "leased");
	EQUAL(value("equal", "quarantined"), stat.quarantined, "quarantined");
	EQUAL(value("equal", "evictions"), stat.evictions, "evictions");
	EQUAL(value("equal", "refused"), stat.refused, "refused");
	EQUAL(stat.used, 12 * MIB, "used");
	EQUAL(stat.clean, 10 * MIB, "clean");
	EQUAL(stat.leased, 6 * MIB, "leased");
	EQUAL(stat.loading, 2 * MIB, "loading");
	EQUAL(stat.evictions, 1, "evictions");
	EQUAL(stat.refused, 1, "refused");
}

/* The line of a text that holds a word; NULL: none. */
static const char *line_with(const char *text, const char *word)
{
	static char line[1024];
	const char *at = strstr(text, word), *start, *end;

	if (!at)
		return NULL;
	for (start = at; start > text && start[-1] != '\n'; start--)
		;
	end = strchrnul(at, '\n');
	snprintf(line, sizeof(line), "%.*s", (int)(end - start), start);
	return line;
}

TEST(proc_pools)
{
	const char *line;
	char number[32];

	setup("procpools");
	line = line_with(text_of("/proc/computron/pools"), "procpools");
	CHECK(line, "no such pool in /proc/computron/pools");
	ktap_note("%s", line);
	snprintf(number, sizeof(number), "%llu", (unsigned long long)POOL);
	CHECK(strstr(line, number), "no size %s", number);
	CHECK(!strstr(line, "ffff8"), "an address");
}

TEST(proc_frames)
{
	const char *text;
	int rows = 0;

	setup("procframes");
	text = text_of("/proc/computron/frames");
	for (const char *at = text; (at = strstr(at, "procframes")); at++)
		rows++;
	EQUAL(rows, 3, "rows of the pool");
	CHECK(strstr(text, "LOADING") || strstr(text, "loading"), "no LOADING frame in\n%s", text);
	CHECK(strstr(text, "CLEAN") || strstr(text, "clean"), "no CLEAN frame in\n%s", text);
	CHECK(!strstr(text, "ffff8"), "an address in\n%s", text);
	CHECK(line_with(text, "1100000000"), "no key that starts with 11 00 in\n%s", text);
}

TEST(proc_reads_in_pieces)
{
	char whole[16384], byte;
	size_t length = 0, at = 0;
	int file;

	setup("pieces");
	strcpy(whole, text_of("/proc/computron/frames"));
	length = strlen(whole);
	file = open("/proc/computron/frames", O_RDONLY);
	while (read(file, &byte, 1) == 1) {
		CHECK(at < length && byte == whole[at], "byte %zu differs", at);
		at++;
	}
	EQUAL(at, length, "bytes");
}

static void reads_proc(void *unused)
{
	int file;

	(void)unused;
	CHECK(!setuid(1000), "setuid");
	file = open("/proc/computron/frames", O_RDONLY);
	if (file < 0)
		CHECK(errno == EACCES, "errno %d", errno);
}

TEST(proc_for_others)
{
	setup("others");
	EQUAL(in_child(reads_proc, NULL), 0, "status");
}

TEST(tracepoints)
{
	static const char *const names[] = {"computron_alloc", "computron_seal", "computron_lease",
					    "computron_evict", "computron_refuse"};
	char text[16384];

	if (access(TRACING "/events", F_OK))
		ktap_skip("no tracefs in this kernel");
	must_write(TRACING "/trace", "");
	must_write(TRACING "/events/computron/enable", "1");
	setup("trace");
	must_write(TRACING "/events/computron/enable", "0");
	strcpy(text, text_of(TRACING "/trace"));
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		CHECK(strstr(text, names[i]), "no %s in the trace:\n%s", names[i], text);
	CHECK(!strstr(text, "ffff8"), "an address in the trace");
}
