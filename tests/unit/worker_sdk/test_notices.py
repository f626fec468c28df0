"""What training is told of a notice, and that all ranks are told to save at one step."""

import itertools
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

import worker_sdk
from drumbeat.agent.core.notice import Notice, WorkerAnswer
from drumbeat.agent.watchdog.notice_page import LINE_MAX, NoticePage
from drumbeat.model import NoticeKind
from tests.support.boards import BoardDirectory, leave
from tests.support.waiting import MS, wait_until_sync
from worker_sdk import checkpointed, notice, notices, should_checkpoint
from worker_sdk.board import layout, notice_layout
from worker_sdk.runtime import STATE, clear_scopes

PENDING = Notice(
    notice_id=5, kind=NoticeKind.PREEMPTION, reason="host-b: SIGTERM", time_left_s=30.0
)


@pytest.fixture
def page(board: BoardDirectory) -> Iterator[NoticePage]:
    """A page as the agent makes it, of the worker that this process is."""
    made = NoticePage(board.path)
    yield made
    os.close(made.fd)


OVER = replace(PENDING, is_over=True)


def chosen(step: int, notice_id: int = 5) -> Notice:
    return replace(PENDING, notice_id=notice_id, chosen=step)


def proposed(step: int, notice_id: int = 5) -> Notice:
    return replace(PENDING, notice_id=notice_id, proposed=step)


def test_without_a_notice_nothing_is_said(board: BoardDirectory, page: NoticePage) -> None:
    assert notice() is None
    assert not any(should_checkpoint(step) for step in range(3))
    checkpointed(2)
    board.kicks()
    assert not should_checkpoint(3)
    assert board.kicks() == 0
    assert page.answer(PENDING) == WorkerAnswer(asked=3)


def test_an_agent_without_such_a_page_gives_no_notice(board: BoardDirectory) -> None:
    assert notice() is None
    assert not should_checkpoint(1)
    checkpointed(1)
    assert board[layout.OWNER_PID], "timers are watched as ever"


@pytest.mark.parametrize("what", ["version", "size"])
def test_a_page_of_another_kind_gives_no_notice(board: BoardDirectory, what: str) -> None:
    content = bytes([7]) * (notice_layout.PAGE_BYTES - (what == "size"))
    (board.path / notice_layout.NOTICE_FILE).write_bytes(content)
    assert notice() is None
    assert not should_checkpoint(1)


def test_without_an_agent_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    leave()
    monkeypatch.delenv("DRUMBEAT_WORKER_DIR", raising=False)
    assert notice() is None
    assert not should_checkpoint(1)
    checkpointed(1)
    leave()


def test_a_checkpoint_is_told_without_a_notice(board: BoardDirectory) -> None:
    assert board[layout.SAVED_AT] == 0
    checkpointed(7)
    assert board[layout.SAVED_STEP] == 7
    first = board[layout.SAVED_AT]
    assert first > 0
    checkpointed(7)
    assert board[layout.SAVED_AT] > first


def test_a_notice_has_a_kind_a_reason_and_time_left(page: NoticePage) -> None:
    page.show(PENDING)
    told = notice()
    assert told is not None
    assert (told.kind, told.reason) == ("preemption", "host-b: SIGTERM")
    assert 0 < told.time_left_s <= 30
    page.show(OVER)
    assert notice() is None


