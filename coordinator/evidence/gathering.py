"""Shell. Reads all that there is of a run, each part by itself, within a limited time. Blocks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import grpc

from drumbeat import VERSION
from drumbeat.coordinator.api.documents import (
    Document,
    document_of,
    explanation_document,
    goodput_document,
    log_documents,
    overview_document,
    status_document,
)
from drumbeat.coordinator.api.operations import CALL_TIMEOUT_S
from drumbeat.coordinator.api.run_reader import RunReader
from drumbeat.coordinator.errors import CoordinatorError
from drumbeat.coordinator.evidence.contents import Evidence
from drumbeat.coordinator.wire import stack_groups
from drumbeat.text.format import count, describe, one_line, ranges
from drumbeat.v1 import query_pb2 as pb

WITHIN_S = 30.0  # for all of it; parts that come later are left out
LOG_RANKS_MAX = 64  # those that tell most, and then the first
LOG_LINES = 200  # of each rank and stream
LOG_ROUNDS_MAX = 4  # earlier ones of which the coordinator has kept some
LOG_BYTES_MAX = 8 * 1024 * 1024  # of all ranks together


def gather(
    reader: RunReader,
    evidence: Evidence,
    *,
    progress: Callable[[str], None] = lambda _: None,
    settle: Callable[[], None] = lambda: None,
) -> None:
    """Add what can be read of a run. Raises what ``reader`` raises for a run that is unknown.

    What ends with the workers is read first; then ``settle`` waits for what is still to come.
    """
    gathering = _Gathering(reader, evidence, progress)
    gathering.take("stacks", gathering.stacks)
    gathering.take("logs", gathering.logs)
    settle()
    gathering.take("status", gathering.status)
    for part in ("report", "hang", "events", "why", "steps", "goodput", "versions", "settings"):
        gathering.take(part, getattr(gathering, part))


class _Missing(Exception):
    """A part that there is not, with the reason."""


class _Gathering:
    """Each part is a function of its name; what is read for one may serve another."""

    def __init__(
        self, reader: RunReader, evidence: Evidence, progress: Callable[[str], None]
    ) -> None:
        self._reader, self.evidence, self._progress = reader, evidence, progress
        self._deadline = time.monotonic() + WITHIN_S
        self._overview = self._call("GetOverview")
        evidence.generation = self._overview.run.generation
        self._cluster: pb.ListCoordinatorsResponse = pb.ListCoordinatorsResponse()
        self._agents: list[pb.Agent] = []
        self._events: list[pb.RunEvent] = []

    def take(self, part: str, read: Callable[[], Any]) -> None:
        """Read a part, or note why it is missing."""
        if time.monotonic() >= self._deadline:
            self.evidence.note(part, f"not read within {WITHIN_S:g} s")
            return
        self._progress(part)
        try:
            self.evidence.parts[part] = read()
        except Exception as error:  # noqa: BLE001 - whatever agents said: one part ends no other
            is_plain = isinstance(error, CoordinatorError | TimeoutError | _Missing)
            why = str(error) if is_plain else describe(error)
            self.evidence.note(
                part, str(error.details()) if isinstance(error, grpc.RpcError) else why
            )

    def stacks(self) -> list[stack_groups.Worker]:
        workers = sorted(
            worker
            for answer in self._call("GetStacks")
            for worker in stack_groups.workers_of(answer)
        )
        if silent := [worker.rank for worker in workers if not worker.stacks]:
            why = f"ranks {ranges(silent)} gave no stacks; stacks.txt says why"
            self.evidence.note("stacks", why)
        every = range(self._overview.run.round.world_size)
        if left_out := set(every) - {worker.rank for worker in workers}:
            self.evidence.note("stacks", f"ranks {ranges(left_out)} are left out: too large")
        return workers

    def logs(self) -> dict[str, list[str]]:
        run = self._overview.run
        is_over = run.phase == pb.RUN_PHASE_ENDED
        ranks = [] if is_over else self._log_ranks()
        if not is_over and (left_out := set(range(run.round.world_size)) - set(ranks)):
            why = f"{count(len(left_out), 'rank')} left out, at most {LOG_RANKS_MAX} are read"
            self.evidence.note("logs", f"{why}: {ranges(left_out)}")
        texts: dict[str, list[str]] = {}
        silent: dict[str, set[int]] = {"no lines came": set(ranks)}
        for line in self._log_lines(ranks):
            rank = line["rank"]
            silent["no lines came"].discard(rank)
            if "problem" in line:
                silent.setdefault(line["problem"], set()).add(rank)
                continue
            text = line.get("line", f"… ({line.get('missed')} lines not shown)")
            if "path" in line:
                text = f"… (all of it is in {line['path']} on {line['host']})"
            of_round = f"round-{line['round_id']}-" * (line["round_id"] != run.round.round_id)
            name = f"{of_round}rank-{rank}-{line['stream'] or 'output'}"
            texts.setdefault(name, []).append(text)
        for why, of_ranks in silent.items():
            if of_ranks:
                self.evidence.note("logs", f"ranks {ranges(of_ranks)}: {one_line(why)}")
        return texts

    def _log_lines(self, ranks: list[int]) -> Iterator[Document]:
        """Yield output of the latest round, and what is kept of those before it, latest first."""
        size, rounds = 0, list[int | None]([None])
        for round_id in rounds:
            of = ranks if round_id is None else ()
            for response in self._call("WatchLogs", ranks=of, tail=LOG_LINES, round_id=round_id):
                if round_id is None and response.rounds_kept:
                    kept = set(response.rounds_kept) - {response.since_round}
                    rounds += sorted(kept, reverse=True)[:LOG_ROUNDS_MAX]
                if (size := size + response.ByteSize()) > LOG_BYTES_MAX:
                    why = f"more than {LOG_BYTES_MAX} bytes; the rest is left out"
                    self.evidence.note("logs", why)
                    return
                yield from log_documents(response)

    def status(self) -> Document:
        self._overview = self._call("GetOverview")
        self._agents = self._reader.agents(self._overview.run)
        return status_document(self._overview, self._agents)

    def report(self) -> Document:
        if not self._overview.run.HasField("verdict"):
            raise _Missing("the run has not ended")
        return document_of(self._overview.run.verdict)

    def hang(self) -> Document:
        if not self._overview.run.HasField("hang"):
            raise _Missing("there was none")
        return document_of(self._overview.run.hang)

    def events(self) -> list[Document]:
        self._events = self._reader.events(self._overview.run)
        return [document_of(event) for event in self._events]

    def why(self) -> Document:
        return explanation_document(self._overview, self._agents, self._events)

    def steps(self) -> Document:
        return document_of(self._call("GetStepTimes"))

    def goodput(self) -> Document:
        answer = self._call("GetGoodput", with_segments=True)
        return goodput_document(self.evidence.run_id, answer, with_segments=True)

    def versions(self) -> Document:
        self._cluster = self._call("ListCoordinators")
        return {
            "coordinators": [
                document_of(coordinator) for coordinator in self._cluster.coordinators
            ],
            "coordinator_python": self._cluster.python_version,
            "agents": Counter(agent.version or "not connected" for agent in self._agents),
            "this_command": VERSION,
        }

    def settings(self) -> Document:
        run = document_of(self._overview.run.spec)
        return {"coordinator": dict(sorted(self._cluster.settings.items())), "run": run}

    def _call(self, method: str, **values: Any) -> Any:
        left_s = max(0.1, self._deadline - time.monotonic())
        return self._reader.call(
            method,
            timeout_s=min(CALL_TIMEOUT_S, left_s),
            run_id=self.evidence.run_id,
            generation=self.evidence.generation,
            **values,
        )

    def _log_ranks(self) -> list[int]:
        """Return those of the workers that tell most, and then the first."""
        agents = overview_document(self._overview)["agents"]
        shown = [worker["rank"] for agent in agents for worker in agent["workers"]]
        every = range(self._overview.run.round.world_size)
        return list(islice(dict.fromkeys([*shown, *every]), LOG_RANKS_MAX))
