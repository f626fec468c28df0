"""Our commands are ours, whatever else has the names of our packages."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import agent
import drumbeat_commands
from tests.support.layering import PACKAGES


def test_every_package_of_ours_is_found_where_the_commands_are() -> None:
    assert sorted(drumbeat_commands.PACKAGES) == sorted(PACKAGES)
    for name in PACKAGES:
        spec = drumbeat_commands.OwnPackages.find_spec(name)
        assert spec is not None
        assert spec.origin == sys.modules.get(name, __import__(name)).__file__


def test_nothing_else_is_looked_for_there() -> None:
    """A package's own modules are found by Python, from the package on."""
    for name, path in (("tests", None), ("bench", None), ("agent.settings.cli", ["/anywhere"])):
        assert drumbeat_commands.OwnPackages.find_spec(name, path) is None


def test_a_package_that_another_distribution_wrote_into_is_named_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_name: str) -> ModuleType:
        raise ImportError("cannot import name 'cli' from 'agent'")

    monkeypatch.setattr(drumbeat_commands, "import_module", broken)
    monkeypatch.setattr(drumbeat_commands, "_overwriting", lambda _name: ["agent-zoo"])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    assert drumbeat_commands.agent() == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("agent: error: the package 'agent' in ")
    assert "is broken by another one of that name, of agent-zoo: ImportError" in error
    assert hint == ("agent: hint: install drumbeat, or agent-zoo, into an environment of its own")


def test_other_systems_are_told_that_it_takes_linux(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(agent, "launch", raising=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert drumbeat_commands.coordinator() == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error == ("coordinator: error: this system is 'darwin', and drumbeat runs on Linux only")
    assert "Linux machine or container" in hint
    with pytest.raises(ImportError, match="'darwin', allowed is 'linux'"):
        _ = agent.launch


def test_our_own_mistakes_are_not_blamed_on_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_name: str) -> ModuleType:
        raise ImportError("ours")

    monkeypatch.setattr(drumbeat_commands, "import_module", broken)
    monkeypatch.setattr(drumbeat_commands, "_overwriting", lambda _name: [])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    with pytest.raises(ImportError, match="ours"):
        drumbeat_commands.coordinator()
