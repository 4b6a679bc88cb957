"""The public classes: `aio` for asyncio, `sync` for threads, and what both have in common."""
