"""The dashboard of a cluster shows what all masters hold, and which of them doesn't reply."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from pyredisson.logic.announced import client_key
from pyredisson.testing import Cluster
from tests.dashboard.running import Dashboard
from tests.support.inspecting import announce

OWNER = "00000000-0000-4000-8000-000000000001:1"
NO_FAILOVER = 60.0
"""Seconds: the master that hangs stays the master."""
NAMES = [f"orders-{number}" for number in range(30)]
MORE = [f"stock-{number}" for number in range(30)]
CLIENTS = {f"{uuid.UUID(int=number)}" for number in range(100)}


@pytest.fixture
def dashboard(own_cluster: Cluster) -> Iterator[Dashboard]:
    own_cluster.set_node_timeout(NO_FAILOVER)
    running = Dashboard(own_cluster.url, "--allow-unlock")
    yield running
    running.stop()


def test_all_masters_and_one_that_hangs(own_cluster: Cluster, dashboard: Dashboard) -> None:
    with own_cluster.redis() as redis:
        for name in NAMES:
            redis.hset(name, OWNER, 1)
            redis.pexpire(name, 600_000)
    dashboard.until(lambda: sorted(dashboard.rows()) == sorted(NAMES))
    servers = {name: dashboard.view("lock", name=name)["server"] for name in NAMES[:10]}
    assert servers == {name: address_of(own_cluster, name) for name in NAMES[:10]}
    # A release goes to the node of the lock.
    assert dashboard.post("/api/unlock", {"name": NAMES[0], "owner": OWNER}).status == 200
    dashboard.until(lambda: NAMES[0] not in dashboard.rows())
    hanging = own_cluster.node_of_key(NAMES[1])
    served = next(name for name in MORE if own_cluster.node_of_key(name) != hanging)
    with own_cluster.redis() as redis:
        # Also a client that has announced itself on the master that will hang.
        its_clients = (id_ for id_ in CLIENTS if own_cluster.node_of_key(client_key(id_).decode()) == hanging)
        announce(redis, next(its_clients))
    dashboard.until(lambda: dashboard.rows("clients").keys() & CLIENTS)
    own_cluster.pause(hanging)
    try:
        dashboard.until(lambda: any(address_of(own_cluster, NAMES[1]) in each for each in problems(dashboard)))
        totals = dashboard.get("/api/locks").json["totals"]
        assert totals["away_since"] is None
        # What was known of it is still shown.
        assert NAMES[1] in dashboard.rows()
        assert dashboard.rows("clients").keys() & CLIENTS
        # And the others go on.
        with own_cluster.redis() as redis:
            redis.hset(served, OWNER, 1)
        dashboard.until(lambda: served in dashboard.rows())
    finally:
        own_cluster.resume(hanging)
    dashboard.until(lambda: problems(dashboard) == [])
    assert sorted(dashboard.rows()) == sorted([*NAMES[1:], served])


def problems(dashboard: Dashboard) -> list[str]:
    found: list[str] = dashboard.get("/api/locks").json["totals"]["problems"]
    return found


def address_of(cluster: Cluster, name: str) -> str:
    host, port = cluster.node_of_key(name).address
    return f"{host}:{port}"
