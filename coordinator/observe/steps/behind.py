"""Pure. Which ranks stay behind the others: the one judgement that all readers are shown.

Hosts tell where their workers are at different instants, so the latest steps of two hosts cannot be
compared. What is known exactly: since when a rank is at its step, and until when. A rank is behind
if, at the instant of its host's latest word,

* its next heartbeat has been expected for longer than several usual steps, and
* for as long more than half of its peers have been at a higher step; or they have been in one
  section or timer, at the same step, and it is not in that.

So a rank that is slow but goes on is not behind, nor is one in a section of its own, nor one whose
host is heard late. Peers are the ranks of one role. If too little is known, no rank is behind.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, NamedTuple

from drumbeat.coordinator.observe.steps.medians import PEERS_MAX, lower_median, spread
from drumbeat.coordinator.observe.steps.worker_progress import Standing, Whereabouts, WorkerProgress
from drumbeat.text.format import count, listed

if TYPE_CHECKING:
    from drumbeat.coordinator.core.membership.leases import Presence
    from drumbeat.coordinator.core.model import Round, Seat

# A rank is behind once it has been so for longer than all of these: so many usual steps (one that
# takes ten times the usual time is no sign of anything), so many times the longest step lately, and
# the seconds for which a host may pause.
USUAL_STEPS, LONGEST_STEPS, STAY_LEAST_S = 10.0, 2.0, 5.0
# Steps for which it is found out when the peers passed them; ranks at more are not judged.
STEPS_JUDGED_MAX = 64
# Ranks that are kept to be named, and groups of them that are.
BEHIND_KEPT_MAX, GROUPS_NAMED_MAX = 64, 4

Told = tuple[WorkerProgress, float]  # where a worker is, and when its host said so


class Lag(NamedTuple):
    """By how much a rank is behind."""

    steps: int  # behind the step that more than half of its peers have reached
    scope: str = ""  # in which they are, if they are at the same step


class Laggard(NamedTuple):
    """A rank that is behind."""

    standing: Standing
    lag: Lag


class Peers:
    """Ranks of one role, or a sample of them.

    ``times_s`` are what some of their latest steps took, ``longest_s`` the longest time between two
    steps lately. ``is_restarted``: a step was lower than one before it, as where each epoch counts
    from 0.
    """

    def __init__(
        self,
        workers: Iterable[Told],
        times_s: Iterable[float],
        longest_s: float,
        *,
        is_restarted: bool,
    ) -> None:
        self._is_restarted = is_restarted
        known = [(worker, at) for worker, at in workers if worker.step is not None]
        self._reached = [
            (worker.step, at - worker.heartbeat_age_s)
            for worker, at in known
            if worker.step is not None and worker.heartbeat_age_s is not None
        ]
        number = len(self._reached)
        # Of two the other one; else more than half of all.
        self._most = number // 2 + 1 if number > 2 else 1
        self._usual_s = lower_median(times_s, of_none=math.inf)
        self.stay_s = max(STAY_LEAST_S, USUAL_STEPS * self._usual_s, LONGEST_STEPS * longest_s)
        steps = sorted((step for step, _ in self._reached), reverse=True)
        self._step = steps[self._most - 1] if len(steps) >= self._most else 0
        self._passed: dict[int, float] = {}
        self._scope, self._entered_at = self._common_scope(known)

    def lag(self, worker: WorkerProgress, told_at: float) -> Lag | None:
        """Return by how much a rank is behind, ``None`` if it is not."""
        waits_s, step, stay_s = worker.progress_age_s, worker.step, self.stay_s
        if waits_s is None or waits_s <= stay_s or step is None or step > self._step:
            return None
        if step == self._step:
            is_elsewhere = worker.scope != self._scope and told_at - self._entered_at > stay_s
            return Lag(0, self._scope) if is_elsewhere else None
        passed_at = self._passed_at(step)
        if told_at - passed_at <= stay_s:
            return None
        # Where steps begin again, a lower one may be the later one.
        if self._is_restarted and passed_at <= told_at - (worker.heartbeat_age_s or 0.0):
            return None
        return Lag(self._step - step)

    def _passed_at(self, step: int) -> float:
        """Return when most had reached a higher step. They came to later ones step by step."""
        passed_at = self._passed.get(step)
        if passed_at is None:
            if len(self._passed) >= STEPS_JUDGED_MAX:
                return math.inf
            usual_s = self._usual_s
            passed = sorted(
                at - (reached - step - 1) * usual_s
                for reached, at in self._reached
                if reached > step
            )
            passed_at = passed[self._most - 1] if len(passed) >= self._most else math.inf
            self._passed[step] = passed_at
        return passed_at

    def _common_scope(self, known: Sequence[Told]) -> tuple[str, float]:
        """Return in which section or timer most are, and since when they all are."""
        scopes = Counter(worker.scope for worker, _ in known if worker.step == self._step)
        scope, number = next(iter(scopes.most_common(1)), ("", 0))
        if not scope or number < self._most:
            return "", math.inf
        entered = (
            at - (worker.scope_age_s or 0.0)
            for worker, at in known
            if worker.scope == scope and worker.step == self._step
        )
        return scope, max(entered)


def peers_of(current: Round, presences: Mapping[str, Presence]) -> dict[str, Peers]:
    """Return the peers of each role of a round. Linear in agents, and in ``PEERS_MAX`` ranks."""
    hosts: dict[str, list[str]] = {}
    for incarnation, seat in current.seats.items():
        if incarnation in presences:
            hosts.setdefault(seat.agent.role, []).append(incarnation)
    peers = {}
    for role, incarnations in hosts.items():
        chosen = [presences[host].whereabouts for host in spread(incarnations)]
        most, round_id = max(1, PEERS_MAX // len(chosen)), current.round_id
        peers[role] = Peers(
            chain.from_iterable(islice(host.received(round_id).values(), most) for host in chosen),
            chain.from_iterable(islice(host.step_times_s(round_id), most) for host in chosen),
            max(host.longest_step_s(round_id) for host in chosen),
            is_restarted=any(host.is_restarted for host in chosen),
        )
    return peers


def laggards(peers: Peers, host: Whereabouts, round_id: int, seat: Seat) -> dict[int, Laggard]:
    """Return the workers of one host that are behind, by local rank. Most cost next to nothing."""
    stay_s, behind = peers.stay_s, {}
    for local_rank, (worker, told_at) in host.received(round_id).items():
        waits_s = worker.progress_age_s
        if waits_s is None or waits_s <= stay_s:
            continue
        usual_s = lower_median(host.step_times_s(round_id), of_none=math.inf)
        if waits_s <= USUAL_STEPS * usual_s:
            continue  # the steps of its own host are longer than those of its peers, or not known
        if (lag := peers.lag(worker, told_at)) is not None:
            rank, name = seat.rank_first + local_rank, seat.agent.name
            standing = Standing(rank=rank, host=name, progress=worker)
            behind[local_rank] = Laggard(standing, lag)
    return behind


def named(behind: Sequence[Laggard], number: int) -> str:
    """Name ranks that are behind, e.g. "rank 3 on b at step 40", of ``number``; empty if none."""

    def place(laggard: Laggard) -> tuple[str, int | None, str]:
        return laggard.standing.host, laggard.standing.progress.step, laggard.lag.scope

    texts, left = list[str](), number
    in_order = sorted(behind, key=lambda one: (one.standing.progress.step or 0, one.standing.rank))
    for (host, step, scope), group in groupby(in_order, key=place):
        ranks = [laggard.standing.rank for laggard in group]
        if len(texts) < GROUPS_NAMED_MAX:
            who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {listed(map(str, ranks), 8)}"
            where = f", not in {scope!r} as the others" if scope else ""
            texts.append(f"{who} on {host} at step {step}{where}")
            left -= len(ranks)
    return ", ".join(texts) + (f" and {count(left, 'more rank')}" if left else "")
