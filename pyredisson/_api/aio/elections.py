"""Leader election for asyncio. Written by hand."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from redis.exceptions import RedisError

from pyredisson._api import terms
from pyredisson._api.aio.blocks import Scope
from pyredisson._api.aio.locks import FencedLock, Lost
from pyredisson._api.holds import tell_failed_release
from pyredisson._api.terms import AnyElection, AnyTerm
from pyredisson._backends.aio.operations import call_in, until_ended
from pyredisson._backends.aio.wakeup import AioWakeup
from pyredisson._core import AcquireCall
from pyredisson._diagnostics import logger, readable
from pyredisson.errors import ClosedError, RedissonError
from pyredisson.holder import Holder


class Term(AnyTerm[Lost]):
    """One time as the leader."""


class Election(AnyElection[FencedLock, Term]):
    """A candidate for the leadership of a name: of all candidates one leads at a time. `Client.elect()` makes it.

    `async with election as term:` waits, as long as it takes, until this candidate leads, and resigns at the end.
    `election.run(work)` calls `work(term)` whenever it leads. A candidate has one term at a time.
    """

    _event = AioWakeup
    _stop: AioWakeup
    _scope: Scope
    _task: asyncio.Task[None] | None = None
    """The task of `start`."""
    _ending: asyncio.Future[Any] | None = None
    """The task of `on_deposed`."""

    async def leader(self) -> Holder | None:
        """Who leads now, as the server says. None: nobody."""
        return await self._lock.holder()

    async def leader_token(self) -> int:
        """The token of the latest term, whoever led; 0: nobody has led yet."""
        return await self._lock.get_token()

    async def __aenter__(self) -> Term:
        self._begin()
        try:
            scope = self._scope = Scope(self._lock, self._lock)
            term = await self._campaign()
            if term is None:
                raise ClosedError(f"the election {readable(self._logic.key)!r} is closed")
            # From now on a loss cancels this task.
            scope.begin(cancel_on_lost=True)
            return term
        except BaseException:
            self._abandon()
            raise

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self._end_term()
        finally:
            try:
                await self._scope.leave(error)
            finally:
                # It refers to the task: nobody would be told of an exception that the task has ended with.
                del self._scope
                self._abandon()

    async def run(self, work: Callable[[Term], Awaitable[object]]) -> None:
        """Calls `work(term)` whenever this candidate is elected, until `close()` or the end of the client.

        It campaigns again after `work` has returned, and after a lost term. That cancels `work` in asyncio. A thread
        can't be ended from outside: there `work` looks at `term.valid`, or waits for `term.lost`. An exception of
        `work` resigns, and is raised here. So is what the server reports, unless it is about to pass: while the server
        is away, out of memory or unable to write, or while replicas confirm nothing, it campaigns again and again.
        """
        terms.checked_callback(work, "work")
        self._begin()
        try:
            while await self._take_part(work) and not await self._stop.wait(terms.pause()):
                continue
        except ClosedError:
            if not self._logic.session.closed:
                raise
        finally:
            self._abandon()

    def start(self) -> None:
        """Takes part in the background, in a task of its own, for the callbacks. Sends nothing itself."""
        if self._task is not None and not self._task.done():
            raise RuntimeError(f"the election {readable(self._logic.key)!r} was started already")
        self._task = asyncio.create_task(self._run_in_background(), name="pyredisson-election")

    async def close(self) -> None:
        """Takes part no more. In the background it resigns; a block, or work in progress, goes on to its end."""
        self._stop.set()
        call, task = self._call, self._task
        if call is not None:
            self._give_up(call)
        # A callback may call this: it doesn't wait for itself.
        if task is not None and asyncio.current_task() not in (task, self._ending):
            # Only the campaign: a callback that has begun goes on to its end.
            if self._call is not None:
                task.cancel()
            await asyncio.wait([task])

    async def _campaign(self) -> Term | None:
        """Waits until this candidate is elected. None: the election was closed."""
        call = self._call = AcquireCall(self._owner, None, None)
        try:
            # It may also be closed while the server replies.
            if self._stop.is_set() or not await self._logic._acquire(call) or self._stop.is_set():
                return None
            term = self._term = Term(self._logic, call.hold, call.token, self._lock.lost)
        finally:
            self._call = None
        logger.info("elected: %r", term)
        try:
            await self._tell_beginning(term)
        except BaseException:
            # A cancellation in the callback, which has begun: so its counterpart follows.
            await self._tell_end(term)
            raise
        return term

    async def _take_part(self, work: Callable[[Term], Awaitable[object]]) -> bool:
        """One campaign, and its term. False: the election was closed."""
        try:
            term = await self._campaign()
        except (RedissonError, RedisError) as error:
            self._handle_campaign_error(error)
            return True
        if term is None:
            return False
        await self._serve(term, work)
        return True

    async def _serve(self, term: Term, work: Callable[[Term], Awaitable[object]]) -> None:
        """Has the work done in a task of its own, which is cancelled at the end of the term."""

        async def working() -> None:
            await work(term)

        def ended(_: Any) -> None:
            call_in(loop, task.cancel)

        def cancelled() -> None:
            # Only once: the work may need some time to end.
            term._hold.unlisten(ended)
            task.cancel()

        loop = asyncio.get_running_loop()
        task = loop.create_task(working(), name="pyredisson-leader")
        term._hold.listen(ended)
        try:
            cancellation = await until_ended(task, cancelled)
        finally:
            term._hold.unlisten(ended)
        deposed = not term.valid
        failure = await self._resign()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            if failure is not None:
                tell_failed_release(failure, error)
            raise error
        if cancellation is not None:
            raise cancellation
        if task.cancelled() and deposed:
            logger.info("deposed: %r", term)
        else:
            task.result()
        if failure is not None:
            terms.handle_release_error(term, failure)

    async def _resign(self) -> BaseException | None:
        """Returns why the release failed, or the cancellation of this task meanwhile; None: nothing happened."""
        failure: BaseException | None = None
        try:
            await self._end_term()
        except asyncio.CancelledError as cancellation:
            failure = cancellation
        try:
            await self._logic.release(self._owner, self._logic.hold_of(self._owner.id))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 (`_serve` raises it, or notes it)
            failure = failure or error
        return failure

    async def _end_term(self) -> None:
        try:
            if self._term is not None:
                await self._tell_end(self._term)
        finally:
            self._term = None

    async def _tell_beginning(self, term: Term) -> None:
        with terms.logged("on_elected of election %r failed", term.name):
            result = self._on_elected(term)
            if inspect.isawaitable(result):
                await result

    async def _tell_end(self, term: Term) -> None:
        """Calls `on_deposed`, to its end: it may stop the work of the term, and the lock is released next."""
        cancellation: asyncio.CancelledError | None = None
        with terms.logged("on_deposed of election %r failed", term.name):
            result = self._on_deposed(term)
            if inspect.isawaitable(result):
                callers = self._lock._callers
                owner = callers.current()

                async def end() -> None:
                    # What `on_elected` has acquired is held by the task of the election.
                    with callers.acting_for(owner):
                        await result

                ending = self._ending = asyncio.get_running_loop().create_task(end(), name="pyredisson-deposed")
                cancellation = await until_ended(ending)
                self._ending = None
                ending.result()
        if cancellation is not None:
            raise cancellation

    async def _run_in_background(self) -> None:
        # What waiting doesn't mend, as a wrong password.
        with terms.logged("the election %r ends", readable(self._logic.key)):
            await self.run(lambda _: self._stop.wait(None))
