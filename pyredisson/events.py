"""What an observer is told: acquires, waits, releases, losses, renewals and outages."""

from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from inspect import getattr_static, isfunction


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a lock, to permits or to a connection. Fields that don't apply are None."""

    what: str
    """The name of the observer's method that gets it."""
    client_id: str
    time_ns: int
    """When it happened: nanoseconds of the wall clock, as of `time.time_ns()`. The method is called a little later."""
    name: str | None = None
    """The name on the server, after `name_mapper`."""
    kind: str | None = None
    """`lock`, `fair`, `fenced`, `spin`, `read`, `write`, `semaphore`, `permit` or `latch`."""
    owner_id: int | None = None
    waited: float | None = None
    """Seconds from the first attempt of the call to its end; 0.0 if the server granted it at once."""
    held: float | None = None
    """Seconds from the acquire that began the hold to the end of the hold."""
    count: int = 1
    """Of permits, of a batch of renewals, and of dropped events: how many."""
    late: float | None = None
    """Of renewals: by how many seconds the server's confirmation came later than a third of the lease after the one
    before it; negative: earlier. The largest value of the batch."""
    token: int | None = None
    """The fencing token of the acquire."""
    error: str | None = None
    """The exception, as in `TimeoutError: the text`."""
    reason: str | None = None
    """Of a loss: why."""
    server: str | None = None
    """The address of the server, for `discovered`, `connected` and `disconnected`."""
    wait_id: int | None = None
    """The same number in `waiting` and in the event that ends that wait. None: the call didn't wait."""
    hold_id: int | None = None
    """The same number in `acquired` and in the event that ends that hold."""
    context: Context | None = field(default=None, repr=False, compare=False)
    """A copy of the caller's context variables, for `waiting` and `acquired`."""


class Observer:
    """What `connect(observer=...)` takes: an object with any of these methods. It may be a subclass, but need not be.

    They are called on one thread of the client, one after the other, in the order of the events. So an observer needs
    no mutex against itself, may be slow, and delays no lock. An exception is logged once for each method. The events of
    several clients come on several threads.
    """

    def waiting(self, event: Event) -> None:
        """An acquire was refused, or comes behind others of this client, and waits."""

    def acquired(self, event: Event) -> None:
        """A new hold, permits, or an open latch. A nested acquire is reported only if it waited, without `hold_id`."""

    def timed_out(self, event: Event) -> None:
        """An acquire ended without success, in time."""

    def failed(self, event: Event) -> None:
        """An acquire ended with an exception: an error, a cancellation, an interrupt."""

    def released(self, event: Event) -> None:
        """A hold has ended for its owner; or permits were released."""

    def lost(self, event: Event) -> None:
        """A hold was lost."""

    def renewed(self, event: Event) -> None:
        """The leases of `count` locks were extended by one command."""

    def renewal_failed(self, event: Event) -> None:
        """The leases of `count` locks were not extended. That is tried again."""

    def discovered(self, event: Event) -> None:
        """The client knows a server, available or not: first the one that it was given, later each that it finds."""

    def disconnected(self, event: Event) -> None:
        """A server is not available."""

    def connected(self, event: Event) -> None:
        """A server is available again."""

    def dropped(self, event: Event) -> None:
        """About `count` events of this client were dropped just before the next one, as the observer is too slow."""


METHODS = tuple(name for name in vars(Observer) if not name.startswith("_"))
"""The names of the methods."""

Handler = Callable[[Event], object]


def handlers_of(observer: object) -> dict[str, Handler]:
    """The methods of an observer by their names, without the methods that it inherits from `Observer`.

    Raises `ValueError` if it has none, or one that can't be called, as the methods of a class without an object.
    """
    found: dict[str, Handler] = {}
    for name in METHODS:
        handler = getattr(observer, name, None)
        if handler is None or getattr(type(observer), name, None) is getattr(Observer, name):
            continue
        if not callable(handler) or (isinstance(observer, type) and isfunction(getattr_static(observer, name))):
            raise ValueError(f"{name} of {observer!r} can't be called")
        found[name] = handler
    if not found:
        raise ValueError(f"{observer!r} has none of the methods {', '.join(METHODS)}")
    return found
