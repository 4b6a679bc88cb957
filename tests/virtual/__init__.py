"""The asyncio client in virtual time: its event loop jumps to the next timer, and its server is in memory.

A lease of 30 s ends within microseconds, and the same test has the same schedule every time.
"""
