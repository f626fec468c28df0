"""Shell. Shows the output of a run's workers, through restarts of its coordinator. Blocks."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import grpc

from drumbeat.coordinator.api.documents import log_documents
from drumbeat.coordinator.command.calls import failure_of
from drumbeat.coordinator.command.looking import logs
from drumbeat.coordinator.command.looking.following import Patience
from drumbeat.coordinator.command.looking.reading import Reader, calls_of, watch_logs
from drumbeat.coordinator.errors import CallFailed
from drumbeat.format import one_line
from drumbeat.v1 import query_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

    from drumbeat.coordinator.api.requests import ShowLogs


def show_logs(asked: ShowLogs, write: Callable[[str], None]) -> None:
    """Show it until all that was asked for is shown. Raises ``grpc.RpcError`` or ``CallFailed``."""
    calls = calls_of(asked)
    run = calls.ask(lambda *opened: Reader(*opened).run(asked.run_id))
    if run.phase == pb.RUN_PHASE_ENDED:
        why = f"run {asked.run_id} has ended, and its agents with it: {run.reason}"
        raise CallFailed(why, 2, "what its workers wrote is where its agents wrote it")
    request = pb.WatchLogsRequest(
        run_id=asked.run_id,
        generation=run.generation,
        ranks=asked.rank,
        tail=asked.tail,
        follow=asked.follow,
    )
    patience, cursors, is_silent = Patience(calls), logs.Cursors(), True
    prefix = partial(_prefix, is_coloured=asked.output == "text" and _has_colours())
    while True:
        try:
            # Anew each time: a restarted coordinator may let this user in by another token.
            with calls.channel() as (channel, metadata):
                for response in watch_logs(channel, metadata, request):
                    patience.reached()
                    request.since_round = response.since_round
                    is_silent = is_silent and not response.pieces
                    _show(response, asked.output, prefix, write)
                    cursors.move(response)
        except (CallFailed, grpc.RpcError) as error:
            failure = error if isinstance(error, CallFailed) else failure_of(asked, error)
            if not (asked.follow or calls.goes_on):
                raise calls.failure(failure) from error
            patience.wait(failure)
            del request.cursors[:]
            for incarnation, places in cursors:
                request.cursors.add(incarnation=incarnation, cursors=places)
        else:
            break
    if is_silent:
        print(f"coordinator: there is no output to show: {one_line(run.reason)}", file=sys.stderr)


def _show(
    response: Any, output: str, prefix: Callable[[int], str], write: Callable[[str], None]
) -> None:
    if output == "json":
        write("".join(f"{json.dumps(document)}\n" for document in log_documents(response)))
        return
    told = logs.told(response, prefix)
    for note in told.notes:
        print(f"coordinator: {note}", file=sys.stderr, flush=True)
    if told.lines:
        write("\n".join(told.lines) + "\n")


def _has_colours() -> bool:
    from drumbeat.coordinator.command.looking import screens  # noqa: PLC0415 - rich, for text alone

    return sys.stdout.isatty() and screens.has_colours()


def _prefix(rank: int, *, is_coloured: bool) -> str:
    text = f"[rank{rank}]:"
    return (click.style(text, fg=logs.colour_of(rank)) if is_coloured else text) + " "
