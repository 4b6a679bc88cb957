"""Who of this client stands in the queue of a fair lock, and what each of them has heard."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyredisson.logic.channels import Channel
from pyredisson.logic.holds import Owner
from pyredisson.logic.ports import Wakeup


class QueueTicket(Owner):
    """An owner during one acquire. It keeps its name, by which it has its place in the queue, whatever is in doubt."""

    __slots__ = ("asked", "channel", "joined", "left", "look", "owner", "seen", "wakeup")

    def __init__(self, owner: Owner) -> None:
        self.id = owner.id
        self.name = owner.name
        self.epoch = 0
        self.calls = owner.calls
        self.owner = owner
        self.channel: OwnChannel | None = None
        self.seen = 0
        """How often that channel had called when the acquire was sent."""
        self.wakeup: Wakeup | None = None
        self.joined = b""
        """The channel at which it waits."""
        self.look = False
        """Whether to look again, though nothing was published."""
        self.asked = False
        """Whether it may stand in the queue."""
        self.left = False
        """Whether it was taken out again."""

    def new_epoch(self) -> None:
        self.epoch += 1
        self.owner.new_epoch()

    def follow(self) -> None:
        self.name = self.owner.name


class OwnChannel(Channel):
    """The channel of one waiter. The signal that a call sets may mean something else as well, so calls are counted."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def wake(self, supply: int) -> None:
        self.calls += 1
        super().wake(supply)

    def wake_all(self) -> None:
        self.calls += 1
        super().wake_all()


class LocalQueue:
    """One client's waiters for one lock."""

    __slots__ = ("_leave", "heartbeat_at", "known", "leader", "turns")

    def __init__(self, leave: Callable[[list[bytes]], bytes]) -> None:
        """`leave` makes the command that takes owners out of the queue whose acquires may be under way."""
        self._leave = leave
        self.turns: dict[QueueTicket, None] = {}
        self.leader: QueueTicket | None = None
        """Who ticks."""
        self.heartbeat_at = float("inf")
        self.known = False
        """Whether there was a tick."""

    def final_release(self) -> bytes:
        """The command that takes them all out of the queue, when the client is closed."""
        turns = list(self.turns)
        for turn in turns:
            turn.left = True
        return self._leave([turn.name for turn in turns])


class LocalQueues(dict[bytes, LocalQueue]):
    """The local queues of one client, by the lock's name."""

    def leave_commands(self) -> Iterator[bytes]:
        """The commands that take all waiters of this client out of their queues: the client is being closed.

        Each is made when it is asked for: then no waiter sends a command of its own any more.
        """
        for queue in list(self.values()):
            yield queue.final_release()
