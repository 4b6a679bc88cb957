"""The backend of threads: its coroutines block and never suspend."""
