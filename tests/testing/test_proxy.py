"""The proxy breaks exactly what it is told to, and lets everything else through unchanged."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import hiredis
import pytest
import redis
from redis import Redis

from pyredisson.testing import Proxy, Server

pytestmark = pytest.mark.usefixtures("all_timed")


class Wire:
    """A bare connection: what is sent and received is exactly what the test says."""

    def __init__(self, proxy: Proxy) -> None:
        self.socket = socket.create_connection((proxy.host, proxy.port), 5)
        self.reader = hiredis.Reader()

    def send(self, *commands: str) -> None:
        # hiredis's stub knows tuples of one word only
        packed = [hiredis.pack_command(tuple(line.split())) for line in commands]  # type: ignore[arg-type]
        self.socket.sendall(b"".join(packed))

    def receive(self, seconds: float = 5.0) -> object:
        """Return the next reply; EOFError at the end of the connection."""
        self.socket.settimeout(seconds)
        while (reply := self.reader.gets()) is False:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self.reader.feed(data)
        return reply

    def ask(self, command: str) -> object:
        self.send(command)
        return self.receive()

    def silent(self) -> bool:
        try:
            self.receive(0.15)
        except TimeoutError:
            return True
        return False


Dial = Callable[[], Wire]


@pytest.fixture
def dial(proxy: Proxy) -> Iterator[Dial]:
    with contextlib.ExitStack() as stack:

        def connect() -> Wire:
            wire = Wire(proxy)
            stack.callback(wire.socket.close)
            return wire

        yield connect


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
    wire = dial()
    assert wire.ask("SET a 1") == b"OK"
    wire.send("GET a", "PING")
    assert [wire.receive(), wire.receive()] == [b"1", b"PONG"]
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
    wire = dial()
    sender = threading.Thread(target=wire.send, args=("SET a 1",))
    sender.start()
    proxy.wait_for(b"SET")
    sender.join()


def test_after_a_dropped_reply_its_connection_is_silent(proxy: Proxy, dial: Dial, admin: Redis) -> None:
    """TCP delivers in order: a client must not get a later reply in place of the lost one."""
    fault = proxy.drop_reply(b"INCR")
    wire = dial()
    wire.send("PING", "INCR n", "PING", "INCR n")
    assert wire.receive() == b"PONG"
    assert wire.silent()
    assert fault.happened.is_set()
    assert admin.get("n") == b"2"
    wire.send("INCR n")
    assert dial().ask("INCR n") in {3, 4}
    assert wire.silent()
    assert admin.get("n") == b"4"
    assert proxy.connections == 2


def test_replies_dropped_on_one_connection_each(proxy: Proxy, dial: Dial) -> None:
    fault = proxy.drop_reply(b"INCR", times=2)
    first, second, third = dial(), dial(), dial()
    first.send("INCR n")
    assert first.silent()
    assert fault.happened.is_set()
    second.send("INCR n", "PING")
    assert second.silent()
    assert third.ask("INCR n") == 3


def test_a_connection_with_a_dropped_reply_does_not_tell_of_the_servers_end(own_server: Server) -> None:
    with Proxy(own_server.host, own_server.port) as proxy:
        proxy.drop_reply(b"INCR")
        wire = Wire(proxy)
        wire.send("INCR n")
        assert wire.silent()
        own_server.kill()
        assert wire.silent()
        assert proxy.connections == 1
        wire.socket.close()
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
    wire = dial()
    wire.send("SUBSCRIBE a b", "PING")
    assert wire.silent()
    assert admin.publish("b", "1") == 1
    assert wire.silent()


def test_cut_reply(proxy: Proxy, dial: Dial, admin: Redis) -> None:
    fault = proxy.cut_reply(b"INCR")
    wire = dial()
    wire.send("SET a 1", "INCR n", "GET a")
    assert wire.receive() == b"OK"
    with pytest.raises((EOFError, ConnectionError)):
        wire.receive()
    assert fault.happened.is_set()
    assert admin.get("n") == b"1"
    assert dial().ask("INCR n") == 2


def test_cut_request(proxy: Proxy, dial: Dial, admin: Redis) -> None:
    fault = proxy.cut_request(b"INCR")
    wire = dial()
    with pytest.raises((EOFError, ConnectionError)):
        wire.ask("INCR n")
    assert fault.happened.is_set()
    assert admin.get("n") is None
    assert dial().ask("INCR n") == 1


def test_held_request(proxy: Proxy, dial: Dial, admin: Redis) -> None:
    hold = proxy.hold_request(b"SET")
    wire, other = dial(), dial()
    wire.send("PING", "SET a 1", "GET a")
    assert wire.receive() == b"PONG"
    assert hold.held.wait(5)
    assert wire.silent()
    assert other.ask("GET a") is None
    assert not hold.delivered.is_set()
    hold.deliver()
    assert admin.get("a") == b"1"
    assert [wire.receive(), wire.receive()] == [b"OK", b"1"]


@pytest.mark.parametrize("leave", ["client", "proxy", "reset"])
def test_a_held_request_arrives_after_its_client_has_gone(proxy: Proxy, dial: Dial, admin: Redis, leave: str) -> None:
    hold = proxy.hold_request(b"INCR")
    wire = dial()
    wire.send("INCR n")
    assert hold.held.wait(5)
    if leave == "client":
        wire.socket.close()
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
        wire = Wire(proxy)
        hold = proxy.hold_request(b"SET")
        wire.send("SET a 1")
        assert hold.held.wait(5)
        own_server.kill()
        with pytest.raises(EOFError):
            wire.receive()
        with pytest.raises(ConnectionError, match="closed the connection"):
            hold.deliver()
        wire.socket.close()


def test_held_reply(proxy: Proxy, dial: Dial, admin: Redis) -> None:
    hold = proxy.hold_reply(b"INCR")
    wire = dial()
    wire.send("PING", "INCR n", "GET n")
    assert wire.receive() == b"PONG"
    assert hold.held.wait(5)
    assert admin.get("n") == b"1"
    assert wire.silent()
    hold.deliver()
    assert [wire.receive(), wire.receive()] == [1, b"1"]


def test_the_oldest_fault_that_matches_strikes_alone(proxy: Proxy, dial: Dial) -> None:
    first, second = proxy.drop_reply(b"SET"), proxy.cut_reply(b"SET")
    wire = dial()
    wire.send("SET a 1")
    assert wire.silent()
    assert first.happened.is_set()
    assert not second.happened.is_set()
    with pytest.raises((EOFError, ConnectionError)):
        dial().ask("SET a 2")


@pytest.mark.parametrize(("reset", "error"), [(False, EOFError), (True, ConnectionResetError)])
def test_cut(proxy: Proxy, dial: Dial, reset: bool, error: type[Exception]) -> None:
    first, second = dial(), dial()
    assert first.ask("PING") == second.ask("PING") == b"PONG"
    proxy.cut(reset=reset)
    assert proxy.connections == 0
    for wire in (first, second):
        with pytest.raises(error):
            wire.receive()
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
    wire = dial()
    proxy.stall()
    wire.send("INCR n")
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
        wire = Wire(proxy)
        assert wire.ask("PING") == b"PONG"
        proxy.blackhole()
        own_server.kill()
        assert wire.silent()
        assert proxy.connections == 1
        wire.socket.close()


def test_latency_each_way(proxy: Proxy, dial: Dial) -> None:
    wire = dial()
    assert wire.ask("PING") == b"PONG"
    proxy.latency(0.1)
    begin = time.monotonic()
    wire.send("INCR n", "INCR n")
    assert [wire.receive(), wire.receive()] == [1, 2]
    assert time.monotonic() - begin >= 0.2
    proxy.latency(0)
    assert wire.ask("INCR n") == 3


def test_a_server_that_is_not_there_gives_a_closed_connection(own_server: Server) -> None:
    with Proxy(own_server.host, own_server.port) as proxy:
        wire = Wire(proxy)
        assert wire.ask("PING") == b"PONG"
        own_server.kill()
        with pytest.raises((EOFError, ConnectionError)):
            wire.receive()
        wire.socket.close()
        again = Wire(proxy)
        with pytest.raises((EOFError, ConnectionError)):
            again.ask("PING")
        again.socket.close()
        own_server.start()
        last = Wire(proxy)
        assert last.ask("PING") == b"PONG"
        last.socket.close()


def test_what_is_not_resp_is_cut(dial: Dial) -> None:
    wire = dial()
    wire.socket.sendall(b"*x\r\n")
    with pytest.raises((EOFError, ConnectionError)):
        wire.receive()


def test_close_ends_everything(server: Server) -> None:
    proxy = Proxy(server.host, server.port).start()
    wire = Wire(proxy)
    assert wire.ask("PING") == b"PONG"
    proxy.close()
    proxy.close()
    with pytest.raises(EOFError):
        wire.receive()
    wire.socket.close()
    with pytest.raises(ConnectionRefusedError):
        Wire(proxy)
    with pytest.raises(RuntimeError, match="not running"):
        proxy.cut()
    with pytest.raises(RuntimeError, match="already"):
        proxy.start()
