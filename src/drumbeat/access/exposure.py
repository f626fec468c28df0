"""Shell. What other processes see of this one, its arguments and variables: no token among them."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

TOKEN_VARIABLE = "DRUMBEAT_TOKEN"  # noqa: S105 - its name
_OWN = Path("/proc/self")
# By its form and not by its option, which may be spelled, and cut short, in many ways.
_ARGUMENT = re.compile(rb"drumbeat\d{1,3}\.([^\0]+)")
_VARIABLE = re.compile(rb"(?:\A|\0)%b=([^\0]+)" % TOKEN_VARIABLE.encode())


def withdraw_token() -> dict[str, str]:
    """Take tokens out of this process's arguments and environment; return the variable, if set.

    ``/proc/PID/cmdline``, which every user may read, and ``environ`` have them no more, and
    processes that are started from now on inherit none. What cannot be overwritten is left.
    """
    with suppress(OSError, ValueError):
        # Of proc(5): where the arguments and the environment are, as fields 48 to 51.
        fields = (_OWN / "stat").read_text().rpartition(")")[2].split()[45:49]
        args_start, args_end, env_start, env_end = map(int, fields)
        _overwrite(_ARGUMENT, args_start, args_end)
        _overwrite(_VARIABLE, env_start, env_end)
    value = os.environ.pop(TOKEN_VARIABLE, None)
    return {} if value is None else {TOKEN_VARIABLE: value}


def _overwrite(secret: re.Pattern[bytes], start: int, end: int) -> None:
    memory = os.open(_OWN / "mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        for match in secret.finditer(os.pread(memory, end - start, start)):
            first, last = match.span(1)
            os.pwrite(memory, b"x" * (last - first), start + first)
    finally:
        os.close(memory)
