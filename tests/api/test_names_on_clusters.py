"""Names that a cluster can't serve are refused by every factory, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pyredisson
import pyredisson.asyncio

FACTORIES = [
    name for name in dir(pyredisson.Client) if name.startswith("get_") and name[4:] not in ("multi_lock", "red_lock")
]
PARTED = ["a{b", "{}x", "a}b", "{", "x}y", "{}", "a{}b{c}"]
TOGETHER = ["orders", "{orders}:1", "a{b}c", "x}y{z}", "{a}{}", " ", "\u00e4"]
NODES = ["h1:7000"]


@pytest.fixture(params=[pyredisson.connect, pyredisson.asyncio.connect], ids=["threads", "asyncio"])
def connect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes a client. A client connects at its first call, which is not made here."""
    monkeypatch.setattr("pyredisson._client.lifecycle.check_topology_available", lambda _: None, raising=False)
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize("factory", FACTORIES)
class TestFactories:
    @pytest.mark.parametrize("name", PARTED)
    def test_names_that_would_be_in_different_slots(self, connect: Callable[..., Any], factory: str, name: str) -> None:
        client = connect(topology="cluster", nodes=NODES)
        for given in (name, name.encode()):
            with pytest.raises(ValueError, match=r"can't be used on a cluster: its braces.*\{orders\}:1") as caught:
                getattr(client, factory)(given)
            assert repr(name) in str(caught.value)

    def test_names_that_stay_together(self, connect: Callable[..., Any], factory: str) -> None:
        client = connect(topology="cluster", nodes=NODES)
        for name in TOGETHER:
            assert getattr(client, factory)(name).name == name

    def test_the_mapped_name_counts(self, connect: Callable[..., Any], factory: str) -> None:
        client = connect(topology="cluster", nodes=NODES, name_mapper=lambda name: f"{name}}}")
        with pytest.raises(ValueError, match="'orders}' can't be used on a cluster"):
            getattr(client, factory)("orders")
        repaired = connect(
            topology="cluster", nodes=NODES, name_mapper=lambda name: name.replace("{", "").replace("}", "")
        )
        assert getattr(repaired, factory)("a{b").name == "a{b"

    @pytest.mark.parametrize("topology", ["single", "replicated"])
    def test_other_servers_take_any_name(self, connect: Callable[..., Any], factory: str, topology: str) -> None:
        client = connect(topology=topology, nodes=() if topology == "single" else NODES)
        for name in PARTED:
            assert getattr(client, factory)(name).name == name


def test_all_factories_are_tested() -> None:
    assert {"get_lock", "get_read_write_lock", "get_semaphore", "get_count_down_latch"} <= {*FACTORIES}
    assert len(FACTORIES) == 10


def test_a_client_names_its_servers(connect: Callable[..., Any]) -> None:
    assert repr(connect(topology="cluster", nodes=["h2:1", "[::1]:2"])).endswith(" at cluster of [::1]:2, h2:1>")
    assert repr(connect()).endswith(" at localhost:6379/0>")
