"""Pure. A journal as lines of JSON, to be moved from one place to another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isfinite

import msgspec
from msgspec import Struct

from drumbeat.coordinator.core.effects import KeepDrain, KeepForgets, KeepQuorum, KeepToken
from drumbeat.coordinator.core.model import KeptDrain
from drumbeat.coordinator.core.quorum.model import KeptQuorum
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.core.tokens.token_table import KeptToken
from drumbeat.coordinator.journal.batches import Change, Compact
from drumbeat.coordinator.journal.contents import Problem

ARCHIVE_VERSION = 2


class Archive(Struct, kw_only=True):
    """All that a journal holds, in its order. It has the key of the certificate authority."""

    clock: float  # the coordinator's when it was written
    wall: float  # the wall's then
    term: int  # the latest of a coordinator that agents may have seen
    authority: str = ""  # as in the file ``ca.key``; empty: there is none
    tokens: list[KeptToken] = msgspec.field(default_factory=list)
    drains: list[KeptDrain] = msgspec.field(default_factory=list)
    quorums: list[KeptQuorum] = msgspec.field(default_factory=list)
    forgets: KeepForgets = KeepForgets()
    runs: list[RunState] = msgspec.field(default_factory=list)
    left_out: list[Problem] = msgspec.field(default_factory=list)  # what could not be read

    def clock_at(self, wall: float) -> float:
        """Return the coordinator's clock at a later time of day; it never goes back."""
        return self.clock + max(0.0, wall - self.wall)

    def changes(self) -> list[Change]:
        """Return what to write to a journal that is empty."""
        return [
            *map(Compact, self.runs),
            *(KeepToken(token_id=token.token_id, token=token) for token in self.tokens),
            *(KeepDrain(drain=drain) for drain in self.drains),
            *(KeepQuorum(quorum=quorum) for quorum in self.quorums),
            self.forgets,
        ]


class _Begin(Struct, frozen=True, tag="journal"):
    clock: float
    wall: float
    term: int
    version: int = ARCHIVE_VERSION


class _Authority(Struct, frozen=True, tag="authority"):
    pem: str


class _Token(Struct, frozen=True, tag="token"):
    token: KeptToken


class _Drain(Struct, frozen=True, tag="drain"):
    drain: KeptDrain


class _Quorum(Struct, frozen=True, tag="quorum"):
    quorum: KeptQuorum


class _Forgets(Struct, frozen=True, tag="forgets"):
    known: KeepForgets


class _Run(Struct, frozen=True, tag="run"):
    state: RunState


class _End(Struct, frozen=True, tag="end"):
    lines: int


_Line = _Begin | _Authority | _Token | _Drain | _Quorum | _Forgets | _Run | _End


def lines_of(archive: Archive) -> Iterator[bytes]:
    """Return the lines of an archive, each with its end."""
    lines: list[_Line] = [_Begin(archive.clock, archive.wall, archive.term)]
    lines += [_Authority(archive.authority)] if archive.authority else []
    lines += map(_Token, archive.tokens)
    lines += map(_Drain, archive.drains)
    lines += map(_Quorum, archive.quorums)
    lines.append(_Forgets(archive.forgets))
    lines += map(_Run, archive.runs)
    lines.append(_End(len(lines)))
    for line in lines:
        yield msgspec.json.encode(line) + b"\n"


def read_archive(lines: Iterable[bytes]) -> Archive:
    """Read an archive. Raises ``ValueError``, which names the line that is wrong."""
    archive, is_whole, number = None, False, 0
    for number, text in enumerate(lines, 1):
        try:
            line = msgspec.json.decode(text, type=_Line)
            if isinstance(line, _Begin):
                archive = _begun(line)
            elif isinstance(line, _End):
                is_whole = line.lines == number - 1
            else:
                _take(archive, line)
        except (ValueError, TypeError, msgspec.MsgspecError) as error:
            raise ValueError(f"line {number}: {error}") from error
    if archive is None or not is_whole:
        raise ValueError(f"it ends after {number} lines, before its end")
    return archive


def _begun(line: _Begin) -> Archive:
    if line.version != ARCHIVE_VERSION:
        raise ValueError(f"it has version {line.version}, this one reads {ARCHIVE_VERSION}")
    if not (isfinite(line.clock) and isfinite(line.wall)):
        raise ValueError("its clock is no number")
    return Archive(clock=line.clock, wall=line.wall, term=line.term)


def _take(archive: Archive | None, line: _Line) -> None:
    if archive is None:
        raise ValueError("it does not begin as an export of a journal")
    match line:
        case _Authority(pem):
            archive.authority = pem
        case _Token(token):
            archive.tokens.append(token)
        case _Drain(drain):
            archive.drains.append(drain)
        case _Quorum(quorum):
            archive.quorums.append(quorum)
        case _Forgets(known):
            archive.forgets = known
        case _Run(state):
            archive.runs.append(state)
