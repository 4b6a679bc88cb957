"""The command line, `pyredisson`. Needs the extra `pyredisson[cli]`. Here are the exit statuses of all commands."""

INCOMPLETE = 1
"""A command has done its work, but not all is well: `--help` of each says what that means."""
USAGE = 2
"""Wrong usage, or an extra is missing."""
UNAVAILABLE = 69
"""The server can't be reached, or doesn't serve. This status and the next two are as in `sysexits.h`."""
DEFECT = 70
LOST = 74
"""`run`: the lock was lost, and the command was stopped."""
NOT_ACQUIRED = 75
"""`run`: the lock was not acquired in time."""
NO_PERMISSION = 77
"""The password is wrong, or the user has no right."""
INTERRUPTED = 130
"""Ctrl-C."""
