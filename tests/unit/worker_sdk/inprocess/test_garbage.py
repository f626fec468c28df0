"""What an interrupted iteration left is freed, and what was there before it costs nothing."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from worker_sdk.inprocess import garbage

if TYPE_CHECKING:
    from collections.abc import Iterator


class Thing:
    """Part of a cycle."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _nothing_left_out() -> Iterator[None]:
    gc.disable()
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.enable()


def test_garbage_is_freed() -> None:
    thing = weakref.ref(Thing())
    garbage.collect()
    assert thing() is None


def test_older_objects_are_left_out_until_the_end() -> None:
    older = Thing()
    with garbage.older_objects_left_out():
        assert gc.get_freeze_count() > 0
        newer = weakref.ref(Thing())
        left = weakref.ref(older)
        del older
        garbage.collect()
        assert newer() is None
        assert left() is not None
    assert gc.get_freeze_count() == 0
    garbage.collect()
    assert left() is None


def test_what_was_garbage_before_is_not_kept() -> None:
    thing = weakref.ref(Thing())
    with garbage.older_objects_left_out():
        assert thing() is None


def test_what_the_program_has_left_out_itself_stays_so() -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    with garbage.older_objects_left_out():
        assert gc.get_freeze_count() == count
    assert gc.get_freeze_count() == count


def test_an_exception_ends_it_too() -> None:
    with pytest.raises(KeyboardInterrupt), garbage.older_objects_left_out():
        raise KeyboardInterrupt
    assert gc.get_freeze_count() == 0
