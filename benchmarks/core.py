"""The compiled core beside equivalent plain Python."""

from __future__ import annotations

import binascii
import heapq
import random
from collections.abc import Callable, Mapping
from time import perf_counter
from timeit import Timer as Stopwatch
from typing import Any

from redis.cluster import RedisCluster
from redis.crc import key_slot

from benchmarks import Row, Target
from benchmarks.measure import Samples, interleave, one_core
from pyredisson._core import SlotMap, Timer, Wheel, command, pack, slot
from pyredisson.testing import Server

TICKS = 10_000
STEP = 100
STRETCHES = 5
STRETCH = 0.003
"""Seconds."""
NAME = "lock:orders:12345678"
"""20 bytes."""
OWNER = b"b983c153-7421-469a-addb-44fb92259a1b:4294967296"
HEAD = b"*7\r\n$7\r\nEVALSHA\r\n$40\r\n" + b"a" * 40 + b"\r\n$1\r\n1\r\n"
"""The beginning of the command that acquires a lock: one key and three arguments follow."""


def rows(*, quick: bool) -> list[Row]:
    """Slots, routes and commands: time per call. The timer wheel: time per timer, with a million timers."""
    rounds = 5 if quick else 25
    with one_core():
        return [*_calls(rounds), *_routes(rounds), *_wheel(100_000 if quick else 1_000_000, 1 if quick else 3)]


def _calls(rounds: int) -> list[Row]:
    acquire = {"head": HEAD, "key": NAME.encode(), "owner": OWNER}
    renewal = {"args": [b"EVALSHA", b"a" * 40, 100, *[NAME.encode()] * 100, 30000, *[OWNER] * 100]}

    def beside(python: str, ours: Any, theirs: Any, call: str, names: Mapping[str, object]) -> Samples:
        contenders = {"pyredisson": ours, python: theirs}
        return interleave(
            {who: _per_call(call, {**names, "f": function}) for who, function in contenders.items()}, rounds
        )

    slots = beside("binascii", slot, _slot, "f(name)", {"name": NAME})
    packs = beside("bytes %", pack, _pack, "f(head, key, owner, 1, 30000)", acquire)
    commands = beside("bytes %", command, _command, "f(*args)", renewal)
    return [
        _row("slot *", "the cluster slot of a 20-byte name", slots, Target("ours", "<=", 60)),
        _row("pack *", "the command that takes a lock, its constant beginning made before", packs, None),
        _row("command *", "the command that renews 100 locks", commands, None),
    ]


def _routes(rounds: int) -> list[Row]:
    slots = SlotMap()
    slots.assign(0, 16383, object())
    payload = pack(HEAD, NAME.encode(), OWNER, 1, 30000)
    with Server(config={"cluster-enabled": "yes"}) as server:
        with server.redis() as node:
            node.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        with RedisCluster(server.host, server.port) as cluster:
            by_slot = _per_call(
                "node(key_slot(name))",
                {"node": cluster.nodes_manager.get_node_from_slot, "key_slot": key_slot, "name": NAME.encode()},
            )
            by_key = _per_call("node(name)", {"node": cluster.get_node_from_key, "name": NAME})
            theirs = {"redis-py's get_node_from_key": by_key, "its key_slot and get_node_from_slot": by_slot}
            by_name = {"pyredisson": _per_call("node(name)", {"node": slots.node, "name": NAME}), **theirs}
            by_payload = {
                "pyredisson": _per_call("node_for(payload)", {"node_for": slots.node_for, "payload": payload}),
                **theirs,
            }
            names, payloads = interleave(by_name, rounds), interleave(by_payload, rounds)
    return [
        _row("route name *", "from a name to the node that serves its slot", names, Target("ratio", "<=", 0.2)),
        _row(
            "route command *",
            "from a packed command to the node that serves the slot of its key; redis-py: from the name",
            payloads,
            Target("ours", "<=", 100),
        ),
    ]


