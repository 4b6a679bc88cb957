"""Every primitive, once: `async def` over a `Runtime`, with no thread, socket or event loop in sight."""
