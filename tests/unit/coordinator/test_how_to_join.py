"""What an operator is shown, to be copied to the machines that join."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from coordinator.access.join_token import FILE, how_to_join
from drumbeat.access.token import CA_CHARACTERS, Role, Token
from drumbeat.command.settings import HostPort

HERE = HostPort("head", 29400)
TOKEN = Token(Role.JOIN, "k3v9qr2m", "s" * 22, "c" * CA_CHARACTERS)
DIRECTORY = Path("/state")


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JOURNAL_STREAM", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


def command(where: HostPort = HERE, token: Token | None = TOKEN) -> str:
    return how_to_join(where, token, DIRECTORY).splitlines()[1].strip()


def test_the_command_has_the_token_and_names_this_host_for_all_its_addresses() -> None:
    assert command() == f"agent join --coordinator head:29400 --token {TOKEN.text()} train.py"
    for host in ("0.0.0.0", "::"):
        assert f" {socket.gethostname()}:29400 " in command(HostPort(host, 29400))


def test_beside_an_operators_certificate_its_authority_is_asked_for() -> None:
    token = Token(TOKEN.role, TOKEN.token_id, TOKEN.secret)
    assert f"--token {token.text()} --tls-ca ca.crt " in command(token=token)


@pytest.mark.parametrize("log", ["JOURNAL_STREAM", "KUBERNETES_SERVICE_HOST"])
def test_a_log_that_others_read_gets_the_file_and_not_the_token(
    log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(log, "8:12345")
    assert f"--token-file {DIRECTORY / FILE} " in command()
    assert TOKEN.secret not in command()


def test_without_a_token_the_command_that_makes_one_is_shown() -> None:
    assert command(token=None) == "coordinator token create --role join"
