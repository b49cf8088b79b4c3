/* A slower disk for one program. Loaded into it by LD_PRELOAD, this makes each fsync, and each
 * read of a table's file (*.ibd), take longer, and counts them. How much longer stands in the
 * file that DROMON_SLOW_DISK names, four numbers of 64 bits:
 *
 *   microseconds for each fsync, microseconds for each read, fsyncs so far, slowed reads so far
 *
 * The file is mapped, so whoever writes to it changes the disk of a running program. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#if __SIZEOF_POINTER__ != 8
#error "offsets must fit into a register"
#endif

enum { FSYNC_US, READ_US, FSYNCS, READS, NUMBERS };

static uint64_t *numbers;

__attribute__((constructor)) static void open_numbers(void)
{
    const char *path = getenv("DROMON_SLOW_DISK");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *at = mmap(NULL, NUMBERS * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED)
        numbers = at;
    close(fd);
}

static void slow_down(int delay, int count)
{
    uint64_t us = __atomic_load_n(&numbers[delay], __ATOMIC_RELAXED);
    __atomic_fetch_add(&numbers[count], 1, __ATOMIC_RELAXED);
    if (us == 0)
        return;
    int saved = errno;
    struct timespec left = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
    errno = saved;
}

/* What each descriptor is of. To ask the kernel for a name costs as much as the rest of a read that
 * finds its page in memory, and whoever reads most would pay most. */
enum { UNKNOWN, TABLE, OTHER, KNOWN_MAX = 1 << 16 };
static unsigned char known[KNOWN_MAX];

static int is_table(int fd)
{
    int keep = fd >= 0 && fd < KNOWN_MAX;
    unsigned char is = keep ? __atomic_load_n(&known[fd], __ATOMIC_RELAXED) : UNKNOWN;
    if (is != UNKNOWN)
        return is == TABLE;
    char link[32], name[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, sizeof name);
    is = length > 4 && memcmp(name + length - 4, ".ibd", 4) == 0 ? TABLE : OTHER;
    if (keep)
        __atomic_store_n(&known[fd], is, __ATOMIC_RELAXED);
    return is == TABLE;
}

static int opened(int fd)
{
    if (fd >= 0 && fd < KNOWN_MAX)
        __atomic_store_n(&known[fd], UNKNOWN, __ATOMIC_RELAXED);
    return fd;
}

/* The kernel looks at the mode only where a file is made. */
int openat(int dir, const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    unsigned mode = va_arg(more, unsigned);
    va_end(more);
    return opened((int)syscall(SYS_openat, dir, path, flags, mode));
}

int open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    unsigned mode = va_arg(more, unsigned);
    va_end(more);
    return opened((int)syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

/* The same, by the names that programs with large files use. */
int openat64(int, const char *, int, ...) __attribute__((alias("openat"), nonnull(2)));
int open64(const char *, int, ...) __attribute__((alias("open"), nonnull(1)));

int fsync(int fd)
{
    int result = (int)syscall(SYS_fsync, fd);
    if (numbers)
        slow_down(FSYNC_US, FSYNCS);
    return result;
}

int fdatasync(int fd)
{
    int result = (int)syscall(SYS_fdatasync, fd);
    if (numbers)
        slow_down(FSYNC_US, FSYNCS);
    return result;
}

ssize_t pread(int fd, void *to, size_t size, off_t from)
{
    /* Who reads at full speed is not to be held up by looking at names. */
    if (numbers && __atomic_load_n(&numbers[READ_US], __ATOMIC_RELAXED) != 0 && is_table(fd))
        slow_down(READ_US, READS);
    return syscall(SYS_pread64, fd, to, size, from);
}

/* The same, by the name that programs with large files use. */
ssize_t pread64(int fd, void *to, size_t size, off_t from)
{
    return pread(fd, to, size, from);
}
