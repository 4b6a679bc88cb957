"""Settings from Redisson's YAML files."""

from __future__ import annotations

import io
import logging
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import redis
import redis.asyncio

from pyredisson._settings.config import Config
from pyredisson.errors import ConfigError

SECRET = "hunter2"


def single(settings: str, root: str = "") -> str:
    """A Redisson file with one server and these settings."""
    lines = "\n".join(f"  {line.strip()}" for line in settings.splitlines() if line.strip())
    return f'singleServerConfig:\n  address: "redis://h:7000"\n{lines}\n{root}\n'


# As Redisson 3.x documents it, with what its toYAML writes beside it.
DOCUMENTED = """---
singleServerConfig:
  idleConnectionTimeout: 10000
  connectTimeout: 11000
  timeout: 3500
  retryAttempts: 3
  retryInterval: 1500
  retryDelay: !<org.redisson.config.EqualJitterDelay> {baseDelay: PT1S, maxDelay: PT2S}
  password: null
  subscriptionsPerConnection: 5
  clientName: null
  address: "redis://127.0.0.1:6380"
  subscriptionConnectionMinimumIdleSize: 1
  subscriptionConnectionPoolSize: 50
  connectionMinimumIdleSize: 24
  connectionPoolSize: 65
  database: 2
  dnsMonitoringInterval: 5000
  pingConnectionInterval: 30000
  keepAlive: false
  tcpNoDelay: true
  credentialsResolver: !<org.redisson.client.DefaultCredentialsResolver> {}
  commandMapper: !<org.redisson.config.DefaultCommandMapper> {}
  nameMapper: !<org.redisson.api.DefaultNameMapper> {}
  sslVerificationMode: "STRICT"
threads: 16
nettyThreads: 32
codec: !<org.redisson.codec.Kryo5Codec> {}
transportMode: "NIO"
lockWatchdogTimeout: 20000
fairLockWaitTimeout: 200000
checkLockSyncedSlaves: false
slavesSyncTimeout: 1500
"""


