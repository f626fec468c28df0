"""The commands of operators as a shell runs them: completed, and into a pipe that nothing reads."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.wire import DEADLINE_S, coordinator

BASH = shutil.which("bash")
COMMAND = Path(sys.executable).with_name("coordinator")
COMPLETE = """
eval "$(_COORDINATOR_COMPLETE=bash_source coordinator)"
for line in "coordinator st" "coordinator token cr" "coordinator drain --rea" \
            "coordinator status -o j" "coordinator stop ex" "coordinator watch no"; do
    read -ra COMP_WORDS <<< "$line"
    COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
    COMPREPLY=()
    $(complete -p coordinator | sed 's/.*-F \\([^ ]*\\).*/\\1/') coordinator
    echo "$line: ${COMPREPLY[*]}"
done
"""


def environment(port: int) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("DRUMBEAT_")}
    return own | {
        "PATH": f"{COMMAND.parent}:{os.environ['PATH']}",
        "DRUMBEAT_COORDINATOR": f"127.0.0.1:{port}",
        "DRUMBEAT_INSECURE": "1",
    }


@pytest.mark.slow
@pytest.mark.skipif(not BASH, reason="needs bash")
async def test_bash_completes_commands_options_words_and_runs(tmp_path: Path) -> None:
    assert BASH
    async with coordinator(tmp_path) as client:
        await client.agent(run_id="exp1").join()
        bash = await asyncio.create_subprocess_exec(
            *(BASH, "--norc", "-c", COMPLETE),
            env=environment(client.port),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(DEADLINE_S):
            out, err = await bash.communicate()
    assert err == b""
    assert out.decode().splitlines() == [
        "coordinator st: stacks status step-down stop",
        "coordinator token cr: create",
        "coordinator drain --rea: --reason",
        "coordinator status -o j: json",
        "coordinator stop ex: exp1",
        "coordinator watch no: ",
    ]


@pytest.mark.parametrize("line", ["drains", "status -o json"])
async def test_a_reader_that_has_seen_enough_is_no_error(line: str, tmp_path: Path) -> None:
    """As with `coordinator drains | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    async with coordinator(tmp_path) as client:
        try:
            process = await asyncio.create_subprocess_exec(
                *(str(COMMAND), *line.split()),
                env=environment(client.port),
                stdout=writing,
                stderr=asyncio.subprocess.PIPE,
            )
        finally:
            os.close(writing)
        async with asyncio.timeout(DEADLINE_S):
            _, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
async def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as client:
        with Path("/dev/full").open("w") as full:  # noqa: ASYNC230 - no disk is waited for
            process = await asyncio.create_subprocess_exec(
                *(str(COMMAND), "drains"),
                env=environment(client.port),
                stdout=full,
                stderr=asyncio.subprocess.PIPE,
            )
        async with asyncio.timeout(DEADLINE_S):
            _, err = await process.communicate()
    assert process.returncode == 1
    assert err == (
        b"coordinator: error: standard output cannot be written: No space left on device\n"
    )
