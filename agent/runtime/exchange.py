"""Shell. What a launch, its agent and its workers leave for each other in a private directory.

``agent`` holds what the agent is told, ``call`` what a worker does, ``outcome`` how the agent
ended, and ``values/<round>/<rank>`` what a worker has returned. Only this user can read or write
there, so all of it is pickled.
"""

import pickle
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from msgspec import Struct, field

from drumbeat.agent.core import effects as fx
from drumbeat.agent.errors import AgentError
from drumbeat.agent.failures.report import FailedWorker
from drumbeat.agent.host.private_directory import write_whole
from drumbeat.agent.telemetry.facts import AgentFacts

AGENT, CALL, OUTCOME, VALUES = "agent", "call", "outcome", "values"


def read(path: Path) -> Any:
    """Return what is in a file of ours. Raises what its content makes pickle raise."""
    with path.open("rb") as file:
        return pickle.load(file)  # noqa: S301 - written by this user for this launch


class AgentOutcome(Struct, frozen=True, kw_only=True):
    """The end of an agent: the run's verdict, an error of its own, or a signal.

    ``ranks`` are those of this host that have succeeded in the last round; without them, it took
    no part in the end of the run.
    """

    exit_code: int
    reason: str = ""
    root_causes: tuple[FailedWorker, ...] = ()
    error: AgentError | None = None
    is_verdict: bool = False
    round_id: int | None = None
    ranks: tuple[int, ...] = ()
    # Where workers of this host recorded why they failed, in the last round, by rank.
    error_files: Mapping[int, str] = field(default_factory=dict)


def outcome_of(finish: fx.Finish, facts: AgentFacts) -> AgentOutcome:
    """Return how an agent ended."""
    verdict, last = facts.verdict, facts.latest
    # A signal or an error of its own may have ended it before the verdict came.
    is_verdict = verdict is not None and finish.exit_code == (
        0 if verdict.is_success else verdict.exit_code
    )
    if finish.error is not None or verdict is None or not is_verdict:
        return AgentOutcome(exit_code=finish.exit_code, error=finish.error)
    first, exits = (last.assignment.rank_first, last.exits) if last is not None else (0, {})
    failures = last.failures if last is not None else {}
    # The others went on without these, in process: they are not missed.
    excused = {rank for rank, failure in failures.items() if failure.interruption is not None}
    succeeded = {rank for rank, end in exits.items() if end.exit_code == 0} - excused
    is_complete = verdict.is_success and len(succeeded | excused) == facts.local_world_size
    return AgentOutcome(
        exit_code=finish.exit_code,
        reason=verdict.reason,
        root_causes=verdict.report.root_causes if verdict.report else (),
        is_verdict=True,
        round_id=None if last is None else last.assignment.round_id,
        ranks=tuple(first + rank for rank in sorted(succeeded) if is_complete),
        error_files={
            first + rank: end.error_file
            for rank, end in exits.items()
            if end.exit_code and end.error_file
        },
    )


def write_outcome(path: str, outcome: AgentOutcome) -> None:
    """Record how an agent ended; a launcher that is gone needs no record."""
    with suppress(OSError):
        write_whole(Path(path), pickle.dumps(outcome))


def read_outcome(directory: Path) -> AgentOutcome | None:
    """Return how the agent ended, ``None`` if it could not say."""
    path = directory / OUTCOME
    return cast("AgentOutcome", read(path)) if path.exists() else None
