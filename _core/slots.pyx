# The slot of a cluster that a key belongs to, and the node that serves that slot.

cdef enum:
    SLOTS = 16384

# CRC[k][b]: the checksum of byte b followed by k zero bytes. With four tables four bytes cost one step. Byte by byte
# each step would wait for the one before, and a 20-byte name would take half as long again.
cdef uint16_t CRC[4][256]


cdef void fill_crc() noexcept nogil:
    cdef unsigned int byte, crc
    cdef int _bit, zeros
    for byte in range(256):
        crc = byte << 8
        for _bit in range(8):
            crc = (crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1
        CRC[0][byte] = <uint16_t> crc
    for zeros in range(1, 4):
        for byte in range(256):
            crc = CRC[zeros - 1][byte]
            CRC[zeros][byte] = <uint16_t> (crc << 8) ^ CRC[0][crc >> 8]


fill_crc()


cdef inline uint16_t crc_of(const char *at, Py_ssize_t size) noexcept nogil:
    cdef const unsigned char *byte = <const unsigned char *> at
    cdef uint16_t crc = 0
    while size >= 4:
        crc = CRC[3][(crc >> 8) ^ byte[0]] ^ CRC[2][(crc & 255) ^ byte[1]] ^ CRC[1][byte[2]] ^ CRC[0][byte[3]]
        byte += 4
        size -= 4
    while size:
        crc = <uint16_t> (crc << 8) ^ CRC[0][(crc >> 8) ^ byte[0]]
        byte += 1
        size -= 1
    return crc


cdef inline bint hash_tag(const char *at, Py_ssize_t size, Text *tag) noexcept nogil:
    # Redis's rule: the tag is between the first "{" and the first "}" after it, and not empty.
    cdef const char *opened = <const char *> memchr(at, c"{", size)
    cdef const char *closed
    if opened == NULL:
        return False
    opened += 1
    closed = <const char *> memchr(opened, c"}", at + size - opened)
    if closed == NULL or closed == opened:
        return False
    tag.at = opened
    tag.size = closed - opened
    return True


cdef inline int slot_of_text(Text key) noexcept nogil:
    hash_tag(key.at, key.size, &key)
    return crc_of(key.at, key.size) & (SLOTS - 1)


cdef inline int slot_of(object name) except -1:
    cdef Text key
    as_text(name, &key)
    return slot_of_text(key)


cdef enum:
    # Of a size or a count: no server accepts a command with longer ones, and they fit into 32 bits.
    MOST_DIGITS = 9


cdef inline Py_ssize_t take_digits(Text *rest) noexcept nogil:
    # Takes the decimal number off the beginning of `rest`. -1: there is none, or it is too long.
    cdef Py_ssize_t value = 0, i = 0
    while i < rest.size and c"0" <= rest.at[i] <= c"9":
        if i == MOST_DIGITS:
            return -1
        value = 10 * value + rest.at[i] - c"0"
        i += 1
    rest.at += i
    rest.size -= i
    return value if i else -1


cdef inline bint take_break(Text *rest) noexcept nogil:
    if rest.size < 2 or rest.at[0] != c"\r" or rest.at[1] != c"\n":
        return False
    rest.at += 2
    rest.size -= 2
    return True


cdef inline Py_ssize_t take_head(Text *rest, char mark) noexcept nogil:
    # Takes a line like "*3\r\n" or "$7\r\n" off `rest`, and returns its number. -1: there is no such line.
    cdef Py_ssize_t value
    if rest.size < 1 or rest.at[0] != mark:
        return -1
    rest.at += 1
    rest.size -= 1
    value = take_digits(rest)
    return value if take_break(rest) else -1


cdef inline bint take_word(Text *rest, Text *word) noexcept nogil:
    # Takes a bulk string off `rest`. False: there is no complete one.
    cdef Py_ssize_t size = take_head(rest, c"$")
    if size < 0 or size > rest.size:
        return False
    word.at = rest.at
    word.size = size
    rest.at += size
    rest.size -= size
    return take_break(rest)


cdef inline bint is_script_call(Text *word) noexcept nogil:
    # EVAL or EVALSHA. The bit 0x20 is all that distinguishes an upper-case letter from the lower-case one.
    cdef const char *wanted = b"EVALSHA"
    cdef Py_ssize_t i
    if word.size != 4 and word.size != 7:
        return False
    for i in range(word.size):
        if word.at[i] & ~0x20 != wanted[i]:
            return False
    return True


cdef inline int find_key(const char *at, Py_ssize_t size, Text *key) noexcept nogil:
    # The first key of a command: 1 if it has one, 0 if it has none, -1 if these bytes are no command. What follows the
    # key is not read.
    cdef Text rest, word
    cdef Py_ssize_t words, keys
    rest.at = at
    rest.size = size
    words = take_head(&rest, c"*")
    if words < 1 or not take_word(&rest, &word):
        return -1
    if words == 1:
        return 0
    if not take_word(&rest, key):
        return -1
    if not is_script_call(&word):
        return 1
    # The word just taken is the script. The number of keys follows, and then the keys.
    if words == 2 or not take_word(&rest, &word):
        return -1
    keys = take_digits(&word)
    if word.size or not 0 <= keys <= words - 3:
        return -1
    if keys == 0:
        return 0
    return 1 if take_word(&rest, key) else -1


cdef inline int slot_of_payload(bytes payload) except -2:
    cdef Text key
    cdef int found = find_key(PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload), &key)
    if found < 0:
        raise ValueError(f"not a command in Redis's protocol: {payload[:80]!r}")
    return slot_of_text(key) if found else -1


def slot(name):
    """The cluster slot of a key, 0 to 16383: the slot of its hash tag, if it has one."""
    return slot_of(name)


def slot_of_command(bytes payload not None):
    """The slot of a packed command's first key; -1: it has no key. ValueError: these bytes are no command.

    The first key of EVAL and EVALSHA follows the number of keys. Of any other command it is the first argument.
    """
    return slot_of_payload(payload)


@cython.final
cdef class SlotMap:
    """Which node serves which slot. A node is any object; None: no node is known.

    Threads need no lock around it: neither a signal's handler nor another thread divides a method. Only without a
    global lock a thread may see a part of what `assign` does. (A finalizer of a node, if it has one, could run in it.)
    """

    cdef list nodes

    def __cinit__(self):
        self.nodes = [None] * SLOTS

    def assign(self, Py_ssize_t first, Py_ssize_t last, object node):
        """Assigns the slots from `first` to `last`, both included, to `node`. ValueError: no such slots."""
        cdef Py_ssize_t i
        if not 0 <= first <= last < SLOTS:
            raise ValueError(f"slots {first} to {last} are not within 0 to {SLOTS - 1}")
        for i in range(first, last + 1):
            self.nodes[i] = node

    def node(self, key):
        """The node that serves the key's slot, or None."""
        return self.nodes[slot_of(key)]

    def node_of_slot(self, Py_ssize_t number):
        """The node that serves a slot, or None. ValueError: there is no such slot."""
        if not 0 <= number < SLOTS:
            raise ValueError(f"slot {number} is not within 0 to {SLOTS - 1}")
        return self.nodes[number]

    def node_for(self, bytes payload not None):
        """The node for a packed command: the one that serves the slot of its first key, as in `slot_of_command`.

        None: the command has no key, or no node is known. ValueError: these bytes are no command.
        """
        cdef int number = slot_of_payload(payload)
        return None if number < 0 else self.nodes[number]
