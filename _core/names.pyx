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


def parts_on_cluster(bytes name not None):
    """Whether the braces in a name put its companion keys and channels into other slots than the name itself.

    Of a name that stays together, only the channel of a count-down latch may be in another slot: if it contains a `{`.
    """
    cdef Text tag
    if has(name, c"{"):
        # No braces are added, so only a valid hash tag in the name keeps the keys together.
        return not hash_tag(PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), &tag)
    # Spelled "{name}": a "}" in the name would end the hash tag too early, and "{}" is no hash tag.
    return has(name, c"}") or not name
