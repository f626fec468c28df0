"""The command line of ``agent``."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from drumbeat.agent.errors import CoordinatorUnreachable, RunRefused
from drumbeat.agent.settings import cli
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.settings.run_ids import make_up_run_id


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A directory with one script, no settings from outside, and logging as it was."""
    for name in list(os.environ):
        if name.startswith(("DRUMBEAT_", "PET_")):
            monkeypatch.delenv(name)
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    yield
    structlog.reset_defaults()


class Driver:
    """Stands for the driver: keeps what it was told, answers with an exit code."""

    def __init__(self, exit_code: int = 0) -> None:
        self.exit_code = exit_code
        self.configs: list[AgentConfig] = []

    def run(self, config: AgentConfig) -> int:
        self.configs.append(config)
        return self.exit_code


def join(*argv: str) -> AgentConfig:
    driver = Driver()
    assert cli.main(["join", *argv], run=driver.run) == 0
    (config,) = driver.configs
    return config


def refuse(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[str, str]:
    """The error line and the hint line of a refused command line."""
    driver = Driver()
    assert cli.main(["join", *argv], run=driver.run) == 2
    assert driver.configs == []
    captured = capsys.readouterr()
    assert captured.out == ""
    error, hint = captured.err.splitlines()
    assert error.startswith("agent: error: ")
    assert hint.startswith("agent: hint: ")
    return error, hint


def test_standalone_needs_nothing_but_a_script() -> None:
    config = join("--standalone", "train.py")
    assert config == AgentConfig(
        run_id=config.run_id,
        is_run_id_made_up=True,
        program=Program("script", "train.py"),
        python=sys.executable,
    )
    assert re.fullmatch("train-[a-z2-9]{6}", config.run_id)
    assert join("--standalone", "train.py").run_id != config.run_id


def test_every_option_reaches_the_configuration(tmp_path: Path) -> None:
    config = join(
        "--coordinator", "head:1234", "--run-id", "mt5", "--nnodes", "2:4",
        "--nproc_per_node=8", "--max-restarts", "3", "--role", "trainer",
        "--name", "left", "--local-addr", "10.0.0.7",
        "--master_addr", "10.0.0.1", "--master-port", "29500",
        "--join-timeout", "5m", "--last-call", "10", "--exit-barrier-timeout", "1h",
        "--coordinator-grace", "2m", "--shutdown-timeout", "500ms", "--log-dir", "logs",
        "--signals-to-handle", "SIGTERM, SIGUSR1,SIGTERM",
        "--log-format", "json", "--event-log-handler", "jsonl", "--event-log-file", "events",
        "train.py", "--epochs", "3",
    )  # fmt: skip
    assert config == AgentConfig(
        coordinator="head:1234",
        name="left",
        run_id="mt5",
        min_nodes=2,
        max_nodes=4,
        nproc_per_node=8,
        max_restarts=3,
        role="trainer",
        local_addr="10.0.0.7",
        master_addr="10.0.0.1",
        master_port=29500,
        join_timeout=300.0,
        last_call=10.0,
        exit_barrier_timeout=3600.0,
        coordinator_grace=120.0,
        shutdown_timeout=0.5,
        signals_to_handle=("SIGTERM", "SIGUSR1"),
        log_dir=str(tmp_path / "logs"),
        log_format="json",
        event_log_handler="jsonl",
        event_log_file=str(tmp_path / "events"),
        program=Program("script", "train.py", ("--epochs", "3")),
        python=sys.executable,
    )
    assert (tmp_path / "logs").is_dir()
    assert (tmp_path / "events").stat().st_mode & 0o777 == 0o600


def test_defaults_are_those_of_the_configuration() -> None:
    config = join("--coordinator", "head", "--run-id", "r", "train.py")
    assert config == AgentConfig(
        coordinator="head:29400",
        run_id="r",
        program=Program("script", "train.py"),
        python=sys.executable,
    )


def test_a_file_of_events_asks_for_the_handler_that_writes_it(tmp_path: Path) -> None:
    config = join("--standalone", "--event-log-file", "e.jsonl", "train.py")
    assert (config.event_handler, config.event_log_file) == (
        "jsonl",
        str(tmp_path / "e.jsonl"),
    )
    config = join("--standalone", "--event-log-file=e2", "--event_log_handler=null", "train.py")
    assert config.event_handler == "null"
    assert not (tmp_path / "e2").exists()


def test_an_unknown_event_handler_is_refused_with_those_there_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    error, hint = refuse(
        capsys, "--standalone", "--event-log-handler", "no", "--log-dir", "logs", "train.py"
    )
    assert "--event-log-handler: 'no' is given, allowed is one of null, console, jsonl" in error
    assert "drumbeat.event_handlers" in hint
    assert not (tmp_path / "logs").exists()


def test_an_event_log_that_cannot_be_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    error, _ = refuse(capsys, "--standalone", "--event-log-handler", "jsonl", "train.py")
    assert "--event-log-file: nothing is given" in error
    os.mkfifo(tmp_path / "pipe")
    for path, why in (("no/such/e", "No such file"), (".", "Is a directory"), ("pipe", "")):
        error, hint = refuse(capsys, "--standalone", "--event-log-file", path, "train.py")
        assert f"{tmp_path / path} cannot be used: {why}" in error
        assert "--event-log-file" in hint


def test_everything_after_the_script_is_its_own() -> None:
    """Options of the script that look like ours, and ``--``, are left alone."""
    argv = ["train.py", "--role", "x", "--standalone", "--help", "--", "-m", "--no-such"]
    assert join("--standalone", *argv).command == (sys.executable, "-u", *argv)
    assert join("--standalone", "--", *argv).command == (sys.executable, "-u", *argv)


def test_a_module_is_run_as_python_does() -> None:
    expected = (sys.executable, "-u", "-m", "json.tool", "-x")
    assert join("--standalone", "-m", "json.tool", "-x").command == expected
    assert join("--standalone", "--module", "json.tool", "-x").command == expected


def test_a_module_that_is_not_there_is_refused_before_any_round(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error, _ = refuse(capsys, "--standalone", "-m", "no_such_module")
    assert error == (
        "agent: error: cannot run no_such_module: there is no module named no_such_module"
    )


def test_a_program_is_run_as_it_is() -> None:
    assert join("--standalone", "--no-python", "sh", "-c", "true").command == ("sh", "-c", "true")
    assert join("--standalone", "--no_python", "/bin/sh").command == ("/bin/sh",)


@pytest.mark.parametrize("name", ["--run-id", "--run_id", "--rdzv-id", "--rdzv_id"])
def test_run_id_has_torchruns_name_too(name: str) -> None:
    assert join("--coordinator", "head", name, "r7", "--nnodes", "2", "train.py").run_id == "r7"


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("/data/me/train.py", "train"),
        ("trainer.main", "trainer-main"),
        ("main.<locals>.f", "main-locals-f"),
        ("é", "run"),
        ("x" * 200, "x" * 24),
    ],
)
def test_a_made_up_run_id_begins_with_the_name_of_the_program(program: str, name: str) -> None:
    found = make_up_run_id(program)
    assert found.startswith(f"{name}-")
    assert join("--run-id", found, "train.py").run_id == found
    assert make_up_run_id(program) != found


