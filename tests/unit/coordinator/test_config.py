"""The coordinator's configuration and the rules that tie it together."""

import dataclasses
from typing import Any

import pytest

from coordinator.config import CoordinatorConfig, Limits, default_state_dir, is_loopback


def fields_of(config: CoordinatorConfig) -> list[str]:
    return [violation.field for violation in config.validate()]


def test_defaults_are_sound() -> None:
    assert CoordinatorConfig().validate() == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"host": ""}, "host"),
        ({"host": "a b"}, "host"),
        ({"host": "0.0.0.0"}, "host"),
        ({"port": -1}, "port"),
        ({"port": 65536}, "port"),
        ({"state_dir": "state"}, "state_dir"),
        ({"heartbeat_interval": 0.0}, "heartbeat_interval"),
        ({"heartbeat_interval": float("nan"), "lease": 5.0}, "heartbeat_interval"),
        ({"lease": 2.0}, "lease"),
        ({"lease": float("inf")}, "lease"),
        ({"lease": float("nan")}, "lease"),
        ({"log_format": "xml"}, "log_format"),
    ],
)
def test_a_broken_rule_names_its_field(changes: dict[str, Any], field: str) -> None:
    assert field in fields_of(CoordinatorConfig(**changes))


def test_all_violations_are_returned_at_once() -> None:
    config = CoordinatorConfig(host="0.0.0.0", port=70000, lease=1.5)
    assert fields_of(config) == ["port", "host", "lease"]


def test_lease_is_longer_than_two_intervals() -> None:
    assert fields_of(CoordinatorConfig(heartbeat_interval=2.5, lease=5.0)) == ["lease"]
    assert fields_of(CoordinatorConfig(heartbeat_interval=2.5, lease=5.01)) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "head", "localhost.example.org"])
def test_an_open_address_needs_insecure(host: str) -> None:
    (violation,) = CoordinatorConfig(host=host).validate()
    assert "authentication does not exist yet" in violation.allowed
    assert "--insecure lets everyone" in violation.allowed
    assert CoordinatorConfig(host=host, insecure=True).validate() == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.255.0.3", "::1", "localhost"])
def test_a_loopback_address_needs_nothing(host: str) -> None:
    assert is_loopback(host)
    assert CoordinatorConfig(host=host).validate() == []


@pytest.mark.parametrize("host", ["128.0.0.1", "::2", "127.0.0.1.example.org", "LOCALHOST2", ""])
def test_nothing_else_counts_as_loopback(host: str) -> None:
    assert not is_loopback(host)


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
