"""The argument NAME: the name of an object as it is on the server, and its completion by a shell."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click
from redis.exceptions import RedisError

from pyredisson._diagnostics import readable
from pyredisson._settings.config import Config
from pyredisson.cli.options import settings_of
from pyredisson.cli.reading import Reader, reader
from pyredisson.errors import RedissonError
from pyredisson.inspection.model import Kind, State
from pyredisson.inspection.states import MOST_LISTED

COMPLETION_TIME = 1.0
"""Seconds for which a shell waits for names."""
SEARCH_TIME = 2.0
"""Seconds for which other keys are looked for that say more of an object."""
C = TypeVar("C", bound=Callable[..., Any])


def name_argument(command: C) -> C:
    """Adds the argument NAME; the command gets `name`."""
    return click.argument("name", shell_complete=complete)(command)


def read_state(reading: Reader, name: str, *, kind: Kind | None = None) -> State:
    """The state of the object of that name, with all that can be listed. Raises what its server replies."""
    # The bytes that the shell has passed, also if they are no text.
    key = os.fsencode(name)
    known, failed = reading.states([key], kind=kind, limit=MOST_LISTED)
    if failed:
        raise failed[key]
    [state] = known
    if (state.kind == "permits" and state.owners) or (state.kind == "unknown" and not state.certain):
        # Clients announce which permits they have, and the names of other keys say what a number is: a walk finds both.
        end = time.monotonic() + SEARCH_TIME
        discovery = reading.walk(literal(readable(key)), lambda _: time.monotonic() < end)
        clients = [*discovery.clients]
        if kind is None and key in discovery.found:
            known, _ = reading.found({key: discovery.found[key]}, clients, MOST_LISTED)
        else:
            known, _ = reading.states([key], kind=kind, clients=clients, limit=MOST_LISTED)
        state = next((each for each in known if each.key == key), state)
    return state


def literal(text: str) -> str:
    """A glob for this text itself."""
    return "".join(f"[{each}]" if each in "*?[" else each for each in text)


def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names that begin like this, as far as they are found at once. Silent on errors: the user is typing."""
    try:
        configured = settings_of(context).config
        config = Config.of(configured, timeout=COMPLETION_TIME, connect_timeout=COMPLETION_TIME)
        end = time.monotonic() + COMPLETION_TIME
        with reader(config) as reading:
            found = reading.walk(literal(incomplete) + "*", lambda _: time.monotonic() < end).found
    except (RedisError, RedissonError, OSError, click.UsageError):
        return []
    names = sorted(key.decode("utf-8", "replace") for key in found)
    # The protocol between shell and program has one name a line. A name with other characters must be typed.
    return [name for name in names if name.isprintable() and " " not in name]
