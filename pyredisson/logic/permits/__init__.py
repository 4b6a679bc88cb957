"""Semaphores and the count-down latch: permits and counts."""
