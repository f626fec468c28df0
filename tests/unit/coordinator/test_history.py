"""The history of a run: everything that was told to people, kept and shown."""

from pathlib import Path
from typing import Any

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.effects import Persist
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.records import HistoryEntry
from drumbeat.coordinator.journal.batches import Change, Compact
from drumbeat.coordinator.journal.sqlite import SqliteFile
from tests.support.status import kind, status_of
from tests.support.world import RUN, START, Story, a_running_story, a_spec


def an_eventful_story(**fields: Any) -> Story:
    """One restart, one agent that leaves, and the end of the budget."""
    story = a_running_story(2, restarts_max=1, agents_min=1, **fields)
    story.advance(5)
    story.fail("a")
    story.obey_all()
    story.advance(5)
    story.leave("b")
    story.obey_all()
    story.advance(5)
    story.fail("a")
    story.advance(60)
    return story


def history_of(story: Story) -> list[HistoryEntry]:
    return story.state().history


def test_the_history_is_what_was_told() -> None:
    seen: list[HistoryEntry] = []
    story = Story(spec=a_spec(2))

    def watch(effects: list[fx.Effect]) -> None:
        seen.extend(
            HistoryEntry(
                at_s=story.now,
                decision=e.decision,
                reason=e.reason,
                round_id=e.round_id,
                sequence=place,
                names=(e.reason.split()[0],) if e.decision == "agent admitted" else (),
                is_failure=e.decision == "run failing",
            )
            for place, e in enumerate(
                (e for e in effects if isinstance(e, fx.Decided)), len(seen) + 1
            )
        )

    story.watch = watch
    story.join("a")
    story.advance(2)
    story.join("b")
    story.obey_all()
    story.advance(3)
    story.fail("b")
    story.advance(60)
    assert history_of(story) == seen
    assert [(e.at_s - START, e.decision, e.round_id) for e in seen] == [
        (0.0, "agent admitted", None),
        (2.0, "agent admitted", None),
        (2.0, "round started", 0),
        (5.0, "run failing", 0),
        (45.0, "run failed", 0),  # 30 s to stop and 10 s for records that never come
    ]


def test_every_kind_of_decision_has_its_time() -> None:
    story = an_eventful_story()
    assert {entry.decision for entry in history_of(story)} == {
        "agent admitted", "agent removed", "round started", "round ended", "run failing",
        "run failed",
    }  # fmt: skip
    instants = [entry.at_s for entry in history_of(story)]
    assert instants == sorted(instants)
    assert instants[0] == START
    assert instants[-1] >= START + 15


def test_a_restarted_coordinator_remembers_the_history() -> None:
    story = an_eventful_story()
    before = list(history_of(story))
    story.restart()
    assert history_of(story) == before


def test_the_limit_of_the_policy_holds_after_a_restart_too() -> None:
    story = an_eventful_story(policy=Policy(history_max=3))
    assert [entry.decision for entry in history_of(story)][-1] == "run failed"
    assert len(history_of(story)) == 3
    before = list(history_of(story))
    story.policy = Policy()
    story.restart()
    assert history_of(story) == before


def test_a_snapshot_keeps_the_history(tmp_path: Path) -> None:
    story = an_eventful_story()
    changes: list[Change] = [Persist(run_id=run, record=record) for run, record in story.journal]
    journal = SqliteFile(tmp_path)
    journal.write(changes, now=story.now)
    (replayed,) = journal.load().runs.states.values()
    journal.write([Compact(replayed)], now=story.now)
    journal.close()
    journal = SqliteFile(tmp_path)
    (loaded,) = journal.load().runs.states.values()
    journal.close()
    assert replayed.history == loaded.history == history_of(story)
    assert loaded == story.state()


def test_no_record_is_written_for_the_history_alone() -> None:
    story = an_eventful_story()
    decisions = len(history_of(story))
    others = {"RunCreated", "GroupSucceeded", "FailureRecorded", "ProgressNoted"}
    kinds = [type(record).__name__ for _, record in story.journal]
    assert len([kind for kind in kinds if kind not in others]) == decisions


def test_the_history_is_shown_with_ages() -> None:
    story = a_running_story(1)
    story.advance(2.5)
    run = story.run(RUN)
    message = status_of(run.state, run, now=story.now)
    assert [(kind(e), e.age.ToMilliseconds(), e.HasField("round_id")) for e in message.history] == [
        ("agent admitted", 2500, False),
        ("round started", 2500, True),
    ]
    assert message.history[0].reason == "a joined"
    assert message.history[1].round_id == 0
