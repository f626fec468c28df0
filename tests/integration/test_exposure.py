"""What other processes see of one that was given a token."""

import os
import subprocess
import sys
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from drumbeat.access.token import Role, Token
from drumbeat.agent.multiprocessing import DefaultLogsSpecs, start_processes
from tests.support.waiting import MS

DEADLINE_S = 30_000 * MS
ROOT = Path(__file__).resolve().parents[2]
SECRET = "abcdefghijkl0123456789"
TOKEN = Token(Role.JOIN, "abcdefgh", SECRET).text()
# Shows itself and a child after it has taken tokens out.
SHOWS = """\
import os, subprocess, sys
from pathlib import Path
from drumbeat.access.exposure import withdraw_token

assert withdraw_token() == {"DRUMBEAT_TOKEN": os.environ["EXPECTED"][::-1]}
assert "DRUMBEAT_TOKEN" not in os.environ
assert withdraw_token() == {}
for name in ("cmdline", "environ"):
    print(Path("/proc/self", name).read_text())
print(" ".join(sys.argv).count(os.environ["EXPECTED"][::-1]), flush=True)
subprocess.run(["cat", "/proc/self/environ"], check=True)
"""


@pytest.fixture(scope="module", autouse=True)
def _shared_process() -> None:
    """Start what the standard library shares among all tests, lest one of them be blamed."""
    resource_tracker.ensure_running()


@pytest.mark.parametrize(
    "argv", [[], ["--token", TOKEN], [f"--tok_file={TOKEN}", "x", f"-t{TOKEN}"]]
)
def test_a_token_is_neither_in_the_arguments_nor_in_the_environment(argv: list[str]) -> None:
    """Of the process itself, whatever the spelling, and of those that it starts."""
    given = {"DRUMBEAT_TOKEN": TOKEN, "EXPECTED": TOKEN[::-1], "DRUMBEAT_TOKEN_FILE": "/t"}
    shown = subprocess.run(
        [sys.executable, "-c", SHOWS, *argv, "last"],
        env=os.environ | given | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert SECRET not in shown
    assert "\0last\0" in shown
    assert f"\n{len([each for each in argv if TOKEN in each])}\n" in shown, "it is still read"
    assert shown.count("DRUMBEAT_TOKEN_FILE=/t\0") == 2


def test_the_url_of_a_notification_is_neither_in_the_arguments_nor_in_the_environment() -> None:
    program = SHOWS.replace(
        'assert withdraw_token() == {"DRUMBEAT_TOKEN": os.environ["EXPECTED"][::-1]}',
        'assert withdraw_token()["DRUMBEAT_NOTIFY"] == os.environ["EXPECTED"][::-1]',
    )
    url = f"jsons://hook/{SECRET}"
    given = {"DRUMBEAT_NOTIFY": url, "DRUMBEAT_NOTIFY_HEARTBEAT": url, "EXPECTED": url[::-1]}
    argv = ["--notify", url, f"--notify={url}", f"--notify_heartbeat={url}", "--notify-file", "f"]
    shown = subprocess.run(
        [sys.executable, "-c", program, *argv, "last"],
        env=os.environ | given | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert SECRET not in shown
    assert "\0--notify-file\0f\0last\0" in shown
    assert "\n3\n" in shown, "it is still read"


def test_a_process_without_access_to_itself_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from drumbeat.access import exposure

    monkeypatch.setattr(exposure, "_OWN", tmp_path)
    monkeypatch.setenv("DRUMBEAT_TOKEN", TOKEN)
    assert exposure.withdraw_token() == {"DRUMBEAT_TOKEN": TOKEN}
    (tmp_path / "stat").write_text("1 (a) b) S 1 2")
    assert exposure.withdraw_token() == {}


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_token_of_a_launcher_reaches_no_worker_that_is_not_to_have_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str
) -> None:
    monkeypatch.setenv("DRUMBEAT_TOKEN", TOKEN)
    context = start_processes(
        "worker",
        os.getenv,
        dict.fromkeys(range(2), ("DRUMBEAT_TOKEN",)),
        {0: {}, 1: {"DRUMBEAT_TOKEN": "its own"}},
        DefaultLogsSpecs(str(tmp_path)),
        start_method=method,
    )
    try:
        result = context.wait(DEADLINE_S)
    finally:
        context.close(timeout=0)
    assert result is not None
    assert result.return_values == {0: None, 1: "its own"}
