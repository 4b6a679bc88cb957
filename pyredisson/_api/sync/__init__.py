"""The public classes for threads."""
