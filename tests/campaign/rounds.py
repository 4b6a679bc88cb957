"""One round of a campaign: servers, processes, faults by seed, one or several at a time, and the judgement.

Under each fault docs/guarantees.md promises that nobody gets what somebody else holds. A fault that `forgets` is the
exception: a belief from before counts only until the fault.
"""

from __future__ import annotations

import builtins
import contextlib
import itertools
import math
import re
import sched
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

from redis.backoff import NoBackoff
from redis.retry import Retry

from pyredisson.testing import Cluster, Fault, Hold, Proxy, Replicated, Sentinels, Server
from tests.interop.targets import cluster_of_servers, single_server
from tests.support.backends import eventually
from tests.support.kinds import LOCKS

from .history import Failure, Period, SteppedServer, passed_over
from .load import LEASE, OPTIONS, JavaOwners, Load, wants
from .owners import Wanted
from .wrong_locks import WRONG

SERVERS: dict[str, Callable[[Path, bool], Any]] = {
    "single": SteppedServer,
    "replicated": lambda _, tls: Replicated(tls=tls),
    "sentinel": lambda _, tls: Sentinels(tls=tls),
    "cluster": lambda _, tls: Cluster(tls=tls),
}
KINDS = (*LOCKS, "multi", "red", "semaphore", "permit", "election", "singleton", "latch")
HOT = ("lock", "fair", "read", "write", "semaphore")
"""What one more owner of each process wants, and nothing else."""
NO_FAULTS = "none"
WITHIN = 60.0
"""Seconds of faults within which a planted bug is found."""
FAR = 0.02
"""Seconds, one way, from some of the processes to all servers."""


def owners(servers: Any, kinds: Sequence[str]) -> list[list[Wanted]]:
    """What each owner of a process wants. No latches behind failovers: of questions nothing is promised then."""
    tags = ["a"]
    if isinstance(servers, Cluster):
        # On early slots of the nodes: redis-cli moves a slot together with all before it.
        some = sorted(map(str, range(100)), key=servers.slot_of_key)
        tags = [next(tag for tag in some if servers.node_of_key(tag) is node) for node in servers.masters()]
    left_out = ("multi", "red") if isinstance(servers, Server) else ("multi", "red", "latch")
    wanted = [each for tag in tags for each in wants(tag, [kind for kind in kinds if kind not in left_out])]
    if "multi" in kinds:
        wanted.append(("multi", [*(f"load-lock{{{tag}}}" for tag in tags), "beside"]))
    if "red" in kinds:
        wanted.append(("red", ["load-red"]))
    return [wanted, wanted, wants(tags[0], [kind for kind in HOT if kind in kinds]) or wanted]


def proxies_of(servers: Any, beside: ExitStack) -> dict[int, Proxy]:
    """A proxy for each server, by its port. So a fault cuts off some of the processes only."""
    nodes = [servers] if isinstance(servers, Server) else [*servers.nodes, *getattr(servers, "sentinels", [])]
    return {node.port: beside.enter_context(Proxy(node.host, node.port)) for node in nodes}


def finds(bug: str, directory: Path) -> bool:
    """Whether the judge finds a planted bug within `WITHIN` seconds of faults, and says of it what it should."""
    kinds, faults, said, _ = WRONG[bug]
    end = monotonic() + WITHIN
    for number in itertools.takewhile(lambda _: monotonic() < end, map(str, itertools.count())):
        (made := directory / number).mkdir()
        try:
            run("single", number, made, 6.0, kinds=kinds.split(), faults=faults, wrong=bug)
        except AssertionError as error:
            return re.search(said, str(error)) is not None
    return False


