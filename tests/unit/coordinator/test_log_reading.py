"""One reader of output: who brings it, who is named, and where each goes on."""

from typing import NamedTuple

import pytest

from drumbeat.coordinator.core.collecting import log_reading
from drumbeat.coordinator.core.collecting.log_reading import Brought, LogReading, LogsAsked
from drumbeat.coordinator.core.collecting.stack_gathering import AskedAgent


class Cursor(NamedTuple):
    round_id: int
    rank: int
    stream: int
    offset: int


class Piece(NamedTuple):
    next: Cursor


def reading(*, follow: bool = False) -> LogReading:
    asked = LogsAsked(run_id="run", ranks=(), since_round=0, tail=5, follow=follow)
    agents = {
        name: AskedAgent(incarnation=name, name=name, host="h", ranks={0: first, 1: first + 1})
        for name, first in (("a", 0), ("b", 2))
    }
    return LogReading(asked, agents)


def test_it_is_complete_once_each_agent_has_told_all_or_was_given_up() -> None:
    one = reading()
    place = Cursor(0, 0, 1, 10)
    assert one.brought("a", [Piece(place)]) == Brought(incarnation="a", pieces=(Piece(place),))
    why = "it has not been started yet"
    assert one.complete("a") == Brought(incarnation="a", ranks=(1,), problem=why)
    assert not one.is_complete
    assert one.is_wanted_of("b")
    assert not one.is_wanted_of("a")
    assert one.given_up("b", "away") == Brought(incarnation="b", ranks=(2, 3), problem="away")
    assert one.is_complete
    assert one.given_up("b", "away") is None


def test_what_is_followed_is_asked_of_all_and_never_complete() -> None:
    one = reading(follow=True)
    assert one.complete("a") is None
    assert one.given_up("b", "away") is not None
    assert not one.is_complete
    assert one.is_wanted_of("a")
    assert one.is_wanted_of("one that comes later")


def test_each_agent_goes_on_behind_what_was_taken_of_each_stream() -> None:
    one = reading(follow=True)
    one.begin({"a": [Cursor(0, 0, 1, 10), Cursor(0, 1, 1, 20)]})
    one.brought("a", [Piece(Cursor(0, 0, 1, 15)), Piece(Cursor(0, 0, 2, 3))])
    assert one.cursors("a") == [Cursor(0, 0, 1, 15), Cursor(0, 1, 1, 20), Cursor(0, 0, 2, 3)]
    assert one.cursors("b") == []


def test_places_of_many_rounds_are_forgotten_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reading, "CURSORS_MAX", 2)
    one = reading(follow=True)
    one.begin({"a": [Cursor(round_id, 0, 1, 0) for round_id in range(5)]})
    assert [each.round_id for each in one.cursors("a")] == [3, 4]
