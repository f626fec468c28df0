"""Whatever the order of messages, ranks save at one step: real pages, the real choice."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.notice import Notice, NoticeKind, WorkerAnswer, report_of
from coordinator.core.progress import notice as coordinator
from tests.support.world import Story, a_running_story
from worker_sdk.board import notice_layout as layout
from worker_sdk.board.board import Board
from worker_sdk.notices import is_due

GOING = coordinator.Leaving(reason="goes away", time_left_s=1e6)
EVERY = 2  # steps between two questions


class Rank:
    """One rank, on a host of its own; its agent reads and writes the words of its page."""

    def __init__(self) -> None:
        self.board, self.step, self.saved = Board(), 0, list[int]()
        self.words = self.board.notices.words

    def train(self) -> None:
        """Make a step, ask, and save if it is due: as ``should_checkpoint`` does."""
        self.step += EVERY
        before, self.words[layout.ASKED] = self.words[layout.ASKED], self.step
        if self.words[layout.NOTICE_ID] and is_due(self.board, before, self.step):
            self.saved.append(self.step)
            self.words[layout.SAVED_ID] = self.words[layout.NOTICE_ID]
            self.words[layout.SAVED] = self.step

    def show(self, pending: coordinator.PendingNotice) -> None:
        self.words[layout.NOTICE_ID] = 0
        self.words[layout.CHOSEN] = layout.NO_STEP if pending.chosen is None else pending.chosen
        self.words[layout.NOTICE_ID] = pending.notice_id

    def report(self) -> coordinator.NoticeReport | None:
        """What an agent reads from the page."""
        words = self.words
        if not (notice_id := words[layout.NOTICE_ID]):
            return None
        chosen, asked = words[layout.CHOSEN], words[layout.ASKED]
        is_taken = (words[layout.TAKEN_ID], words[layout.TAKEN_CHOSEN]) == (notice_id, chosen)
        has_passed = words[layout.DUE] == layout.MISSED if is_taken else asked >= chosen
        answer = WorkerAnswer(
            asked=asked if asked >= 0 else None,
            is_missed=chosen >= 0 and has_passed,
            is_saved=words[layout.SAVED_ID] == notice_id and words[layout.SAVED] >= chosen >= 0,
        )
        told = Notice(
            notice_id=notice_id,
            kind=NoticeKind.PREEMPTION,
            reason="",
            time_left_s=1.0,
            chosen=chosen if chosen >= 0 else None,
        )
        said = report_of(told, [answer], None)
        return coordinator.NoticeReport(
            notice_id=said.notice_id,
            chosen=said.chosen,
            asked=said.asked,
            is_missed=said.is_missed,
            is_saved=said.is_saved,
        )


def tell(story: Story, ranks: dict[str, Rank], name: str) -> None:
    """Deliver what the coordinator wants now, however late, and once more if it was before."""
    if (pending := story.state().notice) is not None:
        ranks[name].show(pending)


def hear(story: Story, ranks: dict[str, Rank], name: str) -> None:
    """Deliver a beat with what the rank's page says."""
    if story.state().notice is not None and (said := ranks[name].report()) is not None:
        story.beat(name, more={"notice": said})


NAMES = st.sampled_from("abc")
ACTS = st.lists(st.tuples(st.sampled_from(["train", "tell", "hear"]), NAMES), max_size=120)


@settings(max_examples=60, deadline=None)
@given(before=st.lists(NAMES, max_size=20), acts=ACTS)
def test_all_ranks_save_at_the_step_that_counted(
    before: list[str], acts: list[tuple[str, str]]
) -> None:
    story = a_running_story(3)
    ranks = {name: Rank() for name in "abc"}
    for rank in ranks.values():
        rank.train()
    for name in before:
        ranks[name].train()
    story.beat("b", more={"leaving": GOING})
    for what, name in acts:
        if what == "train":
            ranks[name].train()
        else:
            {"tell": tell, "hear": hear}[what](story, ranks, name)
    for _ in range(200):  # then all goes well: messages arrive, ranks train in step
        if story.state().notice is None:
            break
        behind = min(ranks.values(), key=lambda rank: rank.step)
        behind.train()
        for name in ranks:
            tell(story, ranks, name)
            hear(story, ranks, name)
    assert story.state().notice is None, "it comes to an end"
    steps = [record.step for record in story.records(coordinator.StepChosen)]
    counted = steps[-1] + steps[-1] % EVERY
    assert steps == sorted(set(steps))
    assert all(counted in rank.saved for rank in ranks.values()), "one did not save with the others"
    allowed = {step + step % EVERY for step in steps}
    for rank in ranks.values():
        assert set(rank.saved) <= allowed, "a step of its own"
        assert len(rank.saved) == len(set(rank.saved))
