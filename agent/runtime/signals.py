"""Shell. Takes the signals an agent gets: some end it, some are for its workers alone."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence

from agent.core.events import Event, SignalReceived, SignalToForward, SuspendRequested

FORWARDED = frozenset({signal.SIGUSR1, signal.SIGUSR2})
"""For the workers alone, unless they are among those that end the agent."""


def take_signals(names: Sequence[str], submit: Callable[[Event], None]) -> None:
    """Turn signals into events of the running loop; those with ``names`` end the agent."""
    loop = asyncio.get_running_loop()
    handled = {signal.Signals[name] for name in names}
    if _is_ignored(signal.SIGHUP):  # by ``nohup``
        handled.discard(signal.SIGHUP)
    if not _is_ignored(signal.SIGTSTP):  # as it is without a terminal's job control
        loop.add_signal_handler(signal.SIGTSTP, submit, SuspendRequested())
    for signum in handled:
        loop.add_signal_handler(signum, submit, SignalReceived(signum=signum))
    for signum in FORWARDED - handled:
        loop.add_signal_handler(signum, submit, SignalToForward(signum=signum))


def _is_ignored(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN
