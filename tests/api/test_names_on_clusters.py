"""Names that a cluster can't serve are refused by every factory, before anything is sent."""

from __future__ import annotations

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
backends = pytest.mark.parametrize("module", [pyredisson, pyredisson.asyncio], ids=["threads", "asyncio"])


@backends
@pytest.mark.parametrize("factory", FACTORIES)
def test_names(module: Any, factory: str) -> None:
    cluster = getattr(module.connect(topology="cluster", nodes=NODES), factory)
    for name in PARTED:
        for given in (name, name.encode()):
            with pytest.raises(ValueError, match=r"can't be used on a cluster: its braces.*\{orders\}:1") as caught:
                cluster(given)
            assert repr(name) in str(caught.value)
    for name in TOGETHER:
        assert cluster(name).name == name
    for others in ({"topology": "single"}, {"topology": "replicated", "nodes": NODES}):
        assert [getattr(module.connect(**others), factory)(name).name for name in PARTED] == PARTED


@backends
@pytest.mark.parametrize("factory", FACTORIES)
def test_the_mapped_name_counts(module: Any, factory: str) -> None:
    client = module.connect(topology="cluster", nodes=NODES, name_mapper=lambda name: f"{name}}}")
    with pytest.raises(ValueError, match="'orders}' can't be used on a cluster"):
        getattr(client, factory)("orders")
    repaired = module.connect(topology="cluster", nodes=NODES, name_mapper=lambda name: name.replace("{", ""))
    assert getattr(repaired, factory)("a{b").name == "a{b"


def test_all_factories_are_tested() -> None:
    assert {"get_lock", "get_read_write_lock", "get_semaphore", "get_count_down_latch"} <= {*FACTORIES}
    assert len(FACTORIES) == 10


@backends
def test_a_client_names_its_servers(module: Any) -> None:
    client = module.connect(topology="cluster", nodes=["h2:1", "[::1]:2"])
    assert repr(client).endswith(" at cluster of [::1]:2, h2:1>")
    assert repr(module.connect()).endswith(" at localhost:6379/0>")
