"""The asyncio world: the same names as `pyredisson`, awaited."""

from pyredisson.asyncio.client import Client, Lock, connect

__all__ = ["Client", "Lock", "connect"]
