"""Shell. Becomes the command of a health check, and dies with the agent that started it.

Run as a script, with the standard library alone: more imports would take longer than most checks.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Take the agent's pid and the command from the command line."""
    agent_pid, *argv = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(agent_pid):
        return  # it died before, and sends no signal any more
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - what the user asked for
    except OSError as error:
        sys.exit(f"{argv[0]} could not be started: {error.strerror}")


if __name__ == "__main__":
    main()
