"""The command line of ``coordinator``."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from drumbeat.access.token import Role, Token
from drumbeat.coordinator.api.operations import VERBS, Verb
from drumbeat.coordinator.command import cli
from drumbeat.coordinator.command.looking.verbs import LOOKING
from drumbeat.coordinator.command.request import Request, request
from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.errors import CallFailed, CommandFailed, MissingExtra, PortInUse
from drumbeat.coordinator.serving import run as serving


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
        self.asked: list[Request] = []

    def run(self, config: CoordinatorConfig) -> int:
        self.configs.append(config)
        if self.error is not None:
            raise self.error
        return self.exit_code

    def perform(self, asked: Request) -> str:
        self.asked.append(asked)
        if self.error is not None:
            raise self.error
        return "done"

    def main(self, *argv: str) -> int:
        """Run the command, with this object in the place of what it calls."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("drumbeat.coordinator.serving.run.run", self.run)
            patch.setattr("drumbeat.coordinator.command.answers.perform", self.perform)
            patch.setattr("drumbeat.coordinator.command.looking.verbs.show", self.perform)
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


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("--tls-cert", "c.pem"), ("--tls-cert: 'c.pem' is given", "--tls-key")),
        *((("--tls-roles", roles), ("--tls-roles", "join")) for roles in ("admins", "*=root", "")),
        (("--tls-roles", "*=admin:exp1"), ("--tls-roles", "join")),
        (("--tls-key", "k", "--lease", "2s"), ("--tls-key", "--lease")),
        (("--port", "65536"), ("--port",)),
        (("--lease", "soon"), ("--lease",)),
        (("--heartbeat-interval", "-1s"), ("--heartbeat-interval",)),
        (("--log-format", "xml"), ("--log-format",)),
        (("--nope",), ("--nope",)),
        (("extra",), ("extra",)),
    ],
)
def test_wrong_usage_names_all_that_is_wrong_and_gives_a_hint(
    argv: tuple[str, ...], named: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    *problems, hint = refuse(capsys, *argv)
    assert [name for name in named if name not in "".join(problems)] == []
    assert all(problem.startswith("coordinator: error: ") for problem in problems)
    assert hint == "coordinator: hint: try 'coordinator serve --help'"


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


TEXTS = {"role": "view", "run_id": "mt5", "name": "gpu7", "token_id": "k3v9qr2m", "text": "why"}


def line_of(verb: Verb) -> list[str]:
    """Return the shortest line of a verb."""
    required = [name for name, option in verb.options.items() if option.is_required]
    arguments = [] if verb.is_optional else [TEXTS[name] for name in verb.arguments]
    options = [word for name in required for word in (verb.settings[name].option, TEXTS[name])]
    return [*verb.name.split(), *arguments, *options]


def asked(*line: str) -> Request:
    server = Server()
    assert server.main(*line) == 0
    return server.asked[0]


@pytest.mark.parametrize("name", VERBS)
def test_each_verb_asks_with_its_defaults_and_finds_address_and_token_as_agents_do(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verb = VERBS[name][1]
    options = [key for key, option in verb.options.items() if option.is_required]
    given = {} if verb.is_optional else {key: TEXTS[key] for key in (*verb.arguments, *options)}
    assert vars(asked(*line_of(verb))) == vars(request(name, **given))
    monkeypatch.setenv("DRUMBEAT_COORDINATOR", "head:7")
    monkeypatch.setenv("DRUMBEAT_TOKEN_FILE", "/of/operator")
    assert asked(*line_of(verb)).coordinator == "head:7"
    assert asked(*line_of(verb)).token_file == "/of/operator"


@pytest.mark.parametrize("name", sorted(VERBS.keys() - {"evidence"}))
def test_each_verb_that_shows_something_writes_json_if_asked(name: str) -> None:
    assert asked(*line_of(VERBS[name][1]), "-o", "json").output == "json"


def test_the_output_of_evidence_is_a_file() -> None:
    found = asked("evidence", "mt5", "-o", "mt5.tgz", "--force")
    assert found.values == {"run_id": "mt5", "file": "mt5.tgz", "force": True}
    assert found.output == "text"
    server = Server()
    assert server.main("evidence", "mt5", "-o", "json") == 2
    assert server.asked == []


@pytest.mark.parametrize(
    ("argv", "address"),
    [
        ((), "127.0.0.1:29400"),
        (("--coordinator", "head"), "head:29400"),
        (("--coordinator", "[::1]:7"), "[::1]:7"),
    ],
)
def test_operators_ask_where_the_coordinator_is(argv: tuple[str, ...], address: str) -> None:
    found = asked("drains", *argv)
    assert (found.coordinator, found.use_proxy) == (address, False)


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("token create --role join --ttl 12h", {"role": "join", "run_id": None, "ttl": 43200.0}),
        ("token create --role admin --ttl 30d", {"role": "admin", "run_id": None, "ttl": 2592e3}),
        ("stop r --grace 2m", {"run_id": "r", "reason": None, "grace": 120.0}),
        ("stacks r --rank 0,8-10", {"run_id": "r", "rank": (0, 8, 9, 10), "signal": False}),
        ("events r -f --since 1h", {"run_id": "r", "follow": True, "since": 3600.0}),
    ],
)
def test_options_become_values_of_the_request(line: str, values: dict[str, object]) -> None:
    assert asked(*line.split()).values == values


