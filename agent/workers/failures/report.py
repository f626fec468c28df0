"""Pure. A failed run's report as a value, and as text: the root cause first, then the victims."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agent.workers.failures.exit_status import describe_exit
from agent.workers.failures.stragglers import Position, describe_positions
from drumbeat.format import count, printable
from drumbeat.inprocess import InterruptionKind

WIDTH = 72


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedWorker:
    """A failure record of the run, from whatever host. See ``drumbeat.v1.FailureRecord``.

    ``agent`` is its agent's name, ``incarnation`` that agent's process. ``evidence`` and
    ``stacks`` are those of a hang.
    """

    host: str
    rank: int
    local_rank: int
    group_rank: int = 0
    role: str = ""
    agent: str = ""
    incarnation: str = ""
    pid: int = 0
    exit_code: int
    message: str = ""
    traceback: str = ""
    stderr_tail: str = ""
    explanation: str = ""
    is_stopped_by_agent: bool = False
    interruption: InterruptionKind | None = None
    iteration: int = 0
    evidence: str = ""
    stacks: str = ""

    @property
    def place(self) -> tuple[str, int, int]:
        """What identifies the worker in its round, of which there may be several records."""
        return self.incarnation, self.group_rank, self.local_rank

    @property
    def is_survived(self) -> bool:
        """Whether the worker lived on."""
        return self.interruption is not None and self.interruption.is_survived

    @property
    def headline(self) -> str:
        """Who it was, as in a sentence."""
        return f"rank {self.rank} on {self.agent or self.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReport:
    """Why a run failed. See ``drumbeat.v1.FailureReport``.

    ``victims`` and ``positions`` are bounded; the counts are of all of them. ``more`` says
    where the rest is, if the report was cut.
    """

    reason: str
    earlier: tuple[str, ...] = ()
    """What ended the rounds before, a line each."""
    root_causes: tuple[FailedWorker, ...] = ()
    """Several only if they are too close in time to be told apart."""
    victims: tuple[FailedWorker, ...] = ()
    victims_count: int = 0
    world_size: int = 0
    positions: tuple[Position, ...] = ()
    positions_count: int = 0
    more: str = ""


def render_report(report: FailureReport, name: str) -> str:
    """Return the report as text; ``name`` says what ran. Control characters are written out."""
    lines = ["=" * WIDTH, f"{name} FAILED", report.reason, *_sections(report)]
    if report.more:
        lines += ["-" * WIDTH, report.more]
    lines.append("=" * WIDTH)
    return printable("\n".join(lines))


def _sections(report: FailureReport) -> Iterator[str]:
    causes = report.root_causes
    if report.earlier:
        yield "before that:"
        for reason in report.earlier:
            yield f"  {reason}"
    if not causes and not report.victims_count and not report.positions:
        return  # it did not end because of a worker
    yield "-" * WIDTH
    if not causes:
        yield "Root cause: unknown, no record of it arrived"
    elif len(causes) == 1:
        yield "Root cause:"
    else:
        yield f"Root cause: one of {len(causes)}, too close in time to be told apart:"
    for worker in causes:
        yield from _cause(worker)
    if report.victims_count:
        yield "-" * WIDTH
        size = count(report.world_size, "worker")
        yield f"Victims: {report.victims_count} of {size}, ended because of it"
        for worker in report.victims:
            yield f"  {_victim(worker)}"
        # A worker may be there twice, or be a cause as well.
        named = {worker.place for worker in report.victims} - {cause.place for cause in causes}
        if (rest := report.victims_count - len(named)) > 0:
            who = count(rest, "other" if report.victims else "worker")
            yield f"  {who} stopped by their agents"
    if report.positions:
        yield "-" * WIDTH
        yield from describe_positions(
            report.positions, count_all=report.positions_count, world_size=report.world_size
        )


def _cause(worker: FailedWorker) -> Iterator[str]:
    name = f" (agent {worker.agent})" if worker.agent not in ("", worker.host) else ""
    yield f"  host      : {worker.host}{name}"
    yield (
        f"  rank      : {worker.rank} (local rank {worker.local_rank}, "
        f"group rank {worker.group_rank}, role {worker.role})"
    )
    if worker.interruption is not None:
        yield f"  iteration : {worker.iteration}, interrupted by {worker.interruption.label}"
    pid = f" (pid {worker.pid})" if worker.pid else ""
    if worker.is_survived:
        yield f"  process   : lived on{pid}"
    else:
        yield f"  ended by  : {describe_exit(worker.exit_code)}{pid}"
    yield from _inline("likely why", worker.explanation)
    yield from _inline("message   ", worker.message)
    yield from _inline("seen      ", worker.evidence)
    yield from _block("stacks    ", worker.stacks)
    yield from _block("traceback ", worker.traceback)
    yield from _block("last lines of stderr", worker.stderr_tail)


def _inline(title: str, text: str) -> Iterator[str]:
    if text:
        yield f"  {title}: {_indented(text, 14).lstrip()}"


def _block(title: str, text: str) -> Iterator[str]:
    if text:
        yield f"  {title}:"
        yield _indented(text.rstrip(), 4)


def _victim(worker: FailedWorker) -> str:
    how = describe_exit(worker.exit_code)
    if worker.is_survived:
        how = f"interrupted iteration {worker.iteration}"
    why = ", stopped by its agent" if worker.is_stopped_by_agent else ""
    message = f": {worker.message.splitlines()[0]}" if worker.message.strip() else ""
    return f"{worker.headline}, {how}{why}{message}"


def _indented(text: str, width: int) -> str:
    return "\n".join(" " * width + line for line in text.splitlines())
