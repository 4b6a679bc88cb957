"""Leader election for threads. Written by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pyredisson._api import terms
from pyredisson._api.holds import tell_failed_release
from pyredisson._api.sync.locks import FencedLock, Lost
from pyredisson._api.sync.releases import REPORTED, wait_for_end
from pyredisson._api.terms import AnyElection, AnyTerm
from pyredisson._backends.runtime import start_thread
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._core import AcquireCall, Run
from pyredisson._diagnostics import logger, readable
from pyredisson.errors import ClosedError
from pyredisson.holder import Holder


class Term(AnyTerm[Lost]):
    """One time as the leader."""


class Election(AnyElection[FencedLock, Term]):
    """A candidate for the leadership of a name: of all candidates one leads at a time. `Client.elect()` makes it.

    `with election as term:` waits, as long as it takes, until this candidate leads, and resigns at the end.
    `election.run(work)` calls `work(term)` whenever it leads. A candidate has one term at a time.
    """

    _event = ThreadWakeup
    _stop: ThreadWakeup
    _waiting: ThreadWakeup | None = None
    """Set by `close` and at the end of the term, while the background waits for that."""
    _thread: threading.Thread | None = None

    def leader(self) -> Holder | None:
        """Who leads now, as the server says. None: nobody."""
        return self._lock.holder()

    def leader_token(self) -> int:
        """The token of the latest term, whoever led; 0: nobody has led yet."""
        return self._lock.get_token()

    def __enter__(self) -> Term:
        self._begin()
        try:
            term = self._campaign()
            if term is None:
                raise ClosedError(f"the election {readable(self._logic.key)!r} is closed")
            return term
        except BaseException:
            self._abandon()
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._resign()
        except REPORTED as failure:
            tell_failed_release(failure, error)
        finally:
            self._abandon()

    def run(self, work: Callable[[Term], object]) -> None:
        """Calls `work(term)` whenever this candidate is elected, until `close()` or the end of the client.

        It campaigns again after `work` has returned, and after a lost term. That cancels `work` in asyncio. A thread
        can't be ended from outside: there `work` looks at `term.valid`, or waits for `term.lost`. An exception of
        `work` resigns, and is raised here. So is what the server reports, unless it is about to pass: while the server
        is away, out of memory or unable to write, or while replicas confirm nothing, it campaigns again and again.
        """
        terms.checked_callback(work, "work")
        self._begin()
        try:
            while self._take_part(work) and not self._stop.wait(terms.pause()):
                continue
        except ClosedError:
            if not self._logic.session.closed:
                raise
        finally:
            self._abandon()

    def start(self) -> None:
        """Takes part in the background, in a thread of its own, for the callbacks. Sends nothing itself."""
        if self._thread is not None and self._thread.is_alive():
            raise RuntimeError(f"the election {readable(self._logic.key)!r} was started already")
        self._thread = start_thread(self._run_in_background, "pyredisson-election")

    def close(self) -> None:
        """Takes part no more. In the background it resigns; a block, or work in progress, goes on to its end."""
        self._stop.set()
        call, waiting, thread = self._call, self._waiting, self._thread
        if waiting is not None:
            waiting.set()
        if call is not None:
            self._give_up(call)
        if thread is not None and thread is not threading.current_thread():
            thread.join(terms.CLOSE_LIMIT)

    def _campaign(self) -> Term | None:
        """Waits until this candidate is elected. None: the election was closed."""
        call = self._call = AcquireCall(self._owner, None, None)
        try:
            # After the call can be found by `close`. It may also be closed while the server replies.
            if self._stop.is_set() or not Run(self._logic._acquire, call).result or self._stop.is_set():
                return None
            term = self._term = Term(self._logic, call.hold, call.token, self._lock.lost)
        finally:
            self._call = None
        logger.info("elected: %r", term)
        try:
            self._tell(self._on_elected, term, "on_elected")
        except BaseException:
            # An interrupt in the callback, which has begun: so its counterpart follows.
            self._tell(self._on_deposed, term, "on_deposed")
            raise
        return term

    def _take_part(self, work: Callable[[Term], object]) -> bool:
        """One campaign, and its term. False: the election was closed."""
        try:
            term = self._campaign()
        except REPORTED as error:
            self._handle_campaign_error(error)
            return True
        if term is None:
            return False
        try:
            work(term)
        except BaseException as error:
            try:
                self._resign()
            except REPORTED as failure:
                tell_failed_release(failure, error)
            raise
        try:
            self._resign()
        except REPORTED as error:
            terms.handle_release_error(term, error)
        return True

    def _resign(self) -> None:
        try:
            if self._term is not None:
                self._tell(self._on_deposed, self._term, "on_deposed")
        finally:
            self._term = None
            self._lock.unlock()

    def _tell(self, callback: Callable[[Term], object], term: Term, what: str) -> None:
        with terms.logged("%s of election %r failed", what, term.name):
            callback(term)

    def _run_in_background(self) -> None:
        # What waiting doesn't mend, as a wrong password.
        with terms.logged("the election %r ends", readable(self._logic.key)):
            self.run(self._wait_for_end)

    def _wait_for_end(self, term: Term) -> None:
        """Returns when the term ends, or the election is closed."""
        wakeup = self._waiting = ThreadWakeup()
        try:
            # `close` either sets the wakeup, or is seen here.
            if not self._stop.is_set():
                wait_for_end(term._hold, None, wakeup)
        finally:
            self._waiting = None
