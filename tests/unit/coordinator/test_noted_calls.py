"""What callers did and were refused, as events of the run that it concerns."""

from drumbeat.access.token import Role
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import (
    CallNoted,
    LimitsReset,
    NoteAsked,
    TokenCreated,
    TokenRevoked,
)
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.records import CALLER_CHARACTERS_MAX, CallKind
from drumbeat.coordinator.core.tokens.token_table import secret_sha256
from drumbeat.v1 import query_pb2
from tests.support.status import status_of
from tests.support.world import RUN, Story, a_running_story


def refused(reason: str = "it may only read", caller: str = "t1", run_id: str = RUN) -> CallNoted:
    return CallNoted(run_id=run_id, kind=CallKind.ACCESS_REFUSED, reason=reason, caller=caller)


def create(run_id: str = RUN) -> TokenCreated:
    return TokenCreated(
        request_id=1,
        token_id="token001",
        role=Role.JOIN,
        secret_sha256=secret_sha256("s"),
        run_id=run_id,
        caller="op",
    )


def latest(story: Story) -> tuple[str, str, str]:
    entry = story.state().history[-1]
    return entry.decision, entry.reason, entry.caller


def worth(story: Story, event: CallNoted) -> str | None:
    noted = story.registry.worth_noting(event, now=story.now)
    return None if noted is None else noted.reason


def test_a_reset_of_limits_is_an_event_with_its_caller() -> None:
    story = a_running_story(1)
    story.handle(LimitsReset(run_id=RUN, request_id=7, caller="op"))
    assert latest(story) == ("limits reset", "0 limits forgotten", "op")
    assert story.of(fx.Answer) == [fx.Answer(request_id=7, result=0)]
    run = story.run(RUN)
    event = status_of(run.state, run, now=story.now).history[-1]
    assert event.kind == query_pb2.RUN_EVENT_KIND_LIMITS_RESET
    assert event.caller == "op"


def test_a_token_of_a_run_is_an_event_of_it_when_it_is_created_and_when_it_is_revoked() -> None:
    story = a_running_story(1)
    revoke = TokenRevoked(request_id=2, token_id="token001", caller="op2")
    story.handle(create())
    assert latest(story) == ("token changed", "join token token001 created", "op")
    story.handle(revoke)
    assert latest(story) == ("token changed", "join token token001 revoked", "op2")
    count = len(story.state().history)
    story.handle(revoke)
    assert len(story.state().history) == count


def test_a_token_of_no_run_or_of_one_that_is_not_there_is_no_event() -> None:
    story = a_running_story(1)
    before = list(story.state().history)
    for run_id in ("", "other"):
        story.handle(create(run_id))
    assert story.state().history == before


def test_events_of_callers_survive_a_restart() -> None:
    story = a_running_story(1)
    story.handle(refused())
    story.restart()
    assert latest(story) == ("access refused", "it may only read", "t1")


def test_a_refusal_is_worth_an_event_once_in_a_minute_for_each_run_caller_and_reason() -> None:
    story = a_running_story(1)
    assert worth(story, refused()) == "it may only read"
    assert worth(story, refused()) is None
    assert worth(story, refused(caller="t2")) == "it may only read"
    assert worth(story, refused(reason="other")) == "other"
    assert worth(story, refused(run_id="unknown")) is None
    story.now += 60
    assert worth(story, refused()) == "it may only read; 1 more like it since the last"


def test_refusals_push_no_decision_out_of_the_history() -> None:
    story = a_running_story(1, policy=Policy(history_max=30))
    decided = [entry.decision for entry in story.state().history]
    for number in range(100):
        story.handle(refused(reason=f"reason {number}"))
    history = story.state().history
    assert [entry.decision for entry in history] == [*decided, *["access refused"] * 3]
    assert [entry.reason for entry in history[-3:]] == ["reason 97", "reason 98", "reason 99"]
    assert history[-1].sequence == len(decided) + 100


def test_a_long_name_of_a_caller_is_cut() -> None:
    story = a_running_story(1)
    story.handle(refused(caller="x" * 10_000))
    assert latest(story)[2] == "x" * CALLER_CHARACTERS_MAX


def note(story: Story, text: str, call_id: str = "") -> fx.Steered:
    story.handle(NoteAsked(run_id=RUN, request_id=5, call_id=call_id, reason=text, caller="ann"))
    (answer,) = story.of(fx.Answer)
    assert isinstance(answer.result, fx.Steered)
    return answer.result


def test_a_note_is_an_event_of_a_run_that_runs_or_has_ended() -> None:
    story = a_running_story(1)
    assert note(story, "learning rate halved").is_new
    assert latest(story) == ("note added", "learning rate halved", "ann")
    run = story.run(RUN)
    event = status_of(run.state, run, now=story.now).history[-1]
    assert event.kind == query_pb2.RUN_EVENT_KIND_NOTE_ADDED
    story.succeed("a")
    story.obey_all()
    assert story.state().verdict is not None
    assert note(story, "was worth it").is_new
    story.restart()
    assert latest(story) == ("note added", "was worth it", "ann")


def test_a_note_that_is_sent_again_is_added_once() -> None:
    story = a_running_story(1)
    assert note(story, "x", "call 1").is_new
    before = story.state().events_count
    assert not note(story, "x", "call 1").is_new
    assert story.state().events_count == before


def test_agents_that_come_and_go_push_no_note_out_and_notes_leave_room() -> None:
    story = a_running_story(1, 1, policy=Policy(history_max=30))
    note(story, "keep this")
    for number in range(40):
        story.join(f"x{number}")
        story.leave(f"x{number}")
    decided = [entry.decision for entry in story.state().history]
    assert "note added" in decided
    for number in range(100):
        note(story, f"note {number}")
    decided = [entry.decision for entry in story.state().history]
    assert decided.count("note added") == 15
    assert "round started" in decided
