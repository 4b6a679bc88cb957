"""The red lock `a` on three servers, and what these have of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import Redis

from pyredisson.testing import Proxy, Server
from tests.support.backends import Backend


class Red:
    """Each of its locks is of a client of its own."""

    def __init__(self, backend: Backend, places: Sequence[Server | Proxy], redises: list[Redis]) -> None:
        self.backend, self.places = backend, places
        self.redises: list[Any] = [*redises]
        self.locks: list[Any] = []

    def make(self, **fields: Any) -> Any:
        """A red lock of new clients. `locks` are its members from now on."""
        clients = [self.backend.connect(each.url, **fields) for each in self.places]
        self.locks = [client.get_lock("a") for client in clients]
        return clients[0].get_red_lock(*self.locks)

    def levels(self, number: int = 1) -> list[list[bytes]]:
        """What `held` is if all members have so many levels."""
        return [[b"%d" % number]] * 3

    def held(self) -> list[list[bytes]]:
        """On each server, how often it is held."""
        return [list(redis.hvals("a")) for redis in self.redises]

    def free(self) -> bool:
        return self.held() == [[], [], []]

    def somebody_takes(self, number: int) -> None:
        self.redises[number].hset("a", "another:1", 7)

    async def gone(self) -> None:
        """Waits until nothing remains, also of what is released in the background."""
        await self.backend.until(lambda: not any(redis.keys() for redis in self.redises))


def logic_of(red: Any) -> Any:
    return red._target._logic if hasattr(red, "_target") else red._logic


def members(red: Any) -> list[Any]:
    """Its members' logic."""
    return list(logic_of(red).members)
