"""Histories that are linearizable and that are not, and the search against trying all orders."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos import history
from tests.chaos.history import Operation, SearchTooLong, contradiction


@dataclass(frozen=True)
class Write:
    value: int


@dataclass(frozen=True)
class Read:
    value: int


class Register:
    initial = 0
    returns = True

    def step(self, state: int, action: Write | Read) -> int | None:
        if isinstance(action, Write):
            return action.value
        return state if state == action.value else None

    def is_past(self, state: int, action: Write | Read) -> bool:  # noqa: ARG002
        return False


Op = Operation[Write | Read]
MODEL = Register()


def op(called_at: float, returned_at: float, action: Write | Read, client: str = "c") -> Op:
    return Operation(client, called_at, returned_at, action)


LINEARIZABLE = {
    "nothing": [],
    "one after another": [op(0, 1, Write(1)), op(2, 3, Read(1))],
    "a read amid a write sees it": [op(0, 9, Write(1)), op(1, 2, Read(1))],
    "a read amid a write does not see it": [op(0, 9, Write(1)), op(1, 2, Read(0))],
    "two reads amid a write see it appear": [
        op(0, 9, Write(1)), op(1, 2, Read(0)), op(3, 4, Read(1)),
    ],
    "two writes at once in either order": [
        op(0, 5, Write(1)), op(0, 5, Write(2)), op(6, 7, Read(1)),
    ],
    "a write without an answer has happened": [op(0, math.inf, Write(1)), op(5, 6, Read(1))],
    "a write without an answer happens late": [
        op(0, math.inf, Write(1)), op(5, 6, Read(0)), op(7, 8, Read(1)),
    ],
    "a write without an answer never happens": [op(0, math.inf, Write(1)), op(5, 6, Read(0))],
    "operations that touch are concurrent": [op(0, 1, Write(1)), op(1, 2, Read(0))],
}  # fmt: skip
NOT_LINEARIZABLE = {
    "a read of what nobody wrote": [op(0, 1, Read(7))],
    "a read of the past": [op(0, 1, Write(1)), op(2, 3, Read(0))],
    "a value that goes back": [
        op(0, 9, Write(1)), op(1, 2, Read(1)), op(3, 4, Read(0)),
    ],
    "two readers that disagree on the order": [
        op(0, 1, Write(1)), op(0, 1, Write(2)),
        op(2, 3, Read(1), "a"), op(4, 5, Read(2), "b"),
    ],
    "a write without an answer happens once": [
        op(0, math.inf, Write(1)), op(1, 2, Read(1)), op(3, 4, Write(2)), op(5, 6, Read(1)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", LINEARIZABLE)
def test_a_history_is_linearizable(name: str) -> None:
    assert contradiction(MODEL, LINEARIZABLE[name]) is None


@pytest.mark.parametrize("name", NOT_LINEARIZABLE)
def test_a_history_is_not_linearizable(name: str) -> None:
    assert contradiction(MODEL, NOT_LINEARIZABLE[name]) is not None


def test_a_contradiction_shows_what_came_before_and_what_could_not_be_next() -> None:
    problem = contradiction(MODEL, [op(0, 1, Write(1)), op(2, 3, Read(0), "reader")])
    assert str(problem) == (
        "after\n  [0.000, 1.000] c: Write(value=1)\n"
        "the state is 1, and none of these can be next:\n"
        "  [2.000, 3.000] reader: Read(value=0)"
    )


def test_a_search_that_takes_too_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "STATES_MAX", 20)
    writes = [op(0, 9, Write(number)) for number in range(10)]
    with pytest.raises(SearchTooLong):
        contradiction(MODEL, [*writes, op(10, 11, Read(100))])


def test_a_long_history_of_few_clients_is_searched_at_once() -> None:
    writes = [op(n, n + 1.5, Write(n), f"c{n % 2}") for n in range(2000)]
    assert contradiction(MODEL, [*writes, op(5000, 5001, Read(1999))]) is None


def is_linearizable_by_trying_all_orders(operations: list[Op]) -> bool:
    answered = [o for o in operations if o.returned_at < math.inf]
    lost = [o for o in operations if o.returned_at == math.inf]
    for count in range(len(lost) + 1):
        for happened in itertools.combinations(lost, count):
            for order in itertools.permutations([*answered, *happened]):
                if _keeps_time(order) and _is_allowed(order):
                    return True
    return False


def _keeps_time(order: tuple[Op, ...]) -> bool:
    return all(
        later.returned_at >= earlier.called_at
        for earlier, later in itertools.combinations(order, 2)
    )


def _is_allowed(order: tuple[Op, ...]) -> bool:
    state: int | None = 0
    for operation in order:
        if state is None:
            return False
        state = MODEL.step(state, operation.action)
    return state is not None


@st.composite
def histories(draw: st.DrawFn) -> list[Op]:
    operations = []
    for _ in range(draw(st.integers(0, 5))):
        called_at = draw(st.integers(0, 8))
        takes = draw(st.integers(0, 5))
        kinds: list[type[Write | Read]] = [Write, Read]
        kind = draw(st.sampled_from(kinds))
        returned_at = math.inf if takes == 5 and kind is Write else called_at + takes
        operations.append(op(called_at, returned_at, kind(draw(st.integers(0, 2)))))
    return operations


@given(histories())
def test_the_search_agrees_with_trying_all_orders(operations: list[Op]) -> None:
    expected = is_linearizable_by_trying_all_orders(operations)
    assert (contradiction(MODEL, operations) is None) == expected


@given(st.data())
def test_what_happened_one_step_after_another_is_linearizable(data: st.DataObject) -> None:
    """Each operation happens at an instant and is seen from before it until after it."""
    state, operations = 0, []
    for instant in range(data.draw(st.integers(0, 30))):
        action: Write | Read
        if data.draw(st.booleans()):
            state = data.draw(st.integers(0, 5))
            action = Write(state)
        else:
            action = Read(state)
        early, late = data.draw(st.floats(0, 3)), data.draw(st.floats(0, 3))
        operations.append(op(instant - early, instant + late, action, f"c{instant}"))
    assert contradiction(MODEL, operations) is None
