# Companion keys, channels and owners, spelled as Redisson spells them.


cdef inline bint has(bytes name, char brace) noexcept:
    return memchr(PyBytes_AS_STRING(name), brace, PyBytes_GET_SIZE(name)) != NULL


def prefixed(bytes prefix not None, bytes name not None):
    """`prefix:{name}`, or `prefix:name` where the name has a `{` of its own."""
    if has(name, c"{"):
        return prefix + b":" + name
    return prefix + b":{" + name + b"}"


def suffixed(bytes name not None, bytes suffix not None):
    """`{name}:suffix`, or `name:suffix` where the name has a `{` of its own."""
    if has(name, c"{"):
        return name + b":" + suffix
    return b"{" + name + b"}:" + suffix


def latch_channel(bytes name not None):
    """The channel of a count-down latch: braces are added even to a name that has some."""
    return b"redisson_countdownlatch__channel__{" + name + b"}"


def owner_name(str client_id not None, uint64_t owner):
    """`client_id:owner`, the hash field under which the server counts an owner's holds."""
    cdef Text text
    cdef int count = digits(owner)
    look(client_id, &text)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, text.size + 1 + count)
    cdef char *at = PyBytes_AS_STRING(out)
    memcpy(at, text.at, text.size)
    at[text.size] = c":"
    put_number(at + text.size + 1, owner, count)
    return out


def parts_on_cluster(bytes name not None):
    """Whether the name's own braces send its companion keys to other slots than the name itself."""
    cdef Text tag
    if has(name, c"{"):
        # Spelled without braces of ours, so only a usable tag of its own keeps them together.
        return not hash_tag(PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), &tag)
    # Spelled "{name}": a "}" inside would end the tag too early.
    return has(name, c"}")
