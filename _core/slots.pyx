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


cdef inline int slot_of(object name) except -1:
    cdef Text key
    as_text(name, &key)
    hash_tag(key.at, key.size, &key)
    return crc_of(key.at, key.size) & (SLOTS - 1)


def crc16(bytes data not None):
    """The CRC16 (XMODEM) with which Redis hashes a key."""
    return crc_of(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


def slot(name):
    """The cluster slot of a key, 0 to 16383: that of its hash tag, if it has one."""
    return slot_of(name)


@cython.final
cdef class SlotMap:
    """Which node serves which slot. A node is any object; None: no node is known."""

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
