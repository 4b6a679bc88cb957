"""The public classes of asyncio."""
