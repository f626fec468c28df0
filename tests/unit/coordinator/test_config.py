"""The coordinator's configuration and the rules that tie it together."""

import dataclasses
from typing import Any

import pytest

from drumbeat.command.settings import settings_of
from drumbeat.coordinator.access.certificate_roles import parse_roles
from drumbeat.coordinator.config import CoordinatorConfig, default_state_dir
from drumbeat.coordinator.journal.etcd.address import EtcdAddress, parse_etcd_address
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.serving.process import frontends

OWN_CERTIFICATE = {"tls_cert": "c", "tls_key": "k"}
MUTUAL = {**OWN_CERTIFICATE, "tls_client_ca": "ca"}
ROLES = parse_roles("*=view")
ETCD = parse_etcd_address("etcd://user@head1,head2/prod")


def fields_of(config: CoordinatorConfig) -> list[str]:
    return [violation.field for violation in config.validate()]


def test_defaults_are_sound() -> None:
    assert CoordinatorConfig().validate() == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"host": ""}, "host"),
        ({"host": "a b"}, "host"),
        ({"port": -1}, "port"),
        ({"port": 65536}, "port"),
        ({"port": 29480, "http_port": 29480}, "http_port"),
        ({"state_dir": "state"}, "state_dir"),
        ({"heartbeat_interval": 0.0}, "heartbeat_interval"),
        ({"heartbeat_interval": float("nan"), "lease": 5.0}, "heartbeat_interval"),
        ({"lease": 2.0}, "lease"),
        ({"lease": float("inf")}, "lease"),
        ({"lease": float("nan")}, "lease"),
        ({"log_format": "xml"}, "log_format"),
        ({**MUTUAL, "tls_cert": ""}, "tls_cert"),
        ({**MUTUAL, "tls_roles": "admins"}, "tls_roles"),
        ({"journal": "redis://head"}, "journal"),
        ({"journal": ETCD, "leader_ttl": 1.0}, "leader_ttl"),
        ({"journal": ETCD, "leader_ttl": 61.0}, "leader_ttl"),
        ({"journal": ETCD, "once": True}, "once"),
        ({"journal": ETCD, "advertise": "head:70000"}, "advertise"),
        ({"journal": ETCD, "advertise": ""}, "advertise"),
        ({"journal": ETCD, "journal_cert": "c", "journal_key": "k"}, "journal_cert"),
        ({"advertise": "head"}, "advertise"),
        ({"journal_ca": "ca"}, "journal_ca"),
        ({"otlp_endpoint": "head:4317"}, "otlp_endpoint"),
        ({"otlp_endpoint": "http://"}, "otlp_endpoint"),
        ({"otlp_endpoint": "http://user:secret@head"}, "otlp_endpoint"),
    ],
)
def test_a_broken_rule_names_its_field(changes: dict[str, Any], field: str) -> None:
    assert field in fields_of(CoordinatorConfig(**changes))


def test_etcd_is_reached_with_the_files_that_are_named_beside_it() -> None:
    config = CoordinatorConfig(
        journal=ETCD, journal_password_file="p", journal_ca="ca", advertise="head1"
    )
    assert config.validate() == []
    assert config.etcd is not None
    assert (config.etcd.endpoints, config.etcd.prefix) == (ETCD.endpoints, "prod")
    assert (config.etcd.password_file, config.etcd.ca_file) == ("p", "ca")
    assert CoordinatorConfig().etcd is None


def test_a_collector_is_where_its_address_says_or_at_the_usual_port() -> None:
    parse = settings_of(CoordinatorConfig)["otlp_endpoint"].kind.parse
    assert parse("http://head") == "http://head:4317"
    assert parse("HTTPS://[::1]:99/") == "https://[::1]:99"
    with pytest.raises(ValueError, match=r"allowed is http://HOST\[:PORT\], or https:// for TLS"):
        parse("grpc://head")


def test_all_violations_are_returned_at_once() -> None:
    config = CoordinatorConfig(tls_cert="c", port=70000, lease=1.5)
    assert fields_of(config) == ["port", "tls_cert", "lease"]


def test_lease_is_longer_than_two_intervals() -> None:
    assert fields_of(CoordinatorConfig(heartbeat_interval=2.5, lease=5.0)) == ["lease"]
    assert fields_of(CoordinatorConfig(heartbeat_interval=2.5, lease=5.01)) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "head", "127.0.0.1"])
@pytest.mark.parametrize("insecure", [False, True])
def test_any_address_may_be_listened_on(host: str, insecure: bool) -> None:
    assert CoordinatorConfig(host=host, insecure=insecure).validate() == []


@pytest.mark.parametrize("given", [OWN_CERTIFICATE, MUTUAL, {**MUTUAL, "tls_roles": ROLES}])
def test_a_pki_of_the_operator_is_given_whole_and_never_with_insecure(
    given: dict[str, Any],
) -> None:
    assert CoordinatorConfig(**given).validate() == []
    refused = CoordinatorConfig(**given, insecure=True)
    assert fields_of(refused) == list(given)
    assert "beside --insecure" in str(refused.validate()[0])


@pytest.mark.parametrize(
    ("given", "field", "needed"),
    [
        ({"tls_cert": "c"}, "tls_cert", "--tls-key"),
        ({"tls_key": "k"}, "tls_key", "--tls-cert"),
        ({"tls_client_ca": "ca"}, "tls_client_ca", "--tls-cert"),
        ({**OWN_CERTIFICATE, "tls_roles": ROLES}, "tls_roles", "--tls-client-ca"),
    ],
)
def test_a_part_of_a_pki_names_what_it_needs(
    given: dict[str, Any], field: str, needed: str
) -> None:
    (violation,) = CoordinatorConfig(**given).validate()
    assert violation.field == field
    assert violation.allowed == f"this only together with {needed}"


def test_a_record_fits_a_message_and_holds_its_own() -> None:
    limits = Limits()
    assert limits.failure_message_bytes_max < limits.failure_record_bytes_max
    assert limits.failure_record_bytes_max < limits.message_bytes_max
    assert limits.failure_record_bytes_max < limits.failure_queue_bytes_max


@pytest.mark.parametrize(
    ("port", "state_home", "path"),
    [
        (29400, "", "/home/u/.local/state/drumbeat/coordinator-29400"),
        (1, "/state/", "/state/drumbeat/coordinator-1"),
        (1, "relative", "/home/u/.local/state/drumbeat/coordinator-1"),
        (0, "/state", None),
    ],
)
def test_state_directory_follows_port_and_home(port: int, state_home: str, path: str) -> None:
    assert default_state_dir(port, state_home=state_home, home="/home/u") == path


def test_configuration_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        CoordinatorConfig().port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("cores", "journal", "wanted"),
    [(2, None, 0), (2, ETCD, 1), (4, None, 1), (8, ETCD, 2), (96, None, 8)],
)
def test_front_ends_by_cores_and_one_at_least_on_etcd(
    cores: int, journal: EtcdAddress | None, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(cores)))
    config = CoordinatorConfig(journal=journal)
    assert frontends(config) == wanted
    assert frontends(dataclasses.replace(config, frontends=0)) == 0
