"""Shell. Carries out the commands that show something; returns their exit codes."""

from __future__ import annotations

import json
import math
import sys
import time
from typing import TYPE_CHECKING, Any

import grpc

from drumbeat.access.redaction import without_tokens
from drumbeat.coordinator.api.documents import (
    document_of,
    goodput_document,
    overview_document,
    status_document,
)
from drumbeat.coordinator.api.requests import (
    ExplainRun,
    Looking,
    ShowEvents,
    ShowGoodput,
    ShowLogs,
    ShowStacks,
    ShowStatus,
    WatchRun,
)
from drumbeat.coordinator.command.calls import failure_of
from drumbeat.coordinator.command.looking.explanation import explanation
from drumbeat.coordinator.command.looking.following import Patience, follow
from drumbeat.coordinator.command.looking.live import look, looks
from drumbeat.coordinator.command.looking.log_following import show_logs
from drumbeat.coordinator.command.looking.reading import Reader, calls_of, read_stacks
from drumbeat.coordinator.wire import stack_groups as stacks
from drumbeat.format import count, printable
from drumbeat.mapping import seconds_of
from drumbeat.v1 import query_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from drumbeat.access.client import Metadata
    from drumbeat.coordinator.api.documents import Document


def show(asked: Looking) -> None:
    """Show what is asked for. Raises ``CallFailed``."""
    try:
        VERBS[type(asked)](asked)
    except grpc.RpcError as error:
        raise failure_of(asked, error) from error


def _status(asked: ShowStatus) -> None:
    def work(*opened: Any) -> tuple[Document, str]:
        reader = Reader(*opened)
        if asked.run_id is None:
            documents = {
                "runs": [document_of(run) for run in reader.runs()],
                "set_aside": [document_of(run) for run in reader.set_aside()],
            }
            return documents, reader.trouble()
        return look(reader, asked).status, reader.trouble()

    found, trouble = calls_of(asked).ask(work)
    if trouble:
        print(f"coordinator: nothing is decided: {trouble}", file=sys.stderr)
    if asked.output == "json":
        write_json(found)
        return
    from drumbeat.coordinator.command.looking import screens  # noqa: PLC0415 - rich, for text alone

    is_list = asked.run_id is None
    screen = screens.runs_screen(found["runs"]) if is_list else screens.status_screen(found)
    write(screens.text_of(screen))
    for run in found["set_aside"] if is_list else ():
        why = printable(f"{run['run_id']} is set aside: {run['reason']}")
        advice = f"restore a backup, or drop it with `coordinator forget {run['run_id']}`"
        write(f"{why}; {advice}\n")


def _events(asked: ShowEvents) -> None:
    def work(*opened: Any) -> tuple[query_pb2.Run, list[query_pb2.RunEvent]]:
        reader = Reader(*opened)
        run = reader.run(asked.run_id)
        return run, reader.events(run)

    calls = calls_of(asked)
    run, known = calls.ask(work)
    within_s = math.inf if asked.since is None else asked.since
    _write_events(
        asked, [event for event in known if seconds_of(event.age) <= within_s], has_heads=True
    )
    if not asked.follow:
        return
    patience = Patience(calls)
    patience.reached()
    after = known[-1].sequence if known else 0
    for response in follow(calls, run, after, patience):
        if response.missed:
            told = f"{count(response.missed, 'event')} not shown: they came too fast"
            print(f"coordinator: {told}", file=sys.stderr)
        _write_events(asked, response.events, has_heads=False)


def _write_events(
    asked: ShowEvents, events: Iterable[query_pb2.RunEvent], *, has_heads: bool
) -> None:
    documents = [document_of(event) for event in events]
    if asked.output == "json":
        write("".join(f"{json.dumps(document)}\n" for document in documents))
        return
    from drumbeat.coordinator.command.looking import screens  # noqa: PLC0415 - rich, for text alone

    write(screens.text_of(screens.events_screen(documents, has_heads=has_heads, now=time.time())))


def _why(asked: ExplainRun) -> None:
    def work(*opened: Any) -> tuple[query_pb2.GetOverviewResponse, Document]:
        reader = Reader(*opened)
        overview = reader.overview(asked.run_id)
        agents = reader.agents(overview.run, query_pb2.VIEW_BASIC)
        return overview, status_document(overview, agents, reader.events(overview.run))

    overview, status = calls_of(asked).ask(work)
    run = overview.run
    verdict = document_of(run.verdict) if run.HasField("verdict") else None
    shown = overview_document(overview)["agents"]
    workers = [{**each, "name": agent["name"]} for agent in shown for each in agent["workers"]]
    found = explanation(status, verdict, workers)
    if asked.output == "json":
        write_json(found)
        return
    from drumbeat.coordinator.command.looking import screens  # noqa: PLC0415 - rich, for text alone

    write(screens.text_of(screens.explanation_screen(found)))


def _watch(asked: WatchRun) -> None:
    if asked.output == "json":
        for status in looks(asked):
            write_json(status)
        return
    from drumbeat.coordinator.command.looking import screens  # noqa: PLC0415 - rich, for text alone

    if sys.stdout.isatty():
        last = screens.show_live(looks(asked))
        write(screens.text_of(screens.status_screen(last)))  # what it came to, when all is gone
        return
    for status in looks(asked):
        write(screens.text_of(screens.status_screen(status)) + "\n")


def write_json(document: Document) -> None:
    """Write a document as one line."""
    write(json.dumps(document) + "\n")


def write(text: str) -> None:
    """Write to standard output, whatever it can't encode as escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(without_tokens(text).encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def _stacks(asked: ShowStacks) -> None:
    def work(channel: grpc.Channel, metadata: Metadata) -> list[stacks.Worker]:
        return read_stacks(channel, metadata, asked.run_id, asked.rank, may_signal=asked.signal)

    answers = calls_of(asked).ask(work)
    if asked.output == "json":
        write_json(stacks.document(asked.run_id, answers))
    else:
        write(stacks.text(answers))


def _goodput(asked: ShowGoodput) -> None:
    def work(*opened: Any) -> query_pb2.GetGoodputResponse:
        return Reader(*opened).goodput(asked.run_id, with_segments=asked.segments)

    answer = calls_of(asked).ask(work)
    found = goodput_document(asked.run_id, answer, with_segments=asked.segments)
    if asked.output == "json":
        write_json(found)
        return
    from drumbeat.coordinator.command.looking import screens  # noqa: PLC0415 - rich, for text alone

    write(screens.text_of(screens.goodput_screen(found)))


def _logs(asked: ShowLogs) -> None:
    show_logs(asked, write)


VERBS: dict[type[Looking], Callable[[Any], None]] = {
    ShowStatus: _status,
    ShowEvents: _events,
    ExplainRun: _why,
    WatchRun: _watch,
    ShowStacks: _stacks,
    ShowLogs: _logs,
    ShowGoodput: _goodput,
}
