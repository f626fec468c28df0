"""Pure. The report of a failed run, as a value and as text: causes first, then victims."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from drumbeat.agent.failures.exit_status import describe_exit
from drumbeat.agent.model.hang import seconds
from drumbeat.inprocess import InterruptionKind
from drumbeat.model import HangGroup
from drumbeat.text.format import are, count, printable, ranges

WIDTH = 72
PLACES_MAX = 20  # more places than this are counted only; those with the fewest workers come first
RANGES_MAX = 8  # more ranges of ranks than this in a line are counted only


class WorkerFailure(Struct, frozen=True, kw_only=True):
    """How one worker failed, on whatever host. See ``drumbeat.v1.FailureRecord``."""

    rank: int
    local_rank: int
    group_rank: int = 0
    pid: int = 0
    exit_code: int = 0
    message: str = ""
    traceback: str = ""
    stderr_tail: str = ""
    output_files: tuple[str, ...] = ()  # on its host, with all it wrote
    explanation: str = ""  # the likely why, as far as its host can tell
    is_stopped_by_agent: bool = False
    # What it did to ``iteration`` of in-process restart; ``None`` in other rounds.
    interruption: InterruptionKind | None = None
    iteration: int = 0

    @property
    def is_survived(self) -> bool:
        """Whether the worker lived on."""
        return self.interruption is not None and self.interruption.is_survived


class FailedWorker(WorkerFailure, frozen=True, kw_only=True):
    """A failure record of the run. ``evidence`` and ``stacks`` are those of a hang."""

    host: str
    role: str = ""
    agent: str = ""  # its agent's name
    incarnation: str = ""  # its agent's process
    evidence: str = ""
    stacks: str = ""

    @property
    def headline(self) -> str:
        """Who it was, as in a sentence."""
        return f"rank {self.rank} on {self.agent or self.host}"


class Position(Struct, frozen=True, kw_only=True):
    """Where a worker was. ``step`` is -1 if it named none; ages are seconds before the failure."""

    rank: int
    host: str
    step: int = -1
    scope: str = ""
    scope_age_s: float = 0.0
    heartbeat_age_s: float | None = None


class HangDiagnosis(Struct, frozen=True, kw_only=True):
    """Why the round hung. See ``drumbeat.v1.HangDiagnosis``."""

    summary: str
    groups: tuple[HangGroup, ...] = ()
    groups_count: int = 0


class FailureReport(Struct, frozen=True, kw_only=True):
    """Why a run failed. See ``drumbeat.v1.FailureReport``.

    ``victims`` and ``positions`` are bounded; the counts are of all of them.
    """

    reason: str
    earlier: tuple[str, ...] = ()  # what ended the rounds before, a line each
    root_causes: tuple[FailedWorker, ...] = ()  # several if too close in time to tell apart
    victims: tuple[FailedWorker, ...] = ()
    victims_count: int = 0
    world_size: int = 0
    positions: tuple[Position, ...] = ()
    positions_count: int = 0
    more: str = ""  # where the rest is, if the report was cut
    goodput: str = ""  # what the time of the run went into
    hang: HangDiagnosis | None = None


def render_report(report: FailureReport, name: str) -> str:
    """Return the report as text; ``name`` says what ran. Control characters are written out."""
    head = [_line(f"{name} FAILED"), _line(report.reason)]
    if report.earlier:
        head += ["before that:", *(f"  {_line(reason)}" for reason in report.earlier)]
    if report.goodput:
        head.append(_line(f"goodput: {report.goodput}"))
    sections: list[Iterable[str]] = [head]
    if report.root_causes or report.victims_count or report.positions or report.hang:
        sections.append(_causes(report.root_causes, report.hang))
    if report.hang is not None and report.hang.groups:
        sections.append(_hang_groups(report.hang))
    if report.victims_count:
        sections.append(_victims(report))
    if report.positions:
        sections.append(describe_positions(report))
    if report.more:
        sections.append([_line(report.more)])
    bar, line = "=" * WIDTH, "-" * WIDTH
    text = f"\n{line}\n".join(map("\n".join, sections))
    return printable(f"{bar}\n{text}\n{bar}")


def _hang_groups(hang: HangDiagnosis) -> Iterator[str]:
    """Yield where all ranks were when the round hung, with the stack of one rank of each group."""
    yield "Where all ranks were when the round hung:"
    for group in hang.groups:
        ranks = f"{count(group.count, 'rank')} ({_line(group.ranks)})"
        role = "the cause" if group.is_cause else _line(group.activity)
        yield f"  {ranks} {are(group.count)} {_line(group.place)}: {role}"
        if group.collective:
            yield f"    in {_line(group.collective)}"
        if group.stack and not group.is_cause:
            yield _indented(group.stack.rstrip(), 4)
    if (rest := hang.groups_count - len(hang.groups)) > 0:
        yield f"  {count(rest, 'other place')}"


def _heading(causes: int, hang: HangDiagnosis | None) -> str:
    if not causes:
        why = "unknown, no record of it arrived" if hang is None else _line(hang.summary)
        return f"Root cause: {why}"
    why = "" if hang is not None else ", too close in time to be told apart"
    return "Root cause:" if causes == 1 else f"Root cause: one of {causes}{why}:"


def _causes(causes: tuple[FailedWorker, ...], hang: HangDiagnosis | None = None) -> Iterator[str]:
    yield _heading(len(causes), hang)
    for worker in causes:
        name = f" (agent {worker.agent})" if worker.agent not in ("", worker.host) else ""
        yield _line(f"  host      : {worker.host}{name}")
        yield (
            f"  rank      : {worker.rank} (local rank {worker.local_rank}, "
            f"group rank {worker.group_rank}, role {_line(worker.role)})"
        )
        if worker.interruption is not None:
            yield f"  iteration : {worker.iteration}, interrupted by {worker.interruption.label}"
        pid = f" (pid {worker.pid})" if worker.pid else ""
        if worker.is_survived:
            yield f"  process   : lived on{pid}"
        elif worker.is_stopped_by_agent and not worker.exit_code:
            yield f"  ended by  : its agent, with the round{pid}"
        else:
            yield f"  ended by  : {describe_exit(worker.exit_code)}{pid}"
        for title, text in (
            ("likely why", worker.explanation),
            ("message   ", worker.message),
            ("seen      ", worker.evidence),
            ("output    ", " and ".join(worker.output_files)),
        ):
            if text:
                yield f"  {title}: {_indented(text, 14).lstrip()}"
        for title, text in (
            ("stacks    ", worker.stacks),
            ("traceback ", worker.traceback),
            ("last lines of stderr", worker.stderr_tail),
        ):
            if text:
                yield f"  {title}:\n{_indented(text.rstrip(), 4)}"


def _victims(report: FailureReport) -> Iterator[str]:
    size = count(report.world_size, "worker")
    yield f"Victims: {report.victims_count} of {size}, ended because of it"
    for worker in report.victims:
        how = describe_exit(worker.exit_code)
        if worker.is_survived:
            how = f"interrupted iteration {worker.iteration}"
        why = ", stopped by its agent" if worker.is_stopped_by_agent else ""
        message = f": {worker.message.splitlines()[0]}" if worker.message.strip() else ""
        yield f"  {_line(worker.headline)}, {how}{why}{message}"
    # A worker may be there twice, or be a cause as well.
    named = set(map(_place, report.victims)) - set(map(_place, report.root_causes))
    if (rest := report.victims_count - len(named)) > 0:
        yield f"  {count(rest, 'other' if report.victims else 'worker')} stopped by their agents"


def _place(worker: FailedWorker) -> tuple[str, int, int]:
    """Return what identifies a worker in its round, of which there may be several records."""
    return worker.incarnation, worker.group_rank, worker.local_rank


def _line(text: str) -> str:
    """Write out what would begin another line: only ours do."""
    return printable(text).replace("\n", "\\n")


def _indented(text: str, width: int) -> str:
    return "\n".join(" " * width + line for line in printable(text).splitlines())


def describe_positions(report: FailureReport) -> Iterator[str]:
    """Yield a line for each place, which is a step and a scope, with the oldest ages there."""
    yield "Who was where:"
    places: dict[tuple[int, str], list[Position]] = {}
    for position in report.positions:
        places.setdefault((position.step, position.scope), []).append(position)
    # First the places with the fewest workers; of equals, the one that is behind.
    ordered = sorted(places.items(), key=lambda place: (len(place[1]), place[0]))
    for (step, scope), there in ordered[:PLACES_MAX]:
        parts = [f"step {step}" if step >= 0 else "no step"]
        if scope:
            parts.append(
                f"in {scope!r} for {seconds(max(position.scope_age_s for position in there))}"
            )
        ages = [
            position.heartbeat_age_s for position in there if position.heartbeat_age_s is not None
        ]
        if ages:
            parts.append(f"last heartbeat {seconds(max(ages))} before")
        yield f"  {', '.join(parts)}: {_ranks(there)}"
    if rest := ordered[PLACES_MAX:]:
        workers = count(sum(len(there) for _, there in rest), "worker")
        yield f"  {count(len(rest), 'other place')}: {workers}"
    if unlisted := report.positions_count - len(report.positions):
        yield f"  not listed: {count(unlisted, 'worker')}"
    if (silent := report.world_size - report.positions_count) > 0:
        yield f"  unknown: {count(silent, 'worker')}"


def _ranks(there: list[Position]) -> str:
    """Write ranks as ranges; a single worker comes with its host."""
    if len(there) == 1:
        return f"rank {there[0].rank} on {_line(there[0].host)}"
    rows = ranges(position.rank for position in there).split(",")
    more = ", ..." if len(rows) > RANGES_MAX else ""
    return f"{len(there)} workers, ranks {', '.join(rows[:RANGES_MAX])}{more}"
