"""What a host answers when it is asked what its workers do."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from drumbeat.agent.host.file_thread import FileThread
from drumbeat.agent.model.hang import HangEvidence, WorkerProgress
from drumbeat.agent.session import stack_answers
from drumbeat.agent.session.stack_answers import (
    LINE_CHARACTERS_MAX,
    NOTES_CHARACTERS_MAX,
    STACKS_BYTES_MAX,
    GroupTable,
    evidence_messages,
    training_thread,
)
from drumbeat.agent.watchdog.stack_taking import WorkerEvidence
from drumbeat.v1 import session_pb2

ANY = "Thread (most recent call first):\n"
MAIN = 'Current thread 0x00007f01 (most recent call first):\n  File "/t/a.py", line 3 in f\n'
OTHER = 'Thread 0x00007f02 (most recent call first):\n  File "/t/b.py", line 9 in g\n'
WAITING = (
    "Thread 0x00007f01 (most recent call first):\n"
    '  File "/usr/lib/python3.12/threading.py", line 355 in wait\n'
    '  File "/t/a.py", line 3 in f\n'
)


@asynccontextmanager
async def the_files() -> AsyncIterator[FileThread]:
    files = FileThread()
    try:
        yield files
    finally:
        files.close()


async def answers(*looks: WorkerEvidence) -> list[session_pb2.WorkerStacks]:
    async with the_files() as files:
        return await evidence_messages(looks, GroupTable(), files)


def a_look(local_rank: int, stacks: str = MAIN, **evidence: object) -> WorkerEvidence:
    seen = HangEvidence(stacks=stacks, **evidence)  # type: ignore[arg-type]
    return WorkerEvidence(local_rank=local_rank, pid=100 + local_rank, evidence=seen)


# Which threads.


def test_only_the_first_thread_is_told_without_its_address() -> None:
    assert training_thread(f"{MAIN}\n{OTHER}") == f'{ANY}  File "/t/a.py", line 3 in f\n'
    assert training_thread(MAIN) == training_thread(MAIN.replace("7f01", "7fff"))


def test_a_thread_that_waits_for_another_is_told_with_all_of_them() -> None:
    told = training_thread(f"{WAITING}\n{OTHER}")
    assert [line for line in told.splitlines() if "File" in line] == [
        '  File "/usr/lib/python3.12/threading.py", line 355 in wait',
        '  File "/t/a.py", line 3 in f',
        '  File "/t/b.py", line 9 in g',
    ]
    assert "0x" not in told


def test_a_file_of_the_program_whose_name_only_ends_so_is_no_wait() -> None:
    own = MAIN.replace("/t/a.py", "/t/my_threading.py")
    assert "b.py" not in training_thread(f"{own}\n{OTHER}")


def test_a_wait_further_out_does_not_count() -> None:
    outer = f'{MAIN}  File "/usr/lib/python3.12/threading.py", line 1000 in run\n'
    assert "b.py" not in training_thread(f"{outer}\n{OTHER}")


@pytest.mark.parametrize("nothing", ["", "\n", "\n\n"])
def test_no_stacks_remain_none(nothing: str) -> None:
    assert training_thread(nothing) == ""


@pytest.mark.parametrize("first", [MAIN, WAITING])
def test_stacks_are_cut_after_so_many_bytes(first: str) -> None:
    deep = first + '  File "/t/größe.py", line 8 in f\n' * 1000
    told = training_thread(deep)
    assert STACKS_BYTES_MAX - 4 < len(told.encode()) <= STACKS_BYTES_MAX
    assert "�" not in told


# The answer.


async def test_workers_at_the_same_place_are_told_of_once() -> None:
    same = MAIN.replace("7f01", "7fff")
    messages = await answers(a_look(3), a_look(5, same), a_look(6, OTHER), a_look(7))
    told = [(each.local_rank, each.pid, each.HasField("same_as")) for each in messages]
    assert told == [(3, 103, False), (5, 105, True), (6, 106, False), (7, 107, True)]
    assert [messages[1].same_as, messages[3].same_as] == [3, 3]
    assert [bool(each.stacks) for each in messages] == [True, False, True, False]


async def test_local_rank_0_is_named_as_any_other() -> None:
    _, second = await answers(a_look(0), a_look(1))
    assert (second.HasField("same_as"), second.same_as, second.stacks) == (True, 0, "")


async def test_workers_without_stacks_are_not_said_to_be_alike() -> None:
    messages = await answers(a_look(0, "", notes="no answer"), a_look(1, "", notes="gone"))
    assert [each.problem for each in messages] == ["no answer", "gone"]
    assert not any(each.HasField("same_as") for each in messages)


async def test_the_line_of_source_comes_from_the_file(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text(f"import x\n    x.all_reduce(y)\nz = '{'z' * 500}'\n")

    def at(line: int, file: Path = source) -> str:
        return f'Thread 0x1 (most recent call first):\n  File "{file}", line {line} in step\n'

    gone = tmp_path / "gone.py"
    found = await answers(*(a_look(i, at(i)) for i in (2, 3, 99)), a_look(4, at(1, gone)))
    lines = [each.source_line for each in found]
    assert lines[0] == "x.all_reduce(y)"
    assert lines[1].startswith("z = 'zzz")
    assert len(lines[1]) == LINE_CHARACTERS_MAX
    assert lines[2:] == ["", ""]

    source.write_text("import x\ny.wait()\n")
    (changed,) = await answers(a_look(0, at(2)))
    assert changed.source_line == "y.wait()", "the file is read anew"


async def test_where_a_worker_stands_comes_with_its_stacks() -> None:
    standing = WorkerProgress(local_rank=1, step=41, scope="save")
    stopped = a_look(1, is_stopped=True)._replace(standing=standing)
    first, second = await answers(stopped, a_look(2))
    assert (first.progress.step, first.progress.scope) == (41, "save")
    assert (first.is_stopped, second.is_stopped) == (True, False)
    assert not second.HasField("progress")


async def test_notes_are_bounded() -> None:
    (message,) = await answers(a_look(0, notes="n" * (NOTES_CHARACTERS_MAX + 1)))
    assert message.problem == "n" * NOTES_CHARACTERS_MAX


async def test_a_file_system_that_stalls_costs_the_lines_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stack_answers, "READ_WITHIN_S", 0.01)
    source = tmp_path / "a.py"
    source.write_text("wait()\n")
    stacks = f'Thread 0x1 (most recent call first):\n  File "{source}", line 1 in f\n'
    goes_on = threading.Event()
    async with the_files() as files:
        stalled = files.submit(goes_on.wait)
        assert stalled is not None
        first, second = await evidence_messages(
            [a_look(0, stacks), a_look(1, stacks)], GroupTable(), files
        )
        goes_on.set()
        await stalled
    assert (first.source_line, bool(first.stacks)) == ("", True)
    assert second.HasField("same_as")


async def test_no_workers_are_no_answer() -> None:
    assert await answers() == []
