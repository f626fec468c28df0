"""Which decisions become notifications, and what these say: stories against their messages."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from drumbeat.coordinator.core.model import HangDiagnosis, Verdict, VerdictCause
from drumbeat.coordinator.core.restarts.tally import Attempt
from drumbeat.coordinator.core.run.records import (
    AgentRemoved,
    HangJudged,
    HangOver,
    Record,
    RoundEnd,
    RoundEnded,
    RunCreated,
    RunEnded,
)
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.notify.facts import CAUSES_CHARACTERS_MAX, Message, messages_of
from tests.support.hangs import LOADER, judged, seen
from tests.support.journal import round_trip
from tests.support.world import Story, a_running_story, a_spec

PAGE = "https://head:29480/"


def messages_of_journal(
    journal: Iterable[tuple[str, Record]], *, is_handed_over: bool = False
) -> list[Message]:
    """Return all messages of a journal; perhaps each by a coordinator that has just come."""
    states: dict[str, RunState] = {}
    found: list[Message] = []
    for key, record in journal:
        if isinstance(record, RunCreated):
            states[key] = RunState.created(record)
            continue
        found += messages_of(states[key], record, PAGE)
        states[key].apply(record)
        if is_handed_over:
            states[key] = msgspec.json.decode(msgspec.json.encode(states[key]), type=RunState)
    return found


def messages(story: Story) -> list[Message]:
    """Return the messages of a story, which do not depend on how often the leader changed."""
    journal = round_trip(story.journal)
    found = messages_of_journal(journal)
    assert messages_of_journal(journal, is_handed_over=True) == found
    return found


def facts(story: Story) -> list[str]:
    return [each.fact for each in messages(story)]


def test_a_run_that_fails_is_told_once_with_reason_cause_restarts_and_link() -> None:
    story = a_running_story(2, restarts_max=1)
    for _ in range(2):
        story.record("b", message="Traceback\nValueError: nan", explanation="a bad batch")
        story.fail("b")
        story.obey_all()
    story.advance(60.0)
    budget, failed = messages(story)
    assert (failed.title, failed.level) == ("run run: failed", "failure")
    lines = failed.body.splitlines()
    assert lines[0].startswith("Reason: round 1 failed: rank ")
    assert lines[1].startswith("Root cause: rank ")
    assert lines[2:] == [
        "It said: ValueError: nan",
        "Likely why: a bad batch",
        "Restarts: 1 of 1 used",
        f"Page: {PAGE}runs/run",
    ]
    assert (budget.title, budget.level) == ("run run: restart budget almost used", "warning")
    assert "Root cause: rank " in budget.body
    assert "Restarts: 1 of 1 used" in budget.body


def test_a_run_that_succeeds_and_one_that_is_stopped_are_told_once() -> None:
    story = a_running_story(1)
    story.succeed("a")
    story.obey_all()
    assert [(each.fact, each.level) for each in messages(story)] == [("succeeded", "success")]
    stopped = Verdict(cause=VerdictCause.STOPPED, reason="by me", restart_count=0, round_id=0)
    state = a_running_story(1).state()
    (each,) = messages_of(state, RunEnded(verdict=stopped, at_s=1.0))
    assert (each.fact, each.level) == ("stopped", "info")
    assert each.body == "Reason: by me\nRestarts: 0 of 0 used", "no page is served"


def test_a_failure_without_a_record_is_told_as_such() -> None:
    verdict = Verdict(
        cause=VerdictCause.AGENTS_MISSING, reason="b is missing", restart_count=0, round_id=0
    )
    (each,) = messages_of(a_running_story(1).state(), RunEnded(verdict=verdict, at_s=1.0))
    assert each.body.splitlines()[:2] == [
        "Reason: b is missing",
        "Root cause: no worker reported a failure",
    ]


def hang(**fields: Any) -> HangDiagnosis:
    """Return a hang of a round in which rank 1 reads data while rank 0 waits for it."""
    found = judged(seen(0), seen(1, LOADER))
    assert found.causes
    return replace(found, **({"is_held": False, "round_id": 0} | fields))


def test_a_hang_is_told_once_however_often_it_is_judged_and_once_when_it_is_over() -> None:
    story = a_running_story(2, restarts_max=1)
    (cause, *_) = hang().causes
    records: list[Record] = [
        HangJudged(hang=hang(), at_s=1.0),
        HangJudged(hang=hang(is_held=True), at_s=2.0),
        HangOver(round_id=0, reason="training goes on", at_s=3.0),
        HangJudged(hang=hang(is_held=True, causes=()), at_s=4.0),
        RoundEnded(cause=RoundEnd.AGENT_LOST, reason="round 0 hung", at_s=5.0),
    ]
    found = messages_of_journal([*story.journal, *(("run", record) for record in records)])
    assert [each.fact for each in found] == ["hangs", "the hang is over"] * 2
    first, over, killed, restarted = (each.body.splitlines() for each in found)
    assert first[:3] == [
        f"Reason: {hang().summary}",
        f"Root cause: {cause}, {cause.place}",
        "Nothing is killed for it",
    ]
    assert over[0] == "Reason: training goes on"
    assert killed[1:3] == [
        "Root cause: the stacks do not tell which rank the others wait for",
        "Its workers are being killed",
    ]
    assert restarted[0] == "Reason: round 0 hung"


@pytest.mark.parametrize(
    ("restarts_max", "told_at"), [(1, 1), (2, 2), (4, 4), (5, 4), (10, 8), (11, 9)]
)
def test_the_restart_budget_is_told_where_four_fifths_are_reached(
    restarts_max: int, told_at: int
) -> None:
    story = a_running_story(1, restarts_max=restarts_max)
    for used in range(1, restarts_max + 1):
        story.fail("a")
        story.obey_all()
        assert facts(story).count("restart budget almost used") == (used >= told_at), used


def test_the_restart_budget_is_told_once_even_if_a_restart_is_given_back() -> None:
    story = a_running_story(2, restarts_max=1)
    charged = RoundEnded(cause=RoundEnd.WORKER_FAILED, reason="oh", at_s=1.0)
    state = story.state()
    assert len(list(messages_of(state, charged))) == 1
    state.apply(charged)
    state.apply(AgentRemoved(incarnation="b.1", reason="lost", at_s=2.0, restarts_returned=1))
    assert state.restarts_used == 0
    assert list(messages_of(state, charged)) == []


def test_a_free_restart_uses_nothing_of_the_budget() -> None:
    state = a_running_story(2, restarts_max=1, free_restarts_max=1).state()
    attempt = Attempt(is_free=True)
    free = RoundEnded(cause=RoundEnd.WORKER_FAILED, reason="oh", at_s=1.0, attempt=attempt)
    assert list(messages_of(state, free)) == []


def test_other_decisions_are_not_told() -> None:
    story = Story(spec=a_spec(1, 2, restarts_max=9))
    story.join("a")
    story.advance(60.0)
    story.obey_all()
    story.fail("a")
    story.obey_all()
    story.leave("a")
    assert len(story.journal) > 5
    assert messages(story) == []


def test_what_is_told_is_bounded_printable_and_without_tokens() -> None:
    secret = "drumbeat1.join.abcdefgh.abcdefghijklmnop0123456789"
    story = a_running_story(1)
    said = f"{'E' * 10_000}\nBearer {secret} \x1b[31m\x07 {'x' * 10_000}"
    story.record("a", message=said, explanation=f"token {secret}{'y' * 10_000}")
    story.fail("a")
    story.obey_all()
    story.advance(60.0)
    (failed,) = messages(story)
    assert "abcdefghijklmnop" not in failed.body
    assert not any(letter < " " and letter != "\n" for letter in failed.body)
    assert len(failed.body) < CAUSES_CHARACTERS_MAX + 2_000
    assert failed.body.endswith(f"Page: {PAGE}runs/run")


@pytest.mark.parametrize(
    "said", ["password=hunter2hunter2", "api_key: hunter2hunter2", "--token hunter2hunter2"]
)
def test_a_value_that_is_named_as_a_secret_is_hidden(said: str) -> None:
    story = a_running_story(1)
    story.record("a", message=f"ValueError: cannot log in with {said}")
    story.fail("a")
    story.obey_all()
    story.advance(60.0)
    (failed,) = messages(story)
    assert "hunter2hunter2" not in failed.body
    assert "[value of " in failed.body
