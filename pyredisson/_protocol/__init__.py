"""The commands that are sent to a server, and the meaning of its replies and errors. No I/O."""
