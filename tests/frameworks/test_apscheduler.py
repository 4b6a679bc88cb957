"""APScheduler: each process schedules the same jobs, and the lock decides who runs them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from pyredisson.testing import Server
from tests.support.children import Child

SCHEDULER = """
import datetime
import sys
import threading

from apscheduler.events import EVENT_JOB_EXECUTED
from apscheduler.schedulers.background import BackgroundScheduler

import pyredisson

url, when = sys.argv[1], datetime.datetime.fromtimestamp(float(sys.argv[2]), datetime.timezone.utc)
NAMES = [f"job {number}" for number in range(5)]
ended = threading.Semaphore(0)


def say(name):
    # One write: print writes the end of the line by itself, and other jobs' threads write meanwhile.
    sys.stdout.write(f"{name}\\n")


with pyredisson.connect(url) as client:
    scheduler = BackgroundScheduler(timezone=datetime.timezone.utc)
    scheduler.add_listener(lambda event: ended.release(), EVENT_JOB_EXECUTED)
    for name in NAMES:
        job = client.singleton(name, at_least=600)(say)
        scheduler.add_job(job, "date", args=[name], run_date=when, misfire_grace_time=600)
    scheduler.start()
    for _ in NAMES:
        ended.acquire()
    scheduler.shutdown()
print("end")
"""


def test_two_schedulers(child: Callable[..., Child], server: Server) -> None:
    when = time.time() + 1
    schedulers = [child(SCHEDULER, server.url, when) for _ in range(2)]
    ran: Counter[str] = Counter()
    for each in schedulers:
        ran.update(iter(each.receive, "end"))
        assert each.wait() == 0
    assert ran == {f"job {number}": 1 for number in range(5)}
