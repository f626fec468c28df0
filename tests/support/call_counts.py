"""How many functions of Python something calls: a cost that no other process changes."""

import sys
from collections.abc import Callable
from types import FrameType


def calls_of(action: Callable[[], object]) -> int:
    """Return how many functions of Python are called."""
    number = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal number
        number += event == "call"

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return number
