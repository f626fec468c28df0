"""Shell. The latest term that this host has seen, kept outside of etcd.

An etcd that was restored from a copy may begin again below the terms that agents know; they would
refuse every coordinator for ever.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from drumbeat.coordinator.errors import JournalUnusable

FILE = "etcd.term"
SET_BACK = (
    "etcd was emptied or restored from a copy, and agents refuse terms before those that they "
    "know: restore it with `etcdutl snapshot restore --bump-revision 1000000000 --mark-compacted`"
)


class SeenTerm(Struct, frozen=True):
    """The latest term of a cluster of coordinators."""

    prefix: str
    term: int


class SeenTerms:
    """Keeps the latest term of one cluster in a state directory."""

    def __init__(self, directory: Path, prefix: str) -> None:
        self._path, self._prefix = directory / FILE, prefix
        self._term = 0
        with suppress(OSError, msgspec.DecodeError):
            kept = msgspec.json.decode(self._path.read_bytes(), type=SeenTerm)
            self._term = kept.term if kept.prefix == prefix else 0

    def check(self, revision: int) -> None:
        """Raise ``JournalUnusable`` if etcd, at this revision, is before what was seen."""
        if revision < self._term:
            problem = f"its revision is {revision}, and a coordinator led in term {self._term}"
            raise JournalUnusable("in etcd", problem, SET_BACK)

    def seen(self, term: int) -> None:
        """Keep a term in which a coordinator leads."""
        if term > self._term:
            self._term = term
            new = self._path.with_suffix(".new")
            with suppress(OSError):  # it is missing where the host's disk is lost, too
                new.write_bytes(msgspec.json.encode(SeenTerm(self._prefix, term)))
                new.replace(self._path)
