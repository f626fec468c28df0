"""Readers that stay: half as ``coordinator watch``, half as ``coordinator events --follow``.

Usage: watchers.py COORDINATOR RUN COUNT [--insecure]. Each has a thread and calls
of its own, and does all that the command does but write to a terminal. Says "ready" when all
have seen the run, and ends when its standard input does.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from drumbeat.command.loading import load_grpc_quietly

load_grpc_quietly()

from drumbeat.coordinator.api.documents import document_of  # noqa: E402
from drumbeat.coordinator.command.client import ask, calls_of  # noqa: E402
from drumbeat.coordinator.command.looking import screens  # noqa: E402
from drumbeat.coordinator.command.looking.following import follow, looks  # noqa: E402
from drumbeat.coordinator.command.request import request  # noqa: E402


def watch(asked: dict[str, Any], seen: threading.Semaphore) -> None:
    """Do as ``coordinator watch``."""
    for status in looks(request("watch", **asked)):
        screens.text_of(screens.status_screen(status))
        seen.release()


def follow_events(asked: dict[str, Any], seen: threading.Semaphore) -> None:
    """Do as ``coordinator events --follow``."""
    wanted = request("events", follow=True, **asked)
    calls = calls_of(wanted)
    run = ask(calls, lambda client: client.run(asked["run_id"]))
    events = ask(calls, lambda client: client.events(run))
    seen.release()
    for response in follow(calls, run, events[-1].sequence if events else 0):
        screens.text_of(screens.events_screen(map(document_of, response.events)))


def main(coordinator: str, run_id: str, count: str, *insecure: str) -> None:
    """Read until standard input ends."""
    asked = {"coordinator": coordinator, "run_id": run_id, "insecure": bool(insecure)}
    seen = threading.Semaphore(0)
    for number in range(int(count)):
        read = watch if number % 2 else follow_events
        threading.Thread(target=read, args=(asked, seen), daemon=True).start()
    for _ in range(int(count)):
        seen.acquire()
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
