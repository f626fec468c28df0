"""A real agent with a token: what others see of it, and what its workers notice of its access."""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from drumbeat.access.token import Token
from drumbeat.v1 import failure_pb2, session_pb2
from tests.support.certificates import CertificateAuthority
from tests.support.fake_coordinator import (
    DEADLINE_S,
    UNAUTHENTICATED,
    FakeCoordinator,
    Session,
    fake_coordinator,
)

ROOT = Path(__file__).resolve().parents[3]
RUNNING = session_pb2.GROUP_STATE_RUNNING
SUCCESS = session_pb2.Exit(verdict=failure_pb2.Verdict(is_success=True, reason="done"))
# Ends when it is told to stop, and with success.
WORKER = "import signal; signal.signal(15, lambda *_: exit(0)); signal.pause()"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A temporary directory with a name short enough for the sockets in it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        (Path(made) / "train.py").write_text(WORKER)
        yield Path(made)


@asynccontextmanager
async def an_agent(
    coordinator: FakeCoordinator, folder: Path, *options: str, **variables: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    given = {f"DRUMBEAT_{name}": value for name, value in variables.items()}
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "drumbeat.agent",
            "join",
            "--run-id",
            "run",
            "--log-format",
            "json",
        ),
        *("--coordinator", f"127.0.0.1:{coordinator.port}", "--local-addr", "127.0.0.1"),
        *("--shutdown-timeout", "1", "--log-level", "debug", *options, str(folder / "train.py")),
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), **given},
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def run_round(session: Session) -> None:
    """Have the agent start its worker; return when it runs."""
    assignment = session_pb2.Assignment(
        group_world_size=1,
        world_size=1,
        role_world_size=1,
        master_addr="127.0.0.1",
        master_port=session.beat.master_port,
    )
    session.say(desired=session_pb2.DesiredState(run=assignment))
    await session.wait_for(lambda beat: beat.state == RUNNING)


def write(folder: Path, token: Token) -> str:
    draft, path = folder / "token.new", folder / "token"
    draft.touch(mode=0o600)
    draft.write_text(token.text())
    draft.rename(path)
    return str(path)


def family(pid: int) -> list[psutil.Process]:
    """An agent, its supervisor and its workers."""
    agent = psutil.Process(pid)
    return [agent, *agent.children(recursive=True)]


def shown(process: psutil.Process) -> bytes:
    """What any process of this user reads of another one."""
    return b"".join(
        Path(f"/proc/{process.pid}/{name}").read_bytes() for name in ("cmdline", "environ")
    )


def files_with(secret: str, folder: Path) -> list[Path]:
    """Files below a folder that have a secret, but the token's own."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "token"]
    return [path for path in paths if secret.encode() in path.read_bytes()]


async def ended(process: asyncio.subprocess.Process) -> str:
    """Wait for the end of an agent; return what it has logged."""
    async with asyncio.timeout(DEADLINE_S):
        _, log = await process.communicate()
    return log.decode()


@pytest.mark.parametrize("way", ["argument", "variable", "file"])
async def test_nothing_of_a_running_job_shows_the_token(folder: Path, way: str) -> None:
    """Neither processes nor files; and after it was revoked, neither log nor error."""
    ca = CertificateAuthority()
    token = ca.token()
    options, variables = list[str](), dict[str, str]()
    match way:
        case "argument":
            options, variables = ["--token", token.text()], {"TOKEN_FILE": "/nowhere"}
        case "variable":
            variables = {"TOKEN": token.text()}
        case "file":
            variables = {"TOKEN_FILE": write(folder, token)}
    async with fake_coordinator(ca.issue()) as head:
        head.tokens = {token}
        async with an_agent(head, folder, *options, **variables) as process:
            session = await head.session()
            await run_round(session)
            members = family(process.pid)
            assert len(members) == 3
            for member in members:
                assert token.secret.encode() not in shown(member), member.cmdline()
            assert files_with(token.secret, folder) == []
            session.refuse(UNAUTHENTICATED)
            log = await ended(process)
    assert process.returncode == 2, log
    assert f"refused: {UNAUTHENTICATED.text}; its workers are stopped" in log
    assert log.splitlines()[-2].endswith(f"error: {UNAUTHENTICATED.text}")
    assert token.secret not in log
    assert not any(member.is_running() for member in members)


LAUNCHES = """\
import sys
from pathlib import Path

import drumbeat

_, coordinator, token, script = sys.argv
config = drumbeat.LaunchConfig(
    1, 1, 1, run_id="run", coordinator=coordinator, token=Path(token).read_text(), local_addr="::1"
)
try:
    drumbeat.launch(config, sys.executable)(script)
except drumbeat.agent.errors.AccessRefused as error:
    print(f"refused: {error}")
"""


@pytest.mark.slow
async def test_nothing_of_a_launched_job_shows_the_token(folder: Path) -> None:
    ca = CertificateAuthority()
    token = ca.token()
    async with fake_coordinator(ca.issue()) as head:
        head.tokens = {token}
        where, path = f"127.0.0.1:{head.port}", write(folder, token)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", LAUNCHES, where, path, str(folder / "train.py")),
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
            stdout=asyncio.subprocess.PIPE,
        )
        session = await head.session()
        await run_round(session)
        members = family(process.pid)
        assert len(members) == 4
        for member in members:
            assert token.secret.encode() not in shown(member), member.cmdline()
        assert files_with(token.secret, folder) == []
        session.refuse(UNAUTHENTICATED)
        async with asyncio.timeout(DEADLINE_S):
            said, _ = await process.communicate()
    assert said.decode() == f"refused: {UNAUTHENTICATED.text}\n"


async def test_a_token_that_is_replaced_and_revoked_costs_no_worker(folder: Path) -> None:
    ca = CertificateAuthority()
    old, new = ca.token(), ca.token(token_id="yyyyyyyy")
    async with fake_coordinator(ca.issue()) as head:
        head.tokens = {old}
        async with an_agent(head, folder, "--token-file", write(folder, old)) as process:
            session = await head.session()
            await run_round(session)
            members = family(process.pid)
            write(folder, new)
            head.tokens = {new}
            session.refuse(UNAUTHENTICATED)
            again = await head.session()
            assert again.hello.beat.state == RUNNING
            assert again.hello.incarnation_key == session.hello.incarnation_key
            assert family(process.pid) == members
            again.say(desired=session_pb2.DesiredState(exit=SUCCESS))
            log = await ended(process)
    assert process.returncode == 0, log


async def test_grpc_writes_nothing_of_its_own_where_a_stranger_answers(folder: Path) -> None:
    token = CertificateAuthority().token()
    async with (
        fake_coordinator(CertificateAuthority().issue()) as head,
        an_agent(head, folder, "--token", token.text()) as process,
    ):
        log = await ended(process)
    assert process.returncode == 2, log
    error, hint = log.splitlines()
    assert "is not the coordinator that the token is of" in error
    assert hint.startswith("agent: hint: ")
