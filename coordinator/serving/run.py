"""Shell. ``coordinator serve``, from its settings to its exit code: alone, or one of several."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import tempfile
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import structlog

from drumbeat.coordinator.access.authority import Authority
from drumbeat.coordinator.cluster.server import serving
from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.errors import MissingExtra, StateDirectoryUnusable
from drumbeat.coordinator.journal.sqlite import SqliteJournal
from drumbeat.coordinator.serving import process
from drumbeat.coordinator.shell.garbage import GARBAGE
from drumbeat.coordinator.shell.transport.binding import advertised
from drumbeat.coordinator.shell.transport.connections import prepare_process
from drumbeat.tasks import until_one_ends

log = structlog.get_logger()


def run(config: CoordinatorConfig) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. Raises ``CommandFailed``."""
    for package in () if config.http_port is None else ("aiohttp", "prometheus_client"):
        if find_spec(package) is None:
            raise MissingExtra("--http-port", package, "page")
    with ExitStack() as stack:
        directory = Path(
            config.state_dir
            or stack.enter_context(tempfile.TemporaryDirectory(prefix="drumbeat-coordinator-"))
        )
        config = dataclasses.replace(
            config, state_dir=str(directory), frontends=process.frontends(config)
        )
        os.umask(0o077)  # whatever this process writes is private
        prepare_process(config.limits)
        GARBAGE.collect_rarely()
        if config.journal is None:
            journal = SqliteJournal(directory)
            if not journal.is_local:
                reason = (
                    "its file system may be a network's, so each decision takes longer to write"
                )
                log.info("state directory", path=str(directory), reason=reason)
            asyncio.run(_serve_alone(config, directory, journal))
        else:
            try:
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise StateDirectoryUnusable(directory, error.strerror or error) from error
            # The client of etcd is an extra: it is missing where the journal is a file.
            from drumbeat.coordinator.serving.several import serve_with_others  # noqa: PLC0415

            asyncio.run(serve_with_others(config, directory))
    return 0


async def _serve_alone(config: CoordinatorConfig, directory: Path, journal: SqliteJournal) -> None:
    stopped, published = process.stop_signals(), partial(process.published, directory)
    identity = process.operators_identity(config)
    if identity is None and not config.insecure:
        identity = Authority(directory)
    page = process.open_page(config, identity)
    async with serving(
        config, journal, identity=identity, published=published, page=page
    ) as served:
        over = asyncio.Event()
        if config.once:
            process.stop_after_runs(served.driver, over)
        process.print_ready(config, served.port)
        addresses = [str(advertised(config, served.port))]

        async def print_help() -> None:
            if page is not None:
                await process.print_page(config, page, leads=True)
            await process.print_how_to_join(config, addresses, served.driver, identity, directory)

        printing = asyncio.create_task(print_help())
        await until_one_ends(stopped.wait(), over.wait())
        printing.cancel()
        reason = "all runs have ended (--once)" if over.is_set() else process.SIGNAL
        log.info("coordinator stopping", reason=reason)