def _wheel(count: int, rounds: int) -> list[Row]:
    dues = [random.Random(1).randrange(1, TICKS + 1) for _ in range(count)]
    timed: dict[str, dict[str, list[float]]] = {}

    def contender(name: str, run: Callable[[list[int]], dict[str, float]]) -> Callable[[], float]:
        def turn() -> float:
            figures = run(dues)
            for what, nanoseconds in figures.items():
                timed.setdefault(what, {}).setdefault(name, []).append(nanoseconds)
            return sum(figures.values())

        return turn

    interleave({"pyredisson": contender("pyredisson", _our_wheel), "heapq": contender("heapq", _heap)}, rounds)
    whats = {
        "add": f"one of {count:,} timers put in",
        "discard": f"one of {count:,} timers taken out before it is due",
        "expire": f"one of {count:,} timers coming due, {TICKS // STEP} steps of {STEP} ticks",
    }
    return [
        _row(f"wheel {what} *", text, _samples(timed[what], rounds), Target("ours", "<=", 300))
        for what, text in whats.items()
    ]


def _samples(by_name: dict[str, list[float]], rounds: int) -> Samples:
    return Samples([{name: runs[-rounds:][i] for name, runs in by_name.items()} for i in range(rounds)])


def _row(name: str, what: str, samples: Samples, target: Target | None) -> Row:
    baseline, *_ = samples.medians("pyredisson")
    return Row(
        name=name,
        what=what,
        unit="ns",
        ours=samples.median("pyredisson"),
        baselines=samples.medians("pyredisson"),
        ratio=samples.ratio("pyredisson", baseline),
        target=target,
    )


def _per_call(statement: str, names: dict[str, object]) -> Callable[[], float]:
    """A contender that returns nanoseconds per call, of the fastest series, to exclude interruptions."""
    watch = Stopwatch(statement, globals=names)
    calls = max(1, int(100 * STRETCH / watch.timeit(100)))
    return lambda: min(watch.repeat(STRETCHES, calls)) / calls * 1e9


def _slot(name: str) -> int:
    data = name.encode()
    start = data.find(b"{")
    if start >= 0 and (end := data.find(b"}", start + 1)) > start + 1:
        data = data[start + 1 : end]
    return binascii.crc_hqx(data, 0) % 16384


def _pack(head: bytes, *args: bytes | int) -> bytes:
    parts = [head]
    for arg in args:
        body = b"%d" % arg if isinstance(arg, int) else arg
        parts.append(b"$%d\r\n%b\r\n" % (len(body), body))
    return b"".join(parts)


def _command(*args: bytes | int) -> bytes:
    return _pack(b"*%d\r\n" % len(args), *args)


def _our_wheel(dues: list[int]) -> dict[str, float]:
    wheel = Wheel()
    timers = [Timer() for _ in dues]
    began = perf_counter()
    for timer, due in zip(timers, dues, strict=True):
        wheel.add(timer, due)
    added = perf_counter()
    for timer in timers:
        wheel.discard(timer)
    discarded = perf_counter()
    for timer, due in zip(timers, dues, strict=True):
        wheel.add(timer, due)
    filled = perf_counter()
    for now in range(0, TICKS + STEP, STEP):
        wheel.advance(now)
    expired = perf_counter()
    return _nanoseconds(len(dues), added - began, discarded - added, expired - filled)


def _heap(dues: list[int]) -> dict[str, float]:
    # The alternative to a wheel: a heap, and a dict of the entries that are still valid.
    def fill() -> tuple[list[tuple[int, int]], dict[int, int]]:
        heap: list[tuple[int, int]] = []
        live: dict[int, int] = {}
        for key, due in enumerate(dues):
            live[key] = due
            heapq.heappush(heap, (due, key))
        return heap, live

    began = perf_counter()
    _, live = fill()
    added = perf_counter()
    for key in range(len(dues)):
        del live[key]
    discarded = perf_counter()
    heap, live = fill()
    filled = perf_counter()
    for now in range(0, TICKS + STEP, STEP):
        due = []
        while heap and heap[0][0] <= now:
            key = heapq.heappop(heap)[1]
            if live.pop(key, None) is not None:
                due.append(key)
    expired = perf_counter()
    return _nanoseconds(len(dues), added - began, discarded - added, expired - filled)


def _nanoseconds(count: int, add: float, discard: float, expire: float) -> dict[str, float]:
    return {"add": add / count * 1e9, "discard": discard / count * 1e9, "expire": expire / count * 1e9}
