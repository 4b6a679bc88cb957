"""A copy of an exception for each of several callers that get the same error."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def copy_error(error: E) -> E:
    """A copy to raise: the same type, arguments, attributes, notes, cause and traceback so far.

    An exception that is raised adds to its own traceback. If a thousand tasks raised one object, it would end up with
    the frames of all of them. An exception that can't be copied is returned as it is.
    """
    makers: tuple[Callable[[E], E], ...] = (_copy_without_init, copy.copy)
    for make in makers:
        try:
            twin = make(error)
            alike = type(twin) is type(error) and twin.args == error.args and str(twin) == str(error)
        except Exception:  # noqa: BLE001 - the constructor of a foreign class may raise anything
            continue
        if alike and twin is not error:
            twin.__cause__ = error.__cause__
            twin.__context__ = error.__context__
            twin.__suppress_context__ = error.__suppress_context__
            if hasattr(error, "__notes__"):
                twin.__notes__ = list(error.__notes__)
            return twin.with_traceback(error.__traceback__)
    return error


def _copy_without_init(error: E) -> E:
    # A constructor may need other arguments than it passed to `Exception`, or may change them a second time.
    # An exception whose C code keeps more than `args` (OSError, UnicodeError) gets another text here, and is rejected
    # by the caller.
    twin: E = type(error).__new__(type(error), *error.args)
    twin.__dict__.update(error.__dict__)
    return twin
