"""What a coordinator no longer looks at goes without being looked at, or is looked at in time."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from drumbeat.coordinator.shell import garbage
from drumbeat.coordinator.shell.garbage import Garbage
from tests.support.waiting import wait_until

BACK_S = 20.0


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _left_out_again() -> Iterator[None]:
    """What lives to the end, as ``pytest_collection_finish`` has it."""
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Garbage]:
    monkeypatch.setattr(garbage, "IDLE_S", 0.05)
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    made = Garbage()
    made.collect_rarely()
    yield made
    gc.callbacks[:] = callbacks
    gc.set_threshold(*thresholds)


def old_cycle() -> weakref.ref[Cycle]:
    """Return a cycle that nothing refers to any more, and that outlived a look at young objects."""
    cycle = Cycle()
    gc.collect(1)
    return weakref.ref(cycle)


@pytest.mark.slow
def test_what_is_old_is_looked_at_only_when_that_is_asked_for(made: Garbage) -> None:
    old = old_cycle()
    gc.collect()
    assert old() is not None
    made.collect()
    assert old() is None


@pytest.mark.slow
def test_what_others_froze_is_left_alone_unless_collections_are_rare() -> None:
    old = old_cycle()
    gc.freeze()
    Garbage().collect()
    assert old() is not None
    gc.unfreeze()
    gc.collect()
    assert old() is None


@pytest.mark.slow
async def test_what_is_old_is_looked_at_when_nobody_is_there(
    made: Garbage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "MANY", 0)
    old, is_idle = old_cycle(), False
    made.collect_when_idle(lambda: is_idle)
    await asyncio.sleep(0.2)
    assert old() is not None
    is_idle = True
    made.collect_when_idle(lambda: is_idle)
    await wait_until(lambda: old() is None, BACK_S)


def test_messages_that_replace_others_are_looked_at_while_they_are_few(made: Garbage) -> None:
    """Python counts what came less what went: here it would not look before the end."""
    kept: list[list[object]] = [[] for _ in range(garbage.MESSAGES_MAX)]
    cycle = Cycle()
    young = weakref.ref(cycle)
    del cycle
    for number in range(garbage.MESSAGES_MAX):
        assert young() is not None
        kept[number] = [kept[number]]
        made.note_message()
    assert young() is None
    assert len(gc.get_objects(0)) < garbage.MESSAGES_MAX


def test_no_collection_falls_into_what_concerns_thousands(made: Garbage) -> None:
    collections = []
    gc.callbacks.append(lambda phase, info: collections.append((phase, info)))
    with made.put_off():
        kept = [[number] for number in range(3 * garbage.YOUNG_MAX)]
    assert not collections
    assert len(kept) > garbage.YOUNG_MAX
    assert len(gc.get_objects(0)) < garbage.YOUNG_MAX
    with made.put_off():
        cycle = Cycle()
    young = weakref.ref(cycle)
    del cycle
    gc.collect(0)
    assert young() is None, "little is not kept"
