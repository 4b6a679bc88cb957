"""`pyredisson doctor`: whether a server does what locks need, and what to do where it doesn't."""

import math
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from contextlib import ExitStack
from dataclasses import replace

import click
from redis.exceptions import NoPermissionError, RedisError

from pyredisson._api.sync.client import Client
from pyredisson._core import command
from pyredisson._diagnostics import printable, readable
from pyredisson._protocol.node import Node
from pyredisson._protocol.topology import CLUSTER_QUERY, TopologyView, read_slots
from pyredisson._settings.config import Config
from pyredisson.cli import INCOMPLETE, findings
from pyredisson.cli.findings import Finding, Level
from pyredisson.cli.options import Settings, common
from pyredisson.cli.reading import Reader, reader
from pyredisson.cli.tables import as_json
from pyredisson.errors import RedissonError
from pyredisson.inspection.announcements import with_missing_right
from pyredisson.inspection.model import LOCKS, State
from pyredisson.logic import retry
from pyredisson.logic.announcement import client_key

COLORS = {Level.OK: "green", Level.NOTE: "cyan", Level.WARNING: "yellow", Level.ERROR: "red"}
PINGS = 50
SLOW = 0.05
"""Seconds of a round trip from which on there is a warning."""
CLOCKS_DIFFER = 1.0
"""Seconds."""
MOST_SHARDS = 16
"""Masters whose messages are tested."""
MOST_NAMES = 100_000
"""Names among which one on a certain master is looked for."""
ROUNDS = 3
LATE = 0.9
"""A waiter that no message wakes looks again after a second."""
SUBSCRIBED = 0.3
"""Seconds after which a waiter has subscribed, as a rule."""
WALK_TIME, MOST_KEYS, MOST_OBJECTS, SHOWN = 30.0, 2_000_000, 20_000, 5
"""Bounds of the search for keys that leak."""
TRIED = ("Lock", "FairLock", "ReadWriteLock", "FencedLock", "Semaphore", "PermitExpirableSemaphore", "CountDownLatch")
RIGHTS = "the rights that it needs are in docs/operations.md; an administrator grants them by ACL SETUSER"


@click.command(
    epilog="""\b
Examples:
  pyredisson doctor
  pyredisson doctor --name orders --url redis://app@redis-1
  pyredisson doctor --json | jq 'select(.level != "ok")'

It acquires and releases locks whose names begin with --name, which it deletes, and looks at all keys for at most 30 s.
The exit status is 1 if there is an error."""
)
@click.option("--name", metavar="PREFIX", default="pyredisson:doctor", help="How the names begin that it tries.")
@click.option("--json", "as_lines", is_flag=True, help="One JSON object a line.")
@common
def doctor(settings: Settings, name: str, as_lines: bool) -> int:
    """Check the servers: version, rights, eviction, replicas, clocks, messages, round trip, leaks, deadlocks."""
    failed = False
    with reader(settings.config) as reading:
        checks = Checks(settings.config, reading, name)
        for finding in checks.all():
            failed = failed or finding.level is Level.ERROR
            if as_lines:
                click.echo(as_json(finding))
                continue
            level = click.style(f"{finding.level:8}", fg=COLORS[finding.level])
            where = f"{finding.server}: " if len(checks.masters) > 1 and finding.server else ""
            line = f"{level} {finding.check:12} {where}{printable(finding.text)}"
            click.echo(line, color=None if settings.color else False)
            if finding.advice:
                click.echo(f"{'':21} -> {printable(finding.advice)}")
    return INCOMPLETE if failed else 0


# --- The checks


