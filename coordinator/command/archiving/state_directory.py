"""Shell. The journal in a state directory that no coordinator holds: read, written, checked."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from drumbeat.coordinator.access.authority import Issuer, read_issuer, write_issuer
from drumbeat.coordinator.command.archiving.findings import Finding, Findings
from drumbeat.coordinator.errors import AuthorityUnusable, CallFailed, StateDirectoryInUse
from drumbeat.coordinator.journal import sqlite
from drumbeat.coordinator.journal.archive import Archive
from drumbeat.coordinator.journal.contents import Problem
from drumbeat.coordinator.journal.stored import Loaded, archive_of, load


class StateDirectory:
    """A place of a journal. It is locked while something is done with it."""

    def __init__(self, directory: Path) -> None:
        self.name = str(directory)
        self._directory = directory

    async def read(self) -> Archive:
        """Return what is in it, as far as it can be read."""
        with self._locked():
            archive = archive_of(self._loaded(), counts_downtime=False)
            issuer = read_issuer(self._directory)
            archive.authority = "" if issuer is None else issuer.content().decode()
            return archive

    async def write(self, archive: Archive) -> None:
        """Have in it what is in an archive. Raises ``CallFailed`` if there is something."""
        with self._refusals(), closing(sqlite.SqliteFile(self._directory, may_be_new=True)) as file:
            if not file.load().contents.is_empty:
                raise CallFailed(f"the journal in {self.name} is not empty", 2, _ANOTHER)
            issuer = read_issuer(self._directory)
            if issuer is not None and issuer.content() != archive.authority.encode():
                problem = f"{self.name} has a certificate authority of its own"
                raise CallFailed(problem, 2, "move its ca.key away, or take another directory")
            if archive.authority:
                write_issuer(self._directory, Issuer.parse(archive.authority.encode()))
            clock = archive.clock_at(time.time())
            file.write(archive.changes(), now=clock)
            # Agents that go on meanwhile refuse a coordinator of an earlier term.
            file.go_on(clock=clock, term=archive.term + 1)

    async def check(self) -> Findings:
        """Say what is in it, and what cannot be read."""
        with self._locked():
            contents, runs = self._loaded()
            findings = Findings.of(self.name, contents, runs.states.values())
            try:
                findings.has_authority = read_issuer(self._directory) is not None
            except AuthorityUnusable as error:
                findings.problems.append(Finding("ca.key", str(error)))
        return findings

    def _loaded(self) -> Loaded:
        inspection = sqlite.inspect(self._directory)
        loaded = load(sqlite.KEYS, inspection.pairs)
        if inspection.problem is not None:
            lost = "a coordinator refuses to go on from it"
            loaded.contents.problems.insert(0, Problem(sqlite.FILE, str(inspection.problem), lost))
        return loaded

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep coordinators away from a journal that is there."""
        if not any(
            os.path.lexists(self._directory / name) for name in (sqlite.FILE, sqlite.LAST_WRITE)
        ):
            problem = f"there is no journal in {self.name}"
            raise CallFailed(problem, 2, "--state-dir names the directory of a coordinator")
        with self._refusals():
            lock = sqlite.lock_directory(self._directory)
        try:
            yield
        finally:
            os.close(lock)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except StateDirectoryInUse as error:
            problem = f"a coordinator holds the state directory {self.name}"
            raise CallFailed(
                problem, 2, "end it first, so that nothing changes meanwhile"
            ) from error


_ANOTHER = "give a directory that has none; nothing was changed"
