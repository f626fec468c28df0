"""Shell. Takes the signals an agent gets: some end it, some are for its workers alone."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence

from agent.core.events import Event, SignalReceived, SignalToForward, SuspendRequested

FORWARDED = frozenset({signal.SIGUSR1, signal.SIGUSR2})
"""For the workers alone, unless they are among those that end the agent."""


STAYS_IGNORED = signal.SIGHUP
"""Stays ignored if it was so at the start: ``nohup``."""


def take_signals(names: Sequence[str], submit: Callable[[Event], None]) -> None:
    """Turn signals into events of the running loop; those with ``names`` end the agent."""
    loop = asyncio.get_running_loop()
    handled = {signal.Signals[name] for name in names}
    if is_ignored(STAYS_IGNORED):
        handled.discard(STAYS_IGNORED)
    if not is_ignored(signal.SIGTSTP):  # as it is without a terminal's job control
        loop.add_signal_handler(signal.SIGTSTP, submit, SuspendRequested())
    for signum in handled:
        loop.add_signal_handler(signum, submit, SignalReceived(signum=signum))
    for signum in FORWARDED - handled:
        loop.add_signal_handler(signum, submit, SignalToForward(signum=signum))


def is_ignored(number: signal.Signals) -> bool:
    """Return whether this process ignores a signal."""
    return signal.getsignal(number) is signal.SIG_IGN
