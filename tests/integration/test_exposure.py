"""What other processes see of one that was given a token."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drumbeat.access.token import Role, Token

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


def test_a_process_without_access_to_itself_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from drumbeat.access import exposure

    monkeypatch.setattr(exposure, "_OWN", tmp_path)
    monkeypatch.setenv("DRUMBEAT_TOKEN", TOKEN)
    assert exposure.withdraw_token() == {"DRUMBEAT_TOKEN": TOKEN}
    (tmp_path / "stat").write_text("1 (a) b) S 1 2")
    assert exposure.withdraw_token() == {}
