"""Shell. The list of runs, and what changed in it: a reader is sent that alone."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from drumbeat.coordinator.api.documents import Document, document_of
from drumbeat.coordinator.cluster.term import Term
from drumbeat.coordinator.core.registry.jobs import all_jobs, job_of
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.observe.hosts import hosts_in_trouble
from drumbeat.coordinator.observe.jobs import job_message
from drumbeat.coordinator.wire.control import drain_message
from drumbeat.coordinator.wire.run_status import run_message
from drumbeat.v1 import query_pb2 as pb

RUNS_PER_TURN = 50  # between two turns of others: some ms
# What changes with time alone, or says which run it is: it is sent when another field has changed.
_SENT_ALONG = ("run_id", "generation", "age_s", "ended_age_s", "last_failure")


class Row(NamedTuple):
    """A run as it was at ``made_at``."""

    document: Document
    made_at: float
    version: tuple[int, int] = (0, 0)
    changes: dict[str, int] = {}  # noqa: RUF012 - by field, the number of its latest change


class RunList:
    """The runs that a reader with access to ``only_run`` sees; empty: all."""

    def __init__(self, term: Term, only_run: str) -> None:
        self.number = 0  # of the latest change
        self._driver, self._only_run = term.driver, only_run
        self._whole_since = 1  # a reader that has less is sent all
        self._rows: dict[str, Row] = {}
        self._others: dict[str, tuple[list[Document], int]] = {}

    async def look(self, most: int | None = None) -> float:
        """Take in how runs are now, or so many of them, those that live first.

        Returns how much CPU time that took.
        """
        took_s, number, only_run = 0.0, self.number + 1, self._only_run
        rows: dict[str, Row] = {}
        states = self._driver.journal.runs.states.values()
        shown = [state for state in states if only_run in ("", state.run_id, job_of(state))]
        if most is not None and len(shown) > most:
            shown = sorted(shown, key=lambda state: state.verdict is not None)[:most]
        for first in range(0, len(shown), RUNS_PER_TURN):
            await asyncio.sleep(0)
            began = time.thread_time()
            rows |= {state.key: self._row(state) for state in shown[first : first + RUNS_PER_TURN]}
            took_s += time.thread_time() - began
        began = time.thread_time()
        if self._rows.keys() - rows.keys():
            self._whole_since = number
        self._rows = rows
        for name, documents in self._lists(shown).items():
            known, changed = self._others.get(name, (None, number))
            is_known = known is not None and _timeless(known) == _timeless(documents)
            self._others[name] = documents, changed if is_known else number
        numbers = {self._whole_since, *(changed for _, changed in self._others.values())}
        self.number = max(numbers.union(row.changes["run_id"] for row in rows.values()))
        return took_s + time.thread_time() - began

    def since(self, number: int) -> Document:
        """Return what changed after a number: fields of runs, and other lists as a whole."""
        is_whole, now = number < self._whole_since, self._driver.now()
        after = 0 if is_whole else number
        runs = [
            {
                **{name: row.document[name] for name, n in row.changes.items() if n > after},
                "made_age_s": round(now - row.made_at, 1),
            }
            for row in self._rows.values()
            if row.changes["run_id"] > after
        ]
        others = {name: known for name, (known, n) in self._others.items() if n > after}
        return {"is_whole": is_whole, "runs": runs, **others}

    def _row(self, state: RunState) -> Row:
        known, driver = self._rows.get(state.key, Row({}, 0.0)), self._driver
        version, now = (state.events_count, len(state.members)), driver.now()
        if state.verdict is not None and known.version == version:
            return known
        core = driver.registry.runs.get(state.key)
        document = document_of(run_message(state, core, pb.VIEW_BASIC, now=now))
        changed = [
            name
            for name, value in document.items()
            if name not in _SENT_ALONG and known.document.get(name, known) != value
        ]
        numbers = dict.fromkeys([*_SENT_ALONG, *changed] if changed else (), self.number + 1)
        return Row(document, now, version, known.changes | numbers)

    def _lists(self, states: list[RunState]) -> dict[str, list[Document]]:
        driver, only_run, now = self._driver, self._only_run, self._driver.now()
        jobs = [groups for job, groups in all_jobs(states).items() if only_run in ("", job)]
        drains = [
            drain for drain in driver.drains if not only_run or drain.run_id in ("", only_run)
        ]
        return {
            "jobs": [
                document_of(job_message(groups, driver.registry.runs, now=now)) for groups in jobs
            ],
            "drains": [document_of(drain_message(drain, now=now)) for drain in drains],
            "hosts": hosts_in_trouble(states),
        }


def _timeless(documents: list[Document]) -> list[Document]:
    return [{n: v for n, v in document.items() if n[-2:] != "_s"} for document in documents]
