"""One bit of the journal's files is wrong: nothing that was confirmed is lost without a word.

A coordinator's journal is written and killed; then a bit is changed, anywhere, again and again.
``DRUMBEAT_FLIPS`` sets how often. Bits are seeded by their number.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from drumbeat.coordinator.errors import JournalCorrupt, JournalUnusable
from drumbeat.coordinator.journal.sqlite import FILE, LAST_WRITE, SqliteFile, SqliteJournal
from tests.support.stories import shown

FLIPS = int(os.environ.get("DRUMBEAT_FLIPS", "200"))
# How many writes leave all in the write-ahead log, and how many some of it in the file.
WRITES = {"all in the log": 12, "the file and the log": 400}

WRITER = """
import asyncio, sys
from pathlib import Path
from drumbeat.coordinator.core.effects import KeepForgets
from drumbeat.coordinator.journal.sqlite import SqliteJournal
from tests.support.stories import KINDS, NAMES, Story

async def write():
    journal = SqliteJournal(Path(sys.argv[1]))
    await journal.load()
    story = Story()
    for batch in range(int(sys.argv[2])):
        numbers = [(batch * 5 + step * 3) % (KINDS * NAMES) for step in range(6)]
        await journal.write(story.batch(numbers), now=story.now)
    print("written", flush=True)
    sys.stdin.read()

asyncio.run(write())
"""


@pytest.fixture(scope="module", params=WRITES)
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory whose owner was killed after its last write was confirmed."""
    directory = tmp_path_factory.mktemp("killed") / "state"
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory), str(WRITES[request.param])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == "written\n"
        child.send_signal(signal.SIGKILL)
    assert (directory / f"{FILE}-wal").stat().st_size > 0
    return directory


async def read(directory: Path) -> tuple[object, list[str]]:
    """Return all that a coordinator knows there, and what it says is damaged."""
    journal = SqliteJournal(directory)
    try:
        await journal.load()
        return shown(journal), [problem.lost for problem in journal.problems]
    finally:
        await journal.close()


def files(directory: Path) -> list[Path]:
    names = (FILE, f"{FILE}-wal", LAST_WRITE)
    return [directory / name for name in names if (directory / name).stat().st_size]


def copy(directory: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(directory, to)
    return to


@pytest.mark.slow
async def test_one_wrong_bit_is_refused_or_named(killed: Path, tmp_path: Path) -> None:
    """Or does no harm, as in a part of a file that is not used."""
    confirmed, problems = await read(copy(killed, tmp_path / "state"))
    assert problems == []
    hints, silent, outcomes = set[str](), [], {"refused": 0, "named": 0, "harmless": 0}
    for number in range(FLIPS):
        chance = random.Random(number)
        directory = copy(killed, tmp_path / "state")
        # As much in each file, and as much at its end, where what was confirmed last is.
        path = chance.choice(files(directory))
        content = bytearray(path.read_bytes())
        last = min(len(content), 4096 + 24)
        at = chance.choice([chance.randrange(len(content)), -1 - chance.randrange(last)])
        content[at] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        try:
            known, problems = await read(directory)
        except (JournalCorrupt, JournalUnusable) as refused:
            hints.add(refused.hint)
            outcomes["refused"] += 1
            continue
        if known == confirmed:
            outcomes["harmless"] += 1
        elif problems:
            outcomes["named"] += 1
        else:
            silent.append((number, path.name, at))
    assert silent == [], outcomes
    assert outcomes["refused"], outcomes
    assert hints
    assert not [hint for hint in hints if not hint or "empty" in hint]


@pytest.mark.parametrize("left", [0, 32, 1 / 2, -1])
async def test_a_log_that_lost_its_end_is_refused(
    killed: Path, tmp_path: Path, left: float
) -> None:
    directory = copy(killed, tmp_path / "state")
    log = directory / f"{FILE}-wal"
    size = log.stat().st_size
    os.truncate(log, size - 1 if left == -1 else int(left if left != 1 / 2 else size / 2))
    before = {path.name: path.read_bytes() for path in files(directory)}
    try:
        known = await read(directory)
    except JournalCorrupt as error:
        refused = error
    else:  # the end of the log had been copied into the file before
        assert known == await read(copy(killed, tmp_path / "whole"))
        return
    assert "lost" in str(refused) or "missing" in str(refused)
    assert "coordinator journal export" in refused.hint
    # Nothing is changed, so that what is left can still be looked at.
    assert {path.name: path.read_bytes() for path in files(directory)} == before


@pytest.mark.parametrize("how", ["missing", "empty", "missing with its log"])
@pytest.mark.parametrize("beside", ["ca.key", LAST_WRITE])
async def test_a_journal_that_is_gone_is_not_begun_anew(
    killed: Path, tmp_path: Path, how: str, beside: str
) -> None:
    directory = copy(killed, tmp_path / "state")
    (directory / "ca.key").touch()
    for name in {"ca.key", LAST_WRITE} - {beside}:
        (directory / name).unlink()
    if how == "empty":
        (directory / FILE).write_bytes(b"")
    else:
        (directory / FILE).unlink()
    for suffix in ("wal", "shm"):
        if how != "missing":
            (directory / f"{FILE}-{suffix}").unlink(missing_ok=True)
    with pytest.raises(JournalCorrupt, match=r"missing|empty"):
        SqliteFile(directory)
    assert not (directory / FILE).exists() or how == "empty"
