"""Shell. Turns an interpreter that starts with a worker's command line into a template.

Python imports the module of this name as the last thing before a program, whatever the program
is. What is asked for here is the program of every worker: the process stays in this module, and
what it forks goes on from here. So Python itself does all that follows, as in any other start:
``sys.argv`` and ``sys.path``, ``__main__``, tracebacks, exit codes and the end.
"""

import os
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "DRUMBEAT_TEMPLATE"
NAME = "drumbeat_template"  # of our package while it is needed; none that a user has


def start() -> bool:
    """Return in a worker; whether there is a module of this name beside this one."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - nothing to import
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != here]  # noqa: PTH100
    sys.path_importer_cache.pop(here, None)
    order = os.environ.pop(VARIABLE, None)
    sys.modules.pop("sitecustomize", None)
    is_there = True
    try:
        import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        is_there = False
    finally:
        if order is not None:  # an interpreter within this one starts here too
            _serve(order, os.path.dirname(here))  # noqa: PTH120
    return is_there


def _serve(order: str, folder: str) -> None:
    """Be a template; returns in a worker only, for the program must run nowhere else."""
    try:
        _load(folder).serve(order)
    except BaseException:  # noqa: BLE001 - Python would go on with the program
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def _load(folder: str) -> "Any":
    spec = spec_from_file_location(
        NAME, f"{folder}/__init__.py", submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules[NAME] = package = module_from_spec(spec)
    spec.loader.exec_module(package)
    return import_module(f"{NAME}.process")


if not start():
    raise ImportError("there is none beside that of a template", name="sitecustomize")
