"""A master of the test kit and its replicas."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyredisson.testing import Replicated, ReplicatedNode, ServerError
from tests.support.programs import PROGRAMS


@pytest.fixture(scope="module", params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> str:
    return str(request.param())


@pytest.fixture
def replicated(program: str) -> Iterator[Replicated]:
    with Replicated(replicas=2, executable=program) as running:
        yield running


def test_replicas_have_the_data_of_their_master(replicated: Replicated) -> None:
    master, *replicas = replicated.nodes
    assert replicated.master() is master
    assert replicated.replicas() == tuple(replicas)
    assert replicated.addresses == tuple(("127.0.0.1", node.port) for node in replicated.nodes)
    with replicated.redis() as client:
        client.set("a", "1")
        # At once: replicas that are connected, and don't confirm yet, would be of no use to a test. After a second they
        # confirm unasked.
        assert client.wait(2, 700) == 2
    assert [node.ask("GET", "a") for node in replicas] == ["1", "1"]


def test_a_replica_takes_over(replicated: Replicated) -> None:
    master, first, second = replicated.nodes
    assert replicated.fail_over() is first
    assert replicated.fail_over(to=second) is second
    assert set(replicated.replicas()) == {master, first}
    assert second.ask("SET", "a", "1")
    assert second.ask("WAIT", 2, 5000) == 2


def test_a_killed_master_comes_back_as_replica_if_another_took_over(replicated: Replicated) -> None:
    master, first, _ = replicated.nodes
    replicated.kill(master)
    with pytest.raises(ServerError, match="0 living nodes"):
        replicated.master()
    assert replicated.fail_over(to=first) is first
    replicated.restart(master)
    assert replicated.master() is first
    assert master in replicated.replicas()


def test_a_paused_master_comes_back_as_replica(replicated: Replicated) -> None:
    master, first, _ = replicated.nodes
    replicated.pause(master)
    assert replicated.fail_over(to=first) is first
    replicated.resume(master)
    assert replicated.master() is first
    assert master in replicated.replicas()


def test_a_master_that_is_restarted_stays_master_and_is_empty(replicated: Replicated) -> None:
    master, first, _ = replicated.nodes
    master.ask("SET", "a", "1")
    assert master.ask("WAIT", 2, 5000) == 2
    replicated.restart(master)
    assert replicated.master() is master
    assert first.ask("EXISTS", "a") == 0


def test_a_paused_replica_confirms_nothing(replicated: Replicated) -> None:
    replicated.pause(replicated.nodes[1])
    master = replicated.master()
    master.ask("SET", "a", "1")
    assert master.ask("WAIT", 2, 1000) == 1
    replicated.resume(replicated.nodes[1])
    assert master.ask("WAIT", 2, 5000) == 2


def test_a_replica_begins_without_data_too(replicated: Replicated) -> None:
    master, first, _ = replicated.nodes
    master.ask("SET", "a", "1")
    assert master.ask("WAIT", 2, 5000) == 2
    replicated.kill(master)
    first.kill()
    first.start()
    assert first.ask("DBSIZE") == 0


def test_password_and_tls() -> None:
    with Replicated(password='sp ace"', tls=True) as replicated:
        replicated.fail_over()
        replicated.restart(replicated.nodes[1])
        node = replicated.master()
        with node.redis(port=node.tls_port, ssl=True, ssl_ca_certs=replicated.ca_file) as client:
            assert client.ping()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        Replicated(replicas=-1)
    with Replicated(replicas=0) as replicated:
        with pytest.raises(ServerError, match="no living replica"):
            replicated.fail_over()
        with pytest.raises(ValueError, match="no node of"):
            replicated.restart(ReplicatedNode())
