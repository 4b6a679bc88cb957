"""The URLs and clients of real deployments give settings that name their servers."""

from __future__ import annotations

import redis

from pyredisson._settings.config import Config
from pyredisson.testing import Cluster, Sentinels


def answers(config: Config) -> bool:
    with redis.Redis(config.host, config.port, username=config.username, password=config.password) as client:
        return bool(client.ping())


def test_a_cluster(cluster: Cluster) -> None:
    addresses = {node.address for node in cluster.nodes}
    config = Config.of(cluster.url)
    assert {*config.nodes} == addresses
    assert all(answers(config.at(node)) for node in config.nodes)
    with cluster.redis() as client:
        from_client = Config.of(client)
    assert from_client.topology == "cluster"
    assert {*from_client.nodes} <= addresses


def test_sentinels_and_a_master_with_other_passwords() -> None:
    with Sentinels(sentinels=1, replicas=1, password="p", sentinel_password="s") as sentinels:
        with sentinels.redis() as client:
            configs = [Config.of(sentinels.url), Config.of(client)]
        for config in configs:
            assert config.topology == "sentinel"
            assert {*config.nodes} == {(each.host, each.port) for each in sentinels.sentinels}
            assert (config.password, config.sentinel_password) == ("p", "s")
            assert config.master_name == sentinels.master_name
            assert answers(config.at_sentinel(config.nodes[0]))
            assert answers(config.at(config.nodes[0]._replace(port=sentinels.master().port)))
