"""Shell. What this host's workers do, as the coordinator is told it to judge a hang.

Ten thousand hosts answer at once, so an answer is small: of each worker the thread that trains, and
workers that are at the same place are told of once.
"""

from __future__ import annotations

import linecache
import re
import stat
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from msgspec.structs import replace

from drumbeat.agent.host.file_thread import FilesStalled, FileThread
from drumbeat.agent.session.convert import progress_message
from drumbeat.agent.watchdog.stack_taking import WorkerEvidence
from drumbeat.mapping import duration
from drumbeat.model import GroupCalls
from drumbeat.v1 import session_pb2
from drumbeat.wire import GROUP_CALLS

STACKS_BYTES_MAX = 16 * 1024  # of one worker
GROUPS_MAX = 256  # different calls of process groups, of all workers; those of others are left out
OLD_CALL_S = 10.0  # the age of an older call is told in whole seconds, of others in tenths
ORDER_S = 1e-6  # between two calls that came one after the other
NOTES_CHARACTERS_MAX = 1_000
LINE_CHARACTERS_MAX = 200
READ_WITHIN_S = 0.5  # for source lines; a network file system may stall
SOURCE_BYTES_MAX = 4 * 1024 * 1024  # of a file that is read for a line
# The address of a thread, which differs from worker to worker.
_HEADER = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+ .*$", re.MULTILINE)
_INNERMOST = re.compile(r'\A[^\n]*\n  File "([^"\n]*)", line (\d{1,9}) in ')


def training_thread(stacks: str) -> str:
    """Return the first thread; all of them if it waits for another thread of the program."""
    stacks = _HEADER.sub("Thread (most recent call first):", stacks)
    first = stacks.strip("\n").partition("\n\n")[0]
    place = _INNERMOST.match(first)
    waits = place is not None and place[1].endswith("/threading.py")
    kept = stacks if waits else f"{first}\n" if first else ""
    return kept.encode()[:STACKS_BYTES_MAX].decode(errors="ignore")


class GroupTable:
    """The different calls of process groups in one answer, which workers name by their place."""

    def __init__(self) -> None:
        self._places: dict[GroupCalls, int] = {}

    def add(self, message: session_pb2.WorkerStacks, groups: Sequence[GroupCalls] | None) -> None:
        """Write which calls a worker has made, as far as there is room."""
        if groups is None:
            return
        message.has_groups = True
        for group in _rounded(groups):
            if group in self._places or len(self._places) < GROUPS_MAX:
                message.groups.append(self._places.setdefault(group, len(self._places)))

    def messages(self) -> list[session_pb2.ProcessGroupCalls]:
        """Return them in the order of their places."""
        return [GROUP_CALLS.write(group) for group in self._places]


def _rounded(groups: Sequence[GroupCalls]) -> list[GroupCalls]:
    """Return groups whose calls have rounded ages, so that those of many workers are equal.

    Which of two calls of a worker came first is kept: an older call has a few microseconds more.
    """
    calls = [call for group in groups for call in group.calls if call.age_s is not None]
    newest_first = sorted(calls, key=lambda call: call.age_s or 0.0)
    ages_s = {
        id(call): round(call.age_s or 0.0, 0 if (call.age_s or 0.0) >= OLD_CALL_S else 1)
        + place * ORDER_S
        for place, call in enumerate(newest_first)
    }
    return [
        replace(
            group,
            calls=tuple(replace(call, age_s=ages_s.get(id(call))) for call in group.calls),
        )
        for group in groups
    ]


async def evidence_messages(
    looks: Sequence[WorkerEvidence], groups: GroupTable, files: FileThread
) -> list[session_pb2.WorkerStacks]:
    """Write what workers do; lines of source are read by ``files``."""
    stacks = [training_thread(look.evidence.stacks) for look in looks]
    try:
        lines = await files.run(lambda: _source_lines({*stacks}), timeout_s=READ_WITHIN_S)
    except FilesStalled:
        lines = {}
    known: dict[str, int] = {}
    messages = []
    for look, text in zip(looks, stacks, strict=True):
        evidence, standing = look.evidence, look.standing
        message = session_pb2.WorkerStacks(
            local_rank=look.local_rank,
            pid=look.pid,
            problem=evidence.notes[:NOTES_CHARACTERS_MAX],
            is_stopped=evidence.is_stopped,
        )
        if standing is not None:
            message.progress.CopyFrom(progress_message(standing, now=time.monotonic()))
        if text and text in known:
            message.same_as = known[text]
        else:
            known[text] = look.local_rank
            message.stacks, message.source_line = text, lines.get(text, "")
        groups.add(message, look.groups)
        if look.moved_at is not None:
            message.moved_age.CopyFrom(duration(time.monotonic() - look.moved_at))
        messages.append(message)
    return messages


def _source_lines(stacks: Collection[str]) -> dict[str, str]:
    """Return the text of the innermost call's line of each; none where that can't be read."""
    linecache.checkcache()
    return {
        text: _source_line(place[1], int(place[2]))
        for text in stacks
        if (place := _INNERMOST.match(text))
    }


def _source_line(file: str, line: int) -> str:
    """Return a line of a regular file of a usual size: a name may be that of a device or pipe."""
    try:
        status = Path(file).stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > SOURCE_BYTES_MAX:
            return ""
        return linecache.getline(file, line).strip()[:LINE_CHARACTERS_MAX]
    except (OSError, ValueError):  # of a name with a zero byte
        return ""
