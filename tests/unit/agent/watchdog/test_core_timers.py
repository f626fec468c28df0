"""Timers and sections: which are over when, and what then follows."""

from __future__ import annotations

import pytest

from drumbeat.agent.watchdog.core import model as fx
from drumbeat.agent.watchdog.core.model import (
    AUTO,
    BoardRead,
    EvidenceTaken,
    HeartbeatReceived,
    LimitsLearned,
    TimerAcquired,
    TimerReleased,
    WorkerGone,
    WorkerKey,
    WorkerStarted,
)
from drumbeat.agent.watchdog.hang import Evidence, HangKind, Purpose
from tests.support.watching import NOW, OTHER, WORKER, WatchStory, a_board, a_slot

SIGUSR1, SIGTERM, SIGKILL = 10, 15, 9


def acquired(scope: str = "a", timeout_s: float = 10.0, signal: int | None = None) -> TimerAcquired:
    return TimerAcquired(worker=WORKER, scope=scope, timeout_s=timeout_s, signal=signal)


def released(scope: str = "a") -> TimerReleased:
    return TimerReleased(worker=WORKER, scope=scope)


def test_a_timer_on_the_board_that_runs_out_ends_its_worker() -> None:
    story = WatchStory()
    story.kick(a_board(a_slot(3, name="all-reduce", limit_s=4.0), step=7))
    story.run(NOW + 3.9)
    assert not story.signals()
    story.run(NOW + 4.0)
    assert story.signals() == [(0, SIGTERM)]
    (hang,) = story.hangs()
    assert (hang.kind, hang.scope, hang.limit_s) == (HangKind.TIMER, "all-reduce", 4.0)
    assert (hang.elapsed_s, hang.noticed_at) == (4.0, NOW + 4.0)
    assert (hang.standing.step, hang.standing.scope) == (7, "all-reduce")
    assert hang.evidence == Evidence(stacks="File a.py")


@pytest.mark.parametrize(("grace_s", "kill_after_s"), [(1.0, 1.0), (60.0, 5.0), (None, 5.0)])
def test_a_timer_may_have_a_shorter_grace_than_the_agent(
    grace_s: float | None, kill_after_s: float
) -> None:
    story = WatchStory()
    slot = a_slot(limit_s=4.0, purpose=Purpose.HARD_TIMEOUT, grace_s=grace_s)
    story.kick(a_board(slot))
    story.run(NOW + 4.0 + kill_after_s - 0.1)
    assert story.signals() == [(0, SIGTERM)]
    story.run(NOW + 4.0 + kill_after_s)
    assert story.signals() == [(0, SIGTERM), (0, SIGKILL)]
    (hang,) = story.hangs()
    assert hang.purpose is Purpose.HARD_TIMEOUT


def test_limits_that_are_always_there_are_no_place_where_a_worker_is() -> None:
    story = WatchStory()
    story.kick(
        a_board(
            a_slot(0, name="mine", limit_s=None),
            a_slot(1, name="other", purpose=Purpose.HEARTBEAT, limit_s=60.0),
        )
    )
    standing = story.core.workers[WORKER].standing()
    assert (standing.scope, standing.scopes_open) == ("mine", 1)


def test_a_timer_of_a_call_that_runs_out_ends_its_worker() -> None:
    story = WatchStory()
    story.feed(acquired(timeout_s=2.5))
    story.run(NOW + 2.4)
    assert not story.signals()
    story.run(NOW + 2.5)
    assert story.signals() == [(0, SIGTERM)]


def test_a_timer_of_a_process_below_a_worker_ends_that_process() -> None:
    story = WatchStory()
    child = TimerAcquired(worker=WORKER, scope="load", timeout_s=2.0, signal=SIGKILL, pid=78)
    story.feed(child, acquired(timeout_s=2.0, signal=SIGUSR1))
    effects = story.run(NOW + 2.0)
    sent = [(each.pid, each.signum) for each in effects if isinstance(each, fx.Signal)]
    taken = [each.pid for each in effects if isinstance(each, fx.TakeEvidence)]
    assert (sent, taken) == ([(78, SIGKILL), (0, SIGUSR1)], [78, 0])
    assert [hang.scope for hang in story.hangs()] == ["load", "a"]
    story.run(NOW + 60.0)
    assert len(story.signals()) == 2


