"""Pure. A notice before change, as this host's workers are told of it, and what they answer."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from drumbeat.model import NoticeKind, NoticeReport


class Leaving(Struct, frozen=True, kw_only=True):
    """This host will go away; ``until`` is the monotonic instant at which this agent leaves."""

    reason: str
    until: float


class Notice(Struct, frozen=True, kw_only=True):
    """What training is told. ``notice_id`` is above 0 and is not used again in the run.

    Workers stop at the ``proposed`` step until it is ``chosen``, and then save at it, or at the
    first one after it that training asks about; or until it is given up: a later one is proposed,
    or the notice is over. Both only rise. ``chosen_before`` is of an earlier notice of the round.
    """

    notice_id: int
    kind: NoticeKind
    reason: str
    time_left_s: float
    proposed: int | None = None
    chosen: int | None = None
    chosen_before: int | None = None
    round_id: int = 0
    is_over: bool = False

    @property
    def order(self) -> tuple[int, bool, int, int]:
        """What grows with each message about notices of a run; they may arrive late, or twice."""
        return self.notice_id, self.is_over, self.chosen or 0, self.proposed or 0


class WorkerAnswer(Struct, frozen=True, kw_only=True):
    """What one worker says of a notice: the latest step it asked about, ``None`` if it never has.

    ``is_missed``: it has passed the proposed step, or the chosen one without saving. ``is_ready``:
    it will stop at the proposed one. ``is_saved``: it has saved, at the chosen step or after it.
    """

    asked: int | None = None
    is_missed: bool = False
    is_ready: bool = True
    is_saved: bool = False


def report_of(
    notice: Notice, answers: Collection[WorkerAnswer], step_time_s: float | None
) -> NoticeReport:
    """Return what a host's workers say together of the notice they were told."""
    askers = [answer for answer in answers if answer.asked is not None]
    return NoticeReport(
        notice_id=notice.notice_id,
        proposed=notice.proposed,
        chosen=notice.chosen,
        asked=max((answer.asked for answer in askers if answer.asked is not None), default=None),
        is_missed=any(answer.is_missed for answer in askers),
        is_ready=notice.proposed is not None and all(answer.is_ready for answer in answers),
        is_saved=notice.chosen is not None and all(answer.is_saved for answer in askers),
        step_time_s=step_time_s,
    )
