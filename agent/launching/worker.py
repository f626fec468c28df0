"""Shell. A worker that runs a function; its argument is the directory of the call.

What the function imports is found where its launcher finds it.
"""

import os
import pickle
import sys
from pathlib import Path

from worker_sdk.errors import record

CALL, VALUES = "call", "values"  # as in `exchange`, which is not imported here

# By these names, because the user's function may change the environment later.
RANK, ROUND = "RANK", "DRUMBEAT_ROUND"


def work(directory: Path) -> None:
    """Make the call that is in ``directory``, and leave there what it returns."""
    path = directory / VALUES / os.environ[ROUND] / os.environ[RANK]
    with (directory / CALL).open("rb") as file:
        sys.path[:], sys.argv[:] = pickle.load(file)  # noqa: S301 - from our own launcher
        function, args = pickle.load(file)  # noqa: S301 - the same
    try:
        value = function(*args)
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
        return
    if value is None:
        return
    # With what its types were handed over: they may be those of a script.
    from drumbeat.agent.launching import pickling  # noqa: PLC0415 - in the launcher's path, which is known only by now

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.draft")
    draft.touch(mode=0o600)
    with draft.open("wb") as file:
        try:
            pickling.dump(value, file)
        except OSError:
            raise
        except Exception as error:
            # Whatever the user's types raise.
            kind = type(value).__qualname__
            raise TypeError(f"the return value, a {kind}, cannot be pickled: {error}") from error
    draft.replace(path)


if __name__ == "__main__":
    record(work)(Path(sys.argv[1]))
