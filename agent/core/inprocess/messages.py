"""Pure. What the console says of an in-process restart: one line, once it has worked.

Or a line of the interruption, if what follows takes so long that a user would wonder;
and what an iteration waits for, at growing intervals.
"""

from __future__ import annotations

from agent.core import effects as fx

WONDER_S = 2.0

TRACEBACKS_TOLD_MAX = 4
"""Workers of one host whose tracebacks are shown with one restart; they may all fail at once."""


class RestartNotices:
    """The interruption that no restart has followed yet, if there is one.

    ``tell_at`` is when the interruption is told by itself, ``wait_at`` when it is told what
    is waited for, if that is still so.
    """

    def __init__(self, round_id: int) -> None:
        self._round_id = round_id
        self.tell_at: float | None = None
        self.wait_at: float | None = None
        self._waits_since = 0.0
        self._since: float | None = None
        self._why = ""
        self._tracebacks: dict[int, str] = {}

    def failed(self, local_rank: int, traceback: str, *, now: float) -> None:
        """Note what a worker of this host did to the iteration."""
        self._since = now if self._since is None else self._since
        if traceback and len(self._tracebacks) < TRACEBACKS_TOLD_MAX:
            self._tracebacks.setdefault(local_rank, traceback)

    def interrupted(self, why: str, *, now: float) -> None:
        """Note that it was interrupted everywhere, and why."""
        self._since = now if self._since is None else self._since
        self._why, self.tell_at = why, now + WONDER_S

    def review(self, *, now: float) -> list[fx.Effect]:
        """Tell of an interruption that was not followed by anything for long."""
        if self.tell_at is None or now < self.tell_at:
            return []
        return [self._tell("iteration interrupted", self._why)]

    def began(self, iteration: int, *, now: float) -> list[fx.Effect]:
        """Tell that the function runs again, if it was interrupted before."""
        if self._since is None:
            return []
        took = f"iteration {iteration} began {now - self._since:.2f} s later"
        self._since = None
        why = f"{self._why}; {took}" if self._why else took
        return [self._tell("restarted in process", why)]

    def waits(self, text: str, *, now: float) -> list[fx.Effect]:
        """Tell what workers of this host wait for, empty if for nothing; if it takes long."""
        if not text:
            self.wait_at = None
            return []
        if self.wait_at is None:
            self._waits_since, self.wait_at = now, now + WONDER_S
        if now < self.wait_at:
            return []
        waited_s = now - self._waits_since
        self.wait_at = now + max(WONDER_S, waited_s)
        why = f"{text}, {waited_s:.0f} s so far"
        return [fx.Tell(what="iteration waiting", why=why, round_id=self._round_id)]

    def _tell(self, what: str, why: str) -> fx.Tell:
        told = sorted(self._tracebacks.items())
        details = "\n".join(f"local rank {rank}:\n{text.rstrip()}" for rank, text in told)
        self.tell_at, self._why, self._tracebacks = None, "", {}
        return fx.Tell(what=what, why=why, round_id=self._round_id, details=details)
