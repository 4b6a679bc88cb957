// Loaded before the C library: the server's time of day is ahead by the microseconds in the file $CLOCK_OFFSET.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long nothing, *offset = &nothing;

__attribute__((constructor)) static void map(void) {
    int file = open(getenv("CLOCK_OFFSET"), O_RDONLY);
    void *mapped = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || mapped == MAP_FAILED)
        abort();
    offset = mapped;
    close(file);
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    long result = syscall(SYS_gettimeofday, now, zone);
    long long micros = now->tv_sec * 1000000LL + now->tv_usec + *offset;
    now->tv_sec = micros / 1000000;
    now->tv_usec = micros % 1000000;
    return (int)result;
}

time_t time(time_t *result) {
    struct timeval now;
    gettimeofday(&now, NULL);
    if (result != NULL)
        *result = now.tv_sec;
    return now.tv_sec;
}