def test_a_process_below_a_worker_that_has_gone_takes_its_timers_with_it() -> None:
    story = WatchStory()
    story.evidence[WORKER] = Evidence(is_alive=False)
    story.feed(TimerAcquired(worker=WORKER, scope="load", timeout_s=2.0, signal=SIGKILL, pid=78))
    story.feed(acquired(timeout_s=3.0))
    story.run(NOW + 2.0)
    assert not story.signals()
    story.evidence.clear()
    story.run(NOW + 3.0)
    assert story.signals() == [(0, SIGTERM)], "the worker is watched all the same"


def test_evidence_is_taken_and_reported_before_the_signal() -> None:
    story = WatchStory()
    story.kick(a_board(a_slot(limit_s=4.0)))
    effects = story.run(NOW + 4.0)
    first = next(i for i, each in enumerate(effects) if isinstance(each, fx.TakeEvidence))
    kinds = [type(each) for each in effects[first:] if not isinstance(each, fx.AnnounceLook)]
    assert kinds == [fx.TakeEvidence, fx.ReadBoard, fx.Report, fx.Signal]


def test_a_timer_released_in_time_is_forgotten() -> None:
    story = WatchStory()
    story.kick(a_board(a_slot(limit_s=4.0)))
    story.feed(acquired())
    story.run(NOW + 3.0)
    story.write(a_board())
    story.feed(released())
    story.run(NOW + 100)
    assert not story.hangs()


def test_a_timer_acquired_again_is_replaced() -> None:
    story = WatchStory()
    story.kick(a_board(a_slot(limit_s=4.0)))
    story.feed(acquired(timeout_s=5.0))
    story.run(NOW + 3.0)
    story.write(a_board(a_slot(since=story.now, limit_s=4.0)))
    story.feed(acquired(timeout_s=5.0))
    story.run(NOW + 6.9)
    assert not story.hangs()
    story.run(NOW + 7.0)
    assert [hang.scope for hang in story.hangs()] == ["timer 0"]


def test_a_release_of_nothing_is_harmless() -> None:
    story = WatchStory()
    assert story.feed(released("never")) == []


def test_one_timer_of_each_name_and_worker() -> None:
    story = WatchStory(WORKER, OTHER)
    story.feed(acquired("a", 2.0), acquired("b", 3.0))
    story.feed(TimerAcquired(worker=OTHER, scope="a", timeout_s=4.0))
    story.feed(released("a"))
    story.run(NOW + 2.9)
    assert not story.signals()
    story.run(NOW + 3.0)
    assert story.signals() == [(0, SIGTERM)]
    story.run(NOW + 4.0)
    assert story.signals() == [(0, SIGTERM), (1, SIGTERM)]


def test_a_board_released_without_a_word_saves_its_worker() -> None:
    """A verdict does not rest on what was read earlier."""
    story = WatchStory()
    story.kick(a_board(a_slot(limit_s=4.5)))
    story.run(NOW + 4.4)
    story.write(a_board())
    story.run(NOW + 10)
    assert not any(isinstance(each, fx.TakeEvidence) for each in story.effects)


def test_a_worker_that_goes_on_while_evidence_is_taken_is_left_alone() -> None:
    story = WatchStory(is_answering=False)
    story.kick(a_board(a_slot(limit_s=0.5)))
    story.run(NOW + 0.5)
    story.kick(a_board(a_slot(limit_s=0.5)))
    assert isinstance(story.effects[-1], fx.TakeEvidence)
    story.is_answering = True
    story.write(a_board())
    story.feed(EvidenceTaken(worker=WORKER, evidence=Evidence()))
    story.run(NOW + 5)
    assert not story.signals()
    assert [hang.scope for hang in story.hangs()] == ["timer 0"], "it was over, and that is told"
    assert not story.signals()


