"""The processes of the demo: each connects, uses a lock as any program would, and reports what it sees.

`python demo/actors.py ROLE URL`: one line of JSON an event on stdout, with the system's monotonic time, which
all processes share; a line on stdin lets it go on.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pyredisson
import pyredisson.asyncio

LOCK = "demo"
TURNS = 8
TURN = 0.18
"""Seconds for which each turn lasts."""
SHORT_LEASE = 1.5
"""Seconds; renewed every third of that. The default is 30: a demo would take too long."""
JOB = 4.0
"""Seconds: longer than the lease."""


def taking_turns(url: str) -> None:
    """Acquires the lock again and again, while the other process does the same."""
    with pyredisson.connect(url) as client:
        lock = client.get_lock(LOCK)
        say("ready", id=client.id)
        wait_for_go()
        for _ in range(TURNS):
            say("asked")
            lock.lock()
            say("held")
            time.sleep(TURN)
            say("releasing")
            lock.unlock()
            time.sleep(TURN / 6)


def nested(url: str) -> None:
    """A function that holds the lock calls another function that acquires the same lock."""
    with pyredisson.connect(url) as client:
        lock = client.get_lock(LOCK)

        def inner() -> None:
            with lock:
                say("inner")
                wait_for_go()

        with lock:
            say("outer")
            wait_for_go()
            inner()
            say("outer")
            wait_for_go()
        say("out")


def long_job(url: str) -> None:
    """Holds the lock for longer than its lease."""
    with (
        pyredisson.connect(url, lock_watchdog_timeout=SHORT_LEASE) as client,
        client.get_lock(LOCK),
    ):
        say("held")
        wait_for_go()
        time.sleep(JOB)
        say("releasing")


def next_one(url: str) -> None:
    """Waits for the lock, however long it takes."""
    wait_for_go()
    with pyredisson.connect(url) as client, client.get_lock(LOCK):
        say("held")
        wait_for_go()


def watching_thread(url: str) -> None:
    """A holder on threads that waits for the loss of its lock."""
    with pyredisson.connect(url, lock_watchdog_timeout=SHORT_LEASE) as client:
        lock = client.get_lock(f"{LOCK}:threads")
        called = threading.Event()

        @lock.on_lost
        def on_lost(lock: pyredisson.Lock) -> None:
            say("called back")
            called.set()

        try:
            with lock:
                say("held")
                lock.lost.wait(timeout=30)
                say("told")
        except pyredisson.LockLostError as error:
            say("raised", error=str(error))
        called.wait(timeout=30)


async def watching_task(url: str) -> None:
    """A holder on asyncio, whose `async with` body is cancelled when the lock is lost."""
    async with pyredisson.asyncio.connect(url, lock_watchdog_timeout=SHORT_LEASE) as client:
        lock = client.get_lock(f"{LOCK}:asyncio")
        called = asyncio.Event()

        @lock.on_lost
        async def on_lost(lock: pyredisson.asyncio.Lock) -> None:
            say("called back")
            called.set()

        try:
            async with lock:
                say("held")
                try:
                    await asyncio.sleep(30)
                finally:
                    say("told")
        except pyredisson.LockLostError as error:
            say("raised", error=str(error))
        async with asyncio.timeout(30):
            await called.wait()


def say(event: str, **more: str) -> None:
    """Prints one event in one write, because callbacks print from another thread."""
    line = json.dumps({"event": event, "at": time.monotonic(), **more})
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def wait_for_go() -> None:
    """Waits for the demo's signal to continue; if the demo has ended, ends this process."""
    if not sys.stdin.readline():
        sys.exit("the demo is over")


ROLES: dict[str, Callable[[str], Coroutine[Any, Any, None] | None]] = {
    "taking_turns": taking_turns,
    "nested": nested,
    "long_job": long_job,
    "next_one": next_one,
    "watching_thread": watching_thread,
    "watching_task": watching_task,
}

if __name__ == "__main__":
    role, url = sys.argv[1:]
    ended = ROLES[role](url)
    if ended is not None:
        asyncio.run(ended)
