"""The library's log, its warnings, names in messages, and what is said of an extra that is missing."""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("pyredisson")
REPOSITORY = "git+https://github.com/pyredisson/pyredisson"
"""Where pip gets this library from."""


class Tracing:
    """Whether each acquire and release is traced: by the log, or by an observer.

    Flags, as asking the logger in every call would cost one or two percent of an uncontended lock and unlock.
    """

    __slots__ = ("debug", "observed", "on")

    def __init__(self) -> None:
        self.debug = False
        """Whether the logger was enabled for DEBUG when it was last asked."""
        self.observed = False
        """Whether a client with an observer was made in this process."""
        self.on = False

    def look(self) -> None:
        """Asks the logger. It should be called a few times a second, but not for every command.

        Not by `isEnabledFor`: it may take the lock of `logging`, which an interrupt in another thread can leave locked.
        """
        lowest = max(logger.getEffectiveLevel(), logger.manager.disable + 1)
        self.debug = lowest <= logging.DEBUG and not logger.disabled
        self.on = self.debug or self.observed
        # Another thread may have called `observe` between the reading and the assignment.
        if self.observed:
            self.on = True

    def observe(self) -> None:
        self.observed = True
        self.on = True


tracing = Tracing()
"""The flags of the process, which has one such logger."""


def readable(name: bytes) -> str:
    """A name as text, for a message."""
    return name.decode("utf-8", "backslashreplace")


def printable(text: str) -> str:
    """A text for a terminal: what can't be printed is escaped, as what others have written must not control it."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def with_notes(text: str, error: BaseException) -> str:
    """The text, and what was noted on the error."""
    return "; ".join([text, *getattr(error, "__notes__", ())])


def installation_of(extra: str) -> str:
    """The command that installs this library with an extra."""
    return f"pip install 'pyredisson[{extra}] @ {REPOSITORY}'"


@contextmanager
def naming_extra(name: str, extra: str) -> Iterator[None]:
    """Around the imports of what `name` needs: if a package is missing, the error says which extra brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("pyredisson"):
            raise
        text = f"{name} needs {error.name}: {installation_of(extra)}"
        raise ModuleNotFoundError(text, name=error.name) from error


def warn_user(message: str) -> None:
    """Issues a `RuntimeWarning` for the line of the user's program that called the library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("pyredisson."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)
