"""What threads do with one object at the same time, if the build has no global lock; and what it says of itself."""

import asyncio
import importlib
import os
import subprocess
import sys
import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

import pyredisson.asyncio
from pyredisson._backends.aio.callers import Callers
from pyredisson._backends.aio.wakeup import AioWakeup, Sleeps
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._core import Blocks
from pyredisson.logic.owners import Owner

HAS_LOCK = not sysconfig.get_config_var("Py_GIL_DISABLED")
LIMIT = 60.0
"""Seconds after which something has gone wrong."""


@pytest.mark.skipif(HAS_LOCK, reason="this build has a global lock")
def test_the_import_leaves_the_global_lock_off() -> None:
    # hiredis, which redis-py imports where it is installed, switches it on.
    program = "import sys; sys.modules['hiredis'] = None; import pyredisson.asyncio; sys.exit(sys._is_gil_enabled())"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=LIMIT, env=environment)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="this Python has no module for sub-interpreters")
def test_a_sub_interpreter_is_told_that_it_cannot_import_the_core() -> None:
    refused = pytest.raises(Exception, match=r"ImportError: .*does not support loading in subinterpreters")
    with closing(importlib.import_module("concurrent.interpreters").create()) as interpreter, refused:
        interpreter.exec("import pyredisson._core")


def test_blocks_are_entered_and_left_by_many_threads() -> None:
    blocks, callers = Blocks(), [object() for _ in range(4)]

    def use(caller: object) -> int:
        left = 0
        for number in range(5000):
            blocks[caller] = number
            left += blocks[caller] is not None
        return left

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(use, callers * 2)) == [5000] * 8
    assert not blocks
    assert blocks[callers[0]] is None


def test_a_wakeup_that_is_set_is_never_slept_through() -> None:
    """Others believe that a waiter is awake while its wakeup is set, and pass it over."""
    wakeup, rounds, ended = ThreadWakeup(), 100 if HAS_LOCK else 5000, threading.Event()

    def keep_awake() -> None:
        while not ended.is_set():
            if not wakeup.is_set():
                wakeup.set()

    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            pool.submit(keep_awake)
        woken = 0
        while woken < rounds and wakeup.wait(LIMIT):
            wakeup.clear()
            woken += 1
        ended.set()
    assert woken == rounds


async def test_another_thread_wakes_a_task() -> None:
    """The watchdog does, when a hold is lost. The loop's debug mode refuses what isn't made for other threads."""
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    wakeup = AioWakeup(Sleeps(loop))
    waiting = asyncio.create_task(wakeup.wait(LIMIT))
    await asyncio.sleep(0)
    await asyncio.to_thread(wakeup.set)
    assert await asyncio.wait_for(waiting, LIMIT / 2)


def test_each_event_loop_has_its_own_tasks() -> None:
    """One client, tasks of event loops on several threads: no task acts as a task of another loop."""
    callers = Callers()
    callers.begin(pyredisson.asyncio.connect()._session)

    async def owners() -> set[int]:
        async def own() -> int:
            first: Owner = callers.current()
            for _ in range(20):
                await asyncio.sleep(0)
                assert callers.current() is first
            return first.id

        return set(await asyncio.gather(*(own() for _ in range(50))))

    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(asyncio.run, owners()) for _ in range(8)]
        assert len(set().union(*(each.result(LIMIT) for each in found))) == 8 * 50
