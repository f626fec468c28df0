"""Shell. Shows the output of a run's workers, through restarts of its coordinator. Blocks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from drumbeat.coordinator.api.documents import STREAMS, lines_of, log_documents
from drumbeat.coordinator.command.client import Client, ask, calls_of
from drumbeat.coordinator.command.looking.following import Patience, resumed
from drumbeat.coordinator.command.looking.output import has_colours, write, write_json
from drumbeat.coordinator.errors import CallFailed
from drumbeat.format import count, one_line, printable
from drumbeat.v1 import query_pb2 as pb

if TYPE_CHECKING:
    from drumbeat.coordinator.command.request import Request

ROUNDS_RESUMED = 2  # agents keep no more
_COLOURS = ("cyan", "green", "yellow", "blue", "magenta", "bright_cyan", "bright_green")


class Cursors:
    """How far the output of a run was read, by agent and stream."""

    def __init__(self) -> None:
        self._of: dict[str, dict[tuple[int, int, int], Any]] = {}
        self._latest = 0

    def move(self, response: Any) -> None:
        """Take in what was shown. Streams of rounds that agents keep no more are forgotten."""
        own = self._of.setdefault(response.incarnation, {})
        for piece in response.pieces:
            place = piece.next
            if not place.stream:  # said of all of a worker
                continue
            own[place.round_id, place.rank, place.stream] = place
            if place.round_id > self._latest:
                self._latest = place.round_id
                self._forget(place.round_id - ROUNDS_RESUMED)

    def __iter__(self) -> Iterator[tuple[str, Iterable[Any]]]:
        return ((incarnation, own.values()) for incarnation, own in self._of.items() if own)

    def _forget(self, round_id: int) -> None:
        for own in self._of.values():
            for key in [key for key in own if key[0] <= round_id]:
                del own[key]


class Text(NamedTuple):
    """What is shown: lines for standard output, and notes for standard error."""

    lines: list[str]
    notes: list[str]


def text_of(response: Any, prefix: Callable[[int], str]) -> Text:
    """Return output to be read; each line stands behind the ``prefix`` of its rank."""
    lines: list[str] = []
    notes: list[str] = []
    silent: dict[str, set[int]] = {}
    for piece in response.pieces:
        place = piece.next
        if piece.missed:
            which = STREAMS[place.stream % len(STREAMS)]
            lost = f"{count(piece.missed, 'line')} of its {which} not shown"
            notes.append(f"rank {place.rank}: {lost}: they came faster than they were read")
        if piece.problem:
            silent.setdefault(one_line(piece.problem), set()).add(place.rank)
        lines += [prefix(place.rank) + printable(line) for line in lines_of(piece.text)]
    on = f" on {one_line(response.name, 64)}" if response.name else ""
    for why, ranks in silent.items():
        which = f"{'rank' if len(ranks) == 1 else 'ranks'} {','.join(map(str, sorted(ranks)))}"
        notes.append(f"{which}{on}: no output: {why}")
    return Text(lines, notes)


def show_logs(asked: Request) -> None:
    """Show it until all that was asked for is shown. Raises ``grpc.RpcError`` or ``CallFailed``."""
    run_id, follows = asked.values["run_id"], asked.values["follow"]
    calls = calls_of(asked)
    run = ask(calls, lambda client: client.run(run_id))
    if run.phase == pb.RUN_PHASE_ENDED:
        why = f"run {run_id} has ended, and its agents with it: {run.reason}"
        raise CallFailed(why, 2, "what its workers wrote is where its agents wrote it")
    request = pb.WatchLogsRequest(
        run_id=run_id,
        generation=run.generation,
        ranks=asked.values["rank"],
        tail=asked.values["tail"],
        follow=follows,
    )
    cursors, is_silent = Cursors(), True

    def read(client: Client, patience: Patience) -> Iterator[pb.WatchLogsResponse]:
        del request.cursors[:]
        for incarnation, places in cursors:
            request.cursors.add(incarnation=incarnation, cursors=places)
        for response in client.watch("WatchLogs", request):
            patience.reached()
            request.since_round = response.since_round
            yield response
            cursors.move(response)

    of_group = {"run_id": run_id} if asked.values.get("is_group") else {}
    is_coloured = asked.output == "text" and has_colours()
    prefix = partial(_prefix, of_group.get("run_id", ""), is_coloured=is_coloured)
    for response in resumed(calls, read, is_patient=follows):
        is_silent = is_silent and not response.pieces
        if asked.output == "json":
            write_json(*({**of_group, **document} for document in log_documents(response)))
            continue
        text = text_of(response, prefix)
        for note in text.notes:
            print(f"coordinator: {note}", file=sys.stderr, flush=True)
        write("".join(f"{line}\n" for line in text.lines))
    if is_silent:
        print(f"coordinator: there is no output to show: {one_line(run.reason)}", file=sys.stderr)


def _prefix(group: str, rank: int, *, is_coloured: bool) -> str:
    text = f"[{group} rank{rank}]:" if group else f"[rank{rank}]:"
    colour = _COLOURS[rank % len(_COLOURS)]
    return (click.style(text, fg=colour) if is_coloured else text) + " "
