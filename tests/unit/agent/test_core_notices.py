"""An agent whose host will go away, and what its workers say of a notice."""

import dataclasses

from msgspec.structs import replace

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core.events import (
    DeadlineReached,
    NoticeAnswered,
    OrderReceived,
    SignalReceived,
    WorkersStopped,
)
from drumbeat.agent.core.notice import Notice
from drumbeat.model import NoticeKind, NoticeReport, Standby
from tests.support.agents import CONFIG, AgentStory, desired, of

CONFIGURED = dataclasses.replace(CONFIG, preemption_signal="SIGUSR1", preemption_grace=40.0)
SIGNAL = SignalReceived(signum=10, is_preemption=True)
NOTICE = Notice(notice_id=1, kind=NoticeKind.PREEMPTION, reason="a goes", time_left_s=9.0)


def received(**fields: object) -> OrderReceived:
    return OrderReceived(attempt=1, order=replace(NOTICE, **fields))


def test_it_says_so_and_stays_until_training_was_given_notice() -> None:
    story = AgentStory(CONFIGURED).running()
    effects = story.feed(SIGNAL)
    (sent,) = of(effects, fx.SendBeat)
    assert sent.beat.leaving.reason == "got SIGUSR1, its host will go away"
    assert sent.beat.leaving.until == story.now + 30, "a quarter is for the workers to stop"
    assert of(effects, fx.StopWorkers) == of(effects, fx.SendGoodbye) == []
    assert of(story.feed(received()), fx.ShowNotice) == [fx.ShowNotice(notice=NOTICE)]
    effects = story.feed(received(is_over=True))
    assert of(effects, fx.ShowNotice) == [], "its workers go on waiting for their end"
    assert [each.reason for each in of(effects, fx.SendGoodbye)] == [
        "preempted by SIGUSR1: training was given notice"
    ]
    assert [each.signum for each in of(effects, fx.StopWorkers)] == [15]
    assert of(story.feed(WorkersStopped(round_id=0)), fx.Finish)[0].exit_code == 128 + 10


def test_without_an_answer_it_leaves_when_its_time_is_up() -> None:
    story = AgentStory(CONFIGURED).running()
    story.feed(SIGNAL)
    assert of(story.feed(DeadlineReached(), after_s=29.0), fx.SendGoodbye) == []
    (goodbye,) = of(story.feed(DeadlineReached(), after_s=1.0), fx.SendGoodbye)
    assert goodbye.reason == "preempted by SIGUSR1: its time is up"


def test_a_second_signal_or_no_workers_end_it_at_once() -> None:
    story = AgentStory(CONFIGURED).running()
    assert of(story.feed(SIGNAL), fx.SendGoodbye) == []
    assert len(of(story.feed(SIGNAL), fx.SendGoodbye)) == 1
    idle = AgentStory(CONFIGURED).connected().feed(SIGNAL)
    assert of(idle, fx.Finish)[0].exit_code == 128 + 10


def test_when_its_round_is_over_it_takes_part_in_no_other() -> None:
    story = AgentStory(CONFIGURED).running()
    story.feed(SIGNAL)
    (goodbye,) = of(story.feed(desired(Standby(reason="x left"))), fx.SendGoodbye)
    assert goodbye.reason == "preempted by SIGUSR1: its round is over"


def test_answers_of_its_workers_are_told_and_those_of_another_round_are_not() -> None:
    story = AgentStory(CONFIGURED).running()
    story.feed(received())
    report = NoticeReport(notice_id=1, asked=7)
    (sent,) = of(story.feed(NoticeAnswered(round_id=0, report=report)), fx.SendBeat)
    assert sent.beat.notice == report
    assert sent.beat.leaving is None
    (sent,) = of(story.feed(received(is_over=True)), fx.SendBeat)
    assert sent.beat.notice is None, "it was for others that the notice was given"
    assert of(story.feed(received(round_id=5)), fx.ShowNotice) == []
    assert of(story.feed(NoticeAnswered(round_id=5, report=report)), fx.SendBeat) == []


def test_messages_about_notices_have_an_order() -> None:
    in_order = [
        replace(NOTICE, **fields)
        for fields in (
            {},
            {"proposed": 7},
            {"proposed": 9},
            {"proposed": 7, "chosen": 7},
            {"proposed": 12, "chosen": 7},
            {"chosen": 8},
            {"is_over": True},
            {"notice_id": 2},
            {"notice_id": 2, "is_over": True},
        )
    ]
    orders = [notice.order for notice in in_order]
    assert orders == sorted(set(orders))
