"""The kinds of locks that a decorator can use."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal, get_args

from pyredisson.backoff import DEFAULT_BACKOFF
from pyredisson.logic.locks.fair_lock import FairLockLogic
from pyredisson.logic.locks.fenced_lock import FencedLockLogic
from pyredisson.logic.locks.read_write_lock import ReadLogic, WriteLogic
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.locks.spin_lock import SpinLockLogic
from pyredisson.logic.session import Session

LockKind = Literal["lock", "fair", "fenced", "spin", "read", "write"]

LOGICS: dict[str, Callable[[Session, bytes], LockLogic]] = {
    "lock": LockLogic,
    "fair": FairLockLogic,
    "fenced": FencedLockLogic,
    "spin": functools.partial(SpinLockLogic, backoff=DEFAULT_BACKOFF),
    "read": ReadLogic,
    "write": WriteLogic,
}


def check_kind(kind: LockKind) -> None:
    """`ValueError` for anything else."""
    if kind not in get_args(LockKind):
        raise ValueError(f"kind must be one of {', '.join(get_args(LockKind))}, not {kind!r}")
