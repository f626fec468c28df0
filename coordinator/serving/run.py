"""Shell. ``coordinator serve``, from its settings to its exit code."""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.errors import MissingExtra, StateDirectoryUnusable
from drumbeat.coordinator.serving.process import look_for_garbage_rarely
from drumbeat.coordinator.shell.transport.connections import prepare_process


def run(config: CoordinatorConfig) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. Raises ``CommandFailed``."""
    with ExitStack() as stack:
        directory = Path(
            config.state_dir
            or stack.enter_context(tempfile.TemporaryDirectory(prefix="drumbeat-coordinator-"))
        )
        os.umask(0o077)  # whatever this process writes is private
        prepare_process(config.limits)
        look_for_garbage_rarely()
        if config.http_port is not None:
            _check_extra()
        # One of them is imported: the other one's packages may be missing.
        if config.journal is None:
            from drumbeat.coordinator.serving.alone import serve_alone  # noqa: PLC0415

            serve_alone(config, directory)
        else:
            from drumbeat.coordinator.serving.in_cluster import serve_in_cluster  # noqa: PLC0415

            _make(directory)
            asyncio.run(serve_in_cluster(config, directory))
    return 0


def _check_extra() -> None:
    for package in ("aiohttp", "prometheus_client"):
        if find_spec(package) is None:
            raise MissingExtra("--http-port", package, "page")


def _make(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StateDirectoryUnusable(directory, error.strerror or error) from error
