"""Faults that the proxy injects into single requests and replies."""

from __future__ import annotations

import pytest
from redis import Redis

from pyredisson.testing import Proxy, Server
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


def test_replies_dropped_on_one_connection_each(proxy: Proxy, dial: Dial, admin: Redis) -> None:
    fault = proxy.drop_reply(b"INCR", times=2)
    first, second, third = dial(), dial(), dial()
    first.send("INCR n")
    assert first.silent()
    assert fault.happened.wait(5)
    second.send("INCR n", "PING")
    assert second.silent()
    eventually(lambda: admin.get("n") == b"2")
    assert third.ask("INCR n") == 3


def test_a_connection_with_a_dropped_reply_does_not_tell_of_the_servers_end(own_server: Server) -> None:
    with Proxy(own_server.host, own_server.port) as proxy:
        fault = proxy.drop_reply(b"INCR")
        connection = BareConnection(proxy)
        connection.send("INCR n")
        assert fault.happened.wait(5)
        assert connection.silent()
        own_server.kill()
        assert connection.silent()
        assert proxy.connections == 1
        connection.socket.close()
        proxy.wait_for(lambda: proxy.connections == 0)


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


@pytest.mark.parametrize("times", [0, -1])
def test_a_fault_strikes_at_least_once(proxy: Proxy, times: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        proxy.drop_reply(times=times)


def test_a_dropped_subscription_is_dropped_whole(proxy: Proxy, dial: Dial, admin: Redis) -> None:
    proxy.drop_reply(b"SUBSCRIBE")
    connection = dial()
    connection.send("SUBSCRIBE a b", "PING")
    assert connection.silent()
    eventually(lambda: admin.pubsub_numsub("b") == [(b"b", 1)])
    assert admin.publish("b", "1") == 1
    assert connection.silent()


def test_cut_reply(proxy: Proxy, dial: Dial, admin: Redis) -> None:
    fault = proxy.cut_reply(b"INCR")
    connection = dial()
    connection.send("SET a 1", "INCR n", "GET a")
    assert connection.receive() == b"OK"
    with pytest.raises((EOFError, ConnectionError)):
        connection.receive()
    assert fault.happened.is_set()
    assert admin.get("n") == b"1"
    assert dial().ask("INCR n") == 2


def test_cut_request(proxy: Proxy, dial: Dial, admin: Redis) -> None:
    fault = proxy.cut_request(b"INCR")
    connection = dial()
    with pytest.raises((EOFError, ConnectionError)):
        connection.ask("INCR n")
    assert fault.happened.is_set()
    assert admin.get("n") is None
    assert dial().ask("INCR n") == 1


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


def test_nothing_held_cannot_be_delivered(proxy: Proxy) -> None:
    with pytest.raises(RuntimeError, match="nothing containing"):
        proxy.hold_request(b"SET").deliver()


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


def test_the_oldest_fault_that_matches_strikes_alone(proxy: Proxy, dial: Dial) -> None:
    first, second = proxy.drop_reply(b"SET"), proxy.cut_reply(b"SET")
    connection = dial()
    connection.send("SET a 1")
    assert connection.silent()
    assert first.happened.wait(5)
    assert not second.happened.is_set()
    with pytest.raises((EOFError, ConnectionError)):
        dial().ask("SET a 2")
