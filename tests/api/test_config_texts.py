"""Settings from texts: addresses as URLs, with TLS, user names and passwords; and Redisson's YAML files."""

import dataclasses
import io
import logging
import shutil
import ssl
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from pyredisson._settings.address import Address, AddressMap
from pyredisson._settings.config import Config
from pyredisson.errors import ConfigError

from .test_config_fields import BY_CA, CHECKED, SECRET, UNCHECKED, checks

FOR_SENTINELS = "sentinel_ssl_cert_reqs=required&sentinel_ssl_check_hostname=true"
FILES = Path(__file__).parent / "redisson_files"
"""They were written by the `toYAML` of those versions of Redisson."""
SET_IN_EACH_FILE: dict[str, Any] = {"username": "u", "password": "p", "client_name": "me", "timeout": 2.5}
SET_IN_EACH_FILE |= {"connect_timeout": 9.0, "retry_attempts": 3, "ping_interval": 20.0, "connection_pool_size": 32}
SET_IN_EACH_FILE |= {"socket_keepalive": False, "lock_watchdog_timeout": 20.0, "check_lock_synced_replicas": False}
SET_IN_EACH_FILE |= {"replicas_sync_timeout": 1.5}
EXPECTED = {
    "single": "redis://h1:7000/3",
    "cluster": "redis+cluster://h1:7000,h2:7001",
    "replicated": "redis+replicated://h1:7000,h2:7001/3",
    "master_slave": "redis+replicated://h1:7000,h2:7001/3",
    "sentinel": "redis+sentinel://s1:26379,s2:26380/mymaster/3?sentinel_username=su&sentinel_password=sp",
}


def section(name: str, first: str, settings: str = "", root: str = "") -> str:
    """A Redisson file with these settings in a section, and others beside it."""
    inside = f"{first}\n{settings}"
    return f"{name}:\n{textwrap.indent(inside.strip(), '  ')}\n{root}\n"


def several(kind: str, addresses: str, settings: str = "", root: str = "") -> str:
    return section(f"{kind}ServersConfig", f"nodeAddresses: {addresses}", settings, root)


def master(address: str) -> str:
    return section("masterSlaveServersConfig", f"masterAddress: {address}")


cluster = partial(several, "cluster", '["redis://h1:7000", "redis://h2:7001"]')
sentinel = partial(section, "sentinelServersConfig", "masterName: m")
single = partial(section, "singleServerConfig", 'address: "redis://h:7000"')


def read(text: str) -> Config:
    """From a URL, or a file."""
    return Config.from_yaml(text) if "\n" in text else Config.of(text)


def nodes_at(topology: str, *nodes: Any, **fields: Any) -> dict[str, Any]:
    return {"topology": topology, "nodes": nodes, **fields}


cluster_at, replicated_at = partial(nodes_at, "cluster"), partial(nodes_at, "replicated")
sentinels_at = partial(nodes_at, "sentinel", master_name="m")


