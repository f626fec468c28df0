"""An ``Exit`` is small, whatever failed, and the few that show the whole report are named."""

from typing import Any

import pytest

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.model import Exit, FailureReport, Hang, Verdict, VerdictCause
from drumbeat.coordinator.observe.steps.worker_progress import Standing, WorkerProgress
from drumbeat.coordinator.wire.failure import EXIT_BYTES_MAX, verdict_message
from drumbeat.coordinator.wire.session import desired_message
from drumbeat.model import HangKind
from drumbeat.v1 import session_pb2
from tests.support.world import a_record, a_story


def an_exit(verdict: Verdict, **fields: object) -> session_pb2.Exit:
    return desired_message(
        fx.Direct(session_id="s", state=Exit(verdict=verdict, **fields))  # type: ignore[arg-type]
    ).exit


def a_verdict(
    causes: int = 1,
    victims: int = 0,
    standings: int = 0,
    reason: str = "round 0 failed",
    **texts: Any,
) -> Verdict:
    records = [a_record(number, rank=number, **texts) for number in range(causes + victims)]
    where = Standing(rank=1, host=texts.get("host", "h"), progress=WorkerProgress(local_rank=0))
    report = FailureReport(
        root_causes=tuple(records[:causes]),
        victims=tuple(records[causes:]),
        victims_count=80_000,
        world_size=80_001,
        standings=(where,) * standings,
        standings_count=standings,
    )
    return Verdict(
        cause=VerdictCause.WORKER_FAILED, reason=reason, restart_count=3, round_id=7, report=report
    )


def test_a_report_that_fits_is_sent_as_it_is() -> None:
    verdict = a_verdict(victims=3, message="boom", traceback="t" * 3_000)
    end = an_exit(verdict)
    assert not end.is_report_cut
    assert end.verdict == verdict_message(verdict)


def test_a_long_traceback_keeps_its_end_and_the_message_its_beginning() -> None:
    verdict = a_verdict(
        message=f"boom{'m' * 60_000}",
        traceback=f"{'t' * 60_000}ValueError: boom",
        stderr_tail=f"{'e' * 60_000}last words",
    )
    end = an_exit(verdict)
    assert end.is_report_cut
    assert end.ByteSize() <= EXIT_BYTES_MAX
    (cause,) = end.verdict.report.root_causes
    assert cause.message.startswith("boommm")
    assert cause.traceback.endswith("ValueError: boom")
    assert cause.stderr_tail.endswith("last words")
    assert min(len(cause.message), len(cause.traceback), len(cause.stderr_tail)) >= 2_000
    assert (end.verdict.reason, end.verdict.restart_count) == ("round 0 failed", 3)
    assert (end.verdict.report.victims_count, end.verdict.report.world_size) == (80_000, 80_001)


@pytest.mark.parametrize(("letter", "is_there"), [("x", True), ("\U0001f525", False)])
def test_paths_of_output_are_there_whole_or_not_at_all(letter: str, is_there: bool) -> None:
    files = tuple(f"/{'d' * 1_000}/{name}.log" for name in ("stdout", "stderr"))
    names = ("message", "traceback", "stderr_tail", "explanation")
    texts: dict[str, Any] = dict.fromkeys(names, letter * 64_000)
    end = an_exit(a_verdict(victims=3, **texts, output_files=files))
    assert end.ByteSize() <= EXIT_BYTES_MAX
    assert tuple(end.verdict.report.root_causes[0].output_files) == files * is_there


@pytest.mark.parametrize("letter", ["x", "é", "\U0001f525", "\x00"])
@pytest.mark.parametrize("is_hung", [False, True])
def test_nothing_makes_it_larger(letter: str, is_hung: bool) -> None:
    long, name = letter * 64_000, letter * 256
    texts = dict.fromkeys(("message", "traceback", "stderr_tail", "explanation"), long)
    verdict = a_verdict(
        **texts, causes=4, victims=16, standings=256, reason=long, host=name, signal_name=name
    )
    if is_hung:
        hang = Hang(
            kind=HangKind.TIMER, scope=name, limit_s=1.0, elapsed_s=2.0, stacks=long, evidence=long
        )
        causes = [a_record(n, hang=hang, host=name, **texts) for n in range(4)]
        report = FailureReport(root_causes=tuple(causes), victims=(), victims_count=1, world_size=2)
        verdict = Verdict(
            cause=VerdictCause.WORKER_FAILED,
            reason=long,
            restart_count=0,
            round_id=0,
            report=report,
        )
    end = an_exit(verdict, shown_on=name)
    assert end.is_report_cut
    assert end.ByteSize() <= EXIT_BYTES_MAX
    assert end.verdict.reason.startswith(letter)


def test_only_few_agents_show_the_whole_report() -> None:
    story = a_story(4)
    for name in ("a", "b", "c", "d"):
        story.join(name)
    story.obey_all()
    story.record("c", message="boom")
    story.fail("c")
    story.is_lively = True
    story.advance(60.0)
    ends = {name: story.desired(name).state for name in ("a", "b", "c", "d")}
    shows = {name: end.shows_report for name, end in ends.items() if isinstance(end, Exit)}
    assert shows == {"a": True, "b": False, "c": True, "d": False}
    assert {end.shown_on for end in ends.values() if isinstance(end, Exit)} == {"a"}


def test_when_group_rank_0_is_gone_the_next_one_shows_the_report() -> None:
    story = a_story(3)
    for name in ("a", "b", "c"):
        story.join(name)
    story.obey_all()
    story.fail("c")
    story.leave("a")
    story.is_lively = True
    story.advance(60.0)
    ends = [story.desired(name).state for name in ("b", "c")]
    assert [end.shows_report for end in ends if isinstance(end, Exit)] == [True, False]
