# Which slot of a cluster a key belongs to, and which node serves that slot.

cdef enum:
    SLOTS = 16384

cdef uint16_t[256] CRC


cdef void fill_crc() noexcept nogil:
    cdef unsigned int byte, bit, crc
    for byte in range(256):
        crc = byte << 8
        for bit in range(8):
            crc = (crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1
        CRC[byte] = <uint16_t> crc


fill_crc()


cdef struct Text:
    const char *at
    Py_ssize_t size


cdef inline int look(object value, Text *text) except -1:
    if PyBytes_Check(value):
        text.at = PyBytes_AS_STRING(value)
        text.size = PyBytes_GET_SIZE(value)
    elif PyUnicode_Check(value):
        text.at = PyUnicode_AsUTF8AndSize(value, &text.size)
    else:
        raise TypeError(f"a key is bytes or str, not {type(value).__name__}")
    return 0


cdef inline uint16_t crc_of(const char *at, Py_ssize_t size) noexcept nogil:
    cdef uint16_t crc = 0
    cdef Py_ssize_t i
    for i in range(size):
        crc = <uint16_t> (crc << 8) ^ CRC[(crc >> 8) ^ <unsigned char> at[i]]
    return crc


cdef inline bint hash_tag(const char *at, Py_ssize_t size, Text *tag) noexcept nogil:
    # Redis's rule: the first "{", then the first "}" after it, with something in between.
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


cdef inline int slot_of(object name) except -1:
    cdef Text key
    look(name, &key)
    hash_tag(key.at, key.size, &key)
    return crc_of(key.at, key.size) & (SLOTS - 1)


def crc16(bytes data not None):
    """The CRC16 (XMODEM) with which Redis hashes a key."""
    return crc_of(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


def slot(name):
    """The cluster slot, 0 to 16383, of a key: of its hash tag where it has one."""
    return slot_of(name)


cdef class SlotMap:
    """Which node serves which slot; a node is any object, None where no node is known."""

    cdef list nodes

    def __cinit__(self):
        self.nodes = [None] * SLOTS

    def assign(self, Py_ssize_t first, Py_ssize_t last, object node):
        """Let `node` serve the slots from `first` to `last`, both included. ValueError: no such slots."""
        cdef Py_ssize_t i
        if not 0 <= first <= last < SLOTS:
            raise ValueError(f"slots {first} to {last} are not within 0 to {SLOTS - 1}")
        for i in range(first, last + 1):
            self.nodes[i] = node

    def node(self, key):
        """The node that serves the key's slot, or None."""
        return self.nodes[slot_of(key)]
