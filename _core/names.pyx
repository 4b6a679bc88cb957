# Names of further keys and channels of an object, spelled as in Redisson. Redis Cluster hashes only the part of a name
# in braces, so the braces put them into the hash slot of the object itself. The prefix `redisson_` is Redisson's own;
# `pyredisson_` is for keys that only this library has.


cdef inline bint has(bytes name, char brace) noexcept:
    return memchr(PyBytes_AS_STRING(name), brace, PyBytes_GET_SIZE(name)) != NULL


def prefixed(bytes prefix not None, bytes name not None):
    """`prefix:{name}`, or `prefix:name` where the name contains a `{`."""
    if has(name, c"{"):
        return prefix + b":" + name
    return prefix + b":{" + name + b"}"


def suffixed(bytes name not None, bytes suffix not None):
    """`{name}:suffix`, or `name:suffix` where the name contains a `{`."""
    if has(name, c"{"):
        return name + b":" + suffix
    return b"{" + name + b"}:" + suffix


def latch_channel(bytes name not None):
    """The channel of a count-down latch. Braces are added also to a name that contains some, as in Redisson."""
    return b"redisson_countdownlatch__channel__{" + name + b"}"
