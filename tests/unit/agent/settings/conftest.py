"""What tests of settings share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from drumbeat.agent.cli import SETTINGS
from tests.support.command_line import SCRIPT

OTHERS = {"CUDA_VISIBLE_DEVICES", "PYTHON_EXEC"}.union(
    *(each.variables for each in SETTINGS.values())
)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A directory with one script, no settings from outside, and logging as it was."""
    for name in list(os.environ):
        if name.startswith(("DRUMBEAT_", "PET_")) or name in OTHERS:
            monkeypatch.delenv(name)
    (tmp_path / SCRIPT).touch()
    monkeypatch.chdir(tmp_path)
    yield
    structlog.reset_defaults()
