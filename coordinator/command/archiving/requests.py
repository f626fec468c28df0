"""Pure. What operators can ask about a journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from drumbeat.command.settings import declare, setting, text
from drumbeat.coordinator.command.request import OUTPUT
from drumbeat.coordinator.journal.etcd import address as etcd
from drumbeat.coordinator.journal.etcd.address import EtcdAddress
from drumbeat.text.violation import Violation


class JournalVerb(NamedTuple):
    """A command ``coordinator journal NAME``."""

    help: str
    example: str
    has_file: bool = True


JOURNAL_VERBS = {
    "export": JournalVerb(
        """Write a journal to a file, as lines of JSON.

        The file is for you alone: it has the key of the certificate authority.
        """,
        "coordinator journal export runs.jsonl --state-dir /var/lib/drumbeat",
    ),
    "import": JournalVerb(
        """Read a journal from a file into a place that has none.

        Coordinators go on with the runs, and agents and tokens find the same certificate authority.
        """,
        "coordinator journal import runs.jsonl --journal etcd://10.0.0.1,10.0.0.2,10.0.0.3/prod",
    ),
    "check": JournalVerb(
        """Say what is in a journal, and name all that cannot be read.

        On etcd also while a coordinator leads.
        """,
        "coordinator journal check --journal etcd://10.0.0.1,10.0.0.2,10.0.0.3/prod",
        has_file=False,
    ),
}


@dataclass(frozen=True, kw_only=True)
class JournalRequest:
    """A verb, and the journal that it is about: in a state directory, or on etcd."""

    verb: str
    file: str = ""  # to write or read; an argument
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
    output: str = declare(OUTPUT)

    def validate(self) -> list[Violation]:
        """Which rules are broken, none if it is sound."""
        if (self.journal is None) == (self.state_dir is None):
            which = "neither" if self.journal is None else "both"
            allowed = "either the address of etcd or --state-dir DIR"
            return [Violation("journal", which, allowed)]
        return [] if self.journal is None else etcd.broken_rules(self)
