"""Schedules of a checkpoint notice: late, lost and repeated messages, steps of random length.

The coordinator's core, the agents' notice pages and what the worker SDK decides are the real ones.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from mmap import mmap
from operator import itemgetter
from pathlib import Path

from drumbeat.agent.core.notice import Notice
from drumbeat.agent.watchdog.notice_page import HostNotices, NoticePage
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import CheckpointAsked
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.notice import NoticeEnded
from drumbeat.coordinator.core.run.state import Phase
from drumbeat.model import NoticeKind, NoticeReport
from drumbeat.model import NoticeReport as HostReport
from tests.simulation.clock import Clock
from tests.support.operator import ask
from tests.support.world import RUN, Story, a_running_story
from worker_sdk.board import notice_layout as layout
from worker_sdk.board.board import Board
from worker_sdk.board.notice_page import claim_page
from worker_sdk.notices import LOOK_S, STOP_MAX_S, answered, look

# How late a host hears, and is heard, at most; one of them for each host and schedule.
DELAYS_S = (0.01, 0.25, 2.0)
# How many messages are lost, each with its session; and how many come twice.
LOSSES = (0.0, 0.0, 0.05, 0.2)
REPEATS = 0.1
# How long a schedule lasts at most, and when notices are given.
END_S, NOTICES_S = 60.0, (1.0, 12.0)
OUTAGE_MAX_S = 8.0
# Longer than it is, so that most rounds outlive their broken sessions.
RECONNECT_GRACE_S = 4.0
NEVER = 10**9


class WorkerBoard(Board):
    """The board of a rank that is not a process."""

    def __init__(self, directory: Path, kick: Callable[[], None]) -> None:
        super().__init__(notices=claim_page(str(directory)))
        self._on_kick = kick

    def kick(self) -> None:
        self._on_kick()


class Rank:
    """One rank: makes steps, asks whether to save, and saves."""

    def __init__(self, schedule: Schedule, host: Host, directory: Path) -> None:
        directory.mkdir()
        self._schedule, self._host = schedule, host
        self.random = schedule.clock.random(f"rank {directory.name}")
        self.page = NoticePage(directory)
        self.board = WorkerBoard(directory, host.kicked)
        self.answers: dict[int, bool] = {}
        self.has_ended = False
        self._step = 0
        self._stopped_since: float | None = None

    def train(self) -> None:
        """Make the steps up to the next question."""
        self._step += self._schedule.asks_every
        if self._step > self._schedule.steps:
            self.has_ended = True
            self._host.ended(self)
            return
        longest = self._schedule.step_s * self._schedule.asks_every * 3
        self._after(self.random.uniform(longest / 10, longest), self._begin_to_ask)

    def close(self) -> None:
        """Let go of the page's file."""
        page = self.board.notices
        shared = page.raw.obj
        page.words.release()
        page.raw.release()
        assert isinstance(shared, mmap)
        shared.close()
        os.close(self.page.fd)

    def _begin_to_ask(self) -> None:
        self.board.notices.words[layout.ASKED] = self._step
        self._ask()

    def _ask(self) -> None:
        """Do as ``should_checkpoint``, which looks again for as long as it has to wait."""
        words, now = self.board.notices.words, self._schedule.clock.now
        is_due = look(self.board, words[layout.ANSWERED], self._step)
        if is_due is None:
            since = self._stopped_since = self._stopped_since or now
            if now <= since + STOP_MAX_S:
                self._after(LOOK_S, self._ask)
                return
            self._schedule.counts["stops without a word"] += 1
        if self._stopped_since is not None:
            self._schedule.counts["stops"] += 1
        self._stopped_since = None
        answered(self.board, self._step, is_due=bool(is_due))
        self.answers[self._step] = bool(is_due)
        if is_due:
            self._after(self.random.choice([0.0, 3.0]) * self.random.random(), self._saved)
        else:
            self.train()

    def _saved(self) -> None:
        words = self.board.notices.words
        if pending := words[layout.NOTICE_ID]:
            words[layout.SAVED], words[layout.SAVED_ID] = self._step, pending
            self.board.kick()
        self.train()

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._schedule.clock.after(delay_s, None, action)


