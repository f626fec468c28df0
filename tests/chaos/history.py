"""Pure. Whether a history is linearizable: each operation could have happened in one instant.

The search of Wing and Gong with Lowe's memory of states that led nowhere, as Porcupine does it:
operations are put in an order, one after another, that keeps each between its call and its return
and that the model allows. Without a return an operation may happen at any later time, or never.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

State = TypeVar("State", bound="Hashable")
Action = TypeVar("Action")
ActionIn_contra = TypeVar("ActionIn_contra", contravariant=True)

STATES_MAX = 500_000
"""How many states a search may visit; it gives up with ``SearchTooLong`` after these."""


class SearchTooLong(Exception):
    """Nobody knows whether the history is linearizable: too many operations overlap."""


@dataclass(frozen=True, slots=True)
class Operation(Generic[Action]):
    """One operation of a client. Instants are seconds of one monotonic clock."""

    client: str
    called_at: float
    """``-math.inf``: nobody saw when it began."""
    returned_at: float
    """``math.inf``: no answer came."""
    action: Action
    """What was asked, with the answer."""


class Model(Protocol[State, ActionIn_contra]):
    """What one client alone would see."""

    @property
    def initial(self) -> State:
        """Return the state before any operation."""

    @property
    def returns(self) -> bool:
        """Whether a state that was left can come again; the search is fast if none can."""

    def step(self, state: State, action: ActionIn_contra) -> State | None:
        """Return the state after an operation; None if it cannot have this answer."""

    def is_past(self, state: State, action: ActionIn_contra) -> bool:
        """Whether an operation can happen neither in this state nor in any that follows."""


@dataclass(frozen=True, slots=True)
class Contradiction(Generic[State, Action]):
    """Why a history is not linearizable: the longest order that the model allows ends here."""

    order: tuple[Operation[Action], ...]
    state: State
    """After this order."""
    refused: tuple[Operation[Action], ...]
    """Those of which one had to be next."""

    def __str__(self) -> str:
        last = "\n".join(f"  {_line(operation)}" for operation in self.order[-5:])
        refused = "\n".join(f"  {_line(operation)}" for operation in self.refused[:5])
        return (
            f"after\n{last}\nthe state is {self.state}, and none of these can be next:\n{refused}"
        )


def _line(operation: Operation[Action]) -> str:
    return (
        f"[{operation.called_at:.3f}, {operation.returned_at:.3f}] "
        f"{operation.client}: {operation.action}"
    )


def contradiction(
    model: Model[State, Action], operations: Sequence[Operation[Action]]
) -> Contradiction[State, Action] | None:
    """Return why a history is not linearizable; None: it is.

    Raises ``SearchTooLong`` after ``STATES_MAX`` states.
    """
    return _Search(model, operations).run()


class _Search(Generic[State, Action]):
    """One search: a list of calls and returns by time, from which ordered operations are lifted.

    Entry ``2 * i`` is the call of operation ``i``, the next number its return.
    """

    def __init__(
        self, model: Model[State, Action], operations: Sequence[Operation[Action]]
    ) -> None:
        self._model, self._operations = model, operations
        times = [
            (instant, is_return, 2 * number + is_return)
            for number, operation in enumerate(operations)
            for is_return, instant in enumerate((operation.called_at, operation.returned_at))
        ]
        # Calls before returns of one instant: operations that touch are concurrent.
        entries = [entry for _, _, entry in sorted(times)]
        self._head = 2 * len(operations)
        self._next = [0] * (self._head + 1)
        self._previous = [0] * (self._head + 1)
        for before, after in zip([self._head, *entries], [*entries, self._head], strict=True):
            self._next[before], self._previous[after] = after, before
        # Those with an answer, which an order has to have.
        self._required = {n for n, each in enumerate(operations) if each.returned_at < math.inf}
        self._state, self._done = model.initial, 0
        self._order: list[tuple[int, State, bool]] = []
        self._seen: set[tuple[int, State]] = set()

    def run(self) -> Contradiction[State, Action] | None:
        """Search all orders."""
        best: Contradiction[State, Action] | None = None
        entry = self._next[self._head]
        while self._required:
            is_call = entry != self._head and entry % 2 == 0
            if is_call:
                entry = self._next[self._head if self._try(entry // 2) else entry]
                continue
            if best is None or len(self._order) > len(best.order):
                best = self._stuck()
            if (number := self._step_back()) is None:
                return best
            entry = self._next[2 * number]
        return None

    def _try(self, number: int) -> bool:
        """Put an operation next, if it can be and was not tried there."""
        before = self._state
        after = self._model.step(before, self._operations[number].action)
        if after is None:
            return False
        is_idle = after == before and not self._model.returns
        mark = self._done | 1 << number, after
        if not is_idle:
            if mark in self._seen:
                return False
            if len(self._seen) >= STATES_MAX:
                raise SearchTooLong(f"{len(self._operations)} operations")
            self._seen.add(mark)
            if self._strands(number, after):
                return False
        self._order.append((number, before, is_idle))
        self._done, self._state = mark
        self._required.discard(number)
        self._lift(number)
        return True

    def _strands(self, number: int, after: State) -> bool:
        """Whether another operation that is required could not happen any more."""
        return any(
            other != number and self._model.is_past(after, self._operations[other].action)
            for other in self._required
        )

    def _step_back(self) -> int | None:
        """Take the last operation back that could have been another one; None: there is none.

        What changed nothing, of a state that never comes again, was in its best place.
        """
        while self._order:
            number, self._state, is_idle = self._order.pop()
            self._done &= ~(1 << number)
            if self._operations[number].returned_at < math.inf:
                self._required.add(number)
            self._put_back(number)
            if not is_idle:
                return number
        return None

    def _stuck(self) -> Contradiction[State, Action]:
        refused = []
        entry = self._next[self._head]
        while entry % 2 == 0 and entry != self._head:
            refused.append(self._operations[entry // 2])
            entry = self._next[entry]
        order = tuple(self._operations[number] for number, _, _ in self._order)
        return Contradiction(order, self._state, tuple(refused))

    def _lift(self, number: int) -> None:
        for entry in (2 * number, 2 * number + 1):
            before, after = self._previous[entry], self._next[entry]
            self._next[before], self._previous[after] = after, before

    def _put_back(self, number: int) -> None:
        for entry in (2 * number + 1, 2 * number):
            self._next[self._previous[entry]] = self._previous[self._next[entry]] = entry
