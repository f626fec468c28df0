"""Shell. The private directory through which a launch, its agent and its workers speak.

``agent`` holds what the agent is told, ``call`` what a worker does, ``outcome`` how the agent
ended, and ``values/<round>/<rank>`` what a worker has returned. Only this user can read or write
there, so all of it is pickled.
"""

import pickle
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from agent.launching.outcome import Outcome

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


def write_outcome(path: str, outcome: Outcome) -> None:
    """Record how an agent ended; a launcher that is gone needs no record."""
    with suppress(OSError):
        write(Path(path), [pickle.dumps(outcome)])


def read_outcome(directory: Path) -> Outcome | None:
    """Return how the agent ended, ``None`` if it could not say."""
    path = directory / OUTCOME
    return cast("Outcome", read(path)) if path.exists() else None
