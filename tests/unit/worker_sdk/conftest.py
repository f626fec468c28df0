"""A board for the process of the tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.boards import BoardDirectory, leave
from worker_sdk import context


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BoardDirectory]:
    """A board that the next call into the SDK will claim."""
    leave()
    with BoardDirectory(tmp_path / "worker") as made:
        monkeypatch.setenv(context.WORKER_DIR, str(made.path))
        yield made
        leave()
