# One round trip over a blocking socket, for which the interpreter's lock is given up only once.

from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from libc.errno cimport EAGAIN, EINTR, errno

cdef extern from * nogil:
    """
    #include <sys/socket.h>
    #ifndef MSG_NOSIGNAL
    /* Python ignores SIGPIPE. */
    #define MSG_NOSIGNAL 0
    #endif
    """
    ssize_t send(int descriptor, const void *data, size_t size, int flags)
    ssize_t recv(int descriptor, void *data, size_t size, int flags)
    int MSG_NOSIGNAL


def exchange(int descriptor, bytes payload not None, bytearray buffer not None, long waits=1):
    """Sends all of `payload`, then receives what is there of the answer, at least a byte; returns how many.

    0: the other side has closed the connection. The kernel's own timeouts for that socket hold for each step; it
    gives up when that for receiving is over `waits` times in a row. After each it looks for signals: one that came
    between the two steps has interrupted neither. Raises OSError, and whatever a signal's handler raises; after both
    it is unknown how much was sent.
    """
    cdef const char *data = PyBytes_AS_STRING(payload)
    cdef size_t left = PyBytes_GET_SIZE(payload)
    cdef char *into = PyByteArray_AS_STRING(buffer)
    cdef size_t room = PyByteArray_GET_SIZE(buffer)
    cdef ssize_t done = 0
    while True:
        with nogil:
            while left:
                done = send(descriptor, data, left, MSG_NOSIGNAL)
                if done < 0:
                    break
                data += done
                left -= done
            if not left:
                done = recv(descriptor, into, room, 0)
        # Python leaves it as it was when it takes its lock again.
        if done >= 0:
            return done
        if errno == EAGAIN and not left and waits > 1:
            waits -= 1
        elif errno != EINTR:
            PyErr_SetFromErrno(OSError)
        PyErr_CheckSignals()
