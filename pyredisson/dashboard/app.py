"""The HTTP side of the dashboard: the page, the stream, the same data for scripts, releases by force; the server."""

import asyncio
import json
import logging
import math
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import quote

import uvicorn
from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from pyredisson._backends.aio.operations import cancel_and_wait
from pyredisson._settings.config import Config
from pyredisson.dashboard.collector import Collector
from pyredisson.dashboard.guards import Guard, is_loopback
from pyredisson.dashboard.snapshot import Snapshot, who
from pyredisson.dashboard.views import METRICS_TYPE, Query, metrics_of, query_of, totals_of, view_of
from pyredisson.errors import ClosedError
from pyredisson.inspection.states import MOST_LISTED
from pyredisson.inspection.unlocking import release_shown
from pyredisson.version import VERSION

logger = logging.getLogger("pyredisson.dashboard")

LAST_SECONDS = 2
"""Seconds that a round has to end when the dashboard is stopped, and open requests."""
KEEP_ALIVE = 5.0
"""Seconds after which a stream says that it is there, if there is no snapshot."""
FIRST_SNAPSHOT = 5.0
"""Seconds for which a script waits for a snapshot."""
LARGEST_BODY = 200_000
MOST_STREAMS = 100
PAGE = Path(__file__).with_name("page")
"""The files of the page. They contain no data, so they need no token."""


class Dashboard:
    """Answers requests from the snapshots of a collector."""

    def __init__(self, collector: Collector, *, allow_unlock: bool) -> None:
        self._collector = collector
        self._allow_unlock = allow_unlock
        self._streams = 0

    async def health(self, request: Request) -> Response:
        # Not a look: a supervisor asks all day long, and nobody sees what would be read for it.
        if self._collector.stopped:
            return PlainTextResponse("the dashboard has stopped\n", 503)
        away = self._collector.snapshot.away_since is not None or not self._collector.snapshot.number
        return PlainTextResponse("no server replies\n" if away else "ok\n", 503 if away else 200)

    async def once(self, request: Request) -> Response:
        """One view, for a script."""
        query = query_of(request.query_params, request.path_params["view"])
        with self._collector.watch() as watch:
            watch.detail = _detail(query, self._collector.snapshot)
            # One object is read in each round as long as somebody looks at it, and else now and then.
            since = -math.inf if watch.detail is None else time.monotonic()
            snapshot = await self._fresh(since)
        return JSONResponse({"totals": totals_of(snapshot), "view": view_of(snapshot, query).content})

    async def metrics(self, request: Request) -> Response:
        """For Prometheus. Whoever scrapes looks: what isn't looked for would be missing."""
        return PlainTextResponse(metrics_of(await self._fresh(-math.inf)), media_type=METRICS_TYPE)

    async def _fresh(self, since: float) -> Snapshot:
        snapshot = await self._collector.fresh(FIRST_SNAPSHOT, since)
        if snapshot is None:
            raise HTTPException(503, "the dashboard is being stopped\n")
        return snapshot

    async def events(self, request: Request) -> Response:
        """The stream of one page, as server-sent events."""
        query = query_of(request.query_params)
        if self._streams >= MOST_STREAMS:
            return PlainTextResponse(f"there are {MOST_STREAMS} pages open\n", 503)
        headers = {"X-Accel-Buffering": "no"}
        return StreamingResponse(self._stream(query), media_type="text/event-stream", headers=headers)

    async def _stream(self, query: Query) -> AsyncIterator[bytes]:
        """A snapshot after another until the collector is stopped. A slow browser gets fewer of them."""
        self._streams += 1
        try:
            collector, number, latest = self._collector, 0, 0.0
            about = {"server": collector.config.describe(), "version": VERSION, "interval": collector.interval}
            yield _event("about", about | {"unlock": self._allow_unlock})
            with collector.watch() as watch:
                while True:
                    watch.detail = _detail(query, collector.snapshot)
                    try:
                        snapshot = await collector.next(number, KEEP_ALIVE)
                    except TimeoutError:
                        yield _event("alive", {})
                        continue
                    if snapshot is None:
                        return
                    view = view_of(snapshot, query)
                    watch.keys, number = view.keys, snapshot.number
                    points = collector.history.since(latest)
                    latest = points[-1].time if points else latest
                    content = {"number": number, "time": snapshot.time, "totals": totals_of(snapshot)}
                    content["points"] = [[round(value, 3) for value in point] for point in points]
                    yield _event("snapshot", content | {"view": view.content})
        finally:
            self._streams -= 1

    # --- Unlocking

    async def unlock(self, request: Request) -> Response:
        """Releases the hold of one owner, and of no other one, and says whose it was."""
        if not self._allow_unlock:
            return PlainTextResponse("the dashboard was started without --allow-unlock\n", 403)
        body = await _json(request)
        name, owner = body.get("name"), body.get("owner")
        if not (isinstance(name, str) and isinstance(owner, str)):
            return PlainTextResponse("name and owner are missing\n", 400)
        seen = self._collector.snapshot.named(name)
        if seen is None:
            return PlainTextResponse("there is no such lock\n", 404)
        try:
            known, failed = await self._collector.inspector.states([seen.state.key], limit=MOST_LISTED)
            for error in failed.values():
                raise error
            owners = () if known[0].kind == "unknown" else known[0].owners
            shown = next((each for each in owners if each.raw == owner), None)
            if shown is None or not await release_shown(self._collector.session, known[0], shown):
                return PlainTextResponse("the holder has changed meanwhile; nothing was released\n", 409)
        except ValueError as error:
            # Its holds can't be released one by one.
            return PlainTextResponse(f"{error}\n", 422)
        except (RedisError, ClosedError) as error:
            return PlainTextResponse(f"it isn't known whether it was released: {error}\n", 502)
        # Any program can write anything to Redis, also line breaks: nobody shall write lines of this log.
        whose = who(shown.holder)
        address = "unknown" if request.client is None else request.client.host
        logger.warning("the hold of %r (%r) on %r was released by force, from %s", whose, owner, name, address)
        return JSONResponse({"released": whose})


