"""Pure. The hangs of a running round: evidence is taken from all ranks before any is ended."""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.core.effects import EndHeld, TakeEvidence
from coordinator.core.failures.hang_diagnosis import RankEvidence, diagnose, diagnose_lost
from coordinator.core.model import (
    ExpiredLimit,
    HangDiagnosis,
    HangKind,
    HungRank,
    Round,
    WorkerRanks,
)
from coordinator.core.phases.phase import RunContext
from coordinator.core.progress.goodput import Cause, Found, nanoseconds
from coordinator.core.run.records import HangJudged, HangOver
from drumbeat.durations import format_duration

# After so long an undecided hang is judged again, when another limit expires.
ASK_AGAIN_S = 10.0
_ENDED_BY_A_HEARTBEAT = (HangKind.PROGRESS, HangKind.STARTUP)


class Hangs:
    """The hangs of one round. Not thread-safe; one owner calls it.

    Agents say with each beat which limits their workers exceed. When one is news, the stacks of all
    workers are asked for, and the answer is judged. Agents that hold a worker to kill it are then
    told to. All but the judgement cost the same in a run of any size.
    """

    def __init__(self, run: RunContext, current: Round) -> None:
        self._run, self._round = run, current
        self._expired: dict[str, tuple[ExpiredLimit, ...]] = {}  # by incarnation
        self._judged: dict[str, int] = {}  # the highest number that a judgement was about
        self._asked: int | None = None  # the question that has no answer yet
        self._questions = 0
        self._untold: set[str] = set()

    def reported(self, incarnation: str, expired: tuple[ExpiredLimit, ...]) -> None:
        """Take in which limits the workers of a participant exceed now, as often as it says so."""
        if expired:
            self._expired[incarnation] = expired
            if any(each.is_held for each in expired):
                self._untold.add(incarnation)
        else:
            self._expired.pop(incarnation, None)

    def lost(self, incarnation: str, *, now: float) -> None:
        """Take in that a participant is lost: if others exceed limits, they wait for its ranks."""
        self._expired.pop(incarnation, None)
        self._untold.discard(incarnation)
        if not self._expired or self._run.state.current_hang is not None:
            return
        seat = self._round.seats[incarnation]
        agent = seat.agent
        ranks = [
            HungRank(
                worker=WorkerRanks(
                    rank=seat.rank_first + i,
                    local_rank=i,
                    group_rank=seat.group_rank,
                    role_rank=seat.role_rank_first + i,
                    role=agent.role,
                ),
                incarnation=incarnation,
                agent=agent.name,
                host=agent.host,
                place="on a host that was lost",
            )
            for i in range(agent.local_world_size)
        ]
        found = diagnose_lost(self._round.round_id, ranks, self._limits(), now=now)
        self._asked = None
        self._judge(found, agent.name, now)

    def review(self, *, now: float) -> None:
        """Ask for evidence if a limit is news, and journal the end of a hang."""
        hang = self._run.state.current_hang
        if hang is not None and self._is_over(hang):
            lasted = format_duration(max(0.0, now - hang.since_s))
            reason = f"training goes on; it had stood still for {lasted}"
            self._run.decide(HangOver(round_id=hang.round_id, reason=reason, at_s=now))
        if self._asked is not None or not self._has_news():
            return
        if hang is not None and not self._is_worth_asking(hang, now):
            self._note_judged()
            return
        self._questions += 1
        self._asked = self._questions
        may_signal = any(each.is_held for each in self._limits().values())
        question = TakeEvidence(
            run_id=self._run.state.key,
            round_id=self._round.round_id,
            question=self._asked,
            may_signal=may_signal,
        )
        self._run.effects.append(question)

    def answered(self, question: int, ranks: Iterable[RankEvidence], *, now: float) -> None:
        """Judge what was seen. Linear in workers."""
        if question != self._asked:
            return
        self._asked = None
        limits = self._limits()
        self._note_judged()
        if not limits:
            return  # the workers went on meanwhile
        seats = self._round.seats
        found = diagnose(self._round.round_id, ranks, limits, now=now)
        host = found.causes[0].agent if found.causes else ""
        first = min(self._expired, key=lambda i: seats[i].group_rank)
        self._judge(found, host or seats[first].agent.name, now)

    def effects(self) -> list[EndHeld]:
        """Return which agents may end the workers they hold; repeated until they have."""
        told = []
        for incarnation in sorted(self._untold):
            presence = self._run.members.presences.get(incarnation)
            number = self._judged.get(incarnation)
            if number is None:
                continue
            if presence is not None and presence.session_id is not None:
                told.append(
                    EndHeld(
                        session_id=presence.session_id,
                        round_id=self._round.round_id,
                        number=number,
                    )
                )
            self._untold.discard(incarnation)
        return told

    def _judge(self, found: HangDiagnosis, host: str, now: float) -> None:
        since = self._run.members.meter.progress
        since = nanoseconds(found.since_s) if since is None else since
        self._run.close_stretch(Found(cause=Cause.HANG, host=host, since=since), now=now)
        self._run.decide(HangJudged(hang=found, at_s=now))

    def _is_over(self, hang: HangDiagnosis) -> bool:
        """Return whether the workers went on: they exceed nothing any more, and have not ended."""
        if hang.is_held or self._expired or self._asked is not None:
            return False
        has_progressed = self._run.members.meter.progress is not None
        return has_progressed or hang.limit.kind not in _ENDED_BY_A_HEARTBEAT

    def _is_worth_asking(self, hang: HangDiagnosis, now: float) -> bool:
        """Return whether a limit that expired later may tell more than the judgement there is.

        All ranks of a hang exceed their limits one after the other.
        """
        if hang.is_held:
            return False  # its workers are being killed
        is_held = any(each.is_held for each in self._limits().values())
        return is_held or (not hang.causes and now - hang.at_s >= ASK_AGAIN_S)

    def _has_news(self) -> bool:
        return any(
            each.number > self._judged.get(incarnation, 0)
            for incarnation, expired in self._expired.items()
            for each in expired
        )

    def _note_judged(self) -> None:
        for incarnation, expired in self._expired.items():
            latest = max(each.number for each in expired)
            self._judged[incarnation] = max(latest, self._judged.get(incarnation, 0))

    def _limits(self) -> dict[int, ExpiredLimit]:
        """Return what has expired by rank; of several of one rank the one that is held."""
        seats = self._round.seats
        found: dict[int, ExpiredLimit] = {}
        for incarnation, expired in self._expired.items():
            for each in expired:
                rank = seats[incarnation].rank_first + each.local_rank
                if rank not in found or each.is_held:
                    found[rank] = each
        return found
