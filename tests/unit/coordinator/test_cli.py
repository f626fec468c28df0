"""The command line of ``coordinator``."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from coordinator import cli
from coordinator.access.certificate_roles import parse_roles
from coordinator.config import CoordinatorConfig, ResetLimits
from coordinator.errors import CallFailed, CommandFailed, PortInUse


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No settings from outside, and logging as it was."""
    for name in list(os.environ):
        if name.startswith("DRUMBEAT_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    yield
    structlog.reset_defaults()


class Server:
    """Stands for the server and its client: keeps what it was told, and answers."""

    def __init__(self, exit_code: int = 0, error: CommandFailed | None = None) -> None:
        self.exit_code, self.error = exit_code, error
        self.configs: list[CoordinatorConfig] = []
        self.resets: list[ResetLimits] = []

    def run(self, config: CoordinatorConfig) -> int:
        self.configs.append(config)
        if self.error is not None:
            raise self.error
        return self.exit_code

    def reset(self, asked: ResetLimits) -> int:
        self.resets.append(asked)
        if self.error is not None:
            raise self.error
        return 3

    def main(self, *argv: str) -> int:
        """Run the command, with this object in the place of what it calls."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("coordinator.shell.server.run", self.run)
            patch.setattr("coordinator.cli.reset_limits", self.reset)
            return cli.main(argv)


def serve(*argv: str) -> CoordinatorConfig:
    server = Server()
    assert server.main("serve", *argv) == 0
    (config,) = server.configs
    return config


def refuse(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    server = Server()
    assert server.main("serve", *argv) == 2
    assert server.configs == []
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_defaults_are_those_of_the_configuration(tmp_path: Path) -> None:
    state_dir = f"{tmp_path}/.local/state/drumbeat/coordinator-29400"
    assert serve() == CoordinatorConfig(state_dir=state_dir)


def test_every_option_reaches_the_configuration(tmp_path: Path) -> None:
    config = serve(
        "--host", "[::]", "--insecure", "--port", "1234", "--state_dir", str(tmp_path),
        "--heartbeat-interval", "500ms", "--lease", "3s", "--log-format", "json",
    )  # fmt: skip
    assert config == CoordinatorConfig(
        host="::",
        port=1234,
        state_dir=str(tmp_path),
        heartbeat_interval=0.5,
        lease=3.0,
        log_format="json",
        insecure=True,
    )


def test_the_options_of_a_pki_reach_the_configuration() -> None:
    config = serve(
        "--tls-cert", "c", "--tls-key", "k", "--tls-client-ca", "ca",
        "--tls-roles", "spiffe://td/ops/*=admin, *.train=join:exp1",
    )  # fmt: skip
    assert (config.tls_cert, config.tls_key, config.tls_client_ca) == ("c", "k", "ca")
    assert config.tls_roles == parse_roles("spiffe://td/ops/*=admin,*.train=join:exp1")


def test_environment_is_read_and_arguments_beat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRUMBEAT_HOST", "::1")
    monkeypatch.setenv("DRUMBEAT_PORT", "1234")
    monkeypatch.setenv("DRUMBEAT_LEASE", "9s")
    config = serve("--port", "4321")
    assert (config.host, config.port, config.lease) == ("::1", 4321, 9.0)


def test_state_home_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert serve("--port", "1").state_dir == "/state/drumbeat/coordinator-1"


def test_port_0_keeps_no_state_unless_told(tmp_path: Path) -> None:
    assert serve("--port", "0").state_dir is None
    assert serve("--port", "0", "--state-dir", str(tmp_path)).state_dir == str(tmp_path)


def test_a_relative_state_directory_is_made_absolute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert serve("--state-dir", "state").state_dir == str(tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_part_of_a_pki_is_refused_with_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    error, hint = refuse(capsys, "--tls-cert", "c.pem")
    assert error.startswith("coordinator: error: --tls-cert: 'c.pem' is given")
    assert "--tls-key" in error
    assert hint == "coordinator: hint: try 'coordinator serve --help'"


@pytest.mark.parametrize("given", ["admins", "*=root", "*=admin:exp1", ""])
def test_rules_of_roles_that_are_none_are_refused_with_what_is_allowed(
    capsys: pytest.CaptureFixture[str], given: str
) -> None:
    refused = "\n".join(refuse(capsys, "--tls-roles", given))
    assert "--tls-roles" in refused
    assert "join" in refused


def test_all_broken_rules_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    key, lease, _hint = refuse(capsys, "--tls-key", "k", "--lease", "2s")
    assert "--tls-key" in key
    assert "--lease" in lease


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("--port", "65536"), "--port"),
        (("--lease", "soon"), "--lease"),
        (("--heartbeat-interval", "-1s"), "--heartbeat-interval"),
        (("--log-format", "xml"), "--log-format"),
        (("--nope",), "--nope"),
        (("extra",), "extra"),
    ],
)
def test_wrong_usage_is_one_line_and_a_hint(
    argv: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error, hint = refuse(capsys, *argv)
    assert named in error
    assert "coordinator serve --help" in hint


def test_exit_code_is_the_servers() -> None:
    assert Server(exit_code=1).main("serve") == 1


def test_a_startup_error_is_shown_without_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(error=PortInUse("127.0.0.1", 29400, "Address already in use"))
    assert server.main("serve") == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error == (
        "coordinator: error: cannot listen on port 29400 of 127.0.0.1: Address already in use"
    )
    assert "--port" in hint


@pytest.mark.parametrize("argv", [["--help"], ["serve", "--help"], ["--version"], ["serve", "-h"]])
def test_help_and_version_serve_nothing(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server()
    assert server.main(*argv) == 0
    assert server.configs == []
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "address"),
    [
        ((), "127.0.0.1:29400"),
        (("--coordinator", "head"), "head:29400"),
        (("--coordinator", "[::1]:7"), "[::1]:7"),
    ],
)
def test_limits_are_reset_where_the_coordinator_is(
    argv: tuple[str, ...], address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server()
    line = ["reset-limits", "--run-id", "mt5", *argv]
    assert server.main(*line) == 0
    assert server.resets == [ResetLimits(run_id="mt5", coordinator=address)]
    assert capsys.readouterr().out == "coordinator: run mt5: 3 limits forgotten\n"


@pytest.mark.parametrize("argv", [(), ("--run-id", "r", "--coordinator", "head:x")])
def test_a_reset_without_a_run_or_with_a_wrong_address_is_refused(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server()
    assert server.main("reset-limits", *argv) == 2
    assert server.resets == []
    assert "coordinator reset-limits --help" in capsys.readouterr().err


def test_a_reset_that_fails_says_why_and_ends_with_its_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = Server(error=CallFailed("there is no run 'r'", 2, "look"))
    assert server.main("reset-limits", "--run-id", "r") == 2
    assert capsys.readouterr().err.splitlines() == [
        "coordinator: error: there is no run 'r'",
        "coordinator: hint: look",
    ]


def test_the_entry_point_imports_nothing_heavy() -> None:
    """Help must not wait for grpc."""
    code = (
        "import sys, coordinator.__main__ as entry\n"
        "assert entry.main(['serve', '--help']) == 0\n"
        "heavy = {'grpc', 'google.protobuf', 'structlog', 'asyncio', 'sqlite3'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
