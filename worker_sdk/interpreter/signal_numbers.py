"""Pure. Which numbers are signals, for all that are given one."""

from signal import Signals

# There are no real-time ones on macOS, where programs are written.
_REALTIME = range(getattr(Signals, "SIGRTMIN", 32), getattr(Signals, "SIGRTMAX", 31) + 1)

_LEFT_OUT = 8  # left to others, at the lower and at the upper end
INTERRUPTING = _REALTIME[_LEFT_OUT : -_LEFT_OUT - 1]
"""One of these brings the main thread out of the training function, for a restart in process."""

ALLOWED = f"1 to 31 or {_REALTIME[0]} to {_REALTIME[-1]}" if _REALTIME else "1 to 31"


def is_signal(number: int) -> bool:
    """Return whether this system has the signal, and the C library does not keep it to itself."""
    return 1 <= number <= 31 or number in _REALTIME
