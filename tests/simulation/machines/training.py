"""What the workers of a host say: how busy they are, and when they have saved."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from drumbeat.agent.core.events import NoticeAnswered
from drumbeat.agent.core.notice import Notice, WorkerAnswer, report_of
from drumbeat.agent.model.hang import Hang, WorkerProgress

if TYPE_CHECKING:
    from collections.abc import Callable

    from drumbeat.agent.core.model import Beat
    from drumbeat.agent.model.messages import WorkerExited
    from tests.simulation.clock import Actor, Clock
    from tests.simulation.machines.host import Agent

STEP_S = 0.2
"""All ranks are at the same step, more or less."""


SLOW_EVERY_S = 40.0
"""How often a slow host is slow, for half of that time."""


def is_slow(host: str) -> bool:
    """Whether workers of this host take four times as long for their own work now and then."""
    return crc32(host.encode()) % 3 == 0


class Progress:
    """What agents say of the progress of their workers. Here: how busy they were."""

    def standings(self, agent: Agent, beat: Beat) -> list[WorkerProgress]:
        """Return what the workers of an agent have told it of the round of this beat."""
        config, now = agent.host.config, agent.clock.now
        if not config.straggler_report or beat.round_id is None:
            return []
        steps, whole = int(now / STEP_S), now // SLOW_EVERY_S
        slow_s = (whole + max(0.0, 2 * (now / SLOW_EVERY_S - whole) - 1)) * SLOW_EVERY_S / 2
        busy_s = STEP_S / 4 * steps + (0.75 * slow_s if is_slow(agent.host.name) else 0.0)
        return [
            WorkerProgress(local_rank=i, steps_timed=steps, steps_s=busy_s, is_busy_time=True)
            for i in range(config.nproc_per_node)
        ]

    def hang_of(self, agent: Agent, event: WorkerExited) -> Hang | None:
        """Return why an agent has ended a worker, if it hung."""
        del agent, event
        return None

    def uptime_s(self, _now: float) -> float | None:
        """Return how long agents say that they have been running, if they do."""
        return None


class Training:
    """The loops of all workers of one agent, as one. ``asks`` is whether they ask."""

    def __init__(
        self,
        clock: Clock,
        actor: Actor,
        submit: Callable[[NoticeAnswered], None],
        *,
        asks: bool,
    ) -> None:
        self._clock, self._actor, self._submit, self._asks = clock, actor, submit, asks
        self._random = clock.random(f"training {actor.name}")
        self._notice: Notice | None = None
        self._taken: tuple[int, int] | None = None  # the notice and the step it has heard of
        self._is_missed = False

    def show(self, notice: Notice) -> None:
        """Have the workers find a notice, as it is now."""
        if self._notice is None or self._notice.order <= notice.order:
            self._notice = notice
            self._clock.after(self._random.uniform(0.0, 0.05), self._actor, self._look)

    def _look(self) -> None:
        if (notice := self._notice) is None or notice.is_over:
            return
        step, chosen = int(self._clock.now / STEP_S), notice.chosen
        if notice.proposed is not None:
            if self._taken != (notice.notice_id, notice.proposed):
                self._taken = notice.notice_id, notice.proposed
                self._is_missed = step >= notice.proposed
            is_ready = not self._is_missed
            self._say(notice, WorkerAnswer(asked=step, is_missed=not is_ready, is_ready=is_ready))
            return
        is_saved = chosen is not None and step > chosen
        self._say(notice, WorkerAnswer(asked=step, is_saved=is_saved))
        if self._asks and chosen is not None and not is_saved:
            delay = (chosen + 1) * STEP_S - self._clock.now
            save_s = self._random.choice([0.0, 0.5, 20.0]) * self._random.random()
            self._clock.after(max(0.0, delay) + save_s + 0.001, self._actor, self._look)

    def _say(self, notice: Notice, answer: WorkerAnswer) -> None:
        report = report_of(notice, [answer if self._asks else WorkerAnswer()], STEP_S)
        self._submit(NoticeAnswered(round_id=notice.round_id, report=report))
