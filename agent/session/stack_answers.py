"""Shell. Answers the coordinator's questions for the stacks of this host's workers, each once.

Ten thousand hosts answer at once when a hang is judged, so that answer is small: of each worker the
thread that trains, and workers that are at the same place are listed once.
"""

from __future__ import annotations

import asyncio
import linecache
import re
import stat
import time
from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import structlog
from msgspec.structs import replace

from drumbeat.agent.host.file_thread import FilesStalled, FileThread
from drumbeat.agent.session.convert import Identity, progress_message
from drumbeat.agent.session.transport import Connection, TransportError
from drumbeat.agent.watchdog.runner import Watchdog
from drumbeat.agent.watchdog.stack_taking import WorkerEvidence
from drumbeat.model import GroupCalls
from drumbeat.tasks import until_one_ends
from drumbeat.v1 import common_pb2, session_pb2
from drumbeat.wire.mapping import duration, seconds_of
from drumbeat.wire.messages import GROUP_CALLS

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


log = structlog.get_logger()

REQUESTS_MAX = 8  # taken of one directive
ANSWER_BYTES_MAX = 512 * 1024  # of all stacks in one answer
WORKER_TIMEOUT_S = 2.0  # less if the answer is waited for no longer than twice that


class _Question(NamedTuple):
    request: session_pb2.StackRequest
    deadline: float  # on the loop's clock: afterwards the coordinator does not wait for the answer


_Questions = asyncio.Queue[_Question]


class StackAnswers:
    """Answers the questions of one session, in their order.

    Questions of readers and questions for evidence of a hang do not wait for each other: what
    decides who is to blame must not depend on who looks.
    """

    def __init__(self, run_id: str, identity: Identity, watchdog: Watchdog) -> None:
        self._run_id, self._identity, self._watchdog = run_id, identity, watchdog
        self._of_readers, self._for_evidence = _Questions(REQUESTS_MAX), _Questions(REQUESTS_MAX)
        self._seen = frozenset[str]()
        self._files = FileThread("sources")

    def asked(self, collect: session_pb2.Collect) -> None:
        """Take in all that is asked at present."""
        requests = {request.request_id: request for request in collect.stacks[:REQUESTS_MAX]}
        now = asyncio.get_running_loop().time()
        for request_id, request in requests.items():
            questions = self._for_evidence if request.is_evidence else self._of_readers
            if request_id not in self._seen and not questions.full():
                questions.put_nowait(_Question(request, now + seconds_of(request.time_left)))
        self._seen = frozenset(requests)

    async def run(self, connection: Connection) -> None:
        """Answer until cancelled. What can't be delivered is not asked for any more, or again."""
        with closing(self._files):
            await until_one_ends(
                self._answer_all(self._of_readers, connection),
                self._answer_all(self._for_evidence, connection),
            )

    async def _answer_all(self, questions: _Questions, connection: Connection) -> None:
        while True:
            request, deadline = await questions.get()
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                log.info("stacks not taken", reason="the question had to wait for too long")
                continue
            try:
                await connection.report_stacks(await self._answer(request, left_s))
            except TransportError as error:
                log.info("stacks not delivered", reason=error.reason)

    async def _answer(
        self, request: session_pb2.StackRequest, left_s: float
    ) -> session_pb2.ReportStacksRequest:
        within_s = min(WORKER_TIMEOUT_S, left_s / 2)
        round_id, identity, groups = request.round_id, self._identity, GroupTable()
        looks = await self._watchdog.look(
            *(round_id, request.local_ranks, within_s),
            may_signal=request.may_signal,
            is_judged=request.is_evidence,
        )
        if request.is_evidence:
            workers = await evidence_messages(looks, groups, self._files)
        else:
            workers = _messages(looks, groups)
        return session_pb2.ReportStacksRequest(
            fence=common_pb2.Fence(
                run_id=self._run_id, round_id=round_id, incarnation=identity.incarnation
            ),
            incarnation_key=identity.incarnation_key,
            request_id=request.request_id,
            workers=workers,
            groups=groups.messages(),
        )


def _messages(
    looks: Sequence[WorkerEvidence], groups: GroupTable
) -> list[session_pb2.WorkerStacks]:
    room = ANSWER_BYTES_MAX // max(1, len(looks))
    messages = []
    for taken in looks:
        message = session_pb2.WorkerStacks(
            local_rank=taken.local_rank,
            pid=taken.pid,
            stacks=taken.evidence.stacks.encode()[:room].decode(errors="ignore"),
            problem=taken.problem.encode()[:room].decode(errors="ignore"),
        )
        groups.add(message, taken.groups)
        messages.append(message)
    return messages
