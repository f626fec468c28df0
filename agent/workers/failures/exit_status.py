"""Pure. How a process ended, in words."""

from __future__ import annotations

from signal import Signals

_SIGNAL_NAMES = {int(number): number.name for number in Signals}


def signal_name(exit_code: int) -> str:
    """Return the name of the signal behind a negative exit code, empty for an exit."""
    if exit_code >= 0:
        return ""
    return _SIGNAL_NAMES.get(-exit_code, f"signal {-exit_code}")


def describe_exit(exit_code: int) -> str:
    """Name the signal, or the code."""
    return signal_name(exit_code) or f"exit code {exit_code}"
