"""Pure. The values an agent deals in: what it is told, what it says of itself."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from drumbeat.agent.core.notice import Leaving
from drumbeat.agent.core.watchdog.model import Exceeded, WorkerKey
from drumbeat.agent.failures.report import FailureReport, WorkerFailure
from drumbeat.agent.model.hang import Hang
from drumbeat.inprocess import DirectiveKind, HostReport, InprocessStep, Interruption
from drumbeat.model import Assignment, GroupBeat, HealthState, Standby, Stop

NO_ROUND = NO_ITERATION = -1
"""Before the first one. An iteration is one call of the training function in its process, by all
workers that take part in in-process restart."""


class WorkerStep(Struct, frozen=True, kw_only=True):
    """A worker said how far it is in an iteration.

    ``interrupted`` without an ``interruption``: it only heard of it. ``spec`` is as it was encoded:
    an agent compares it and hands it on, the coordinator may be newer.
    """

    worker: WorkerKey
    iteration: int
    kind: Literal["entered", "completed", "interrupted", "terminated"]
    interruption: Interruption | None = None
    spec: bytes = b""
    group: str = ""


class InprocessReport(HostReport, frozen=True, kw_only=True):
    """This host's report; ``spec`` is as it was encoded. Messages in it are shortened."""

    spec: bytes | None = None

    @property
    def news(self) -> InprocessReport | None:
        """What of it is told at once, per host and not per worker; the rest waits for a beat."""
        if self.step is InprocessStep.OUTSIDE and not self.terminated:
            return None
        if self.step is InprocessStep.ENTERED:
            return self
        return replace(self, ahead=(), spec=None, groups=())


class Abort(Struct, frozen=True, kw_only=True):
    """No iteration follows: end, with an exception for the caller of the function."""

    reason: str


class WorkerOrder(Struct, frozen=True, kw_only=True):
    """Tell a worker what to do in an iteration; the latest counts. A begin has its seat only."""

    worker: WorkerKey
    iteration: int
    kind: DirectiveKind | Abort


class HostHealth(Struct, frozen=True, kw_only=True):
    """What the health checks of this host say, and since when, on its monotonic clock."""

    state: HealthState
    reason: str = ""  # what is wrong
    since: float


class Beat(GroupBeat, frozen=True, kw_only=True):
    """The agent's whole actual state, with what made the group fail. See ``drumbeat.v1.Beat``."""

    inprocess: InprocessReport | None = None
    failure: Failure | None = None
    leaving: Leaving | None = None
    exceeded: tuple[Exceeded, ...] = ()  # limits that workers of the round exceed now
    health: HostHealth | None = None  # None: nothing is checked

    @property
    def news(self) -> Beat:
        """This beat without what can wait for the next one that is due anyway."""
        report = self.inprocess
        return self if report is None else replace(self, inprocess=report.news)


class Exit(Struct, frozen=True, kw_only=True):
    """The run is over; ``is_released``: it goes on without this agent, which has succeeded."""

    is_success: bool
    reason: str
    report: FailureReport | None = None
    is_released: bool = False
    is_stopped: bool = False  # the operator ended the run
    is_drained: bool = False  # or wants this agent to leave it
    exit_code: int = 1  # of this agent, unless the run succeeded
    cause: str = ""  # of a run that failed, e.g. AGENTS_MISSING


DesiredState = Standby | Assignment | Stop | Exit
"""What the coordinator wants of this agent."""


class Failure(WorkerFailure, frozen=True, kw_only=True):
    """One worker's failure; ``happened_at`` is this host's monotonic clock, until the next boot."""

    sequence: int = 0
    """Of this agent's records, set when it is written."""
    round_id: int
    role_rank: int
    happened_at: float
    hang: Hang | None = None
    """Set if the agent ended it because it hung."""
    matched_rules: tuple[int, ...] = ()
    """Restart rules whose pattern matches, from 1."""
    is_out_of_memory: bool = False
    suspect_rank: int | None = None
    """Whose host its exception accuses."""
