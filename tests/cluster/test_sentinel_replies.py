"""What Sentinels and servers reply about the master."""

from __future__ import annotations

import pytest
from redis.exceptions import InvalidResponse, NoPermissionError, ResponseError

from pyredisson._protocol.sentinel import (
    SentinelAnswer,
    names_master,
    read_role,
    read_sentinel,
    sentinel_query,
    unconfirmed_master,
)
from pyredisson._protocol.topology import ALL_SLOTS, Member, Shard, TopologyView
from pyredisson._settings.address import Address

ASKED = Address("10.0.0.9", 26379)
MASTER = Address("10.0.0.1", 6379)
DETAILS = [b"name", b"mymaster", b"ip", b"10.0.0.1", b"port", b"6379", b"config-epoch", b"7"]
OTHERS = [[b"name", b"x", b"ip", b"10.0.0.8", b"port", b"26379"], [b"ip", b"::1", b"port", b"26380"]]


def test_the_query_names_the_master() -> None:
    assert all(payload.endswith(b"$8\r\nmymaster\r\n") for payload in sentinel_query("mymaster"))


def test_the_answer_of_a_sentinel() -> None:
    replicas = [[b"ip", b"10.0.0.2", b"port", b"6380", b"flags", b"s_down,slave,disconnected"]]
    answer = read_sentinel([[b"10.0.0.1", b"6379"], DETAILS, OTHERS, replicas], ASKED)
    others = Address("10.0.0.8", 26379), Address("::1", 26380)
    assert answer == SentinelAnswer(MASTER, 7, others, (Address("10.0.0.2", 6380),))


def test_a_sentinel_without_details() -> None:
    refused = NoPermissionError("NOPERM")
    assert read_sentinel([[b"10.0.0.1", b"6379"], refused, refused, refused], ASKED) == SentinelAnswer(MASTER, 0, ())


def test_a_sentinel_that_knows_no_such_master() -> None:
    unknown = ResponseError("ERR No such master with that name")
    assert read_sentinel([None, unknown, unknown, unknown], ASKED) is None


def test_an_error_reply_of_a_sentinel_is_raised() -> None:
    with pytest.raises(NoPermissionError):
        read_sentinel([NoPermissionError("NOPERM"), DETAILS, OTHERS, []], ASKED)


@pytest.mark.parametrize(
    "replies", [[[b"10.0.0.1"], DETAILS, [], []], [[b"h", b"x"], DETAILS, [], []], [[b"h", b"1"], [b"odd"], [], []]]
)
def test_an_unreadable_answer_is_an_error_of_redis(replies: list[object]) -> None:
    with pytest.raises(InvalidResponse, match=r"10\.0\.0\.9:26379"):
        read_sentinel(replies, ASKED)


def test_messages_about_other_masters() -> None:
    assert names_master(b"mymaster 10.0.0.1 6379 10.0.0.2 6379", "mymaster")
    assert not names_master(b"mymaster2 10.0.0.1 6379 10.0.0.2 6379", "mymaster")
    assert not names_master(b"", "mymaster")


SERVER = b"# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\n"
REPLICATION = (
    b"# Replication\r\nrole:master\r\nconnected_slaves:1\r\nslave0:ip=10.0.0.2,port=6380,state=online,lag=0\r\n"
)
SLAVES = [[b"10.0.0.3", b"6381", b"0"], [b"10.0.0.2", b"6380", b"0"]]


def master(*replicas: Member, id_: bytes = b"abc", epoch: int = 0) -> TopologyView:
    return TopologyView((Shard(Member(MASTER, id_), replicas, ALL_SLOTS),), epoch)


def test_a_master_and_its_replicas() -> None:
    expected = master(Member(Address("10.0.0.2", 6380)), Member(Address("10.0.0.3", 6381)), epoch=5)
    assert read_role([[b"master", 100, SLAVES], REPLICATION, SERVER], MASTER, 5) == expected


def test_a_replica() -> None:
    assert read_role([[b"slave", b"10.0.0.1", 6379, b"connected", 1], b"role:slave\r\n", SERVER], MASTER) is None


def test_a_sentinel_is_no_master() -> None:
    assert read_role([[b"sentinel", [b"mymaster"]], b"", SERVER], MASTER) is None


def test_without_the_right_to_role_info_tells_it() -> None:
    refused = NoPermissionError("NOPERM")
    assert read_role([refused, REPLICATION, SERVER], MASTER) == master(Member(Address("10.0.0.2", 6380)))
    assert read_role([refused, b"role:slave\r\n", SERVER], MASTER) is None


def test_without_any_right_the_role_is_unknown() -> None:
    refused = NoPermissionError("NOPERM")
    with pytest.raises(NoPermissionError):
        read_role([refused, refused, refused], MASTER)
    assert unconfirmed_master([refused, refused, refused], MASTER, 3) == master(id_=b"", epoch=3)
    assert unconfirmed_master([refused, REPLICATION, SERVER], MASTER, 3) is None
    assert unconfirmed_master([[b"master", 0, []], refused, SERVER], MASTER, 3) is None


@pytest.mark.parametrize("role", [None, 1, [], [b"master"], [b"master", 0, [[b"h"]]], [b"master", 0, [[b"h", b"x"]]]])
def test_an_unreadable_role_is_an_error_of_redis(role: object) -> None:
    with pytest.raises(InvalidResponse, match=r"10\.0\.0\.1:6379"):
        read_role([role, REPLICATION, SERVER], MASTER)
