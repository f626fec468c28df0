"""Pure. Which hang ended a worker, judged by the signals it got, not by time alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from drumbeat.agent.core.watchdog import model as msg
from drumbeat.agent.model.hang import Hang

# A worker that ends so soon after a signal that it could handle ends because of the hang, if its
# exit code does not tell.
BLAMED_WITHIN_S = 30.0
_SIGTERM, _SIGKILL = 15, 9


@dataclass(slots=True, eq=False)
class Blame:
    """The hangs of one worker that it may end because of, and the signals it got for them.

    ``is_condemned``: SIGTERM and SIGKILL follow on its latest hang, whatever it does.
    """

    hang: Hang | None = None
    is_condemned: bool = False
    sent: dict[int, Hang] = field(default_factory=dict)
    signalled: msg.Signal | None = None
    signalled_at: float = 0.0

    def reported(self, report: msg.Report) -> None:
        """Take note of a hang for which a signal follows."""
        self.hang, self.signalled = report.hang, None
        self.is_condemned = not report.pid and report.signal in (None, _SIGKILL)

    def sends(self, signal: msg.Signal, now: float) -> None:
        """Take note of a signal."""
        self.signalled, self.signalled_at = signal, now
        if self.hang is not None and not signal.pid:
            self.sent[signal.signum] = self.hang

    def hang_that_ended(self, exit_code: int, now: float) -> Hang | None:
        """Return the hang that ended the worker, None if none did."""
        if self.is_condemned:
            return self.hang
        if exit_code < 0 and -exit_code in self.sent:
            return self.sent[-exit_code]
        if self.hang is None or self.signalled is None:
            return None
        # It was to handle a signal of its own choice. If it went on after that, it has recovered.
        is_sigterm = not self.signalled.pid and self.signalled.signum == _SIGTERM
        is_recent = now - self.signalled_at < BLAMED_WITHIN_S
        return self.hang if is_recent and (is_sigterm or exit_code != 0) else None
