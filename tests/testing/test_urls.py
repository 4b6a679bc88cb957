"""The addresses that the test kit gives are those that the library reads."""

from __future__ import annotations

from pyredisson._settings.urls import settings_of_url
from pyredisson.testing import Cluster, Sentinels


def test_addresses_of_a_cluster() -> None:
    with Cluster(masters=1, replicas=1, password="s/e c@", tls=True) as cluster:
        settings = settings_of_url(cluster.url)
        assert settings["topology"] == "cluster"
        assert settings["password"] == "s/e c@"
        assert list(settings["nodes"]) == [node.address for node in cluster.nodes]
        with_tls = settings_of_url(f"{cluster.tls_url}?ssl_ca_certs={cluster.ca_file}")
        assert list(with_tls["nodes"]) == [(node.host, node.tls_port) for node in cluster.nodes]


def test_addresses_of_sentinels() -> None:
    with Sentinels(sentinels=2, password="s/e@", sentinel_password="x%y&", tls=True) as sentinels:
        settings = settings_of_url(sentinels.tls_url)
        assert settings["topology"] == "sentinel"
        assert settings["master_name"] == "mymaster"
        assert (settings["password"], settings["sentinel_password"]) == ("s/e@", "x%y&")
        assert settings["sentinel_ssl"]
        assert list(settings["nodes"]) == [(each.host, each.tls_port) for each in sentinels.sentinels]
        assert list(settings_of_url(sentinels.url)["nodes"]) == [(each.host, each.port) for each in sentinels.sentinels]
