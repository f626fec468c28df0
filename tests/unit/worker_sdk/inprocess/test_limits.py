"""The limits that the agent keeps, as they stand on the board."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import worker_sdk
from tests.support.boards import BoardDirectory, leave
from worker_sdk import context, runtime
from worker_sdk.board import layout
from worker_sdk.inprocess.restart.progress import HARD_SCOPE, HEARTBEAT_SCOPE, BoardLimits

SECOND_NS = 1_000_000_000


@pytest.fixture
def _board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with BoardDirectory(tmp_path / "worker") as board:
        monkeypatch.setenv(context.WORKER_DIR, str(board.path))
        leave()
        yield
        leave()


def open_kinds() -> list[tuple[int, int]]:
    """Return the kind and the limit in seconds of each open slot."""
    words = runtime.start().words
    found = []
    for slot in range(words[layout.SLOTS_USED]):
        if words[layout.slot_word(slot, layout.SLOT_DEADLINE)]:
            limit_ns = words[layout.slot_word(slot, layout.SLOT_LIMIT)]
            kind = words[layout.slot_word(slot, layout.SLOT_KIND)]
            found.append((kind, limit_ns // SECOND_NS))
    return sorted(found)


@pytest.mark.usefixtures("_board")
def test_limits_are_apart_from_the_timers_of_the_user() -> None:
    """Also from one that has the same name."""
    limits = BoardLimits()
    limits.arm(HARD_SCOPE, 90.0, 3.0)
    limits.arm(HEARTBEAT_SCOPE, 30.0)
    worker_sdk.acquire(HARD_SCOPE, after=5)
    limits.arm(HARD_SCOPE, 80.0, 3.0)
    assert open_kinds() == [
        (layout.KIND_TIMER, 5),
        (layout.KIND_HARD_TIMEOUT, 80),
        (layout.KIND_HEARTBEAT, 30),
    ]
    worker_sdk.release(HARD_SCOPE)
    limits.disarm(HEARTBEAT_SCOPE)
    assert open_kinds() == [(layout.KIND_HARD_TIMEOUT, 80)]
    limits.clear()
    assert open_kinds() == []
    limits.disarm(HARD_SCOPE)
