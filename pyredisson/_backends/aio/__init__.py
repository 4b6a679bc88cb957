"""The asyncio backend."""
