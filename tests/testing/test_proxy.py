"""The proxy: what it passes on, counts, delays and refuses; the requests and replies that it breaks; its frames."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import hiredis
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from pyredisson.testing import Fault, Hold, Proxy, Server
from pyredisson.testing.relay import Frames, Ledger, Request
from tests.support.backends import eventually, raises

Dial = Callable[..., "BareConnection"]
ENDED = (EOFError, ConnectionError)
"""What receiving raises at the end of a connection."""
FRAMES = (
    *(b"+OK\r\n", b"-ERR no\r\n", b":-3\r\n", b"$5\r\na\r\nbc\r\n", b"$0\r\n\r\n", b"$-1\r\n", b"*0\r\n", b"*-1\r\n"),
    *(b"*2\r\n*1\r\n$1\r\na\r\n:1\r\n", b"_\r\n", b"#t\r\n", b",1.5\r\n", b"(12345678901234567890\r\n", b"PING\r\n"),
    *(b"!5\r\nERR x\r\n", b"=7\r\ntxt:a\r\n\r\n", b"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n+c\r\n", b"~2\r\n+a\r\n+b\r\n"),
    *(b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n0\r\n", b"|1\r\n+ttl\r\n:3600\r\n*2\r\n+a\r\n+b\r\n"),
)
"""One of each kind, and some that are empty or null."""


def pack(*words: str | bytes) -> bytes:
    # hiredis's stub knows tuples of one word only
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]
    return packed


class BareConnection:
    """A connection without a client library: it sends and receives exactly what the test says."""

    def __init__(self, proxy: Proxy) -> None:
        self.socket = socket.create_connection((proxy.host, proxy.port), 5)
        self.close = self.socket.close
        self.reader = hiredis.Reader()

    def send(self, *commands: str) -> None:
        self.socket.sendall(b"".join(pack(*line.split()) for line in commands))

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


@pytest.fixture
def dial(proxy: Proxy) -> Iterator[Dial]:
    """Opens connections through the proxy, or another one; they are closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda through=proxy: stack.enter_context(contextlib.closing(BareConnection(through)))


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
            assert (pubsub.get_message(timeout=5) or {})["data"] == b"hello"


def test_commands_and_connections_are_counted(proxy: Proxy, dial: Dial) -> None:
    raises(TimeoutError, proxy.wait_for, b"SET", timeout=0.05, match="SET")
    first, second = dial(), dial()
    proxy.wait_for(lambda: proxy.connections == 2)
    sender = threading.Thread(target=first.send, args=("SET a 1",))
    sender.start()
    proxy.wait_for(b"SET")
    sender.join()
    assert first.receive() == b"OK"
    second.send("GET a", "PING")
    assert [second.receive(), second.receive()] == [b"1", b"PONG"]
    assert (proxy.commands, proxy.seen(b"GET")) == ([(b"SET", b"a", b"1"), (b"GET", b"a"), (b"PING",)], 1)
    proxy.forget()
    assert proxy.commands == []
    for left, connection in ((1, first), (0, second)):
        connection.close()
        proxy.wait_for(lambda left=left: proxy.connections == left)  # type: ignore[misc]


@pytest.mark.parametrize(("reset", "error"), [(False, EOFError), (True, ConnectionResetError)])
def test_cut(proxy: Proxy, dial: Dial, reset: bool, error: type[Exception]) -> None:
    connections = [dial(), dial()]
    assert [each.ask("PING") for each in connections] == [b"PONG", b"PONG"]
    proxy.cut(reset=reset)
    assert proxy.connections == 0
    for connection in connections:
        raises(error, connection.receive)
    assert dial().ask("PING") == b"PONG"


def test_refuse_and_latency(proxy: Proxy, dial: Dial) -> None:
    old = dial()
    assert old.ask("PING") == b"PONG"
    proxy.refuse(True)
    raises(ENDED, lambda: dial().ask("PING"))
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
    with pytest.raises(ENDED):
        connection.receive()
        connection.receive()


def test_stall_keeps_everything(proxy: Proxy, dial: Dial, admin: Redis) -> None:
    old, subscriber = dial(), dial()
    assert (subscriber.ask("SUBSCRIBE c"), old.ask("PING")) == ([b"subscribe", b"c", 1], b"PONG")
    proxy.stall()
    new = dial()
    old.send("INCR n")
    new.send("PING")
    proxy.wait_for(b"INCR")
    admin.publish("c", "1")
    assert (old.silent(), subscriber.silent(), new.silent(), admin.get("n")) == (True, True, True, None)
    proxy.resume()
    assert [old.receive(), new.receive(), subscriber.receive()] == [1, b"PONG", [b"message", b"c", b"1"]]
    # What stalls while it is cut is lost.
    proxy.forget()
    proxy.stall()
    old.send("INCR n")
    proxy.wait_for(b"INCR")
    proxy.cut()
    proxy.resume()
    assert (dial().ask("PING"), admin.get("n")) == (b"PONG", b"1")


