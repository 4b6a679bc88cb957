"""What commands read from the servers: the inspection, on the thread of the command."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from redis.exceptions import NoPermissionError, RedisError

from pyredisson._api.sync.client import Client
from pyredisson._backends.threads.operations import run
from pyredisson._core import command
from pyredisson._protocol.no_reply import NoReply
from pyredisson._protocol.node import Node
from pyredisson._settings.config import Config
from pyredisson.inspection.discovery import Discovery
from pyredisson.inspection.model import ClientState, Evidence, Kind, States
from pyredisson.inspection.states import LIMIT, Inspector

RETRIES = 1
"""A waiting person wants to know soon that a server is away. A failover is survived by the walk's own repeats."""
RIGHTS = "+@read +eval +evalsha +time +pubsub"
AT_ONCE = 1000
"""Objects whose states are read in one call, so that no call takes long."""
T = TypeVar("T")
_PING = command(b"PING")


class Reader:
    """Reads the servers of one configuration. Its client acquires nothing, so it starts no thread of the watchdog."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.session = client._session
        self.nodes = client._runtime
        self.inspector = Inspector(self.session, self.nodes)

    def run(self, operation: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs an operation of the inspection. Raises what Redis and the network report, not `NoReply`."""
        try:
            return run(operation)
        except NoReply as failure:
            raise failure.error from None
        except NoPermissionError as error:
            raise NoPermissionError(f"{error}; needed are {RIGHTS} for all keys") from error

    def masters(self) -> list[Node]:
        """All masters."""
        return self.run(self.nodes.masters)

    def ask(self, node: Node, *payloads: bytes) -> list[Any]:
        """The replies of one server to some commands; error replies are in the list."""
        return self.run(lambda: self.nodes.ask(node, payloads))

    def round_trips(self, node: Node, count: int) -> list[float]:
        """How long so many PINGs took, in seconds, the shortest first."""
        times = []
        for _ in range(count):
            began = time.perf_counter()
            self.ask(node, _PING)
            times.append(time.perf_counter() - began)
        return sorted(times)

    def check(self) -> None:
        """Raises at once if no server can be reached."""
        masters = self.masters()
        if len(masters) == 1:
            [reply] = self.ask(masters[0], _PING)
            if isinstance(reply, RedisError) and not isinstance(reply, NoPermissionError):
                raise reply

    def walk(self, pattern: str = "*", on_step: Callable[[Discovery], bool] = lambda _: True) -> Discovery:
        """One pass over all keys. `on_step` is called after each step; False ends the walk."""
        discovery = self.inspector.discovery(pattern)
        while self.run(discovery.step):
            if not on_step(discovery):
                break
        return discovery

    def found(self, found: Mapping[bytes, Evidence], clients: Sequence[str], limit: int = LIMIT) -> States:
        """The states of what a walk has found."""
        states: list[Any] = []
        failed: dict[bytes, RedisError] = {}
        keys = list(found)
        for first in range(0, len(keys), AT_ONCE):
            part = {key: found[key] for key in keys[first : first + AT_ONCE]}
            known, its_failed = self.run(lambda part=part: self.inspector.found(part, clients=clients, limit=limit))  # type: ignore[misc]
            states += known
            failed.update(its_failed)
        return States(states, failed)

    def states(
        self, keys: Iterable[bytes], *, kind: Kind | None = None, clients: Sequence[str] = (), limit: int = LIMIT
    ) -> States:
        """The states of objects that the user names."""
        return self.run(lambda: self.inspector.states(keys, kind=kind, clients=clients, limit=limit))

    def clients(self, ids: Sequence[str]) -> list[ClientState]:
        """These clients, as far as they have announced themselves."""
        return self.run(lambda: self.inspector.clients(ids))


@contextmanager
def reader(config: Config, *, check: bool = True) -> Iterator[Reader]:
    """A reader, whose connections are closed at the end. `check`: raises at once if no server can be reached."""
    with Client(Config.of(config, retry_attempts=RETRIES, announce=False)) as client:
        made = Reader(client)
        if check:
            made.check()
        yield made
