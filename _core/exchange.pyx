# Round trips over a blocking socket, during which the GIL is released only once; and a check whether the server has
# closed a socket.

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EBADF, ECONNRESET, EINTR, EPROTO, errno
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
    /* 1: the first one has something to receive, or was closed; 2: only the second one; 0: neither; -1: see errno */
    static int wait_for_either(int first, int second, int milliseconds)
    {
        struct pollfd both[2] = {{first, POLLIN, 0}, {second, POLLIN, 0}};
        int ready = poll(both, 2, milliseconds);
        return ready <= 0 ? ready : both[0].revents ? 1 : 2;
    }
    static int is_disconnected(int descriptor)
    {
        struct pollfd one = {descriptor, POLLRDHUP, 0};
        return poll(&one, 1, 0) > 0;
    }
    """
    ssize_t send(int descriptor, const void *data, size_t size, int flags)
    ssize_t recv(int descriptor, void *data, size_t size, int flags)
    int64_t read_clock(int clock)
    int wait_for_either(int first, int second, int milliseconds)
    bint is_disconnected(int descriptor)
    int CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE
    int MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK

cdef enum:
    # A socket that was used less than these nanoseconds ago is not checked, which saves a system call.
    RECENTLY_USED = 5_000_000
    # Milliseconds after which a thread that waits checks for a signal that came just before it began to wait.
    SIGNAL_CHECK = 100


class Unsent(Exception):
    """The socket failed before a command was sent completely, so no server executes it. Its argument is the OSError."""


cdef class IdleCheck:
    """Finds out whether the server has closed a socket since it was last used."""

    cdef int descriptor
    # By the coarse clock, which lags by at most one tick of the kernel, and costs a fifth of the precise one.
    cdef int64_t last_used

    def __init__(self, int descriptor):
        self.descriptor = descriptor
        self.last_used = read_clock(CLOCK_MONOTONIC_COARSE)

    cpdef bint closed(self) except -1:
        """Whether the server has closed the socket; False without a system call if it was open less than 5 ms ago."""
        cdef int64_t now = read_clock(CLOCK_MONOTONIC_COARSE)
        if now - self.last_used >= RECENTLY_USED and is_disconnected(self.descriptor):
            return True
        self.last_used = now
        return False

    @cython.critical_section
    def detach(self):
        """Stops using the file descriptor, whose number another file may soon have."""
        self.descriptor = -1


@cython.final
cdef class Exchange(IdleCheck):
    """Round trips over one blocking socket, whose kernel timeouts for sending and receiving are short.

    After each of those timeouts, and after a signal, it runs the signals' handlers: a signal that came between sending
    and receiving has interrupted neither. The clock is read only then. BlockingIOError: the time is over. OSError, and
    any exception of a signal's handler: it is unknown how much was sent. `Unsent`: not all was sent.
    """

    cdef bytearray buffer
    cdef int64_t timeout

    def __init__(self, int descriptor, bytearray buffer not None, double timeout):
        """`timeout` is the one of `call`, in seconds."""
        IdleCheck.__init__(self, descriptor)
        self.buffer = buffer
        self.timeout = <int64_t> (timeout * 1e9)

    def call(self, bytes payload not None):
        """Sends one command, and receives the part of the reply that comes first; returns how many bytes.

        0: the server closed the connection after the command was sent. `Unsent` also if the server had closed it
        before, or had sent data that belongs to no command; that is not checked within 5 ms of the last use.
        """
        cdef int64_t now = read_clock(CLOCK_MONOTONIC_COARSE)
        cdef int64_t last_used = self.last_used
        self.last_used = now
        if now - last_used >= RECENTLY_USED:
            self.check_open()
        return self.transfer(payload, True, now + self.timeout, True)

    def send(self, bytes payload not None, double seconds):
        """Sends several commands within that time. `Unsent`: nothing was sent."""
        cdef int64_t now = read_clock(CLOCK_MONOTONIC_COARSE)
        self.last_used = now
        self.transfer(payload, False, now + <int64_t> (seconds * 1e9), False)

    def receive(self, double seconds):
        """Receives at least one byte within that time; returns how many. 0: the server has closed the connection."""
        return self.transfer(None, True, read_clock(CLOCK_MONOTONIC_COARSE) + <int64_t> (seconds * 1e9), False)

    def receive_or_stop(self, int other, double seconds):
        """Receives what comes within that time; returns how many bytes. 0: the server has closed the connection.

        -1: the time is over. -2: the other file descriptor has something to receive. `detach` may be called on another
        thread meanwhile, before the socket is closed.
        """
        cdef int64_t until = read_clock(CLOCK_MONOTONIC) + <int64_t> (min(seconds, 1e9) * 1e9)
        cdef int64_t left
        cdef int descriptor = self.descriptor
        cdef int ready, milliseconds, code
        cdef char *into
        cdef ssize_t done
        if descriptor < 0:
            raise_error(EBADF)
        while True:
            # Rounded up: otherwise it would poll without a pause during the last millisecond.
            left = (until - read_clock(CLOCK_MONOTONIC) + 999_999) // 1_000_000
            milliseconds = <int> max(0, min(left, SIGNAL_CHECK))
            with nogil:
                ready = wait_for_either(descriptor, other, milliseconds)
            if ready == 1:
                # On another thread no `detach` comes in between, after which the number of the descriptor may name
                # another connection.
                with cython.critical_section(self):
                    if self.descriptor < 0:
                        raise_error(EBADF)
                    into = PyByteArray_AS_STRING(self.buffer)
                    done = recv(descriptor, into, PyByteArray_GET_SIZE(self.buffer), MSG_DONTWAIT)
                    code = errno
                if done >= 0:
                    return done
                if code != EAGAIN and code != EINTR:
                    raise_error(code)
            elif ready == 2:
                return -2
            elif ready < 0 and errno != EINTR:
                raise_error(errno)
            elif ready == 0 and left <= SIGNAL_CHECK:
                return -1
            PyErr_CheckSignals()

    cdef int check_open(self) except -1:
        cdef char byte
        cdef ssize_t size = recv(self.descriptor, &byte, 1, MSG_PEEK | MSG_DONTWAIT)
        if size < 0:
            if errno != EAGAIN:
                raise_unsent(errno)
        elif size:
            raise Unsent(OSError(EPROTO, "it has sent data that belongs to no command"))
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
        cdef int code
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
            # Acquiring the GIL again has not changed errno.
            code = errno
            if code == EAGAIN or code == EINTR:
                PyErr_CheckSignals()
                # After a signal the kernel's timeout starts from zero, so only the clock can tell.
                if read_clock(CLOCK_MONOTONIC) < until:
                    continue
                code = EAGAIN
            if left and (single or left == size):
                raise_unsent(code)
            raise_error(code)


cdef int raise_error(int code) except -1:
    raise OSError(code, strerror(code).decode())


cdef int raise_unsent(int code) except -1:
    raise Unsent(OSError(code, strerror(code).decode()))
