"""The proxy: it passes everything on, counts it, delays it, and refuses connections."""

from __future__ import annotations

import threading
import time

import pytest
import redis
from redis import Redis

from pyredisson.testing import Proxy, Server
from tests.support.bare_connection import BareConnection, Dial


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_client_notices_no_difference(proxy: Proxy, protocol: int) -> None:
    with redis.Redis.from_url(proxy.url, protocol=protocol) as client:
        big = b"x\r\n" * 100_000
        with client.pipeline(transaction=True) as pipeline:
            pipeline.set("a", big).get("a").hset("h", "f", "1").hgetall("h").lrange("none", 0, -1)
            assert pipeline.execute() == [True, big, 1, {b"f": b"1"}, []]
        with client.pubsub() as pubsub:
            pubsub.subscribe("c1", "c2")
            kinds = [pubsub.get_message(timeout=5) for _ in range(2)]
            assert [kind and kind["type"] for kind in kinds] == ["subscribe", "subscribe"]
            assert client.publish("c2", "hello") == 1
            message = pubsub.get_message(timeout=5)
            assert message is not None
            assert message["data"] == b"hello"


def test_commands_and_connections_are_counted(proxy: Proxy, dial: Dial) -> None:
    with pytest.raises(TimeoutError, match="SET"):
        proxy.wait_for(b"SET", timeout=0.05)
    first, second = dial(), dial()
    proxy.wait_for(lambda: proxy.connections == 2)
    sender = threading.Thread(target=first.send, args=("SET a 1",))
    sender.start()
    proxy.wait_for(b"SET")
    sender.join()
    assert first.receive() == b"OK"
    second.send("GET a", "PING")
    assert [second.receive(), second.receive()] == [b"1", b"PONG"]
    assert proxy.commands == [(b"SET", b"a", b"1"), (b"GET", b"a"), (b"PING",)]
    assert proxy.seen(b"GET") == 1
    proxy.forget()
    assert proxy.commands == []
    for left, connection in ((1, first), (0, second)):
        connection.socket.close()
        proxy.wait_for(lambda left=left: proxy.connections == left)  # type: ignore[misc]


@pytest.mark.parametrize(("reset", "error"), [(False, EOFError), (True, ConnectionResetError)])
def test_cut(proxy: Proxy, dial: Dial, reset: bool, error: type[Exception]) -> None:
    first, second = dial(), dial()
    assert first.ask("PING") == second.ask("PING") == b"PONG"
    proxy.cut(reset=reset)
    assert proxy.connections == 0
    for connection in (first, second):
        with pytest.raises(error):
            connection.receive()
    assert dial().ask("PING") == b"PONG"


def test_refuse_and_latency(proxy: Proxy, dial: Dial) -> None:
    old = dial()
    assert old.ask("PING") == b"PONG"
    proxy.refuse(True)
    with pytest.raises((EOFError, ConnectionError)):
        dial().ask("PING")
    assert old.ask("PING") == b"PONG"
    proxy.refuse(False)
    connection = dial()
    assert connection.ask("PING") == b"PONG"
    proxy.latency(0.1)
    begin = time.monotonic()
    connection.send("INCR n", "INCR n")
    assert [connection.receive(), connection.receive()] == [1, 2]
    # Each way.
    assert time.monotonic() - begin >= 0.2
    proxy.latency(0)
    assert connection.ask("INCR n") == 3
    connection.socket.sendall(b"this is no RESP: *x\r\n*x\r\n")
    with pytest.raises((EOFError, ConnectionError)):
        connection.receive()
        connection.receive()


def test_stall_keeps_everything(proxy: Proxy, dial: Dial, admin: Redis) -> None:
    old, subscriber = dial(), dial()
    assert subscriber.ask("SUBSCRIBE c") == [b"subscribe", b"c", 1]
    assert old.ask("PING") == b"PONG"
    proxy.stall()
    new = dial()
    old.send("INCR n")
    new.send("PING")
    proxy.wait_for(b"INCR")
    admin.publish("c", "1")
    assert old.silent()
    assert subscriber.silent()
    assert new.silent()
    assert admin.get("n") is None
    proxy.resume()
    assert [old.receive(), new.receive(), subscriber.receive()] == [1, b"PONG", [b"message", b"c", b"1"]]
    # What stalls while it is cut is lost.
    proxy.forget()
    proxy.stall()
    old.send("INCR n")
    proxy.wait_for(b"INCR")
    proxy.cut()
    proxy.resume()
    assert dial().ask("PING") == b"PONG"
    assert admin.get("n") == b"1"


def test_blackhole_swallows_the_connections_of_the_moment(proxy: Proxy, dial: Dial, admin: Redis) -> None:
    subscriber, caller = dial(), dial()
    assert subscriber.ask("SUBSCRIBE c") == [b"subscribe", b"c", 1]
    assert caller.ask("PING") == b"PONG"
    proxy.blackhole()
    caller.send("INCR n")
    proxy.wait_for(b"INCR")
    assert admin.publish("c", "1") == 1
    assert caller.silent()
    assert subscriber.silent()
    assert dial().ask("INCR n") == 1
    subscriber.socket.close()
    proxy.wait_for(lambda: proxy.connections == 2)
    assert admin.pubsub_numsub("c") == [(b"c", 1)]


@pytest.mark.parametrize("lost", ["connection", "reply"])
def test_a_client_whose_replies_are_lost_does_not_learn_of_its_servers_end(own_server: Server, lost: str) -> None:
    with Proxy(own_server.host, own_server.port) as proxy:
        connection = BareConnection(proxy)
        assert connection.ask("PING") == b"PONG"
        if lost == "connection":
            proxy.blackhole()
        else:
            fault = proxy.drop_reply(b"INCR")
            connection.send("INCR n")
            assert fault.happened.wait(5)
        own_server.kill()
        assert connection.silent()
        assert proxy.connections == 1
        connection.socket.close()
        proxy.wait_for(lambda: proxy.connections == 0)


def test_a_server_that_is_not_there_gives_a_closed_connection(own_server: Server) -> None:
    with Proxy(own_server.host, own_server.port) as proxy:
        connection = BareConnection(proxy)
        assert connection.ask("PING") == b"PONG"
        own_server.kill()
        with pytest.raises((EOFError, ConnectionError)):
            connection.receive()
        connection.socket.close()
        again = BareConnection(proxy)
        with pytest.raises((EOFError, ConnectionError)):
            again.ask("PING")
        again.socket.close()
        own_server.start()
        last = BareConnection(proxy)
        assert last.ask("PING") == b"PONG"
        last.socket.close()


def test_close_ends_everything(server: Server) -> None:
    proxy = Proxy(server.host, server.port).start()
    connection = BareConnection(proxy)
    assert connection.ask("PING") == b"PONG"
    proxy.close()
    proxy.close()
    with pytest.raises(EOFError):
        connection.receive()
    connection.socket.close()
    with pytest.raises(ConnectionRefusedError):
        BareConnection(proxy)
    with pytest.raises(RuntimeError, match="not running"):
        proxy.cut()
    with pytest.raises(RuntimeError, match="already"):
        proxy.start()
