"""What commands read from the servers, on their own thread; and the argument NAME, which a shell can complete."""

import glob
import math
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar

import click
from click.shell_completion import get_completion_class
from redis.exceptions import NoPermissionError, RedisError

from pyredisson._api.sync.client import Client
from pyredisson._backends.threads.runtime import run
from pyredisson._core import command
from pyredisson._diagnostics import readable
from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import NoReply
from pyredisson._settings.config import Config
from pyredisson.cli.options import settings_of
from pyredisson.errors import RedissonError
from pyredisson.inspection import deadlocks
from pyredisson.inspection.discovery import Discovery
from pyredisson.inspection.model import Evidence, Kind, State, States
from pyredisson.inspection.states import LIMIT, MOST_LISTED, Inspector

RETRIES = 1
"""A waiting person wants to know soon that a server is away. A failover is survived by the walk's own repeats."""
RIGHTS = "+@read +eval +evalsha +time +pubsub"
AT_ONCE = 1000
"""Objects whose states are read in one call, so that no call takes long."""
P = ParamSpec("P")
T = TypeVar("T")
_PING = command(b"PING")
COMPLETION_TIME = 1.0
"""Seconds for which a shell waits for names."""
SEARCH_TIME = 2.0
"""Seconds for which other keys are looked for that say more of an object."""


class Reader:
    """Reads the servers of one configuration. Its client acquires nothing, so it starts no thread of the watchdog."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.session = client._session
        self.runtime = self.session.runtime
        self.inspector = Inspector(self.session)

    def run(self, operation: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs an operation of the inspection. Raises what Redis and the network report, not `NoReply`."""
        try:
            return run(partial(operation, *args, **kwargs))
        except NoReply as failure:
            raise failure.error from None
        except NoPermissionError as error:
            raise NoPermissionError(f"{error}; needed are {RIGHTS} for all keys") from error

    def ask(self, node: Node, *payloads: bytes) -> list[Any]:
        """The replies of one server to some commands; error replies are in the list."""
        return self.run(self.runtime.ask, node, payloads)

    def round_trips(self, node: Node, count: int) -> list[float]:
        """How long so many PINGs took, in seconds, the shortest first."""
        times = []
        for _ in range(count):
            began = time.perf_counter()
            self.ask(node, _PING)
            times.append(time.perf_counter() - began)
        return sorted(times)

    def walk(self, until: float, pattern: str = "*", most_keys: float = math.inf) -> Discovery:
        """A pass over all keys, as far as it comes until that moment of `time.monotonic`, or with so many keys."""
        discovery = Discovery(self.session, pattern)
        while self.run(discovery.step) and time.monotonic() < until and discovery.scanned < most_keys:
            pass
        return discovery

    def found(self, found: Mapping[bytes, Evidence], clients: Sequence[str], limit: int = LIMIT) -> States:
        states: list[Any] = []
        failed: dict[bytes, RedisError] = {}
        keys = list(found)
        for first in range(0, len(keys), AT_ONCE):
            part = {key: found[key] for key in keys[first : first + AT_ONCE]}
            known, its_failed = self.run(self.inspector.found, part, clients=clients, limit=limit)
            states += known
            failed.update(its_failed)
        return States(states, failed)

    def deadlocks(self, keys: Iterable[bytes]) -> list[str]:
        """Owners that wait for each other, and hold these locks or wait for them. If there is one, it looks twice."""
        search, wanted = deadlocks.DeadlockSearch(self.inspector), [*keys]
        self.run(search.look, wanted)
        if not search.suspected:
            return []
        time.sleep(deadlocks.CONFIRMED_AFTER)
        return sorted(deadlock.text for deadlock in self.run(search.look, wanted))


@contextmanager
def reader(config: Config) -> Iterator[Reader]:
    """A reader, whose connections are closed at the end. Raises at once if no server can be reached."""
    with Client(Config.of(config, retry_attempts=RETRIES, announce=False)) as client:
        made = Reader(client)
        masters = made.run(made.runtime.masters)
        if len(masters) == 1:
            [reply] = made.ask(masters[0], _PING)
            if isinstance(reply, RedisError) and not isinstance(reply, NoPermissionError):
                raise reply
        yield made


# --- The argument NAME, as it is on the server


def read_state(reading: Reader, name: str, *, kind: Kind | None = None) -> State:
    """The state of the object of that name, with all that can be listed. Raises what its server replies."""
    # The bytes that the shell has passed, also if they are no text.
    key = os.fsencode(name)
    named = partial(reading.inspector.states, [key], kind=kind, limit=MOST_LISTED)
    known, failed = reading.run(named)
    if failed:
        raise failed[key]
    [state] = known
    if (state.kind == "permits" and state.owners) or (state.kind == "unknown" and not state.certain):
        # Clients announce which permits they have, and the names of other keys say what a number is: a walk finds both.
        discovery = reading.walk(time.monotonic() + SEARCH_TIME, glob.escape(readable(key)))
        clients = [*discovery.clients]
        if kind is None and key in discovery.found:
            known, _ = reading.found({key: discovery.found[key]}, clients, MOST_LISTED)
        else:
            known, _ = reading.run(named, clients=clients)
        state = next((each for each in known if each.key == key), state)
    return state


def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names that begin like this, as far as they are found at once. Silent on errors: the user is typing."""
    try:
        config = Config.of(settings_of(context).config, timeout=COMPLETION_TIME, connect_timeout=COMPLETION_TIME)
        end = time.monotonic() + COMPLETION_TIME
        with reader(config) as reading:
            found = reading.walk(end, glob.escape(incomplete) + "*").found
    except (RedisError, RedissonError, OSError, click.UsageError):
        return []
    names = sorted(key.decode("utf-8", "replace") for key in found)
    # The protocol between shell and program has one name a line. A name with other characters must be typed.
    return [name for name in names if name.isprintable() and " " not in name]


name_argument = click.argument("name", shell_complete=complete)
"""Adds the argument NAME; the command gets `name`."""


@click.command(
    epilog="""\b
Examples:
  pyredisson completion bash >> ~/.bash_completion
  eval "$(pyredisson completion zsh)"
  pyredisson completion fish > ~/.config/fish/completions/pyredisson.fish
"""
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what a shell needs to complete commands, options and names of locks."""
    kind = get_completion_class(shell)
    assert kind is not None, "click knows these shells"
    # By this variable the script asks what there is to complete. click derives it from the name of the program.
    script = kind(click.get_current_context().find_root().command, {}, "pyredisson", "_PYREDISSON_COMPLETE")
    # Without a look at the shell itself: the script may be meant for another machine.
    click.echo(script.source_template % script.source_vars())
