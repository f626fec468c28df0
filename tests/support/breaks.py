"""Exceptions of cores: what the product survives ends a test, unless the test is about it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from coordinator import isolation

if TYPE_CHECKING:
    from collections.abc import Iterator

_BREAK, _END = isolation.IsolatedRun._break, isolation._end


def _raise(_: object, error: Exception, *__: Any) -> Any:
    raise error


@contextmanager
def loud() -> Iterator[None]:
    """Raise what comes to the border between runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolation.IsolatedRun, "_break", _raise)
        patch.setattr(isolation, "_end", _raise)
        yield


@contextmanager
def contained() -> Iterator[None]:
    """Keep what comes to the border there, as the product does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolation.IsolatedRun, "_break", _BREAK)
        patch.setattr(isolation, "_end", _END)
        yield
