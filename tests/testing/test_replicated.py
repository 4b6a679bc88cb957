"""A master of the test kit with replicas, and with sentinels: they take over, and tests break them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from pyredisson._settings.redis_options import settings_of_url
from pyredisson.testing import Replicated, ReplicatedNode, Sentinels, ServerError
from tests.support.programs import PROGRAMS


@pytest.fixture(scope="module", params=PROGRAMS)
def replicated(request: pytest.FixtureRequest) -> Iterator[Replicated]:
    """One for the tests of this module, which leave all of its nodes running."""
    with Replicated(replicas=2, executable=request.param()) as running:
        yield running


@pytest.fixture(scope="module", params=PROGRAMS)
def sentinels(request: pytest.FixtureRequest) -> Iterator[Sentinels]:
    """The same with three sentinels, and one replica."""
    with Sentinels(executable=request.param()) as running:
        yield running


class TestReplicas:
    def test_they_have_the_data_of_their_master_and_take_over(self, replicated: Replicated) -> None:
        master, replicas = replicated.master(), replicated.replicas()
        assert {master, *replicas} == {*replicated.nodes}
        assert replicated.addresses == tuple(("127.0.0.1", node.port) for node in replicated.nodes)
        with replicated.redis() as client:
            client.set("a", "1")
            # At once: replicas that are connected, and don't confirm yet, would be of no use to a test. After a second
            # they confirm unasked.
            assert client.wait(2, 700) == 2
        assert [node.ask("GET", "a") for node in replicas] == ["1", "1"]
        for replica in replicas:
            assert replicated.fail_over(to=replica) is replica
        assert replicated.fail_over() in (master, replicas[0])
        assert replicated.master().ask("SET", "a", "2")
        assert replicated.master().ask("WAIT", 2, 5000) == 2

    @pytest.mark.parametrize("broken", ["killed", "paused"])
    def test_a_master_comes_back_as_replica_if_another_took_over(self, replicated: Replicated, broken: str) -> None:
        master, [first, second] = replicated.master(), replicated.replicas()
        master.ask("SET", "a", "1")
        assert master.ask("WAIT", 2, 5000) == 2
        if broken == "killed":
            replicated.kill(master)
            with pytest.raises(ServerError, match="0 living nodes"):
                replicated.master()
            # A replica begins without data too.
            second.kill()
            second.start()
            assert second.ask("DBSIZE") == 0
        else:
            replicated.pause(master)
        assert replicated.fail_over(to=first) is first
        assert first.ask("GET", "a") == "1"
        replicated.restart(master) if broken == "killed" else replicated.resume(master)
        assert replicated.master() is first
        assert set(replicated.replicas()) == {master, second}

    def test_a_paused_replica_confirms_nothing(self, replicated: Replicated) -> None:
        master, [replica, _] = replicated.master(), replicated.replicas()
        replicated.pause(replica)
        master.ask("SET", "a", "1")
        assert master.ask("WAIT", 2, 1000) == 1
        replicated.resume(replica)
        assert master.ask("WAIT", 2, 5000) == 2
        # A master that is restarted stays master, and is empty.
        replicated.restart(master)
        assert replicated.master() is master
        assert [replica.ask("EXISTS", "a") for replica in replicated.replicas()] == [0, 0]

    def test_password_and_tls(self) -> None:
        with Replicated(password='sp ace"', tls=True) as replicated:
            replicated.fail_over()
            replicated.restart(replicated.nodes[1])
            node = replicated.master()
            with node.redis(port=node.tls_port, ssl=True, ssl_ca_certs=replicated.ca_file) as client:
                assert client.ping()
            replicated.kill(replicated.nodes[0])
            with pytest.raises(ServerError, match="no living replica"):
                replicated.fail_over()
            with pytest.raises(ValueError, match="no node of"):
                replicated.restart(ReplicatedNode())


class TestSentinels:
    def test_they_know_the_master_and_each_other(self, sentinels: Sentinels) -> None:
        master = sentinels.master()
        assert {master, *sentinels.replicas()} == {*sentinels.nodes}
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

    def test_a_failover_on_request_without_one_of_them(self, sentinels: Sentinels) -> None:
        former, [first, second, third] = sentinels.master(), sentinels.sentinels
        former.ask("SET", "a", "kept")
        assert former.ask("WAIT", 1, 5000) == 1
        sentinels.kill(first)
        assert sentinels.living_sentinels == (second, third)
        promoted = sentinels.fail_over()
        assert promoted is not former
        assert promoted.ask("GET", "a") == "kept"
        assert sentinels.replicas() == (former,)
        sentinels.restart(first)
        assert {each.master_port("mymaster") for each in sentinels.sentinels} == {promoted.port}
        sentinels.pause(second)
        with pytest.raises(redis.TimeoutError):
            second.ask("PING")
        sentinels.resume(second)
        assert second.ask("SENTINEL", "CKQUORUM", "mymaster").startswith("OK 3 usable")
        assert sentinels.fail_over() is former

    @pytest.mark.parametrize("broken", ["killed", "paused"])
    def test_a_master_is_replaced_and_comes_back_as_replica(self, sentinels: Sentinels, broken: str) -> None:
        former = sentinels.master()
        if broken == "killed":
            sentinels.kill(former)
            with pytest.raises(ServerError, match="don't name a living master"):
                sentinels.master()
        else:
            sentinels.pause(former)
        promoted = sentinels.wait_for_promotion(former)
        assert promoted is not former
        sentinels.restart(former) if broken == "killed" else sentinels.resume(former)
        assert (sentinels.master(), sentinels.replicas(), former.is_master) == (promoted, (former,), False)
        # It stays a replica when it is started again, and gets what was written meanwhile.
        sentinels.kill(former)
        promoted.ask("SET", "a", "later")
        sentinels.restart(former)
        assert sentinels.replicas() == (former,)
        assert promoted.ask("WAIT", 1, 5000) == 1
        assert former.ask("GET", "a") == "later"

    def test_passwords_users_and_tls(self) -> None:
        users = ["bob on >x +@all"]
        with Sentinels(1, 2, "orders", password="s/e@", sentinel_password="x%y&", users=users, tls=True) as sentinels:
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
            # What the library reads in the addresses.
            expected = {
                "topology": "sentinel",
                "master_name": "orders",
                "password": "s/e@",
                "sentinel_password": "x%y&",
                "ssl": True,
            }
            for url, port in ((sentinels.url, sentinel.port), (sentinels.tls_url, sentinel.tls_port)):
                settings = settings_of_url(url)
                assert {name: settings[name] for name in expected} == expected
                assert bool(settings.get("sentinel_ssl")) is (port == sentinel.tls_port)
                assert list(settings["nodes"]) == [(sentinel.host, port)]
            sentinels.restart(sentinel)
            assert sentinels.master().ask("PING")
