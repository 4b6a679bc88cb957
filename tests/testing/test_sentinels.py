"""The sentinels of the test kit promote replicas and notice what a test breaks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from pyredisson.testing import Sentinels, ServerError
from tests.support.programs import PROGRAMS


@pytest.fixture(scope="module", params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> str:
    return str(request.param())


@pytest.fixture
def sentinels(program: str) -> Iterator[Sentinels]:
    with Sentinels(executable=program) as running:
        yield running


def test_all_sentinels_know_the_master_and_each_other(sentinels: Sentinels) -> None:
    master = sentinels.master()
    assert master is sentinels.nodes[0]
    assert sentinels.replicas() == sentinels.nodes[1:]
    for each in sentinels.sentinels:
        assert each.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster") == ["127.0.0.1", str(master.port)]
        assert each.ask("SENTINEL", "CKQUORUM", "mymaster").startswith("OK 3 usable")
    ports = ",".join(f"127.0.0.1:{each.port}" for each in sentinels.sentinels)
    assert sentinels.url == f"redis+sentinel://{ports}/mymaster"
    with sentinels.redis() as client:
        client.set("a", "1")
    assert master.ask("GET", "a") == "1"
    sentinels.flush()
    assert master.ask("GET", "a") is None


def test_a_failover_on_request(sentinels: Sentinels) -> None:
    former = sentinels.master()
    former.ask("SET", "a", "kept")
    assert former.ask("WAIT", 1, 5000) == 1
    promoted = sentinels.fail_over()
    assert promoted is not former
    assert promoted.ask("GET", "a") == "kept"
    assert sentinels.replicas() == (former,)
    assert {each.master_port("mymaster") for each in sentinels.sentinels} == {promoted.port}
    assert sentinels.fail_over() is former


def test_a_killed_master_is_replaced_and_comes_back_as_replica(sentinels: Sentinels) -> None:
    former = sentinels.master()
    sentinels.kill(former)
    with pytest.raises(ServerError, match="don't name a living master"):
        sentinels.master()
    promoted = sentinels.wait_for_promotion(former)
    assert promoted is not former
    sentinels.restart(former)
    assert sentinels.master() is promoted
    assert sentinels.replicas() == (former,)
    # It has become a replica, and stays one when it is started again.
    sentinels.restart(former)
    assert sentinels.replicas() == (former,)


def test_a_paused_master_is_replaced_and_demoted(sentinels: Sentinels) -> None:
    former = sentinels.master()
    sentinels.pause(former)
    promoted = sentinels.wait_for_promotion(former)
    sentinels.resume(former)
    assert sentinels.master() is promoted
    assert not former.is_master


def test_sentinels_are_killed_paused_and_restarted(sentinels: Sentinels) -> None:
    first, second, third = sentinels.sentinels
    sentinels.kill(first)
    assert sentinels.living_sentinels == (second, third)
    promoted = sentinels.fail_over()
    sentinels.restart(first)
    assert first.master_port("mymaster") == promoted.port
    sentinels.pause(second)
    with pytest.raises(redis.TimeoutError):
        second.ask("PING")
    sentinels.resume(second)
    assert second.ask("SENTINEL", "CKQUORUM", "mymaster").startswith("OK 3 usable")


def test_a_replica_is_killed_and_restarted(sentinels: Sentinels) -> None:
    [replica] = sentinels.replicas()
    sentinels.kill(replica)
    sentinels.master().ask("SET", "a", "later")
    sentinels.restart(replica)
    assert sentinels.master().ask("WAIT", 1, 5000) == 1
    assert replica.ask("GET", "a") == "later"


def test_passwords_users_and_tls() -> None:
    users = ["bob on >x +@all"]
    with Sentinels(1, 2, "orders", password="s/e", sentinel_password="x%y", users=users, tls=True) as sentinels:
        [sentinel] = sentinels.sentinels
        former = sentinels.master()
        assert len(sentinels.replicas()) == 2
        with sentinels.redis() as client:
            assert client.ping()
        with former.redis(username="bob", password="x") as bob:
            assert bob.acl_whoami() == "bob"
        with pytest.raises(redis.AuthenticationError):
            sentinel.redis(password="wrong").ping()
        assert sentinels.fail_over() is not former
        query = "sentinel_password=x%25y"
        assert sentinels.url == f"rediss+sentinel://:s%2Fe@127.0.0.1:{sentinel.port}/orders?{query}"
        assert sentinels.tls_url.endswith(f"@127.0.0.1:{sentinel.tls_port}/orders?sentinel_ssl=true&{query}")
        sentinels.restart(sentinel)
        assert sentinels.master().ask("PING")


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one sentinel"):
        Sentinels(sentinels=0)
    with pytest.raises(ValueError, match="quote a password"):
        Sentinels(password="with space")
    sentinels = Sentinels()
    with pytest.raises(ServerError, match="no sentinel of"):
        sentinels.fail_over()


def test_stop_ends_everything() -> None:
    sentinels = Sentinels().start()
    sentinels.pause(sentinels.sentinels[0])
    sentinels.stop()
    assert not sentinels.living
    assert not sentinels.living_sentinels
    sentinels.stop()