def run(
    kind: str,
    seed: str,
    directory: Path,
    seconds: float,
    *,
    kinds: Sequence[str] = KINDS,
    faults: str = "",
    wrong: str | None = None,
    java: bool = False,
    tls: bool = False,
) -> tuple[str, dict[str, int]]:
    """The summary of the history, and how many faults of each name occurred. `AssertionError`: what is wrong."""
    choice = Random(seed)
    with ExitStack() as stack:
        servers = stack.enter_context(SERVERS[kind](directory, tls))
        wanted = owners(servers, kinds)
        orderly = faults in (NO_FAULTS, NO_LOSS)
        load = Load(servers, directory, wanted, OPTIONS, unruly=not orderly, wrong=wrong)
        load.beside = [stack.enter_context(Server()) for _ in range(2 if "red" in kinds else 0)]
        stack.callback(load.close)
        near, far = sides = [{} if tls else proxies_of(servers, stack) for _ in range(2)]
        for proxy in far.values():
            proxy.latency(FAR)
        near_ports, far_ports = ways = [{port: proxy.port for port, proxy in side.items()} for side in sides]
        for backend in ("threads", "asyncio", "both"):
            load.start(backend, near_ports, seed)
        load.start("both", far_ports, seed)
        beside = stack.enter_context(ExitStack())
        if java:
            target = (cluster_of_servers if isinstance(servers, Cluster) else single_server)(servers)
            beside.callback(target.close)
            beside.callback(JavaOwners(target, directory / "java.journal", wanted[0], seed).close)
        load.wait_until_all_are_taken()
        proxies, start = [*near.values(), *far.values()], lambda: load.start("both", choice.choice(ways), seed)
        begun = Faults(load, proxies, choice, start)
        try:
            begun.run(monotonic() + seconds, faults)
        finally:
            begun.heal()
        beside.close()
        load.end(keeps=orderly, excused=begun.excuses)
        if faults == NO_FAULTS and (found := passed_over(load.history)):
            raise AssertionError("\n".join(found))
        return load.history.summary(), begun.counts


# --- The faults


SCRIPT = b"EVALSHA"
"""What the faults of a proxy strike."""
USUAL = frozenset({"", "TimeoutError", "LockTimeoutError", "LockLostError", "PermitNotHeldError"})
"""What calls of unruly owners raise without any fault: they give up, and their leases are short. Empty: refused."""
NETWORK = frozenset({"redis.ConnectionError", "redis.TimeoutError"})
NOT_MASTER = {"redis.ReadOnlyError", "redis.MasterDownError", "redis.BusyLoadingError"}
REPLACED = NETWORK | NOT_MASTER | {"NotReplicatedError", "redis.ClusterDownError", "redis.TryAgainError"}
"""What a call may raise because of a fault, by docs/errors.md."""
AFTERWARDS = 5.0
"""Seconds for which a call goes on after a fault has ended, and raises what the fault has caused."""
NO_LOSS = "harmless"
HARMLESS = {"lost reply", "cut reply", "cut request", "late request", "late reply", "slow", "cut", "slot moves"}
HARMLESS |= {"worker forks", "CLIENT KILL", "SCRIPT FLUSH", "out of memory"}
"""The faults by which no hold is lost, in a client that renews it."""
CUT_OFF = ("stall", "blackhole", "refuse")
"""By these faults clients may not reach a node."""
REACHED_AFTER = 1.5
"""Seconds after their end in which connections that are dead are found to be so."""
CLIENTS = ("normal", "pubsub")
SELDOM = 0.3
CONFIRMED = 3.0
"""Seconds after which a replica that came back confirms acquires again (docs/guarantees.md), on a busy machine."""


def at_once() -> None:
    """The end of a fault that has ended."""


@dataclass(frozen=True)
class Trouble:
    name: str
    begin: Callable[[], Callable[[], object] | None]
    """Returns what ends the fault: `at_once` if it has ended. None: it has not begun."""
    longest: float = 1.5 * LEASE
    """Seconds that it lasts at most."""
    errors: frozenset[str] = NETWORK
    forgets: list[Period] | None = None
    """Of the history: the periods in which servers forget what this fault makes them forget."""


