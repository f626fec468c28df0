"""A worker that does what a test tells it, over a connection to the test's ``WorkerServer``.

The first argument is the server's HOST:PORT. It announces itself with one JSON line, then reads
one order per line and answers each that leaves it alive with one JSON line. Without a connection
it has nothing to do, and ends with ``EXIT_ABANDONED``.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path

EXIT_ABANDONED = 97


def announcement() -> dict[str, object]:
    """Say who this is; ``environment`` is all of it."""
    environment = dict(os.environ)
    return {
        "rank": int(environment.get("RANK", "-1")),
        "local_rank": int(environment.get("LOCAL_RANK", "-1")),
        "pid": os.getpid(),
        "round": int(environment.get("DRUMBEAT_ROUND", "-1")),
        "restart_count": int(environment.get("TORCHELASTIC_RESTART_COUNT", "-1")),
        "argv": sys.argv,
        "environment": environment,
    }


def raise_error(message: str) -> None:
    """Fail as user code does; the traceback names this function."""
    raise RuntimeError(message)


def write_error_file(message: str, stamp: str = "0") -> None:
    """Leave an error file as torch's ``record`` does; ``stamp`` is what its clock shows."""
    try:
        raise_error(message)
    except RuntimeError as error:
        content = {
            "message": {
                "message": f"RuntimeError: {error}",
                "extraInfo": {"py_callstack": traceback.format_exc(), "timestamp": stamp},
            }
        }
    Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps(content))


def listen(port: int, *, is_shared: bool) -> str:
    """Bind ``port`` of all addresses and listen, for good; return what went wrong."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if is_shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("", port))
        listener.listen()
    except OSError as error:
        listener.close()
        return str(error.strerror)
    LISTENERS.append(listener)
    return ""


LISTENERS: list[socket.socket] = []


def obey(order: str) -> object:
    """Carry out one order; return the answer."""
    verb, _, rest = order.partition(" ")
    match verb:
        case "exit":  # exit CODE
            sys.stdout.flush()
            os._exit(int(rest))
        case "raise":  # raise MESSAGE
            raise_error(rest)
        case "kill":  # kill SIGNAME: end by that signal, without a core file
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.Signals[rest], signal.SIG_DFL)
            os.kill(os.getpid(), signal.Signals[rest])
        case "ignore":  # ignore SIGNAME
            signal.signal(signal.Signals[rest], signal.SIG_IGN)
        case "on":  # on SIGNAME CODE: take a signal as an order to exit with that code
            name, code = rest.split()
            signal.signal(signal.Signals[name], lambda *_: os._exit(int(code)))
        case "spawn":  # start a process in a session of its own; answers its pid
            sleeper = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
            return subprocess.Popen(sleeper, start_new_session=True).pid
        case "error":  # error MESSAGE: leave an error file
            write_error_file(rest)
        case "error-at":  # error-at STAMP MESSAGE: leave one by a clock of its own
            stamp, message = rest.split(maxsplit=1)
            write_error_file(message, stamp)
        case "listen":  # listen PORT, as the store of rank 0 does; answers "" or what is wrong
            return listen(int(rest), is_shared=True)
        case "say":  # say TEXT, on standard output
            print(rest, flush=True)
        case _:
            return f"no such order: {order!r}"
    return ""


def main() -> int:
    """Obey until told to end, or left alone."""
    host, _, port = sys.argv[1].rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        lines = connection.makefile("rw", encoding="utf-8")
        lines.write(json.dumps(announcement()) + "\n")
        lines.flush()
        for line in lines:
            lines.write(json.dumps(obey(line.rstrip("\n"))) + "\n")
            lines.flush()
    return EXIT_ABANDONED


if __name__ == "__main__":
    sys.exit(main())
