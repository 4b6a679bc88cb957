"""The name of a client's connections in CLIENT LIST."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError, ResponseError

import pyredisson
from pyredisson import identity
from pyredisson._protocol.handshake import Handshake
from pyredisson.testing import Server
from tests.support.backends import Backend
from tests.support.server_state import ServerState

pytestmark = pytest.mark.asyncio


def own_name() -> str:
    return identity.connection_name(identity.identity())


def names(admin: Redis) -> list[str]:
    return [entry["name"] for entry in admin.client_list() if entry["name"]]


async def test_a_name_that_a_person_recognizes(backend: Backend, server_state: ServerState) -> None:
    """All connections have it: that for commands, that for messages, and the watchdog's."""
    # Renewed after a third of that, over the watchdog's connection.
    client = backend.connect(lock_watchdog_timeout=4)
    lock = client.get_lock("a", owner=1)
    await lock.lock()
    other = backend.spawn(client.get_lock("a", owner=2).lock)
    await backend.until(lambda: names(server_state.redis).count(own_name()) >= 3)
    assert own_name().endswith(f"@{os.uname().nodename}:{os.getpid()}")
    # A connection of the test before may be listed for a moment.
    await backend.until(lambda: set(names(server_state.redis)) == {own_name()})
    await lock.unlock()
    await other.result()


async def test_a_chosen_name(backend: Backend, own_server: Server) -> None:
    await backend.connect(own_server.url, client_name="billing").get_lock("a").lock()
    with own_server.redis() as admin:
        assert set(names(admin)) == {"billing"}


async def test_a_user_may_lack_the_right(backend: Backend, own_server: Server) -> None:
    """The default name is a courtesy. Without a chosen one somebody may not find this client."""
    user = {"username": "plain", "password": "any"}
    with own_server.redis() as admin:
        admin.acl_setuser(
            "plain", enabled=True, nopass=True, keys=["*"], channels=["*"], commands=["+@all", "-client|setname"]
        )
        lock = backend.connect(own_server.url, **user).get_lock("a")
        await lock.lock()
        assert names(admin) == []
        await lock.unlock()
        with pytest.raises(NoPermissionError):
            await backend.connect(own_server.url, **user, client_name="billing").get_lock("a").lock()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
async def test_a_forked_child_has_its_own_name(server: Server, admin: Redis) -> None:
    with pyredisson.connect(server.url) as client:
        client.get_lock("a", owner=1).lock()
        child = os.fork()
        if not child:
            try:
                client.get_lock("b", owner=1).lock()
                found = f"@{os.uname().nodename}:{os.getpid()}" in "".join(names(admin))
                os._exit(0 if found else 1)
            finally:
                os._exit(2)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert own_name() in names(admin)


@pytest.mark.parametrize(
    ("argv", "program"),
    [
        (["/srv/billing.py"], "billing"),
        (["/usr/bin/gunicorn"], "gunicorn"),
        (["/srv/billing/__main__.py"], "billing"),
        (["__main__.py"], "folder"),
        (["-c"], "python"),
        (["-m"], "python"),
        ([""], "python"),
        ([], "python"),
    ],
)
async def test_the_program(argv: list[str], program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(identity, "_identity", None)
    monkeypatch.setattr(sys, "argv", argv)
    assert identity.identity().program == program


@pytest.mark.parametrize("program", ["two words", "café", "日本", "x" * 300, "line\nbreak"])
async def test_any_name_is_accepted_by_the_server(program: str, admin: Redis) -> None:
    name = identity.connection_name(identity.Identity(program, "h" * 64, 4_194_304))
    assert len(name) <= 128
    assert admin.client_setname(name)
    assert name.endswith(f"@{'h' * 64}:4194304")


async def test_other_errors_are_not_excused() -> None:
    """A server that is busy refuses each step, and the connection is tried again."""
    handshake = Handshake(pyredisson.Config(), ())
    with pytest.raises(ResponseError, match="BUSY"):
        handshake.read([ResponseError("BUSY a script runs")] * len(handshake))
