"""Connections, waiting and subscriptions: they implement `logic.ports` for threads and for asyncio."""
