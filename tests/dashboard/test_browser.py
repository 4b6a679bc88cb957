"""The page in a real browser: what it shows is what Redis holds, without a reload, and it says what is gone."""

import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from selenium.webdriver import Keys
from selenium.webdriver.common.by import By

import pyredisson
from pyredisson.testing import Server
from pyredisson.testing.server import lasting_ports
from pyredisson.version import VERSION
from tests.dashboard.conftest import CHROMIUM, DRIVER, LIMIT, Dashboard, Start, start_browser
from tests.support.backends import eventually
from tests.support.inspecting import announce, announce_deadlock

pytestmark = pytest.mark.xdist_group("browser")
"""One process starts the browser and the dashboard that all tests share."""
CLIENT = "00000000-0000-4000-8000-00000000000{}"


def queue_of_clients(redis: Any, name: str, count: int) -> list[str]:
    """Waiters of so many clients in the queue of a fair lock, all of them alive for ever."""
    later = 9 * 10**12
    clients = [f"00000000-0000-4000-8000-{number:012}" for number in range(1, count + 1)]
    places = [f"{client}:{2**32}" for client in clients]
    redis.rpush(f"redisson_lock_queue:{{{name}}}", *places)
    redis.hset(f"pyredisson_fair_waiters:{{{name}}}", mapping=dict.fromkeys(places, later))
    redis.zadd(f"pyredisson_fair_clients:{{{name}}}", dict.fromkeys(clients, later))
    return places


