"""The folders of former rounds in an agent's private directory."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from drumbeat.agent.runtime.private_directory import PrivateDirectory
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.workers.output.files import PRIVATE_LOGS, ROUNDS_KEPT_MAX, WorkerOutput

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = ROUNDS_KEPT_MAX + 3


def rounds_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("log_dir", [None, "/dev/null"])
def test_only_the_latest_rounds_are_kept(tmp_path: Path, log_dir: str | None) -> None:
    config = AgentConfig(run_id="r", program=Program("program", "true"), log_dir=log_dir)
    with (
        closing(PrivateDirectory([str(tmp_path)])) as private,
        closing(WorkerOutput(config, private)) as output,
    ):
        for number in range(ROUNDS):
            output.prepare(number, {0: {"RANK": "0", "DRUMBEAT_ROUND": str(number)}})
        if log_dir is None:
            (kept,) = (private.path / PRIVATE_LOGS).iterdir()
            name = "attempt_{}"
        else:
            kept, name = private.path / "errors", "{}"
        expected = {name.format(each) for each in range(ROUNDS - ROUNDS_KEPT_MAX, ROUNDS)}
        assert rounds_in(kept) == expected


def test_the_folders_in_a_users_directory_all_stay(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    config = AgentConfig(run_id="r", program=Program("program", "true"), log_dir=str(logs))
    with (
        closing(PrivateDirectory([str(tmp_path)])) as private,
        closing(WorkerOutput(config, private)) as output,
    ):
        for number in range(ROUNDS):
            output.prepare(number, {0: {"RANK": "0", "DRUMBEAT_ROUND": str(number)}})
    (run,) = logs.iterdir()
    assert len(rounds_in(run)) == ROUNDS
