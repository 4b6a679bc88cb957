"""One client from its making to its end: close, drop, fork, exit, and signals."""

# These two register themselves with the interpreter.
from pyredisson._client import at_exit as at_exit
from pyredisson._client import at_fork as at_fork