class TestYaml:
    def test_the_documented_file(self, tmp_path: Path) -> None:
        file = tmp_path / "redisson.yaml"
        file.write_text(DOCUMENTED, encoding="utf-8")
        expected = Config(
            host="127.0.0.1",
            port=6380,
            database=2,
            connect_timeout=11.0,
            timeout=3.5,
            retry_attempts=3,
            connection_pool_size=65,
            ping_interval=30.0,
            socket_keepalive=False,
            lock_watchdog_timeout=20.0,
            fair_lock_wait_timeout=200.0,
            check_lock_synced_replicas=False,
            replicas_sync_timeout=1.5,
        )
        assert Config.from_yaml(file) == Config.from_yaml(str(file)) == expected
        assert Config.from_yaml(DOCUMENTED) == Config.from_yaml(io.StringIO(DOCUMENTED)) == expected

    def test_ignored_keys_are_logged_once_at_info(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, logger="pyredisson")
        Config.from_yaml(single("retryInterval: 9\nclientName: me", "threads: 1\nnettyThreads: 2\nexecutor: null"))
        (record,) = caplog.records
        assert (record.name, record.levelno) == ("pyredisson", logging.INFO)
        assert record.getMessage().endswith(": nettyThreads, retryInterval, threads")

    def test_nothing_to_log(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, logger="pyredisson")
        Config.from_yaml(single("timeout: 1000"))
        assert not caplog.records

    def test_fields_win(self) -> None:
        assert Config.from_yaml(single("database: 1\ntimeout: 1000"), database=5).database == 5

    @pytest.mark.parametrize("written", ["0123", "yes", "1e3", "12:30:45", '"null"', "2001-01-01", "'a # b'"])
    def test_a_password_stays_as_written(self, written: str) -> None:
        assert Config.from_yaml(single(f"password: {written}")).password == written.strip("'\"")

    def test_shared_keys_at_the_root(self) -> None:
        root = "username: u\npassword: p\ntcpKeepAlive: false"
        config = Config.from_yaml(single("password: null", root))
        assert (config.username, config.password, config.socket_keepalive) == ("u", "p", False)
        assert Config.from_yaml(single("password: q", root)).password == "q"

    @pytest.mark.parametrize(
        "address", ['["redis://h:7000"]', '"valkey://h:7000"', "redis://h:7000", '"redis://u:p@h:7000"']
    )
    def test_addresses(self, address: str) -> None:
        config = Config.from_yaml(f"singleServerConfig:\n  address: {address}\n")
        assert (config.host, config.port) == ("h", 7000)

    def test_credentials_beside_the_address_win(self) -> None:
        text = 'singleServerConfig:\n  address: "redis://u:p@h"\n  password: q\n'
        config = Config.from_yaml(text)
        assert (config.username, config.password) == ("u", "q")

    def test_the_special_zeros(self) -> None:
        config = Config.from_yaml(single("pingConnectionInterval: 0\nretryAttempts: 0\ndnsMonitoringInterval: -1"))
        assert (config.ping_interval, config.retry_attempts) == (0.0, 0)

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

    def test_a_variable_that_is_not_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("MISSING", raising=False)
        with pytest.raises(ConfigError, match="password: MISSING isn't set"):
            Config.from_yaml(single("password: ${MISSING}"))

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
            (single("password: '{aes}M+TfpT4T'"), "encrypted"),
            (single("nameMapper: !<com.example.Mapper> {}"), "nameMapper.*name_mapper="),
            (single("credentialsResolver: !<com.example.R> {}"), "credentialsResolver.*credential_provider="),
            (single("commandMapper: !<com.example.C> {}"), "commandMapper"),
            (single("nameMapper: !<x.DefaultNameMapper> {}", "nameMapper: !<x.Mapper> {}"), "nameMapper"),
            ("singleServerConfig:\n  database: 1\n", "address is missing"),
            ("singleServerConfig:\n  address: [redis://a, redis://b]\n", "one address"),
            ("singleServerConfig:\n  address: h:6379\n", "URL"),
            ("singleServerConfig: redis://h\n", "singleServerConfig must hold settings"),
            ("\n", "the file must hold settings"),
            ("- 1\n", "the file must hold settings"),
            ("? [a]\n: 1\n", "the file must hold settings"),
        ],
    )
    def test_what_cannot_be_used(self, text: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            Config.from_yaml(text)

    def test_stand_ins_for_java_classes(self) -> None:
        text = single("nameMapper: !<com.example.M> {}\ncredentialsResolver: !<com.example.R> {}")
        provider = redis.UsernamePasswordCredentialProvider("u", "p")
        config = Config.from_yaml(text, name_mapper=str.upper, credential_provider=provider)
        assert (config.name_mapper, config.credential_provider) == (str.upper, provider)

    @pytest.mark.parametrize("line", [f"password: *{SECRET}", f"password: @{SECRET}", f"password: {{{SECRET}", "\x07"])
    def test_broken_yaml_does_not_give_the_password_away(self, line: str) -> None:
        with pytest.raises(ConfigError, match="not valid YAML") as caught:
            Config.from_yaml(single(line, f"password: {SECRET}"))
        assert SECRET not in str(caught.value)
        assert caught.value.__suppress_context__

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            Config.from_yaml(tmp_path / "none.yaml")

    def test_pyredisson_does_not_import_yaml(self) -> None:
        code = "import sys, pyredisson._settings.config; sys.exit('yaml' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], timeout=20, check=False).returncode == 0


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate and its key in one file."""
    folder = tmp_path_factory.mktemp("pem")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=h -days 9"
    subprocess.run([*command.split(), "-keyout", "key", "-out", "crt"], cwd=folder, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_bytes((folder / "crt").read_bytes() + (folder / "key").read_bytes())
    return both


def tls_context(settings: str) -> ssl.SSLContext:
    config = Config.from_yaml(single(settings).replace("redis://", "rediss://"))
    assert config.ssl
    assert config.ssl_context is not None
    return config.ssl_context


class TestYamlTls:
    @pytest.mark.parametrize(
        ("setting", "verify_mode", "check_hostname"),
        [
            ("", ssl.CERT_REQUIRED, True),
            ("sslVerificationMode: STRICT", ssl.CERT_REQUIRED, True),
            ("sslVerificationMode: CA_ONLY", ssl.CERT_REQUIRED, False),
            ("sslVerificationMode: NONE", ssl.CERT_NONE, False),
            ("sslEnableEndpointIdentification: true", ssl.CERT_REQUIRED, True),
            ("sslEnableEndpointIdentification: false", ssl.CERT_NONE, False),
            ("sslVerificationMode: STRICT\nsslEnableEndpointIdentification: false", ssl.CERT_REQUIRED, True),
        ],
    )
    def test_verification(self, setting: str, verify_mode: ssl.VerifyMode, check_hostname: bool) -> None:
        context = tls_context(setting)
        assert (context.verify_mode, context.check_hostname) == (verify_mode, check_hostname)

    @pytest.mark.parametrize("prefix", ["", "file:", "file://"])
    def test_pem_stores(self, pem: Path, prefix: str) -> None:
        context = tls_context(f"sslTruststore: {prefix}{pem}\nsslKeystore: {prefix}{pem}")
        subjects = [authority["subject"] for authority in context.get_ca_certs()]
        assert subjects == [((("commonName", "h"),),)]  # and none of the system's

    def test_protocols_and_ciphers(self) -> None:
        context = tls_context("sslProtocols: [TLSv1.3, TLSv1.2]\nsslCiphers: [ECDHE-RSA-AES128-GCM-SHA256]")
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert "ECDHE-RSA-AES128-GCM-SHA256" in [cipher["name"] for cipher in context.get_ciphers()]

    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            ("sslVerificationMode: PERHAPS", "sslVerificationMode"),
            ("sslProtocols: [SSLv9]", "sslProtocols"),
            ("sslProtocols: []", "sslProtocols"),
            ("sslCiphers: [TLS_NONE_SUCH]", "TLS settings"),
            ("sslTruststore: file:/no/such/file", "sslTruststore"),
        ],
    )
    def test_what_cannot_be_used(self, setting: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            tls_context(setting)

    def test_java_key_stores(self, tmp_path: Path) -> None:
        store = tmp_path / "store.jks"
        store.write_bytes(b"\xfe\xed\xfe\xed\x00\x00\x00\x02")
        with pytest.raises(ConfigError, match="sslTruststore: Java's key stores"):
            tls_context(f"sslTruststore: {store}")

    def test_a_plain_address_needs_no_further_fields(self) -> None:
        assert Config.from_yaml(single("sslTruststore: file:/no/such/file")).ssl_context is None
