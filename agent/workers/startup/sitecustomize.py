"""Shell. Starts the observer in a worker's interpreter, or turns the interpreter into a template.

Python imports the module of this name as the last thing before a program, whatever the program
is. The folder then leaves the path again, and a module of the user's that has this name is loaded
as if this one had never been there.

A template starts with the program of every worker. The process stays in this module, and what it
forks goes on from here. So Python itself does all that follows, as in any other start:
``sys.argv`` and ``sys.path``, ``__main__``, tracebacks, exit codes and the end.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PATH_VARIABLE, ORDER_VARIABLE = "PYTHONPATH", "DRUMBEAT_TEMPLATE"
NAME = "drumbeat_template"  # of our package while it is needed; none that a user has


def start() -> bool:
    """Return in a worker; whether there is a module of this name beside this one."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - nothing to import
    order = os.environ.pop(ORDER_VARIABLE, None)
    if order is None:
        _observe()
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != here]  # noqa: PTH100
    sys.path_importer_cache.pop(here, None)
    # The processes that the worker starts are not workers.
    first, _, rest = os.environ.get(PATH_VARIABLE, "").partition(os.pathsep)
    if os.path.abspath(first) == here:  # noqa: PTH100
        del os.environ[PATH_VARIABLE]
        if rest:
            os.environ[PATH_VARIABLE] = rest
    sys.modules.pop("sitecustomize", None)
    is_there = True
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401, PLC0415
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        is_there = False
    finally:
        if order is not None:
            _serve(order, os.path.join(os.path.dirname(here), "template"))  # noqa: PTH118, PTH120
    return is_there


def _observe() -> None:
    try:
        import drumbeat_observer  # type: ignore[import-not-found]  # noqa: PLC0415 - beside this

        drumbeat_observer.start()
    except Exception:  # noqa: BLE001, S110 - a worker runs without it, too
        pass
    sys.modules.pop("drumbeat_observer", None)


def _serve(order: str, folder: str) -> None:
    """Be a template; returns in a worker only, for the program must run nowhere else."""
    try:
        _load(folder).serve(order)
    except BaseException:  # noqa: BLE001 - Python would go on with the program
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def _load(folder: str) -> "Any":
    from importlib import import_module  # noqa: PLC0415 - no other worker needs it
    from importlib.util import module_from_spec, spec_from_file_location  # noqa: PLC0415

    spec = spec_from_file_location(
        NAME, f"{folder}/__init__.py", submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules[NAME] = package = module_from_spec(spec)
    spec.loader.exec_module(package)
    return import_module(f"{NAME}.process")


if not start():
    raise ImportError("there is none beside that of a worker", name="sitecustomize")
