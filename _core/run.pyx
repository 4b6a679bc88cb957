# Running to its end a coroutine that never suspends, without the exception by which Python would tell its result.

cdef extern from "Python.h":
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT
    PySendResult PyIter_Send(PyObject *iterator, PyObject *value, PyObject **result) except? PYGEN_ERROR


@cython.final
cdef class Run:
    """One call of a coroutine function; reading `result` makes the call and runs the coroutine to its end.

    Reading, because Python looks for signals after every call of a function, but not after reading an
    attribute: between the coroutine's last step and the reader's next one none can strike.
    """

    cdef object operation
    cdef tuple args

    def __cinit__(self, operation, *args):
        self.operation = operation
        self.args = args

    @property
    def result(self):
        """What the coroutine returns, or raises. RuntimeError if it suspends."""
        cdef PyObject *result = NULL
        cdef PySendResult outcome
        coroutine = self.operation(*self.args)
        outcome = PyIter_Send(<PyObject *> coroutine, <PyObject *> None, &result)
        if outcome == PYGEN_RETURN:
            returned = <object> result
            Py_DECREF(returned)
            return returned
        if result != NULL:
            Py_DECREF(<object> result)
        raise RuntimeError("a coroutine suspended in the thread world")
