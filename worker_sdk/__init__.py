"""Shell. What training code may import; each name is loaded when it is first asked for.

A guest in the user's process: imports neither ``agent`` nor ``coordinator``,
and nothing heavy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worker_sdk.errors import ErrorHandler, get_error_handler, record
    from worker_sdk.notices import checkpointed, notice, should_checkpoint
    from worker_sdk.suspects import suspect_host
    from worker_sdk.timers import acquire, expires, heartbeat, release, section

__all__ = [
    "ErrorHandler",
    "acquire",
    "checkpointed",
    "expires",
    "get_error_handler",
    "heartbeat",
    "notice",
    "record",
    "release",
    "section",
    "should_checkpoint",
    "suspect_host",
]

_HOMES = {
    "ErrorHandler": "errors",
    "checkpointed": "notices",
    "get_error_handler": "errors",
    "notice": "notices",
    "record": "errors",
    "should_checkpoint": "notices",
    "suspect_host": "suspects",
}

if not TYPE_CHECKING:  # to a type checker, it would be an answer to every name

    def __getattr__(name: str) -> object:
        """Load what was asked for. Python calls this once per name."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"worker_sdk.{_HOMES.get(name, 'timers')}"), name)
        globals()[name] = value
        return value
