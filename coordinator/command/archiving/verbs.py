"""Shell. Carries out what an operator asks about a journal, and returns what to print."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from drumbeat.coordinator.command.archiving.cluster import EtcdPlace
from drumbeat.coordinator.command.archiving.requests import JournalRequest
from drumbeat.coordinator.command.archiving.state_directory import StateDirectory
from drumbeat.coordinator.errors import CallFailed, JournalCorrupt, JournalOutage, LostLeadership
from drumbeat.coordinator.journal.archive import Archive, lines_of, read_archive
from drumbeat.coordinator.journal.etcd.address import address_of
from drumbeat.coordinator.journal.keys import Keys
from drumbeat.text.format import count, printable

JournalPlace = StateDirectory | EtcdPlace


def perform(asked: JournalRequest, write: Callable[[str], object]) -> None:
    """Do one thing, and write what came of it. Raises ``CommandFailed``."""
    try:
        asyncio.run(_perform(asked, write))
    except JournalOutage as error:
        raise CallFailed(str(error), 3, error.hint) from error
    except LostLeadership as error:
        problem = "another one leads on the journal by now, so nothing more was written to it"
        raise CallFailed(problem, 2, "look at it with `coordinator journal check`") from error
    except JournalCorrupt as error:
        raise CallFailed(str(error), 1, error.hint) from error


async def _perform(asked: JournalRequest, write: Callable[[str], object]) -> None:
    async with _place(asked) as place:
        match asked.verb:
            case "export":
                archive = await place.read()
                _write_file(Path(asked.file), archive)
                write(_moved(asked, archive))
                if archive.left_out:
                    listed = "; ".join(f"{part.key}: {part.reason}" for part in archive.left_out)
                    problem = printable(f"not all could be read and is in {asked.file}: {listed}")
                    raise CallFailed(problem, 1, _SALVAGED)
            case "import":
                archive = _read_file(Path(asked.file))
                await place.write(archive)
                write(_moved(asked, archive))
            case _:
                findings = await place.check()
                is_json = asked.output == "json"
                write(msgspec.json.encode(findings).decode() if is_json else findings.text())
                if findings.problems:
                    broken = count(len(findings.problems), "thing")
                    problem = f"the journal {place.name} has {broken} that cannot be read"
                    raise CallFailed(problem, 1, _DAMAGED)


_SALVAGED = "`coordinator journal import` of this file goes on with all the rest"
_DAMAGED = 'keep a copy, then follow "Damaged journals" in docs/operating.md'


@asynccontextmanager
async def _place(asked: JournalRequest) -> AsyncIterator[JournalPlace]:
    address = address_of(asked)
    if address is None:
        yield StateDirectory(Path(asked.state_dir or ""))
        return
    # Late: it is loaded where it is used, and need not be installed elsewhere.
    from drumbeat.coordinator.journal.etcd.client import EtcdClient  # noqa: PLC0415

    client = EtcdClient(address)
    try:
        yield EtcdPlace(str(address), client, Keys(address.prefix))
    finally:
        await client.close()


def _write_file(path: Path, archive: Archive) -> None:
    """Make a file for this user alone; it has a key in it."""
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.writelines(lines_of(archive))
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError as error:
        raise CallFailed(f"{path} is there already", 2, "name a file that is not") from error
    except OSError as error:
        problem = f"{path} cannot be written: {error.strerror or error}"
        raise CallFailed(problem, 1) from error


def _read_file(path: Path) -> Archive:
    try:
        with path.open("rb") as file:
            return read_archive(file)
    except OSError as error:
        raise CallFailed(f"{path} cannot be read: {error.strerror or error}", 2) from error
    except ValueError as error:
        hint = "it has to be what `coordinator journal export` has written, whole"
        raise CallFailed(f"{path} is no export of a journal: {error}", 2, hint) from error


def _moved(asked: JournalRequest, archive: Archive) -> str:
    """Say what was exported or imported."""
    parts = {
        "runs": len(archive.runs),
        "tokens": len(archive.tokens),
        "drains": len(archive.drains),
    }
    if asked.output == "json":
        document = {"file": asked.file, **parts, "has_authority": bool(archive.authority)}
        return msgspec.json.encode(document).decode()
    listed = ", ".join(count(number, name.removesuffix("s")) for name, number in parts.items())
    authority = " and the certificate authority" if archive.authority else ""
    if asked.verb == "import":
        return f"{listed}{authority} imported from {asked.file}"
    secret = "; it has the key of the authority" if archive.authority else ""
    return f"{listed}{authority} exported to {asked.file}{secret}"
