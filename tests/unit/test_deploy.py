"""The examples of deploy/ start coordinators and members with options that there are."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest

from drumbeat.command.settings import settings_of
from drumbeat.coordinator.command.cli import serve
from drumbeat.coordinator.config import CoordinatorConfig
from tests.support.etcd import needs_etcd, program

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "drumbeat-coordinator.service"
COMPOSE = DEPLOY / "compose.yaml"


def commands(name: str) -> list[list[str]]:
    """Return the commands of the compose file that start with a name, without it."""
    found = re.findall(r"^    command: (\[.*\])$", COMPOSE.read_text(), re.MULTILINE)
    return [rest for first, *rest in map(json.loads, found) if first == name]


def config_of(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> CoordinatorConfig:
    """Return what `coordinator serve` makes of its arguments. Raises if it refuses them."""
    monkeypatch.delenv("DRUMBEAT_JOURNAL", raising=False)
    config = serve.main(arguments, standalone_mode=False)
    assert isinstance(config, CoordinatorConfig)
    return config


def test_the_unit_starts_a_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(UNIT.read_text())
    command, verb, *arguments = shlex.split(parser["Service"]["ExecStart"])
    assert (Path(command).name, verb) == ("coordinator", "serve")
    assert config_of(arguments, monkeypatch).state_dir == "/var/lib/drumbeat"


def test_the_environment_that_the_unit_names_is_one_of_settings() -> None:
    said = re.findall(r"^#   (DRUMBEAT_\w+)=", UNIT.read_text(), re.MULTILINE)
    known = {f"DRUMBEAT_{name.upper()}" for name in settings_of(CoordinatorConfig)}
    assert said
    assert set(said) <= known


def test_the_compose_file_starts_coordinators_of_one_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configs = [config_of(rest[1:], monkeypatch) for rest in commands("coordinator")]
    assert len(configs) == 2
    assert len({config.journal for config in configs}) == 1
    assert len({config.advertise for config in configs}) == 2


@needs_etcd
def test_the_compose_file_starts_members_with_options_of_etcd() -> None:
    found = commands("etcd")
    assert len(found) == 3
    said = subprocess.run([program("etcd"), "--help"], capture_output=True, text=True, check=True)
    known = set(re.findall(r"^  (--[\w-]+)", said.stdout, re.MULTILINE))
    for arguments in found:
        assert {each for each in arguments if each.startswith("--")} <= known
