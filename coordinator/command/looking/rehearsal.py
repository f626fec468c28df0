"""Shell. Begins a rehearsal, follows it to its end, and shows what it has shown."""

from __future__ import annotations

import uuid
from typing import Any

from drumbeat.command.table import table
from drumbeat.coordinator.api.documents import document_of
from drumbeat.coordinator.command.client import Client, ask, calls_of
from drumbeat.coordinator.command.columns import Columns, cells
from drumbeat.coordinator.command.looking.following import follow
from drumbeat.coordinator.command.looking.output import write, write_json
from drumbeat.coordinator.command.request import Request
from drumbeat.coordinator.errors import CallFailed
from drumbeat.v1 import query_pb2 as pb

_FAULTS, _ENDED = ("fault_injected", "fault_over"), "rehearsal_ended"
_COLUMNS: Columns = {
    "FAULT": "kind",
    "RANK": "rank",
    "AGENT": "name",
    "OUTCOME": "outcome",
    "DETECTED": "detected_s",
    "RUNNING": "running_s",
    "TRAINED": "trained_s",
    "STEPS REPEATED": "steps_repeated",
    "LOSS BEFORE": "loss_before",
    "AFTER": "loss_after",
}


def rehearse(asked: Request) -> None:
    """Begin a rehearsal and follow it, or what else is asked for. Raises ``CallFailed``."""
    values = asked.values
    is_alone = values["is_end"] or values["detach"]
    if not values["report"]:
        run = _steer(asked, is_shown=is_alone)
        if is_alone:
            return
        try:
            _follow(asked, run)
        except KeyboardInterrupt:
            _steer(asked, is_end=True)
            _report(asked)
            raise
    _report(asked)


def _steer(asked: Request, *, is_shown: bool = False, **more: bool) -> pb.Run:
    """Begin or end the rehearsal; return the run as it was before."""
    run_id, wanted = asked.values["run_id"], {"request_id": uuid.uuid4().hex, **more}

    def work(client: Client) -> tuple[pb.Run, Any]:
        return client.run(run_id), client.call("Rehearse", **{**asked.values, **wanted})

    run, response = ask(calls_of(asked), work)
    if asked.output == "text":
        write(f"coordinator: run {run_id}: {response.outcome}\n")
    elif is_shown:
        write_json({"run_id": run_id, **document_of(response)})
    return run


def _follow(asked: Request, run: pb.Run) -> None:
    """Write a line for each fault, until the rehearsal or the run is over."""
    for response in follow(calls_of(asked), run, run.event_sequence):
        for event in map(document_of, response.events):
            if event["kind"] in _FAULTS and asked.output == "text":
                write(f"{event['reason']}\n")
            if event["kind"] == _ENDED:
                return


def _report(asked: Request) -> None:
    run_id = asked.values["run_id"]
    answer = ask(calls_of(asked), lambda client: client.call("GetRehearsal", run_id=run_id))
    document = {"run_id": run_id, **document_of(answer)}
    if asked.output == "json":
        write_json(document)
    else:
        write(table([*_COLUMNS], cells(_COLUMNS, document["faults"])) + "\n")
        write(f"{document['verdict']}\n")
    if any(fault["outcome"] == "run_failed" for fault in document["faults"]):
        raise CallFailed(document["verdict"], 1)
