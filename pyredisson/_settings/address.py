"""Addresses of servers as host and port, and the mapping of the addresses that servers announce."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Mapping
from typing import NamedTuple

REDIS_PORT = 6379
SENTINEL_PORT = 26379


class Address(NamedTuple):
    """The host and port of one server. A plain `(host, port)` is equal to it."""

    host: str
    port: int

    def __str__(self) -> str:
        """`host:port`, with an IPv6 address in brackets: without them its last group would read as the port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, default_port: int | None = None) -> Address:
        """The address in `h:1`, `[::1]:1` or `::1:1` (as Redis writes IPv6), or without a port the default port.

        Without brackets, what follows the last colon of an IPv6 address is read as the port if the rest is an IPv6
        address too. ValueError: no host, or no port from 1 to 65535. The message doesn't contain the text, which may be
        part of a password.
        """
        if text.startswith("["):
            host, bracket, rest = text[1:].partition("]")
            port = rest[1:] if rest else None
            if not bracket or not _is_ipv6(host) or rest[:1] not in ("", ":"):
                raise ValueError(_UNREADABLE)
        else:
            host, port = text.rpartition(":")[::2] if ":" in text else (text, None)
            if ":" in host and not _is_ipv6(host):
                host, port = text, None
                if not _is_ipv6(host):
                    raise ValueError(_UNREADABLE)
        if port is None:
            return cls.of((host, default_port))
        # int() alone would take blanks, signs and underscores.
        if not port.isascii() or not port.isdecimal() or len(port) > 5:
            raise ValueError(_UNREADABLE)
        return cls.of((host, int(port)))

    @classmethod
    def of(cls, value: object) -> Address:
        """The address of a host and a port. ValueError: it is none."""
        if isinstance(value, (tuple, list)) and len(value) == 2:
            host, port = value
            if isinstance(host, str) and host and type(port) is int and 1 <= port <= 65535:
                return value if isinstance(value, cls) else cls(host, port)
        raise ValueError(_UNREADABLE)


@dataclasses.dataclass(frozen=True, slots=True)
class AddressMap:
    """An address mapper by tables: whole addresses first, then hosts."""

    addresses: Mapping[Address, Address] = dataclasses.field(default_factory=dict, hash=False)
    hosts: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    other_host: str | None = None
    """In place of each host that is in no table (redis-py's `force_master_ip`). None: it stays as it is."""

    def __call__(self, address: Address) -> Address:
        host = self.hosts.get(address.host, self.other_host or address.host)
        return self.addresses.get(address, Address(host, address.port))


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


_UNREADABLE = "an address is a host and a port from 1 to 65535, as in host:6379 or [::1]:6379"
