"""Shell. The journal in a state directory that no coordinator holds: read, written, checked."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from coordinator.access.authority import Issuer, read_issuer, write_issuer
from coordinator.command.archiving.requests import Findings
from coordinator.errors import AuthorityUnusable, CallFailed, JournalCorrupt, StateDirectoryInUse
from coordinator.journal.archive import Archive, is_live
from coordinator.journal.sqlite import FILE, SqliteFile


class StateDirectory:
    """A place of a journal. It is locked while something is done with it."""

    def __init__(self, directory: Path) -> None:
        self.name = str(directory)
        self._directory = directory

    async def read(self) -> Archive:
        """Return what is in it."""
        with self._opened(must_exist=True) as file:
            clock = time.monotonic() + file.clock_offset()
            issuer = read_issuer(self._directory)
            return Archive(
                clock=clock,
                wall=time.time(),
                term=file.load_term(),
                authority="" if issuer is None else issuer.content().decode(),
                tokens=list(file.load_tokens().tokens.values()),
                drains=list(file.load_drains().values()),
                forgets=file.load_forgets(),
                runs=list(file.load().states.values()),
            )

    async def write(self, archive: Archive) -> None:
        """Have in it what is in an archive. Raises ``CallFailed`` if there is something."""
        with self._opened(must_exist=False) as file:
            found = (file.load().states, file.load_tokens().tokens, file.load_drains())
            if any(found) or file.load_forgets():
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
        found = Findings(place=self.name)
        with self._opened(must_exist=True) as file:
            found.records, found.size_bytes = file.count_records(), file.size_bytes()
            with _noted(found):
                runs = file.load().states.values()
                found.runs = len(runs)
                found.runs_live = sum(map(is_live, runs))
            with _noted(found):
                found.tokens = len(file.load_tokens().tokens)
            with _noted(found):
                found.drains = len(file.load_drains())
            with _noted(found):
                file.load_forgets()
            with _noted(found):
                file.clock_offset()
            with _noted(found):
                found.has_authority = read_issuer(self._directory) is not None
        return found

    @contextmanager
    def _opened(self, *, must_exist: bool) -> Iterator[SqliteFile]:
        if must_exist and not os.path.lexists(self._directory / FILE):
            problem = f"there is no journal in {self.name}"
            raise CallFailed(problem, 2, "--state-dir names the directory of a coordinator")
        try:
            file = SqliteFile(self._directory)
        except StateDirectoryInUse as error:
            problem = f"a coordinator holds the state directory {self.name}"
            raise CallFailed(
                problem, 2, "end it first, so that nothing changes meanwhile"
            ) from error
        with closing(file):
            yield file


_ANOTHER = "give a directory that has none; nothing was changed"


@contextmanager
def _noted(found: Findings) -> Iterator[None]:
    try:
        yield
    except JournalCorrupt as error:
        where, problem, _ = error.args
        found.problems.append((where, problem))
    except AuthorityUnusable as error:
        found.problems.append(("ca.key", str(error)))
