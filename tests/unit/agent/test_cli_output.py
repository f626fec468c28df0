"""The options of ``agent join`` for the output of workers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from drumbeat.agent.settings import cli
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.command.settings import settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


TEMPLATE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("DRUMBEAT_") or name == TEMPLATE:
            monkeypatch.delenv(name)
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    yield
    structlog.reset_defaults()


def output(*options: str) -> dict[str, Any]:
    """What was said that is not the default."""
    found: list[AgentConfig] = []

    def run(config: AgentConfig) -> int:
        found.append(config)
        return 0

    assert cli.main(["join", "--standalone", *options, "train.py"], run=run) == 0
    settings = settings_of(AgentConfig)
    return {
        name: value
        for name, declared in settings.items()
        if declared.section == "Output" and (value := getattr(found[0], name)) != declared.default
    }


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    argv = ["join", "--standalone", *options, "train.py"]
    assert cli.main(argv, run=lambda _: pytest.fail("must not run")) == 2
    return capsys.readouterr().err


def test_by_default_nothing_is_redirected() -> None:
    assert output() == {}


def test_all_options_at_once() -> None:
    assert output(
        *("-r", "0:1,1:2", "-t", "3", "--local_ranks_filter", "0,2"),
        *("--duplicate-stdout-filters", "a,,b,c", "--duplicate_stderr_filters=d"),
        *("--log-line-prefix-template", "${rank}>", "--stderr-capture", "off"),
    ) == {
        "redirects": "0:1,1:2",
        "tee": "3",
        "local_ranks_filter": {0, 2},
        "log_line_prefix_template": "${rank}>",
        "duplicate_stdout_filters": ("a,b", "c"),
        "duplicate_stderr_filters": ("d",),
        "stderr_capture": False,
    }


def test_the_environment_of_torchrun_gives_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TEMPLATE, "torch")
    assert output()["log_line_prefix_template"] == "torch"
    monkeypatch.setenv("DRUMBEAT_LOG_LINE_PREFIX_TEMPLATE", "ours")
    assert output()["log_line_prefix_template"] == "ours"
    assert output("--log-line-prefix-template", "given") == {"log_line_prefix_template": "given"}


@pytest.mark.parametrize("option", ["-r", "--redirects", "-t", "--tee"])
@pytest.mark.parametrize("value", ["4", "x", "0:4", "0:1,", "0:1,0:2"])
def test_other_streams_are_refused_with_what_is_allowed(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(capsys, option, value)
    assert "allowed" in error
    assert repr(value) in error


def test_other_ranks_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "allowed is local ranks" in refused(capsys, "--local-ranks-filter", "0-2")


@pytest.mark.parametrize("group", ["drumbeat.logs_specs", "torchrun.logs_specs"])
def test_logs_specs_are_found_by_name(
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "--logs-specs: 'mine' is given" in refused(capsys, "--logs-specs", "mine")
    info = tmp_path / "own-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nmine = absent:Specs\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert output("--logs-specs", "mine") == {"logs_specs": "mine"}
    error = refused(capsys, "--logs-specs", "yours")
    assert "allowed is one of " in error
    assert "mine" in error
