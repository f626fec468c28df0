"""The benchmarks of timers give out each figure once, and count what goes wrong."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest

from bench.figures import one_of_each
from bench.host import timer_loads


def test_a_run_answers_several_questions_and_each_figure_is_given_out_once() -> None:
    ran: list[str] = []

    def run(side: str) -> dict[str, float | None]:
        ran.append(side)
        return {"a": float(len(ran)), "b": -float(len(ran))}

    runs = one_of_each(run)
    assert [runs.figure("ours", "a"), runs.figure("torchrun", "a")] == [1, 2]
    assert [runs.figure("ours", "a"), runs.figure("ours", "b")] == [3, -1]
    assert [runs.figure("ours", "b"), runs.figure("torchrun", "b")] == [-3, -2]
    assert ran == ["ours", "torchrun", "ours"]
    assert runs.figure("ours", "b") == -4


@pytest.fixture
def _no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_loads, "SUSTAINED_SETTLE_S", 0.0)


@pytest.mark.usefixtures("_no_settling")
def test_a_pair_that_raised_is_counted_and_was_not_reached() -> None:
    calls = 0

    def expires(_after: float, _scope: str, _signum: int | None) -> AbstractContextManager[object]:
        nonlocal calls
        calls += 1
        return _refusing() if calls % 2 else nullcontext()

    figures = timer_loads.sustained(expires, pairs_per_s=1000.0, seconds=0.04)
    assert calls == 40
    assert figures["exceptions"] == 20
    assert 0 < figures["pairs_per_s"] <= 500


@contextmanager
def _refusing() -> Iterator[None]:
    yield
    raise BlockingIOError
