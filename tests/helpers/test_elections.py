"""`client.elect(...)`: of all candidates one leads at a time; another one follows when it ends, is killed, or loses."""

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis, ResponseError

import pyredisson.asyncio
from pyredisson import ElectionState
from pyredisson._api import terms
from pyredisson.testing import Server
from tests.support.backends import TIME_LIMIT, Backend, eventually, fails, waiters
from tests.support.children import Child, forked
from tests.support.inspecting import session_of

from .conftest import called_by

KILL, STOP, TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM
LEADER = """
import sys
import pyredisson
if sys.argv[3] == "signals":
    pyredisson.release_on_signals()
client = pyredisson.connect(sys.argv[1], lock_watchdog_timeout=float(sys.argv[2]))

def work(term):
    print("leads", term.token, flush=True)
    term.lost.wait()
    print("lost", term.valid, flush=True)

client.elect("billing").run(work)
"""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test need not wait until an election campaigns again."""
    monkeypatch.setattr(terms, "PAUSE", 0.01)


class Candidate:
    """An election, and the terms that it has told of: what has happened, the token, and the state meanwhile."""

    def __init__(self, client: Any) -> None:
        self.told: list[tuple[str, int, ElectionState]] = []
        self.election: Any = client.elect("billing", on_elected=self._on("elected"), on_deposed=self._on("deposed"))

    @property
    def whats(self) -> list[str]:
        return [what for what, _, _ in self.told]

    def _on(self, what: str) -> Callable[[Any], None]:
        return lambda term: self.told.append((what, term.token, self.election.state))


def lose(client: Any, term: Any, admin: Redis) -> None:
    """The leadership is lost, as the client finds out."""
    admin.delete("billing")
    session_of(client).holds.declare_lost(getattr(term, "_target", term)._hold)


class TestBothBackends:
    async def test_a_block(self, backend: Backend, admin: Redis) -> None:
        """In asyncio it is cancelled when the term is lost."""
        client = backend.connect()
        candidate = Candidate(client)
        election = candidate.election
        assert (election.state, await election.leader()) == (ElectionState.IDLE, None)
        async with election as term:
            assert (term.name, term.valid, election.state) == ("billing", True, ElectionState.LEADING)
            assert not term.lost.is_set()
            assert term.token == await election.leader_token() > 0
            leader: Any = await client.elect("billing").leader()
            assert leader.client_id == client.id
            await fails(RuntimeError, election.__aenter__, match="takes part already")
            assert candidate.told == [("elected", term.token, ElectionState.LEADING)]
        assert (term.valid, election.state, admin.exists("billing")) == (False, ElectionState.IDLE, 0)
        assert candidate.told[1:] == [("deposed", term.token, ElectionState.LEADING)]
        with pytest.raises(pyredisson.LockLostError):
            async with election as second:
                assert second.token > term.token
                lose(client, second, admin)
                assert candidate.election.state is ElectionState.DEPOSED
                if backend.name == "asyncio":
                    await asyncio.sleep(TIME_LIMIT)
        assert [state for _, _, state in candidate.told[2:]] == [ElectionState.LEADING, ElectionState.DEPOSED]
        assert election.state is ElectionState.IDLE

    async def test_work_is_done_in_each_term(self, backend: Backend, admin: Redis) -> None:
        client = backend.connect()
        candidate, tokens = Candidate(client), []

        async def work(term: Any) -> None:
            tokens.append(term.token)
            if len(tokens) == 1:
                # The next term ends by itself.
                lose(client, term, admin)
                if backend.name == "asyncio":
                    await asyncio.sleep(TIME_LIMIT)
            if len(tokens) == 3:
                await candidate.election.close()

        await candidate.election.run(called_by(backend, work))
        assert (len(tokens), tokens) == (3, sorted(set(tokens)))
        assert [told[:2] for told in candidate.told] == [(what, at) for at in tokens for what in ("elected", "deposed")]
        assert (candidate.election.state, admin.exists("billing")) == (ElectionState.CLOSED, 0)

    async def test_errors(self, backend: Backend, admin: Redis, caplog: pytest.LogCaptureFixture) -> None:
        """The work's resigns and is raised, the callback's is logged."""

        async def fail(term: Any) -> None:
            raise KeyError(term.name)

        election = backend.connect().elect("billing", on_elected=called_by(backend, fail))
        await fails(KeyError, election.run, called_by(backend, fail))
        assert "on_elected of election 'billing' failed" in caplog.text
        assert not admin.exists("billing")

    async def test_in_the_background(self, backend: Backend, admin: Redis) -> None:
        """Of those that campaign one is closed, and another one follows."""
        client = backend.connect()
        candidate, other, third = Candidate(client), client.elect("billing"), client.elect("billing")

        async def stand_by() -> int:
            async with third as term:
                return term.token

        candidate.election.start()
        await backend.until(lambda: bool(candidate.told))
        with pytest.raises(RuntimeError, match="already"):
            candidate.election.start()
        other.start()
        await backend.until(lambda: bool(waiters(client, "billing")))
        states = [other.state]
        await other.close()
        assert [*states, other.state] == [ElectionState.CAMPAIGNING, ElectionState.CLOSED]
        await fails(pyredisson.ClosedError, other.__aenter__)
        next_one = await backend.begin(stand_by, lambda: waiters(client, "billing"))
        for _ in range(2):
            await candidate.election.close()
            assert candidate.whats == ["elected", "deposed"]
        assert await next_one.result() > candidate.told[0][1]
        assert not admin.exists("billing")

    async def test_the_end_of_the_client_ends_it(self, backend: Backend, admin: Redis) -> None:
        client, begun, ended = backend.connect(), backend.flag(), []
        candidate, other = Candidate(client), client.elect("stock")

        async def work(term: Any) -> None:
            begun.set()
            try:
                if backend.name == "asyncio":
                    await asyncio.sleep(TIME_LIMIT)
                term.lost.wait(TIME_LIMIT)
            finally:
                ended.append(term.valid)

        candidate.election.start()
        working = backend.spawn(lambda: other.run(called_by(backend, work)))
        await begun.wait()
        await backend.until(lambda: bool(candidate.told))
        await client.close()
        await candidate.election.close()
        await working.result()
        assert (candidate.whats, ended) == (["elected", "deposed"], [False])
        assert not admin.exists("billing", "stock")

    async def test_a_full_server(self, backend: Backend, admin: Redis, caplog: pytest.LogCaptureFixture) -> None:
        """It campaigns until the server takes writes again."""
        candidate = Candidate(backend.connect())
        admin.config_set("maxmemory", 1)
        try:
            candidate.election.start()
            await backend.until(lambda: "a campaign of election 'billing' failed, and is repeated: OOM" in caplog.text)
            assert not candidate.told
        finally:
            admin.config_set("maxmemory", 0)
        await backend.until(lambda: bool(candidate.told))
        await candidate.election.close()


class TestOutages:
    def test_an_outage(self, own_server: Server) -> None:
        """The server comes back without data: the leader is deposed, and elected again."""
        with pyredisson.connect(own_server.url, lock_watchdog_timeout=1, timeout=0.5) as client:
            candidate = Candidate(client)
            candidate.election.start()
            eventually(lambda: candidate.told)
            own_server.kill()
            eventually(lambda: candidate.whats[-1] == "deposed")
            token = candidate.told[-1][1]
            own_server.start()
            eventually(lambda: candidate.whats[-1] == "elected", 3 * TIME_LIMIT)
            assert candidate.told[-1][1] > token
            candidate.election.close()
            # Closed while the server is away: no term begins when it is back.
            candidate = Candidate(client)
            election: pyredisson.Election = candidate.election
            own_server.kill()
            election.start()
            eventually(lambda: election.state is ElectionState.CAMPAIGNING)
            election.close()
            assert election.state is ElectionState.CLOSED
            own_server.start()
            thread: Any = election._thread
            thread.join(TIME_LIMIT)
            assert (thread.is_alive(), candidate.told) == (False, [])
            # What was acquired for it is released in the background.
            eventually(lambda: client.elect("billing").leader() is None)

    @pytest.mark.usefixtures("restarts_noticed")
    def test_the_server_restarts_empty(self, own_server: Server) -> None:
        """The leader, for which no renewal is due for 40 s, is deposed; the next one has a larger token."""
        with (
            pyredisson.connect(own_server.url, lock_watchdog_timeout=120) as one,
            pyredisson.connect(own_server.url) as two,
            pytest.raises(pyredisson.LockLostError),
            one.elect("billing") as term,
        ):
            own_server.restart()
            with two.elect("billing") as later:
                assert later.token > term.token
                assert (term.lost.wait(TIME_LIMIT), later.valid) == (True, True)

    def test_a_right_that_is_missing_ends_it(self, client: pyredisson.Client, admin: Redis) -> None:
        """After a change of the settings it can be started again."""
        election = client.elect("billing")
        admin.set("billing", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            election.run(lambda _: None)
        election.start()
        thread: Any = election._thread
        thread.join(TIME_LIMIT)
        admin.delete("billing")
        election.start()
        eventually(lambda: election.state is ElectionState.LEADING)
        election.close()


@pytest.mark.parametrize(("number", "lease", "how"), [(KILL, 1, ""), (STOP, 1, ""), (TERM, 300, "signals")])
def test_a_leader_that_is_killed_or_stopped(
    child: Callable[..., Child], server: Server, client: pyredisson.Client, number: signal.Signals, lease: int, how: str
) -> None:
    """With `release_on_signals` it resigns. A process that goes on finds that its term is over."""
    leader = child(LEADER, server.url, lease, how)
    token = int(leader.receive().split()[1])
    leader.signal(number)
    with client.elect("billing") as term:
        assert term.token > token
        if number == STOP:
            leader.signal(signal.SIGCONT)
            assert leader.receive() == "lost False"
            assert term.valid
        else:
            assert leader.wait() == -number


def test_a_forked_child_takes_part_anew(client: pyredisson.Client, admin: Redis) -> None:
    election = client.elect("billing")
    election.start()
    eventually(lambda: election.state is ElectionState.LEADING)

    def leads() -> bool:
        admin.delete("billing")
        with election as term:
            return term.valid and election.state is ElectionState.LEADING

    assert forked(leads)
    election.close()


async def test_callbacks_that_await(aclient: pyredisson.asyncio.Client) -> None:
    """One releases what the other has acquired. Closed in the middle of one, it goes on, and the other one follows."""
    lock = aclient.get_lock("stock")
    async with aclient.elect("billing", on_elected=lambda _: lock.lock(), on_deposed=lambda _: lock.unlock()):
        assert await lock.is_held()
    assert not await lock.is_locked()
    begun, may_end, told = asyncio.Event(), asyncio.Event(), []

    async def elected(term: pyredisson.asyncio.Term) -> None:
        begun.set()
        await may_end.wait()
        told.append("elected")

    election = aclient.elect("billing", on_elected=elected, on_deposed=lambda _: told.append("deposed"))
    election.start()
    await begun.wait()
    closing = asyncio.create_task(election.close())
    await asyncio.sleep(0)
    may_end.set()
    await closing
    assert told == ["elected", "deposed"]
