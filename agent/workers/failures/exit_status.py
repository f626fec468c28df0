"""Pure. How a process ended, as text."""

from signal import Signals

SHELL_SIGNAL = 128
"""What shells add to a signal's number."""

_NAMES = {int(number): number.name for number in Signals}


def signal_within(exit_code: int) -> Signals | None:
    """Return the signal that an exit code tells of, also if a shell in between folded it."""
    number = -exit_code if exit_code < 0 else exit_code - SHELL_SIGNAL
    return Signals(number) if number in _NAMES else None


def signal_name(exit_code: int) -> str:
    """Return the name of the signal behind a negative exit code, empty for an exit."""
    return _NAMES.get(-exit_code, f"signal {-exit_code}") if exit_code < 0 else ""


def describe_exit(exit_code: int) -> str:
    """Name the signal, or the code."""
    return signal_name(exit_code) or f"exit code {exit_code}"


def describe_ending(exit_code: int) -> str:
    """Say it as the end of a sentence: was ended by a signal, or exited with a code."""
    signal = signal_within(exit_code)
    name = signal.name if signal is not None else signal_name(exit_code)
    return f"was ended by {name}" if name else f"exited with code {exit_code}"
