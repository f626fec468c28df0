"""Torch's timers on the board."""

from pathlib import Path

import pytest

from tests.support.boards import BoardDirectory, leave
from worker_sdk import context

pytestmark = pytest.mark.torch


def test_torch_s_timers_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timer = pytest.importorskip("torch.distributed.elastic.timer")
    from worker_sdk.torch import TimerClient

    leave()
    client = TimerClient()
    timer.configure(client)
    with BoardDirectory(tmp_path / "worker") as board:
        monkeypatch.setenv(context.WORKER_DIR, str(board.path))
        try:
            with timer.expires(after=60, scope="all-reduce"):
                (seen,) = board.slots()
            assert board.is_idle()
            client.acquire("long ago", 5.0)
            (late,) = board.slots()
            client.acquire("long ago", -1)
            assert board.is_idle(), "as torch has it, a negative time releases"
            client.acquire("for ever", float("inf"))
            assert board.is_idle()
            client.release("never acquired")
        finally:
            timer.configure(None)
            leave()
    assert seen.name == "all-reduce"
    assert 59e9 < seen.limit <= 60e9
    assert (late.name, late.limit) == ("long ago", 1000)
