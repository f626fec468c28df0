"""Shell. What a launch, its agent and its workers leave for each other in a private directory.

``agent`` holds what the agent is told, ``call`` what a worker does, ``outcome`` how the agent
ended, and ``values/<round>/<rank>`` what a worker has returned. Only this user can read or write
there, so all of it is pickled.
"""

import pickle
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from msgspec import Struct, field

from agent.core import effects as fx
from agent.core.events import DirectiveReceived, Event, WorkerExited
from agent.core.model import Assignment, Exit
from agent.errors import AgentError
from agent.workers.failures.report import FailedWorker

AGENT, CALL, OUTCOME, VALUES = "agent", "call", "outcome", "values"


def write(path: Path, parts: Iterable[bytes]) -> None:
    """Put pickles into a new file, whole or not at all. Raises ``OSError``."""
    draft = path.with_name(f"{path.name}.draft")
    draft.touch(mode=0o600, exist_ok=False)
    with draft.open("wb") as file:
        file.writelines(parts)
    draft.replace(path)


def read(path: Path) -> Any:
    """Return what is in a file of ours. Raises what its content makes pickle raise."""
    with path.open("rb") as file:
        return pickle.load(file)  # noqa: S301 - written by this user for this launch


class Outcome(Struct, frozen=True, kw_only=True):
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


class OutcomeRecorder:
    """Watches an agent's core, and knows at its end how that was."""

    def __init__(self, local_world_size: int) -> None:
        self._local_world_size = local_world_size
        self._assignment: Assignment | None = None
        # Those that have ended as they may, False: the others went on without them, in process.
        self._has_succeeded: dict[int, bool] = {}
        self._error_files: dict[int, str] = {}
        self._exit: Exit | None = None

    def saw(self, event: Event | None, effects: Sequence[fx.Effect]) -> None:
        """Note one event, and then what the core made of it."""
        match event:
            case DirectiveReceived(state=Exit() as verdict):
                self._exit = verdict
            case WorkerExited(exit_code=0) if self._is_current(event.round_id):
                self._has_succeeded.setdefault(event.local_rank, True)
            case WorkerExited() if self._is_current(event.round_id) and event.error_file:
                self._error_files[event.local_rank] = event.error_file
        for effect in effects:
            if isinstance(effect, fx.StartRound):
                self._assignment = effect.assignment
                self._has_succeeded, self._error_files = {}, {}
            elif isinstance(effect, fx.WriteFailure) and self._is_current(effect.failure.round_id):
                failure = effect.failure
                if failure.interruption is not None and not failure.is_survived:
                    self._has_succeeded[failure.local_rank] = False

    def outcome(self, finish: fx.Finish) -> Outcome:
        """Return how the agent ended."""
        verdict, seat = self._exit, self._assignment
        # A signal or an error of its own may have ended it before the verdict came.
        is_verdict = verdict is not None and finish.exit_code == (0 if verdict.is_success else 1)
        if finish.error is not None or verdict is None or not is_verdict:
            return Outcome(exit_code=finish.exit_code, error=finish.error)
        first = 0 if seat is None else seat.rank_first
        is_complete = verdict.is_success and len(self._has_succeeded) == self._local_world_size
        succeeded = sorted(rank for rank, has in self._has_succeeded.items() if has and is_complete)
        return Outcome(
            exit_code=finish.exit_code,
            reason=verdict.reason,
            root_causes=verdict.report.root_causes if verdict.report else (),
            is_verdict=True,
            round_id=None if seat is None else seat.round_id,
            ranks=tuple(first + each for each in succeeded),
            error_files={first + each: path for each, path in self._error_files.items()},
        )

    def _is_current(self, round_id: int) -> bool:
        return self._assignment is not None and self._assignment.round_id == round_id


def write_outcome(path: str, outcome: Outcome) -> None:
    """Record how an agent ended; a launcher that is gone needs no record."""
    with suppress(OSError):
        write(Path(path), [pickle.dumps(outcome)])


def read_outcome(directory: Path) -> Outcome | None:
    """Return how the agent ended, ``None`` if it could not say."""
    path = directory / OUTCOME
    return cast("Outcome", read(path)) if path.exists() else None
