"""Runs the dashboard until a signal ends it."""

import asyncio
import secrets
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote

import uvicorn

from pyredisson._settings.config import Config
from pyredisson.dashboard.app import make_app
from pyredisson.dashboard.collector import Collector
from pyredisson.dashboard.guards import is_loopback

LAST_SECONDS = 2
"""Seconds that open requests have when the dashboard is stopped."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    host: str = "127.0.0.1"
    port: int = 8787
    """0: any that is free."""
    token: str | None = None
    """None: one is made if others than the programs of this machine can ask."""
    allowed_hosts: Sequence[str] = ()
    """Names under which it is asked, besides `localhost`, `host` and all addresses."""
    allow_unlock: bool = False
    interval: float = 1.0
    """Seconds from one snapshot to the next."""


def serve(config: Config, settings: Settings, ready: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT. `ready` gets the URL to open, with the token if one is needed.

    Raises `OSError` if the address is in use or isn't one of this machine, and `RuntimeError` after a defect.
    """
    found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, (host, port, *_) = found[0]
    # uvicorn would end the process if it can't listen.
    with socket.create_server((str(host), int(port)), family=family, backlog=256) as listening:
        asyncio.run(_serve(config, settings, listening, ready))


def _url(host: str, port: int, token: str | None) -> str:
    shown = f"[{host}]" if ":" in host else host
    # What follows # is sent to no server, so it is in no log.
    return f"http://{shown}:{port}/" + ("" if token is None else f"#token={quote(token, safe='')}")


class _Server(uvicorn.Server):
    """Says when it is ready, and leaves the signals to `_serve`."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


async def _serve(config: Config, settings: Settings, listening: socket.socket, ready: Callable[[str], None]) -> None:
    port = listening.getsockname()[1]
    # A proxy on this machine passes on what others ask for, under another name.
    local = is_loopback(settings.host) and all(map(is_loopback, settings.allowed_hosts))
    token = settings.token if settings.token is not None or local else secrets.token_urlsafe(24)
    everywhere = settings.host in ("", "0.0.0.0", "::")
    own_name = socket.gethostname() if everywhere else settings.host
    collector = Collector(config, settings.interval)

    names = [own_name, settings.host, *settings.allowed_hosts]

    def end() -> None:
        # Before the server is told: it waits for open streams, which end with the collector.
        collector.stop()
        server.should_exit = True

    app = make_app(collector, token, names, allow_unlock=settings.allow_unlock, on_failure=end)
    served = uvicorn.Config(
        app,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=LAST_SECONDS,
    )
    # A token of the user's own is no news, and what is printed may end up in a log.
    shown = token if settings.token is None else None
    server = _Server(served, lambda: ready(_url(own_name, port, shown)))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    await server.serve(sockets=[listening])
    if collector.failure is not None:
        raise RuntimeError("what the servers hold can't be read") from collector.failure
