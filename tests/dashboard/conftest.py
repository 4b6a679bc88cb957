"""Dashboards in processes of their own, as a user starts them; plain requests, and a headless Chromium for the page."""

import http.client
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, NamedTuple, cast
from urllib.parse import urlencode, urlsplit

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

from pyredisson.testing import Server
from tests.support.backends import eventually
from tests.support.children import clean_environment, line

Start = Callable[..., "Dashboard"]
CHROMIUM, DRIVER = "chromium", "chromedriver"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--force-device-scale-factor=1", "--lang=en"),
)
LIMIT = 20.0
"""Seconds after which a test fails that waits for what should happen in a few intervals, of 0.1 s each."""


class Reply(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


class Dashboard(AbstractContextManager["Dashboard"]):
    def __init__(self, server_url: str, *options: str, port: int = 0) -> None:
        program = [sys.executable, "-m", "pyredisson", "dashboard", "--url", server_url, "--timeout", "3"]
        program += ["--port", str(port), "--interval", "0.1", *options]
        # Not in a group of its own: whatever ends the tests ends the dashboard.
        self.process = Popen(program, stdout=PIPE, stderr=PIPE, text=True, env=clean_environment())
        first = line(self.process)
        if " is at " not in first:
            _, said = self.process.communicate()
            raise AssertionError(f"the dashboard did not start: {first}{said}")
        self.url = first.split(" is at ")[1]
        parts = urlsplit(self.url)
        self.port = cast(int, parts.port)
        self.token = parts.fragment.removeprefix("token=") or None
        self.origin = f"http://127.0.0.1:{self.port}"

    def stop(self, number: int = signal.SIGTERM) -> str:
        """Ends it by a signal. Returns what it has said on stderr."""
        self.process.send_signal(number)
        return self.process.communicate(timeout=LIMIT)[1]

    def __exit__(self, *_: object) -> None:
        self.stop()

    def request(self, method: str, path: str, headers: Mapping[str, str | None] = {}, body: object = None) -> Reply:
        """One request. `headers`: further ones; None leaves one out that is sent otherwise."""
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        with self._asked(method, path, headers, sent) as reply:
            return Reply(reply.status, reply.headers, reply.read())

    def get(self, path: str, headers: Mapping[str, str | None] = {}) -> Reply:
        return self.request("GET", path, headers)

    def post(self, path: str, body: object, headers: Mapping[str, str | None] = {}) -> Reply:
        """Sends what the page sends, and these headers."""
        return self.request("POST", path, {"Content-Type": "application/json", "X-Pyredisson": "1", **headers}, body)

    def view(self, view: str, **query: object) -> Any:
        reply = self.get(f"/api/{view}?{urlencode(query)}")
        assert reply.status == 200, reply.text
        return reply.json["view"]

    @property
    def totals(self) -> Any:
        """What the head of the page shows now."""
        return self.get("/api/locks").json["totals"]

    def rows(self, view: str = "locks", **query: object) -> dict[str, Any]:
        return {row.get("name", row.get("id")): row for row in self.view(view, **query)["rows"]}

    def until(self, condition: Callable[[], object]) -> None:
        eventually(condition, LIMIT)

    def events(self, **query: object) -> Generator[tuple[str, Any], None, None]:
        """The events of a stream, until the dashboard ends it."""
        with self._asked("GET", f"/events?{urlencode(query)}") as reply:
            assert reply.status == 200
            name = ""
            while line := reply.readline().decode():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ").strip()
                elif line.startswith("data: "):
                    yield name, json.loads(line.removeprefix("data: "))

    @contextmanager
    def _asked(
        self, method: str, path: str, headers: Mapping[str, str | None] = {}, body: bytes | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)) as connection:
            connection.putrequest(method, path, skip_host=True)
            for name, value in {"Host": f"127.0.0.1:{self.port}", **headers}.items():
                if value is not None:
                    connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            yield connection.getresponse()


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a dashboard of the test's own: `start(server.url, "--allow-unlock")`."""
    with ExitStack() as stack:
        yield lambda *arguments, port=0: stack.enter_context(Dashboard(*arguments, port=port))


@pytest.fixture(scope="module")
def shared_dashboard(server: Server) -> Iterator[Dashboard]:
    """One dashboard for the tests of a module, which may release holds. Not to be stopped."""
    with Dashboard(server.url, "--allow-unlock") as running:
        yield running


@pytest.fixture
def dashboard(shared_dashboard: Dashboard, empty_server: None) -> Dashboard:
    """The dashboard of an empty server: what earlier tests have held is gone from it."""
    shared_dashboard.until(lambda: not any(shared_dashboard.rows(view) for view in ("locks", "semaphores", "latches")))
    return shared_dashboard


def start_browser(profile: Path, *, width: int = 1280, height: int = 900) -> Chrome:
    """A browser with a new profile in that folder. The browser and the driver that Debian has fit each other."""
    # selenium looks for a driver in the network if it is not told where one is.
    os.environ["SE_OFFLINE"] = "true"
    options = ChromeOptions()
    options.binary_location = shutil.which(CHROMIUM) or CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return Chrome(options=options, service=Service(shutil.which(DRIVER)))
