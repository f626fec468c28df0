"""Shell. The process of a launched agent: ``python -P -m agent.launching.process DIR FD PID``.

It ends its agent, and so the workers, when the program that launched it has gone.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from agent.__main__ import run
from agent.errors import AgentError
from agent.launching import files
from agent.launching.outcome import Outcome
from drumbeat.command.console import close_console, open_missing
from drumbeat.command.logs import configure_logs

if TYPE_CHECKING:
    from agent.settings.config import AgentConfig


class LauncherWatch:
    """Sends this process SIGTERM when its launcher has ended, or has given the launch up.

    Args:
        lifeline: Read end of a pipe that the launcher holds open. A fork of the
            launcher may hold it too, so its pid is watched as well.
        pid: The launcher.
    """

    def __init__(self, lifeline: int, pid: int) -> None:
        self.is_alone = False
        os.set_inheritable(lifeline, False)
        self._poll = select.poll()
        self._poll.register(lifeline, 0)  # its end is always told
        try:
            self._poll.register(os.pidfd_open(pid), select.POLLIN)
        except ProcessLookupError:
            self.is_alone = True
        self.is_alone = self.is_alone or os.getppid() != pid

    def start(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._run, name="launcher watch", daemon=True).start()

    def _run(self) -> None:
        if not self.is_alone:
            self._poll.poll()
        self.is_alone = True
        os.kill(os.getpid(), signal.SIGTERM)


def main(argv: list[str]) -> int:
    """Run the agent; return its exit code, of use only if the launcher is gone."""
    open_missing()
    directory = Path(argv[0])
    watch = LauncherWatch(int(argv[1]), int(argv[2]))
    try:
        config: AgentConfig = files.read(directory / files.AGENT)
        configure_logs(config.log_format, level=config.log_level)
        watch.start()
        return run(config)
    except AgentError as error:
        if files.read_outcome(directory) is None:
            outcome = Outcome(exit_code=error.exit_code, error=error)
            files.write_outcome(str(directory / files.OUTCOME), outcome)
        return error.exit_code
    finally:
        close_console()
        if watch.is_alone:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    # Silently: the user who interrupts us knows why.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