def test_the_verbs_that_show_runs_have_a_function_each() -> None:
    looking = [name for name in VERBS if request(name).is_looking]
    assert sorted(looking) == sorted(LOOKING)


@pytest.mark.parametrize("name", [*VERBS, "", "token", "authority"])
def test_every_command_has_help_with_examples_and_exit_codes(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server()
    assert server.main(*name.split(), "--help") == 0
    shown = capsys.readouterr().out
    assert f"  coordinator {name}" in shown[shown.index("Examples:") :]
    assert "  3  the coordinator could not be reached" in shown[shown.index("Exit codes:") :]
    assert name not in VERBS or "--token-file" in shown
    assert server.asked == []


def test_operators_say_who_they_are_with_the_settings_of_access() -> None:
    token = Token(Role.ADMIN, "k3v9qr2m", "s" * 22)
    found = asked("token", "list", "--token", token.text())
    assert found.token == token
    assert token.secret not in f"{found!r} {found}"


def test_variables_for_agents_say_nothing_of_a_new_token(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("ROLE", "join"), ("RUN_ID", "exp1"), ("TTL", "1h")):
        monkeypatch.setenv(f"DRUMBEAT_{name}", value)
    server = Server()
    assert server.main("token", "create") == 2
    assert "Missing option '--role'." in capsys.readouterr().err
    found = asked("token", "create", "--role", "join")
    assert found.values == {"role": "join", "run_id": None, "ttl": None}


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("reset-limits", "--run-id"),
        ("reset-limits --run-id r --coordinator head:x", "--coordinator"),
        ("token", "Missing command"),
        ("token create", "--role"),
        ("token create --role boss", "one of join, view, admin"),
        ("token create --role join --ttl 0", "1 second to 3650 days, e.g. 90m, 12h, 30d"),
        ("token create --role join --ttl 3651d", "1 second to 3650 days"),
        ("token create --role join --ttl soon", "--ttl"),
        ("token create --role join extra", "extra"),
        ("token revoke", "Missing argument 'ID'"),
        ("token list --token drumbeat1.x", "the token is cut short"),
        ("authority", "Missing command"),
        ("authority replace", "replace"),
    ],
)
def test_wrong_usage_of_operators_commands_is_one_line_and_a_hint(
    line: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server()
    assert server.main(*line.split()) == 2
    assert server.asked == []
    error, hint = capsys.readouterr().err.splitlines()
    assert named in error
    command = " ".join(line.split()[: 1 if line.startswith("reset") else 2])
    assert hint.startswith(f"coordinator: hint: try 'coordinator {command.split()[0]}")
    assert hint.endswith("--help'")


def test_a_reset_that_fails_says_why_and_ends_with_its_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = Server(error=CallFailed("there is no run 'r'", 2, "look"))
    assert server.main("reset-limits", "--run-id", "r") == 2
    assert capsys.readouterr().err.splitlines() == [
        "coordinator: error: there is no run 'r'",
        "coordinator: hint: look",
    ]


@pytest.mark.slow
def test_a_coordinator_without_a_page_loads_nothing_of_it() -> None:
    code = (
        "import sys, drumbeat.coordinator.serving.run\n"
        "extra = {'aiohttp', 'prometheus_client', 'opentelemetry',"
        " 'drumbeat.coordinator.web'}\n"
        "assert not extra & set(sys.modules), extra & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_page_without_its_packages_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra) as error:
        serving.run(CoordinatorConfig(http_port=0))
    assert "aiohttp" in str(error.value)
    assert error.value.hint == "pip install 'drumbeat[page]'"


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