def test_blackhole_swallows_the_connections_of_the_moment(proxy: Proxy, dial: Dial, admin: Redis) -> None:
    subscriber, caller = dial(), dial()
    assert (subscriber.ask("SUBSCRIBE c"), caller.ask("PING")) == ([b"subscribe", b"c", 1], b"PONG")
    proxy.blackhole()
    caller.send("INCR n")
    proxy.wait_for(b"INCR")
    assert (admin.publish("c", "1"), caller.silent(), subscriber.silent()) == (1, True, True)
    assert dial().ask("INCR n") == 1
    subscriber.close()
    proxy.wait_for(lambda: proxy.connections == 2)
    assert admin.pubsub_numsub("c") == [(b"c", 1)]


def test_the_server_dies(dial: Dial, own_server: Server) -> None:
    """A client whose replies are lost does not learn of it. The others do, also those that come later."""
    with Proxy(own_server.host, own_server.port) as proxy:
        swallowed = dial(proxy)
        assert swallowed.ask("PING") == b"PONG"
        proxy.blackhole()
        without_reply, waiting, idle = dial(proxy), dial(proxy), dial(proxy)
        fault = proxy.drop_reply(b"INCR")
        without_reply.send("INCR n")
        assert fault.happened.wait(5)
        hold = proxy.hold_request(b"SET")
        waiting.send("SET a 1")
        assert hold.held.wait(5)
        assert idle.ask("PING") == b"PONG"
        own_server.kill()
        for connection in (waiting, idle):
            raises(ENDED, connection.receive)
        raises(ConnectionError, hold.deliver, match="closed the connection")
        raises(ENDED, lambda: dial(proxy).ask("PING"))
        assert (swallowed.silent(), without_reply.silent()) == (True, True)
        proxy.wait_for(lambda: proxy.connections == 2)
        for connection in (swallowed, without_reply):
            connection.close()
        proxy.wait_for(lambda: proxy.connections == 0)
        own_server.start()
        assert dial(proxy).ask("PING") == b"PONG"


def test_close_ends_everything(dial: Dial, server: Server) -> None:
    proxy = Proxy(server.host, server.port).start()
    connection = dial(proxy)
    assert connection.ask("PING") == b"PONG"
    proxy.close()
    proxy.close()
    raises(EOFError, connection.receive)
    raises(ConnectionRefusedError, dial, proxy)
    raises(RuntimeError, proxy.cut, match="not running")
    raises(RuntimeError, proxy.start, match="already")


def test_after_a_dropped_reply_its_connection_is_silent(proxy: Proxy, dial: Dial, admin: Redis) -> None:
    """TCP delivers in order: a client must not get a later reply in place of the lost one."""
    hold, fault = proxy.hold_reply(b"GET"), proxy.drop_reply(b"INCR")
    connection = dial()
    connection.send("PING", "GET n", "INCR n", "PING", "INCR n")
    assert connection.receive() == b"PONG"
    # What is held goes on first.
    assert hold.held.wait(5)
    hold.deliver()
    assert (connection.receive(), connection.silent(), fault.happened.wait(5)) == (None, True, True)
    eventually(lambda: admin.get("n") == b"2")
    hold = proxy.hold_reply(b"GET")
    connection.send("INCR n", "GET n")
    assert hold.held.wait(5)
    hold.deliver()
    assert (dial().ask("INCR n"), connection.silent(), proxy.connections) == (4, True, 2)
    # A subscription is dropped whole.
    proxy.drop_reply(b"SUBSCRIBE")
    subscriber = dial()
    subscriber.send("SUBSCRIBE a b", "PING")
    assert subscriber.silent()
    eventually(lambda: admin.pubsub_numsub("b") == [(b"b", 1)])
    assert (admin.publish("b", "1"), subscriber.silent()) == (1, True)
    for times in (0, -1):
        raises(ValueError, proxy.drop_reply, times=times, match="at least 1")


@pytest.mark.parametrize(("cut", "arrived"), [(Proxy.cut_reply, 1), (Proxy.cut_request, 0)])
def test_a_cut_call(proxy: Proxy, dial: Dial, admin: Redis, cut: Callable[[Proxy, bytes], Fault], arrived: int) -> None:
    fault = cut(proxy, b"INCR")
    connection = dial()
    if arrived:
        connection.send("SET a 1", "INCR n", "GET a")
        assert connection.receive() == b"OK"
    else:
        connection.send("INCR n")
    raises(ENDED, connection.receive)
    assert (fault.happened.is_set(), dial().ask("INCR n")) == (True, arrived + 1)


