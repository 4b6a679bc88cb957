"""Slots that the servers of a test cluster move by themselves, with all of their keys at once."""

from __future__ import annotations

from typing import Any

from redis.exceptions import ResponseError

from pyredisson.testing.cluster_node import ClusterNode
from pyredisson.testing.process import ServerError

__all__ = ["AtomicMove"]

_MOVED = {"success", "completed"}
_FAILED = {"failed", "cancelled", "canceled"}


class AtomicMove:
    """One move, which has begun. Until it ends, its slots are where they were.

    The source goes on serving while it copies the keys. At the end it lets writes wait for some milliseconds, until the
    target serves the slots.
    """

    def __init__(self, first: int, last: int, source: ClusterNode, to: ClusterNode) -> None:
        try:
            self._asked, self._id = source, _begin_on_valkey(first, last, source, to)
            self._query: tuple[str, ...] = ("GETSLOTMIGRATIONS",)
            self._cancellation: tuple[str, ...] = ("CANCELSLOTMIGRATIONS",)
        except ResponseError as error:
            if "unknown subcommand" not in str(error):
                raise
            self._asked, self._id = to, _begin_on_redis(first, last, to)
            self._query = ("MIGRATION", "STATUS", "ID", self._id)
            self._cancellation = ("MIGRATION", "CANCEL", "ID", self._id)

    @property
    def state(self) -> str:
        """The state in the words of the server."""
        return str(self._status()["state"])

    def cancel(self) -> None:
        """Give the move up: its slots stay where they are. On Valkey this ends all moves of the source."""
        self._asked.ask("CLUSTER", *self._cancellation)

    def missing(self) -> str | None:
        """In words, what the move waits for; None when it has ended well.

        Raises:
            ServerError: it has failed or was cancelled.
        """
        status = self._status()
        if status["state"] in _FAILED:
            raise ServerError(f"the slots have not moved: {status}")
        return None if status["state"] in _MOVED else str(status)

    def _status(self) -> dict[str, Any]:
        answers = map(_fields, self._asked.ask("CLUSTER", *self._query))
        return next(each for each in answers if self._id in (each.get("name"), each.get("id")))


def _begin_on_valkey(first: int, last: int, source: ClusterNode, to: ClusterNode) -> str:
    before = _exports(source)
    source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", first, last, "NODE", to.id)
    [name] = _exports(source) - before
    return name


def _exports(source: ClusterNode) -> set[str]:
    found = map(_fields, source.ask("CLUSTER", "GETSLOTMIGRATIONS"))
    return {each["name"] for each in found if each["operation"] == "EXPORT"}


def _begin_on_redis(first: int, last: int, to: ClusterNode) -> str:
    try:
        return str(to.ask("CLUSTER", "MIGRATION", "IMPORT", first, last))
    except ResponseError as error:
        if "unknown subcommand" not in str(error):
            raise
        raise ServerError(f"slots move atomically on Valkey 9.0 and Redis 8.4 or later: {error}") from error


def _fields(flat: list[Any]) -> dict[str, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
