"""Shell. What the processes of ``coordinator serve`` have in common."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from drumbeat.access.local import publish, withdraw
from drumbeat.access.token import NO_CA, parse_token
from drumbeat.command.settings import HostPort
from drumbeat.coordinator.access.join_token import (
    how_to_join,
    is_loopback,
    join_token,
    pin,
    shows_secrets,
)
from drumbeat.coordinator.access.operator_certificate import OperatorCertificate
from drumbeat.coordinator.access.server_identity import ServerIdentity
from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.errors import CoordinatorError
from drumbeat.coordinator.shell.driver import Driver
from drumbeat.coordinator.shell.server import Publish

if TYPE_CHECKING:
    from drumbeat.coordinator.web.page import Page

log = structlog.get_logger()

# Objects that may be made before the garbage among them is looked for. With Python's 700, and all
# modules looked at each time, a tenth of what a thousand arriving agents cost was that.
GARBAGE_BEFORE_COLLECTION = 10_000


def look_for_garbage_rarely() -> None:
    """Let a journal be read, and agents come, without a look at all objects again and again."""
    gc.set_threshold(GARBAGE_BEFORE_COLLECTION)


def stop_signals() -> asyncio.Event:
    """Return what is set once the process is told to end."""
    stopped = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    return stopped


def tell_ready(config: CoordinatorConfig, port: int) -> None:
    """Say that callers are let in, whether this coordinator leads or not."""
    gc.freeze()  # what is there by now stays
    print(f"coordinator ready at {HostPort(config.host, port)}", flush=True)


def open_page(config: CoordinatorConfig, identity: ServerIdentity | None) -> Page | None:
    """Return the page that is wanted, None if there is to be none."""
    if config.http_port is None:
        return None
    from drumbeat.coordinator.web.page import Page  # noqa: PLC0415 - it needs an extra

    return Page(config, identity)


async def tell_page(config: CoordinatorConfig, page: Page, *, leads: bool) -> None:
    """Say where the page is; a coordinator that leads lets its user in, on a terminal alone."""
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
    """Return the operator's certificate, None if there is none, or nothing is encrypted."""
    if config.insecure:
        reason = "all who reach its port can read, join and end every run"
        log.warning("nothing is encrypted, and no caller is asked who it is", reason=reason)
    elif config.tls_cert is not None and config.tls_key is not None:
        return OperatorCertificate(config.tls_cert, config.tls_key, config.tls_client_ca)
    return None


async def tell_how_to_join(
    config: CoordinatorConfig,
    addresses: list[str],
    driver: Driver,
    identity: ServerIdentity | None,
    directory: Path,
) -> None:
    """Say it on standard output, unless only callers can be meant that need no token."""
    if identity is None or identity.is_mutual or is_loopback(config.host):
        return
    try:
        ca, is_shared = next(iter(identity.keys), NO_CA), config.journal is not None
        token = await join_token(directory, driver, ca, is_shared=is_shared)
    except (CoordinatorError, OSError) as error:
        log.warning("no token to join with", reason=str(error))
        return
    print(how_to_join(addresses, token, directory), flush=True)
