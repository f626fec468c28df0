"""Pure. What is in a journal, and what of it cannot be read."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.journal.contents import Contents
from drumbeat.text.format import printable


class Finding(Struct):
    """Something that cannot be read."""

    where: str
    problem: str


class Findings(Struct, kw_only=True):
    """The document of `journal check`, as docs/operating.md has it."""

    place: str
    runs: int = 0
    runs_live: int = 0
    records: int = 0  # and snapshots
    tokens: int = 0
    drains: int = 0
    size_bytes: int = 0
    has_authority: bool = False
    leader: str = ""  # the address of who leads on it now
    problems: list[Finding] = []

    @staticmethod
    def of(place: str, contents: Contents, states: Collection[RunState]) -> Findings:
        """Return what was read of a journal; ``states`` are the runs that can be read."""
        return Findings(
            place=place,
            runs=len(states),
            runs_live=sum(state.verdict is None for state in states),
            records=sum(len(run.entries) for run in contents.runs),
            tokens=len(contents.tokens.tokens),
            drains=len(contents.drains),
            size_bytes=contents.size_bytes,
            has_authority=contents.authority is not None,
            problems=[
                Finding(problem.key, f"{problem.reason}; lost: {problem.lost}")
                for problem in contents.problems
            ],
        )

    def text(self) -> str:
        """Return it to be read."""
        rows = {
            "journal": self.place,
            "leader": self.leader or "none",
            "runs": f"{self.runs}, {self.runs_live} of them live",
            "records": str(self.records),
            "tokens": str(self.tokens),
            "drains": str(self.drains),
            "authority": "yes" if self.has_authority else "none",
            "size": f"{self.size_bytes / 1e6:.1f} MB",
        }
        lines = [f"{name:10} {value}" for name, value in rows.items()]
        broken = (printable(f"broken     {part.where}: {part.problem}") for part in self.problems)
        return "\n".join([*lines, *broken])
