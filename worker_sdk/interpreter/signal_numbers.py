"""Pure. Which numbers are signals, for all that are given one."""

from __future__ import annotations

from signal import Signals

ALLOWED = f"1 to 31 or {Signals.SIGRTMIN} to {Signals.SIGRTMAX}"

_NAMED = frozenset(map(int, Signals))


def is_signal(number: int) -> bool:
    """Return whether this system has the signal.

    Not those that the C library keeps to itself, 32 and 33 on Linux: the kernel would
    take them, but a process may be deaf to them.
    """
    return number in _NAMED or Signals.SIGRTMIN <= number <= Signals.SIGRTMAX
