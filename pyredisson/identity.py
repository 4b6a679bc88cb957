"""Who this process is, for people who look at the server: the name that its connections have in CLIENT LIST."""

import os
import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

MOST_OF_PROGRAM = 50
"""Characters of a program's name that its connections have. With a host name of 64 the whole stays below 128."""
UNNAMED = ("", "-", "-c", "-m")
"""What `sys.argv[0]` is if Python runs no file."""


class Identity(NamedTuple):
    program: str
    """The name of the program's file; of a package that is run by `python -m`, its name; without a file `python`."""
    host: str
    pid: int


def identity() -> Identity:
    """This process. It is found out once; in a forked child again, as that has another process id."""
    return _identity_of(os.getpid())


@lru_cache(maxsize=1)
def _identity_of(pid: int) -> Identity:
    # The host name is what the kernel says: no name server is asked.
    return Identity(_program(), os.uname().nodename, pid)


def connection_name(process: Identity) -> str:
    """`program@host:pid`, for CLIENT SETNAME, which takes no spaces and only ASCII."""
    program = process.program[:MOST_OF_PROGRAM]
    return re.sub(r"[^!-~]", "_", f"{program}@{process.host}:{process.pid}")


def _program() -> str:
    # An embedded interpreter may have no `argv`. A file's name may have bytes that are no UTF-8: Python keeps them as
    # characters that can't be encoded.
    first = os.fsencode((getattr(sys, "argv", None) or [""])[0]).decode("utf-8", "backslashreplace")
    if first in UNNAMED:
        return "python"
    path = Path(first)
    name = path.absolute().parent.name if path.name == "__main__.py" else path.name.removesuffix(".py")
    return name or "python"
