"""Settings of several servers from Redisson's YAML files.

The files in `redisson_files` were written by the `toYAML` of those versions of Redisson.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

import pytest

from pyredisson._settings.address import Address, AddressMap
from pyredisson._settings.config import Config
from pyredisson.errors import ConfigError

FILES = Path(__file__).parent / "redisson_files"
VERSIONS = ["3.27.2", "4.7.0"]
SECRET = "hunter2"
SET_IN_EACH_FILE: dict[str, Any] = {
    "username": "u",
    "password": "p",
    "client_name": "me",
    "timeout": 2.5,
    "connect_timeout": 9.0,
    "retry_attempts": 3,
    "ping_interval": 20.0,
    "connection_pool_size": 32,
    "socket_keepalive": False,
    "lock_watchdog_timeout": 20.0,
    "check_lock_synced_replicas": False,
    "replicas_sync_timeout": 1.5,
}
NODES = (Address("h1", 7000), Address("h2", 7001))
EXPECTED: dict[str, dict[str, Any]] = {
    "single": {"host": "h1", "port": 7000, "database": 3},
    "cluster": {"topology": "cluster", "nodes": NODES, "topology_refresh_interval": 2.0},
    "replicated": {"topology": "replicated", "nodes": NODES, "database": 3, "topology_refresh_interval": 2.0},
    "master_slave": {"topology": "replicated", "nodes": NODES, "database": 3},
    "sentinel": {
        "topology": "sentinel",
        "nodes": (Address("s1", 26379), Address("s2", 26380)),
        "master_name": "mymaster",
        "sentinel_username": "su",
        "sentinel_password": "sp",
        "database": 3,
        "topology_refresh_interval": 2.0,
    },
}


def section(name: str, settings: str, root: str = "") -> str:
    lines = "\n".join(f"  {line}" for line in settings.strip().splitlines())
    return f"{name}:\n{lines}\n{root}\n"


def cluster(settings: str, root: str = "") -> str:
    return section("clusterServersConfig", f'nodeAddresses: ["redis://h1:7000", "redis://h2:7001"]\n{settings}', root)


def sentinel(settings: str, root: str = "") -> str:
    return section("sentinelServersConfig", f"masterName: m\n{settings}", root)


class TestFilesOfRedisson:
    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize("mode", EXPECTED)
    def test_all_settings(self, mode: str, version: str) -> None:
        retries = {"retry_attempts": 4} if version == "4.7.0" else {}  # each writes its own default
        config = Config.from_yaml(FILES / f"{mode}-{version}.yaml")
        assert config == Config(**{**SET_IN_EACH_FILE, **retries, **EXPECTED[mode]})

    @pytest.mark.parametrize("mode", EXPECTED)
    def test_what_has_no_meaning_is_logged_once(self, mode: str, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, logger="pyredisson")
        Config.from_yaml(FILES / f"{mode}-4.7.0.yaml")
        (record,) = caplog.records
        ignored = set(record.getMessage().partition(": ")[2].split(", "))
        assert {"threads", "retryDelay", "subscriptionTimeout"} <= ignored
        assert ("readMode" in ignored) == (mode != "single")
        assert not ignored & {"scanInterval", "natMapper", "checkLockSyncedSlaves", "nodeAddresses"}


class TestAddresses:
    def test_master_and_slaves(self) -> None:
        settings = "masterAddress: redis://m:1\nslaveAddresses:\n- redis://a:2\n- redis://[::1]:3"
        config = Config.from_yaml(section("masterSlaveServersConfig", settings))
        assert config.nodes == (("m", 1), ("a", 2), ("::1", 3))
        alone = Config.from_yaml(section("masterSlaveServersConfig", "masterAddress: redis://m:1"))
        assert (alone.topology, alone.nodes) == ("replicated", (("m", 1),))

    def test_default_ports_and_a_single_address(self) -> None:
        assert Config.from_yaml(sentinel("sentinelAddresses: redis://s1")).nodes == (("s1", 26379),)
        config = Config.from_yaml(section("replicatedServersConfig", "nodeAddresses: valkey://h1"))
        assert config.nodes == (("h1", 6379),)

    def test_credentials_in_addresses(self) -> None:
        config = Config.from_yaml(section("clusterServersConfig", "nodeAddresses: ['redis://u:p@a', 'redis://u:p@b']"))
        assert (config.username, config.password) == ("u", "p")
        addresses = "sentinelAddresses: ['redis://su:sp@a', 'redis://su:sp@b']"
        config = Config.from_yaml(sentinel(f"{addresses}\nusername: u\npassword: p"))
        assert (config.username, config.password) == ("u", "p")
        assert (config.sentinel_username, config.sentinel_password) == ("su", "sp")
        assert Config.from_yaml(sentinel(f"{addresses}\nsentinelPassword: q")).sentinel_password == "q"

    def test_tls(self) -> None:
        text = section("clusterServersConfig", "nodeAddresses: ['rediss://a', 'rediss://b']\nsslVerificationMode: NONE")
        context = Config.from_yaml(text).ssl_context
        assert context is not None
        assert context.verify_mode is ssl.CERT_NONE

    def test_tls_to_sentinels_is_tls_to_the_master(self) -> None:
        config = Config.from_yaml(sentinel("sentinelAddresses: [rediss://a, rediss://b]\nsslVerificationMode: CA_ONLY"))
        assert (config.ssl, config.sentinel_ssl) == (True, True)
        for context in (config.ssl_context, config.sentinel_ssl_context):
            assert context is not None
            assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, False)
        assert not Config.from_yaml(sentinel("sentinelAddresses: [redis://a]")).sentinel_ssl

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (section("clusterServersConfig", "nodeAddresses: []"), "nodes is missing"),
            (section("clusterServersConfig", "scanInterval: 1"), "nodeAddresses is missing"),
            (section("masterSlaveServersConfig", "slaveAddresses: [redis://a]"), "masterAddress is missing"),
            (section("sentinelServersConfig", "sentinelAddresses: [redis://a]"), "master_name is missing"),
            (section("replicatedServersConfig", "nodeAddresses: [redis://a, rediss://b]"), "same scheme"),
            (section("replicatedServersConfig", f"nodeAddresses: ['redis://:{SECRET}@a', redis://b]"), "credentials"),
            (section("replicatedServersConfig", "nodeAddresses: [unix:///run/r.sock]"), "redis://host:port"),
            (section("replicatedServersConfig", "nodeAddresses: ['redis+cluster://a']"), "redis://host:port"),
            (section("replicatedServersConfig", "nodeAddresses: ['redis://']"), "redis://host:port"),
            (section("replicatedServersConfig", "nodeAddresses: [{a: b}]"), "single value"),
            (section("replicatedServersConfig", "nodeAddresses: ['a:1']"), "URL"),
            (cluster("", "singleServerConfig:\n  address: redis://h\n"), "one of singleServerConfig.*not several"),
            ("threads: 1\n", "one of singleServerConfig, clusterServersConfig"),
            ("multiClusterServersConfig: {}\n", "multiClusterServersConfig isn't supported, only"),
            ("clusterServersConfig: [1]\n", "clusterServersConfig must hold settings"),
        ],
    )
    def test_what_cannot_be_used(self, text: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message) as caught:
            Config.from_yaml(text)
        assert SECRET not in str(caught.value)


class TestKeys:
    @pytest.mark.parametrize("value", ["AUTO", "ON", "OFF"])
    def test_sharded_subscriptions(self, value: str) -> None:
        assert Config.from_yaml(cluster(f"shardedSubscriptionMode: {value}")).sharded_pubsub == value.lower()

    @pytest.mark.parametrize(
        "settings",
        [
            'natMap: {"172.17.0.2:7000": "10.0.0.1:17000"}',
            'natMapper: !<org.redisson.api.HostPortNatMapper> {hostsPortMap: {"172.17.0.2:7000": "10.0.0.1:17000"}}',
        ],
    )
    def test_mapped_addresses(self, settings: str) -> None:
        config = Config.from_yaml(cluster(settings))
        assert config.address_mapper == AddressMap({Address("172.17.0.2", 7000): Address("10.0.0.1", 17000)})
        assert config.map_address(Address("172.17.0.2", 7000)) == ("10.0.0.1", 17000)
        assert config.map_address(Address("172.17.0.2", 7001)) == ("172.17.0.2", 7001)

    def test_mapped_hosts(self) -> None:
        text = sentinel('sentinelAddresses: [redis://s]\nnatMapper: !<x.HostNatMapper> {hostsMap: {"a": "b"}}')
        assert Config.from_yaml(text).map_address(Address("a", 1)) == ("b", 1)

    @pytest.mark.parametrize("mapper", ["DefaultNatMapper> {}", "HostNatMapper> {hostsMap: null}"])
    def test_a_mapper_without_a_table(self, mapper: str) -> None:
        assert Config.from_yaml(cluster(f"natMapper: !<org.redisson.config.{mapper}")).address_mapper is None

    def test_a_stand_in_for_a_mapper_in_java(self) -> None:
        mapper = AddressMap(hosts={"a": "b"})
        config = Config.from_yaml(cluster("natMapper: !<com.example.Nat> {region: eu}"), address_mapper=mapper)
        assert config.address_mapper is mapper

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (cluster("natMapper: !<com.example.Nat> {}"), "natMapper.*address_mapper="),
            (cluster("natMapper: !<x.HostNatMapper> {hostMap: {}}"), "hostMap; did you mean hostsMap"),
            (cluster("natMap: {a: b}"), "natMap: an address"),
            (cluster("natMapper: !<x.HostPortNatMapper> {hostsPortMap: {a: b}}"), "hostsPortMap: an address"),
            (cluster("shardedSubscriptionMode: auto"), "AUTO, ON or OFF"),
            (cluster("scanInterval: 0"), "topology_refresh_interval"),
            (cluster("database: 1"), "database must be 0 in a cluster"),
            (cluster("masterName: m"), "unknown setting masterName"),
            (cluster("connectionPoolSize: 3"), "did you mean .*ConnectionPoolSize"),
            (cluster("", "scanInterval: 1"), "unknown setting scanInterval"),
            (cluster("", "natMap: {}"), "unknown setting natMap"),
            (cluster("", "slavesSyncTimeout: 0"), "replicas_sync_timeout"),
            (section("singleServerConfig", "address: redis://h\nnatMap: {}"), "unknown setting natMap"),
            (section("masterSlaveServersConfig", "masterAddress: redis://h\nscanInterval: 1"), "unknown setting scan"),
            (sentinel("sentinelAddresses: [redis://s]\nsentinelPassword: '{aes}M+TfpT4T'"), "sentinel_password.*PRO"),
        ],
    )
    def test_what_cannot_be_used(self, text: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            Config.from_yaml(text)
