"""Processes that contend for locks on some servers, and the judgement of what they have recorded."""

import itertools
import json
import re
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pyredisson
from pyredisson.testing import Cluster, Replicated, Sentinels, Server
from tests.interop.jvm import VERSIONS, JavaError, Jvm, now
from tests.interop.targets import Target
from tests.support.backends import eventually
from tests.support.children import Child
from tests.support.kinds import LOCKS

from .history import Failure, History, starved
from .owners import PERMITS, PROGRAM, Journal, Wanted

Servers = Server | Replicated | Sentinels | Cluster
LEASE = 3.0
"""Seconds: the watchdog's lease. What a failed server has forgotten to release is free after it."""
OPTIONS = {"lock_watchdog_timeout": LEASE, "timeout": 1.0, "connect_timeout": 1.0, "topology_refresh_interval": 1.0}
END_SECONDS, WRONG_SECONDS = 120.0, 20.0
"""After that time a lock that nobody acquires is a finding; with a planted bug, for few locks."""
COUNTERS: dict[str, Callable[[pyredisson.Client, str], Any]] = {
    "semaphore": pyredisson.Client.get_semaphore,
    "permit": pyredisson.Client.get_permit_expirable_semaphore,
}
"""What has permits. Their keys stay."""
LASTING = ("redisson_lock_token", "pyredisson_", "{")
"""How names of keys begin that may stay: the tokens of fenced locks, and what the server removes by itself."""


def wants(tag: str, kinds: Sequence[str] = tuple(LOCKS), prefix: str = "load") -> list[Wanted]:
    """Locks of these kinds whose keys are all on the slot of `tag`; readers and writers have the same lock."""
    return [(kind, [f"{prefix}-{'rw' if kind in {'read', 'write'} else kind}{{{tag}}}"]) for kind in kinds]


class Load:
    """The processes, and their history. `owners`: what each owner of a process wants."""

    def __init__(
        self, servers: Servers, directory: Path, owners: list[list[Wanted]], options: Any, **how: object
    ) -> None:
        self.servers = servers
        self.beside: list[Server] = []
        """Of the other members of red locks."""
        self.children: dict[str, Child] = {}
        """By the name of the journal."""
        self.history = History(directory)
        self._url = servers.url
        if servers._tls:
            self._url = f"{servers.tls_url}{'&' if '?' in servers.tls_url else '?'}ssl_ca_certs={servers.ca_file}"
        self.wanted = {(kind, name) for wanted in owners for kind, names in wanted for name in names}
        self.permits_are_lost = False
        """By processes that were killed, or servers that have forgotten."""
        self._lasting = {name for kind, name in self.wanted if kind in (*COUNTERS, "latch")}
        self._arguments = json.dumps(owners), json.dumps(options)
        self.how = how
        self._numbers = itertools.count(1)
        self.prepare()

    def prepare(self) -> None:
        """Permits, on servers that have none."""
        with pyredisson.connect(self._url) as client:
            for kind, name in sorted(self.wanted):
                if kind in COUNTERS:
                    COUNTERS[kind](client, name).try_set_permits(PERMITS)

    def start(self, backend: str, ports: Mapping[int, int] | None = None, seed: object = "") -> None:
        """Starts a process. `ports`: of the proxies that it has in place of the servers."""
        name, ports = f"{next(self._numbers)}-{backend}", ports or {}
        journal = self.history.directory / f"{name}.journal"
        how = json.dumps(self.how | {"beside": [server.url for server in self.beside], "ports": ports})
        url = re.sub(r":(\d+)", lambda found: f":{ports.get(int(found[1]), found[1])}", self._url)
        child = Child(PROGRAM, url, backend, journal, f"{seed}/{name}", *self._arguments, how)
        self.children[name] = child
        assert child.receive() == "ready"

    def close(self) -> None:
        with ExitStack() as stack:
            for child in self.children.values():
                stack.callback(child.close)

    def kill(self, name: str) -> None:
        self.children.pop(name).close()
        self.permits_are_lost = True

    def wait_until_all_are_taken(self) -> None:
        """Returns when each process has acquired every lock since now."""
        everything = {(name, *each) for name in self.children for each in self._holdable()}
        seconds = WRONG_SECONDS if self.how.get("wrong") else END_SECONDS
        self._wait_until_taken(lambda taken: everything - taken, seconds)

    def wait_until_served(self, seconds: float, names: str = "") -> None:
        """Returns when since now every lock whose name contains `names` was acquired, and some of them by each process:
        neither a lock nor a client waits for a server that doesn't answer."""
        locks = {each for each in self._holdable() if names in each[1]}

        def missing(taken: set[Any]) -> set[Any]:
            found = [each for each in taken if names in each[2]]
            return locks - {each[1:] for each in found} | set(self.children) - {process for process, *_ in found}

        self._wait_until_taken(missing, seconds)

    def _holdable(self) -> set[tuple[str, str]]:
        left_out = ("latch", "semaphore") if self.permits_are_lost else ("latch",)
        return {each for each in self.wanted if each[0] not in left_out}

    def _wait_until_taken(self, missing: Callable[[set[Any]], set[Any]], seconds: float) -> None:
        """Returns when nothing is `missing` in what was acquired since now: processes, kinds and names of holds."""
        begin = monotonic()

        def left() -> set[Any]:
            self.history.update()
            holds = [hold for hold in self.history.holds.values() if hold.begin > begin]
            return missing({(self.history.writers[hold.identity], hold.kind, hold.name) for hold in holds})

        try:
            eventually(lambda: not left(), seconds)
        except AssertionError:
            said = f"not taken within {seconds:g} s: {sorted(map(str, left()))}; {self.history.summary()}"
            raise AssertionError(said) from None

    def wait_until_taken(self, count: int) -> None:
        """Returns when so many holds have begun since now."""
        aim = self.history.update() + count
        eventually(lambda: self.history.update() >= aim, END_SECONDS)

    def end(self, *, keeps: bool = False, excused: Callable[[Failure], bool] = lambda _: True) -> None:
        """Ends the load when every lock was acquired by each process once more, and judges it: no two holds overlap,
        nothing stays on the servers, and no lock was waited for, and acquired by nobody, for longer than two leases
        since this was called. `keeps`: no hold was lost. `excused`: which failures of acquires may be."""
        calm_since = monotonic()
        self.wait_until_all_are_taken()
        for child in self.children.values():
            child.send()
        for child in self.children.values():
            assert (child.receive(END_SECONDS), child.wait(END_SECONDS)) == ("done", 0)
        self.history.update()
        found = self.history.violations() + starved(self.history, calm_since, 2 * LEASE, self._holdable())
        # Until all leases have ended.
        with suppress(AssertionError):
            eventually(lambda: not self._left(), 2 * LEASE)
        found += self._left()
        if keeps:
            found += [f"lost: {hold}" for hold in self.history.holds.values() if hold.lost]
        found += [str(each) for each in self.history.failures if not excused(each)]
        assert not found, "\n".join([*found, self.history.summary()])

    def _left(self) -> list[str]:
        """Keys that belong to no semaphore, and that no lease and no lifetime removes; permits in use."""
        servers, found = self.servers, []
        for node in (*(servers.masters() if isinstance(servers, Cluster) else (servers,)), *self.beside):
            with node.redis() as redis:
                keys = {key.decode() for key in redis.scan_iter()} - self._lasting
            found += [f"{key} is left" for key in keys if not key.startswith(LASTING)]
        with pyredisson.connect(self._url) as client:
            for kind, name in sorted(self.wanted):
                # A semaphore has no owners: a permit from before a server was emptied enlarges it.
                if kind == "permit" or (kind == "semaphore" and not self.history.forgotten):
                    permits = COUNTERS[kind](client, name).available_permits()
                    fewest = 0 if kind == "semaphore" and self.permits_are_lost else PERMITS
                    if not fewest <= permits <= PERMITS:
                        found.append(f"{kind} {name!r} has {permits} permits of {PERMITS}")
        return found


