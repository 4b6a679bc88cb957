"""`client.elect(...)`: of all candidates one leads at a time; another one follows when it ends, is killed, or loses."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable

import pytest
from redis import Redis
from redis.exceptions import ResponseError

import pyredisson
import pyredisson.asyncio
from pyredisson import ElectionState
from pyredisson._api import terms
from pyredisson.testing import Server
from tests.support.children import Child
from tests.support.waiting import TIME_LIMIT, eventually, waiters

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


class Log:
    """The terms that an election has told of."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def elected(self, term: pyredisson.Term) -> None:
        self.told.append(("elected", term.token))

    def deposed(self, term: pyredisson.Term) -> None:
        self.told.append(("deposed", term.token))

    @property
    def whats(self) -> list[str]:
        return [what for what, _ in self.told]


class TestThreads:
    def test_a_block(self, client: pyredisson.Client, admin: Redis) -> None:
        log = Log()
        election = client.elect("billing", on_elected=log.elected, on_deposed=log.deposed)
        assert election.state is ElectionState.IDLE
        assert election.leader() is None
        with election as term:
            assert (term.name, term.valid, election.state) == ("billing", True, ElectionState.LEADING)
            assert not term.lost.is_set()
            assert term.token == election.leader_token() > 0
            leader = client.elect("billing").leader()
            assert leader is not None
            assert leader.client_id == client.id
            assert log.whats == ["elected"]
            with pytest.raises(RuntimeError, match="takes part already"), election:
                raise AssertionError("not reached")
        assert not term.valid
        assert not admin.exists("billing")
        assert log.told == [("elected", term.token), ("deposed", term.token)]
        with election as second:
            assert second.token > term.token

    def test_the_next_one_follows(self, client: pyredisson.Client) -> None:
        tokens: list[int] = []

        def stand_by() -> None:
            with other as term:
                tokens.append(term.token)

        other = client.elect("billing")
        with client.elect("billing") as term:
            thread = threading.Thread(target=stand_by)
            thread.start()
            eventually(lambda: waiters(client, "billing"))
            assert other.state is ElectionState.CAMPAIGNING
        thread.join(TIME_LIMIT)
        assert tokens > [term.token]

    def test_a_lost_term(self, client: pyredisson.Client, admin: Redis) -> None:
        election = client.elect("billing")
        with pytest.raises(pyredisson.LockLostError), election as term:
            admin.delete("billing")
            client._session.holds.declare_lost(term._hold)
            assert election.state is ElectionState.DEPOSED
        assert election.state is ElectionState.IDLE

    def test_work_is_done_in_each_term(self, client: pyredisson.Client, admin: Redis) -> None:
        log, held = Log(), []
        election = client.elect("billing", on_elected=log.elected, on_deposed=log.deposed)

        def work(term: pyredisson.Term) -> None:
            held.append(term.token)
            if len(held) == 1:
                # This term is lost, the next one ends by itself.
                admin.delete("billing")
                client._session.holds.declare_lost(term._hold)
            if len(held) == 3:
                election.close()

        election.run(work)
        assert held == sorted(set(held))
        assert log.told == [(what, token) for token in held for what in ("elected", "deposed")]
        assert election.state is ElectionState.CLOSED
        assert not admin.exists("billing")

    def test_an_error_of_the_work_resigns(self, client: pyredisson.Client, admin: Redis) -> None:
        def work(term: pyredisson.Term) -> None:
            raise KeyError(term.name)

        with pytest.raises(KeyError):
            client.elect("billing").run(work)
        assert not admin.exists("billing")

    def test_an_error_of_a_callback_is_logged(
        self, client: pyredisson.Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(term: pyredisson.Term) -> None:
            raise KeyError(term.name)

        with client.elect("billing", on_elected=fail) as term:
            assert term.valid
        assert "on_elected of election 'billing' failed" in caplog.text

    def test_the_state_while_a_callback_runs(self, client: pyredisson.Client) -> None:
        states: list[ElectionState] = []

        def tell(_: pyredisson.Term) -> None:
            states.append(election.state)

        election = client.elect("billing", on_elected=tell, on_deposed=tell)
        with election:
            pass
        assert states == [ElectionState.LEADING, ElectionState.LEADING]
        with pytest.raises(pyredisson.LockLostError), election as term:
            client._session.holds.declare_lost(term._hold)
        assert states[2:] == [ElectionState.LEADING, ElectionState.DEPOSED]

    def test_in_the_background(self, client: pyredisson.Client, server: Server, admin: Redis) -> None:
        log = Log()
        election = client.elect("billing", on_elected=log.elected, on_deposed=log.deposed)
        election.start()
        eventually(lambda: log.told)
        with pytest.raises(RuntimeError, match="already"):
            election.start()
        election.close()
        assert log.whats == ["elected", "deposed"]
        assert not admin.exists("billing")
        election.close()

    def test_closed_while_it_waits(self, client: pyredisson.Client) -> None:
        election = client.elect("billing")
        with client.elect("billing"):
            election.start()
            eventually(lambda: waiters(client, "billing"))
            election.close()
            assert election.state is ElectionState.CLOSED
        with pytest.raises(pyredisson.ClosedError), election:
            raise AssertionError("not reached")

    def test_the_end_of_the_client_ends_it(self, server: Server, admin: Redis) -> None:
        log = Log()
        client = pyredisson.connect(server.url)
        election = client.elect("billing", on_elected=log.elected, on_deposed=log.deposed)
        election.start()
        eventually(lambda: log.told)
        client.close()
        election.close()
        assert log.whats == ["elected", "deposed"]
        assert not admin.exists("billing")

    def test_an_outage(self, own_server: Server) -> None:
        """The server comes back without data: the leader is deposed, and elected again."""
        log = Log()
        with pyredisson.connect(own_server.url, lock_watchdog_timeout=1, timeout=0.5) as client:
            election = client.elect("billing", on_elected=log.elected, on_deposed=log.deposed)
            election.start()
            eventually(lambda: log.told)
            own_server.kill()
            eventually(lambda: log.whats[-1] == "deposed")
            token = log.told[-1][1]
            own_server.start()
            eventually(lambda: log.whats[-1] == "elected", 3 * TIME_LIMIT)
            assert log.told[-1][1] > token
            election.close()

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
                assert term.lost.wait(TIME_LIMIT)
                assert later.valid

    def test_a_server_that_is_full(
        self, client: pyredisson.Client, server: Server, admin: Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It campaigns until the server takes writes again."""
        log = Log()
        election = client.elect("billing", on_elected=log.elected)
        admin.config_set("maxmemory", 1)
        try:
            election.start()
            eventually(lambda: "a campaign of election 'billing' failed, and is repeated: OOM" in caplog.text)
            assert not log.told
        finally:
            admin.config_set("maxmemory", 0)
        eventually(lambda: log.told)
        election.close()

    def test_a_right_that_is_missing_ends_it(self, client: pyredisson.Client, admin: Redis) -> None:
        """After a change of the settings it can be started again."""
        election = client.elect("billing")
        admin.set("billing", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            election.run(lambda _: None)
        election.start()
        thread = election._thread
        assert thread is not None
        thread.join(TIME_LIMIT)
        admin.delete("billing")
        election.start()
        eventually(lambda: election.state is ElectionState.LEADING)
        election.close()

    def test_closed_while_the_server_is_away(self, own_server: Server) -> None:
        """It takes two seconds at most, and no term begins when the server is back."""
        log = Log()
        with pyredisson.connect(own_server.url, timeout=0.5) as client:
            election = client.elect("billing", on_elected=log.elected)
            own_server.kill()
            election.start()
            eventually(lambda: election.state is ElectionState.CAMPAIGNING)
            election.close()
            assert election.state is ElectionState.CLOSED
            own_server.start()
            thread = election._thread
            assert thread is not None
            thread.join(TIME_LIMIT)
            assert not thread.is_alive()
            assert not log.told
            # What was acquired for it is released in the background.
            eventually(lambda: client.elect("billing").leader() is None)


class TestProcesses:
    def test_the_leader_is_killed(self, child: Callable[..., Child], server: Server, client: pyredisson.Client) -> None:
        leader = child(LEADER, server.url, 1, "")
        token = int(leader.receive().split()[1])
        leader.signal(signal.SIGKILL)
        with client.elect("billing") as term:
            assert term.token > token

    @pytest.mark.parametrize("asked", [True, False])
    def test_sigterm(
        self, child: Callable[..., Child], server: Server, client: pyredisson.Client, admin: Redis, asked: bool
    ) -> None:
        """With `release_on_signals` it resigns. Without it the lease, of 30 s here, has to end."""
        leader = child(LEADER, server.url, 30, "signals" if asked else "")
        assert leader.receive().startswith("leads")
        leader.signal(signal.SIGTERM)
        assert leader.wait() == -signal.SIGTERM
        assert (client.elect("billing").leader() is None) is asked

    def test_a_leader_that_was_stopped(
        self, child: Callable[..., Child], server: Server, client: pyredisson.Client
    ) -> None:
        """When it goes on, it finds that its term is over."""
        leader = child(LEADER, server.url, 1, "")
        token = int(leader.receive().split()[1])
        leader.signal(signal.SIGSTOP)
        with client.elect("billing") as term:
            assert term.token > token
            leader.signal(signal.SIGCONT)
            assert leader.receive() == "lost False"
            assert term.valid


@pytest.mark.asyncio
class TestAsyncio:
    async def test_a_block(self, aclient: pyredisson.asyncio.Client, admin: Redis) -> None:
        told: list[str] = []

        async def elected(term: pyredisson.asyncio.Term) -> None:
            await asyncio.sleep(0)
            told.append("elected")

        election = aclient.elect("billing", on_elected=elected, on_deposed=lambda _: told.append("deposed"))
        async with election as term:
            assert (term.valid, election.state) == (True, ElectionState.LEADING)
            assert term.token == await election.leader_token()
            leader = await election.leader()
            assert leader is not None
            assert leader.client_id == aclient.id
            with pytest.raises(RuntimeError):
                async with election:
                    raise AssertionError("not reached")
        assert told == ["elected", "deposed"]
        assert not admin.exists("billing")
        assert election.state is ElectionState.IDLE

    async def test_a_callback_releases_what_the_other_has_acquired(self, aclient: pyredisson.asyncio.Client) -> None:
        lock = aclient.get_lock("stock")

        async def elected(_: pyredisson.asyncio.Term) -> None:
            await lock.lock()

        async def deposed(_: pyredisson.asyncio.Term) -> None:
            await lock.unlock()

        async with aclient.elect("billing", on_elected=elected, on_deposed=deposed):
            assert await lock.is_held()
        assert not await lock.is_locked()

    async def test_a_lost_term_cancels_the_block(self, aclient: pyredisson.asyncio.Client, admin: Redis) -> None:
        election = aclient.elect("billing")
        with pytest.raises(pyredisson.LockLostError):
            async with election as term:
                admin.delete("billing")
                aclient._session.holds.declare_lost(term._hold)
                await asyncio.sleep(TIME_LIMIT)
        assert election.state is ElectionState.IDLE

    async def test_a_lost_term_cancels_the_work(self, aclient: pyredisson.asyncio.Client, admin: Redis) -> None:
        tokens: list[int] = []
        election = aclient.elect("billing")

        async def work(term: pyredisson.asyncio.Term) -> None:
            tokens.append(term.token)
            if len(tokens) == 1:
                admin.delete("billing")
                aclient._session.holds.declare_lost(term._hold)
                await asyncio.sleep(TIME_LIMIT)
            await election.close()

        async with asyncio.timeout(TIME_LIMIT):
            await election.run(work)
        assert len(tokens) == 2
        assert tokens[0] < tokens[1]
        assert not admin.exists("billing")

    async def test_an_error_of_the_work_resigns(self, aclient: pyredisson.asyncio.Client, admin: Redis) -> None:
        async def work(term: pyredisson.asyncio.Term) -> None:
            raise KeyError(term.name)

        with pytest.raises(KeyError):
            await aclient.elect("billing").run(work)
        assert not admin.exists("billing")

    async def test_the_task_is_cancelled(self, aclient: pyredisson.asyncio.Client, admin: Redis) -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def work(term: pyredisson.asyncio.Term) -> None:
            begun.set()
            try:
                await asyncio.sleep(TIME_LIMIT)
            finally:
                ended.set()

        task = asyncio.create_task(aclient.elect("billing").run(work))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()
        eventually(lambda: not admin.exists("billing"))

    async def test_the_state_while_a_callback_runs(self, aclient: pyredisson.asyncio.Client) -> None:
        states: list[ElectionState] = []

        def tell(_: pyredisson.asyncio.Term) -> None:
            states.append(election.state)

        election = aclient.elect("billing", on_elected=tell, on_deposed=tell)
        async with election:
            pass
        assert states == [ElectionState.LEADING, ElectionState.LEADING]
        with pytest.raises(pyredisson.LockLostError):
            async with election as term:
                aclient._session.holds.declare_lost(term._hold)
                await asyncio.sleep(TIME_LIMIT)
        assert states[2:] == [ElectionState.LEADING, ElectionState.DEPOSED]

    async def test_in_the_background(self, aclient: pyredisson.asyncio.Client, admin: Redis) -> None:
        elected, told = asyncio.Event(), []
        election = aclient.elect(
            "billing", on_elected=lambda _: elected.set(), on_deposed=lambda term: told.append(term.token)
        )
        election.start()
        await elected.wait()
        other = aclient.elect("billing")
        other.start()
        async with asyncio.timeout(TIME_LIMIT):
            while not waiters(aclient, "billing"):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        await other.close()
        assert other.state is ElectionState.CLOSED
        await election.close()
        assert len(told) == 1
        assert not admin.exists("billing")

    async def test_closed_in_the_middle_of_a_callback(self, aclient: pyredisson.asyncio.Client) -> None:
        """The callback goes on to its end, and the other one follows."""
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

    async def test_cancelled_in_the_middle_of_a_callback(
        self, aclient: pyredisson.asyncio.Client, admin: Redis
    ) -> None:
        begun, told = asyncio.Event(), []

        async def elected(term: pyredisson.asyncio.Term) -> None:
            begun.set()
            await asyncio.sleep(TIME_LIMIT)

        async def work(term: pyredisson.asyncio.Term) -> None:
            raise AssertionError("not reached")

        election = aclient.elect("billing", on_elected=elected, on_deposed=lambda _: told.append("deposed"))
        task = asyncio.create_task(election.run(work))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert told == ["deposed"]
        eventually(lambda: not admin.exists("billing"))

    async def test_a_server_that_is_full(self, aclient: pyredisson.asyncio.Client, admin: Redis) -> None:
        elected = asyncio.Event()
        election = aclient.elect("billing", on_elected=lambda _: elected.set())
        admin.config_set("maxmemory", 1)
        try:
            before = admin.info("errorstats")
            election.start()
            async with asyncio.timeout(TIME_LIMIT):
                while admin.info("errorstats") == before:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert not elected.is_set()
        finally:
            admin.config_set("maxmemory", 0)
        await asyncio.wait_for(elected.wait(), TIME_LIMIT)
        await election.close()

    async def test_the_end_of_the_client_ends_it(self, server_url: str, admin: Redis) -> None:
        begun, cancelled = asyncio.Event(), asyncio.Event()

        async def work(term: pyredisson.asyncio.Term) -> None:
            begun.set()
            try:
                await asyncio.sleep(TIME_LIMIT)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        client = pyredisson.asyncio.connect(server_url)
        task = asyncio.create_task(client.elect("billing").run(work))
        await begun.wait()
        await client.close()
        async with asyncio.timeout(TIME_LIMIT):
            await task
        assert cancelled.is_set()
        assert not admin.exists("billing")
