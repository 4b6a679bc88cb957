"""Celery tasks that run, or are in the queue, at most once: publishers, a worker's processes, what fails in between."""

import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import celery
import pytest
from celery.exceptions import TaskRevokedError
from celery.signals import task_prerun
from kombu.exceptions import OperationalError
from prometheus_client import CollectorRegistry
from redis import ConnectionError, Redis

import pyredisson
from pyredisson.celery import AlreadyQueued, queue_once, singleton_task
from pyredisson.observe import PrometheusObserver
from pyredisson.testing import Proxy, Server
from tests.support.backends import NOWHERE, eventually
from tests.support.children import CHILD_LIMIT, processes

Decorator = Callable[[Callable[..., Any]], Any]
WORK = """
import os
import time

import celery
import redis

import pyredisson
from pyredisson.celery import queue_once, singleton_task

folder = os.environ["FOLDER"]
url = os.environ["URL"]
app = celery.Celery("tasks", broker=url, backend=f"file://{folder}/results")
app.conf.worker_prefetch_multiplier = 1
app.conf.broker_connection_retry_on_startup = True
# Before the worker forks, and used.
client = pyredisson.connect(url, lock_watchdog_timeout=3.0)
client.get_lock("at import").is_locked()
storage = redis.Redis.from_url(url)

@app.task
@singleton_task(client, "count:{name}", wait_time=None)
def count(name):
    found = int(storage.get("count") or 0)
    time.sleep(0.01)
    storage.set("count", found + 1)
    return os.getpid()

@app.task
@singleton_task(client, "single:{day}")
def single(day):
    return "written"

@app.task(max_retries=None)
@singleton_task(client, "single:{day}", busy="retry", countdown=0.1)
def again(day):
    return "written later"

@app.task
@singleton_task(client, "single:{day}", busy="raise")
def strict(day):
    return "written"

def work(self):
    "Tells the test that it runs, and waits until the test lets it end."
    storage.rpush("runs", os.getpid())
    assert storage.blpop(["go"], 100)
    return self.request.retries

@app.task(bind=True, base=queue_once(client, "report:{day}"))
def report(self, day, fails=0, countdown=0.1):
    if self.request.retries < fails:
        storage.rpush("runs", os.getpid())
        raise self.retry(countdown=countdown)
    return work(self)

@app.task(bind=True, base=queue_once(client, lambda day, fails=0: f"early:{day}", until="start"))
def early(self, day, fails=0):
    tries = work(self)
    if tries < fails:
        raise self.retry(countdown=0)
    return tries

@app.task(bind=True, base=queue_once(client, "hangs", at_most=0.5))
def hangs(self):
    return work(self)

@app.task
def first():
    return "first"
"""