@pytest.mark.parametrize(("hold_one", "arrived"), [(Proxy.hold_reply, b"1"), (Proxy.hold_request, None)])
def test_held(proxy: Proxy, dial: Dial, admin: Redis, hold_one: Callable[..., Hold], arrived: bytes | None) -> None:
    hold = hold_one(proxy, b"INCR")
    raises(RuntimeError, hold.deliver, match="nothing containing")
    connection, other = dial(), dial()
    connection.send("PING", "INCR n", "GET n")
    assert (connection.receive(), hold.held.wait(5)) == (b"PONG", True)
    assert (connection.silent(), other.ask("GET n"), hold.delivered.is_set()) == (True, arrived, False)
    hold.deliver()
    assert (admin.get("n"), [connection.receive(), connection.receive()]) == (b"1", [1, b"1"])


@pytest.mark.parametrize("leave", ["client", "proxy", "reset"])
def test_a_held_request_arrives_after_its_client_has_gone(proxy: Proxy, dial: Dial, admin: Redis, leave: str) -> None:
    hold = proxy.hold_request(b"INCR")
    connection = dial()
    connection.send("INCR n")
    assert hold.held.wait(5)
    if leave == "client":
        connection.close()
    else:
        proxy.cut(reset=leave == "reset")
    proxy.wait_for(lambda: proxy.connections == 0)
    assert admin.get("n") is None
    for _ in range(2):
        hold.deliver()
        assert admin.get("n") == b"1"


def test_a_held_reply_is_delivered_though_its_client_has_gone(proxy: Proxy, dial: Dial) -> None:
    hold = proxy.hold_reply(b"PING")
    dial().send("PING")
    assert hold.held.wait(5)
    proxy.cut()
    hold.deliver()


def test_the_oldest_fault_that_matches_strikes_as_often_as_it_may(proxy: Proxy, dial: Dial) -> None:
    first, second = proxy.drop_reply(b"SET", times=2), proxy.cut_reply(b"SET")
    for number in range(2):
        connection = dial()
        connection.send("SET a 1", "PING")
        assert (connection.silent(), first.happened.wait(5)) == (True, True)
        assert (first.left, second.happened.is_set()) == (1 - number, False)
    raises(ENDED, lambda: dial().ask("SET a 2"))


@given(st.lists(st.sampled_from(FRAMES)), st.lists(st.integers(1, 12), min_size=1))
def test_frames_survive_any_cutting(frames: list[bytes], sizes: list[int]) -> None:
    stream, scanner, found, turn = b"".join(frames), Frames(), [], 0
    while stream:
        size = sizes[turn % len(sizes)]
        found += scanner.feed(stream[:size])
        stream, turn = stream[size:], turn + 1
    assert found == frames


def sent(ledger: Ledger, *words: bytes) -> Request:
    request = Request(pack(*words), None)
    ledger.sent(request)
    return request


def confirmation(kind: bytes, word: bytes, channel: bytes) -> bytes:
    return kind + b"3\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n:1\r\n" % (len(word), word, len(channel), channel)


@pytest.mark.parametrize("kind", [b"*", b">"])
@pytest.mark.parametrize("prefix", [b"", b"p", b"s"])
def test_confirmations_belong_to_their_subscription(kind: bytes, prefix: bytes) -> None:
    ledger = Ledger()
    first = sent(ledger, prefix.upper() + b"SUBSCRIBE", b"a", b"b")
    second = sent(ledger, prefix + b"unsubscribe")
    third = sent(ledger, b"PING")
    begun = ((b"subscribe", b"a", first), (b"message", b"a", None), (b"subscribe", b"b", first))
    for word, channel, request in (*begun, (b"unsubscribe", b"a", second), (b"unsubscribe", b"b", second)):
        assert ledger.answered(confirmation(kind, prefix + word, channel)) is request
    assert ledger.answered(b"+PONG\r\n") is third
    assert ledger.answered(b"-ERR unasked\r\n") is None


def test_replies_that_look_like_messages_and_messages_that_nobody_asked_for() -> None:
    ledger = Ledger()
    request = sent(ledger, b"LRANGE", b"l", b"0", b"-1")
    # Nothing is subscribed to.
    assert ledger.answered(confirmation(b"*", b"message", b"c")) is request
    # A refused subscription is answered once.
    first, second = sent(ledger, b"SSUBSCRIBE", b"a", b"b"), sent(ledger, b"PING")
    assert [ledger.answered(reply) for reply in (b"-MOVED 1 h:1\r\n", b"+PONG\r\n")] == [first, second]
    # The server may end a sharded subscription unasked.
    first = sent(ledger, b"SSUBSCRIBE", b"a")
    answers = [ledger.answered(confirmation(b"*", word, b"a")) for word in (b"ssubscribe", b"sunsubscribe")]
    assert answers == [first, None]
    # On a connection of version 3 a reply may have other types. No message has.
    third = sent(ledger, b"ZRANGE", b"z", b"0", b"-1", b"WITHSCORES")
    assert ledger.answered(b"*1\r\n*2\r\n$1\r\nm\r\n,1.5\r\n") is third
