"""Pure. Which numbers are signals, for all that are given one."""

from signal import Signals

ALLOWED = f"1 to 31 or {Signals.SIGRTMIN} to {Signals.SIGRTMAX}"


def is_signal(number: int) -> bool:
    """Return whether this system has the signal, and the C library does not keep it to itself."""
    return 1 <= number <= 31 or Signals.SIGRTMIN <= number <= Signals.SIGRTMAX
