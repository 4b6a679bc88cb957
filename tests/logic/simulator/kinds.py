"""The kinds of schedules: each kind of primitive, its users, and its judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pyredisson.logic.locks.fair_lock import FairLockLogic, NonReentrantFairLockLogic
from pyredisson.logic.locks.fenced_lock import FencedLockLogic
from pyredisson.logic.locks.non_reentrant_lock import NonReentrantLockLogic
from pyredisson.logic.locks.read_write_lock import ReadLogic, WriteLogic
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.locks.spin_lock import SpinLockLogic
from pyredisson.logic.permits.count_down_latch import CountDownLatchLogic
from pyredisson.logic.permits.permit_expirable_semaphore import PermitExpirableSemaphoreLogic
from pyredisson.logic.permits.semaphore import SemaphoreLogic
from pyredisson.logic.session import Session

from .groups import GroupJudge, LongRedLockUser, MultiLockUser, RedLockJudge, RedLockUser, RestartedRedLockJudge
from .judge import Judge
from .latches import LatchJudge, LatchUser
from .lock_judge import LockJudge
from .lock_kinds import BACKOFF, FairJudge, ReadWriteJudge, SpinJudge
from .owner import Owner
from .permits import PermitJudge, PermitUser
from .restarts import RestartJudge
from .semaphores import CrowdedSemaphoreUser, SemaphoreJudge, SemaphoreUser
from .user import User


@dataclass(frozen=True)
class Logic:
    """The classes that a schedule runs; planted bugs come in their place."""

    objects: tuple[Callable[[Session, bytes], Any], ...] = (LockLogic,)
    """What of each name an owner uses: the two sides of a read-write lock, else one."""
    patches: dict[str, bytes] | None = None
    """Texts of scripts that run instead of their own, by name."""
    servers: int = 1
    user: Callable[..., User] = Owner
    judge: Callable[..., Judge] = LockJudge
    moves: float = 0.0
    """How often the slot of each name moves between the two nodes of a cluster."""
    restarts: float = 0.0
    """How often a server restarts empty. Then nothing else breaks."""
    calm: bool = False
    """Whether nothing breaks but what the judge plans."""
    checked: bool = True
    """Whether a connection is looked at before it is used."""
    identified: bool = True
    """Whether the clients know the server's identity."""
    users: int = 1
    """How many times as many users as usual there are."""


def _spin(shared: Session, key: bytes) -> SpinLockLogic:
    return SpinLockLogic(shared, key, BACKOFF)


PLAIN = Logic()
RED_RESTARTS = Logic(servers=3, user=LongRedLockUser, judge=RestartedRedLockJudge, calm=True)
MOVES = 6.0
ON_A_CLUSTER = ("plain", "fenced", "fair", "read_write", "semaphore", "latch")
"""Not permits with ids: a release whose reply is lost, and whose slot moves to a node without any slot in the latest
view, isn't known to be done."""
KINDS = {
    "plain": PLAIN,
    "fenced": Logic(objects=(FencedLockLogic,)),
    "spin": Logic(objects=(_spin,), judge=SpinJudge),
    "non_reentrant": Logic(objects=(NonReentrantLockLogic,)),
    "fair": Logic(objects=(FairLockLogic,), judge=FairJudge),
    "non_reentrant_fair": Logic(objects=(NonReentrantFairLockLogic,), judge=FairJudge),
    "read_write": Logic(objects=(ReadLogic, WriteLogic), judge=ReadWriteJudge),
    "semaphore": Logic(objects=(SemaphoreLogic,), user=SemaphoreUser, judge=SemaphoreJudge),
    "crowded_semaphore": Logic(objects=(SemaphoreLogic,), user=CrowdedSemaphoreUser, judge=SemaphoreJudge, users=4),
    "permits": Logic(objects=(PermitExpirableSemaphoreLogic,), user=PermitUser, judge=PermitJudge),
    "latch": Logic(objects=(CountDownLatchLogic,), user=LatchUser, judge=LatchJudge),
    "multi": Logic(servers=2, user=MultiLockUser, judge=GroupJudge),
    "red": Logic(servers=3, user=RedLockUser, judge=RedLockJudge),
    "restarts": Logic(judge=RestartJudge, restarts=3.0),
    "fenced_restarts": Logic(objects=(FencedLockLogic,), judge=RestartJudge, restarts=3.0),
}
KINDS |= {f"moving_{kind}": replace(KINDS[kind], moves=MOVES) for kind in ON_A_CLUSTER}
# The server's identity is enough to know that it is another one.
KINDS |= {f"unchecked_{kind}": replace(KINDS[kind], checked=False) for kind in ("restarts", "fenced_restarts")}
