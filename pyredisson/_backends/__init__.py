"""Connections, waiting and subscriptions: what the logic asks of `logic.ports`, for threads and for asyncio."""
