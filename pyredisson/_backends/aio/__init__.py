"""The backend of asyncio."""
