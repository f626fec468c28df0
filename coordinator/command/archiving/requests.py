"""Pure. What operators can ask about a journal, and what they are told of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from msgspec import Struct

from drumbeat.command.settings import declare, one_of, setting, text
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.journal.archive import is_live
from drumbeat.coordinator.journal.contents import Contents
from drumbeat.coordinator.journal.etcd import address as etcd
from drumbeat.coordinator.journal.etcd.address import EtcdAddress
from drumbeat.violation import Violation


@dataclass(frozen=True, kw_only=True)
class JournalRequest:
    """Which journal it is about: one in a state directory, or one on etcd."""

    state_dir: str | None = setting(
        None,
        text("the path of a directory", len, metavar="DIR"),
        "Options",
        "Directory of a coordinator that keeps its journal in a file.",
        shown_default="none; --journal is given",
        has_variable=False,
    )
    journal: EtcdAddress | None = declare(  # noqa: RUF009 - it makes a field
        etcd.JOURNAL._replace(
            section="Options",
            help="The journal on etcd, as coordinators are given it.",
            shown_default="none; --state-dir is given",
        )
    )
    journal_password_file: str | None = declare(
        etcd.JOURNAL_PASSWORD_FILE._replace(section="Options")
    )
    journal_ca: str | None = declare(etcd.JOURNAL_CA._replace(section="Options"))
    journal_cert: str | None = declare(etcd.JOURNAL_CERT._replace(section="Options"))
    journal_key: str | None = declare(etcd.JOURNAL_KEY._replace(section="Options"))
    output: str = setting(
        "text",
        one_of(("text", "json")),
        "Options",
        "text, to be read; json, for programs, as docs/operating.md describes it.",
        flags=("-o", "--output"),
        has_variable=False,
    )

    def validate(self) -> list[Violation]:
        """Which rules are broken, none if it is sound."""
        if (self.journal is None) == (self.state_dir is None):
            which = "neither" if self.journal is None else "both"
            allowed = "either the address of etcd or --state-dir DIR"
            return [Violation("journal", which, allowed)]
        return [] if self.journal is None else etcd.broken_rules(self.journal, self._files())

    def address(self) -> EtcdAddress | None:
        """Where the journal is on etcd."""
        return None if self.journal is None else etcd.with_files(self.journal, self._files())

    def _files(self) -> dict[str, str | None]:
        names = ("journal_password_file", "journal_ca", "journal_cert", "journal_key")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class ExportJournal(JournalRequest):
    """``coordinator journal export``."""

    file: str  # an argument


@dataclass(frozen=True, kw_only=True)
class ImportJournal(JournalRequest):
    """``coordinator journal import``."""

    file: str  # an argument


@dataclass(frozen=True, kw_only=True)
class CheckJournal(JournalRequest):
    """``coordinator journal check``."""


class Findings(Struct, kw_only=True):
    """What is in a journal, and what of it cannot be read."""

    place: str
    runs: int = 0
    runs_live: int = 0
    records: int = 0  # and snapshots
    tokens: int = 0
    drains: int = 0
    size_bytes: int = 0
    has_authority: bool = False
    leader: str = ""  # the address of who leads on it now
    problems: list[tuple[str, str]] = []

    @staticmethod
    def of(place: str, contents: Contents, states: Collection[RunState]) -> Findings:
        """Return what was read of a journal; ``states`` are the runs that can be read."""
        return Findings(
            place=place,
            runs=len(states),
            runs_live=sum(map(is_live, states)),
            records=sum(len(run.entries) for run in contents.runs),
            tokens=len(contents.tokens.tokens),
            drains=len(contents.drains),
            size_bytes=contents.size_bytes,
            has_authority=contents.authority is not None,
            problems=[
                (each.key, f"{each.reason}; lost: {each.lost}") for each in contents.problems
            ],
        )