class Host:
    """An agent: shows notices to its ranks, reports what they say, over a line that fails."""

    def __init__(self, schedule: Schedule, name: str, directory: Path) -> None:
        self.name, self._schedule, self._clock = name, schedule, schedule.clock
        self.random = schedule.clock.random(f"host {name}")
        self._delay_s, self._loss = self.random.choice(DELAYS_S), self.random.choice(LOSSES)
        self._notices = HostNotices()
        self._report: NoticeReport | None = None
        self._reports = 0
        self._session, self._in_order = 0, dict.fromkeys(("to", "from"), 0.0)
        self.is_connected = True
        size = self.random.choice([1, 1, 2])
        self.ranks = [Rank(schedule, self, directory / f"{name}{i}") for i in range(size)]

    def tell(self, effect: fx.TellNotice) -> None:
        """Send the host a notice."""
        pending = effect.notice
        notice = Notice(
            notice_id=pending.notice_id,
            kind=NoticeKind(pending.kind),
            reason=pending.reason,
            time_left_s=effect.time_left_s,
            proposed=pending.proposed,
            chosen=pending.chosen,
            chosen_before=pending.chosen_before,
            is_over=effect.is_over,
        )
        self._send("to", partial(self._hear, notice))

    def _hear(self, notice: Notice) -> None:
        self._notices.show(notice, [rank.page for rank in self.ranks])
        self.kicked()

    def kicked(self) -> None:
        """Have the agent look at its pages soon, as it does when a worker wakes it."""
        self._clock.after(self.random.uniform(0.0, 0.02), None, self._look)

    def _look(self) -> None:
        for rank in self.ranks:
            rank.page.move_on()
        if (notice := self._notices.pending()) is None:
            return
        answers = [rank.page.answer(notice) for rank in self.ranks if not rank.has_ended]
        step_s = self._schedule.step_s if self._schedule.is_pace_known else None
        said: HostReport | None = self._notices.news(answers, step_s)
        if said is not None:
            known = {name: getattr(said, name) for name in NoticeReport.__struct_fields__}
            self._report = NoticeReport(**known)
            self._reports += 1
            report = partial(self._schedule.deliver, self.name, self._reports, self._report)
            self._send("from", report)

    def ended(self, rank: Rank) -> None:
        """Take in that a worker has ended; once all have, the agent says so."""
        self._notices.ended(0, rank.page)
        self.kicked()
        if all(each.has_ended for each in self.ranks):
            self._send("from", partial(self._schedule.succeed, self.name))

    def _send(self, way: str, deliver: Callable[[], None]) -> None:
        """Deliver in order, unless it is lost, and with it all that comes after; or twice."""
        if not self.is_connected:
            return
        if self.random.random() < self._loss:
            self.disconnect()
            return
        delay = self.random.uniform(0.0, self._delay_s)
        at = self._in_order[way] = max(self._in_order[way], self._clock.now + delay)
        session = self._session

        def arrive(*, is_repeated: bool = False) -> None:
            if session == self._session or is_repeated:
                deliver()

        self._clock.at(at, None, arrive)
        if self.random.random() < REPEATS:
            late = at + self.random.uniform(0.0, 2 * self._delay_s)
            self._clock.at(late, None, partial(arrive, is_repeated=True))

    def disconnect(self) -> None:
        """Break the session; the agent comes back after a while."""
        self.is_connected = False
        self._session += 1
        self._schedule.broken(self.name)
        self._clock.after(self.random.uniform(0.05, 1.5), None, self._come_back)

    def _come_back(self) -> None:
        if not self._schedule.is_up:
            self._clock.after(self.random.uniform(0.05, 0.5), None, self._come_back)
            return
        self.is_connected = True
        self._clock.after(
            self.random.uniform(0.0, self._delay_s), None, partial(self._say_hello, self._session)
        )

    def _say_hello(self, session: int) -> None:
        if session == self._session and self._schedule.is_up:
            self._schedule.back(self.name, self._report)
            if all(rank.has_ended for rank in self.ranks):
                self._send("from", partial(self._schedule.succeed, self.name))


