"""What an operator is shown, to be copied to the machines that join."""

import socket
import sys
from pathlib import Path

import pytest

from drumbeat.access.token import CA_CHARACTERS, Role, Token
from drumbeat.coordinator.cluster.join_token import FILE, how_to_join
from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.journal.etcd.address import parse_etcd_address
from drumbeat.coordinator.shell.transport.binding import advertised
from drumbeat.text.addresses import HostPort

HERE = ("head:29400",)
TOKEN = Token(Role.JOIN, "k3v9qr2m", "s" * 22, "c" * CA_CHARACTERS)
DIRECTORY = Path("/state")


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JOURNAL_STREAM", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


def command(*where: str, token: Token | None = TOKEN) -> str:
    return how_to_join(where or HERE, token, DIRECTORY).splitlines()[1].strip()


def test_the_command_has_the_addresses_and_the_token_outside_of_its_arguments() -> None:
    token = f"DRUMBEAT_TOKEN={TOKEN.text()}"
    assert command() == f"{token} agent join --coordinator head:29400 train.py"
    assert " --coordinator head1:29400,head2:29400 " in command("head1:29400", "head2:29400")


def test_a_host_that_listens_at_all_its_addresses_is_reached_by_its_name() -> None:
    for host in ("0.0.0.0", "::"):
        found = advertised(CoordinatorConfig(host=host), 29400)
        assert found == HostPort(socket.gethostname(), 29400)


def test_of_a_cluster_it_is_reached_at_its_address_on_the_way_to_etcd() -> None:
    config = CoordinatorConfig(host="0.0.0.0", journal=parse_etcd_address("etcd://127.0.0.1"))
    assert advertised(config, 29400) == HostPort("127.0.0.1", 29400)


def test_what_is_advertised_counts_and_has_the_port_of_the_coordinator() -> None:
    config = CoordinatorConfig(host="0.0.0.0", port=29500, advertise="head2")
    assert advertised(config, 29500) == HostPort("head2", 29500)
    config = CoordinatorConfig(advertise="[fd00::2]:1")
    assert advertised(config, 29500) == HostPort("fd00::2", 1)
    assert advertised(CoordinatorConfig(host="::1"), 7) == HostPort("::1", 7)


def test_beside_an_operators_certificate_its_authority_is_asked_for() -> None:
    token = Token(TOKEN.role, TOKEN.token_id, TOKEN.secret)
    assert " --tls-ca ca.crt " in command(token=token)


@pytest.mark.parametrize("log", ["JOURNAL_STREAM", "KUBERNETES_SERVICE_HOST"])
def test_a_log_that_others_read_gets_the_file_and_not_the_token(
    log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(log, "8:12345")
    assert_file_alone()


def test_a_file_or_a_pipe_gets_the_file_and_not_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert_file_alone()


def assert_file_alone() -> None:
    assert f"--token-file {DIRECTORY / FILE} " in command()
    assert TOKEN.secret not in command()


def test_without_a_token_the_command_that_makes_one_is_shown() -> None:
    assert command(token=None) == "coordinator token create --role join"
