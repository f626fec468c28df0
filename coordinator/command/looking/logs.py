"""Shell. Shows the output of a run's workers, through restarts of its coordinator. Blocks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import click

from drumbeat.coordinator.api.documents import Document, log_documents
from drumbeat.coordinator.api.log_lines import LineFilter
from drumbeat.coordinator.command.client import Client, ask, calls_of
from drumbeat.coordinator.command.looking.following import Patience, resumed
from drumbeat.coordinator.command.looking.output import has_colours, write, write_json
from drumbeat.coordinator.command.request import Request
from drumbeat.text.format import count, one_line, printable
from drumbeat.v1 import query_pb2 as pb

TAIL, TAIL_MAX = 20, 10_000
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


def text_of(
    documents: Iterable[Document], prefix: Callable[[Document], str], *, is_kept: bool = False
) -> Text:
    """Return output to be read; each line stands behind the ``prefix`` of its document.

    Of output that the coordinator has kept it is said which files have all of it.
    """
    lines: list[str] = []
    notes: list[str] = []
    about: dict[str, set[int]] = {}
    in_files, shown = set[tuple[str, int]](), set[tuple[str, int]]()
    for of in documents:
        on, stream = f" on {one_line(of['name'], 64)}" if of["name"] else "", of["stream"]
        if "line" in of:
            lines.append(prefix(of) + printable(of["line"]))
            shown.add((on, of["rank"]))
        elif "missed" in of:
            lost = f"{count(of['missed'], 'line')} of its {stream or 'output'} not shown"
            notes.append(f"rank {of['rank']}: {lost}: they came faster than they were read")
        elif "problem" in of:
            about.setdefault(f"{on}: no output: {one_line(of['problem'])}", set()).add(of["rank"])
        elif is_kept:
            where = f"{on}: all of its {stream} is in {one_line(of['path'])} on {of['host']}"
            about.setdefault(where, set()).add(of["rank"])
            in_files.add((on, of["rank"]))
    for on, rank in sorted(shown - in_files) if is_kept else ():
        about.setdefault(
            f"{on}: only the end of its output is kept, for it went to no file", set()
        ).add(rank)
    for what, ranks in about.items():
        which = f"{'rank' if len(ranks) == 1 else 'ranks'} {','.join(map(str, sorted(ranks)))}"
        notes.append(f"{which}{what}")
    return Text(lines, notes)


def show_logs(asked: Request) -> None:
    """Show it until all that was asked for is shown. Raises ``grpc.RpcError`` or ``CallFailed``."""
    values = asked.values
    run_id, follows, tail = values["run_id"], values["follow"], values["tail"]
    is_filtered = bool(values["grep"] or values["level"])
    calls = calls_of(asked)
    run = ask(calls, lambda client: client.run(run_id))
    is_kept = values["round"] is not None or run.phase == pb.RUN_PHASE_ENDED
    request = pb.WatchLogsRequest(
        run_id=run_id,
        generation=run.generation,
        ranks=values["rank"],
        tail=tail if tail is not None else TAIL_MAX if is_filtered else TAIL,
        follow=follows,
        round_id=values["round"],
    )
    cursors, is_silent = Cursors(), True
    wanted = LineFilter(values["grep"] or "", values["level"])

    def read(client: Client, patience: Patience) -> Iterator[pb.WatchLogsResponse]:
        del request.cursors[:]
        for incarnation, places in cursors:
            request.cursors.add(incarnation=incarnation, cursors=places)
        for response in client.watch("WatchLogs", request):
            patience.reached()
            request.since_round = response.since_round
            yield response
            cursors.move(response)

    of_group = {"run_id": run_id} if values.get("is_group") else {}
    prefix = partial(
        _prefix,
        of_group.get("run_id", ""),
        is_coloured=asked.output == "text" and has_colours(),
        has_time=values["timestamps"],
    )
    for response in resumed(calls, read, is_patient=follows):
        is_silent = is_silent and not response.pieces
        documents = wanted(log_documents(response))
        if asked.output == "json":
            write_json(*({**of_group, **document} for document in documents))
            continue
        text = text_of(documents, prefix, is_kept=is_kept)
        for note in text.notes:
            print(f"coordinator: {note}", file=sys.stderr, flush=True)
        write("".join(f"{line}\n" for line in text.lines))
    if is_silent:
        print(f"coordinator: there is no output to show: {one_line(run.reason)}", file=sys.stderr)


def _prefix(group: str, of: Document, *, is_coloured: bool, has_time: bool) -> str:
    rank = of["rank"]
    text = f"[{group} rank{rank}]:" if group else f"[rank{rank}]:"
    if has_time:
        when = "" if of["age_s"] is None else _clock(time.time() - of["age_s"])
        text = f"{when or '-':14} {text}"
    colour = _COLOURS[rank % len(_COLOURS)]
    return (click.style(text, fg=colour) if is_coloured else text) + " "


def _clock(instant: float) -> str:
    return time.strftime("%m-%dT%H:%M:%S", time.localtime(instant))
