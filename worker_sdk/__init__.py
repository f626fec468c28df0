"""Shell. What training code may import; each name is loaded when it is first asked for.

A guest in the user's process: imports neither ``agent`` nor ``coordinator``,
and nothing heavy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worker_sdk.errors.error_handler import ErrorHandler, get_error_handler, record
    from worker_sdk.timers import acquire, expires, heartbeat, release, section

__all__ = [
    "ErrorHandler",
    "acquire",
    "expires",
    "get_error_handler",
    "heartbeat",
    "record",
    "release",
    "section",
]

_HOMES = {
    "ErrorHandler": "worker_sdk.errors.error_handler",
    "acquire": "worker_sdk.timers",
    "expires": "worker_sdk.timers",
    "get_error_handler": "worker_sdk.errors.error_handler",
    "heartbeat": "worker_sdk.timers",
    "record": "worker_sdk.errors.error_handler",
    "release": "worker_sdk.timers",
    "section": "worker_sdk.timers",
}


if not TYPE_CHECKING:  # to a type checker, it would be an answer to every name

    def __getattr__(name: str) -> object:
        """Load what was asked for. Python calls this once per name."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(_HOMES[name]), name)
        globals()[name] = found
        return found
