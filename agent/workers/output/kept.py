"""Shell. The output of the latest rounds that is kept, for readers and reports.

Reading it costs workers nothing: what they write goes to files, or through pipes that the agent
empties whether it is read or not.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from drumbeat.agent.workers.output.lines import LAST_BYTES_MAX, last_lines
from drumbeat.agent.workers.output.ring import (
    PIECE_BYTES_MAX,
    Piece,
    Place,
    Ring,
    moved,
    tail_at,
    whole_lines,
)

STDOUT, STDERR = 1, 2
ROUNDS_KEPT = 2
TAIL_BYTES_MAX = 1024 * 1024  # of a file, where its last lines are looked for
BEHIND_BYTES_MAX = 64 * 1024 * 1024  # of a file; a reader further behind continues near its end
COUNTED_BYTES_MAX = 64 * 1024 * 1024  # of lines left out at once


class StreamKey(NamedTuple):
    """One stream of one worker."""

    round_id: int
    rank: int
    stream: int


class NotKept(str):
    """Why nothing is kept of a stream."""

    __slots__ = ()


class KeptFile:
    """A stream that a worker writes to a file. Lines are counted from where reading began."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)  # noqa: PTH100 - a text, as workers get it

    def last_lines(self) -> str:
        """Return the end of the file."""
        with suppress(OSError):
            if os.path.isfile(self.path):  # noqa: PTH113 - a pipe would be waited for
                with open(self.path, "rb") as file:  # noqa: PTH123
                    file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES_MAX))
                    return last_lines(file.read(LAST_BYTES_MAX))
        return ""

    def end(self) -> int:
        """Return the size of the file."""
        return os.stat(self.path).st_size  # noqa: PTH116 - a text, as workers get it

    def tail(self, lines: int) -> Place:
        """Return where its last lines begin, as far as they are near its end."""
        with open(self.path, "rb") as file:  # noqa: PTH123
            begin = max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES_MAX)
            file.seek(begin)
            data = file.read(TAIL_BYTES_MAX)
        return Place(begin + tail_at(data, lines), 0)

    def read(self, place: Place, *, is_last: bool) -> Piece:
        """Return what is behind a place, or count what is left out. A file may be cut meanwhile."""
        with open(self.path, "rb", buffering=0) as file:  # noqa: PTH123
            size = os.fstat(file.fileno()).st_size
            if size < place.offset:
                place = Place()
            file.seek(place.offset)
            if size - place.offset > BEHIND_BYTES_MAX:
                data = file.read(min(COUNTED_BYTES_MAX, size - place.offset - TAIL_BYTES_MAX))
                cut = data.rfind(b"\n") + 1 or len(data)
                following = moved(place, data, cut)
                return Piece(following, missed=following.lines - place.lines)
            data = whole_lines(file.read(PIECE_BYTES_MAX), is_last=is_last)
        return Piece(moved(place, data, len(data)), data)


Kept: TypeAlias = KeptFile | Ring
"""What is kept of one stream. Any thread may call; all but ``last_lines`` may raise ``OSError``."""


class KeptOutput:
    """All of it, by round, rank and stream. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # All below is guarded by the lock.
        self._rounds: dict[int, Mapping[StreamKey, Kept | NotKept]] = {}
        self._latest: int | None = None  # the round whose workers may write
        self._waiting: set[Callable[[], None]] = set()
        self.directory = ""  # that has all files of the latest round; empty: there are none

    def begin(self, round_id: int, streams: Mapping[StreamKey, Kept | NotKept]) -> None:
        """Take a new round in; the oldest is forgotten."""
        folders = [os.path.dirname(k.path) for k in streams.values() if isinstance(k, KeptFile)]  # noqa: PTH120
        self.directory = os.path.commonpath(folders) if folders else ""
        with self._lock:
            self._rounds[round_id] = streams
            self._latest = round_id
            while len(self._rounds) > ROUNDS_KEPT:
                del self._rounds[next(iter(self._rounds))]
        self.tell()

    def ended(self) -> None:
        """Take note that the latest round has written all it will."""
        with self._lock:
            self._latest = None
        self.tell()

    def streams(self) -> tuple[dict[StreamKey, Kept | NotKept], int | None]:
        """Return all that is kept, older rounds first, and the round that may go on."""
        with self._lock:
            rounds = self._rounds.values()
            streams = {key: kept for of_round in rounds for key, kept in of_round.items()}
            return streams, self._latest

    def call_once(self, on_news: Callable[[], None]) -> None:
        """Call back, in whatever thread, once there is more in a pipe, or another round."""
        with self._lock:
            self._waiting.add(on_news)

    def tell(self) -> None:
        """Say that there is more."""
        if not self._waiting:
            return
        with self._lock:
            waiting, self._waiting = self._waiting, set()
        for on_news in waiting:
            on_news()
