"""File work off the event loop."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from drumbeat.agent.host import file_thread
from drumbeat.agent.host.file_thread import FilesStalled, FileThread


async def test_work_is_done_in_order_by_one_thread() -> None:
    files, done = FileThread(), list[tuple[int, int]]()
    for number in range(10):
        await files.run(lambda n=number: done.append((n, threading.get_ident())), timeout_s=30)  # type: ignore[misc]
    assert [number for number, _ in done] == list(range(10))
    assert len({thread for _, thread in done} - {threading.get_ident()}) == 1
    files.close()


async def test_an_error_reaches_the_one_who_asked() -> None:
    files = FileThread()
    with pytest.raises(PermissionError):
        await files.run(_refuse, timeout_s=30)
    files.close()


def _refuse() -> None:
    raise PermissionError


async def test_a_file_system_that_stands_still_holds_up_neither_the_loop_nor_the_end(
    tmp_path: Path,
) -> None:
    stalled = tmp_path / "stalled"
    os.mkfifo(stalled)
    files = FileThread()
    with pytest.raises(FilesStalled, match=r"did not answer within 0.02 s"):
        await files.run(stalled.read_text, timeout_s=0.02)
    assert files.is_stalled
    with pytest.raises(FilesStalled):
        await files.run(lambda: "never", timeout_s=0)
    # It flows again: what was asked for meanwhile is done, and the thread is of use again.
    await asyncio.to_thread(stalled.write_text, "late")
    assert await files.run(lambda: "again", timeout_s=30) == "again"
    assert not files.is_stalled
    files.close()


async def test_too_much_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_thread, "JOBS_MAX", 2)
    files, go_on = FileThread(), threading.Event()
    waiting = [files.submit(go_on.wait) for _ in range(3)]
    assert [done is None for done in waiting] == [False, False, True]
    with pytest.raises(FilesStalled):
        await files.run(lambda: None, timeout_s=30)
    go_on.set()
    for done in waiting[:2]:
        assert done is not None
        await done
    files.close()