def test_its_time_is_over_and_its_reason_is_long(page: NoticePage) -> None:
    reason = "ä" * notice_layout.REASON_BYTES
    page.show(Notice(notice_id=1, kind=NoticeKind.OTHER, reason=reason, time_left_s=0.0))
    told = notice()
    assert told == ("other", reason[: notice_layout.REASON_BYTES // 2], 0.0)


@pytest.mark.parametrize("call", [should_checkpoint, checkpointed])
@pytest.mark.parametrize(
    ("step", "error", "text"),
    [
        (-1, ValueError, "step is -1; it must be from 0 to"),
        (None, TypeError, "step is None; it must be an int"),
        (True, TypeError, "step is True; it must be an int"),
    ],
)
def test_a_wrong_step_is_named(call: Any, step: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(step)


def test_it_is_true_at_the_chosen_step_alone(page: NoticePage) -> None:
    assert not should_checkpoint(1)
    page.show(PENDING)
    assert not should_checkpoint(2)
    page.show(chosen(4))
    asked = [(step, should_checkpoint(step)) for step in (3, 4, 4, 5, 6)]
    assert [step for step, is_due in asked if is_due] == [4, 4]
    assert page.answer(chosen(4)) == WorkerAnswer(asked=6)
    page.show(OVER)
    assert not any(should_checkpoint(step) for step in (6, 7))


@pytest.mark.parametrize("shown_after", range(5))
def test_ranks_that_ask_every_ten_steps_save_at_the_first_after_it(
    page: NoticePage, shown_after: int
) -> None:
    """Whenever the choice arrives, as long as it is in time."""
    page.show(PENDING)
    due = []
    for number, step in enumerate(range(0, 100, 10)):
        if number == shown_after:
            page.show(chosen(43))
        due += [step] * should_checkpoint(step)
    assert due == [50]


def test_a_step_that_was_passed_is_missed_and_another_can_be_proposed(page: NoticePage) -> None:
    page.show(PENDING)
    assert not should_checkpoint(4)
    page.show(proposed(4))
    assert page.answer(proposed(4)) == WorkerAnswer(asked=4, is_missed=True, is_ready=False)
    assert not should_checkpoint(4)
    assert not should_checkpoint(5)
    page.show(proposed(7))
    assert page.answer(proposed(7)) == WorkerAnswer(asked=5, is_ready=True)
    page.show(chosen(7))
    assert [step for step in (6, 7, 8) if should_checkpoint(step)] == [7]
    assert not page.answer(chosen(7)).is_missed


class Asking:
    """A rank that asks whether to save at a step, on a thread of its own."""

    def __init__(self, step: int) -> None:
        self.answers: list[bool] = []
        self._thread = threading.Thread(target=lambda: self.answers.append(should_checkpoint(step)))
        self._thread.start()

    def answer(self) -> bool:
        self._thread.join()
        return self.answers[0]


VERDICTS = {
    "it is chosen": (chosen(4), True),
    "a later one is proposed": (proposed(9), False),
    "the notice is over": (OVER, False),
    "it was chosen and is over": (replace(OVER, chosen=4), True),
    "it was chosen, and a later one is proposed": (replace(proposed(9), chosen=4), True),
}


@pytest.mark.parametrize("verdict", VERDICTS, ids=str)
def test_a_rank_stops_at_the_proposed_step_until_it_hears_what_becomes_of_it(
    page: NoticePage, board: BoardDirectory, verdict: str
) -> None:
    after, is_due = VERDICTS[verdict]
    assert not should_checkpoint(3)
    page.show(proposed(4))
    rank = Asking(4)
    wait_until_sync(lambda: board.names() == ["notice"], 5_000 * MS)
    assert page.answer(proposed(4)) == WorkerAnswer(asked=4, is_ready=True)
    assert rank.answers == []
    page.show(after)
    assert rank.answer() == is_due
    assert board.names() == []
    assert should_checkpoint(4) == is_due


def test_a_rank_that_stops_is_not_ready_for_the_next_step_before_it_has_heard_of_this_one(
    page: NoticePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next one could hide that this one was chosen."""
    looked, go = threading.Event(), threading.Event()

    def sleep(_: float) -> None:
        looked.set()
        go.wait()

    monkeypatch.setattr(notices, "sleep", sleep)
    assert not should_checkpoint(3)
    page.show(proposed(4))
    rank = Asking(4)
    looked.wait()
    page.show(replace(proposed(9), chosen=4))
    assert not page.answer(proposed(9)).is_ready
    go.set()
    assert rank.answer()
    assert page.answer(proposed(9)) == WorkerAnswer(asked=4, is_ready=True)


def test_a_rank_goes_on_without_saving_when_no_word_comes(
    page: NoticePage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notices, "STOP_MAX_S", 0.0)
    assert not should_checkpoint(3)
    page.show(proposed(4))
    assert not should_checkpoint(4)
    assert "step 4 is not saved: no word within 0 s" in caplog.text
    assert page.answer(proposed(4)) == WorkerAnswer(asked=4, is_missed=True, is_ready=False)
    page.show(chosen(4))
    assert page.answer(chosen(4)).is_missed
    assert not should_checkpoint(4)
    assert not should_checkpoint(5)


def test_a_rank_that_is_behind_saves_at_steps_whose_notices_are_over(page: NoticePage) -> None:
    page.show(replace(OVER, chosen=3))
    page.show(replace(OVER, notice_id=6, chosen_before=3, chosen=8))
    page.show(replace(proposed(20, notice_id=7), chosen_before=8))
    assert page.answer(proposed(20, notice_id=7)).is_ready
    due = []
    for step in range(12):
        due += [step] * should_checkpoint(step)
        page.move_on()  # as the agent does when the worker wakes it
    assert due == [3, 8]


@pytest.mark.parametrize("first", [3, 4, 6])
def test_the_first_question_answers_for_no_step_before_it(page: NoticePage, first: int) -> None:
    """Other ranks have passed those."""
    page.show(replace(OVER, chosen=3))
    page.show(replace(OVER, notice_id=6, chosen_before=3, chosen=6))
    clear_scopes()
    rank = Asking(first)

    def is_answered() -> bool:
        page.move_on()
        return bool(rank.answers)

    wait_until_sync(is_answered, 5_000 * MS)
    assert rank.answer() == (first in {3, 6})


def test_of_chosen_steps_that_a_rank_has_not_come_to_the_latest_are_kept(page: NoticePage) -> None:
    for number in range(1, LINE_MAX + 10):
        page.show(replace(OVER, notice_id=number, chosen=number))
    due = []
    for step in range(LINE_MAX + 10):
        due += [step] * should_checkpoint(step)
        page.move_on()
    assert len(due) == LINE_MAX + 1
    assert due[-1] == LINE_MAX + 9


def test_training_that_starts_again_comes_by_the_chosen_step_again(page: NoticePage) -> None:
    page.show(PENDING)
    assert not should_checkpoint(50)
    page.show(proposed(43))
    page.show(chosen(43))
    clear_scopes()  # as at the end of an iteration of in-process restart
    assert [step for step in range(40, 46) if should_checkpoint(step)] == [43]


def test_saved_is_said_once_for_the_notice_that_is_pending(
    page: NoticePage, board: BoardDirectory
) -> None:
    page.show(chosen(4))
    assert should_checkpoint(4)
    assert not page.answer(chosen(4)).is_saved
    board.kicks()
    checkpointed(4)
    assert board.kicks() == 1, "the agent looks at once"
    assert page.answer(chosen(4)).is_saved
    assert not page.answer(chosen(6)).is_saved, "that is before the step chosen anew"
    page.show(chosen(4, notice_id=6))
    assert not page.answer(chosen(4, notice_id=6)).is_saved


def test_time_that_gets_shorter_is_told(page: NoticePage) -> None:
    page.show(PENDING)
    page.show(replace(PENDING, time_left_s=5.0))
    page.show(PENDING)
    told = notice()
    assert told is not None
    assert told.time_left_s <= 5.0


@pytest.mark.parametrize("after", [OVER, proposed(9)], ids=["nothing is planned", "another step"])
def test_a_rank_that_waits_makes_no_step_until_there_is_more_to_train_for(
    page: NoticePage, board: BoardDirectory, after: Notice
) -> None:
    page.show(chosen(4))
    assert should_checkpoint(4)
    waiting = threading.Thread(target=checkpointed, args=(4,), kwargs={"wait": True})
    waiting.start()
    wait_until_sync(lambda: page.answer(chosen(4)).is_saved, 5_000 * MS)
    wait_until_sync(lambda: board.names() == ["notice"], 5_000 * MS)
    assert waiting.is_alive()
    page.show(after)
    waiting.join()
    assert board.names() == []


def test_it_waits_no_longer_than_the_time_of_the_notice(page: NoticePage) -> None:
    page.show(replace(chosen(4), time_left_s=0.05))
    checkpointed(4, wait=True)
    assert notice() is not None


@pytest.mark.parametrize("step", [3, 4])
def test_without_a_step_to_save_at_it_does_not_wait(page: NoticePage, step: int) -> None:
    checkpointed(step, wait=True)
    page.show(PENDING if step == 4 else chosen(4))
    checkpointed(step, wait=True)


def test_the_next_notice_has_a_step_of_its_own(page: NoticePage) -> None:
    page.show(chosen(4))
    assert should_checkpoint(4)
    page.show(OVER)
    assert not should_checkpoint(5)
    page.show(chosen(7, notice_id=6))
    assert [step for step in (6, 7, 8) if should_checkpoint(step)] == [7]


def test_the_first_question_after_a_notice_wakes_the_agent(
    page: NoticePage, board: BoardDirectory
) -> None:
    assert page.answer(PENDING) == WorkerAnswer()
    assert not should_checkpoint(0)
    board.kicks()
    page.show(PENDING)
    asked = [should_checkpoint(step) for step in (1, 2, 3)]
    assert (asked, board.kicks()) == ([False] * 3, 1)


def test_whatever_stands_on_the_page_nothing_raises(page: NoticePage) -> None:
    assert not should_checkpoint(1)
    words = STATE.board and STATE.board.notices.words
    assert words
    for value, word in itertools.product((-1, 2**63 - 1, -(2**63)), range(1, 14)):
        words[word] = value
        notice()
        should_checkpoint(2)
        checkpointed(2)
        page.answer(PENDING)


def test_the_sdk_offers_them() -> None:
    assert {"notice", "should_checkpoint", "checkpointed"} <= set(worker_sdk.__all__)
