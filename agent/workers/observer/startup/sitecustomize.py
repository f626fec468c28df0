"""Shell. Starts the observer in an interpreter that an agent starts as a worker.

Python imports the module of this name as the last thing before a program, whatever the program
is. The folder then leaves the path again, and a module of the user's that has this name is loaded
as if this one had never been there.
"""

import os
import sys

VARIABLE = "PYTHONPATH"


def start() -> bool:
    """Start the observer; return whether there is a module of this name beside this one."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - nothing to import
    _observe()
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != here]  # noqa: PTH100
    sys.path_importer_cache.pop(here, None)
    # The processes that the worker starts are not workers.
    first, _, rest = os.environ.get(VARIABLE, "").partition(os.pathsep)
    if os.path.abspath(first) == here:  # noqa: PTH100
        del os.environ[VARIABLE]
        if rest:
            os.environ[VARIABLE] = rest
    sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401, PLC0415
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        return False
    return True


def _observe() -> None:
    try:
        import drumbeat_observer  # type: ignore[import-not-found]  # noqa: PLC0415 - beside this

        drumbeat_observer.start()
    except Exception:  # noqa: BLE001, S110 - a worker runs without it, too
        pass
    sys.modules.pop("drumbeat_observer", None)


if not start():
    raise ImportError("there is none beside that of a worker", name="sitecustomize")
