"""Settings from Redisson's YAML files, of one server and of several.

The files in `redisson_files` were written by the `toYAML` of those versions of Redisson.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from pyredisson._settings.address import Address, AddressMap
from pyredisson._settings.config import Config
from pyredisson.errors import ConfigError

from .test_config_urls import BY_CA, CHECKED, SECRET, UNCHECKED, checks

FILES = Path(__file__).parent / "redisson_files"
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


def several(kind: str, addresses: str, settings: str = "", root: str = "") -> str:
    return section(f"{kind}ServersConfig", f"nodeAddresses: {addresses}\n{settings}", root)


def cluster(settings: str, root: str = "") -> str:
    return several("cluster", '["redis://h1:7000", "redis://h2:7001"]', settings, root)


def master(address: str) -> str:
    return section("masterSlaveServersConfig", f"masterAddress: {address}")


def sentinel(settings: str, root: str = "") -> str:
    return section("sentinelServersConfig", f"masterName: m\n{settings}", root)


def single(settings: str, root: str = "") -> str:
    """A Redisson file with one server and these settings."""
    return section("singleServerConfig", f'address: "redis://h:7000"\n{settings}', root)


class TestYaml:
    def test_files_and_texts(self) -> None:
        file = FILES / "single-3.27.2.yaml"
        text = file.read_text("utf-8")
        expected = Config(**SET_IN_EACH_FILE, **EXPECTED["single"])
        for source in (file, str(file), text, io.StringIO(text)):
            assert Config.from_yaml(source) == expected
        with pytest.raises(FileNotFoundError):
            Config.from_yaml(FILES / "none.yaml")

    def test_ignored_keys_are_logged_once_at_info(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, logger="pyredisson")
        Config.from_yaml(single("timeout: 1000"))
        assert not caplog.records
        Config.from_yaml(single("retryInterval: 9\nclientName: me", "threads: 1\nnettyThreads: 2\nexecutor: null"))
        (record,) = caplog.records
        assert (record.name, record.levelno) == ("pyredisson", logging.INFO)
        assert record.getMessage().endswith(": nettyThreads, retryInterval, threads")

    @pytest.mark.parametrize("written", ["0123", "yes", "1e3", "12:30:45", '"null"', "2001-01-01", "'a # b'"])
    def test_a_password_stays_as_written(self, written: str) -> None:
        assert Config.from_yaml(single(f"password: {written}")).password == written.strip("'\"")

    def test_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REDIS_DB", "3")
        monkeypatch.setenv("redis.password", SECRET)
        monkeypatch.setenv("EMPTY", "")
        monkeypatch.delenv("MISSING", raising=False)
        config = Config.from_yaml(
            "singleServerConfig:\n"
            '  address: "redis://${MISSING:-h}:${MISSING:-7000}"\n'
            "  database: ${REDIS_DB:-1}\n"
            "  password: ${redis.password}\n"
            "  clientName: ${MISSING:-}\n"
            "  username: ${EMPTY}\n"
            "  retryInterval: ${MISSING}\n"
        )
        assert (config.host, config.port, config.database) == ("h", 7000, 3)
        assert (config.password, config.client_name, config.username) == (SECRET, None, None)

    def test_stand_ins_for_java_classes(self) -> None:
        text = single("nameMapper: !<com.example.M> {}\ncredentialsResolver: !<com.example.R> {}")
        provider = redis.UsernamePasswordCredentialProvider("u", "p")
        config = Config.from_yaml(text, name_mapper=str.upper, credential_provider=provider)
        assert (config.name_mapper, config.credential_provider) == (str.upper, provider)
        mapper = AddressMap(hosts={"a": "b"})
        config = Config.from_yaml(cluster("natMapper: !<com.example.Nat> {region: eu}"), address_mapper=mapper)
        assert config.address_mapper is mapper

    @pytest.mark.parametrize("line", [f"password: *{SECRET}", f"password: @{SECRET}", f"password: {{{SECRET}", "\x07"])
    def test_broken_yaml_does_not_give_the_password_away(self, line: str) -> None:
        with pytest.raises(ConfigError, match="not valid YAML") as caught:
            Config.from_yaml(single(line, f"password: {SECRET}"))
        assert SECRET not in str(caught.value)
        assert caught.value.__suppress_context__

    def test_one_import_is_enough_and_does_not_import_yaml(self) -> None:
        code = "import sys, pyredisson; pyredisson.asyncio.connect('redis://h'); sys.exit('yaml' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], timeout=20, check=False).returncode == 0


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate and its key in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, isn't installed")
    folder = tmp_path_factory.mktemp("pem")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=h -days 9"
    subprocess.run([*command.split(), "-keyout", "key", "-out", "crt"], cwd=folder, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_bytes((folder / "crt").read_bytes() + (folder / "key").read_bytes())
    return both


def tls(settings: str) -> str:
    return single(settings).replace("redis://", "rediss://")


class TestTls:
    @pytest.mark.parametrize(
        ("text", "servers", "sentinels"),
        [
            (tls(""), CHECKED, None),
            (tls("sslVerificationMode: STRICT"), CHECKED, None),
            (tls("sslVerificationMode: CA_ONLY"), BY_CA, None),
            (tls("sslVerificationMode: NONE"), UNCHECKED, None),
            (tls("sslEnableEndpointIdentification: true"), CHECKED, None),
            (tls("sslEnableEndpointIdentification: false"), UNCHECKED, None),
            (tls("sslVerificationMode: STRICT\nsslEnableEndpointIdentification: false"), CHECKED, None),
            # A plain address needs no further settings.
            (single("sslTruststore: file:/no/such/file"), None, None),
            (several("cluster", "['rediss://a', 'rediss://b']", "sslVerificationMode: NONE"), UNCHECKED, None),
            # TLS to the Sentinels is TLS to the master.
            (sentinel("sentinelAddresses: [rediss://a, rediss://b]\nsslVerificationMode: CA_ONLY"), BY_CA, BY_CA),
            (sentinel("sentinelAddresses: [redis://a]"), None, None),
        ],
    )
    def test_what_is_verified(self, text: str, servers: Any, sentinels: Any) -> None:
        config = Config.from_yaml(text)
        assert (checks(config.ssl_context), checks(config.sentinel_ssl_context)) == (servers, sentinels)
        assert (config.ssl, config.sentinel_ssl) == (servers is not None, sentinels is not None)

    @pytest.mark.parametrize("prefix", ["", "file:", "file://"])
    def test_pem_stores(self, pem: Path, prefix: str) -> None:
        context = Config.from_yaml(tls(f"sslTruststore: {prefix}{pem}\nsslKeystore: {prefix}{pem}")).ssl_context
        assert context is not None
        subjects = [authority["subject"] for authority in context.get_ca_certs()]
        assert subjects == [((("commonName", "h"),),)]  # and none of the system's

    def test_protocols_and_ciphers(self) -> None:
        settings = "sslProtocols: [TLSv1.3, TLSv1.2]\nsslCiphers: [ECDHE-RSA-AES128-GCM-SHA256]"
        context = Config.from_yaml(tls(settings)).ssl_context
        assert context is not None
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert "ECDHE-RSA-AES128-GCM-SHA256" in [cipher["name"] for cipher in context.get_ciphers()]

    def test_java_key_stores(self, tmp_path: Path) -> None:
        store = tmp_path / "store.jks"
        store.write_bytes(b"\xfe\xed\xfe\xed\x00\x00\x00\x02")
        with pytest.raises(ConfigError, match="sslTruststore: Java's key stores"):
            Config.from_yaml(tls(f"sslTruststore: {store}"))


class TestFilesOfRedisson:
    @pytest.mark.parametrize("version", ["3.27.2", "4.7.0"])
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


ROOT = "username: u\npassword: p\ntcpKeepAlive: false"
SENTINELS = "sentinelAddresses: ['redis://su:sp@a', 'redis://su:sp@b']"
PORTS = {Address("172.17.0.2", 7000): Address("10.0.0.1", 17000)}
HOSTS = AddressMap(hosts={"a": "b"})
ADDRESSES = ('["redis://h:7000"]', '"valkey://h:7000"', "redis://h:7000", '"redis://u:p@h:7000"')
PAIR = '{"172.17.0.2:7000": "10.0.0.1:17000"}'


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        *((f"singleServerConfig:\n  address: {each}\n", {"host": "h", "port": 7000}) for each in ADDRESSES),
        (single("password: null", ROOT), {"username": "u", "password": "p", "socket_keepalive": False}),
        (single("password: q", ROOT), {"password": "q"}),
        ("singleServerConfig:\n  address: redis://u:p@h\n  password: q\n", {"username": "u", "password": "q"}),
        (single("pingConnectionInterval: 0\nretryAttempts: 0"), {"ping_interval": 0.0, "retry_attempts": 0}),
        (single("dnsMonitoringInterval: -1"), {}),
        ("---\n" + single("clientName: null", "fairLockWaitTimeout: 200000"), {"fair_lock_wait_timeout": 200.0}),
        (single("retryDelay: !<org.redisson.config.EqualJitterDelay> {baseDelay: PT1S, maxDelay: PT2S}"), {}),
        (master("redis://m:1"), {"topology": "replicated", "nodes": (("m", 1),)}),
        (
            master("redis://m:1\nslaveAddresses:\n- redis://a:2\n- redis://[::1]:3"),
            {"nodes": (("m", 1), ("a", 2), ("::1", 3))},
        ),
        (sentinel("sentinelAddresses: redis://s1"), {"nodes": (("s1", 26379),)}),
        (several("replicated", "valkey://h1"), {"nodes": (("h1", 6379),)}),
        (several("cluster", "['redis://u:p@a', 'redis://u:p@b']"), {"username": "u", "password": "p"}),
        (
            sentinel(f"{SENTINELS}\nusername: u\npassword: p"),
            {"username": "u", "password": "p", "sentinel_username": "su", "sentinel_password": "sp"},
        ),
        (sentinel(f"{SENTINELS}\nsentinelPassword: q"), {"sentinel_password": "q"}),
        *((cluster(f"shardedSubscriptionMode: {each.upper()}"), {"sharded_pubsub": each}) for each in ("auto", "on")),
        (cluster("shardedSubscriptionMode: OFF"), {"sharded_pubsub": "off"}),
        (cluster(f"natMap: {PAIR}"), {"address_mapper": AddressMap(PORTS)}),
        (cluster(f"natMapper: !<x.HostPortNatMapper> {{hostsPortMap: {PAIR}}}"), {"address_mapper": AddressMap(PORTS)}),
        (cluster('natMapper: !<x.HostNatMapper> {hostsMap: {"a": "b"}}'), {"address_mapper": HOSTS}),
        (cluster("natMapper: !<org.redisson.config.DefaultNatMapper> {}"), {"address_mapper": None}),
        (cluster("natMapper: !<x.HostNatMapper> {hostsMap: null}"), {"address_mapper": None}),
    ],
)
def test_settings(text: str, fields: dict[str, Any]) -> None:
    config = Config.from_yaml(text)
    assert {name: getattr(config, name) for name in fields} == fields
    # Keyword arguments win.
    assert Config.from_yaml(text, timeout=9) == dataclasses.replace(config, timeout=9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (single("conectTimeout: 1"), "conectTimeout; did you mean connectTimeout?"),
        (single("", "lockWatchDogTimeout: 1"), "lockWatchDogTimeout; did you mean lockWatchdogTimeout?"),
        (single("xyzzy: 1"), "unknown setting xyzzy"),
        (single("threads: 1"), "threads"),
        (single("timeout: soon"), "timeout must be a whole number"),
        (single("timeout: 1.5"), "timeout must be a whole number"),
        (single("timeout: -1"), "timeout"),
        (single("timeout: [1]"), "timeout must be a single value"),
        (single("keepAlive: perhaps"), "keepAlive must be true or false"),
        (single("database: 99999999999999999999999"), "database"),
        (single("password: ${MISSING}"), "password: MISSING isn't set"),
        (single("password: '{aes}M+TfpT4T'"), "encrypted"),
        (single("nameMapper: !<com.example.Mapper> {}"), "nameMapper.*name_mapper="),
        (single("credentialsResolver: !<com.example.R> {}"), "credentialsResolver.*credential_provider="),
        (single("commandMapper: !<com.example.C> {}"), "commandMapper"),
        (single("nameMapper: !<x.DefaultNameMapper> {}", "nameMapper: !<x.Mapper> {}"), "nameMapper"),
        (single("natMap: {}"), "unknown setting natMap"),
        (tls("sslVerificationMode: PERHAPS"), "sslVerificationMode"),
        (tls("sslProtocols: [SSLv9]"), "sslProtocols"),
        (tls("sslProtocols: []"), "sslProtocols"),
        (tls("sslCiphers: [TLS_NONE_SUCH]"), "TLS settings"),
        (tls("sslTruststore: file:/no/such/file"), "sslTruststore"),
        ("singleServerConfig:\n  database: 1\n", "address is missing"),
        ("singleServerConfig:\n  address: [redis://a, redis://b]\n", "one address"),
        ("singleServerConfig:\n  address: h:6379\n", "URL"),
        ("singleServerConfig: redis://h\n", "singleServerConfig must hold settings"),
        ("clusterServersConfig: [1]\n", "clusterServersConfig must hold settings"),
        ("\n", "the file must hold settings"),
        ("- 1\n", "the file must hold settings"),
        ("? [a]\n: 1\n", "the file must hold settings"),
        ("threads: 1\n", "one of singleServerConfig, clusterServersConfig"),
        ("multiClusterServersConfig: {}\n", "multiClusterServersConfig isn't supported, only"),
        (cluster("", "singleServerConfig:\n  address: redis://h\n"), "one of singleServerConfig.*not several"),
        (several("cluster", "[]"), "nodes is missing"),
        (section("clusterServersConfig", "scanInterval: 1"), "nodeAddresses is missing"),
        (section("masterSlaveServersConfig", "slaveAddresses: [redis://a]"), "masterAddress is missing"),
        (section("sentinelServersConfig", "sentinelAddresses: [redis://a]"), "master_name is missing"),
        (several("replicated", "[redis://a, rediss://b]"), "same scheme"),
        (several("replicated", f"['redis://:{SECRET}@a', redis://b]"), "credentials"),
        (several("replicated", "[unix:///run/r.sock]"), "redis://host:port"),
        (several("replicated", "['redis+cluster://a']"), "redis://host:port"),
        (several("replicated", "['redis://']"), "redis://host:port"),
        (several("replicated", "[{a: b}]"), "single value"),
        (several("replicated", "['a:1']"), "URL"),
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
        (master("redis://h\nscanInterval: 1"), "unknown setting scan"),
        (sentinel("sentinelAddresses: [redis://s]\nsentinelPassword: '{aes}M+TfpT4T'"), "sentinel_password.*PRO"),
    ],
)
def test_what_cannot_be_used(text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MISSING", raising=False)
    with pytest.raises(ConfigError, match=message) as caught:
        Config.from_yaml(text)
    assert SECRET not in str(caught.value)
