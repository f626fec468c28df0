"""Shell. What other processes see of this one, its arguments and variables: no secret of ours."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

TOKEN_VARIABLE = "DRUMBEAT_TOKEN"  # noqa: S105 - its name
# URLs of notifications and heartbeats, which hold secrets, too.
_VARIABLES = (TOKEN_VARIABLE, "DRUMBEAT_NOTIFY", "DRUMBEAT_NOTIFY_HEARTBEAT")
_OWN = Path("/proc/self")
# By its form and not by its option, which may be spelled, and cut short, in many ways.
_ARGUMENT = re.compile(rb"drumbeat\d{1,3}\.([^\0]+)")
_ENDPOINT = re.compile(rb"\0--notify(?:[-_]heartbeat)?[=\0]([^\0]+)")
_VARIABLE = re.compile(rb"(?:\A|\0)(?:%b)=([^\0]+)" % "|".join(_VARIABLES).encode())


def withdraw_token() -> dict[str, str]:
    """Take secrets out of this process's arguments and environment; return the variables set.

    ``/proc/PID/cmdline``, which every user may read, and ``environ`` have them no more, and
    processes that are started from now on inherit none. What cannot be overwritten is left.
    """
    with suppress(OSError, ValueError):
        # Of proc(5): where the arguments and the environment are, as fields 48 to 51.
        fields = (_OWN / "stat").read_text().rpartition(")")[2].split()[45:49]
        args_start, args_end, env_start, env_end = map(int, fields)
        _overwrite(_ARGUMENT, args_start, args_end)
        _overwrite(_ENDPOINT, args_start, args_end)
        _overwrite(_VARIABLE, env_start, env_end)
    return {name: os.environ.pop(name) for name in _VARIABLES if name in os.environ}


def _overwrite(secret: re.Pattern[bytes], start: int, end: int) -> None:
    memory = os.open(_OWN / "mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        for match in secret.finditer(os.pread(memory, end - start, start)):
            first, last = match.span(1)
            os.pwrite(memory, b"x" * (last - first), start + first)
    finally:
        os.close(memory)
