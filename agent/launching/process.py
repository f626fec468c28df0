"""Shell. The process of a launched agent; its arguments are DIRECTORY, LIFELINE and PID.

It ends its agent, and so the workers, when the program that launched it has gone.
"""

import os
import select
import shutil
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

from drumbeat.agent.__main__ import run
from drumbeat.agent.errors import AgentError
from drumbeat.agent.runtime import exchange
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.command.console import close_console, open_missing
from drumbeat.command.loading import load_structlog_alone


def watch_launcher(lifeline: int, pid: int, signum: int, is_alone: threading.Event) -> None:
    """Send this process a signal, and set the event, when its launcher has ended or given up.

    ``lifeline`` is the read end of a pipe that the launcher holds open. A fork of the launcher
    may hold it too, so its pid is watched as well.
    """
    os.set_inheritable(lifeline, False)
    poll = select.poll()
    poll.register(lifeline, 0)  # its end is always told

    def watch() -> None:
        with suppress(ProcessLookupError):
            poll.register(os.pidfd_open(pid), select.POLLIN)
            if os.getppid() == pid:
                poll.poll()
        is_alone.set()
        os.kill(os.getpid(), signum)

    threading.Thread(target=watch, name="launcher watch", daemon=True).start()


def ending_signal(config: AgentConfig) -> signal.Signals:
    """Return a signal that ends the agent at once, whatever tells it that its host goes away."""
    is_notice = config.preemption_signal == signal.SIGTERM.name
    return signal.SIGINT if is_notice else signal.SIGTERM


def main(argv: list[str]) -> int:
    """Run the agent; return its exit code, of use only if the launcher is gone."""
    open_missing()
    directory = Path(argv[0])
    is_alone = threading.Event()
    try:
        config: AgentConfig = exchange.read(directory / exchange.AGENT)
        (directory / exchange.AGENT).unlink()  # there may be a token in it
        load_structlog_alone()
        from drumbeat.command.logs import configure_logs  # noqa: PLC0415

        watch_launcher(int(argv[1]), int(argv[2]), ending_signal(config), is_alone)
        configure_logs(config.log_format, level=config.log_level)
        return run(config)
    except AgentError as error:
        if exchange.read_outcome(directory) is None:
            outcome = exchange.AgentOutcome(exit_code=error.exit_code, error=error)
            exchange.write_outcome(str(directory / exchange.OUTCOME), outcome)
        return error.exit_code
    finally:
        close_console()
        if is_alone.is_set():
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    # Silently: the user who interrupts us knows why.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
