"""A reader's lease is valid to its very end; only a virtual clock can test that."""

from __future__ import annotations

import pytest

from pyredisson._core import command, pack
from pyredisson._protocol.no_reply import Reply
from pyredisson._protocol.scripts import ScriptSet

from .simulator.server import Server

LOCK, LEASES, CLAIM, CHANNEL = b"a", b"{a}:", b"pyredisson_rwlock_writer:{a}", b"redisson_rwlock:{a}"
TURN = b"pyredisson_rwlock_turn:{orders}"
SHORT, LONG = 50, 30_000


class Lock:
    """A read-write lock on a server whose time stands still but for `advance_time`."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._server = Server(lambda: self._now, lambda *_: 0)
        self._server.load_all()
        self._scripts = ScriptSet()

    def advance_time(self, ms: int) -> None:
        self._now += ms / 1000 + 1e-6

    def ask(self, *words: bytes) -> Reply:
        return self._server.execute(command(*words))

    def read(self, reader: bytes, lease: int) -> Reply:
        head = self._scripts.read_acquire
        return self._server.execute(pack(head, LOCK, LEASES, CLAIM, reader, 1, lease, reader + b":write"))

    def leave(self, reader: bytes) -> Reply:
        return self._server.execute(pack(self._scripts.read_release, LOCK, LEASES, TURN, CHANNEL, reader, 0))

    def renew(self, reader: bytes, lease: int) -> Reply:
        return self.ask(b"EVALSHA", self._scripts.read_renew, b"1", LOCK, LEASES, reader, b"%d" % lease)


@pytest.mark.parametrize(("passed", "left"), [(SHORT - 1, 1), (SHORT, 1), (SHORT + 1, None)])
def test_another_reader_leaves(passed: int, left: int | None) -> None:
    lock = Lock()
    assert lock.read(b"me:1", SHORT) is None
    assert lock.read(b"you:1", LONG) is None
    lock.advance_time(passed)
    assert lock.leave(b"you:1") == (1 if left is None else 0)
    assert lock.ask(b"PTTL", LOCK) == (-2 if left is None else left)
    assert lock.ask(b"HEXISTS", LOCK, b"me:1") == (left is not None)


@pytest.mark.parametrize(("passed", "kept"), [(SHORT, 1), (SHORT + 1, 0)])
def test_a_fixed_lease_is_kept(passed: int, kept: int) -> None:
    lock = Lock()
    assert lock.read(b"me:1", SHORT) is None
    assert lock.read(b"you:1", LONG) is None
    lock.advance_time(passed)
    assert lock.renew(b"me:1", 0) == [kept]
