# Round trips over a blocking socket, for which the interpreter's lock is given up only once, and how a socket is asked
# whether the other side has closed it.

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, ECONNRESET, EINTR, EPROTO, errno
from libc.string cimport strerror

cdef extern from * nogil:
    """
    #include <poll.h>
    #include <sys/socket.h>
    #include <time.h>
    #ifndef MSG_NOSIGNAL
    /* Python ignores SIGPIPE. */
    #define MSG_NOSIGNAL 0
    #endif
    #ifndef POLLRDHUP
    #define POLLRDHUP 0
    #endif
    #ifndef CLOCK_MONOTONIC_COARSE
    #define CLOCK_MONOTONIC_COARSE CLOCK_MONOTONIC
    #endif
    static int64_t read_clock(clockid_t clock)
    {
        struct timespec now;
        clock_gettime(clock, &now);
        return (int64_t) now.tv_sec * 1000000000 + now.tv_nsec;
    }
    static int hung_up(int descriptor)
    {
        struct pollfd one = {descriptor, POLLRDHUP, 0};
        return poll(&one, 1, 0) > 0;
    }
    """
    ssize_t send(int descriptor, const void *data, size_t size, int flags)
    ssize_t recv(int descriptor, void *data, size_t size, int flags)
    int64_t read_clock(int clock)
    bint hung_up(int descriptor)
    int CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE
    int MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK

cdef enum:
    # A system call is spared by not asking a socket that was used less than these nanoseconds ago.
    FRESH = 5_000_000


class Unsent(Exception):
    """The socket failed before all of a command was sent, so nobody executes it. Its argument is the OSError."""


cdef class Idle:
    """Knows when a socket was used, and whether the other side has closed it since."""

    cdef int descriptor
    # By the coarse clock, which lags by a tick of the kernel and costs a fifth of the other.
    cdef int64_t used

    def __init__(self, int descriptor):
        self.descriptor = descriptor
        self.used = read_clock(CLOCK_MONOTONIC_COARSE)

    def closed(self):
        """Whether the other side has closed it; False without looking if it was open less than 5 ms ago."""
        cdef int64_t now = read_clock(CLOCK_MONOTONIC_COARSE)
        if now - self.used >= FRESH and hung_up(self.descriptor):
            return True
        self.used = now
        return False

    def end(self):
        """Nobody uses it any more: its number may soon be that of another one."""
        self.descriptor = -1


@cython.final
cdef class Exchange(Idle):
    """Round trips over one blocking socket, whose kernel timeouts for sending and receiving are short.

    After each of those, and after a signal, it looks for signals: one that came between sending and receiving has
    interrupted neither. The clock is read only then. BlockingIOError: the time is over. Raises OSError, and whatever a
    signal's handler raises; after both it is unknown how much was sent. `Unsent`: certainly not all.
    """

    cdef bytearray buffer
    cdef int64_t timeout

    def __init__(self, int descriptor, bytearray buffer not None, double timeout):
        """`timeout` is that of `call`, in seconds."""
        Idle.__init__(self, descriptor)
        self.buffer = buffer
        self.timeout = <int64_t> (timeout * 1e9)

    def call(self, bytes payload not None):
        """Sends all of `payload`, one command, then receives what is there of the answer; how many bytes.

        0: the other side has closed the connection after it was sent. `Unsent` also if it had closed it before, or
        said something that nobody asked for; a socket used less than 5 ms ago isn't asked for that.
        """
        cdef int64_t now = read_clock(CLOCK_MONOTONIC_COARSE)
        cdef int64_t used = self.used
        self.used = now
        if now - used >= FRESH:
            self.look()
        return self.transfer(payload, True, now + self.timeout, True)

    def send(self, bytes payload not None, double seconds):
        """Sends several commands in that time. `Unsent`: nothing of them was sent."""
        cdef int64_t now = read_clock(CLOCK_MONOTONIC_COARSE)
        self.used = now
        self.transfer(payload, False, now + <int64_t> (seconds * 1e9), False)

    def receive(self, double seconds):
        """Receives what comes in that time, at least a byte; how many bytes. 0: the other side has closed it."""
        return self.transfer(None, True, read_clock(CLOCK_MONOTONIC_COARSE) + <int64_t> (seconds * 1e9), False)

    cdef int look(self) except -1:
        cdef char byte
        cdef ssize_t there = recv(self.descriptor, &byte, 1, MSG_PEEK | MSG_DONTWAIT)
        if there < 0:
            if errno != EAGAIN:
                raise_unsent(errno)
        elif there:
            raise Unsent(OSError(EPROTO, "it has said something that nobody asked for"))
        else:
            raise_unsent(ECONNRESET)
        return 0

    cdef ssize_t transfer(self, bytes payload, bint answered, int64_t until, bint single) except -1:
        cdef const char *data = NULL if payload is None else PyBytes_AS_STRING(payload)
        cdef size_t size = 0 if payload is None else PyBytes_GET_SIZE(payload)
        cdef size_t left = size
        cdef char *into = PyByteArray_AS_STRING(self.buffer)
        cdef size_t room = PyByteArray_GET_SIZE(self.buffer)
        cdef int descriptor = self.descriptor
        cdef ssize_t done = 0
        cdef int problem
        while True:
            with nogil:
                while left:
                    done = send(descriptor, data, left, MSG_NOSIGNAL)
                    if done < 0:
                        break
                    data += done
                    left -= done
                if answered and not left:
                    done = recv(descriptor, into, room, 0)
            if done >= 0:
                return done
            # Python leaves it as it was when it takes its lock again.
            problem = errno
            if problem == EAGAIN or problem == EINTR:
                PyErr_CheckSignals()
                # Signals start the kernel's timeouts anew.
                if read_clock(CLOCK_MONOTONIC) < until:
                    continue
                problem = EAGAIN
            if left and (single or left == size):
                raise_unsent(problem)
            raise_error(problem)


cdef int raise_error(int problem) except -1:
    raise OSError(problem, strerror(problem).decode())


cdef int raise_unsent(int problem) except -1:
    raise Unsent(OSError(problem, strerror(problem).decode()))
