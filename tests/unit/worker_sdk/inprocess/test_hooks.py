"""Composition, and the hooks that are ready to use."""

import threading
import time
from typing import Any

import pytest

from worker_sdk import inprocess
from worker_sdk.inprocess import Compose, State
from worker_sdk.inprocess.arguments import call_with

STATE = State(rank=1, world_size=4, active_rank=1, active_world_size=3)


class Add:
    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, value: int) -> int:
        return value * 10 + self.number


class Other(Add):
    pass


def test_the_last_is_called_first_and_results_are_handed_on() -> None:
    assert Compose(Add(1), Add(2), Add(3))(0) == 321
    assert Compose(Add(1), Compose(Add(2), Add(3)))(0) == 321
    swapped: Any = Compose(lambda a, b: a - b, lambda a, b: (b, a))
    assert swapped(1, 5) == 4, "several values"


def test_what_returns_nothing_hands_on_what_it_was_given() -> None:
    seen: list[int] = []
    parts: list[Any] = [Add(1), seen.append, Add(2)]
    assert Compose(*parts)(0) == 21
    assert seen == [2]


def test_plain_functions_compose() -> None:
    def double(value: int) -> int:
        return 2 * value

    def increase(value: int) -> int:
        return value + 1

    assert Compose(double, increase)(3) == 8


def test_it_is_of_the_nearest_common_class() -> None:
    assert type(Compose(Add(1), Other(2))).__mro__[1:3] == (Compose, Add)
    assert isinstance(Compose(Other(1), Other(2)), Other)
    assert not isinstance(Compose(Add(1), len), Add)
    hooks = Compose(inprocess.ThreadedFinalize(1, print), inprocess.ThreadedFinalize(1, print))
    assert isinstance(hooks, inprocess.Finalize)
    ranks = Compose(inprocess.ActivateAllRanks(), inprocess.ShiftRanks())
    assert isinstance(ranks, inprocess.RankAssignment)
    assert not isinstance(ranks, inprocess.RankFilter)


def test_each_part_gets_what_its_signature_takes() -> None:
    seen: list[object] = []
    error = ValueError()

    def both(state: State, exception: BaseException | None) -> None:
        seen.append((state, exception))

    def one(state: State) -> State:
        seen.append(state)
        return state

    def none() -> None:
        seen.append(None)

    parts: list[Any] = [none, one, both]
    assert Compose(*parts)(STATE, error) is STATE
    assert seen == [(STATE, error), STATE, None]


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda: (), 0),
        (lambda a: (a,), 1),
        (lambda a, b: (a, b), 2),
        (lambda a, b=0: (a, b), 2),
        (lambda *a: a, 2),
        (lambda a, *, c=0: (a,), 1),  # noqa: ARG005
    ],
)
def test_a_call_gives_as_much_as_is_taken(function: object, given: int) -> None:
    assert call_with(function, 1, 2) == (1, 2)[:given]  # type: ignore[arg-type]


def test_composition_refuses_nothing_and_classes() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Compose()
    with pytest.raises(TypeError, match="not the class Add"):
        Compose(Add)


def test_a_threaded_finalize_gives_its_arguments_and_passes_errors() -> None:
    seen: list[object] = []

    def clean(*args: object, **kwargs: object) -> None:
        seen.append((args, kwargs, threading.current_thread() is threading.main_thread()))

    assert inprocess.ThreadedFinalize(20, clean, (1,), {"b": 2})(STATE) is STATE
    assert seen == [((1,), {"b": 2}, False)]

    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        inprocess.ThreadedFinalize(20, fail)(STATE)


def test_a_threaded_finalize_waits_no_longer_than_it_says() -> None:
    done = threading.Event()
    began = time.monotonic()
    with pytest.raises(inprocess.TimeoutError, match=r"longer than 0\.05 s"):
        inprocess.ThreadedFinalize(0.05, lambda: done.wait(20))(STATE)
    assert time.monotonic() - began < 10
    done.set()


@pytest.mark.parametrize(
    ("limits", "word"),
    [
        ({"max_iterations": 3}, "max_iterations=3"),
        ({"min_world_size": 5}, "min_world_size=5"),
        ({"min_active_world_size": 4}, "min_active_world_size=4"),
    ],
)
def test_a_retry_controller_says_which_limit_is_crossed(limits: dict[str, int], word: str) -> None:
    import dataclasses

    state = dataclasses.replace(STATE, iteration=3)
    with pytest.raises(inprocess.RestartAbort, match=word):
        inprocess.RetryController(**limits)(state)
    allowed = {name: value + (1 if name[1] == "a" else -1) for name, value in limits.items()}
    assert inprocess.RetryController(**allowed)(state) is state


def test_a_fault_counter_counts_only_faults_of_its_own() -> None:
    import dataclasses

    counter = inprocess.FaultCounter(1)
    own = dataclasses.replace(STATE, fn_exception=ValueError())
    counter(STATE)
    counter(own)
    counter(STATE)
    with pytest.raises(inprocess.FaultCounterExceeded, match="2 faults"):
        counter(own)


def test_a_cuda_health_check_without_cuda_is_fine() -> None:
    assert inprocess.CudaHealthCheck(1)(STATE) is STATE


def test_a_state_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        STATE.rank = 2  # type: ignore[misc]
    assert STATE.status is STATE.mode is inprocess.Mode.INITIALIZED
    assert inprocess.Status is inprocess.Mode
