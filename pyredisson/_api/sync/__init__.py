"""The public classes for threads, mostly generated from those for asyncio by `tools/async_to_sync.py`."""
