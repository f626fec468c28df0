"""Pure. A notice before change: what is journaled of it, and what hosts say of it."""

from __future__ import annotations

from msgspec import Struct

from drumbeat.model import NoticeKind


class Leaving(Struct, frozen=True, kw_only=True):
    """An agent says that its host will go away."""

    reason: str
    time_left_s: float


class PendingNotice(Struct, frozen=True, kw_only=True):
    """A notice of the round that runs; ``until_s`` is on the coordinator's clock.

    ``proposed`` is not chosen yet; ``chosen_before`` was, for an earlier notice of the round.
    """

    notice_id: int
    kind: NoticeKind
    reason: str
    until_s: float
    chosen: int | None = None
    proposed: int | None = None
    chosen_before: int | None = None


class NoticeGiven(Struct, frozen=True, kw_only=True):
    """Training is told; ids rise and are not used again in the run.

    The pending one once more: less time is left.
    """

    notice: PendingNotice
    at_s: float = 0.0


class StepProposed(Struct, frozen=True, kw_only=True):
    """All ranks shall stop at this step until it is chosen; one proposed before is given up."""

    notice_id: int
    step: int


class StepChosen(Struct, frozen=True, kw_only=True):
    """All ranks shall save at this step, or at the first after it that training asks about."""

    notice_id: int
    step: int


class NoticeEnded(Struct, frozen=True, kw_only=True):
    """All have saved, or nothing more is waited for; what the notice is about goes on."""

    notice_id: int
    reason: str
    at_s: float = 0.0
    is_saved: bool = False  # by all


NoticeRecord = NoticeGiven | StepProposed | StepChosen | NoticeEnded
