"""Shell. What training code may import; each name is loaded when it is first asked for.

A guest in the user's process: imports neither ``agent`` nor ``coordinator``,
and nothing heavy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worker_sdk.error_handler import ErrorHandler, get_error_handler, record

__all__ = ["ErrorHandler", "get_error_handler", "record"]

_HOMES = {
    "ErrorHandler": "worker_sdk.error_handler",
    "get_error_handler": "worker_sdk.error_handler",
    "record": "worker_sdk.error_handler",
}


if not TYPE_CHECKING:  # to a type checker, it would be an answer to every name

    def __getattr__(name: str) -> object:
        """Load what was asked for. Python calls this once per name."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(_HOMES[name]), name)
        globals()[name] = found
        return found
