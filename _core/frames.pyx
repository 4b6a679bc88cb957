# Commands in Redis's protocol: arrays of bulk strings, written into one allocation.
cdef struct Text:
    const char *at
    Py_ssize_t size


cdef inline int as_text(object value, Text *text) except -1:
    if PyBytes_Check(value):
        text.at = PyBytes_AS_STRING(value)
        text.size = PyBytes_GET_SIZE(value)
    elif PyUnicode_Check(value):
        text.at = PyUnicode_AsUTF8AndSize(value, &text.size)
    else:
        raise TypeError(f"a key or an argument is bytes or str, not {type(value).__name__}")
    return 0


cdef extern from "Python.h":
    long long PyLong_AsLongLong(object value) except? -1
    bint PyBool_Check(object value)


cdef inline int digits(uint64_t value) noexcept nogil:
    cdef int count = 1
    while value >= 10:
        value //= 10
        count += 1
    return count


cdef inline uint64_t magnitude(int64_t value) noexcept nogil:
    return <uint64_t> value if value >= 0 else 0 - <uint64_t> value


cdef inline char *put_number(char *at, uint64_t value, int count) noexcept nogil:
    cdef char *end = at + count
    at = end
    while count:
        at -= 1
        at[0] = <char> (c"0" + value % 10)
        value //= 10
        count -= 1
    return end


cdef inline char *put_break(char *at) noexcept nogil:
    at[0] = c"\r"
    at[1] = c"\n"
    return at + 2


cdef inline char *put_head(char *at, char mark, Py_ssize_t count) noexcept nogil:
    at[0] = mark
    at = put_number(at + 1, <uint64_t> count, digits(<uint64_t> count))
    return put_break(at)


cdef inline Py_ssize_t body_size(object arg, bint text_too) except -1:
    cdef Text text
    cdef int64_t value
    if PyBytes_Check(arg):
        return PyBytes_GET_SIZE(arg)
    if PyLong_Check(arg) and not PyBool_Check(arg):
        value = PyLong_AsLongLong(arg)
        return digits(magnitude(value)) + (value < 0)
    if text_too and PyUnicode_Check(arg):
        as_text(arg, &text)
        return text.size
    wanted = "bytes, str or int" if text_too else "bytes or int"
    raise TypeError(f"an argument is {wanted}, not {type(arg).__name__}")


cdef inline Py_ssize_t frames_size(tuple args, bint text_too) except -1:
    cdef Py_ssize_t total = 0, size
    for arg in args:
        size = body_size(arg, text_too)
        total += 1 + digits(<uint64_t> size) + 2 + size + 2
    return total


cdef inline char *put_frames(char *at, tuple args) except NULL:
    cdef Py_ssize_t size
    cdef int64_t value
    cdef Text text
    for arg in args:
        if PyLong_Check(arg):
            value = PyLong_AsLongLong(arg)
            size = digits(magnitude(value))
            at = put_head(at, c"$", size + (value < 0))
            if value < 0:
                at[0] = c"-"
                at += 1
            at = put_number(at, magnitude(value), <int> size)
        else:
            as_text(arg, &text)
            at = put_head(at, c"$", text.size)
            memcpy(at, text.at, text.size)
            at += text.size
        at = put_break(at)
    return at


def pack(bytes head not None, *args):
    """`head`, and after it each argument as a RESP bulk string.

    For a command whose beginning never changes: `head` (array header, EVALSHA, SHA1, number of keys) is made once, and
    each call costs only the keys and the arguments. An int becomes its decimal digits, and must fit into 64 bits.
    TypeError: an argument is neither bytes nor int (a bool isn't an int here).
    """
    cdef Py_ssize_t first = PyBytes_GET_SIZE(head)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, first + frames_size(args, False))
    cdef char *at = PyBytes_AS_STRING(out)
    memcpy(at, PyBytes_AS_STRING(head), first)
    put_frames(at + first, args)
    return out


def command(*args):
    """A whole command: the array header, and each argument as a RESP bulk string."""
    cdef Py_ssize_t size = frames_size(args, True)
    cdef Py_ssize_t count = len(args)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, 1 + digits(<uint64_t> count) + 2 + size)
    put_frames(put_head(PyBytes_AS_STRING(out), c"*", count), args)
    return out
