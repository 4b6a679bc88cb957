"""The asyncio world: the same names as `pyredisson`, awaited."""

from pyredisson.asyncio.client import Client, connect
from pyredisson.asyncio.lock import Lock

__all__ = ["Client", "Lock", "connect"]