@pytest.fixture
def work(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the tasks, with a worker of two processes."""
    (tmp_path / "results").mkdir()
    (tmp_path / "celery_work.py").write_text(WORK)
    monkeypatch.setenv("FOLDER", str(tmp_path))
    monkeypatch.setenv("URL", server.url)
    monkeypatch.syspath_prepend(tmp_path)
    options = ["--concurrency", "2", "--loglevel", "warning", "--without-gossip", "--without-mingle"]
    # Killed at the end: a worker would wait for a task that hangs.
    with processes(cwd=tmp_path) as start:
        start(sys.executable, "-m", "celery", "-A", "celery_work", "worker", *options)
        import celery_work  # type: ignore[import-not-found]

        yield celery_work
    for each in (celery_work.app, celery_work.client, celery_work.storage):
        each.close()
    del sys.modules["celery_work"]


@pytest.fixture
def app(server: Server) -> Iterator[celery.Celery]:
    """An application without workers."""
    with celery.Celery("publisher", broker=server.url, set_as_current=False) as app:
        yield app


def once(app: Any, client: pyredisson.Client, name: Any, *, bind: bool = False, **options: Any) -> Decorator:
    return cast(Decorator, app.task(base=queue_once(client, name, **options), bind=bind, lazy=False))


def started(admin: Any) -> int:
    """Waits until a task runs. Returns its process."""
    return int(admin.blpop(["runs"], timeout=CHILD_LIMIT)[1])


def test_a_task_called_as_a_function(client: pyredisson.Client, server: Server) -> None:
    with pyredisson.connect(server.url) as other:

        @singleton_task(client, "report:{day}", busy="retry")
        def report(day: str) -> str:
            return day

        assert report("monday") == "monday"
        with other.get_lock("report:monday"), pytest.raises(pyredisson.LockTimeoutError):
            report("monday")

        @singleton_task(client, "hanging", at_most=0.2)
        def hang() -> bool:
            return other.get_lock("hanging").try_lock(CHILD_LIMIT)

        with pytest.raises(pyredisson.LockLostError):
            hang()


def test_one_at_a_time_over_all_processes(work: Any, admin: Redis) -> None:
    pids = {result.get(CHILD_LIMIT) for result in [work.count.delay("a") for _ in range(20)]}
    assert (admin.get("count"), os.getpid() in pids) == (b"20", False)
    with work.client.get_lock("single:monday"):
        assert work.single.delay("monday").get(CHILD_LIMIT) is None
        assert work.single.delay("tuesday").get(CHILD_LIMIT) == "written"
        with pytest.raises(pyredisson.LockTimeoutError, match="lock 'single:monday' is held by"):
            work.strict.delay("monday").get(CHILD_LIMIT)
        later = work.again.delay("monday")
        while later.state != "RETRY":
            time.sleep(0.05)  # the state is in a file
    assert later.get(CHILD_LIMIT) == "written later"


def test_a_hold_of_the_publisher_ends_with_the_message(app: celery.Celery, server: Server) -> None:
    """Otherwise the gauge of holds grows with each task that is sent."""
    registry = CollectorRegistry()
    with pyredisson.connect(server.url, observer=PrometheusObserver(registry)) as publisher:

        @once(app, publisher, "report:{day}")
        def report(day: str) -> None: ...

        report.delay("monday")
    labels = {"kind": "lock", "name": "report"}
    assert registry.get_sample_value("pyredisson_acquires_total", {**labels, "outcome": "acquired"}) == 1
    assert registry.get_sample_value("pyredisson_held", labels) == 0


def test_the_queue_has_it_once(app: celery.Celery, client: pyredisson.Client, server: Server, admin: Redis) -> None:
    with pyredisson.connect(server.url) as publisher:

        @once(app, publisher, "report:{day}:{kind}")
        def report(day: str, kind: str = "long") -> str:
            return f"{kind} report of {day}"

        @once(app, publisher, lambda day: f"report:{day}:long", busy="raise")
        def strict(day: str) -> None: ...

        @once(app, publisher, "report:{day}:long", busy="skip")
        def graceful(day: str) -> None: ...

        result = report.delay("monday")
        assert report.apply_async(kwargs={"kind": "long", "day": "monday"}).id == result.id
        with pytest.raises(AlreadyQueued, match=f"lock 'report:monday:long': .* {result.id}") as error:
            strict.delay("monday")
        sent = app.backend.exception_to_python(app.backend.prepare_exception(error.value))
        for each in (error.value, sent, pickle.loads(pickle.dumps(error.value))):
            assert (each.name, each.task_id, str(each)) == ("report:monday:long", result.id, str(error.value))
        assert graceful.delay("monday") is None
        assert report.delay("monday", "short").id != result.id
        assert admin.llen("celery") == 2
        with client.get_lock("report:friday:long"):
            with pytest.raises(AlreadyQueued, match="not known"):
                report.delay("friday")
            assert report.apply_async(("friday",), task_id="awaited").id == "awaited"
        # The duplicate runs nothing, though the lock is free by now.
        assert report.apply(("friday",), headers=json.loads(admin.lindex("celery", 0) or "")["headers"]).get() is None
        assert report.apply(("friday",)).get() == "long report of friday"
        report("monday")  # as a function: no message, and no lock
        assert publisher.holds() == []
    # The publisher has ended, and the lock is the message's.
    holder: Any = client.get_lock("report:monday:long").holder()
    assert holder.client_id == result.id


def test_leases(app: celery.Celery, client: pyredisson.Client, admin: Redis) -> None:
    @once(app, client, "{name}", lease_time=timedelta(minutes=10))
    def task(name: str) -> None: ...

    hour = datetime.now(UTC) + timedelta(hours=1)
    wanted: list[tuple[float, dict[str, Any]]] = [(10, {}), (70, {"countdown": 3600}), (70, {"eta": hour})]
    wanted += [(70, {"eta": hour.isoformat()}), (1, {"expires": 60}), (10, {"expires": hour})]
    for number, (minutes, options) in enumerate(wanted):
        task.apply_async((f"task-{number}",), **options)
        assert admin.ttl(f"task-{number}") / 60 == pytest.approx(minutes, abs=0.9), options

    @once(app, client, "lost", lease_time=0.2)
    def lost() -> None: ...

    # No worker takes it.
    first = lost.delay()
    eventually(lambda: lost.delay().id != first.id)


def test_eager_and_when_redis_is_down(app: celery.Celery, client: pyredisson.Client, proxy: Proxy) -> None:
    app.conf.task_always_eager = True
    ids = []

    @once(app, client, "task", bind=True)
    def task(self: Any) -> int:
        ids.extend([self.request.id, self.delay().id])
        if not self.request.retries:
            raise self.retry(countdown=0)
        return int(self.request.retries)

    for call in (task.delay, task.apply):
        assert (call().get(), len(set(ids))) == (1, 1)
        ids.clear()
        assert not client.get_lock("task").is_locked()

    def cut(**_: Any) -> None:
        proxy.refuse(True)
        proxy.cut()

    with pyredisson.connect(proxy.url, retry_attempts=0) as publisher:

        @once(app, publisher, "other")
        def other() -> None: ...

        task_prerun.connect(cut, sender=other)
        with pytest.raises(ConnectionError):
            other.delay().get()
        assert client.get_lock("other").is_locked()
        proxy.refuse(False)
        eventually(lambda: not client.get_lock("other").is_locked())


def test_wrong_arguments_and_a_broker_that_is_down(app: celery.Celery, client: pyredisson.Client) -> None:
    app.conf.broker_url = NOWHERE

    @once(app, client, "sent")
    def sent() -> None: ...

    def task(day: str) -> None: ...

    wrong: list[tuple[str, Callable[[], object]]] = [
        ("no parameter 'month'", lambda: singleton_task(client, "{month}")(task)),
        ("no parameter 'month'", lambda: once(app, client, "{month}")(task)),
        ("busy must be skip", lambda: singleton_task(client, "task", busy="wait")),  # type: ignore[arg-type]
        ("until must be end or start", lambda: queue_once(client, "task", until="never")),  # type: ignore[arg-type]
        ("lease_time must", lambda: queue_once(client, "task", lease_time=0)),
    ]
    for message, make in wrong:
        with pytest.raises(ValueError, match=message):
            make()
    with pytest.raises(OperationalError):
        sent.apply_async(retry=False)
    eventually(lambda: not client.get_lock("sent").is_locked())


def test_from_the_queue_to_the_end(work: Any, admin: Redis) -> None:
    result = work.report.delay("monday")
    started(admin)
    assert work.report.delay("monday").id == result.id
    admin.rpush("go", 1)
    assert result.get(CHILD_LIMIT) == 0
    eventually(lambda: not work.client.get_lock("report:monday").is_locked())
    again = work.report.delay("monday", fails=2)
    assert again.id != result.id
    assert len({started(admin) for _ in range(3)}) <= 2
    assert work.report.delay("monday").id == again.id
    admin.rpush("go", 1)
    assert again.get(CHILD_LIMIT) == 2
    # Between two tries the lock stays.
    later = work.report.delay("friday", fails=1, countdown=3600)
    started(admin)
    eventually(lambda: admin.ttl("report:friday") > 3600, CHILD_LIMIT)
    assert work.report.delay("friday").id == later.id
    early = work.early.delay("monday")
    started(admin)
    later = work.early.delay("monday")
    assert later.id != early.id
    admin.rpush("go", 1, 1)
    assert [early.get(CHILD_LIMIT), later.get(CHILD_LIMIT)] == [0, 0]
    # A retry runs, though the same task has been queued meanwhile.
    early = work.early.delay("friday", fails=1)
    eventually(lambda: work.early.apply_async(("friday",), countdown=3600).id != early.id, CHILD_LIMIT)
    admin.rpush("go", 1, 1)
    assert early.get(CHILD_LIMIT) == 1
    # Others wait for the results of duplicates.
    with work.client.singleton("report:tuesday"):
        assert celery.group(work.report.si("tuesday"), work.first.si())().get(CHILD_LIMIT) == [None, "first"]
        assert celery.chain(work.report.si("tuesday"), work.first.si())().get(CHILD_LIMIT) == "first"
        # A message whose lock has ended while it waited.
        assert work.app.send_task("celery_work.report", ("tuesday",)).get(CHILD_LIMIT) is None


def test_messages_that_never_run(work: Any, admin: Redis) -> None:
    eventually(work.app.control.ping, CHILD_LIMIT)  # it would not hear of the revocation before
    lock = work.client.get_lock("report:monday")
    # A message that has expired may keep its lock for a second only. The worker hears of a revocation in five.
    for options in ({"countdown": 5}, {"countdown": 1, "expires": 0.001}):
        result = work.report.apply_async(("monday",), **options)
        if "expires" not in options:
            assert lock.is_locked()
            result.revoke()
        with pytest.raises(TaskRevokedError):
            result.get(CHILD_LIMIT)
        eventually(lambda: not lock.is_locked())
    assert admin.llen("runs") == 0


def test_a_run_that_hangs_and_a_worker_that_dies(work: Any, admin: Redis) -> None:
    hanging = work.hangs.delay()
    started(admin)
    assert work.client.get_lock("hangs").try_lock(CHILD_LIMIT)
    admin.rpush("go", 1)
    with pytest.raises(pyredisson.LockLostError):
        hanging.get(CHILD_LIMIT)
    work.report.delay("monday")
    os.kill(started(admin), signal.SIGKILL)
    assert work.client.get_lock("report:monday").try_lock(CHILD_LIMIT)


def test_a_message_is_delivered_twice(work: Any, admin: Redis) -> None:
    """As by a broker whose visibility timeout is over."""
    waiting = "pyredisson_waiting:{report:monday}"
    result = work.report.delay("monday")
    process = started(admin)
    work.app.send_task("celery_work.report", ("monday",), task_id=result.id)
    eventually(lambda: admin.exists(waiting), CHILD_LIMIT)
    # The second one leaves when it has waited for longer than a lease.
    eventually(lambda: not admin.exists(waiting), CHILD_LIMIT)
    work.report.apply_async(("monday",), task_id=result.id)
    eventually(lambda: admin.exists(waiting), CHILD_LIMIT)
    assert (result.state, admin.llen("runs")) == ("PENDING", 0)
    os.kill(process, signal.SIGKILL)
    assert started(admin) != process
    admin.rpush("go", 1)
    eventually(lambda: not work.client.get_lock("report:monday").is_locked(), CHILD_LIMIT)