@pytest.mark.parametrize(
    ("url", "fields"),
    [
        *(("redis://", {}), ("redis://h", {"host": "h"}), ("valkey://h:1", {"host": "h", "port": 1})),
        ("redis://h:7000/5", {"host": "h", "port": 7000, "database": 5}),
        *(("redis://[::1]:7000", {"host": "::1", "port": 7000}), ("redis://h/?db=4", {"host": "h", "database": 4})),
        ("redis://:p%40%2F%23@h", {"host": "h", "password": "p@/#"}),
        ("redis://us%3Aer:p@h", {"host": "h", "username": "us:er", "password": "p"}),
        ("unix:///run/redis.sock", {"path": "/run/redis.sock"}),
        ("unix://u:p@/r.sock?db=2", {"path": "/r.sock", "database": 2, "username": "u", "password": "p"}),
        ("unix:///r.sock?password=p%25", {"path": "/r.sock", "password": "p%"}),
        ("redis://?socket_timeout=2.5&socket_connect_timeout=1", {"timeout": 2.5, "connect_timeout": 1.0}),
        ("redis://?client_name=me&max_connections=3", {"client_name": "me", "connection_pool_size": 3}),
        ("redis://?socket_keepalive=no", {"socket_keepalive": False}),
        ("redis://?decode_responses=True&protocol=3&health_check_interval=9&retry_on_timeout=1&encoding=x", {}),
        ("redis+cluster://h1:7000,h2:7001", cluster_at(("h1", 7000), ("h2", 7001))),
        ("redis+cluster://h1,[::1],10.0.0.1:7/", cluster_at(("h1", 6379), ("::1", 6379), ("10.0.0.1", 7))),
        ("redis+cluster://[fe80::1%25eth0]:7000", cluster_at(("fe80::1%eth0", 7000))),
        *(("redis+cluster://h/0?db=0", cluster_at(("h", 6379))), ("redis+cluster://@h", cluster_at(("h", 6379)))),
        ("valkey+cluster://h", cluster_at(("h", 6379))),
        ("redis+cluster://u%3Aser:p%40%2F%23%2C@h", cluster_at(("h", 6379), username="u:ser", password="p@/#,")),
        ("redis+cluster://:p,q@h1,h2", cluster_at(("h1", 6379), ("h2", 6379), password="p,q")),
        ("redis+cluster://h?socket_timeout=2&client_name=a", cluster_at(("h", 6379), timeout=2, client_name="a")),
        ("redis+cluster://h?username=u&password=p@q", cluster_at(("h", 6379), username="u", password="p@q")),
        ("redis+replicated://:p@h1,h2:1/3", replicated_at(("h1", 6379), ("h2", 1), database=3, password="p")),
        ("redis+sentinel://s1,s2:5/m", sentinels_at(("s1", 26379), ("s2", 5))),
        ("redis+sentinel://s1/my%2Fm%40/2", sentinels_at(("s1", 26379), master_name="my/m@", database=2)),
        ("redis+sentinel://u:p@s1/m/?db=4", sentinels_at(("s1", 26379), database=4, username="u", password="p")),
        (
            "redis+sentinel://s1/m?sentinel_username=a%26b&sentinel_password=c%25d@e+f&sentinel_ssl=no",
            sentinels_at(("s1", 26379), sentinel_username="a&b", sentinel_password="c%d@e f"),
        ),
    ],
)
def test_urls(url: str, fields: dict[str, Any]) -> None:
    assert Config.of(url) == Config(**fields)


BAD_URLS = """
    localhost  http://h  REDIS://h  redis://:{0}@h:port  redis://:{0}#@h  redis://:{0}/x@h  redis://u:{0}?@h
    redis://:{0}@h/db  redis://:{0}@h/1/2x  redis://:{0}@h/1#x  redis://:{0}@[::1  redis://:{0}@h?db=x
    redis://:{0}@h?socket_timeout=soon  redis://:{0}@h?frobnicate=1  redis://:{0}@h:99999  redis://:{0}@h:0
    redis://:1?{0}@h  redis://:1?{0}=x@h  unix://:{0}@run/redis.sock  unix://:{0}@
"""
BAD_RESTS = """
    :{0}@h:port/m  :{0}#@h/m  :{0}/x@h/m  u:{0}?@h/m  :{0}@h/m/x/y  :{0}@[::1/m  :{0}@h/m?db=x
    :{0}@h/m?socket_timeout=soon  :{0}@h/m#x  :{0}@h/m?frobnicate=1  :{0}@h:0/m  :{0}@h1,,h2/m  :{0}@/m  :{0}/m
    u:1?{0}@h/m  u:1?{0}=x@h/m  a:{0}@h1,b:{0}@h2/m  a:{0}@b@h/m  :{0}[@h/m
"""
SCHEMES = ("redis+cluster", "rediss+cluster", "redis+sentinel", "redis+replicated")


