"""The threads backend. Its coroutines block their thread and never suspend."""
