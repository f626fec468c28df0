"""The command line of ``agent``: modes, programs, run ids, files, and how it ends."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from drumbeat.agent import cli
from drumbeat.agent.errors import CoordinatorUnreachable, RunRefused
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.settings.run_ids import make_up_run_id
from drumbeat.model import ReplicaGroup
from tests.support.command_line import join, refused

PYTHON = (sys.executable, "-u")


def test_standalone_needs_nothing_but_a_script() -> None:
    config = join("--standalone")
    assert config == AgentConfig(
        run_id=config.run_id,
        is_run_id_made_up=True,
        program=Program("script", "train.py"),
        python=sys.executable,
    )
    assert re.fullmatch("train-[a-z2-9]{6}", config.run_id)
    assert join("--standalone").run_id != config.run_id


def test_files_of_a_run_are_made_ready(tmp_path: Path) -> None:
    config = join("--log-dir", "logs", "--event-log-file", "events")
    assert (config.log_dir, config.event_handler) == (str(tmp_path / "logs"), "jsonl")
    assert (tmp_path / "logs").is_dir()
    assert (tmp_path / "events").stat().st_mode & 0o777 == 0o600
    assert join("--event-log-file=e2", "--event_log_handler=null").event_handler == "null"
    assert not (tmp_path / "e2").exists()


@pytest.mark.parametrize(
    ("argv", "script"), [((), "nowhere.py"), (("--event-log-handler", "no"), "train.py")]
)
def test_a_refused_command_line_leaves_no_log_directory(
    argv: tuple[str, ...], script: str, tmp_path: Path
) -> None:
    refused("--log-dir", "logs", *argv, script=script)
    assert not (tmp_path / "logs").exists()


def test_an_event_log_that_cannot_be_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, why in (("no/such/e", "No such file"), (".", "Is a directory"), ("pipe", "")):
        said = refused("--event-log-file", path)
        assert f"{tmp_path / path} cannot be used: {why}" in said
        assert "--event-log-file" in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--restart-rule", "exit=42:fali"), "'exit=42:fali': unknown action 'fali'"),
        (("--restart-rule", "error=(:fail"), "missing ), unterminated subpattern"),
        (("--restart-rules", "rules"), "rules:2: '0' is no exit code or range from 1 to 255"),
        (("--restart-rules", "/no/such"), "--restart-rules: /no/such: No such file or directory"),
        (
            ("--restart-rules", "rules", "--restart-rule", "oom:fail"),
            "either --restart-rule or --restart-rules",
        ),
        (
            ("--health-check", "no-such-diag -r 1"),
            "--health-check: no-such-diag: there is no such program",
        ),
    ],
)
def test_what_an_option_names_is_looked_at_before_anything_is_started(
    options: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    (tmp_path / "rules").write_text("oom:fail\nexit=0:fail\n")
    assert problem in refused("--standalone", *options)


@pytest.mark.parametrize(
    ("options", "program", "command"),
    [
        # Options of the script that look like ours, and ``--``, are left alone.
        ((), ("train.py", "--role", "x", "--help", "--", "-m"), PYTHON),
        (("--",), ("train.py", "--no-such"), PYTHON),
        (("-m",), ("json.tool", "-x"), (*PYTHON, "-m")),
        (("--module",), ("json.tool", "-x"), (*PYTHON, "-m")),
        (("--no-python",), ("sh", "-c", "true"), ()),
        (("--no_python",), ("/bin/sh",), ()),
        (("--run-path", "--no-python"), ("train.py",), PYTHON),  # counts first, as in torchrun
    ],
)
def test_what_workers_run_is_what_follows_the_options(
    options: tuple[str, ...], program: tuple[str, ...], command: tuple[str, ...]
) -> None:
    assert join(*options, *program, script=None).command == (*command, *program)


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
    run_id = make_up_run_id(program)
    assert run_id.startswith(f"{name}-")
    assert join("--run-id", run_id).run_id == run_id
    assert make_up_run_id(program) != run_id


def test_a_run_of_one_machine_gets_a_name() -> None:
    assert join("--coordinator", "head").is_run_id_made_up
    assert not join("--coordinator", "head", "--run-id", "r").is_run_id_made_up


def test_the_run_id_that_a_worker_was_told_is_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRUMBEAT_RUN_ID", "outer")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "outer")
    monkeypatch.setenv("DRUMBEAT_ROUND", "0")
    assert join("--standalone").run_id != "outer"
    assert join("--standalone", "--run-id", "outer").run_id == "outer"
    monkeypatch.setenv("DRUMBEAT_RUN_ID", "inner")  # by the script, for its own agent
    assert join("--standalone").run_id == "inner"


@pytest.mark.parametrize("job", ["ft", "ft.3"])
def test_a_replica_group_is_a_run_of_its_own(job: str) -> None:
    config = join("--coordinator", "head", "--run-id", job, "--replica-group", "3/4")
    assert config.run_id == f"{job}.3"
    assert config.group == ReplicaGroup(job=job, index=3, count=4)


def test_of_two_modes_the_typed_one_counts_and_two_of_one_source_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exclude = "--coordinator and --standalone exclude each other"
    assert exclude in refused("--standalone", "--coordinator", "head")
    monkeypatch.setenv("DRUMBEAT_COORDINATOR", "head")
    assert join("--standalone").coordinator is None
    monkeypatch.setenv("DRUMBEAT_STANDALONE", "1")
    assert exclude in refused()
    monkeypatch.delenv("DRUMBEAT_COORDINATOR")
    assert join("--coordinator", "head").coordinator == "head:29400"


@pytest.mark.parametrize(
    ("argv", "script", "said"),
    [
        (("--nnodes", "2"), "train.py", "--coordinator is missing: several machines (--nnodes)"),
        (("--coordinator", "head", "--nnodes", "2"), "train.py", "--run-id is missing"),
        (("--coordinator", "head", "--replica-group", "0/4"), "train.py", "--run-id is missing"),
        (("--standalone", "--nnodes", "2"), "train.py", "--nnodes: '2:2' is given"),
        (("--event-log-handler", "jsonl"), "train.py", "--event-log-file: nothing is given"),
        (("--no-such",), "train.py", "--no-such"),
        (("--role",), None, "--role"),
        ((), None, "SCRIPT is missing"),
        (("--",), None, "SCRIPT is missing"),
        (("-m", "--no-python"), "sh", "--module and --no-python exclude"),
        (("-m",), "no_such", "cannot run no_such: there is no module named no_such"),
        ((), "nowhere.py", "cannot run nowhere.py: there is no such file"),
        ((), ".", "cannot run .: it is a directory"),
        (("--no-python",), "no-such-program", "no such program on PATH"),
        (("--log-dir", "train.py/x"), "train.py", "cannot be used"),
        (("--straggler-report=1",), "train.py", "FACTOR,STEPS as in 1.5,20: a factor from 1.01"),
    ],
)
def test_wrong_usage_is_named(argv: tuple[str, ...], script: str | None, said: str) -> None:
    assert said in refused(*argv, script=script)


def test_several_broken_rules_are_shown_at_once() -> None:
    lines = refused("--run-id", "/", "--role", "").splitlines()
    assert ["--run-id" in lines[0], "--role" in lines[1], "hint" in lines[2]] == [True] * 3


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ((), (0.0, 0)),
        (("--straggler-report",), (1.5, 20)),
        (("--straggler-rep", "2"), (2.0, 20)),
        (("--straggler-report", "3,5", "-r", "3"), (3.0, 5)),
        (("-r", "3", "--straggler-report"), (1.5, 20)),
        (("--straggler-report", "--max-restarts", "1"), (1.5, 20)),
        (("--straggler-report", "off"), (0.0, 0)),
    ],
)
def test_an_option_that_may_stand_alone_takes_no_script_for_its_value(
    options: tuple[str, ...], rule: tuple[float, int]
) -> None:
    config = join(*options, "train.py", "--straggler-report", "7", script=None)
    assert (config.straggler_rule, config.program.args) == (rule, ("--straggler-report", "7"))


@pytest.mark.parametrize("group", ["drumbeat.logs_specs", "torchrun.logs_specs"])
def test_logs_specs_are_found_by_name(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--logs-specs: 'mine' is given" in refused("--logs-specs", "mine")
    info = tmp_path / "own-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nmine = absent:Specs\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert join("--logs-specs", "mine").logs_specs == "mine"
    assert re.search("allowed is one of .*mine", refused("--logs-specs", "yours"))


def test_the_exit_code_is_the_drivers() -> None:
    assert cli.main(["join", "train.py"], run=lambda _: 1) == 1


@pytest.mark.parametrize(
    ("failure", "exit_code"),
    [
        (RunRefused("r", "it has ended"), 2),
        (CoordinatorUnreachable("head:1", 600.0, "connection refused"), 3),
    ],
)
def test_an_error_of_the_driver_is_shown_without_traceback(
    failure: Exception, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_config: AgentConfig) -> int:
        raise failure

    assert cli.main(["join", "train.py"], run=run) == exit_code
    shown = capsys.readouterr().err.splitlines()
    assert (shown[0], len(shown)) == (f"agent: error: {failure}", 2)


@pytest.mark.parametrize("argv", [["--help"], ["join", "--help"], ["--version"], ["join", "-h"]])
def test_help_and_version_run_nothing(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv, run=lambda _: pytest.fail("it ran")) == 0
    shown = capsys.readouterr().out
    assert shown
    if argv == ["join", "--help"]:
        sections = ("Run:", "Workers:", "Network:", "Waiting:", "Examples:", "Exit codes:")
        assert all(part in shown for part in (*sections, "DRUMBEAT_NPROC_PER_NODE"))
        assert not any(part in shown for part in ("rdzv-endpoint", "_per_"))


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
        (("-q",), "warning"),
        (("--quiet", "--log-level", "debug"), "warning"),
        (("--quiet", "--log-level", "error"), "error"),
    ],
)
def test_quiet_lowers_what_is_logged(options: tuple[str, ...], level: str) -> None:
    assert join(*options).log_level == level
