"""The settings of a client: their sources, their checks and their defaults."""
