"""The data plane: connections, handshake, replies and subscriptions, for threads and for asyncio."""