@pytest.mark.parametrize(
    "url",
    ["", *BAD_URLS.format(SECRET).split()]
    + [f"{scheme}://{rest}" for scheme in SCHEMES for rest in BAD_RESTS.format(SECRET).split()],
)
def test_bad_urls_do_not_give_the_password_away(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.of(url)
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


class TestYaml:
    def test_files_and_texts(self) -> None:
        file = FILES / "single-3.27.2.yaml"
        text = file.read_text("utf-8")
        for source in (file, str(file), text, io.StringIO(text)):
            assert Config.from_yaml(source) == Config.of(EXPECTED["single"], **SET_IN_EACH_FILE)
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
        for name, value in (("REDIS_DB", "3"), ("redis.password", SECRET), ("EMPTY", "")):
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("MISSING", raising=False)
        settings = 'address: "redis://${MISSING:-h}:${MISSING:-7000}"\ndatabase: ${REDIS_DB:-1}\nusername: ${EMPTY}\n'
        settings += "password: ${redis.password}\nclientName: ${MISSING:-}\nretryInterval: ${MISSING}"
        config = Config.from_yaml(section("singleServerConfig", settings))
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
        assert (SECRET in str(caught.value), caught.value.__suppress_context__) == (False, True)

    def test_another_encoding(self, tmp_path: Path) -> None:
        file = tmp_path / "redisson.yaml"
        file.write_text(single("clientName: me  # für alle"), "latin-1")
        with pytest.raises(ConfigError, match="UTF-8") as caught:
            Config.from_yaml(file)
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


OVER_TLS = ("rediss", "rediss+cluster", "rediss+replicated", "valkeys+cluster")


def tls(settings: str) -> str:
    return single(settings).replace("redis://", "rediss://")


class TestTls:
    @pytest.mark.parametrize(
        ("text", "of_servers", "of_sentinels"),
        [
            *(("redis://h", None, None), ("rediss://h:6380", CHECKED, None), ("rediss+sentinel://s/m", CHECKED, None)),
            ("rediss://h?ssl_check_hostname=false", BY_CA, None),
            *((f"{scheme}://h?ssl_cert_reqs=none", UNCHECKED, None) for scheme in OVER_TLS),
            ("rediss://h?ssl_cert_reqs=CERT_REQUIRED", CHECKED, None),
            ("redis+sentinel://s/m?sentinel_ssl=true&sentinel_ssl_check_hostname=false", None, BY_CA),
            *((f"redis+sentinel://s/m?sentinel_ssl={yes}", None, CHECKED) for yes in ("True", "1", "yes")),
            # The options are for both, unless the Sentinels have their own.
            ("redis+sentinel://s/m?sentinel_ssl=true&ssl_cert_reqs=none", None, UNCHECKED),
            (f"rediss+sentinel://s/m?sentinel_ssl=1&ssl_cert_reqs=none&{FOR_SENTINELS}", UNCHECKED, CHECKED),
            *((tls(""), CHECKED, None), (tls("sslVerificationMode: STRICT"), CHECKED, None)),
            *((tls("sslVerificationMode: CA_ONLY"), BY_CA, None), (tls("sslVerificationMode: NONE"), UNCHECKED, None)),
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
    def test_what_is_verified(self, text: str, of_servers: Any, of_sentinels: Any) -> None:
        config = read(text)
        assert (checks(config.ssl_context), checks(config.sentinel_ssl_context)) == (of_servers, of_sentinels)
        assert (config.ssl, config.sentinel_ssl) == (of_servers is not None, of_sentinels is not None)

    def test_what_nothing_verifies_is_said(self, caplog: pytest.LogCaptureFixture) -> None:
        """Redisson takes such a file, too, and talks in the clear."""
        read(single("sslTruststore: ca.pem\nsslVerificationMode: STRICT"))
        assert "sslTruststore: without effect" in caplog.text

    @pytest.mark.parametrize("prefix", ["", "file:", "file://"])
    def test_key_stores(self, pem: Path, tmp_path: Path, prefix: str) -> None:
        context: Any = Config.from_yaml(tls(f"sslTruststore: {prefix}{pem}\nsslKeystore: {prefix}{pem}")).ssl_context
        subjects = [authority["subject"] for authority in context.get_ca_certs()]
        assert subjects == [((("commonName", "h"),),)]  # and none of the system's
        store = tmp_path / "store.jks"
        store.write_bytes(b"\xfe\xed\xfe\xed\x00\x00\x00\x02")
        with pytest.raises(ConfigError, match="sslTruststore: Java's key stores"):
            Config.from_yaml(tls(f"sslTruststore: {prefix}{store}"))

    def test_protocols_and_ciphers(self) -> None:
        context: Any = Config.of("rediss://h:6380?ssl_min_version=772").ssl_context
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
        settings = "sslProtocols: [TLSv1.3, TLSv1.2]\nsslCiphers: [ECDHE-RSA-AES128-GCM-SHA256]"
        context = Config.from_yaml(tls(settings)).ssl_context
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert "ECDHE-RSA-AES128-GCM-SHA256" in [cipher["name"] for cipher in context.get_ciphers()]


@pytest.mark.parametrize("version", ["3.27.2", "4.7.0"])
@pytest.mark.parametrize("mode", EXPECTED)
def test_files_of_redisson(mode: str, version: str, caplog: pytest.LogCaptureFixture) -> None:
    """What has no meaning here is logged once."""
    caplog.set_level(logging.INFO, logger="pyredisson")
    retries = {"retry_attempts": 4} if version == "4.7.0" else {}  # each writes its own default
    refresh = {} if mode in ("single", "master_slave") else {"topology_refresh_interval": 2}
    config = Config.from_yaml(FILES / f"{mode}-{version}.yaml")
    assert config == Config.of(EXPECTED[mode], **{**SET_IN_EACH_FILE, **retries, **refresh})
    (record,) = caplog.records
    ignored = set(record.getMessage().partition(": ")[2].split(", "))
    assert {"threads", "retryDelay" if retries else "retryInterval", "subscriptionTimeout"} <= ignored
    assert ("readMode" in ignored) == (mode != "single")
    assert not ignored & {"scanInterval", "natMapper", "checkLockSyncedSlaves", "nodeAddresses"}


ROOT = "username: u\npassword: p\ntcpKeepAlive: false"
SLAVES = "slaveAddresses:\n- redis://a:2\n- redis://[::1]:3"
SENTINELS = "sentinelAddresses: ['redis://su:sp@a', 'redis://su:sp@b']"
OF_SENTINELS = {"sentinel_username": "su", "sentinel_password": "sp"}
PORTS = {Address("172.17.0.2", 7000): Address("10.0.0.1", 17000)}
MODES = ("auto", "on", "off")
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
        (master(f"redis://m:1\n{SLAVES}"), {"nodes": (("m", 1), ("a", 2), ("::1", 3))}),
        (sentinel("sentinelAddresses: redis://s1"), {"nodes": (("s1", 26379),)}),
        (several("replicated", "valkey://h1"), {"nodes": (("h1", 6379),)}),
        (several("cluster", "['redis://u:p@a', 'redis://u:p@b']"), {"username": "u", "password": "p"}),
        (sentinel(f"{SENTINELS}\nusername: u\npassword: p"), {"username": "u", "password": "p"} | OF_SENTINELS),
        (sentinel(f"{SENTINELS}\nsentinelPassword: q"), {"sentinel_password": "q"}),
        *((cluster(f"shardedSubscriptionMode: {each.upper()}"), {"sharded_pubsub": each}) for each in MODES),
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


SEVERAL = r"host:port,host:port"
BAD_TLS = ["cert_reqs=perhaps", "ca_certs=/no/such/file", "keyfile=/no/such/file", "ciphers=none-such", "min_version=1"]
UNUSABLE_URLS: list[tuple[str, list[str]]] = [
    ("frobnicate", ["redis://h?frobnicate=1", "redis+cluster://h?frobnicate=1"]),
    ("sentinel_frobnicate", ["redis+sentinel://h/m?sentinel_frobnicate=1"]),
    ("TLS", [f"rediss://h?ssl_{option}" for option in BAD_TLS]),
    ("TLS.*/no/ca.pem", ["rediss://h?ssl_ca_certs=/no/ca.pem"]),
    ("TLS", ["redis+sentinel://h/m?sentinel_ssl=1&sentinel_ssl_ca_certs=/no/such/file"]),
    ("OCSP", ["rediss://h?ssl_validate_ocsp=True", "rediss://h?ssl_validate_ocsp_stapled=True"]),
    (rf"redis\+cluster://user:password@{SEVERAL}", [f"redis+cluster://{nodes}" for nodes in ("", "/", ",")]),
    (rf"{SEVERAL}/master", [f"redis+sentinel://s1{master}" for master in ("", "/", "/m/x", "/m/1/2")]),
    ("database must be 0 in a cluster", ["redis+cluster://h/5", "redis+cluster://h?db=5"]),
    ("host, port and path", [f"redis+cluster://h?{option}" for option in ("host=x", "port=1", "path=x")]),
    ("sentinel_ssl", ["redis+cluster://h?sentinel_ssl=true"]),
    ("sentinel_ssl must be true or false", [f"redis+sentinel://h/m?sentinel_ssl{value}" for value in ("=perhaps", "")]),
    ("ssl_ca_certs: needs rediss://", ["redis://h?ssl_ca_certs=x", "redis+sentinel://h/m?ssl_ca_certs=x"]),
    ("sentinel_ssl_ca_certs: needs sentinel_ssl=true", ["redis+sentinel://h/m?sentinel_ssl_ca_certs=x"]),
    ("URL", ["redis+ring://h", "unix+cluster:///run/r.sock"]),
]
REDIS_URLS = ("[unix:///run/r.sock]", "['redis+cluster://a']", "['redis://']")
UNUSABLE_FILES: list[tuple[str, list[str]]] = [
    ("timeout must be a whole number", [single("timeout: soon"), single("timeout: 1.5")]),
    ("sslProtocols", [tls("sslProtocols: [SSLv9]"), tls("sslProtocols: []")]),
    ("URL", ["singleServerConfig:\n  address: h:6379\n", several("replicated", "['a:1']")]),
    ("the file must hold settings", ["\n", "- 1\n", "? [a]\n: 1\n"]),
    ("redis://host:port", [several("replicated", url) for url in REDIS_URLS]),
    ("unknown setting natMap", [single("natMap: {}"), cluster("", "natMap: {}")]),
]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, message) for message, texts in [*UNUSABLE_URLS, *UNUSABLE_FILES] for text in texts),
        (single("conectTimeout: 1"), "conectTimeout; did you mean connectTimeout?"),
        (single("", "lockWatchDogTimeout: 1"), "lockWatchDogTimeout; did you mean lockWatchdogTimeout?"),
        *((single("xyzzy: 1"), "unknown setting xyzzy"), (single("threads: 1"), "threads")),
        (single("timeout: [1]"), "timeout must be a single value"),
        (single("keepAlive: perhaps"), "keepAlive must be true or false"),
        (single("password: ${MISSING}"), "password: MISSING isn't set"),
        (single("password: '{aes}M+TfpT4T'"), "encrypted"),
        (single("nameMapper: !<com.example.Mapper> {}"), "nameMapper.*name_mapper="),
        (single("credentialsResolver: !<com.example.R> {}"), "credentialsResolver.*credential_provider="),
        (single("commandMapper: !<com.example.C> {}"), "commandMapper"),
        (single("nameMapper: !<x.DefaultNameMapper> {}", "nameMapper: !<x.Mapper> {}"), "nameMapper"),
        (tls("sslVerificationMode: PERHAPS"), "sslVerificationMode"),
        (tls("sslCiphers: [TLS_NONE_SUCH]"), "TLS settings"),
        (tls("sslTruststore: file:/no/such/file"), "sslTruststore"),
        ("singleServerConfig:\n  database: 1\n", "address is missing"),
        ("singleServerConfig:\n  address: [redis://a, redis://b]\n", "one address"),
        ("singleServerConfig: redis://h\n", "singleServerConfig must hold settings"),
        ("clusterServersConfig: [1]\n", "clusterServersConfig must hold settings"),
        ("threads: 1\n", "one of singleServerConfig, clusterServersConfig"),
        ("multiClusterServersConfig: {}\n", "multiClusterServersConfig isn't supported, only"),
        (cluster("", "singleServerConfig:\n  address: redis://h\n"), "one of singleServerConfig.*not several"),
        (section("clusterServersConfig", "scanInterval: 1"), "nodeAddresses is missing"),
        (section("masterSlaveServersConfig", "slaveAddresses: [redis://a]"), "masterAddress is missing"),
        (several("replicated", "[redis://a, rediss://b]"), "same scheme"),
        (several("replicated", f"['redis://:{SECRET}@a', redis://b]"), "credentials"),
        (several("replicated", "[{a: b}]"), "single value"),
        (cluster("natMapper: !<com.example.Nat> {}"), "natMapper.*address_mapper="),
        (cluster("natMapper: !<x.HostNatMapper> {hostMap: {}}"), "hostMap; did you mean hostsMap"),
        (cluster("natMap: {a: b}"), "natMap: an address"),
        (cluster("natMapper: !<x.HostPortNatMapper> {hostsPortMap: {a: b}}"), "hostsPortMap: an address"),
        (cluster("shardedSubscriptionMode: auto"), "AUTO, ON or OFF"),
        (cluster("masterName: m"), "unknown setting masterName"),
        (cluster("connectionPoolSize: 3"), "did you mean .*ConnectionPoolSize"),
        (cluster("", "scanInterval: 1"), "unknown setting scanInterval"),
        (master("redis://h\nscanInterval: 1"), "unknown setting scan"),
        (sentinel("sentinelAddresses: [redis://s]\nsentinelPassword: '{aes}M+TfpT4T'"), "sentinel_password.*PRO"),
    ],
)
def test_what_cannot_be_used(text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MISSING", raising=False)
    with pytest.raises(ConfigError, match=message) as caught:
        read(text)
    assert SECRET not in str(caught.value)