def test_a_run_of_one_machine_gets_a_name() -> None:
    assert join("--coordinator", "head", "train.py").is_run_id_made_up
    assert not join("--coordinator", "head", "--run-id", "r", "train.py").is_run_id_made_up


def test_environment_is_read_and_arguments_beat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRUMBEAT_COORDINATOR", "[::1]:7")
    monkeypatch.setenv("DRUMBEAT_RUN_ID", "from-environment")
    monkeypatch.setenv("DRUMBEAT_NNODES", "1:3")
    monkeypatch.setenv("DRUMBEAT_NPROC_PER_NODE", "2")
    monkeypatch.setenv("DRUMBEAT_MODULE", "true")
    config = join("--nproc-per-node", "5", "json.tool")
    assert (config.coordinator, config.run_id) == ("[::1]:7", "from-environment")
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (1, 3, 5)
    assert config.command[1:] == ("-u", "-m", "json.tool")


def test_the_run_id_that_a_worker_was_told_is_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRUMBEAT_RUN_ID", "outer")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "outer")
    monkeypatch.setenv("DRUMBEAT_ROUND", "0")
    assert join("--standalone", "train.py").run_id != "outer"
    assert join("--standalone", "--run-id", "outer", "train.py").run_id == "outer"
    monkeypatch.setenv("DRUMBEAT_RUN_ID", "inner")  # by the script, for its own agent
    assert join("--standalone", "train.py").run_id == "inner"


