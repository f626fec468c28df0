"""Exceptions of cores: what the product survives ends a test, unless the test is about it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import CoreEvent
from drumbeat.coordinator.core.registry import isolation

_BREAK, _END = isolation.IsolatedRun._break, isolation._end


def _raise(_: object, error: Exception, *__: Any) -> Any:
    raise error


class Break(Exception):
    """What a broken core raises."""


@contextmanager
def broken_core(run: isolation.IsolatedRun) -> Iterator[None]:
    """Let the core of a run change its state with the next event, and then raise."""
    original = run._run.handle

    def handle(event: CoreEvent, *, now: float) -> list[fx.Effect]:
        original(event, now=now)
        raise Break("its state is changed, and nobody knows")

    with contained(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(run._run, "handle", handle)
        yield


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
