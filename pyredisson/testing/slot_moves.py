"""Moving slots of a test cluster with their keys: in one go, step by step, or by the servers themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from pyredisson.testing.cluster_node import ClusterNode
from pyredisson.testing.server import ServerError

_MIGRATE_MS = 5000
_KEYS_AT_ONCE = 100
_MOVED = {"success", "completed"}
_FAILED = {"failed", "cancelled", "canceled"}


class SlotMoves:
    """The slots that are being moved. Its methods tell the nodes, and don't wait until the others have noticed."""

    def __init__(self, password: str | None) -> None:
        self._credentials = [] if password is None else ["AUTH", password]
        self._moves: dict[int, tuple[ClusterNode, ClusterNode]] = {}

    def begin(self, slot: int, source: ClusterNode, to: ClusterNode) -> None:
        # In this order: a client that the source sends to the target by ASK must be served there.
        to.set_slot(slot, "IMPORTING", source.id)
        source.set_slot(slot, "MIGRATING", to.id)
        self._moves[slot] = source, to

    def move_keys(self, slot: int, names: Sequence[str | bytes]) -> None:
        source, to = self._move(slot)
        if names:
            self._migrate(source, to, names)
            return
        # Until none is left: clients may add keys to the ones that the source still has.
        while found := source.ask("CLUSTER", "GETKEYSINSLOT", slot, _KEYS_AT_ONCE):
            self._migrate(source, to, found)

    def finish(self, slot: int, masters: Sequence[ClusterNode]) -> None:
        source, to = self._move(slot)
        # The new node first: if the old one were told first and both stopped here, no node would have the slot.
        others = [node for node in masters if node is not to and node is not source]
        for node in (to, source, *others):
            node.set_slot(slot, "NODE", to.id)
        del self._moves[slot]

    def clear(self) -> None:
        self._moves.clear()

    def _move(self, slot: int) -> tuple[ClusterNode, ClusterNode]:
        if slot not in self._moves:
            raise ValueError(f"slot {slot} is not being moved: begin_move() comes first")
        return self._moves[slot]

    def _migrate(self, source: ClusterNode, to: ClusterNode, names: Sequence[str | bytes]) -> None:
        source.ask(*("MIGRATE", to.host, to.internal_port, "", 0, _MIGRATE_MS, *self._credentials, "KEYS", *names))


def forget_slot(slot: int, nodes: Sequence[ClusterNode]) -> str | None:
    """Let the nodes forget who has the slot, as nobody has it any more. Returns in words who still knew."""
    knowing = [node for node in nodes if any(view.has(slot) for view in node.view().values())]
    for node in knowing:
        node.ask("CLUSTER", "DELSLOTS", slot)
    return f"still assigned: {[node.port for node in knowing]}" if knowing else None


# --- Moves by the servers themselves, all keys at once


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
