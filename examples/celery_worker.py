# A Celery task of which one instance runs at a time over all workers; a second message for the same day is skipped.
# Needs the extra celery (docs/installation.md). In several terminals: celery -A celery_worker worker --concurrency 2
# python celery_worker.py sends three messages and prints what became of them; PYREDISSON_URL names the Redis.

import os
import time

from celery import Celery

import pyredisson
from pyredisson.celery import singleton_task

URL = os.environ.get("PYREDISSON_URL", "redis://localhost:6379/0")
app = Celery("celery_worker", broker=URL, backend=URL)
# Each process of the worker becomes a client of its own.
locks = pyredisson.connect(URL)


@app.task
@singleton_task(locks, "report:{day}")
def report(day: str) -> str:
    time.sleep(1)
    return f"report of {day}"


if __name__ == "__main__":
    with locks:
        sent = [report.delay(day) for day in ("monday", "monday", "tuesday")]
        for result in sent:
            print(result.get(timeout=60) or "skipped: another worker writes that report", flush=True)