class Schedule:
    """One seed: lives until the round or the time is over."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.clock = Clock(seed)
        random = self.clock.random("schedule")
        self.counts = Counter[str]()
        self.step_s = random.choice([0.05, 0.2, 1.0])
        self.asks_every = random.choice([1, 1, 3, 10])
        self.is_pace_known = random.random() < 0.7
        self.steps = int(random.uniform(5.0, 30.0) / self.step_s) if seed % 5 == 0 else NEVER
        self.is_up = True
        self._latest: dict[str, tuple[int, NoticeReport]] = {}
        size = random.randint(2, 4)
        grace_s = random.uniform(5.0, 40.0)
        policy = Policy(checkpoint_grace_s=grace_s, reconnect_grace_s=RECONNECT_GRACE_S)
        self._story: Story = a_running_story(size, policy=policy)
        self._hosts = {name: Host(self, name, directory) for name in "abcd"[:size]}
        self._story.watch = self._tell
        for host in self._hosts.values():
            for rank in host.ranks:
                rank.train()
        for _ in range(random.randint(1, 3)):
            self.clock.after(random.uniform(*NOTICES_S), None, self._give_notice)
        if random.random() < 0.3:
            away_s = random.uniform(0.1, OUTAGE_MAX_S)
            self.clock.after(random.uniform(*NOTICES_S), None, partial(self._restart, away_s))

    def live(self) -> None:
        """Let it all happen."""
        self.clock.run(until=self.clock.now + END_S, stop=self._is_over)
        self.counts["steps saved at"] += len({*self._saved()})
        for notice in self._story.records(NoticeEnded):
            self.counts[re.sub(r"\d+|[a-d](, [a-d])*\b", "…", notice.reason)] += 1
        for rank in self._ranks():
            rank.close()

    def disagreements(self) -> list[int]:
        """Return the steps at which a rank saved, and another one ran it and did not."""
        answers = defaultdict[int, set[bool]](set)
        for rank in self._ranks():
            for step, is_due in rank.answers.items():
                answers[step].add(is_due)
        return [step for step, said in answers.items() if len(said) > 1]

    def deliver(self, name: str, number: int, report: NoticeReport) -> None:
        """Let the coordinator hear what a host reports; beats repeat the latest."""
        agent = self._story.agents[name]
        if self.is_up and agent.session_id is not None and self._is_running():
            self._advance()
            latest = max(
                self._latest.get(name, (number, report)), (number, report), key=itemgetter(0)
            )
            self._latest[name] = latest
            self._story.beat(name, more={"notice": report})
            agent.more = {"notice": latest[1]}

    def succeed(self, name: str) -> None:
        """Let the coordinator hear that training has ended on a host."""
        if self.is_up and self._story.agents[name].session_id is not None and self._is_running():
            self._advance()
            self._story.succeed(name)

    def broken(self, name: str) -> None:
        """Let the coordinator hear of the end of a session."""
        if self.is_up and self._is_running() and self._story.agents[name].session_id is not None:
            self._advance()
            self._story.break_session(name)

    def back(self, name: str, report: NoticeReport | None) -> None:
        """Let the coordinator hear of another session."""
        if self._is_running():
            self._advance()
            self._story.agents[name].more = {} if report is None else {"notice": report}
            self._story.back(name)

    def _give_notice(self) -> None:
        if self.is_up and self._is_running():
            self._advance()
            ask(self._story, CheckpointAsked)

    def _restart(self, away_s: float) -> None:
        self._advance()
        self.is_up = False
        for host in self._hosts.values():
            if host.is_connected:
                host.disconnect()
        self.clock.after(away_s, None, self._start_again)

    def _start_again(self) -> None:
        self._story.now = self.clock.now
        self._story.restart()
        self.is_up = True

    def _tell(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, fx.TellNotice):
                host = self._hosts[self._story.sessions[effect.session_id]]
                self.clock.after(0.0, None, partial(host.tell, effect))

    def _advance(self) -> None:
        if self.is_up:
            self._story.advance(self.clock.now - self._story.now)

    def _is_over(self) -> bool:
        self._advance()
        return not self._is_running()

    def _is_running(self) -> bool:
        state = self._story.registry.runs[RUN].state
        return state.phase is Phase.RUNNING and state.round_id == 0

    def _ranks(self) -> list[Rank]:
        return [rank for host in self._hosts.values() for rank in host.ranks]

    def _saved(self) -> list[int]:
        return [step for rank in self._ranks() for step, due in rank.answers.items() if due]
