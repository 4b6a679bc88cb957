# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: freethreading_compatible=True, binding=False
"""The hot paths: slots, names, commands, the timer wheel and the round trip.

Each object guards its own fields by its critical section, which is nothing in a build with a global lock. A section is
suspended where its thread blocks, so no step relies on it beyond an operation on a container that others use, or a call
of Python code. See "Without a global lock" in docs/architecture.md.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next
from cpython.long cimport PyLong_Check
from cpython.pythread cimport PyThread_get_thread_ident
from cpython.mem cimport PyMem_RawFree
from cpython.object cimport PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_Check
from libc.stdint cimport int64_t, uint16_t, uint64_t
from libc.string cimport memchr, memcpy, memmove

include "frames.pyx"
include "slots.pyx"
include "names.pyx"
include "wheel.pyx"
include "holds.pyx"
include "renewal_step.pyx"
include "hold_table.pyx"
include "owner_calls.pyx"
include "blocks.pyx"
include "run.pyx"
include "wakeup.pyx"
include "exchange.pyx"
include "task_future.pyx"
include "task_owners.pyx"
include "task_wakeup.pyx"
include "lock_waiters.pyx"
include "replies.pyx"
include "pipeline.pyx"
