"""Shell. What the journals on SQLite and on etcd share: reading, and the clock of the host.

A run that cannot be read is set aside with its name and the reason; all others are served.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from drumbeat import VERSION
from drumbeat.coordinator import errors
from drumbeat.coordinator.core.run.records import RunCreated, weight
from drumbeat.coordinator.core.run.state import InvalidTransition, RunState, id_and_generation
from drumbeat.coordinator.journal import layout
from drumbeat.coordinator.journal.archive import Archive
from drumbeat.coordinator.journal.contents import Contents, KeptRun, Problem, read_contents
from drumbeat.coordinator.journal.etcd.model import KeyValue
from drumbeat.coordinator.journal.journal import Journal, JournaledRuns
from drumbeat.coordinator.journal.keys import Keys
from drumbeat.coordinator.journal.layout import Head, Home, NewerRelease, Unreadable


class Loaded(NamedTuple):
    """A journal as it was read."""

    contents: Contents
    runs: JournaledRuns


def load(keys: Keys, pairs: Iterable[KeyValue]) -> Loaded:
    """Read a journal; ``contents.problems`` names what cannot be read."""
    contents, runs = read_contents(keys, pairs), JournaledRuns()
    for run in contents.runs:
        try:
            if not run.problem:
                fold(runs, run)
        except (ValueError, KeyError, TypeError, AttributeError, InvalidTransition) as error:
            run.problem = f"{type(error).__name__}: {error}"
            where = layout.home_range(keys, run.home.name)[0]
            lost = f"run {run.key}, which is set aside"
            contents.problems.append(Problem(where, run.problem, lost))
    return Loaded(contents, runs)


def fold(runs: JournaledRuns, run: KeptRun) -> None:
    """Fold the entries of a run, and add it. Entries that no run can have raise any error."""
    state: RunState | None = None
    size = 0
    for entry in run.entries:
        if isinstance(entry, RunState | RunCreated):
            state = RunState.created(entry) if isinstance(entry, RunCreated) else entry
            size = 0
        elif state is not None:
            state.apply(entry)
            size += weight(entry)
    if state is None:
        raise ValueError("its beginning is missing")
    if state.key != run.key:
        raise ValueError(f"it holds run {state.key}")
    runs.put(state, size)


def unreadable(where: str, error: Unreadable, hint: str) -> errors.CommandFailed:
    """Return the error for a journal that cannot be used at all."""
    if isinstance(error, NewerRelease):
        advice = f"upgrade this coordinator, which is {VERSION}, to {error.release} or later"
        return errors.JournalUnusable(where, str(error), hint=advice)
    return errors.JournalCorrupt(where, str(error), hint=hint)


class Host(NamedTuple):
    """The clocks of this host. ``boot_id`` names the boot at which the monotonic one began."""

    boot_id: str
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    def take_over(self, head: Head, *, counts_downtime: bool) -> Head:
        """Return a head with which the coordinator's clock goes on here from the one before.

        After a boot, or on another host, it goes on by the time that has passed on the wall's
        clocks, and by none if they went back, if that ``counts_downtime``; else from the latest
        write.
        """
        if not head.sequence:
            return replace(head, boot_id=self.boot_id, offset=0.0)
        is_same = self.boot_id == head.boot_id
        passed_s = max(0.0, self.wall() - head.wall) if counts_downtime and not is_same else 0.0
        offset = head.clock + passed_s - self.monotonic()
        offset = max(head.offset, offset) if is_same else offset
        return replace(head, boot_id=self.boot_id, offset=offset)


def this_host() -> Host:
    """Return the host that this process runs on."""
    boot_id = "unknown"
    with suppress(OSError):
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Host(boot_id)


def archive_of(loaded: Loaded, *, counts_downtime: bool) -> Archive:
    """Return an archive of all that can be read."""
    contents, runs = loaded
    if contents.head is not None:
        host = this_host()
        head = host.take_over(contents.head, counts_downtime=counts_downtime)
        clock = host.monotonic() + head.offset
    else:  # the clock is only known from what was written
        instants = [state.history[-1].at_s for state in runs.states.values() if state.history]
        instants += [token.created_at for token in contents.tokens.tokens.values()]
        clock = max(instants, default=0.0)
    numbers = (id_and_generation(run.key)[1] for run in contents.runs if run.problem)
    highest = max((contents.forgets.generation, *numbers))
    return Archive(
        clock=clock,
        wall=time.time(),
        term=contents.head.term if contents.head is not None else Journal.term,
        authority=(contents.authority or b"").decode(errors="replace"),
        tokens=list(contents.tokens.tokens.values()),
        drains=list(contents.drains.values()),
        quorums=list(contents.quorums.values()),
        forgets=replace(contents.forgets, generation=highest),
        runs=list(runs.states.values()),
        left_out=contents.problems,
    )


class StoredJournal(Journal):
    """A journal that outlives this process."""

    def __init__(self, keys: Keys) -> None:
        super().__init__()
        self._keys = keys
        self._head: Head | None = None
        self._homes: dict[str, Home] = {}

    def _adopt(self, loaded: Loaded) -> None:
        """Go on from a journal that was read."""
        contents, self.runs = loaded
        self.tokens, self.drains = contents.tokens, contents.drains
        self.quorums, self.forgets = contents.quorums, contents.forgets
        self.problems = contents.problems
        self.set_aside = {run.key: run.problem for run in contents.runs if run.problem}
        self._homes = {run.key: run.home for run in contents.runs}
