"""The simulated server behaves as a real one: same scripts, same replies, same state, same messages."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis
from redis.exceptions import RedisError

from pyredisson._backends.threads.connection import Connection
from pyredisson._core import command, pack, prefixed
from pyredisson._protocol.no_reply import Reply
from pyredisson._protocol.node import Node
from pyredisson._protocol.scripts import ScriptSet, as_eval, script
from pyredisson._settings.config import Config
from pyredisson.logic.locks.commands import LockCommands
from pyredisson.testing import Server as RealServer

from .simulator.server import Server

KEYS = (b"a", b"b{tag}")
OWNERS = (b"me:1", b"me:2", b"you:1")
LEASES = (100_000, 200_000, 300_000)
SLACK = 50_000
"""Milliseconds: far less than leases differ by, far more than a test takes."""

keys = st.sampled_from(KEYS)
owners = st.sampled_from(OWNERS)
counts = st.integers(0, 3)
calls = st.one_of(
    st.tuples(st.just("acquire"), keys, owners, st.integers(1, 3), st.sampled_from(LEASES)),
    st.tuples(st.just("release"), keys, owners, counts),
    st.tuples(st.just("renew"), st.lists(st.tuples(keys, owners), min_size=1, max_size=3), st.sampled_from(LEASES)),
    st.tuples(st.just("force"), keys),
    st.tuples(st.just("expire"), keys),
    st.tuples(st.just("persist"), keys, owners),
    st.tuples(st.just("spoil"), keys),
    st.tuples(st.just("flush")),
    st.tuples(st.just("ask"), st.sampled_from((b"EXISTS", b"PTTL", b"HKEYS")), keys),
    st.tuples(st.just("get"), keys, owners),
)


class Both:
    """A real server and one in memory, which get the same commands."""

    def __init__(self, server: RealServer, admin: Redis) -> None:
        self._admin = admin
        self._node = Node(Config.of(server.url))
        self._real = Connection(self._node)
        self._real.open()
        self._scripts = ScriptSet()
        self._scripts.use(with_shebang=self._node.scripts.with_shebang)
        self._now = 1000.0
        self._heard: list[tuple[bytes, bytes]] = []
        self._model = Server(lambda: self._now, self._publish)
        self._channels = [prefixed(LockCommands.channel_prefix, key) for key in KEYS]
        self._ear = admin.pubsub()  # type: ignore[no-untyped-call]
        self._ear.subscribe(*self._channels)
        for _ in self._channels:
            assert self._next()["type"] == "subscribe"
        self._flush()

    def do(self, call: tuple[object, ...]) -> None:
        kind, *args = call
        getattr(self, f"_{kind}")(*args)
        self._same_state()

    def end(self) -> None:
        self._admin.publish(self._channels[0], b"end")
        heard = []
        while (message := self._next())["data"] != b"end":
            heard.append((message["channel"], message["data"]))
        assert heard == self._heard
        self._real.close()
        self._ear.close()

    def _next(self) -> dict[str, Any]:
        message: dict[str, Any] | None = self._ear.get_message(timeout=5)
        assert message is not None
        return message

    def _acquire(self, key: bytes, owner: bytes, count: int, lease: int) -> None:
        self._send(pack(self._scripts.lock_acquire, key, owner, count, lease))

    def _release(self, key: bytes, owner: bytes, count: int) -> None:
        self._send(pack(self._scripts.lock_release, key, prefixed(LockCommands.channel_prefix, key), owner, count))

    def _renew(self, pairs: list[tuple[bytes, bytes]], lease: int) -> None:
        locks, names = [key for key, _ in pairs], [name for _, name in pairs]
        self._send(command(b"EVALSHA", self._scripts.lock_renew, len(pairs), *locks, lease, *names))

    def _force(self, key: bytes) -> None:
        self._send(pack(self._scripts.lock_force_release, key, prefixed(LockCommands.channel_prefix, key)))

    def _expire(self, key: bytes) -> None:
        """On the real server it is deleted: what a script sees is the same."""
        left = self._model.execute(command(b"PTTL", key))
        if left >= 0:
            self._model.keyspace.valid_until[key] -= left + 1
            self._admin.delete(key)

    def _persist(self, key: bytes, owner: bytes) -> None:
        """A lock without an end, as others may leave one."""
        self._send(command(b"DEL", key))
        self._send(command(b"HSET", key, owner, b"1"))

    def _spoil(self, key: bytes) -> None:
        self._send(command(b"SET", key, b"no lock"))

    def _flush(self) -> None:
        self._admin.script_flush()
        self._model.flush_scripts()

    def _ask(self, name: bytes, key: bytes) -> None:
        self._send(command(name, key))

    def _get(self, key: bytes, owner: bytes) -> None:
        self._send(command(b"HGET", key, owner))

    def _send(self, payload: bytes) -> None:
        model = self._model.execute(payload)
        try:
            real = self._real.call(payload)
        except RedisError as error:
            real = error
        _same_reply(model, real)
        if str(real).startswith("NOSCRIPT"):
            self._send(as_eval(payload, with_shebang=self._scripts.with_shebang))

    def _publish(self, channel: bytes, payload: bytes) -> int:
        self._heard.append((channel, payload))
        return 1

    def _same_state(self) -> None:
        keyspace = self._model.keyspace
        for key in KEYS:
            value = keyspace.value(key)
            if isinstance(value, bytes):
                assert self._admin.get(key) == value
            else:
                assert self._admin.hgetall(key) == (value or {})
            _same_reply(self._model.execute(command(b"PTTL", key)), self._admin.pttl(key))


def _same_reply(model: Reply, real: Reply) -> None:
    if isinstance(model, RedisError):
        assert type(real) is type(model)
        assert str(real).partition(" ")[0] == str(model).partition(" ")[0]
    elif isinstance(model, int) and model > 1000:
        assert abs(model - real) < SLACK
    else:
        assert real == model
        assert type(real) is type(model)


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(sequence=st.lists(calls, min_size=5, max_size=40))
def test_same_as_a_real_server(server: RealServer, admin: Redis, sequence: list[tuple[object, ...]]) -> None:
    admin.flushall()
    both = Both(server, admin)
    for call in sequence:
        both.do(call)
    both.end()


def test_time_passes() -> None:
    """A key lives through the whole of its last millisecond, as on a real server."""
    now = 1000.0
    server = Server(lambda: now, lambda *_: 0)
    server.load_all()
    acquire = pack(ScriptSet().lock_acquire, b"a", b"me:1", 1, 250)
    other = pack(ScriptSet().lock_acquire, b"a", b"you:1", 1, 250)
    assert server.execute(acquire) is None
    now = 1000.25
    assert server.execute(other) == 0
    now = 1000.251
    assert server.execute(command(b"PTTL", b"a")) == -2
    assert server.execute(other) is None
    assert server.execute(command(b"HKEYS", b"a")) == [b"you:1"]


def test_every_script_is_known() -> None:
    server = Server(lambda: 0.0, lambda *_: 0)
    server.load_all()
    for flags in (False, True):
        sha = script("lock_acquire", with_shebang=flags).sha
        assert server.execute(command(b"EVALSHA", sha, 1, b"a", b"me:1", 1, 1000)) is None
