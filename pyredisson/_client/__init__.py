"""The life of a client: its start, `fork`, its end, signals and the exit of the interpreter."""
