"""Shell. What a process of ``coordinator serve`` does, whether it is alone or one of several."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from drumbeat.access.local import publish, withdraw
from drumbeat.access.token import NO_CA, parse_token
from drumbeat.coordinator.access.operator_certificate import OperatorCertificate
from drumbeat.coordinator.access.server_identity import ServerIdentity
from drumbeat.coordinator.cluster.join_token import (
    how_to_join,
    join_token,
    pin,
    shows_secrets,
)
from drumbeat.coordinator.cluster.server import Publish
from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.errors import CoordinatorError
from drumbeat.coordinator.shell.driver import Driver
from drumbeat.text.addresses import HostPort, is_loopback

if TYPE_CHECKING:
    from drumbeat.coordinator.web.page import Page

log = structlog.get_logger()

SIGNAL = "it was told to by a signal"  # why coordinators usually stop

# On few cores front ends would only take the coordinator's own time.
CORES_PER_FRONTEND, FRONTENDS_BY_CORES_MAX = 4, 8


def frontends(config: CoordinatorConfig) -> int:
    """Return how many front ends there are to be: as told, else by the cores of this process.

    On etcd there is at least one: in a process that holds the connections of 10,000 agents the
    leader's own requests to etcd were answered seconds late, and it lost its lease.
    """
    if config.frontends is not None:
        return config.frontends
    by_cores = min(len(os.sched_getaffinity(0)) // CORES_PER_FRONTEND, FRONTENDS_BY_CORES_MAX)
    return by_cores if config.etcd is None else max(1, by_cores)


def stop_signals() -> asyncio.Event:
    """Return an event that is set on SIGTERM and SIGINT."""
    stopped = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    return stopped


def print_ready(config: CoordinatorConfig, port: int) -> None:
    """Print that callers are let in, whether this coordinator leads or not."""
    gc.freeze()  # the objects made so far live as long as the process
    print(f"coordinator ready at {HostPort(config.host, port)}", flush=True)


def open_page(config: CoordinatorConfig, identity: ServerIdentity | None) -> Page | None:
    """Return the page, ``None`` without --http-port."""
    if config.http_port is None:
        return None
    from drumbeat.coordinator.web.page import Page  # noqa: PLC0415 - it needs an extra

    return Page(config, identity)


async def print_page(config: CoordinatorConfig, page: Page, *, leads: bool) -> None:
    """Print the address of the page; a leader prints a link that lets in, to a terminal only."""
    if config.insecure:
        text = page.link_without_code()
    elif leads and shows_secrets():
        text = await page.local_link()
    else:
        text = f"{page.link_without_code()}, with a link of `coordinator page`"
    print(f"page: {text}", flush=True)


@contextmanager
def published(directory: Path, port: int, text: str) -> Iterator[Publish]:
    """Let this user in on this host while the context is open."""
    if (path := publish(port, text)) is None:
        reason = "there is no place that only this user can write to"
        log.warning("this user needs a token here as all others do", reason=reason)

    def publish_anew(other: str) -> None:
        nonlocal path, text
        path, text = publish(port, other), other
        with suppress(OSError):  # it still names an authority that vouches for the new one
            pin(directory, parse_token(text).ca)

    try:
        yield publish_anew
    finally:
        if path is not None:
            withdraw(path, text)


def operators_identity(config: CoordinatorConfig) -> ServerIdentity | None:
    """Return the certificate of --tls-cert; ``None`` without one, or with --insecure."""
    if config.insecure:
        reason = "all who reach its port can read, join and end every run"
        log.warning("nothing is encrypted, and no caller is asked who it is", reason=reason)
    elif config.tls_cert is not None and config.tls_key is not None:
        return OperatorCertificate(config.tls_cert, config.tls_key, config.tls_client_ca)
    return None


async def print_how_to_join(
    config: CoordinatorConfig,
    addresses: list[str],
    driver: Driver,
    identity: ServerIdentity | None,
    directory: Path,
) -> None:
    """Print the command with which machines join, if they need a token."""
    if identity is None or identity.is_mutual or is_loopback(config.host):
        return
    try:
        ca, is_shared = next(iter(identity.keys), NO_CA), config.journal is not None
        token = await join_token(directory, driver, ca, is_shared=is_shared)
    except (CoordinatorError, OSError) as error:
        log.warning("no token to join with", reason=str(error))
        return
    print(how_to_join(addresses, token, directory), flush=True)


def stop_after_runs(driver: Driver, stopped: asyncio.Event) -> None:
    """Set ``stopped`` once a run was live, all have ended, and no agent is connected."""
    was_live = False

    def look() -> None:
        nonlocal was_live
        if any(run.verdict is None for run in driver.journal.runs.states.values()):
            was_live = True
        elif was_live and not driver.sessions_count:
            stopped.set()

    driver.on_turn = look
