"""Pure. What is decided on a run and why, as bounded lines for logs and reports."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

from drumbeat.coordinator.core.effects import Decided
from drumbeat.coordinator.core.failures.root_cause import describe
from drumbeat.coordinator.core.model import AgentIdentity, FailureRecord, HangDiagnosis, Round
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.observe.steps.worker_progress import NOWHERE, Standings, furthest_behind
from drumbeat.model import Health, HealthState
from drumbeat.text.durations import format_duration
from drumbeat.text.format import are, count

NAMES_SHOWN_MAX = 10

_COULD_NOT_START = " could not start: "


def all_succeeded(current: Round, excused: Collection[str], lost: int = 0) -> str:
    """Say that all succeeded but those ``lost`` in process, on ``excused`` hosts all of them."""
    if not lost:
        return "all workers succeeded"
    whose = f", all of {hosts(current, excused)} among them" if excused else ""
    size = current.world_size
    return f"{size - lost} of {size} workers succeeded, without {lost} lost in process{whose}"


def unfit(
    members: Mapping[str, AgentIdentity],
    health_of: Mapping[str, Health],
    left_out: Collection[str] = (),
) -> str:
    """Say of the first of some agents why it gets no place in a round; empty if there is none.

    Who is left out does not count, being outside anyway.
    """
    number = len(health_of) - sum(incarnation in health_of for incarnation in left_out)
    if not number:
        return ""
    incarnation = next(incarnation for incarnation in health_of if incarnation not in left_out)
    health = health_of[incarnation]
    problem = "checks its health"
    if health.state is HealthState.UNHEALTHY:
        problem = f"is unhealthy: {health.reason}"
    more = number - 1
    suffix = f" ({more} more {are(more)} unhealthy or being checked)" if more else ""
    return f"{members[incarnation].name} {problem}{suffix}"


def named(current: Round) -> str:
    """Name a round."""
    return f"round {current.round_id}{' (preflight)' if current.is_preflight else ''}"


def round_lost(current: Round, lost: Collection[str]) -> str:
    """Name the agents that a round lost."""
    return f"{named(current)} lost {hosts(current, lost)}"


def older_journal(current: Round, name: str, round_id: int) -> str:
    """Say why a round is over of which agents know later ones."""
    return (
        f"{name} was in round {round_id} already, and the journal ends with round "
        f"{current.round_id}: an older copy of it was restored"
    )


def drained(current: Round, lost: Collection[str], why: Mapping[str, str]) -> str:
    """Name the agents of a round that an operator made leave. It did not fail, nor lose them."""
    return f"{hosts(current, lost)} left, {why[min(lost)]}"


def round_failed(
    current: Round,
    causes: Sequence[FailureRecord],
    failed: Collection[str],
    hang: HangDiagnosis | None = None,
    where: Standings = NOWHERE,
) -> str:
    """Name the root cause if it is known, else the hosts that reported a failure."""
    if hang is not None:
        return f"{named(current)} hung: {hang.summary}"
    what = _cause(causes, where) if causes else f"a worker on {hosts(current, failed)}"
    return f"{named(current)} failed: {what}"


def start_impossible(
    current: Round, causes: Sequence[FailureRecord], unable: Collection[str]
) -> str:
    """Name what can't be started and where if its record is there, else the hosts."""
    what = describe([cause for cause in causes if cause.has_never_run])
    what = what or f"a worker on {hosts(current, unable)}"
    return f"{named(current)}{_COULD_NOT_START}{what}"


def budget_spent(what: str, state: RunState) -> str:
    """Say that no restart is left."""
    allowed, window_s = state.spec.restarts_max, state.spec.restart_window_s
    if state.iterations_restarted:
        return with_budget(what, state)
    if not allowed:
        return f"{what}; no restarts are allowed"
    restarts = "the one restart" if allowed == 1 else f"all {allowed} restarts"
    of_window = "" if window_s is None else f" of the last {format_duration(window_s)}"
    return f"{what}; {restarts}{of_window} {are(allowed)} used"


def with_budget(reason: str, state: RunState) -> str:
    """Add to a reason the restarts of both kinds, if it does not tell and there were some."""
    in_process = f"{count(state.iterations_restarted, 'restart')} in process"
    budget = f"restarts: {state.restarts_used} of {state.spec.restarts_max} used; {in_process}"
    is_told = budget in reason or not state.iterations_restarted
    return reason if is_told else f"{reason}; {budget}"


def barrier_over(current: Round, succeeded: Collection[str], limit_s: float) -> str:
    """Name the agents that one which is done has waited for in vain."""
    late = [seat for i, seat in current.seats.items() if i not in succeeded]
    names = [f"{seat.agent.name} (group rank {seat.group_rank})" for seat in late]
    agents = count(len(late), "agent")
    return (
        f"exit barrier timeout: {agents} not done after {limit_s:g} s: {listed(names, len(names))}"
    )


def run_failed(reason: str, causes: Sequence[FailureRecord], where: Standings = NOWHERE) -> str:
    """Add to a reason the root cause, if there is one that it does not tell."""
    cause = _cause(causes, where) if causes else ""
    round_, marker, _ = reason.partition(_COULD_NOT_START)
    if marker and causes and causes[0].has_never_run:
        return f"{round_}{marker}{cause}"  # all that was known before is in it
    return reason if cause in reason else f"{reason}; root cause: {cause}"


def hosts(current: Round, incarnations: Collection[str]) -> str:
    """Name agents of a round."""
    names = sorted(current.seats[incarnation].agent.name for incarnation in incarnations)
    return listed(names, len(names))


def _cause(causes: Sequence[FailureRecord], where: Standings) -> str:
    """Name the causes, and of a hang who is behind: those that wait for it hang, too."""
    behind = furthest_behind(where.shown) if any(cause.hang for cause in causes) else ""
    return f"{describe(causes)}; furthest behind: {behind}" if behind else describe(causes)


def listed(
    names: Iterable[str], number: int, *, most: int = NAMES_SHOWN_MAX, sep: str = ", "
) -> str:
    """Name the first few of so many, and say how many more there are."""
    shown = list(islice(names, most))
    if hidden := number - len(shown):
        shown.append(f"{hidden} more")
    return sep.join(shown)


class CoordinatorHistory:
    """Turns a coordinator's decisions into lines of its log, each said once."""

    def __init__(self) -> None:
        self._failing: dict[str, str] = {}  # why runs fail that wait for their agents' end: said

    def line(self, decided: Decided) -> str:
        """Return a decision as a line: of which run, what, and why as far as that is new."""
        run_id, decision, reason = decided.run_id, decided.decision, decided.reason
        text = f"{decision}: {reason}"
        match decision:
            case "agent admitted" | "agent removed" | "round ended":
                text = reason
            case "round started":
                text = f"round {decided.round_id}: {reason}"
            case "run failing" | "run stopping":
                self._failing[run_id] = reason
                text = f"stopping: {reason}"
            case "run failed" | "run succeeded" | "run stopped" if run_id in self._failing:
                news = reason.removeprefix(self._failing.pop(run_id)).removeprefix("; ")
                text = f"{decision}: {news}" if news else decision
        return f"{run_id}: {text}"
