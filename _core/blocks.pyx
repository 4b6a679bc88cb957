# `with` blocks of threads.

@cython.final
cdef class Blocks:
    """The `with` blocks that were entered on one object and not left yet, oldest first: pairs of a caller and an owner.

    Entering and leaving are subscripts and no calls: after a call Python may raise a KeyboardInterrupt. Any thread may
    do either.
    """

    cdef list entered

    def __cinit__(self):
        self.entered = []

    def __len__(self):
        return len(self.entered)

    @cython.critical_section
    def __iter__(self):
        return iter(self.entered[:])

    # As all others: a section that waits for the list's own mutex is left meanwhile, and the places of blocks change.
    @cython.critical_section
    def __setitem__(self, caller, owner):
        """The caller has entered a block, as that owner."""
        self.entered.append((caller, owner))

    @cython.critical_section
    def __getitem__(self, caller):
        """The caller leaves its latest block. Returns the block's owner; None: the caller has no block here."""
        cdef Py_ssize_t i
        for i in range(len(self.entered) - 1, -1, -1):
            if (<tuple> self.entered[i])[0] is caller:
                return (<tuple> self.entered.pop(i))[1]
        return None
