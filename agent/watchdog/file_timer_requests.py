"""Pure. What torch's ``FileTimerClient`` writes: one line of JSON per request.

Source of the fields and their meaning:
``torch/distributed/elastic/timer/file_based_local_timer.py`` (2.13.0).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from signal import Signals
from typing import TYPE_CHECKING

from worker_sdk.interpreter.signal_numbers import is_signal

if TYPE_CHECKING:
    from collections.abc import Iterable

LINE_BYTES_MAX = 4096
"""PIPE_BUF of Linux: what the client limits itself to, for a longer line could be torn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTimerRequest:
    """One line. ``expires_at`` is the sender's wall clock; None: the timer is released.

    ``signal`` of 0 or less: the expiry is only reported. ``has_odd_signal``: it named one
    that this system does not have, and gets the client's default instead.
    """

    pid: int
    scope: str
    expires_at: float | None
    signal: int
    has_odd_signal: bool = False


class Lines:
    """Cuts a stream of bytes into lines; of one that is too long, only the beginning."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete now, without their ends."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines and self._is_skipping:
            self._is_skipping = False
            del lines[0]
        if len(self._rest) > LINE_BYTES_MAX:
            if not self._is_skipping:
                lines.append(self._rest[:LINE_BYTES_MAX])
            self._is_skipping, self._rest = True, b""
        return lines


def parse(line: bytes) -> FileTimerRequest:
    """Return the request in ``line``.

    Raises:
        ValueError: It is none; says why.
    """
    if len(line) > LINE_BYTES_MAX:
        raise ValueError(f"longer than {LINE_BYTES_MAX} bytes")
    try:
        fields = json.loads(line)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(fields, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 - a matter of content here
    scope = fields.get("scope_id")
    if not isinstance(scope, str):
        raise ValueError("scope_id is no text")  # noqa: TRY004 - as above
    named = _integer(fields, "signal", -(2**31), 2**31 - 1)
    is_odd = named > 0 and not is_signal(named)
    return FileTimerRequest(
        pid=_integer(fields, "pid", 1, 2**31 - 1),
        # Half a surrogate pair could not be sent on.
        scope=scope.encode("utf-8", "replace").decode(),
        expires_at=_instant(fields),
        signal=int(Signals.SIGKILL) if is_odd else named,
        has_odd_signal=is_odd,
    )


def latest(requests: Iterable[FileTimerRequest]) -> list[FileTimerRequest]:
    """Return the last request about each timer, in their order: it undoes those before."""
    found: dict[tuple[int, str], FileTimerRequest] = {}
    for request in requests:
        key = (request.pid, request.scope)
        found.pop(key, None)
        found[key] = request
    return list(found.values())


def _integer(fields: dict[str, object], name: str, least: int, most: int) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} is no number from {least} to {most}")
    return value


def _instant(fields: dict[str, object]) -> float | None:
    value = fields.get("expiration_time")
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError("expiration_time is no number")  # noqa: TRY004 - as above
    try:
        instant = float(value)
    except OverflowError as error:
        raise ValueError("expiration_time is out of range") from error
    if math.isnan(instant):
        raise ValueError("expiration_time is no number")
    # A timer that expires at the end of time needs no watching.
    return None if instant < 0 or math.isinf(instant) else instant
