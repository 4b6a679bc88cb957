"""When a script may leave a plain message out: the forms of a command, and the time after a change of the map."""

from __future__ import annotations

import random
from collections.abc import Callable

import hiredis
import pytest

from pyredisson._core import command, pack
from pyredisson._protocol.moving_slots import message_at_source
from pyredisson._protocol.no_reply import Reply
from pyredisson._protocol.pubsub import PubSub
from pyredisson._protocol.replies import as_error
from pyredisson._protocol.routing import RoutingTable
from pyredisson._protocol.scripts import ScriptSet, as_eval, as_publishing_both, script_name
from pyredisson._protocol.settling import Settling
from tests.support.topologies import LAST, address, make_node, shard, view

AUTO, BOTH, SHARDED = (ScriptSet(pubsub) for pubsub in (PubSub.AUTO, PubSub.BOTH, PubSub.SHARDED))
CHANNEL = b"redisson_lock__channel:{orders}"
SECONDS = 15.0
ACQUIRE = pack(AUTO.lock_acquire, b"orders", b"me:1", b"1", b"30000")


def release(scripts: ScriptSet) -> bytes:
    """A command that publishes."""
    return pack(scripts.lock_release, b"orders", CHANNEL, b"me:1", b"0")


def permit_release(scripts: ScriptSet) -> bytes:
    """One that publishes, whose number of keys varies."""
    return command(b"EVALSHA", scripts.permit_release, b"2", b"orders", b"{orders}:timeout", CHANNEL, b"0", b"id")


def words(payload: bytes) -> list[bytes]:
    reader = hiredis.Reader()
    reader.feed(payload)
    found: list[bytes] = reader.gets()
    assert reader.gets() is False
    return found


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("call", [release, permit_release])
@pytest.mark.parametrize("flags", [True, False], ids=["", "first-line-unknown"])
def test_the_form_of_a_call_that_publishes_both_flavours(call: Callable[[ScriptSet], bytes], flags: bool) -> None:
    auto, both = ScriptSet(PubSub.AUTO), ScriptSet(PubSub.BOTH)
    for scripts in (auto, both):
        scripts.use(with_shebang=flags)
    assert as_publishing_both(call(auto)) == call(both)
    assert as_publishing_both(as_eval(call(auto), with_shebang=flags)) == as_eval(call(both), with_shebang=flags)
    for scripts in (both, ScriptSet(PubSub.SHARDED), ScriptSet(PubSub.PLAIN)):
        for payload in (call(scripts), as_eval(call(scripts), with_shebang=True)):
            assert as_publishing_both(payload) == payload


@pytest.mark.parametrize(
    "payload",
    [
        ACQUIRE,
        as_eval(ACQUIRE, with_shebang=True),
        command(b"PING"),
        command(b"SET", release(AUTO), as_eval(release(AUTO), with_shebang=True)),
        command(b"EVALSHA", b"0" * 40, b"0"),
        command(b"EVAL", b"return 1", b"0"),
    ],
)
def test_other_commands_have_no_other_form(payload: bytes) -> None:
    assert as_publishing_both(payload) == payload
    assert script_name(words(payload)) in ("", "lock_acquire")


def test_the_name_of_a_script() -> None:
    for payload in (release(AUTO), as_eval(release(SHARDED), with_shebang=True)):
        assert script_name(words(payload)) == "lock_release"


class TestTime:
    """For some time after a change every command publishes both."""

    def test_after_a_change(self) -> None:
        clock = Clock()
        settling = Settling(SECONDS, clock)
        assert settling.command(release(AUTO)) == release(AUTO)
        for _ in range(3):
            settling.on_change()
            clock.now += SECONDS - 0.1
            assert settling.command(release(AUTO)) == release(BOTH)
            assert len(settling.changes) == 1
        clock.now += 0.2
        assert settling.command(release(AUTO)) == release(AUTO)
        assert not settling.changes

    def test_behind_asking(self) -> None:
        settling = Settling(SECONDS, Clock())
        assert settling.command(release(AUTO), asking=True) == release(BOTH)
        assert settling.command(release(SHARDED), asking=True) == release(SHARDED)

    def test_where_it_does_not_matter(self) -> None:
        settling = Settling()
        settling.on_change()
        assert not settling.changes

    def test_changes_while_commands_are_sent(self) -> None:
        """Whatever the order of the steps, no change is forgotten before its time is over."""
        rng = random.Random(1)
        clock = Clock()
        settling = Settling(SECONDS, clock)
        latest = -SECONDS
        for _ in range(500):
            clock.now += rng.choice([0.0, 1.0, SECONDS])
            if rng.random() < 0.3:
                settling.on_change()
                latest = clock.now
            both = settling.command(release(AUTO)) == release(BOTH)
            assert both is (clock.now <= latest + SECONDS)

    def test_what_changes_the_map(self) -> None:
        table = RoutingTable(make_node, None, SECONDS)
        assert not table.settling.changes
        table.apply(view(shard(0, ((0, LAST),)), shard(1, ())), table.begin_view())
        assert table.settling.changes
        table.settling.changes.clear()
        table.apply(view(shard(0, ((0, LAST),)), shard(1, ())), table.begin_view())
        assert not table.settling.changes
        # Only the replicas are others.
        table.apply(view(shard(0, ((0, LAST),), 3, 4), shard(1, ())), table.begin_view())
        assert not table.settling.changes
        table.redirect(as_error(f"ASK 1 {address(1)}"), table.nodes[address(0)])
        assert not table.settling.changes
        table.redirect(as_error(f"MOVED 1 {address(1)}"), table.nodes[address(0)])
        assert table.settling.changes
        # The first of these views confirms the redirect.
        for first, second in ((((0, 0), (2, LAST)), ((1, 1),)), (((0, 8191),), ((8192, LAST),))):
            table.settling.changes.clear()
            table.apply(view(shard(0, first), shard(1, second)), table.begin_view())
            assert table.settling.changes


class TestMessagesAtTheSource:
    """What has followed ASK publishes once more, on the node where the waiters are."""

    @pytest.mark.parametrize("reply", [1, None])
    @pytest.mark.parametrize("scripts", [AUTO, BOTH, SHARDED])
    def test_a_release(self, scripts: ScriptSet, reply: Reply) -> None:
        for payload in (release(scripts), as_eval(release(scripts), with_shebang=True)):
            assert message_at_source(payload, reply) == command(b"SPUBLISH", CHANNEL, b"0")

    @pytest.mark.parametrize("reply", [0, as_error("TRYAGAIN"), as_error("NOSCRIPT")])
    def test_what_released_nothing(self, reply: Reply) -> None:
        assert message_at_source(release(AUTO), reply) is None

    def test_a_release_without_a_channel(self) -> None:
        assert message_at_source(pack(AUTO.lock_release, b"orders", b"", b"me:1", b"0"), 1) is None

    def test_permits(self) -> None:
        found = message_at_source(permit_release(AUTO), [])
        assert found is not None
        assert words(found)[:2] == [b"SPUBLISH", CHANNEL]
        assert int(words(found)[2]) > 1_000_000

    def test_an_acquire(self) -> None:
        assert message_at_source(ACQUIRE, None) is None