class Checks:
    """The checks of one installation. `name`: what the names begin with that they acquire."""

    def __init__(self, config: Config, reading: Reader, name: str) -> None:
        self._config = config
        self._reading = reading
        self._name = f"{name}:{uuid.uuid4().hex[:8]}"
        self.masters = reading.run(reading.runtime.masters)

    def all(self) -> Iterator[Finding]:
        for node in [*self.masters]:
            try:
                yield from (replace(finding, server=node.address) for finding in self._of_server(node))
            except RedisError as error:
                if len(self.masters) == 1:
                    raise
                # The others are checked all the same: somebody wants to know what is wrong.
                self.masters.remove(node)
                advice = "start it again, or have a replica take over: its locks can't be acquired"
                yield Finding("available", Level.ERROR, f"it doesn't serve: {error}", advice, node.address)
        if self._config.topology == "cluster":
            yield from self._cluster()
        yield from self._clocks()
        yield from self._primitives()
        yield from self._announcement()
        for node in self.masters[:MOST_SHARDS]:
            yield replace(self._message_through(node), server=node.address)
        yield from self._keys()

    # --- What a server says of itself

    def _of_server(self, node: Node) -> Iterator[Finding]:
        info_reply, buffer_reply = self._reading.ask(
            node, command(b"INFO"), command(b"CONFIG", b"GET", b"client-output-buffer-limit")
        )
        if isinstance(info_reply, RedisError):
            yield _unchecked("version", "INFO", info_reply)
        else:
            info = findings.fields_of(info_reply)
            yield from findings.version(info)
            yield from findings.memory(info)
            yield from findings.persistence(info)
            yield from findings.replication(info, expects_replicas=self._config.topology != "single")
        if isinstance(buffer_reply, RedisError):
            yield _unchecked("buffers", "CONFIG|GET", buffer_reply)
        elif buffer_reply:
            yield from findings.buffers(buffer_reply[1].decode())
        yield self._round_trip(node)

    def _round_trip(self, node: Node) -> Finding:
        times = self._reading.round_trips(node, PINGS)
        text = f"round trip {times[PINGS // 2] * 1000:.2f} ms, at most {times[-1] * 1000:.2f} ms in {PINGS}"
        if times[PINGS // 2] < SLOW:
            return Finding("latency", Level.OK, text)
        advice = "run nearer to the server, or look for what delays it: redis-cli --latency, SLOWLOG GET"
        return Finding("latency", Level.WARNING, text, advice)

    def _cluster(self) -> Iterator[Finding]:
        """Whether each master sees all slots, and whether they agree on who serves which."""
        views: dict[str, TopologyView] = {}
        for node in self.masters:
            slots_reply, info_reply = self._reading.ask(node, *CLUSTER_QUERY)
            if isinstance(info_reply, RedisError):
                yield _unchecked("cluster", "CLUSTER|INFO", info_reply, node.address)
            else:
                yield from findings.cluster(findings.fields_of(info_reply), node.address)
            if isinstance(slots_reply, RedisError):
                yield _unchecked("cluster", "CLUSTER|SLOTS", slots_reply, node.address)
            else:
                views[node.address] = read_slots(slots_reply, node.endpoint)
        yield from findings.slot_maps(views)

    def _clocks(self) -> Iterator[Finding]:
        ahead = []
        for node in self.masters:
            [reply] = self._reading.ask(node, command(b"TIME"))
            if isinstance(reply, RedisError):
                yield _unchecked("clock", "TIME", reply, node.address)
                return
            ahead.append(int(reply[0]) + int(reply[1]) / 1e6 - time.time())
        if max(ahead) - min(ahead) > CLOCKS_DIFFER:
            text = f"the masters' clocks differ by {max(ahead) - min(ahead):.1f} s"
            advice = "let NTP slew all of them: leases and fencing tokens follow these clocks"
            yield Finding("clock", Level.WARNING, text, advice)
        elif max(map(abs, ahead)) > CLOCKS_DIFFER:
            text = f"the server's clock is {ahead[0]:+.1f} s from this machine's, which harms no lock"
            yield Finding("clock", Level.NOTE, text, "let NTP slew both")
        else:
            yield Finding("clock", Level.OK, "the clocks of the servers and of this machine agree")

    # --- What can be done

    def _primitives(self) -> Iterator[Finding]:
        """Each primitive is used once, under a name of its own that is deleted."""
        all_usable = True
        for kind in TRIED:
            name = f"{self._name}:{kind}"
            name = self._on(self.masters, (f"{name}:{number}" for number in range(MOST_NAMES))) or name
            try:
                with ExitStack() as at_end:
                    _use(self._reading.client, kind, name, at_end)
            except (RedisError, RedissonError) as error:
                all_usable = False
                problem = with_missing_right(error) if isinstance(error, RedisError) else error
                level = Level.ERROR if kind == "Lock" else Level.WARNING
                advice = RIGHTS if isinstance(problem, NoPermissionError) else "the server's log says more"
                text = f"a {kind} can't be used: {problem}"
                yield Finding("rights", level, text, f"{advice}; --name PREFIX tests other names")
        if all_usable:
            yield Finding("rights", Level.OK, f"every primitive can be used, for names such as {self._name}")

    def _announcement(self) -> Iterator[Finding]:
        ids = (str(uuid.uuid4()) for _ in range(MOST_NAMES))
        key = client_key(self._on(self.masters, ids, client_key) or self._name)
        try:
            for payload in (
                command(b"PEXPIRE", key, 1000),
                command(b"HMGET", key, b"name"),
                command(b"HDEL", key, b"name"),
                command(b"DEL", key),
            ):
                self._reading.run(retry.send, self._reading.runtime, payload, retries=1)
            # It has no key, so it would go to any master.
            for reply in self._reading.ask(self.masters[0], command(b"TIME")):
                if isinstance(reply, RedisError):
                    raise reply
        except NoPermissionError as error:
            text = f"clients can't announce themselves, so it can't be said who holds a lock: {error}"
            yield Finding("announce", Level.NOTE, text, "grant ~pyredisson_client:*, +hmget, +hdel and +time")
        except RedisError as error:
            # Perhaps the key is on a master that doesn't serve, which is an error already.
            yield Finding("announce", Level.NOTE, f"not tested: {error}", "run it again when all masters serve")
        else:
            yield Finding("announce", Level.OK, "clients may announce themselves under pyredisson_client:*")

    def _message_through(self, node: Node) -> Finding:
        """Whether a waiter is woken by a release on this master."""
        name = self._on([node], (f"{self._name}:{number}" for number in range(MOST_NAMES)))
        if name is None:
            # As with a hash tag in `--name`.
            text = "not tested: no name of this test is on this server"
            advice = "run it again after a failover; --name without {...}, which keeps all names on one server"
            return Finding("pubsub", Level.NOTE, text, advice)
        try:
            fastest = min(self._wakes(name) for _ in range(ROUNDS))
        except (RedisError, RedissonError) as error:
            return Finding("pubsub", Level.ERROR, f"a waiter can't wait: {error}", RIGHTS)
        if fastest < LATE:
            text = f"messages arrive: a waiter has the lock {fastest * 1000:.1f} ms after its release"
            return Finding("pubsub", Level.OK, text)
        text = f"messages don't arrive: a waiter has the lock {fastest:.1f} s after its release"
        advice = "grant the channels (&...), and look at proxies and firewalls between client and server"
        return Finding("pubsub", Level.ERROR, text, advice)

    def _on(
        self, nodes: Sequence[Node], names: Iterable[str], key_of: Callable[[str], bytes] = str.encode
    ) -> str | None:
        """The first name whose key is on one of these masters. On one that hangs each use takes many seconds."""
        shard_of, alone = self._reading.runtime.shard_of, self._config.topology != "cluster"
        return next((name for name in names if alone or shard_of(key_of(name)) in nodes), None)

    def _wakes(self, name: str) -> float:
        """Seconds from a release to the acquire of a waiter in another client."""

        def acquired_at(other: Client) -> float:
            lock = other.get_lock(name)
            if not lock.try_lock(wait_time=5 * LATE, lease_time=10):
                return math.inf
            at = time.monotonic()
            lock.unlock()
            return at

        with futures.ThreadPoolExecutor(1) as pool, Client(Config.of(self._config, announce=False)) as other:
            lock = self._reading.client.get_lock(name)
            lock.lock(10)
            waiter = pool.submit(acquired_at, other)
            # Until the other client listens. Without a subscription it looks again every second.
            futures.wait([waiter], SUBSCRIBED)
            released = time.monotonic()
            lock.unlock()
            futures.wait([waiter], 10 * LATE)
        return min(waiter.result() - released, 5 * LATE)

    # --- What is there

    def _keys(self) -> Iterator[Finding]:
        """Objects that stay for ever, and waiters that are dead."""
        try:
            discovery = self._reading.walk(time.monotonic() + WALK_TIME, most_keys=MOST_KEYS)
            found = dict(list(discovery.found.items())[:MOST_OBJECTS])
            states, failed = self._reading.found(found, [*discovery.clients])
        except NoPermissionError as error:
            yield Finding("keys", Level.NOTE, f"the keys can't be looked at: {error}", RIGHTS)
            return
        used = sum(state.in_use for state in states)
        extent = "a look at all" if discovery.done and not discovery.failed else "a look at some"
        yield Finding("keys", Level.OK, f"{used} objects are in use, by {extent} of {discovery.total} keys")
        for problem in {str(each) for each in [*discovery.failed.values(), *failed.values()]}:
            yield Finding("keys", Level.WARNING, f"some keys couldn't be read: {problem}", "run it again")
        yield from _leaks(states)
        deadlocks = self._reading.deadlocks([state.key for state in states if state.waiters])
        advice = "end one of these processes, or pyredisson unlock NAME; acquire locks in one order, or as a multi-lock"
        yield from (Finding("deadlocks", Level.ERROR, text, advice) for text in deadlocks)


def _leaks(states: list[State]) -> Iterator[Finding]:
    endless = [state.name for state in states if state.kind in LOCKS and state.held and state.time_to_live == math.inf]
    text = f"{len(endless)} locks have no lease, so nothing frees them if the holder is dead"
    yield from _named("leases", Level.WARNING, endless, text, "pyredisson inspect NAME, then pyredisson unlock NAME")
    ours = [
        readable(each.key)
        for state in states
        for each in state.companions
        if each.key.startswith(b"pyredisson_") and each.time_to_live == math.inf
    ]
    text = f"{len(ours)} keys of pyredisson have no TTL"
    yield from _named("ttl", Level.WARNING, ours, text, "redis-cli PEXPIRE KEY 7200000")
    dead = [state.name for state in states if any(waiter.is_silent for waiter in state.waiters)]
    text = "queues have waiters that are silent, and go when others ask"
    yield from _named("queues", Level.NOTE, dead, text, "pyredisson inspect NAME; if they stay, pyredisson rm NAME")
    tokens = [state.name for state in states if state.kind == "fenced" and not state.held and state.token is not None]
    text = f"{len(tokens)} counters of fencing tokens without a holder stay for ever"
    yield from _named("tokens", Level.NOTE, tokens, text, "pyredisson rm NAME, for names that aren't used any more")
    full = [state.name for state in states if state.kind == "semaphore" and state.free is not None and state.free <= 0]
    text = f"{len(full)} semaphores have no free permit, and no server knows who has the permits"
    advice = "pyredisson permits NAME --free N, if those who had them are gone"
    yield from _named("permits", Level.NOTE, full, text, advice)
    foreign = Counter(owner.holder.client_id for state in states for owner in state.owners if owner.holder.foreign)
    if foreign:
        yield Finding("java", Level.NOTE, f"{len(foreign)} clients of Redisson hold something")


def _named(check: str, level: Level, names: list[str], text: str, advice: str) -> Iterator[Finding]:
    """What is true of these objects; nothing if there are none."""
    if names:
        shown = ", ".join(printable(name) for name in names[:SHOWN])
        yield Finding(check, level, f"{text}: {shown}{', ...' if len(names) > SHOWN else ''}", advice)


def _unchecked(check: str, what: str, error: RedisError, server: str = "") -> Finding:
    text = f"can't be checked: {what.replace('|', ' ')} is refused ({error})"
    return Finding(check, Level.NOTE, text, f"grant +{what.lower()} to see it", server)


# --- One use of each primitive


def _use(client: Client, primitive: str, name: str, at_end: ExitStack) -> None:
    """Uses one of `TRIED`. None leaves a hold, or a key without a TTL: `at_end` releases and deletes."""
    match primitive:
        case "Lock":
            at_end.enter_context(client.get_lock(name).hold(wait_time=0, lease_time=10))
        case "FairLock":
            at_end.enter_context(client.get_fair_lock(name).hold(wait_time=0, lease_time=10))
        case "ReadWriteLock":
            both = client.get_read_write_lock(name)
            for side in (both.read_lock(), both.write_lock()):
                with side.hold(wait_time=0, lease_time=10):
                    pass
        case "FencedLock":
            lock = client.get_fenced_lock(name)
            at_end.callback(lock.delete)
            at_end.enter_context(lock.hold(wait_time=0, lease_time=10))
            lock.get_token()
        case "Semaphore":
            semaphore = client.get_semaphore(name)
            at_end.callback(semaphore.delete)
            semaphore.try_set_permits(1, ttl=60)
            at_end.enter_context(semaphore)
        case "PermitExpirableSemaphore":
            permits = client.get_permit_expirable_semaphore(name)
            at_end.callback(permits.delete)
            permits.try_set_permits(1)
            permits.release(permits.acquire(lease_time=10))
        case _:
            latch = client.get_count_down_latch(name)
            at_end.callback(latch.delete)
            latch.try_set_count(1)
            latch.count_down()
