"""The public classes for asyncio. They are the source of those for threads: see `tools/async_to_sync.py`."""
