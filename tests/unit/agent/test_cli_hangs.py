"""The options that say when a worker hangs."""

from __future__ import annotations

import pytest

from drumbeat.agent.settings import cli
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.watchdog.core.model import AUTO, REPORT, WatchdogPolicy


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("here")
    (folder / "train.py").touch()
    monkeypatch.chdir(folder)


def join(*arguments: str) -> WatchdogPolicy | int:
    got: list[AgentConfig] = []

    def run(config: AgentConfig) -> int:
        got.append(config)
        return 0

    code = cli.main(["join", "--standalone", *arguments, "train.py"], run=run)
    return got[0].watchdog if got else code


def test_without_options_the_policy_is_the_default() -> None:
    assert join() == WatchdogPolicy()


def test_every_option_reaches_the_policy() -> None:
    assert join(
        "--startup-timeout", "2m", "--runtime_timeout=30", "--progress-timeout", "1.5m",
        "--exit-timeout", "500ms", "--hang-grace", "0",
    ) == WatchdogPolicy(
        startup_timeout_s=120.0,
        runtime_timeout_s=30.0,
        progress_timeout_s=90.0,
        exit_timeout_s=0.5,
        kill_grace_s=0.0,
    )  # fmt: skip


@pytest.mark.parametrize("word", ["none", "NONE", "0", "off"])
def test_limits_can_be_switched_off(word: str) -> None:
    assert join(
        f"--startup-timeout={word}",
        f"--runtime-timeout={word}",
        f"--progress-timeout={word}",
        f"--exit-timeout={word}",
    ) == WatchdogPolicy(runtime_timeout_s=None, progress_timeout_s=None, exit_timeout_s=None)


def test_an_interpreter_that_does_not_end_is_only_reported_by_default() -> None:
    assert join("--exit-timeout=report") == join() == WatchdogPolicy(exit_timeout_s=REPORT)


def test_progress_can_be_left_to_be_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRUMBEAT_PROGRESS_TIMEOUT", "auto")
    assert join() == WatchdogPolicy(progress_timeout_s=AUTO)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--runtime-timeout=auto", "also allowed: 0, none."),
        ("--progress-timeout=1x", "also allowed: 0, none, auto or report."),
        ("--exit-timeout=-1", "'-1' is"),
        ("--exit-timeout=auto", "also allowed: 0, none or report."),
        ("--startup-timeout=1ms", "'1ms' is given"),
        ("--startup-timeout=31h31h", "is not a duration"),
        ("--hang-grace=none", "is not a duration"),
    ],
)
def test_what_cannot_be_is_refused(
    argument: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert join(argument) == 2
    assert said in capsys.readouterr().err


def test_the_rules_hold_without_a_command_line() -> None:
    config = AgentConfig(
        run_id="r",
        program=Program("program", "x"),
        runtime_timeout=0.05,
        progress_timeout=1e9,
        hang_grace=-1.0,
    )
    fields = {violation.field for violation in config.validate()}
    assert fields == {"runtime_timeout", "progress_timeout", "hang_grace"}


def rule_of(*arguments: str) -> object:
    got: list[AgentConfig] = []

    def run(config: AgentConfig) -> int:
        got.append(config)
        return 0

    code = cli.main(["join", "--standalone", *arguments], run=run)
    return (got[0].straggler_rule, got[0].program.args) if got else code


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ((), (0.0, 0)),
        (("--straggler-report",), (1.5, 20)),
        (("--straggler-rep", "2"), (2.0, 20)),
        (("--straggler_report=1.2,100",), (1.2, 100)),
        (("--straggler-report", "3,5", "-r", "3"), (3.0, 5)),
        (("-r", "3", "--straggler-report"), (1.5, 20)),
        (("--straggler-report", "--max-restarts", "1"), (1.5, 20)),
        (("--straggler-report", "off"), (0.0, 0)),
    ],
)
def test_stragglers_are_reported_with_a_rule_or_without(
    given: tuple[str, ...], rule: tuple[float, int]
) -> None:
    """The script is no value of it, and what comes after the script is the script's."""
    assert rule_of(*given, "train.py", "--straggler-report", "7") == (
        rule,
        ("--straggler-report", "7"),
    )


@pytest.mark.parametrize("given", ["1", "0.5", "1.5,0", "fast", "1.5,20,3", "101"])
def test_an_impossible_rule_is_named(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rule_of(f"--straggler-report={given}", "train.py") == 2
    told = capsys.readouterr().err
    assert "'--straggler-report'" in told
    assert "FACTOR,STEPS as in 1.5,20: a factor from 1.01 to 100" in told


def test_the_environment_can_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRUMBEAT_STRAGGLER_REPORT", "on")
    assert rule_of("train.py") == ((1.5, 20), ())
