"""What an interrupted iteration left is freed, and what was there before it costs nothing."""

import gc
import multiprocessing
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import active_children
from multiprocessing.pool import Pool
from typing import Any

import pytest

from tests.support.waiting import MS, wait_until_sync
from worker_sdk.inprocess.restart import call


class Thing:
    """Part of a cycle."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(scope="module")
def other_process() -> Iterator[Pool]:
    """One without pytest, whose objects take longer to look through than all else."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield pool
        pool.close()
        pool.join()


def elsewhere(test: Callable[[], None]) -> Callable[[Pool], None]:
    """Run a test in the other process."""

    def test_there(other_process: Pool) -> None:
        other_process.apply(run, (test.__name__,))

    test_there.here = test  # type: ignore[attr-defined]
    return test_there


def run(name: str) -> None:
    gc.disable()
    globals()[name].here()
    gc.unfreeze()


@elsewhere
def test_garbage_is_freed() -> None:
    thing = weakref.ref(Thing())
    call.collect()
    assert thing() is None


@elsewhere
def test_older_objects_are_left_out_until_the_end() -> None:
    older = Thing()
    with call.older_objects_left_out():
        assert gc.get_freeze_count() > 0
        newer = weakref.ref(Thing())
        left = weakref.ref(older)
        del older
        call.collect()
        assert newer() is None
        assert left() is not None
    assert gc.get_freeze_count() == 0
    call.collect()
    assert left() is None


@elsewhere
def test_what_was_garbage_before_is_not_kept() -> None:
    thing = weakref.ref(Thing())
    with call.older_objects_left_out():
        assert thing() is None


@elsewhere
def test_what_the_program_has_left_out_itself_stays_so() -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    with call.older_objects_left_out():
        assert gc.get_freeze_count() == count
    assert gc.get_freeze_count() == count


@elsewhere
def test_an_exception_ends_it_too() -> None:
    with pytest.raises(KeyboardInterrupt), call.older_objects_left_out():
        raise KeyboardInterrupt
    assert gc.get_freeze_count() == 0


@elsewhere
def test_frames_are_emptied_along_a_chain_that_has_no_end() -> None:
    thing = Thing()
    freed = weakref.ref(thing)

    def fail(held: Thing | None) -> None:
        raise ValueError(held)

    try:
        fail(thing)
    except ValueError as error:
        del thing
        error.args = ()
        error.__cause__ = error
        call.free([error])
    assert freed() is None


class Slow:
    """Its second batch takes for ever."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        if index > 1:
            time.sleep(600)
        return index


def a_loader_is_interrupted(
    torch_data: Any, *, is_cycle: bool = False
) -> tuple[list[BaseException], set[int]]:
    """Return what a function that iterates raised, and its loader's processes."""
    data: Any = range(100) if is_cycle else Slow()
    loader: Any = torch_data.DataLoader(data, num_workers=2)
    batches = iter(loader)
    pids = {process.pid for process in batches._workers}

    def iterate() -> None:
        here: list[object] = [batches]
        if is_cycle:
            here.append(here)
        next(batches)
        raise ValueError("interrupted")

    try:
        iterate()
    except ValueError as error:
        return [error], pids
    raise AssertionError


@pytest.mark.slow
@pytest.mark.parametrize("is_cycle", [False, True])
def test_a_loader_whose_processes_do_not_end_is_freed_at_once(
    monkeypatch: pytest.MonkeyPatch, *, is_cycle: bool
) -> None:
    """They are busy with a batch; or the loader is part of a cycle, and can't tell them."""
    torch_data: Any = pytest.importorskip("torch.utils.data")
    monkeypatch.setattr(torch_data._utils, "MP_STATUS_CHECK_INTERVAL", 40.0)
    remains, pids = a_loader_is_interrupted(torch_data, is_cycle=is_cycle)
    begun = time.monotonic()
    call.free(remains)
    assert time.monotonic() - begun < 10_000 * MS, "torch waits so long, for each of them"
    wait_until_sync(lambda: not pids & {each.pid for each in active_children()}, 10_000 * MS)
    assert torch_data._utils.MP_STATUS_CHECK_INTERVAL == 40.0, "of other loaders"
