#!/usr/bin/env python3
"""Keep a run's drains like those of Slurm, for the nodes of a job.

    drains.py --run-id slurm-4711 --nodes "$SLURM_JOB_NODELIST"

Nodes that Slurm drains, or that are down or failing, are drained in the run: training may save,
then it leaves them. Nodes that are back are undrained. With --drain-slurm also the other way round:
Slurm drains nodes that an operator has drained in the run. That takes Slurm's operator role.

Slurm reports no such changes, so it is asked every --period seconds. Nothing is kept between
two looks: the reasons of drains say whose they are. Needs `coordinator`, `sinfo` and `scontrol`;
the coordinator and a token of role admin are those of DRUMBEAT_COORDINATOR and DRUMBEAT_TOKEN_FILE.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import threading
from typing import NamedTuple

AWAY = {"down", "drained", "draining", "fail", "failing"}
OURS = "slurm: "  # what reasons of our drains in the run begin with
COMMAND_TIMEOUT_S = 30.0
REASON_MAX = 256  # characters, of `coordinator drain --reason`


class Node(NamedTuple):
    """A node as Slurm sees it."""

    state: str
    reason: str

    @property
    def is_away(self) -> bool:
        """Whether Slurm gives it no jobs."""
        return self.state in AWAY


class Drain(NamedTuple):
    """A drain of the coordinator."""

    name: str
    run_id: str | None  # None: all runs
    reason: str


def parse_nodes(text: str) -> dict[str, Node]:
    """Read lines of `sinfo --Node --format=%N|%T|%E`, one for each node and partition."""
    rows = (line.split("|", 2) for line in text.splitlines() if line.count("|") >= 2)
    # Flags such as * (does not respond) follow the state.
    return {name: Node(state.rstrip("*~#!%$@^-+"), reason) for name, state, reason in rows}


def changes(
    run_id: str, nodes: dict[str, Node], drains: list[Drain], *, drains_slurm: bool
) -> list[list[str]]:
    """Return the commands that make both sides alike."""
    own = {drain.name for drain in drains if is_own(drain, run_id)}
    theirs = {drain.name: drain for drain in drains if drain.name not in own}
    theirs = {name: drain for name, drain in theirs.items() if drain.run_id in (None, run_id)}
    mark = f"drumbeat {run_id}: "  # of Slurm's drains that were made here
    commands: list[list[str]] = []
    for name, node in sorted(nodes.items()):
        is_marked = node.reason.startswith(mark)
        if node.is_away and not is_marked and name not in own and name not in theirs:
            reason = f"{OURS}{node.state}: {node.reason}"[:REASON_MAX]
            commands.append(["coordinator", "drain", name, "--run-id", run_id, "--reason", reason])
        elif name in own and not node.is_away:
            commands.append(undrain(name, run_id))
        if not drains_slurm:
            continue
        update = ["scontrol", "update", f"NodeName={name}"]
        if name in theirs and not node.is_away:
            reason = f"{mark}{theirs[name].reason}"[:REASON_MAX]
            commands.append([*update, "State=DRAIN", f"Reason={reason}"])
        elif name not in theirs and node.is_away and is_marked:
            commands.append([*update, "State=RESUME"])
    return commands


def is_own(drain: Drain, run_id: str) -> bool:
    """Return whether this sidecar, or one before it, has made a drain."""
    return drain.run_id == run_id and drain.reason.startswith(OURS)


def undrain(name: str, run_id: str) -> list[str]:
    """Return the command that takes a drain back."""
    return ["coordinator", "undrain", name, "--run-id", run_id, "--reason", "slurm: it is back"]


def run(*command: str) -> str:
    """Return what a command writes. Raises ``OSError`` or ``subprocess.SubprocessError``."""
    done = subprocess.run(  # noqa: S603 - the commands of this file
        command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise OSError(f"{' '.join(command[:3])}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def read_drains() -> list[Drain]:
    """Ask the coordinator for all drains."""
    found = json.loads(run("coordinator", "drains", "-o", "json"))["drains"]
    return [Drain(each["name"], each["run_id"], each["reason"] or "") for each in found]


def attempt(command: list[str]) -> None:
    """Run a command and say so; one that fails is tried again after the next look."""
    try:
        run(*command)
        print(f"drains: {' '.join(command)}", flush=True)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"drains: warning: {error}", file=sys.stderr, flush=True)


def main() -> int:
    """Look until SIGTERM or SIGINT; then take back the drains in the run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--nodes", required=True, help="as Slurm lists them: gpu[1-16]")
    parser.add_argument("--period", type=float, default=15.0, help="seconds, default 15")
    parser.add_argument(
        "--drain-slurm", action="store_true", help="drain in Slurm what is drained in the run"
    )
    given = parser.parse_args()
    if not 1 <= given.period <= 3600:
        parser.error(f"argument --period: {given.period:g} is given, allowed is 1 to 3600")
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    listing = ("sinfo", "--noheader", "--Node", f"--nodes={given.nodes}", "--format=%N|%T|%E")
    while True:
        try:
            nodes, drains = parse_nodes(run(*listing)), read_drains()
            for command in changes(given.run_id, nodes, drains, drains_slurm=given.drain_slurm):
                attempt(command)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            print(f"drains: warning: {error}", file=sys.stderr, flush=True)
        if ended.wait(given.period):
            break
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        for drain in read_drains():
            if is_own(drain, given.run_id):
                attempt(undrain(drain.name, given.run_id))
    return 0


if __name__ == "__main__":
    sys.exit(main())