@pytest.mark.parametrize("signal", [0, -1])
def test_a_signal_that_is_none_is_only_reported_and_once(signal: int) -> None:
    story = WatchStory()
    story.kick(a_board(a_slot(limit_s=2.0, signal=signal)))
    story.feed(acquired(timeout_s=3.0, signal=signal))
    story.run(NOW + 100)
    reports = [each for each in story.effects if isinstance(each, fx.Report)]
    assert [report.hang.scope for report in reports] == ["timer 0", "a"]
    assert not any(report.is_ending for report in reports)
    assert not story.signals()
    standing = story.core.workers[WORKER].standing()
    assert standing.scopes_open == 1, "that of the call is forgotten"


def test_all_that_ran_out_is_handled_together_in_the_order_in_which_it_did() -> None:
    story = WatchStory(stall_s=10.0)
    story.kick(
        a_board(
            a_slot(0, limit_s=2.3, signal=SIGTERM),
            a_slot(1, limit_s=2.2, signal=SIGUSR1),
            a_slot(2, limit_s=2.1, signal=0),
        )
    )
    story.feed(acquired(timeout_s=2.4, signal=-1))
    story.sleep(NOW + 3.5)
    story.run(NOW + 50)
    reports = [each for each in story.effects if isinstance(each, fx.Report)]
    assert [(each.hang.scope, each.is_ending) for each in reports] == [
        ("timer 2", False),
        ("timer 1", True),
        ("a", False),
    ]
    assert story.signals() == [(0, SIGUSR1)], "the others count as handled"


def test_a_named_signal_is_sent_once_until_the_slot_is_acquired_again() -> None:
    story = WatchStory()
    story.kick(a_board(a_slot(limit_s=2.0, signal=SIGUSR1)))
    story.run(NOW + 30)
    assert story.signals() == [(0, SIGUSR1)]
    story.kick(a_board(a_slot(since=story.now, limit_s=2.0, signal=SIGUSR1)))
    story.run(NOW + 60)
    assert story.signals() == [(0, SIGUSR1)] * 2


def test_a_named_signal_is_sent_once_until_the_call_is_repeated() -> None:
    story = WatchStory()
    story.feed(acquired(timeout_s=2.0, signal=SIGUSR1))
    story.run(NOW + 30)
    assert story.signals() == [(0, SIGUSR1)]
    story.feed(acquired(timeout_s=2.0, signal=SIGUSR1))
    story.run(NOW + 60)
    assert story.signals() == [(0, SIGUSR1)] * 2


def test_a_named_signal_does_not_hide_that_the_runtime_stands_still() -> None:
    story = WatchStory(runtime_timeout_s=5.0, kill_grace_s=2.0, stall_s=60.0)
    story.kick(a_board(a_slot(limit_s=4.5, signal=SIGUSR1), beat_at=NOW))
    story.sleep(NOW + 5.5)  # both are over
    assert story.signals() == [(0, SIGUSR1)]
    story.run(NOW + 7.4)
    assert story.signals() == [(0, SIGUSR1)]
    story.run(NOW + 7.5)
    assert story.signals() == [(0, SIGUSR1), (0, SIGTERM)]


def test_a_section_has_its_own_limit() -> None:
    story = WatchStory()
    story.kick(a_board(a_slot(name="checkpoint", is_section=True, limit_s=30.0)))
    story.run(NOW + 29.9)
    assert not story.hangs()
    story.run(NOW + 30.0)
    assert [(hang.kind, hang.scope) for hang in story.hangs()] == [(HangKind.SECTION, "checkpoint")]


def test_a_section_without_a_limit_has_none() -> None:
    story = WatchStory()
    story.kick(a_board(a_slot(is_section=True, limit_s=None)))
    story.run(NOW + 10_000)
    assert not story.hangs()