def test_a_typed_mode_beats_the_one_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRUMBEAT_COORDINATOR", "head")
    assert join("--standalone", "train.py").coordinator is None
    monkeypatch.delenv("DRUMBEAT_COORDINATOR")
    monkeypatch.setenv("DRUMBEAT_STANDALONE", "1")
    assert join("--coordinator", "head", "train.py").coordinator == "head:29400"


def test_two_modes_from_one_source_exclude_each_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error, _ = refuse(capsys, "--standalone", "--coordinator", "head", "train.py")
    assert "--coordinator and --standalone exclude each other" in error
    monkeypatch.setenv("DRUMBEAT_COORDINATOR", "head")
    monkeypatch.setenv("DRUMBEAT_STANDALONE", "1")
    assert "exclude each other" in refuse(capsys, "train.py")[0]


def test_several_machines_need_a_coordinator(capsys: pytest.CaptureFixture[str]) -> None:
    error, hint = refuse(capsys, "--nnodes", "2", "train.py")
    assert "--coordinator is missing: several machines (--nnodes) meet at a coordinator" in error
    assert "--coordinator HOST:PORT" in hint


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("--coordinator", "head", "--nnodes", "2", "train.py"), "--run-id is missing"),
        (("--coordinator", "head", "--run-id", "a b", "train.py"), "--run-id: 'a b' is given"),
        (("--coordinator", "head:x", "train.py"), "'head:x' is not an address"),
        (("--standalone", "--nnodes", "2", "train.py"), "--nnodes: '2:2' is given"),
        (("--standalone", "--nnodes", "2:1", "train.py"), "'2:1' is given"),
        (("--standalone", "--nproc-per-node", "0", "train.py"), "'0' is given"),
        (("--standalone", "--max-restarts", "-1", "train.py"), "'-1' is given"),
        (("--standalone", "--master-port", "65536", "train.py"), "'65536' is given"),
        (("--standalone", "--join-timeout", "0", "train.py"), "'0' is given, allowed is 0.1 to"),
        (("--standalone", "--last-call", "never", "train.py"), "'never' is not a duration"),
        (("--standalone", "--log-format", "xml", "train.py"), "'xml'"),
        (("--standalone", "--role", "", "train.py"), "--role: '' is given"),
        (("--standalone", "--name", "a b", "train.py"), "--name: 'a b' is given"),
        (
            ("--standalone", "--signals-to-handle", "SIGTERM,SIGKILL", "train.py"),
            "'SIGTERM,SIGKILL' is given, allowed is names separated by commas",
        ),
        (("--standalone", "--signals-to-handle", "", "train.py"), "'' is given, allowed is names"),
        (("--standalone", "--no-such", "train.py"), "--no-such"),
        (("--standalone", "--role"), "--role"),
        (("--standalone",), "SCRIPT is missing"),
        (("--standalone", "--"), "SCRIPT is missing"),
        (("--standalone", "-m", "--no-python", "sh"), "--module and --no-python exclude"),
        (("--standalone", "nowhere.py"), "cannot run nowhere.py: there is no such file"),
        (("--standalone", "."), "cannot run .: it is a directory"),
        (("--standalone", "--no-python", "no-such-program"), "no such program on PATH"),
        (("--standalone", "--log-dir", "train.py/x", "train.py"), "cannot be used"),
    ],
)
def test_wrong_usage_is_one_line_that_names_it_and_a_hint(
    argv: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert named in refuse(capsys, *argv)[0]


def test_several_broken_rules_are_shown_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["join", "--standalone", "--run-id", "/", "--role", "", "train.py"]
    assert cli.main(argv, run=Driver().run) == 2
    lines = capsys.readouterr().err.splitlines()
    assert ["--run-id" in lines[0], "--role" in lines[1], "hint" in lines[2]] == [True] * 3


def test_a_refused_command_line_leaves_no_log_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse(capsys, "--standalone", "--log-dir", "logs", "nowhere.py")
    assert not (tmp_path / "logs").exists()


def test_gpus_follow_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty CUDA_VISIBLE_DEVICES hides all GPUs, whatever this host has."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cores = len(os.sched_getaffinity(0))
    assert join("--standalone", "--nproc-per-node", "auto", "train.py").nproc_per_node == cores
    assert join("--standalone", "--nproc-per-node", "cpu", "train.py").nproc_per_node == cores
    error, _ = refuse(capsys, "--standalone", "--nproc-per-node", "gpu", "train.py")
    assert "sees no GPU" in error


def test_exit_code_is_the_drivers() -> None:
    assert cli.main(["join", "--standalone", "train.py"], run=Driver(exit_code=1).run) == 1


@pytest.mark.parametrize(
    ("failure", "exit_code", "lines"),
    [
        (RunRefused("r", "it has ended"), 2, 2),
        (CoordinatorUnreachable("head:1", 600.0, "connection refused"), 3, 2),
    ],
)
def test_an_error_of_the_driver_is_shown_without_traceback(
    failure: Exception, exit_code: int, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_config: AgentConfig) -> int:
        raise failure

    assert cli.main(["join", "--standalone", "train.py"], run=run) == exit_code
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == f"agent: error: {failure}"
    assert len(shown) == lines


@pytest.mark.parametrize("argv", [["--help"], ["join", "--help"], ["--version"], ["join", "-h"]])
def test_help_and_version_run_nothing(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    driver = Driver()
    assert cli.main(argv, run=driver.run) == 0
    assert driver.configs == []
    assert capsys.readouterr().out


def test_help_has_sections_variables_and_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["join", "--help"], run=Driver().run)
    shown = capsys.readouterr().out
    for part in ("Run:", "Workers:", "Network:", "Waiting:", "Examples:", "Exit codes:"):
        assert part in shown
    assert "DRUMBEAT_NPROC_PER_NODE" in shown
    assert "rdzv-endpoint" not in shown
    assert "_per_" not in shown


def test_the_entry_point_imports_nothing_heavy() -> None:
    """Help must not wait for grpc."""
    code = (
        "import sys, drumbeat.agent.__main__ as entry\n"
        "assert entry.main(['join', '--help']) == 0\n"
        "heavy = {'grpc', 'google.protobuf', 'structlog', 'asyncio', 'torch', 'tempfile', 'json',"
        " 'drumbeat.agent.telemetry', 'drumbeat.agent.workers', 'drumbeat.agent.watchdog'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    root = Path(cli.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=60, check=False, cwd=root,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("options", "level"),
    [
        ((), "info"),
        (("--log-level", "debug"), "debug"),
        (("-q",), "warning"),
        (("--quiet", "--log-level", "debug"), "warning"),
        (("--quiet", "--log-level", "error"), "error"),
    ],
)
def test_quiet_lowers_what_is_logged(options: tuple[str, ...], level: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    seen: list[AgentConfig] = []
    argv = ["join", "--standalone", *options, str(script)]
    assert cli.main(argv, run=lambda config: seen.append(config) or 0) == 0  # type: ignore[func-returns-value]
    assert [config.log_level for config in seen] == [level]