class Faults:
    """The faults that servers of this kind can have, and what is wrong at present."""

    def __init__(self, load: Load, proxies: list[Proxy], choice: Random, start: Callable[[], None]) -> None:
        self._load, self._proxies, self._random, self._start = load, proxies, choice, start
        self._later = sched.scheduler(monotonic, time.sleep)
        self._stopped: set[str] = set()
        self._changes = False
        """Whether a node is away or a slot is on its way: one of these at a time."""
        self._struck: list[tuple[float, float, frozenset[str]]] = []
        """From when to when calls may have raised which errors."""
        self.counts: dict[str, int] = {}
        self.all = [*self._of_networks(), *self._of_processes(), *self._of_servers(load.servers)]

    def run(self, until: float, names: str = "") -> None:
        """Begins one fault after the other, until `until`: all those whose name contains `names`, or the harmless ones.
        `heal` ends what is wrong then."""
        chosen = [each for each in self.all if (each.name in HARMLESS if names == NO_LOSS else names in each.name)]
        while monotonic() < until:
            if chosen:
                self.begin(self._random.choice(chosen))
            pause = monotonic() + self._random.uniform(0.02, 0.6)
            while monotonic() < pause:
                self._later.run(blocking=False)
                time.sleep(0.01)

    def begin(self, trouble: Trouble) -> None:
        begun = monotonic()
        end = trouble.begin()
        if end is None:
            return
        self.counts[trouble.name] = self.counts.get(trouble.name, 0) + 1

        def ended() -> None:
            end()
            with (self._load.history.directory / "faults").open("a") as file:
                file.write(f"{begun:.4f} {monotonic():.4f} {trouble.name}\n")
            # A connection that is dead without notice is found to be so when a call uses it.
            until = math.inf if trouble.name == "blackhole" else monotonic() + AFTERWARDS
            self._struck.append((begun, until, trouble.errors))
            if trouble.forgets is not None:
                trouble.forgets.append((begun, monotonic()))
                self._load.prepare()

        if end is at_once:
            ended()
        else:
            lasts = self._random.uniform(0.05, trouble.longest)
            self._later.enter(lasts, int(trouble.name not in CUT_OFF), ended)

    def _let_all_reach(self) -> None:
        """Before a former master goes on: a client that doesn't reach the new one would get locks from it."""
        # The ends of `CUT_OFF` have the priority 0.
        for event in [event for event in self._later.queue if not event.priority]:
            self._later.cancel(event)
            event.action()
        time.sleep(REACHED_AFTER)

    def heal(self) -> None:
        """Ends what is still wrong."""
        self._let_all_reach()
        with contextlib.ExitStack() as stack:
            for event in reversed(self._later.queue):
                self._later.cancel(event)
                stack.callback(event.action)

    def excuses(self, failure: Failure) -> bool:
        """Whether a call may have failed like that because of one of the faults."""
        return (failure.error in USUAL and bool(self._load.how["unruly"])) or any(
            failure.error in errors and begin < failure.at and failure.asked < end
            for begin, end, errors in self._struck
        )

    def _of_networks(self) -> list[Trouble]:
        some = self._random

        def at(act: Callable[[Proxy], Any], end: Callable[[Proxy], object] | None = None) -> Callable[[], Any]:
            def begin() -> Callable[[], object]:
                proxy = some.choice(self._proxies)
                made = act(proxy)
                if isinstance(made, Fault):
                    return lambda: withdraw(made, proxy)
                return at_once if end is None else lambda: end(proxy)

            return begin

        # The delay of a far client's proxy comes back at the end.
        usual = {proxy: proxy._conditions.latency for proxy in self._proxies}
        slow = at(lambda proxy: proxy.latency(some.uniform(0, 0.05)), lambda proxy: proxy.latency(usual[proxy]))
        found = [
            Trouble("lost reply", at(lambda proxy: proxy.drop_reply(SCRIPT, some.randint(1, 3)))),
            Trouble("cut reply", at(lambda proxy: proxy.cut_reply(SCRIPT, some.randint(1, 3)))),
            Trouble("cut request", at(lambda proxy: proxy.cut_request(SCRIPT, some.randint(1, 3)))),
            Trouble("late request", at(lambda proxy: proxy.hold_request(SCRIPT))),
            Trouble("late reply", at(lambda proxy: proxy.hold_reply(SCRIPT))),
            Trouble("slow", slow, 0.5),
            Trouble("cut", at(lambda proxy: proxy.cut(reset=some.random() < 0.5))),
            Trouble("stall", at(Proxy.stall, Proxy.resume)),
            Trouble("blackhole", at(Proxy.blackhole)),
            Trouble("refuse", at(refuse, lambda proxy: proxy.refuse(False)), LEASE / 2),
        ]
        return found if self._proxies else []

    def _of_processes(self) -> list[Trouble]:
        stops = Trouble("worker stops", self._stop, 2 * LEASE)
        return [stops, Trouble("worker is killed", self._kill), Trouble("worker forks", self._fork)]

    def _stop(self) -> Callable[[], object] | None:
        """One process at a time, mostly beyond its lease."""
        if self._stopped:
            return None
        name, child = self._random.choice(list(self._load.children.items()))
        self._stopped.add(name)
        child.signal(signal.SIGSTOP)

        def go_on() -> None:
            self._stopped.discard(name)
            child.signal(signal.SIGCONT)

        return go_on

    def _kill(self) -> Callable[[], object] | None:
        name = self._random.choice(list(self._load.children))
        if name in self._stopped or self._random.random() > SELDOM:
            return None
        self._load.kill(name)
        self._start()
        return at_once

    def _fork(self) -> Callable[[], object]:
        self._load.children[self._random.choice(list(self._load.children))].send("fork")
        return at_once

    def _of_servers(self, servers: Any) -> list[Trouble]:
        memory = NETWORK | {"redis.OutOfMemoryError"}
        found = [
            Trouble("CLIENT KILL", lambda: self._tell("CLIENT", "KILL", "TYPE", self._random.choice(CLIENTS))),
            Trouble("SCRIPT FLUSH", lambda: self._tell("SCRIPT", "FLUSH")),
            Trouble("out of memory", self._alone(self._out_of_memory), 0.5, memory),
        ]
        if self._load.beside:
            stops = self._alone(lambda: self._pause(self._random.choice(self._load.beside)))
            found.append(Trouble("server of a member stops", stops))
        if isinstance(servers, Server):
            history = self._load.history
            empty = Trouble("empty server", self._alone(lambda: self._empty(servers)), forgets=history.forgotten)
            if isinstance(servers, SteppedServer):
                found.append(Trouble("clock steps", self._alone(lambda: self._step(servers)), forgets=history.stepped))
            again = Trouble("server restarts", self._alone(lambda: self._restart(servers)), errors=NETWORK | NOT_MASTER)
            return [*found, Trouble("server stops", self._alone(lambda: self._pause(servers))), empty, again]
        if isinstance(servers, Replicated) and not servers._tls:
            slow = self._alone(lambda: self._delay_replication(servers))
            found.append(Trouble("slow replication, then master is killed", slow, errors=REPLACED))
        changes: dict[str, Callable[[], Callable[[], object]]] = {
            "failover": lambda: self._fail_over(servers),
            "master is killed": lambda: self._strike(servers, "kill", servers.restart),
            "replica is killed": lambda: self._strike_replica(servers, "kill", servers.restart),
            "replica stops": lambda: self._strike_replica(servers, "pause", servers.resume),
        }
        if not isinstance(servers, Replicated):
            changes["master stops"] = lambda: self._strike(servers, "pause", servers.resume)
        if isinstance(servers, Cluster):
            changes["slot moves"] = lambda: self._move_slot(servers)
        return found + [Trouble(name, self._alone(begin), errors=REPLACED) for name, begin in changes.items()]

    def _tell(self, *words: str) -> Callable[[], object] | None:
        """All servers, unless one of them is away."""
        if self._changes:
            return None
        self._ask(*words)
        return at_once

    def _ask(self, *words: str) -> None:
        servers = self._load.servers
        for node in [servers] if isinstance(servers, Server) else servers.living:
            with node.redis(socket_timeout=5, retry=Retry(NoBackoff(), 0)) as redis:
                redis.execute_command(*words)

    def _out_of_memory(self) -> Callable[[], object]:
        self._ask("CONFIG", "SET", "maxmemory", "1")
        return lambda: self._ask("CONFIG", "SET", "maxmemory", "0")

    def _alone(self, begin: Callable[[], Callable[[], object]]) -> Callable[[], Callable[[], object] | None]:
        """Seldom, and not beside another change of the deployment, nor right after one."""

        def begun() -> Callable[[], object] | None:
            if self._changes or self._random.random() > SELDOM:
                return None
            self._changes = True
            end = begin()

            def over() -> None:
                self._changes = False

            def ended() -> None:
                end()
                self._later.enter(CONFIRMED, 0, over)

            if end is not at_once:
                return ended
            self._later.enter(CONFIRMED, 0, over)
            return at_once

        return begun

    def _pause(self, server: Server) -> Callable[[], object]:
        server.pause()
        return server.resume

    def _empty(self, server: Server) -> Callable[[], object]:
        server.kill()
        time.sleep(self._random.choice((0.0, 0.0, 1.0)) * self._random.random())
        server.start()
        self._load.permits_are_lost = True
        return at_once

    def _restart(self, server: Server) -> Callable[[], object]:
        """With its data, and without scripts and subscriptions."""
        with server.redis(retry=Retry(NoBackoff(), 0)) as redis:
            redis.shutdown(save=True)
        server.restart()
        Path(server.path).with_name("dump.rdb").unlink()
        return at_once

    def _step(self, server: SteppedServer) -> Callable[[], object]:
        """Ahead or back, by less than a lease: what lasts longer by that must be free when the load ends."""
        server.step(self._random.uniform(-0.45, 0.45) * LEASE)
        return at_once

    def _master(self, servers: Any) -> Any:
        return self._random.choice(servers.masters()) if isinstance(servers, Cluster) else servers.master()

    def _fail_over(self, servers: Any) -> Callable[[], object]:
        self._load.permits_are_lost = True
        self._let_all_reach()
        servers.fail_over(*([self._master(servers)] if isinstance(servers, Cluster) else []))
        return at_once

    def _delay_replication(self, servers: Replicated) -> Callable[[], object]:
        """Replicas are behind a slow link, and lack what is on its way when the master is killed."""
        master = servers.master()
        link = Proxy(master.host, master.internal_port).start()
        link.latency(self._random.uniform(0.01, 0.1))
        for replica in servers.replicas():
            replica.ask("REPLICAOF", link.host, link.port)
            eventually(lambda: replica.ask("ROLE")[2:4] == [link.port, "connected"])  # noqa: B023

        linked = monotonic()

        def fail() -> None:
            time.sleep(max(0.0, linked + CONFIRMED - monotonic()))
            self._strike(servers, "kill", servers.restart)()
            link.close()

        return fail

    def _strike(self, servers: Any, strike: str, restore: Callable[[Any], object]) -> Callable[[], object]:
        master = self._master(servers)
        self._load.permits_are_lost = True
        getattr(servers, strike)(master)
        if isinstance(servers, Replicated):
            servers.fail_over()
        else:
            servers.wait_for_promotion(master)

        def goes_on() -> None:
            self._let_all_reach()
            restore(master)

        return goes_on

    def _strike_replica(self, servers: Any, strike: str, restore: Callable[[Any], object]) -> Callable[[], object]:
        masters = servers.masters() if isinstance(servers, Cluster) else [servers.master()]
        replica = self._random.choice([node for node in servers.nodes if node not in masters])
        getattr(servers, strike)(replica)
        return lambda: restore(replica)

    def _move_slot(self, cluster: Cluster) -> Callable[[], object]:
        _, name = self._random.choice(sorted(self._load.wanted))
        slot = cluster.slot_of_key(name)
        source = cluster.node_of(slot)
        to = self._random.choice([node for node in cluster.masters() if node is not source])
        if cluster.version >= (8, 4) and self._random.random() < 0.5:
            cluster.move_atomically(slot, slot, to)
            return at_once
        if not cluster._tls and self._random.random() < 0.5 and (program := shutil.which("redis-cli")) is not None:
            count = sum(map(cluster._view()[source.id].has, range(slot + 1)))
            how = f"--cluster-from {source.id} --cluster-to {to.id} --cluster-slots {count} --cluster-yes"
            command = [program, "--cluster", "reshard", f"{to.host}:{to.port}", *how.split()]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            return cluster.wait_until_consistent
        cluster.begin_move(slot, to)
        time.sleep(self._random.uniform(0, 0.5))
        cluster.move_keys(slot)
        cluster.finish_move(slot)
        return at_once


def refuse(proxy: Proxy) -> None:
    proxy.refuse(True)
    proxy.cut(reset=True)


def withdraw(fault: Fault, proxy: Proxy) -> None:
    """The fault strikes nothing more. What it holds back goes on."""
    faults = proxy._conditions.faults
    if fault in faults:
        faults.remove(fault)
    if isinstance(fault, Hold) and fault.held.is_set():
        # Both mean that one of the two ends has given up the connection meanwhile.
        with contextlib.suppress(builtins.ConnectionError, builtins.TimeoutError):
            fault.deliver(0.2)
