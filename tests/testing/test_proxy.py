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


def test_commands_are_counted(proxy: Proxy, dial: Dial) -> None:
    connection = dial()
    assert connection.ask("SET a 1") == b"OK"
    connection.send("GET a", "PING")
    assert [connection.receive(), connection.receive()] == [b"1", b"PONG"]
    assert proxy.commands == [(b"SET", b"a", b"1"), (b"GET", b"a"), (b"PING",)]
    assert proxy.seen(b"GET") == 1
    proxy.forget()
    assert proxy.commands == []


def test_connections_are_counted(proxy: Proxy, dial: Dial) -> None:
    first, second = dial(), dial()
    proxy.wait_for(lambda: proxy.connections == 2)
    first.socket.close()
    proxy.wait_for(lambda: proxy.connections == 1)
    second.socket.close()
    proxy.wait_for(lambda: proxy.connections == 0)


def test_waiting_for_a_request(proxy: Proxy, dial: Dial) -> None:
    with pytest.raises(TimeoutError, match="SET"):
        proxy.wait_for(b"SET", timeout=0.05)
    connection = dial()
    sender = threading.Thread(target=connection.send, args=("SET a 1",))
    sender.start()
    proxy.wait_for(b"SET")
    sender.join()


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


def test_refuse(proxy: Proxy, dial: Dial) -> None:
    old = dial()
    assert old.ask("PING") == b"PONG"
    proxy.refuse(True)
    with pytest.raises((EOFError, ConnectionError)):
        dial().ask("PING")
    assert old.ask("PING") == b"PONG"
    proxy.refuse(False)
    assert dial().ask("PING") == b"PONG"


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


def test_what_stalls_while_it_is_cut_is_lost(proxy: Proxy, dial: Dial, admin: Redis) -> None:
    connection = dial()
    proxy.stall()
    connection.send("INCR n")
    proxy.wait_for(b"INCR")
    proxy.cut()
    proxy.resume()
    assert dial().ask("PING") == b"PONG"
    assert admin.get("n") is None


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


def test_a_blackholed_client_does_not_learn_of_its_servers_end(own_server: Server) -> None:
    with Proxy(own_server.host, own_server.port) as proxy:
        connection = BareConnection(proxy)
        assert connection.ask("PING") == b"PONG"
        proxy.blackhole()
        own_server.kill()
        assert connection.silent()
        assert proxy.connections == 1
        connection.socket.close()


def test_latency_each_way(proxy: Proxy, dial: Dial) -> None:
    connection = dial()
    assert connection.ask("PING") == b"PONG"
    proxy.latency(0.1)
    begin = time.monotonic()
    connection.send("INCR n", "INCR n")
    assert [connection.receive(), connection.receive()] == [1, 2]
    assert time.monotonic() - begin >= 0.2
    proxy.latency(0)
    assert connection.ask("INCR n") == 3


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


def test_what_is_not_resp_is_cut(dial: Dial) -> None:
    connection = dial()
    connection.socket.sendall(b"*x\r\n")
    with pytest.raises((EOFError, ConnectionError)):
        connection.receive()


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