def make_app(
    collector: Collector, token: str | None, hosts: Sequence[str], *, allow_unlock: bool, on_failure: Callable[[], None]
) -> Starlette:
    """The application. The collector runs for as long as it does. `on_failure`: the collector has ended by itself."""

    def ended(task: asyncio.Task[None]) -> None:
        # The streams end, and the page says so.
        collector.stop()
        if not task.cancelled() and task.exception() is not None:
            collector.failure = task.exception()
            logger.error("the dashboard stops after a defect", exc_info=collector.failure)
            on_failure()

    @asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(collector.run())
        task.add_done_callback(ended)
        try:
            yield
        finally:
            collector.stop()
            try:
                # A server that hangs would keep it for many timeouts.
                await asyncio.wait({task}, timeout=LAST_SECONDS)
            finally:
                await cancel_and_wait(task)

    dashboard, page = Dashboard(collector, allow_unlock=allow_unlock), StaticFiles(directory=PAGE, html=True)
    routes = [
        Route("/healthz", dashboard.health),
        Route("/events", dashboard.events),
        Route("/metrics", dashboard.metrics),
        Route("/api/unlock", dashboard.unlock, methods=["POST"]),
        Route("/api/{view}", dashboard.once),
        Mount("/page", page),
        Mount("/", page),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, token=token, hosts=hosts)], lifespan=running)


def _detail(query: Query, snapshot: Snapshot) -> bytes | None:
    """The key of the object that has a page of its own. A name that is no text is known only from what was read."""
    if query.view != "lock":
        return None
    seen = snapshot.named(query.name)
    return query.name.encode("utf-8", "surrogatepass") if seen is None else seen.state.key


def _event(name: str, content: dict[str, Any]) -> bytes:
    # JSON as `json` writes it has no line breaks and only ASCII, so it is one line of the stream.
    return f"event: {name}\ndata: {json.dumps(content, separators=(',', ':'))}\n\n".encode()


async def _json(request: Request) -> dict[str, Any]:
    """The body of a request; nothing if it is too large or no JSON object."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_BODY:
            return {}
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        # The latter: lists in lists in lists.
        return {}
    return content if isinstance(content, dict) else {}


# --- Running it until a signal comes


async def serve(
    config: Config,
    ready: Callable[[str], None],
    *,
    host: str,
    port: int,
    token: str | None,
    allowed_hosts: Sequence[str],
    allow_unlock: bool,
    interval: float,
) -> None:
    """Serves until SIGTERM or SIGINT. `ready` gets the URL to open, with the token if one is needed.

    `port` 0: any that is free. `token` None: one is made if others than the programs of this machine can ask.
    `allowed_hosts`: names under which it is asked, besides `localhost`, `host` and all addresses. `interval`: seconds
    from one snapshot to the next.

    Raises `OSError` if the address is in use or isn't one of this machine, and `RuntimeError` after a defect.
    """
    # A proxy on this machine passes on what others ask for, under another name.
    local = is_loopback(host) and all(map(is_loopback, allowed_hosts))
    needed = token if token is not None or local else secrets.token_urlsafe(24)
    own_name = socket.gethostname() if host in ("", "0.0.0.0", "::") else host
    collector = Collector(config, interval)

    def end() -> None:
        # Before the server is told: it waits for open streams, which end with the collector.
        collector.stop()
        server.should_exit = True

    names = [own_name, host, *allowed_hosts]
    served = uvicorn.Config(
        make_app(collector, needed, names, allow_unlock=allow_unlock, on_failure=end),
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=LAST_SECONDS,
    )
    shown = f"[{own_name}]" if ":" in own_name else own_name
    # A token of the user's own is no news, and what is printed may end up in a log. What follows # is sent nowhere.
    fragment = "" if needed is None or token is not None else f"#token={quote(needed, safe='')}"
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, (address, number, *_) = found[0]
    # uvicorn would end the process if it can't listen.
    with socket.create_server((str(address), int(number)), family=family, backlog=256) as listening:
        server = uvicorn.Server(served)
        # The signals end the collector, too.
        server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(signal_number, end)
        # The system takes connections from now on.
        ready(f"http://{shown}:{listening.getsockname()[1]}/{fragment}")
        await server.serve(sockets=[listening])
    if collector.failure is not None:
        raise RuntimeError("what the servers hold can't be read") from collector.failure
