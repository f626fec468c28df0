"""Where agents keep what is theirs."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)
