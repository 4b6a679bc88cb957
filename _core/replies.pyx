# Replies in Redis's protocol, version 2: simple strings, errors, integers, bulk strings and arrays of these. Of version
# 3 there are the null, and what a server pushes: the test kit reads the connections of programs that ask for it.

from cpython.bytearray cimport PyByteArray_Check
from cpython.mem cimport PyMem_RawRealloc

cdef enum:
    MOST_NESTED = 16         # arrays within arrays; no reply that this library asks for has more than four
    MOST_ROOM = 65536        # an empty buffer that has become larger is freed
    LONGEST = 4294967295     # bytes of a string, and elements of an array

cdef object INCOMPLETE = object()


@cython.final
cdef class ReplyReader:
    """Collects what a server sends, and makes Python objects of the replies.

    A simple string and a bulk string are bytes, an array is a list, an absent value None. `as_error` makes an exception
    of the text of an error reply, which is returned, and not raised. `invalid`: the class of the exception for bytes
    that are no reply. For one thread at a time.
    """

    cdef object as_error
    cdef object invalid
    cdef char *data
    cdef Py_ssize_t begin
    cdef Py_ssize_t end
    cdef Py_ssize_t room

    def __cinit__(self, as_error, invalid):
        self.as_error = as_error
        self.invalid = invalid
        self.data = NULL

    def __dealloc__(self):
        PyMem_RawFree(self.data)

    cpdef feed(self, source, Py_ssize_t size=-1):
        """Adds the first `size` bytes of a bytes or a bytearray; -1: all. ValueError: there are not so many."""
        cdef const char *data
        cdef Py_ssize_t available
        if PyByteArray_Check(source):
            data = PyByteArray_AS_STRING(source)
            available = PyByteArray_GET_SIZE(source)
        elif PyBytes_Check(source):
            data = PyBytes_AS_STRING(source)
            available = PyBytes_GET_SIZE(source)
        else:
            raise TypeError(f"a reply is bytes or a bytearray, not {type(source).__name__}")
        if size < 0:
            size = available
        if size > available:
            raise ValueError(f"there are not {size} bytes, but {available}")
        if not size:
            return
        self.make_room(size)
        memcpy(self.data + self.end, data, size)
        self.end += size

    cdef int make_room(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t unread = self.end - self.begin
        cdef Py_ssize_t room = self.room
        cdef char *data
        if self.end + size <= room:
            return 0
        if self.begin:
            memmove(self.data, self.data + self.begin, unread)
            self.begin = 0
            self.end = unread
        if unread + size <= room:
            return 0
        room = max(2 * room, unread + size, 1024)
        data = <char *> PyMem_RawRealloc(self.data, room)
        if data == NULL:
            raise MemoryError
        self.data = data
        self.room = room
        return 0

    cpdef object gets(self):
        """The next reply; False: it has not come as a whole. Raises an exception of the class `invalid`."""
        if self.begin == self.end:
            return False
        cdef Py_ssize_t at = self.begin
        reply = self.parse(&at, 0)
        if reply is INCOMPLETE:
            return False
        self.begin = at
        if at == self.end:
            self.begin = 0
            self.end = 0
            if self.room > MOST_ROOM:
                PyMem_RawFree(self.data)
                self.data = NULL
                self.room = 0
        return reply

    cdef object parse(self, Py_ssize_t *at, int depth):
        """The reply at that position, which becomes the one behind it."""
        cdef Py_ssize_t first = at[0] + 1
        cdef Py_ssize_t end
        cdef int64_t number
        cdef char mark
        if first > self.end:
            return INCOMPLETE
        mark = self.data[first - 1]
        if mark not in (c"+", c"-", c":", c"$", c"*", c"_", c">"):
            raise self.invalid(f"a reply begins with {bytes([<unsigned char> mark])!r}")
        end = self.find_break(first)
        if end < 0:
            return INCOMPLETE
        at[0] = end + 2
        if mark == c"+" or mark == c"-":
            if memchr(self.data + first, c"\r", end - first) or memchr(self.data + first, c"\n", end - first):
                raise self.invalid(f"{self.data[first:end]!r} is more than one line")
            text = self.data[first:end]
            return text if mark == c"+" else self.as_error(text.decode("utf-8", "replace"))
        if mark == c"_":
            if end != first:
                raise self.invalid("a null has no value")
            return None
        if not read_number(self.data + first, end - first, &number):
            raise self.invalid(f"{self.data[first:end]!r} is no number")
        if mark == c":":
            return number
        if number < 0 or number > LONGEST:
            if number == -1:
                return None
            raise self.invalid(f"{number} is no length")
        return self.parse_bulk(at, number) if mark == c"$" else self.parse_array(at, number, depth)

    cdef object parse_bulk(self, Py_ssize_t *at, int64_t size):
        cdef Py_ssize_t first = at[0]
        if self.end - first < size + 2:
            return INCOMPLETE
        at[0] = first + size + 2
        if self.data[first + size] != c"\r" or self.data[first + size + 1] != c"\n":
            raise self.invalid("a bulk string doesn't end where it should")
        return self.data[first:first + size]

    cdef object parse_array(self, Py_ssize_t *at, int64_t count, int depth):
        if depth == MOST_NESTED:
            raise self.invalid("arrays are nested too deeply")
        cdef list found = []
        cdef int64_t _
        for _ in range(count):
            element = self.parse(at, depth + 1)
            if element is INCOMPLETE:
                return INCOMPLETE
            found.append(element)
        return found

    cdef Py_ssize_t find_break(self, Py_ssize_t first) noexcept:
        """Where the next line break begins; -1: there is none yet."""
        cdef const char *found
        cdef Py_ssize_t left
        while True:
            left = self.end - first
            if left < 2:
                return -1
            found = <const char *> memchr(self.data + first, c"\r", left - 1)
            if found == NULL:
                return -1
            first = found - self.data
            if found[1] == c"\n":
                return first
            first += 1


cdef bint read_number(const char *at, Py_ssize_t size, int64_t *number) noexcept nogil:
    """Reads a decimal number of 64 bits, as Redis writes it: no sign but "-", no zero before other digits."""
    cdef bint negative = size > 0 and at[0] == c"-"
    cdef uint64_t value = 0
    cdef Py_ssize_t i
    if negative:
        at += 1
        size -= 1
    if size < 1 or size > 19 or (at[0] == c"0" and (size > 1 or negative)):
        return False
    for i in range(size):
        if not c"0" <= at[i] <= c"9":
            return False
        value = 10 * value + <uint64_t> (at[i] - c"0")
    # 19 digits are less than 2**64.
    if value > (<uint64_t> 1 << 63) - (not negative):
        return False
    number[0] = <int64_t> (0 - value) if negative else <int64_t> value
    return True
