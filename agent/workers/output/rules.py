"""Shell. Looks for the patterns of ``--hang-pattern`` and ``--fatal-pattern`` in workers' output.

Threads that read the output hand it over and never wait; one thread matches it line by line. Needs
the library regex, of the extra ``patterns``, because it can give up a search: ADR 53.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog
from msgspec.structs import replace

from drumbeat.agent.core.watchdog.model import FatalLine, Slot, Snapshot, WorkerKey
from drumbeat.agent.model.hang import Purpose
from drumbeat.agent.settings.kinds import OutputPattern
from drumbeat.agent.workers.output.lines import RuleLines

log = structlog.get_logger()

QUEUED_BYTES_MAX = 8 * 1024 * 1024  # of output that waits to be matched; more is dropped
DROPS_LOGGED_EVERY_S = 10.0
MATCH_TIMEOUT_S = 0.1  # of CPU time, for one pattern in one line
TIMEOUTS_MAX = 10  # of one pattern in an agent's life; then it is given up
FATAL_CHARACTERS_MAX = 1000  # of a fatal line, in the failure record
_FIRST_SLOT = -2  # and downwards: no slot of a board has such a number


@dataclass(slots=True)
class _Rule:
    pattern: OutputPattern
    compiled: Any  # of a library without types
    timeouts: int = 0


@dataclass(slots=True)
class _Seen:
    """What one worker wrote: when each hang pattern matched, by the number of its rule.

    ``unknown_at``: when output was left out, which counts as if all of them had matched; so does
    what waits to be read, as ``has_unread`` of a stream says, or to be matched.
    """

    worker: WorkerKey
    matched_at: dict[int, float] = field(default_factory=dict)
    unknown_at: float = -math.inf
    fatal_line: FatalLine | None = None
    has_unread: list[Callable[[], bool]] = field(default_factory=list)
    waiting: int = 0  # chunks to be matched, the latest of which came at:
    came_at: float = -math.inf

    def since(self, number: int) -> float:
        """Return when a hang pattern matched last, or may have."""
        if any(has_unread() for has_unread in self.has_unread):
            return time.monotonic()
        known = max(self.matched_at[number], self.unknown_at)
        return max(known, self.came_at) if self.waiting else known


@dataclass(slots=True)
class _Stream:
    seen: _Seen
    lines: RuleLines = field(default_factory=RuleLines)
    is_cut: bool = False  # the latest chunk was dropped


class OutputRules:
    """The patterns of this agent, and what its workers of the latest round wrote that they match.

    Any thread may call. The matching thread starts with the first stream and ends with `close`.
    ``on_fatal`` is called in it when a worker has written its first fatal line.
    """

    def __init__(self, patterns: Iterable[OutputPattern]) -> None:
        self._rules = [_Rule(pattern, compiled(pattern)) for pattern in patterns]
        self.on_fatal: Callable[[WorkerKey], None] = lambda _: None
        self._seen: dict[WorkerKey, _Seen] = {}
        self._thread: threading.Thread | None = None
        self._logged_at = -math.inf  # when lines that were dropped were logged
        self._changed = threading.Condition()
        # All below is guarded by the condition's lock.
        self._queue = deque[tuple[_Stream, bytes, bool, float]]()
        self._queued_bytes = self._dropped_lines = 0
        self._is_closing = False

    def begin(self) -> None:
        """Forget the workers of the round before."""
        self._seen = {}

    def add(
        self, worker: WorkerKey, has_unread: Callable[[], bool] = lambda: False
    ) -> Callable[[bytes], None]:
        """Watch a stream: return what takes its next bytes in, and never waits."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="output-rules", daemon=True)
            self._thread.start()
        seen = self._seen.setdefault(worker, _Seen(worker))
        seen.has_unread.append(has_unread)
        return partial(self._take, _Stream(seen))

    def added_to(self, snapshot: Snapshot | None, worker: WorkerKey) -> Snapshot | None:
        """Return what a worker's board says, and its output."""
        if (seen := self._seen.get(worker)) is None:
            return snapshot
        slots = [
            _slot(number, self._rules[number].pattern, seen.since(number))
            for number in tuple(seen.matched_at)
            if self._rules[number].timeouts < TIMEOUTS_MAX
        ]
        if not slots and seen.fatal_line is None:
            return snapshot
        snapshot = snapshot or Snapshot()
        slots = [*snapshot.slots, *slots]
        return replace(snapshot, slots=tuple(slots), fatal_line=seen.fatal_line)

    def close(self) -> None:
        """End the thread; what waits is not matched any more."""
        with self._changed:
            self._is_closing = True
            self._queue.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._log_drops()

    def _take(self, stream: _Stream, chunk: bytes) -> None:
        now = time.monotonic()
        with self._changed:
            if self._queued_bytes + len(chunk) > QUEUED_BYTES_MAX:
                stream.seen.unknown_at, stream.is_cut = now, True
                self._dropped_lines += chunk.count(b"\n") + chunk.count(b"\r")
                return
            self._queue.append((stream, chunk, stream.is_cut, now))
            self._queued_bytes += len(chunk)
            stream.is_cut = False
            stream.seen.waiting += 1
            stream.seen.came_at = now
            self._changed.notify()

    # What follows runs in the thread.

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_closing)
                if self._is_closing:
                    return
                stream, chunk, is_cut, at = self._queue[0]
            self._match(stream.seen, stream.lines.feed(chunk, is_cut=is_cut), at)
            with self._changed:
                if self._queue:  # else it was closed meanwhile
                    self._queue.popleft()
                    self._queued_bytes -= len(chunk)
                    stream.seen.waiting -= 1
            if time.monotonic() - self._logged_at >= DROPS_LOGGED_EVERY_S:
                self._log_drops()

    def _log_drops(self) -> None:
        with self._changed:
            dropped, self._dropped_lines = self._dropped_lines, 0
        if dropped:
            self._logged_at = time.monotonic()
            why = f"workers write faster than it is matched; {dropped:,} lines were left out"
            log.warning("output not matched", reason=why)

    def _match(self, seen: _Seen, lines: Sequence[str], at: float) -> None:
        for number, rule in enumerate(self._rules):
            is_fatal = rule.pattern.within_s is None
            if is_fatal and seen.fatal_line is not None:
                continue
            line = next((line for line in lines if self._is_match(rule, line, seen, at)), None)
            if line is None:
                continue
            if not is_fatal:
                seen.matched_at[number] = at
                continue
            line = line[:FATAL_CHARACTERS_MAX]
            seen.fatal_line = FatalLine(pattern=rule.pattern.regex, line=line, at=at)
            self.on_fatal(seen.worker)

    def _is_match(self, rule: _Rule, line: str, seen: _Seen, at: float) -> bool:
        if rule.timeouts >= TIMEOUTS_MAX or self._is_closing:
            return False
        try:
            return rule.compiled.search(line, timeout=MATCH_TIMEOUT_S) is not None
        except TimeoutError:
            seen.unknown_at = at
            rule.timeouts += 1
        why = f"it took more than {MATCH_TIMEOUT_S:g} s in one line: simplify nested repetitions"
        if rule.timeouts == 1:
            log.warning("pattern is slow", reason=why, pattern=rule.pattern.regex)
        elif rule.timeouts == TIMEOUTS_MAX:
            why = f"{why}; after {TIMEOUTS_MAX} such lines it is not looked for any more"
            log.error("pattern given up", reason=why, pattern=rule.pattern.regex)
        return False


def compiled(pattern: OutputPattern) -> Any:
    """Compile a pattern. Raises ``ValueError``, and ``ImportError`` without the library."""
    import regex  # noqa: PLC0415 - only who has patterns needs it

    try:
        return regex.compile(pattern.regex)
    except regex.error as error:
        raise ValueError(str(error)) from None


def describe_fatal(line: FatalLine) -> str:
    """Say which line a worker is ended for."""
    return f"a line of its output matches the fatal pattern '{line.pattern}': {line.line}"


def _slot(number: int, pattern: OutputPattern, since: float) -> Slot:
    within_s = pattern.within_s or 0.0
    return Slot(
        slot=_FIRST_SLOT - number,
        name=pattern.regex,
        since=since,
        deadline=since + within_s,
        limit_s=within_s,
        purpose=Purpose.OUTPUT,
    )
