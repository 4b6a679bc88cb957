"""Threads of one client share one subscription, and take turns at reading it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pyredisson
from pyredisson.testing import Server
from tests.support.backends import TIME_LIMIT, WOKEN


def free(server: Server, name: str) -> None:
    """As Java does it: the key first, then the message."""
    with server.redis() as admin:
        admin.delete(name)
        admin.publish(f"redisson_lock__channel:{{{name}}}", "0")


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def listeners(server: Server, name: str) -> int:
    with server.redis() as admin:
        return int(admin.pubsub_numsub(f"redisson_lock__channel:{{{name}}}")[0][1])


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIME_LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_another_reads_on_when_the_reader_gives_up(server: Server) -> None:
    with pyredisson.connect(server.url) as holder, pyredisson.connect(server.url) as client:
        for name in ("a", "b"):
            holder.get_lock(name).lock(60)
        had = threading.Event()

        def waits() -> None:
            client.get_lock("b").lock()
            had.set()

        first = in_thread(lambda: client.get_lock("a").try_lock(0.4))
        until(lambda: listeners(server, "a") == 1)
        second = in_thread(waits)
        until(lambda: listeners(server, "b") == 1)
        first.join(TIME_LIMIT)
        free(server, "b")
        assert had.wait(WOKEN), "nobody read what was published"
        second.join(TIME_LIMIT)


def test_the_reading_thread_receives_messages_for_others(server: Server) -> None:
    names = [f"lock:{i}" for i in range(6)]
    with pyredisson.connect(server.url) as holder, pyredisson.connect(server.url) as client:
        for name in names:
            holder.get_lock(name).lock(60)
        had = {name: threading.Event() for name in names}

        def waits(name: str) -> None:
            client.get_lock(name).lock(60)
            had[name].set()

        threads = []
        for name in names:
            threads.append(in_thread(lambda name=name: waits(name)))  # type: ignore[misc]
            until(lambda name=name: listeners(server, name) == 1)  # type: ignore[misc]
        for name in [*names[3:], *names[:3]]:
            free(server, name)
            assert had[name].wait(WOKEN), f"nobody heard of {name}"
        for thread in threads:
            thread.join(TIME_LIMIT)


def test_many_threads_of_two_clients_never_overlap(server: Server) -> None:
    inside = {"a": 0, "b": 0}
    overlaps = []
    longest = [0.0]

    def works(client: pyredisson.Client, name: str) -> None:
        lock = client.get_lock(name)
        for _ in range(25):
            begin = time.monotonic()
            with lock:
                longest[0] = max(longest[0], time.monotonic() - begin)
                inside[name] += 1
                if inside[name] > 1:
                    overlaps.append(name)
                time.sleep(0.0005)
                inside[name] -= 1

    with pyredisson.connect(server.url) as one, pyredisson.connect(server.url) as other:
        threads = [in_thread(lambda c=c, n=n: works(c, n)) for c in (one, other) for n in "ab" for _ in range(3)]  # type: ignore[misc]
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)
    assert not overlaps
    # A lost wakeup would cost a whole lease.
    assert longest[0] < 10
