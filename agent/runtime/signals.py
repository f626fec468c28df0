"""Shell. Takes the signals an agent gets: some end it, some are for its workers alone."""

import asyncio
import signal
from collections.abc import Callable, Sequence

from agent.core.events import Event, SignalReceived, SignalToForward, SuspendRequested

FORWARDED = frozenset({signal.SIGUSR1, signal.SIGUSR2})
"""For the workers alone, unless they are among those that end the agent."""


def take_signals(names: Sequence[str], submit: Callable[[Event], None]) -> None:
    """Turn signals into events of the running loop; those with ``names`` end the agent."""
    add = asyncio.get_running_loop().add_signal_handler
    handled = {signal.Signals[name] for name in names}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # by ``nohup``
        handled.discard(signal.SIGHUP)
    if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:  # where a terminal controls jobs
        add(signal.SIGTSTP, submit, SuspendRequested())
    for signum in handled:
        add(signum, submit, SignalReceived(signum=signum))
    for signum in FORWARDED - handled:
        add(signum, submit, SignalToForward(signum=signum))
