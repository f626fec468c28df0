"""What the processes of a world really did, and how far from that the account may be.

A border is never before what it stands for. It is later by no more than it takes to hear of it:
where nothing but workers fails, one beat of an agent and the way of its message.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from drumbeat.coordinator.core.membership.leases import INTERVAL_PER_LEASE_MAX, WINDOW_S
from drumbeat.coordinator.observe.goodput.stretches import Stretch
from tests.simulation.goodput.log import SECOND, Heard, Log, Lost, ns

if TYPE_CHECKING:
    from tests.simulation.goodput.reference import Span
    from tests.simulation.goodput.training import Training, Worker
    from tests.simulation.plan import Plan

# What a busy agent, its supervisor and the coordinator's disk take together.
BUSY_S = 0.2
# Ages and uptimes travel in nanoseconds, and uptimes are large.
ROUNDED_NS = 10


class Truth:
    """All that can be known of a world once it is over."""

    def __init__(self, plan: Plan, training: Training, log: Log, *, is_prompt: bool) -> None:
        self._training, self._log = training, log
        pace = plan.policy.base_pace
        beat_s = max(pace.heartbeat_interval_s, INTERVAL_PER_LEASE_MAX * pace.lease_s)
        self._late = ns(beat_s + plan.delay_max_s + BUSY_S)
        # Where messages are lost, or the coordinator is away, nothing can be promised.
        self._is_prompt = is_prompt
        self.compared = 0

    def check(self, spans: list[Span]) -> None:
        """Check each border of the account."""
        ended = self._log.decisions[-1].index  # then agents are forgotten, and soon new
        for life in self._log.lives:
            self._check_instants([each for each in life.entries if each.index < ended])
        for span in spans:
            if span.kind in (Stretch.GATHERING, Stretch.ROUND):
                self._check_stopped(span)
            if span.kind is Stretch.ROUND and not span.is_again:
                self._check_began(span)
                self._check_running(span)
            if span.kind is Stretch.ROUND:
                self._check_caught_up(span)
                self._check_progress(span)

    def _check_instants(self, entries: list[Heard | Lost]) -> None:
        """A message was sent when it seems to be, later by its agent's quickest one of late."""
        ways: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for each in entries:
            if isinstance(each, Lost):
                ways[each.name].clear()  # one that comes back is new
                continue
            if each.truly_sent_at == each.at:
                continue  # it did not tell its uptime: a stranger, or one that waited outside
            late_s = each.sent_at - each.truly_sent_at
            ways[each.name].append((each.at, each.at - each.truly_sent_at))
            quickest = min(way for at, way in ways[each.name] if each.at - at <= WINDOW_S)
            assert late_s >= -ROUNDED_NS / 1e9, f"{each} seems to be sent before it was"
            assert late_s <= quickest + ROUNDED_NS / 1e9, f"{each} seems to be sent later"

    def _expect(
        self,
        what: str,
        span: Span,
        told: float | None,
        least: float | None,
        most: float | None,
    ) -> None:
        """Check that a border is not before ``least``, and soon after ``most``.

        ``None`` of what is told: it was not heard of before the end.
        """
        until = span.end if told is None else min(told, span.end)
        where = f"{what} of {span.kind} from {span.start} to {span.end}"
        if least is not None:
            self.compared += 1
            at = min(ns(least), span.end)
            assert until >= at - ROUNDED_NS, f"{where}: {told}, before it was, {at}"
        if self._is_prompt and most is not None:
            self.compared += 1
            at = max(ns(most), span.start)
            assert until <= at + self._late, f"{where}: {told}, long after it was, {at}"

    def _team(self, span: Span) -> list[Worker]:
        return self._training.teams[span.first.place[0] or 0].workers

    def _lives_on(self, worker: Worker, at: float) -> bool:
        """Return whether a worker lived long enough after an instant for its agent to tell."""
        return worker.ended is None or ns(worker.ended) >= ns(at) + self._late

    def _lost(self, span: Span) -> set[str]:
        """Return who was given up."""
        return {e.name for c in span.chapters for e in c.entries if isinstance(e, Lost)}

    def _check_stopped(self, span: Span) -> None:
        is_stopping, stopped, _ = span.stopping
        waiting = span.waited_for(span.first.taken.life)
        if not is_stopping or waiting & self._lost(span) or len(span.chapters) != 1:
            return
        workers = [worker for team in self._training.teams.values() for worker in team.workers]
        round_id = span.first.place[0] if span.kind is Stretch.ROUND else None

        def latest(of: list[Worker]) -> float | None:
            ends = [
                math.inf if worker.ended is None else worker.ended
                for worker in of
                if worker.process.owner in waiting and worker.process.round_id != round_id
                if ns(worker.spawned) < span.start
            ]
            return max(ends, default=None)

        least, most = latest(workers), latest([*workers, *self._training.others])
        is_over = least is not None and least < math.inf
        self._expect("stop", span, stopped, least if is_over else None, most)

    def _check_began(self, span: Span) -> None:
        began, lost, size = span.beginnings[1], self._lost(span), sum(span.first.seats.values())
        firsts = {worker: worker.first for worker in self._team(span) if worker.first is not None}
        sure = [at for worker, at in firsts.items() if worker.process.owner not in lost]
        least = max((at for at in sure if ns(at) < span.end), default=None)
        is_told = all(self._lives_on(worker, at) for worker, at in firsts.items())
        most = max(firsts.values()) if len(firsts) == size and is_told else None
        self._expect("beginning", span, began, None if began is None else least, most)

    def _check_running(self, span: Span) -> None:
        lost, team = self._lost(span), self._team(span)
        spawned = [worker.spawned for worker in team if worker.process.owner not in lost]
        least = max((at for at in spawned if ns(at) < span.end), default=None)
        is_whole = len(team) == sum(span.first.seats.values())
        most = max(worker.spawned for worker in team) if is_whole else None
        if span.running is not None:
            self._expect("run", span, span.running, least, most)

    def _check_caught_up(self, span: Span) -> None:
        if span.step_first is None or (reached := span.reached) is None:
            return
        steps = [(worker, *told) for worker in self._team(span) for told in worker.heartbeats]
        new = [
            (at, self._lives_on(worker, at))
            for worker, at, step in steps
            if step > reached and span.start <= ns(at) < span.end
        ]
        least = min((at for at, _ in new), default=None)
        most = min((at for at, is_told in new if is_told), default=None)
        self._expect("new step", span, span.caught_up, least, most)

    def _check_progress(self, span: Span) -> None:
        told = [(ns(at), w) for w in self._team(span) for at, _ in w.heartbeats]
        beats = [at for at, _ in told if span.start <= at <= span.end]
        if span.progress is not None:
            heard = [e for c in span.chapters for e in c.entries if isinstance(e, Heard)]
            way = ns(max(each.sent_at - each.truly_sent_at for each in heard)) + ROUNDED_NS
            is_any = any(at <= span.progress <= at + way for at in beats)
            # A beat told before the span may seem to be of it.
            is_early = span.progress <= span.start + way
            assert is_any or is_early, f"no worker progressed at {span.progress}: {beats}"
        sure = [at for at, worker in told if at in beats and self._lives_on(worker, at / SECOND)]
        latest = max((at for at in sure if at <= span.end - self._late), default=0)
        if self._is_prompt and latest:
            self.compared += 1
            what = f"progress at {latest} was not heard, {span.progress} was"
            assert (span.progress or 0) >= latest - ROUNDED_NS, what
