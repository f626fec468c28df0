"""Shell. Shows jobs with replica groups: as a whole, or one group after the other. Blocks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc

from drumbeat.coordinator.api.documents import document_of, goodput_document
from drumbeat.coordinator.command.client import ask, calls_of, failure_of
from drumbeat.coordinator.command.looking.output import write, write_document, write_json
from drumbeat.coordinator.command.request import Request
from drumbeat.coordinator.errors import CallFailed
from drumbeat.text.format import listed, printable
from drumbeat.v1 import query_pb2 as pb


def find_job(asked: Request) -> pb.GetJobResponse | None:
    """Return the job that a verb names; ``None``: there is none, or an earlier coordinator."""
    run_id = asked.values["run_id"]
    try:
        job: pb.GetJobResponse = ask(
            calls_of(asked), lambda client: client.call("GetJob", run_id=run_id)
        )
    except grpc.RpcError:
        return None
    return job


def show_job(asked: Request, job: pb.GetJobResponse, show: Callable[[Request], None]) -> None:
    """Show a job; ``show`` shows a group. Raises ``CallFailed``."""
    groups = [group.run.run_id for group in job.groups]
    job_id, document = job.job.run_id, document_of(job)
    match asked.name:
        case "status":
            write_document(asked, document, "job_screen")
        case "goodput" if not asked.values["segments"]:
            write_document(asked, goodput_document(job_id, job.goodput), "goodput_screen")
        case "verdict" if document["cause"]:
            verdict = {key: document[key] for key in ("run_id", "cause", "reason")}
            verdict["is_success"] = verdict["cause"] == "succeeded"
            if asked.output == "json":
                write_json(verdict)
            else:
                write(asked.verb.text.format_map(verdict) + "\n")
        case _ if asked.verb.is_per_group:
            _show_each(asked, groups, show)
        case _:
            problem = f"{job_id} is a job with replica groups: {job.job.reason}"
            raise CallFailed(problem, 2, f"name one of its groups: {listed(groups)}")


def _show_each(asked: Request, groups: list[str], show: Callable[[Request], None]) -> None:
    """Show the groups one after the other, or all at once while they go on."""
    failures: list[CallFailed] = []

    def show_group(run_id: str) -> None:
        values: dict[str, Any] = {**asked.values, "run_id": run_id, "is_group": True}
        one = replace(asked, values=values)
        if asked.output == "text" and not asked.values.get("follow"):
            write(f"{run_id}:\n")
        try:
            show(one)
        except (CallFailed, grpc.RpcError) as error:
            failed = error if isinstance(error, CallFailed) else failure_of(one, error)
            print(f"coordinator: {run_id}: {printable(str(failed))}", file=sys.stderr, flush=True)
            failures.append(failed)

    if asked.values.get("follow"):
        threads = [threading.Thread(target=show_group, args=(i,), daemon=True) for i in groups]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        for run_id in groups:
            show_group(run_id)
    if len(failures) == len(groups):
        raise failures[0]
