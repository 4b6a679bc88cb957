"""One client from its making to its end: close, drop, fork, exit, and signals."""

# It registers itself with the interpreter.
from pyredisson._client import process as process
