"""Shell. How the commands load libraries that would do more than they are asked for."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without_collections() -> Iterator[None]:
    """Look for no garbage meanwhile: what is imported is none, and it takes a tenth of a start."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def load_structlog_alone() -> None:
    """Load structlog without rich, which it takes, where it is, for tracebacks we never draw.

    rich would be a seventh of an agent's start. For processes of our own only: a program that
    embeds us may have structlog draw them.
    """
    modules: dict[str, Any] = sys.modules
    if "rich" in modules:
        return
    modules["rich"] = None  # as if it were not installed
    try:
        import structlog  # noqa: F401, PLC0415 - only to be loaded
    finally:
        del modules["rich"]


def load_grpc_quietly() -> None:
    """Load gRPC so that its core writes nothing of its own, unless ``GRPC_VERBOSITY`` is set.

    It has a line for whatever a stranger sends to a port. The variable is read as it is loaded,
    and what this process starts must not inherit it.
    """
    if "GRPC_VERBOSITY" in os.environ:
        return
    os.environ["GRPC_VERBOSITY"] = "NONE"
    try:
        import grpc  # noqa: F401, PLC0415 - only to be loaded, and slow
    finally:
        del os.environ["GRPC_VERBOSITY"]