@contextmanager
def under_load(
    servers: Servers, directory: Path, owners: list[list[Wanted]], undisturbed: bool = False, **options: Any
) -> Iterator[Load]:
    """A process of threads and one of tasks. The body begins when every lock was acquired by each of them.
    `undisturbed`: no hold is lost, and no acquire fails."""
    load = Load(servers, directory, owners, OPTIONS | options)
    with ExitStack() as stack:
        stack.callback(load.close)
        load.start("threads")
        load.start("asyncio")
        load.wait_until_all_are_taken()
        yield load
        load.end(keeps=undisturbed, excused=lambda _: not undisturbed)


KINDS = {"lock": "Lock", "fair": "FairLock", "fenced": "FencedLock", "read": "ReadLock", "write": "WriteLock"}


class JavaOwners:
    """A hold in Java has no `lost`. It is recorded if its release says that it was one."""

    def __init__(self, target: Target, journal: Path, wanted: list[Wanted], seed: str) -> None:
        self._journal = Journal(str(journal))
        self._wanted = [(kind, names[0]) for kind, names in wanted if kind in KINDS]
        self._stop = threading.Event()
        self._jvm = Jvm(VERSIONS[0])
        self._client = self._jvm.connect(target.yaml(lockWatchdogTimeout=round(LEASE * 1000)))
        self._threads = [threading.Thread(target=self._live, args=(f"java/{seed}/{i}",)) for i in range(2)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._jvm.close()

    def _live(self, owner: str) -> None:
        thread, choice = self._jvm.thread(), Random(owner)
        while not self._stop.is_set():
            kind, name = choice.choice(self._wanted)
            lock = self._client.get(KINDS[kind], name)
            try:
                got = thread.begin(lock, "tryLock", 500, "MILLISECONDS").answer()
                if got.result:
                    self._stop.wait(choice.uniform(0, 0.02))
                    released = now()
                    thread.call(lock, "unlock")
                    mode = "shared" if kind == "read" else "exclusive"
                    hold = self._journal.begin("hold", owner, kind, name, mode, got.began, got.ended)
                    self._journal.write("still", hold, released)
            except JavaError:
                # It was lost, or the server was away.
                self._stop.wait(0.05)
            except BaseException:
                self._journal.write("error", "java", repr(traceback.format_exc()[-500:]))
                raise
