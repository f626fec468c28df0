"""Shell. A coordinator on its own: the journal is a file of its state directory."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import structlog

from drumbeat.coordinator.access.authority import Authority
from drumbeat.coordinator.cluster.address import advertised
from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.journal.sqlite import SqliteJournal
from drumbeat.coordinator.serving.process import (
    open_page,
    operators_identity,
    published,
    stop_signals,
    tell_how_to_join,
    tell_page,
    tell_ready,
)
from drumbeat.coordinator.shell.server import serving

log = structlog.get_logger()


def serve_alone(config: CoordinatorConfig, directory: Path) -> None:
    """Serve until a signal. Raises ``CommandFailed``."""
    journal = SqliteJournal(directory)
    if not journal.is_local:
        reason = "its file system may be a network's, so each decision takes longer to write"
        log.info("state directory", path=str(directory), reason=reason)
    asyncio.run(_serve(config, directory, journal))


async def _serve(config: CoordinatorConfig, directory: Path, journal: SqliteJournal) -> None:
    stopped, shown = stop_signals(), partial(published, directory)
    identity = operators_identity(config)
    if identity is None and not config.insecure:
        identity = Authority(directory)
    page = open_page(config, identity)
    async with serving(config, journal, identity=identity, published=shown, page=page) as served:
        tell_ready(config, served.port)
        where = [str(advertised(config, served.port))]

        async def tell() -> None:
            if page is not None:
                await tell_page(config, page, leads=True)
            await tell_how_to_join(config, where, served.driver, identity, directory)

        told = asyncio.create_task(tell())
        await stopped.wait()
        told.cancel()
        log.info("coordinator stopping", reason="it was told to by a signal")
