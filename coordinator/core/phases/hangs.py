"""Pure. The hangs of a running round: evidence is taken from all ranks before any is ended."""

from __future__ import annotations

from drumbeat.coordinator.core.effects import EndHeld, TakeEvidence
from drumbeat.coordinator.core.failures.hang_diagnosis import LOST, diagnose, diagnose_lost
from drumbeat.coordinator.core.failures.hang_evidence import SeenRanks
from drumbeat.coordinator.core.model import ExpiredLimit, HangDiagnosis, HungRank, Round
from drumbeat.coordinator.core.phases.phase import RunContext
from drumbeat.coordinator.core.run.records import HangJudged, HangOver
from drumbeat.coordinator.observe.goodput.stretches import Cause, StretchEnd
from drumbeat.model import HangKind
from drumbeat.text.durations import format_duration, nanoseconds

# After so long an undecided hang is judged again, when another limit expires.
ASK_AGAIN_S = 10.0
# A limit on collectives is one of all ranks: none has moved for this share of it. Agents notice
# a move some time later.
MOVING_SHARE = 0.8
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
        self._limits: dict[int, ExpiredLimit] = {}  # by rank; of several the one that is held
        self._judged: dict[str, int] = {}  # the highest number that a judgement was about
        self._news: set[str] = set()  # participants with limits that no judgement was about
        self._asked: int | None = None  # the question that has no answer yet
        self._questions = 0
        self._ask_at = 0.0  # not before: ranks still moved when they were asked last
        self._untold: set[str] = set()  # participants that hold workers of which all is known
        # Participants that were not heard since this coordinator took the hang over.
        self._unheard = set(current.seats) if run.state.current_hang is not None else set()

    def reported(self, incarnation: str, expired: tuple[ExpiredLimit, ...]) -> None:
        """Take in which limits the workers of a participant exceed now, as often as it says so."""
        self._unheard.discard(incarnation)
        self._forget(incarnation)
        if not expired:
            return
        self._expired[incarnation] = expired
        rank_first = self._round.seats[incarnation].rank_first
        for limit in expired:
            rank = rank_first + limit.local_rank
            if rank not in self._limits or limit.is_held:
                self._limits[rank] = limit
        if max(limit.number for limit in expired) > self._judged.get(incarnation, 0):
            self._news.add(incarnation)
        elif any(limit.is_held for limit in expired):
            self._untold.add(incarnation)  # again: it may not have been heard

    def lost(self, incarnation: str, *, now: float) -> None:
        """Take in that a participant is lost: if others exceed limits, they wait for its ranks."""
        self._unheard.discard(incarnation)
        self._forget(incarnation)
        if not self._limits or self._run.state.current_hang is not None:
            return
        seat = self._round.seats[incarnation]
        lost = [
            HungRank(
                worker=seat.ranks_of(local_rank),
                incarnation=incarnation,
                agent=seat.agent.name,
                host=seat.agent.host,
                place=LOST,
            )
            for local_rank in range(seat.agent.local_world_size)
        ]
        self._asked = None
        diagnosis = diagnose_lost(self._round.round_id, lost, self._limits, now=now)
        self._judge(diagnosis, seat.agent.name, now)

    def review(self, *, now: float) -> None:
        """Ask for evidence if a limit is news, and journal the end of a hang."""
        hang = self._run.state.current_hang
        if hang is not None and self._is_over(hang):
            lasted = format_duration(max(0.0, now - hang.since_s))
            reason = f"training goes on; it had stood still for {lasted}"
            self._run.decide(HangOver(round_id=hang.round_id, reason=reason, at_s=now))
        if self._asked is not None or not self._news or now < self._ask_at:
            return
        if hang is not None and not self._is_worth_asking(hang, now):
            self._note_judged()
            return
        self._questions += 1
        self._asked = self._questions
        limits = self._limits.values()
        may_signal = any(limit.is_held and not _is_collective(limit) for limit in limits)
        question = TakeEvidence(
            run_id=self._run.state.key,
            round_id=self._round.round_id,
            question=self._asked,
            may_signal=may_signal,
        )
        self._run.effects.append(question)

    def answered(self, question: int, seen: SeenRanks, *, now: float) -> None:
        """Judge what was seen. Linear in workers."""
        if question != self._asked:
            return
        self._asked = None
        if self._limits and all(map(_is_collective, self._limits.values())):
            limit_s = min(limit.limit_s for limit in self._limits.values())
            if seen.moved_age_s < MOVING_SHARE * limit_s:
                # Some ranks wait for long, and others go on.
                self._ask_at = now + limit_s - seen.moved_age_s
                return
            if not seen:
                self._ask_at = now + ASK_AGAIN_S
                return
        self._note_judged()
        if not self._limits:
            return  # the workers went on meanwhile
        seats = self._round.seats
        diagnosis = diagnose(self._round.round_id, seen, self._limits, now=now)
        host = diagnosis.causes[0].agent if diagnosis.causes else ""
        first = min(self._expired, key=lambda i: seats[i].group_rank)
        self._judge(diagnosis, host or seats[first].agent.name, now)

    def effects(self) -> list[EndHeld]:
        """Return which agents may end the workers they hold; repeated until they have."""
        presences, orders = self._run.members.presences, []
        for incarnation in sorted(self._untold):
            presence = presences.get(incarnation)
            if presence is not None and presence.session_id is not None:
                orders.append(
                    EndHeld(
                        session_id=presence.session_id,
                        round_id=self._round.round_id,
                        number=self._judged[incarnation],
                    )
                )
        self._untold.clear()
        return orders

    def _judge(self, hang: HangDiagnosis, host: str, now: float) -> None:
        since = self._run.members.observer.meter.marks.progress
        since = nanoseconds(hang.since_s) if since is None else since
        end = StretchEnd(cause=Cause.HANG, host=host, since=since)
        if self._run.state.is_rehearsed(now):
            end = StretchEnd(cause=Cause.REHEARSED, since=since)
        self._run.close_stretch(end, now=now)
        self._run.decide(HangJudged(hang=hang, at_s=now))

    def _is_worth_asking(self, hang: HangDiagnosis, now: float) -> bool:
        """Return whether a limit that expired later may tell more than the judgement there is.

        All ranks of a hang exceed their limits one after the other.
        """
        if hang.is_held:
            return False  # its workers are being killed
        is_held = any(limit.is_held for limit in self._limits.values())
        return is_held or (not hang.causes and now - hang.at_s >= ASK_AGAIN_S)

    def _is_over(self, hang: HangDiagnosis) -> bool:
        """Return whether the workers went on: they exceed nothing any more, and have not ended."""
        if hang.is_held or self._expired or self._asked is not None or self._unheard:
            return False
        has_progressed = self._run.members.observer.meter.marks.progress is not None
        return has_progressed or hang.limit.kind not in _ENDED_BY_A_HEARTBEAT

    def _note_judged(self) -> None:
        for incarnation in self._news:
            expired = self._expired[incarnation]
            latest = max(limit.number for limit in expired)
            self._judged[incarnation] = max(latest, self._judged.get(incarnation, 0))
            if any(limit.is_held for limit in expired):
                self._untold.add(incarnation)
        self._news.clear()

    def _forget(self, incarnation: str) -> None:
        """Forget what a participant said last."""
        self._news.discard(incarnation)
        self._untold.discard(incarnation)
        for limit in self._expired.pop(incarnation, ()):
            rank = self._round.seats[incarnation].rank_first + limit.local_rank
            self._limits.pop(rank, None)


def _is_collective(limit: ExpiredLimit) -> bool:
    return limit.kind is HangKind.COLLECTIVE
