"""Shell. The endpoints of notifications. Their URLs hold secrets: no log line and no error has one.

Loaded only when notifications are asked for: it needs the extra ``notify``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from drumbeat.access.files import read_private
from drumbeat.access.problem import AccessProblem
from drumbeat.coordinator.config import NOTIFY_MAX, NOTIFY_URL
from drumbeat.coordinator.errors import MissingExtra, NotificationsUnusable
from drumbeat.coordinator.notify.facts import Level, Message

try:
    from apprise import Apprise, AppriseAsset, NotifyBase, OverflowMode
except ImportError as error:
    raise MissingExtra("--notify", "apprise", "notify") from error

FILE_BYTES_MAX = 64 * 1024
# An endpoint that has not answered by then gets the message again. Unless its URL has ?rto=.
ANSWER_WITHIN_S = 20.0
# Of the URLs of these services the host is shown; of all others it may be a token.
_HAVE_HOSTS = frozenset({"json", "jsons", "xml", "xmls", "form", "forms", "mailto", "mailtos"})
# Each message to these wakes a person up, so they get warnings and failures only.
_PAGING = frozenset({"pagerduty", "opsgenie"})


class Endpoint:
    """One service that takes messages."""

    def __init__(self, url: str, number: int) -> None:
        """Raise ``NotificationsUnusable`` for a URL that apprise does not know."""
        scheme = url.partition("://")[0].lower()
        asset = AppriseAsset(app_id="drumbeat", app_desc="drumbeat", app_url="", image_url_logo="")
        service = Apprise.instantiate(url, asset=asset)
        if not isinstance(service, NotifyBase):
            raise NotificationsUnusable(
                f"apprise cannot use the URL {scheme}://… (number {number})"
            )
        shown = service.host if scheme in _HAVE_HOSTS else "…"
        self.name = f"{scheme}://{shown} (number {number})"
        self.levels = (Level.WARNING, Level.FAILURE) if scheme in _PAGING else tuple(Level)
        given = vars(service)
        if "socket_read_timeout" not in given:
            service.socket_read_timeout = ANSWER_WITHIN_S
        if "overflow_mode" not in given:  # services refuse what is too long for them
            service.overflow_mode = OverflowMode.TRUNCATE
        self._service = service

    def send(self, message: Message) -> bool:
        """Return whether the service took a message. Blocks; raises nothing."""
        try:
            return self._service.notify(
                body=message.body,
                title=message.title,
                notify_type=message.level.value,
                body_format="text",
            )
        except Exception:  # noqa: BLE001 - of whatever service; its text may have the URL
            return False


def endpoints_of(urls: Sequence[str], path: str | None) -> list[Endpoint]:
    """Return the endpoints of --notify and --notify-file. Raises ``NotificationsUnusable``."""
    for name in ("apprise", "urllib3", "requests"):  # what they log has URLs in it
        library = logging.getLogger(name)
        library.propagate, library.handlers = False, [logging.NullHandler()]
    given = dict.fromkeys([*urls, *([] if path is None else _in_file(path))])
    if len(given) > NOTIFY_MAX:
        problem = f"{len(given)} endpoints are given, allowed are {NOTIFY_MAX} at most"
        raise NotificationsUnusable(problem)
    return [Endpoint(url, number) for number, url in enumerate(given, start=1)]


def _in_file(path: str) -> Iterable[str]:
    try:
        text = read_private(path, "file of --notify-file", bytes_max=FILE_BYTES_MAX)
    except AccessProblem as error:
        raise NotificationsUnusable(str(error), hint=error.hint) from error
    if (owner := Path(path).stat().st_uid) not in (0, os.geteuid()):
        problem = f"the file of --notify-file {path} belongs to the user {owner}"
        raise NotificationsUnusable(problem, hint=f"chown {os.geteuid()} {path}")
    for number, line in enumerate(text.splitlines(), start=1):
        url = line.strip()
        if not url or url.startswith("#"):
            continue
        try:
            yield NOTIFY_URL.convert(url)
        except ValueError as error:
            raise NotificationsUnusable(f"line {number} of {path}: {error}") from None
