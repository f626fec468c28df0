"""Shell. Carries out the verbs that show runs."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import grpc

from drumbeat.coordinator.api.documents import (
    Document,
    document_of,
    explanation_document,
    goodput_document,
)
from drumbeat.coordinator.api.goodput_totals import totals_document
from drumbeat.coordinator.api.listing import chosen
from drumbeat.coordinator.command.client import Client, ask, calls_of, failure_of
from drumbeat.coordinator.command.looking.following import follow, look, looks
from drumbeat.coordinator.command.looking.jobs import find_job, show_job
from drumbeat.coordinator.command.looking.logs import show_logs
from drumbeat.coordinator.command.looking.output import write, write_document, write_json
from drumbeat.coordinator.command.looking.rehearsal import rehearse
from drumbeat.coordinator.command.request import Request
from drumbeat.coordinator.errors import CallFailed
from drumbeat.coordinator.evidence.archive import new_file, packed, stamp
from drumbeat.coordinator.evidence.contents import Evidence
from drumbeat.coordinator.evidence.gathering import gather
from drumbeat.coordinator.wire import stack_groups as stacks
from drumbeat.text.format import count, printable
from drumbeat.v1 import query_pb2 as pb
from drumbeat.v1.failure_pb2 import VerdictCause
from drumbeat.wire.mapping import seconds_of

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


# No workers any more, too many readers ask, or an earlier coordinator.
_CANNOT_ASK = (
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
)
WATCH_INTERVAL_S = 60.0  # between two lines of `watch` into a pipe while nothing is new
STACKS_TIMEOUT_S = 30.0  # 4 of them the agents have; the rest is for large answers


def show(asked: Request) -> None:
    """Show what is asked for, of a run or of a job. Raises ``CallFailed``."""
    try:
        LOOKING[asked.name](asked)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND and (job := find_job(asked)) is not None:
            show_job(asked, job, LOOKING[asked.name])
            return
        raise failure_of(asked, error) from error


def _status(asked: Request) -> None:
    if asked.values["run_id"] is None:
        _runs(asked)
        return
    status, trouble = ask(
        calls_of(asked), lambda client: (look(client, asked).status, _trouble(client))
    )
    _warn(trouble)
    write_document(asked, status, "status_screen")


def _runs(asked: Request) -> None:
    def work(client: Client) -> tuple[Document, str]:
        first = client.call("ListRuns", page_size=1)
        documents = {
            "runs": [document_of(run) for run in client.runs()],
            "jobs": [document_of(job) for job in first.jobs],
            "set_aside": [document_of(run) for run in first.set_aside],
        }
        return documents, _trouble(client)

    documents, trouble = ask(calls_of(asked), work)
    _warn(trouble)
    documents["runs"], documents["jobs"], rows = chosen(documents, **asked.values)
    shown = documents if asked.output == "json" else {**documents, "rows": rows}
    write_document(asked, shown, "runs_screen")
    for run in documents["set_aside"] if asked.output == "text" else ():
        why = printable(f"{run['run_id']} is set aside: {run['reason']}")
        advice = f"restore a backup, or drop it with `coordinator forget {run['run_id']}`"
        write(f"{why}; {advice}\n")


def _trouble(client: Client) -> str:
    """Return why nothing is decided, empty if something is."""
    cluster: pb.ListCoordinatorsResponse = client.call("ListCoordinators")
    return cluster.reason


def _warn(trouble: str) -> None:
    if trouble:
        print(f"coordinator: nothing is decided: {trouble}", file=sys.stderr)


def _events(asked: Request) -> None:
    def work(client: Client) -> tuple[pb.Run, list[pb.RunEvent]]:
        run = client.run(asked.values["run_id"])
        return run, client.events(run)

    calls = calls_of(asked)
    run, events = ask(calls, work)
    since_s = math.inf if asked.values["since"] is None else asked.values["since"]
    recent = [event for event in events if seconds_of(event.age) <= since_s]
    _write_events(asked, recent, has_heads=True)
    if not asked.values["follow"]:
        return
    for response in follow(calls, run, events[-1].sequence if events else 0):
        if response.missed:
            missed = f"{count(response.missed, 'event')} not shown: they came too fast"
            print(f"coordinator: {missed}", file=sys.stderr)
        _write_events(asked, response.events, has_heads=False)


def _write_events(asked: Request, events: Iterable[pb.RunEvent], *, has_heads: bool) -> None:
    of_group = {"run_id": asked.values["run_id"]} if asked.values.get("is_group") else {}
    documents = [{**of_group, **document_of(event)} for event in events]
    if asked.output == "json":
        write_json(*documents)
        return
    from drumbeat.coordinator.command.looking import screens  # noqa: PLC0415 - rich, for text alone

    write(screens.text_of(screens.events_screen(documents, has_heads=has_heads, now=time.time())))


def _why(asked: Request) -> None:
    def work(client: Client) -> Document:
        overview = client.call("GetOverview", run_id=asked.values["run_id"])
        agents = client.agents(overview.run, pb.VIEW_BASIC)
        hang = _hang_now(client, overview.run)
        return explanation_document(overview, agents, client.events(overview.run), hang)

    write_document(asked, ask(calls_of(asked), work), "explanation_screen")


def _hang_now(client: Client, run: pb.Run) -> Document | None:
    """Return which rank the others of a run wait for now, if workers can be asked."""
    if run.phase != pb.RUN_PHASE_RUNNING:
        return None
    try:
        answer = client.call("DiagnoseHang", timeout_s=STACKS_TIMEOUT_S, run_id=run.run_id)
    except grpc.RpcError as error:
        if isinstance(error, grpc.Call) and error.code() in _CANNOT_ASK:
            return None
        raise
    hang: Document | None = document_of(answer)["hang"]
    return hang


def _watch(asked: Request) -> None:
    if asked.output == "json":
        for status in looks(asked):
            write_json(status)
        return
    from drumbeat.coordinator.command.looking import screens  # noqa: PLC0415 - rich, for text alone

    last = screens.show_live(looks(asked)) if sys.stdout.isatty() else _follow_in_lines(asked)
    write(screens.text_of(screens.status_screen(last)))  # what it came to, when all is gone


def _follow_in_lines(asked: Request) -> Document:
    """Write a line whenever something is new, but not for each step; return the last status."""
    from drumbeat.coordinator.command.looking import screens  # noqa: PLC0415

    status: Document = {}
    shown: tuple[object, ...] = ()
    due = 0.0
    for status in looks(asked):
        if (news := _without_ages(status)) != shown or time.monotonic() >= due:
            shown, due = news, time.monotonic() + WATCH_INTERVAL_S
            write(screens.text_of(screens.status_line(status, now=time.time())))
    return status


def _without_ages(status: Document) -> tuple[object, ...]:
    """Return what is news in a status, when it changes."""
    failure = status["last_failure"] or {}
    return *(status[key] for key in ("phase", "health", "round_id")), failure.get("reason")


def _stacks(asked: Request) -> None:
    run_id, ranks = asked.values["run_id"], asked.values["rank"]
    about = {"run_id": run_id, "ranks": ranks, "may_signal": asked.values["signal"]}

    def work(client: Client) -> list[stacks.Worker]:
        answers = client.call("GetStacks", timeout_s=STACKS_TIMEOUT_S, **about)
        return sorted(worker for answer in answers for worker in stacks.workers_of(answer))

    workers = ask(calls_of(asked), work)
    if asked.output == "json":
        write_json(stacks.document(run_id, workers))
    else:
        write(stacks.text(workers))


def _goodput(asked: Request) -> None:
    run_id, with_segments = asked.values["run_id"], asked.values["segments"]
    if asked.values["all"] is not (run_id is None):
        raise CallFailed("either RUN or --all is needed", 2)
    if run_id is None:
        _all_goodput(asked)
        return
    goodput = ask(
        calls_of(asked),
        lambda client: client.call("GetGoodput", run_id=run_id, with_segments=with_segments),
    )
    document = goodput_document(run_id, goodput, with_segments=with_segments)
    write_document(asked, document, "goodput_screen")


def _all_goodput(asked: Request) -> None:
    def work(client: Client) -> Document:
        goodputs, now = [], time.time()
        for run in client.runs():
            run_id, number = run.run_id, run.generation
            whole = client.call("GetGoodput", run_id=run_id, generation=number, with_segments=True)
            goodputs.append((run, whole))
        by, since_s = asked.values["by"], asked.values["since"]
        return totals_document(goodputs, by=by, since_s=since_s, now=now)

    write_document(asked, ask(calls_of(asked), work), "totals_screen")


def _verdict(asked: Request) -> None:
    verdict = ask(calls_of(asked), lambda client: client.call("GetReport", **asked.values)).verdict
    document = {
        **asked.values,
        "cause": VerdictCause.Name(verdict.cause).removeprefix("VERDICT_CAUSE_").lower(),
        "is_success": verdict.is_success,
        "reason": verdict.reason,
    }
    if asked.output == "json":
        write_json(document)
    else:
        write(asked.verb.text.format_map(document) + "\n")


LOOKING: dict[str, Callable[[Request], None]] = {
    "status": _status,
    "watch": _watch,
    "why": _why,
    "events": _events,
    "stacks": _stacks,
    "logs": show_logs,
    "goodput": _goodput,
    "evidence": write_evidence,
    "verdict": _verdict,
    "rehearse": rehearse,
}
