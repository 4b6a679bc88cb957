"""What is known of servers, without servers: redirects, replicas, kinds of scripts and errors, batches of messages."""

from __future__ import annotations

import pytest
from redis.exceptions import NoPermissionError, ReadOnlyError

from pyredisson._protocol.pubsub import PubSub, Subscription
from pyredisson._protocol.replication import ReplicaState, Replication
from pyredisson._protocol.replies import as_error
from pyredisson._protocol.routing import RoutingTable
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._protocol.topology import unconfirmed_master
from tests.support.topologies import LAST, address, ask, make_node, moved, shard, view


def test_what_a_redirect_says_about_two_nodes() -> None:
    table = RoutingTable(make_node, None)
    table.apply(view(shard(0, ((0, 99),), 3), shard(1, ((200, LAST),))), table.begin_view())
    assert [table.node_of_slot(number) is not None for number in (99, 100, 199, 200, 201)] == [
        True,
        False,
        False,
        True,
        True,
    ]
    asked = table.nodes[address(1)]
    assert table.continues(moved(300, 0), asked)
    assert table.continues(ask(300, 5), asked)
    # A replica that has taken over may lack the latest writes.
    assert not table.continues(moved(300, 3), asked)
    assert table.redirect_target is None
    assert table.redirect_target is not table.redirect(moved(300, 0), asked) is table.redirect_target


def test_replicas_that_leave_and_come_back() -> None:
    state, replica = ReplicaState(), address(3)
    state.set(Replication(True, b"h", b"", (replica,)), (), 1.0)
    for now in (2.0, 3.0):
        state.set(Replication(True, b"h", b"", ()), (), now)
        assert (state.away, state.left) == ((replica,), {replica: 2.0})
    state.on_unreachable(replica, 9.0)
    state.set(Replication(True, b"h", b"", (replica,)), (), 4.0)
    assert (state.away, state.left, state.unreachable) == ((), {}, {})


def test_a_master_that_may_not_be_asked() -> None:
    refused = NoPermissionError("NOPERM")
    (found,) = unconfirmed_master((refused, refused, b"run_id:x\r\n"), address(0), 3).shards  # type: ignore[union-attr]
    assert (found.master.address, found.replicas) == (address(0), ())
    assert unconfirmed_master((refused, b"role:master", b""), address(0), 3) is None


@pytest.mark.parametrize(("shared", "expected"), [(False, [False, True]), (True, [False, False])])
def test_servers_that_know_scripts_in_different_forms(shared: bool, expected: list[bool]) -> None:
    scripts, forms = ScriptSet(shared=shared), []
    for with_shebang in (False, True):
        scripts.on_connected(with_shebang=with_shebang)
        forms.append(scripts.with_shebang)
    assert forms == expected


def test_an_error_inside_of_a_script() -> None:
    text = "@user_script:1: -READONLY You can't write against a read only replica."
    assert isinstance(as_error(f"ERR Error running script (call to f_1): {text}"), ReadOnlyError)
    assert str(as_error(f"ERR unexpected: {text}")) == f"ERR unexpected: {text}"


def test_messages_of_two_batches_are_two_messages() -> None:
    class Channels:
        heard = 0

        def deliver(self, _: bytes, __: bytes) -> None:
            self.heard += 1

    channels = Channels()
    subscription = Subscription(channels, PubSub.BOTH)  # type: ignore[arg-type]
    subscription.on_replies([[b"message", b"a", b"1"], [b"smessage", b"a", b"1"]])
    assert channels.heard == 1
    subscription.on_replies([[b"message", b"a", b"1"]])
    subscription.on_replies([[b"smessage", b"a", b"1"]])
    assert channels.heard == 3