def test_an_automatic_section_has_the_learned_limit_of_its_name() -> None:
    story = WatchStory()
    story.kick(a_board(a_slot(name="save", is_section=True, limit_s=AUTO)))
    story.feed(LimitsLearned(limits={"load": 1.0, "": 1.0}))
    story.run(NOW + 50)
    assert not story.hangs()
    story.feed(LimitsLearned(limits={"save": 60.0}))
    story.run(NOW + 59.9)
    assert not story.hangs()
    story.run(NOW + 60.0)
    (hang,) = story.hangs()
    assert (hang.kind, hang.scope, hang.limit_s) == (HangKind.SECTION, "save", 60.0)


def test_an_automatic_limit_that_was_unlearned_is_none() -> None:
    story = WatchStory()
    story.feed(LimitsLearned(limits={"save": 20.0}))
    story.kick(a_board(a_slot(name="save", is_section=True, limit_s=AUTO)))
    story.feed(LimitsLearned(limits={}))
    story.run(NOW + 100)
    assert not story.hangs()


def test_a_learned_limit_that_is_over_already_leads_to_a_look_at_once() -> None:
    story = WatchStory()
    story.kick(a_board(a_slot(name="save", is_section=True, limit_s=AUTO)))
    story.run(NOW + 50.5)
    story.feed(LimitsLearned(limits={"save": 20.0}))
    assert story.signals() == [(0, SIGTERM)]


def test_a_slot_that_was_suspended_has_the_time_that_its_worker_says() -> None:
    story = WatchStory()
    story.kick(a_board(a_slot(limit_s=10.0)))
    story.run(NOW + 5)
    story.kick(a_board())
    story.run(NOW + 50)
    story.kick(a_board(a_slot(limit_s=10.0, deadline=NOW + 55)))
    story.run(NOW + 54.9)
    assert not story.hangs()
    story.run(NOW + 55.0)
    (hang,) = story.hangs()
    assert (hang.limit_s, hang.elapsed_s) == (10.0, 55.0)


def test_a_board_without_an_owner_has_no_limits() -> None:
    story = WatchStory()
    story.kick(a_board(a_slot(), beat_at=NOW))
    story.kick(None)
    story.run(NOW + 1000)
    assert not story.hangs()


def test_nothing_of_a_gone_worker_remains() -> None:
    story = WatchStory()
    story.kick(a_board(a_slot()))
    story.feed(acquired(), WorkerGone(worker=WORKER))
    assert story.core.next_deadline() is None
    assert not story.core.workers
    late = (
        acquired(),
        released(),
        HeartbeatReceived(worker=WORKER),
        BoardRead(worker=WORKER, snapshot=a_board(a_slot())),
        WorkerGone(worker=WORKER),
    )
    assert story.feed(*late) == []
    assert story.core.next_deadline() is None


def test_the_same_worker_of_a_later_round_is_watched_afresh() -> None:
    story = WatchStory()
    story.feed(acquired(), WorkerGone(worker=WORKER), WorkerStarted(worker=WorkerKey(1, 0)))
    story.run(NOW + 100)
    assert list(story.core.workers) == [WorkerKey(1, 0)]
    assert not story.hangs()


def test_a_repeated_start_changes_nothing() -> None:
    story = WatchStory()
    story.feed(acquired(timeout_s=2.0))
    assert story.feed(WorkerStarted(worker=WORKER)) == []
    story.run(NOW + 2.0)
    assert story.signals() == [(0, SIGTERM)]


def test_timers_by_calls_are_bounded() -> None:
    story = WatchStory(timers_max=2)
    story.feed(acquired("a"), acquired("b"))
    assert not story.core.workers[WORKER].may_acquire("c")
    assert story.core.workers[WORKER].may_acquire("a"), "a replacement needs no room"
    story.feed(acquired("c", 1.0), acquired("d", 1.0))
    story.run(NOW + 5)
    assert not story.hangs()
    story.feed(released("a"))
    assert story.core.workers[WORKER].may_acquire("c")