class Page:
    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.run = driver.execute_script

    def open(self, dashboard: Dashboard, fragment: str = "#/locks") -> None:
        # Between two pages that differ in the fragment only there is no load.
        self.driver.get("about:blank")
        self.driver.get(f"{dashboard.origin}/{fragment}")
        # Lost with a reload.
        self.driver.execute_script("window.mark = 'as loaded'")

    def find(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def until(self, condition: Callable[[], object], seconds: float = LIMIT) -> None:
        eventually(condition, seconds)

    def text(self, selector: str) -> str:
        """The text that is seen; nothing if it is hidden or isn't there."""
        seen = "const it = document.querySelector(arguments[0]); return it && it.checkVisibility() ? it.innerText : ''"
        return str(self.run(seen, selector))

    def column(self, column: str) -> list[str]:
        """The texts of a column of all tables that are seen."""
        cells = "Array.from(document.querySelectorAll(`td[data-column=${arguments[0]}]`))"
        texts = "filter((cell) => cell.offsetParent !== null).map((cell) => cell.innerText.trim())"
        return list(self.run(f"return {cells}.{texts}", column))

    @property
    def names(self) -> list[str]:
        return self.column("name")

    @property
    def state(self) -> str:
        return str(self.run("return document.getElementById('status').dataset.state"))

    @property
    def reloaded(self) -> bool:
        return bool(self.run("return window.mark") != "as loaded")

    def ask_to_release(self, dashboard: Dashboard, name: str) -> None:
        self.open(dashboard, "#/lock?name=" + quote(name))
        self.until(lambda: self.column("act") == ["Release…"])
        self.find("button.release").click()

    def resize(self, width: int, height: int) -> None:
        """Until the end of the test."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def type(self, selector: str, text: str) -> None:
        field = self.find(selector)
        field.clear()
        field.send_keys(text)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if not (shutil.which(CHROMIUM) and shutil.which(DRIVER)):
        if os.environ.get("PYREDISSON_REQUIRE_BROWSER"):
            pytest.fail("chromium and chromedriver are missing")
        pytest.skip("chromium and chromedriver are missing: sh .ci/browser")
    with start_browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def page(driver: Any) -> Iterator[Page]:
    """The browser. After the test: what the page has done that it never should."""
    driver.get_log("browser")
    driver.get_log("performance")
    yield Page(driver)
    driver.get("about:blank")
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    remote = [url for url in asked if urlsplit(url).scheme not in ("about", "chrome", "data")]
    assert {urlsplit(url).hostname for url in remote} <= {"127.0.0.1"}
    # Requests that fail are part of the tests of outages.
    severe = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert not [message for message in severe if "Failed to load resource" not in message]


def hold(redis: Any, name: str, number: int = 1) -> None:
    """Writes a lock with an owner and a lease, as a client has it on the server."""
    redis.hset(name, CLIENT.format(number) + ":1", 1)
    redis.pexpire(name, 60_000)


class TestLocks:
    def test_what_the_server_has(self, page: Page, dashboard: Dashboard, client: pyredisson.Client, redis: Any) -> None:
        page.open(dashboard)
        page.until(lambda: page.text(".empty strong") == "No lock is held")
        for name in ("orders", "cron:nightly", "<img src=x onerror=\"document.title='broken in'\">"):
            client.get_lock(name).lock()
        page.until(lambda: len(page.names) == 3)
        assert sorted(page.names) == sorted(key.decode() for key in redis.keys("*") if redis.type(key) == b"hash")
        assert set(page.column("holder")) == {f"client {client.id[:8]}"}
        for name, left in zip(page.names, page.column("ttl"), strict=True):
            assert 0 < float(left.removesuffix(" s")) <= 30, name
        page.until(lambda: page.text("figure[data-chart=Held] .now") == "3")
        assert page.text("#count-locks") == "3"
        label = page.find("figure[data-chart=Held]").get_attribute("aria-label")
        assert label.startswith("Held: 3 holds of locks and permits, at most ")
        assert page.find("figure[data-chart=Held] .curve").get_attribute("d")
        client.get_lock("orders").unlock()
        page.until(lambda: "orders" not in page.names)
        page.until(lambda: page.state == "live")
        # The name of a lock is text, whatever stands in it.
        assert page.run("return document.querySelectorAll('img').length") == 0
        assert (page.run("return document.title"), page.reloaded) == ("locks · pyredisson", False)

    @pytest.mark.usefixtures("announced")
    def test_a_client_that_announces_itself_and_renews(self, page: Page, server: Server, dashboard: Dashboard) -> None:
        page.open(dashboard)
        with pyredisson.connect(server.url, announce=True, lock_watchdog_timeout=3.0) as client:
            client.get_lock("orders").lock()
            page.until(lambda: page.names == ["orders"])
            # Each renewal begins the animation of the bar anew.
            page.run("window.renewals = 0; document.addEventListener('animationstart', () => { window.renewals += 1 })")
            page.until(lambda: page.run("return window.renewals") >= 2)
            part = "return new DOMMatrix(getComputedStyle(document.querySelector('.ttl i')).transform).a"
            assert 0 < page.run(part) <= 1
            page.until(lambda: page.column("holder") == [f"{socket.gethostname()} (pid {os.getpid()})"])
            page.until(lambda: page.column("since")[0].endswith("s)"))
            page.find("a[data-view=clients]").click()
            page.until(lambda: page.column("version") == [VERSION])
            assert page.column("holds") == ["1"]

    def test_the_page_of_a_lock_and_its_queue(self, page: Page, dashboard: Dashboard, redis: Any) -> None:
        name = "jobs/ä b?c=1&d#e%"
        redis.hset(name, CLIENT.format(0) + ":1", 1)
        queue = queue_of_clients(redis, name, 3)
        page.open(dashboard)
        page.until(lambda: page.column("waiters") == ["3 in line"])
        page.find("td[data-column=name] a").click()
        page.until(lambda: page.column("place") == ["1", "2", "3"])
        page.until(lambda: page.column("raw")[1:] == queue)
        page.until(lambda: page.column("alive") == ["waits"] * 3)
        assert page.text("#content h2") == name
        # The first one leaves, and the others move up.
        redis.lrem(f"redisson_lock_queue:{{{name}}}", 1, queue[0])
        page.until(lambda: page.column("raw")[1:] == queue[1:])
        redis.flushall()
        page.until(lambda: "free" in page.text(".facts"))
        # Former holders.
        hold(redis, "handed on")
        page.open(dashboard, "#/lock?name=handed on")
        page.until(lambda: page.column("raw") == [CLIENT.format(1) + ":1"])
        assert page.column("until") == []
        redis.rename("handed on", "another")
        page.until(lambda: page.column("holder") == ["Redisson 00000000, thread 1"])
        assert page.column("until")[0].endswith("s)")

    def test_names_that_look_the_same(self, page: Page, dashboard: Dashboard, redis: Any) -> None:
        """A name that is no text, and one that is what the former is shown as: each has one row."""
        for name in (b"\xff", b"\\xff"):
            redis.hset(name, CLIENT.format(1) + ":1", 1)
        page.open(dashboard)
        page.until(lambda: page.names == ["\\xff"] * 2)
        # Some snapshots later:
        redis.hset("further", CLIENT.format(1) + ":1", 1)
        page.until(lambda: "further" in page.names)
        assert page.names == ["\\xff", "\\xff", "further"]
        redis.delete("further")
        page.until(lambda: page.names == ["\\xff"] * 2)

    def test_ten_thousand(self, page: Page, dashboard: Dashboard, redis: Any) -> None:
        with redis.pipeline(transaction=False) as pipeline:
            for number in range(10_000):
                pipeline.hset(f"orders:{number:05}", f"00000000-0000-4000-8000-{number % 20:012}:1", 1)
                pipeline.pexpire(f"orders:{number:05}", 600_000)
            pipeline.execute()
        page.open(dashboard)
        page.until(lambda: page.text(".found") == "10,000 locks", 5 * LIMIT)
        assert page.names == [f"orders:{number:05}" for number in range(50)]
        page.find("button[data-page='Last page']").click()
        page.until(lambda: page.names == [f"orders:{number:05}" for number in range(9950, 10_000)])
        assert page.text(".where") == "Page 200 of 200"
        assert not page.find("button[data-page='Next page']").is_enabled()
        page.type("#filter", "*:0777?")
        page.until(lambda: page.names == [f"orders:0777{number}" for number in range(10)])
        assert page.text(".where") == ""
        page.find("button[data-sort=name]").click()
        page.until(lambda: page.names[0] == "orders:07779")
        # What is visible is read in each interval, however many there are.
        redis.delete("orders:07779")
        page.until(lambda: page.names[0] == "orders:07778")
        page.until(lambda: page.text("#count-clients") == "20")
        assert not page.reloaded


class TestOtherViews:
    def test_semaphores_latches_and_clients(self, page: Page, dashboard: Dashboard, client: pyredisson.Client) -> None:
        tokens = client.get_permit_expirable_semaphore("tokens")
        tokens.try_set_permits(3)
        client.get_semaphore("a pool").try_set_permits(4)
        client.get_count_down_latch("ready").try_set_count(2)
        client.get_lock("orders").lock()
        page.open(dashboard, "#/semaphores")
        page.until(lambda: len(page.column("used")) == 2)
        assert (page.names, page.column("used")[1]) == (["a pool", "tokens"], "0 of 3")
        page.run(
            "const cell = document.querySelectorAll('td[data-column=used]')[1]; window.seen = [];"
            "new MutationObserver(() => window.seen.push(cell.innerText.trim()))"
            ".observe(cell, { subtree: true, childList: true, characterData: true })"
        )
        # Two changes are a snapshot apart.
        for used in ("1 of 3", "2 of 3"):
            tokens.acquire(lease_time=60)
            page.until(lambda used=used: page.column("used")[1] == used)  # type: ignore[misc]
        # The bars of leases are drawn four times in a second, which must not touch this one.
        assert set(page.run("return window.seen")) == {"1 of 3", "2 of 3"}
        page.find("a[data-view=latches]").click()
        page.until(lambda: page.names == ["ready"])
        client.get_count_down_latch("ready").count_down()
        page.until(lambda: page.column("count") == ["1"])
        page.find("a[data-view=clients]").click()
        page.until(lambda: page.column("who") == [f"client {client.id[:8]}"])
        page.find("td[data-column=who] a").click()
        page.until(lambda: page.names == ["orders"])
        assert page.text("p.why") == client.id

    def test_the_graph_of_a_deadlock(self, page: Page, dashboard: Dashboard, redis: Any) -> None:
        announce_deadlock(redis)
        page.open(dashboard, "#/graph")
        page.until(lambda: page.column("deadlock")[:4] == ["yes"] * 4)
        owners = ["web-1 (pid 7)", "web-2 (pid 9)", "web-2 (pid 9)", "web-1 (pid 7)", "web-3 (pid 812)"]
        assert (page.column("who"), page.names) == (owners, ["orders", "orders", "stock", "stock", "orders"])
        assert page.column("what") == ["holds", "waits for", "holds", "waits for", "waits for"]
        parts = (".node", ".node.deadlock", ".edge.holds.deadlock", ".edge.waits.deadlock", ".edge")
        count = "return document.querySelectorAll('.graph ' + arguments[0]).length"
        assert [page.run(count, part) for part in parts] == [5, 4, 2, 2, 5]
        assert "web-1 (pid 7) waits for stock (deadlock)" in page.find("desc").get_attribute("textContent")
        redis.flushall()
        page.until(lambda: page.text(".empty strong") == "Nobody waits")
        assert not page.text(".graph")

    def test_the_wall(self, page: Page, dashboard: Dashboard, redis: Any) -> None:
        announce(redis, CLIENT.format(7), lost=2)
        hold(redis, "jobs")
        queue_of_clients(redis, "jobs", 3)
        page.open(dashboard, "#/wall")
        page.until(lambda: page.column("waiting") == ["3"] and page.column("lost") == ["2"])
        keys = ("held", "waiting", "lost", "deadlocks")
        assert [page.text(f"[data-number={key}] dd") for key in keys] == ["1", "3", "2", "0"]
        assert page.run("return getComputedStyle(document.documentElement).colorScheme") == "dark"
        assert not any(page.text(control) for control in ("#theme", ".tabs", ".tools", "footer"))

    def test_announced_counts(self, page: Page, server: Server, start: Start, empty_server: None, redis: Any) -> None:
        dashboard = start(server.url)
        page.open(dashboard)
        # What was counted before the first point isn't shown.
        events = dashboard.events(view="locks")
        assert next(content for name, content in events if name == "snapshot" and content["points"])
        events.close()
        began = round(time.time() * 1000)
        announce(redis, CLIENT.format(1), waits=12, lost=1, since=began)
        page.until(lambda: page.text("figure[data-chart=Waits] .now") == "12")
        page.until(lambda: page.text("figure[data-chart=Losses] .now") == "1")
        announce(redis, CLIENT.format(1), waits=15, lost=1, since=began)
        page.until(lambda: page.text("figure[data-chart=Waits] .now") == "15")
        assert page.text("figure[data-chart=Losses] .now") == "1"


def test_the_server_and_the_dashboard_are_gone_and_come_back(page: Page, own_server: Server, start: Start) -> None:
    with own_server.redis() as redis:
        hold(redis, "before")
    # Nobody else gets this port while the dashboard is gone.
    dashboard = start(own_server.url, port=lasting_ports(1)[0])
    page.open(dashboard)
    page.until(lambda: page.names == ["before"])
    own_server.kill()
    page.until(lambda: page.state == "away")
    assert page.text("#banner").startswith("The server doesn't reply since ")
    assert (page.text("#status-text"), page.names) == ("server away", ["before"])
    own_server.start()
    with own_server.redis() as redis:
        hold(redis, "after")
    page.until(lambda: page.state == "live" and page.names == ["after"])
    assert page.text("#banner") == ""
    dashboard.process.kill()
    dashboard.process.wait()
    page.until(lambda: page.state == "lost")
    assert page.text("#banner").startswith("No connection to the dashboard since ")
    with own_server.redis() as redis:
        hold(redis, "while away")
    start(own_server.url, port=dashboard.port)
    page.until(lambda: page.state == "live" and page.names == ["after", "while away"])
    assert (page.text("#banner"), page.reloaded) == ("", False)


class TestRelease:
    def test_a_confirmation(self, page: Page, dashboard: Dashboard, client: pyredisson.Client, redis: Any) -> None:
        lock = client.get_lock("orders")
        lock.lock()
        page.ask_to_release(dashboard, "orders")
        assert page.text("#confirm-text") == f"It is the hold of client {client.id[:8]}."
        assert "may still be working" in page.text("#confirm-working")
        page.type("#confirm-name", "order")
        assert not page.find("#confirm-release").is_enabled()
        page.find("#confirm-cancel").click()
        assert lock.is_locked()
        page.find("button.release").click()
        page.type("#confirm-name", "orders")
        page.find("#confirm-name").send_keys(Keys.ENTER)
        page.until(lambda: not page.find("#confirm").is_displayed())
        assert not lock.is_locked()
        page.until(lambda: "free" in page.text(".facts"))
        # The holder changes meanwhile.
        hold(redis, "orders")
        page.ask_to_release(dashboard, "orders")
        redis.delete("orders")
        hold(redis, "orders", 2)
        page.type("#confirm-name", "orders")
        page.find("#confirm-release").click()
        page.until(lambda: page.text("#confirm-error") == "the holder has changed meanwhile; nothing was released")
        assert redis.hkeys("orders") == [(CLIENT.format(2) + ":1").encode()]

    def test_a_name_that_can_not_be_typed(self, page: Page, dashboard: Dashboard, redis: Any) -> None:
        """A field has no line breaks, and a sign that turns the direction of writing isn't seen."""
        name = "two\nlines\u202e"
        # Nobody works under a lock that is only kept.
        redis.hset(name, CLIENT.format(1) + ":1:kept", 1)
        page.ask_to_release(dashboard, name)
        assert ("whose work is done" in page.text("#confirm-text"), page.text("#confirm-working")) == (True, "")
        assert page.text("#confirm-shown") == r"two\u000alines\u202e"
        page.type("#confirm-name", r"two\u000alines\u202e")
        page.find("#confirm-release").click()
        page.until(lambda: not redis.exists(name))


def test_a_token(page: Page, server: Server, start: Start, redis: Any) -> None:
    hold(redis, "orders")
    token = "50%off:a-token"
    dashboard = start(server.url, "--token", token)
    # Printed, it might end up in a log.
    assert dashboard.token is None
    page.open(dashboard)
    page.until(lambda: page.find("#login").is_displayed())
    assert (page.names, page.column("act")) == ([], [])
    page.type("#token", "a wrong one")
    page.find("#login button").click()
    page.until(lambda: page.text("#login-error") == "This isn't the token.")
    page.type("#token", token)
    page.find("#login button").click()
    page.until(lambda: page.names == ["orders"])
    assert not page.find("#login").is_displayed()
    # Other web servers of this machine get nothing that would open it. A tab that is loaded again knows it.
    assert page.driver.get_cookies() == []
    page.driver.refresh()
    page.until(lambda: page.names == ["orders"])
    # Nothing can be released: it wasn't started with --allow-unlock.
    page.find("td[data-column=name] a").click()
    page.until(lambda: page.column("levels") == ["1 level"])
    assert page.column("act") == []
    # In an address as it is, or pasted as it was printed.
    for written in (token, quote(token)):
        page.run("sessionStorage.clear()")
        page.open(dashboard)
        page.until(lambda: page.find("#login").is_displayed())
        page.run("location.hash = '#token=' + arguments[0]", written)
        page.until(lambda: page.names == ["orders"])
        # It is in no history, and in no picture of the screen.
        assert page.run("return location.hash") == "#/locks"


class TestUse:
    def test_by_keyboard_on_a_wall_and_with_a_screen_reader(self, page: Page, dashboard: Dashboard, redis: Any) -> None:
        for name in ("a", "b"):
            hold(redis, name)
        page.open(dashboard)
        page.until(lambda: page.names == ["a", "b"])
        page.run("document.querySelector('button[data-sort=name]').focus()")
        page.driver.switch_to.active_element.send_keys(Keys.ENTER)
        page.until(lambda: page.names == ["b", "a"])
        # The snapshots that come don't take the focus away.
        assert page.driver.switch_to.active_element.text.startswith("Name")
        assert page.find("th[aria-sort]").get_attribute("aria-sort") == "descending"
        page.run("document.querySelector('td[data-column=name] a').focus()")
        page.driver.switch_to.active_element.send_keys(Keys.ENTER)
        page.until(lambda: page.text("#content h2") == "b")
        # On a wall the page uses the width, and is larger, as it is read from a distance.
        height = "return document.querySelector('td.name').getBoundingClientRect().height"
        page.open(dashboard)
        page.until(lambda: page.names == ["a", "b"])
        usual = page.run(height)
        page.resize(3840, 2160)
        assert page.run("return document.querySelector('table').getBoundingClientRect().width") > 0.9 * 3840
        assert page.run(height) > 1.8 * usual
        assert page.run("return document.documentElement.scrollWidth") <= 3840
        assert page.run("return document.documentElement.scrollHeight") <= 2160
        # For a screen reader whatever takes a focus has a name.
        tree = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        roles = ("button", "link", "textbox", "searchbox", "combobox", "table", "columnheader", "image")
        named = [node for node in tree if node.get("role", {}).get("value") in roles and not node.get("ignored")]
        assert len(named) > 15
        assert page.run("return document.querySelectorAll('h1').length") == 1
        assert not [node for node in named if not node.get("name", {}).get("value")]

    @pytest.mark.parametrize("fragment", ["#/locks", "#/wall", "#/graph", "#/lock?name=" + "long" * 50])
    def test_a_narrow_window(self, page: Page, dashboard: Dashboard, redis: Any, fragment: str) -> None:
        hold(redis, "long" * 50)
        queue_of_clients(redis, "long" * 50, 1)
        page.resize(320, 700)
        page.open(dashboard, fragment)
        page.until(lambda: page.run("return document.querySelectorAll('tbody tr').length"))
        assert page.run("return document.documentElement.scrollWidth") <= 320
        # Whatever the state in the header says. Nothing is drawn between the two statements.
        say = "document.getElementById('status-text').textContent = arguments[0];"
        for words in ("no connection", "token needed", "live, 12.3 ms", "live, 12345.6 ms"):
            assert page.run(say + "return document.documentElement.scrollWidth", words) <= 320, words
