# Runs a coroutine that never suspends to its end, without the StopIteration that Python raises for its result.

cdef extern from "Python.h":
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT
    PySendResult PyIter_Send(PyObject *iterator, PyObject *value, PyObject **result) except? PYGEN_ERROR


@cython.final
cdef class Run:
    """One call of a coroutine function. Reading `result` makes the call, and runs the coroutine to its end.

    It is an attribute, because Python runs signal handlers after every call of a function, but not after reading an
    attribute. So no interrupt can strike between the coroutine's last step and the reader's next step, where a lock
    would be acquired and its owner wouldn't know.
    """

    cdef object operation
    cdef tuple args

    def __cinit__(self, operation, *args):
        self.operation = operation
        self.args = args

    @property
    def result(self):
        """The coroutine's result, or its exception. RuntimeError: it suspended."""
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
        raise RuntimeError("a coroutine suspended in the threads backend")
