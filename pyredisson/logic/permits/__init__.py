"""Semaphores and the count-down latch: primitives that count instead of having an owner."""
