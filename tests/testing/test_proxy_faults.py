"""Faults that the proxy injects into single requests and replies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis import Redis

from pyredisson.testing import Fault, Proxy, Server
from tests.support.bare_connection import BareConnection, Dial
from tests.support.waiting import eventually


def test_after_a_dropped_reply_its_connection_is_silent(proxy: Proxy, dial: Dial, admin: Redis) -> None:
    """TCP delivers in order: a client must not get a later reply in place of the lost one."""
    fault = proxy.drop_reply(b"INCR")
    connection = dial()
    connection.send("PING", "INCR n", "PING", "INCR n")
    assert connection.receive() == b"PONG"
    assert connection.silent()
    assert fault.happened.wait(5)
    eventually(lambda: admin.get("n") == b"2")
    connection.send("INCR n")
    assert dial().ask("INCR n") in {3, 4}
    assert connection.silent()
    eventually(lambda: admin.get("n") == b"4")
    assert proxy.connections == 2


def test_held_and_then_dropped(proxy: Proxy, dial: Dial, admin: Redis) -> None:
    """Both on one connection: what is held goes on first, or not at all."""
    hold = proxy.hold_reply(b"GET")
    proxy.drop_reply(b"INCR")
    early = dial()
    early.send("GET n", "INCR n", "PING")
    assert hold.held.wait(5)
    hold.deliver()
    assert early.receive() is None
    assert early.silent()
    hold = proxy.hold_reply(b"GET")
    early.send("GET n")
    assert hold.held.wait(5)
    hold.deliver()
    assert early.silent()


def test_what_does_not_fit_is_refused(proxy: Proxy) -> None:
    for times in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            proxy.drop_reply(times=times)
    with pytest.raises(RuntimeError, match="nothing containing"):
        proxy.hold_request(b"SET").deliver()


def test_a_dropped_subscription_is_dropped_whole(proxy: Proxy, dial: Dial, admin: Redis) -> None:
    proxy.drop_reply(b"SUBSCRIBE")
    connection = dial()
    connection.send("SUBSCRIBE a b", "PING")
    assert connection.silent()
    eventually(lambda: admin.pubsub_numsub("b") == [(b"b", 1)])
    assert admin.publish("b", "1") == 1
    assert connection.silent()


@pytest.mark.parametrize(("cut", "arrived"), [(Proxy.cut_reply, 1), (Proxy.cut_request, 0)])
def test_cut(proxy: Proxy, dial: Dial, admin: Redis, cut: Callable[[Proxy, bytes], Fault], arrived: int) -> None:
    fault = cut(proxy, b"INCR")
    connection = dial()
    if arrived:
        connection.send("SET a 1", "INCR n", "GET a")
        assert connection.receive() == b"OK"
    else:
        connection.send("INCR n")
    with pytest.raises((EOFError, ConnectionError)):
        connection.receive()
    assert fault.happened.is_set()
    assert dial().ask("INCR n") == arrived + 1


def test_held_request(proxy: Proxy, dial: Dial, admin: Redis) -> None:
    hold = proxy.hold_request(b"SET")
    connection, other = dial(), dial()
    connection.send("PING", "SET a 1", "GET a")
    assert connection.receive() == b"PONG"
    assert hold.held.wait(5)
    assert connection.silent()
    assert other.ask("GET a") is None
    assert not hold.delivered.is_set()
    hold.deliver()
    assert admin.get("a") == b"1"
    assert [connection.receive(), connection.receive()] == [b"OK", b"1"]


@pytest.mark.parametrize("leave", ["client", "proxy", "reset"])
def test_a_held_request_arrives_after_its_client_has_gone(proxy: Proxy, dial: Dial, admin: Redis, leave: str) -> None:
    hold = proxy.hold_request(b"INCR")
    connection = dial()
    connection.send("INCR n")
    assert hold.held.wait(5)
    if leave == "client":
        connection.socket.close()
    else:
        proxy.cut(reset=leave == "reset")
    proxy.wait_for(lambda: proxy.connections == 0)
    assert admin.get("n") is None
    hold.deliver()
    assert admin.get("n") == b"1"
    hold.deliver()
    assert admin.get("n") == b"1"


def test_a_held_request_for_a_dead_server(own_server: Server) -> None:
    with Proxy(own_server.host, own_server.port) as proxy:
        connection = BareConnection(proxy)
        hold = proxy.hold_request(b"SET")
        connection.send("SET a 1")
        assert hold.held.wait(5)
        own_server.kill()
        with pytest.raises(EOFError):
            connection.receive()
        with pytest.raises(ConnectionError, match="closed the connection"):
            hold.deliver()
        connection.socket.close()


def test_held_reply(proxy: Proxy, dial: Dial, admin: Redis) -> None:
    hold = proxy.hold_reply(b"INCR")
    connection = dial()
    connection.send("PING", "INCR n", "GET n")
    assert connection.receive() == b"PONG"
    assert hold.held.wait(5)
    assert admin.get("n") == b"1"
    assert connection.silent()
    hold.deliver()
    assert [connection.receive(), connection.receive()] == [1, b"1"]


def test_the_oldest_fault_that_matches_strikes_as_often_as_it_may(proxy: Proxy, dial: Dial) -> None:
    first, second = proxy.drop_reply(b"SET", times=2), proxy.cut_reply(b"SET")
    for number in range(2):
        connection = dial()
        connection.send("SET a 1", "PING")
        assert connection.silent()
        assert first.happened.wait(5)
        assert (first.left, second.happened.is_set()) == (1 - number, False)
    with pytest.raises((EOFError, ConnectionError)):
        dial().ask("SET a 2")
