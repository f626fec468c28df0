"""Shell. Writes an archive of evidence of a run, by the calls of an operator. Blocks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from drumbeat.coordinator.command.client import Client, ask, calls_of
from drumbeat.coordinator.errors import CallFailed
from drumbeat.coordinator.evidence.archive import new_file, packed, stamp
from drumbeat.coordinator.evidence.contents import Evidence
from drumbeat.coordinator.evidence.gathering import gather

if TYPE_CHECKING:
    from drumbeat.coordinator.command.request import Request

_REASON = "an operator asked for it"


def write_evidence(asked: Request) -> None:
    """Gather evidence, and write it to a file. Raises ``grpc.RpcError`` or ``CallFailed``."""
    made, run_id, given = stamp(), asked.values["run_id"], asked.values["file"]
    path = Path(given or f"{Evidence(run_id, made, _REASON).name}.tar.gz")

    def work(client: Client) -> Evidence:
        evidence = Evidence(run_id, made, _REASON)
        gather(client, evidence, progress=lambda part: _say(f"reading {part}"))
        return evidence

    try:
        with new_file(path, may_replace=asked.values["force"]) as write:
            write(content := packed(ask(calls_of(asked), work)))
    except FileExistsError as error:
        hint = "name another file with -o, or replace this one with --force"
        raise CallFailed(f"{path} is there already", 2, hint) from error
    except OSError as error:
        raise CallFailed(f"{path} cannot be written: {error.strerror or error}", 1) from error
    _say(f"{path}: {len(content):,} bytes")


def _say(text: str) -> None:
    print(f"coordinator: {text}", file=sys.stderr, flush=True)
