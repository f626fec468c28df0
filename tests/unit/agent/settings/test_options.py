"""Every setting of an agent, from its declaration: options, variables, programs, refusals."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from drumbeat.access.token import Role, Token
from drumbeat.agent.cli import SETTINGS
from drumbeat.agent.errors import InvalidConfiguration
from drumbeat.agent.multiprocessing import Std
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.settings.kinds import SIGNALS_ALLOWED
from drumbeat.agent.settings.launch_config import LaunchConfig
from drumbeat.command.settings import FLAG, settings_of
from drumbeat.text.violation import Violation
from tests.support.command_line import join, refused

TOKEN = Token(Role.JOIN, "abcdefgh", "s" * 22)
TO_HEAD = {"coordinator": "head:1"}
OF_JOB = TO_HEAD | {"run_id": "ft"}
METRICS = {"metrics_port": "127.0.0.1:9"}
ABSOLUTE = {"event_log_file", "log_dir", "preload_script"}  # on the command line


@dataclass(frozen=True)
class Case:
    """One setting: a text and its value, further values, and what is refused of both kinds."""

    text: str
    value: Any
    more: dict[str, Any] = field(
        default_factory=dict
    )  # values that a program may give, with what becomes of them
    bad: tuple[str, ...] = ()
    wrong: tuple[Any, ...] = ()
    beside: dict[str, str] = field(default_factory=dict)  # settings without which it is none


def flag(**beside: str) -> Case:
    return Case("", True, wrong=(1, "yes", None), beside=beside)


def file(name: str, **beside: str) -> Case:
    return Case(name, name, wrong=("", 3), beside=beside)


def seconds(text: str, value: float, *wrong: float) -> Case:
    """Return a duration; all share the ends of what is allowed, but for the lower one."""
    bad = ("soon", "-1", "31d")
    return Case(text, value, bad=bad, wrong=(*wrong, "5m", True, float("nan"), 2_592_001.0))


def streams(text: str) -> Case:
    wrong = ("4", {0: "x"}, {-1: Std.OUT}, None)
    more = {
        "all": (Std.ALL, "3"),
        "by rank": ({0: Std.OUT, 1: Std.ERR}, "0:1,1:2"),
        "no": ({}, "0"),
    }
    return Case(text, text, more, ("4", "x", "0:4", "0:1,", "0:1,0:2"), wrong)


def limit(text: str, value: float, *words: str, wrong: tuple[Any, ...] = ()) -> Case:
    more = {"none": (None, None), "0": (0, None)} | {word: (word, word) for word in words}
    others = sorted({"auto", "report", "often"} - set(words))
    return Case(text, value, more, ("1ms", "-1", *others), (0.01, False, *others, *wrong))


def filters() -> Case:
    wrong = ("x", [1])
    return Case("a,,b,c", ("a,b", "c"), {"list": (["nan"], ("nan",))}, wrong=wrong)


CASES = {
    "coordinator": Case(
        "[::1]:7,head",
        "[::1]:7,head:29400",
        bad=("head:x", "a,,b", ""),
        wrong=("", "head:0", 3),
    ),
    "use_proxy": flag(),
    "run_id": Case(
        "Az09._-", "Az09._-", bad=("a b", "/", "."), wrong=("a/b", "a\n", "ä", "x" * 129)
    ),
    "replica_group": Case(
        "0/4",
        (0, 4),
        {"list": ([3, 4], (3, 4)), "none": (None, None)},
        ("4/4", "0/0", "x", "1", "-1/4", "0/1001", "1/2/3"),
        ((4, 4), (0, 0), (0, 1001), "0/4", (1,), 3, (True, 2)),
        OF_JOB,
    ),
    "min_groups": Case(
        "4", 4, {}, ("0", "x"), (0, "1", True, 1001), OF_JOB | {"replica_group": "0/4"}
    ),
    "name": Case("left", "left", bad=("a b",), wrong=("a b", "x" * 254)),
    "labels": Case("rack=b7, zone=a", ("rack=b7", "zone=a"), bad=("x", "a=1,a=2"), wrong=("a=1",)),
    "rank_order": Case(
        "rack,zone",
        ("rack", "zone"),
        {"none": ((), ()), "slurm": (["slurm"], ("slurm",))},
        ("rack,rack", "a b", ""),
        ("rack", ("a b",), None),
        {"labels": "zone=a,rack=b7"},
    ),
    "block_label": Case(
        "rack", "rack", {}, ("a b", ""), ("a b", 3), {"labels": "rack=b7", "block_size": "1"}
    ),
    "block_size": Case(
        "1", 1, {}, ("-1", "x"), (-1, "1", True), {"labels": "rack=b7", "block_label": "rack"}
    ),
    "preflight": Case("true -x", "true -x", bad=("a\tb",), wrong=("", "a\n", "x" * 257)),
    "preflight_timeout": seconds("2m", 120.0, 0.0),
    "min_nodes": Case("1:1", 1, bad=("2:1", "0"), wrong=(0, "1", 1.0)),
    "max_nodes": Case("1", 1, bad=("1:", "1000001"), wrong=(0, 1_000_001)),
    "max_restarts": Case("3", 3, bad=("-1", "x", "1.5"), wrong=(-1, True, 1_000_001)),
    "restart_delay_max": seconds("5m", 300.0, -1.0),
    "restart_window": seconds("2h", 7200.0, 0.0),
    "no_progress_limit": Case("3", 3, bad=("-1", "x"), wrong=(-1, True)),
    "restart_rule": Case(
        "exit=42,50-59:fail",
        ("exit=42,50-59:fail",),
        {"several": (["oom:fail", "hang:exclude"], ("oom:fail", "hang:exclude"))},
        ("exit=42", "exit=x:fail", "error=(:fail", "signal=SIGFOO:fail", "oom:stop"),
        ("oom:fail", ("oom",), (b"oom:fail",), ("oom:fail",) * 65),
    ),
    "restart_rules": file("train.py"),
    "exclude_after": Case("3", 3, bad=("-1", "101"), wrong=(-1, True)),
    "exclude_window": seconds("2h", 7200.0, 0.0),
    "exclude_for": seconds("2h", 7200.0, 0.0),
    "host_identity": Case("rack", "rack", {}, ("a b", ""), ("a b", 3), {"labels": "rack=b7"}),
    "free_restarts_max": Case("0", 0, bad=("-1",), wrong=(-1, True)),
    "nproc_per_node": Case("4096", 4096, bad=("0", "4097", "2x"), wrong=(0, 4097, "2", "auto")),
    "role": Case("parameter server", "parameter server", bad=("",), wrong=("", "a\n", "x" * 129)),
    "virtual_local_rank": flag(),
    "numa_binding": Case("core-complex", "core-complex", bad=("nearby",), wrong=("x",)),
    "gpu_memory_wait": seconds("2m", 120.0, -1.0),
    "shutdown_timeout": seconds("500ms", 0.5, -1.0),
    "preload": Case("json.tool, this", ("json.tool", "this"), bad=("a b", "a..b"), wrong=("json",)),
    "preload_script": file("train.py"),
    "preload_refresh": flag(),
    "preload_timeout": seconds("1m", 60.0, 0.0),
    "no_observer": flag(),
    "startup_timeout": limit("2m", 120.0),
    "progress_timeout": limit("1.5m", 90.0, "auto", "report", wrong=(1e9,)),
    "collective_timeout": limit("10m", 600.0, "report"),
    "runtime_timeout": limit("30", 30.0),
    "exit_timeout": limit("500ms", 0.5, "report"),
    "hang_grace": seconds("0", 0.0, -1.0),
    "hang_pattern": Case(
        r"a=b \d+=10m",
        (r"a=b \d+=10m",),
        {"none": ((), ()), "several": (["x=1s", "y=2"], ("x=1s", "y=2"))},
        ("x", "x=", "=10m", "(=10m", "x=31d", "x=0"),
        ("x=1s", ("x",), (b"x=1s",), None, ("x=1s",) * 17),
    ),
    "health_check": Case(
        "sleep 0",
        ("sleep 0",),
        {"several": (["true", "sh -c 'exit 1'"], ("true", "sh -c 'exit 1'"))},
        ("a\x07b",),
        ("true", ("sh '",), ("x" * 4097,), (1,), ("true",) * 17),
    ),
    "health_check_timeout": Case("1m", 60.0, {}, ("0", "x"), ("x", -1)),
    "health_checks": Case(
        "disk,memory,clock",
        ("disk", "memory", "clock"),
        {"none": (["none"], ("none",))},
        ("", "disk,none", "clocks"),
        ("disk", ("x",), (), 1),
    ),
    "health_path": Case(
        "/ckpt=5GB",
        ("/ckpt=5GB",),
        {"several": (["/a", "/b=1TB"], ("/a", "/b=1TB"))},
        ("",),
        ("/a", (1,), ("/a",) * 17),
    ),
    "fatal_pattern": Case(
        "NCCL error|CUDA error",
        ("NCCL error|CUDA error",),
        {"several": (["x", "y"], ("x", "y"))},
        ("(", "a*", "x" * 257, "a\tb"),
        ("x", ("x", "("), (1,)),
    ),
    "straggler_report": Case(
        "1.2,100",
        (1.2, 100),
        {"on": (True, (1.5, 20)), "off": (False, None), "factor": (2, (2.0, 20))},
        ("1", "0.5", "1.5,0", "fast", "1.5,20,3", "101"),
        (1.0, 101, (2.0, 0), (2.0, 20, 3), "2"),
    ),
    "log_dir": file("logs"),
    "redirects": streams("0:1,1:2"),
    "tee": streams("3"),
    "local_ranks_filter": Case("0, 2", {0, 2}, {"all": (set(), None)}, ("0-2",), ({"0"}, "0")),
    "log_line_prefix_template": Case("${rank}>", "${rank}>", wrong=(1,)),
    "duplicate_stdout_filters": filters(),
    "duplicate_stderr_filters": filters(),
    "logs_specs": Case("mine", "mine", bad=("yours",), wrong=(5,)),
    "stderr_capture": Case("off", False, {"on": (True, True)}, ("maybe", "1"), ("off", 0)),
    "stdout_capture": Case("off", False, {"on": (True, True)}, ("maybe", "1"), ("off", 0)),
    "preemption_signal": Case("SIGTERM", "SIGTERM", bad=("SIGKILL", "15"), wrong=("SIGKILL", 15)),
    "preemption_grace": seconds("7", 7.0, -1.0),
    "local_addr": Case("fe80::1%eth0", "fe80::1%eth0", bad=("a b", ""), wrong=("", "a b")),
    "master_addr": Case("head.example.org", "head.example.org", bad=("a b",), wrong=("x" * 254,)),
    "master_port": Case("65535", 65535, bad=("65536", "-1", "x"), wrong=(-1, 65536, "7")),
    "port_range": Case(
        "30000-30100",
        "30000-30100",
        bad=("30000", "30000-30098", "1000-2000", "65000-65536", "2-1", " 30000-30100"),
        wrong=("30100-30000", 30000, (30000, 30100)),
    ),
    "agent_store": Case("off", False, {"on": (True, True)}, ("maybe",), ("off", 0)),
    "join_timeout": seconds("5m", 300.0, 0.0),
    "last_call": seconds("0", 0.0, -1.0),
    "exit_barrier_timeout": seconds("1h", 3600.0, 0.0),
    "coordinator_grace": seconds("2m", 120.0, float("inf")),
    "log_format": Case("json", "json", bad=("xml",), wrong=("xml",)),
    "log_level": Case("debug", "debug", bad=("loud",), wrong=("WARN",)),
    "event_log_handler": Case("console", "console", bad=("no",), wrong=("a\n", 3)),
    "event_log_file": file("events"),
    "metrics_port": Case(
        "[::]:9", "[::]:9", {"number": (9, "127.0.0.1:9")}, ("x", "70000"), ("x",)
    ),
    "metrics_cert": file("train.py", **METRICS, metrics_key="train.py"),
    "metrics_key": file("train.py", **METRICS, metrics_cert="train.py"),
    "metrics_token_file": file("train.py", **METRICS),
    "token": Case(TOKEN.text(), TOKEN, {"text": (TOKEN.text(), TOKEN)}, ("",), beside=TO_HEAD),
    "token_file": file("/t", **TO_HEAD),
    "tls_ca": file("/ca", **TO_HEAD),
    "tls_cert": file("/cert", **TO_HEAD, tls_key="/key"),
    "tls_key": file("/key", **TO_HEAD, tls_cert="/cert"),
    "tls_server_name": file("head", **TO_HEAD, tls_ca="/ca"),
    "insecure": flag(**TO_HEAD),
    "signals_to_handle": Case(
        "SIGTERM, SIGUSR1,SIGTERM",
        ("SIGTERM", "SIGUSR1"),
        {"all": (SIGNALS_ALLOWED, SIGNALS_ALLOWED)},
        ("SIGTERM,SIGKILL", ""),
        ((), ("SIGTERM", "SIGKILL"), ("SIGCHLD",), ("15",), "SIGTERM"),
    ),
}
AGENT_ONLY = {"signals_to_handle"}  # signals that end a program are its own
IN_PROGRAMS = {name: case for name, case in CASES.items() if name not in AGENT_ONLY}


def agent_config(config: LaunchConfig) -> AgentConfig:
    return config.agent_config(Program("program", "x"), run_id=config.run_id or "r", python="/py")


def launch(fields: dict[str, Any]) -> LaunchConfig:
    return LaunchConfig(**{"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 1} | fields)


def argument(name: str, text: str) -> tuple[str, ...]:
    declared = SETTINGS[name]
    return (declared.option,) if declared.kind is FLAG else (f"{declared.option}={text}",)


def fields_beside(case: Case) -> dict[str, Any]:
    return {name: SETTINGS[name].kind.parse(text) for name, text in case.beside.items()}


def arguments_beside(case: Case) -> list[str]:
    return [part for name, text in case.beside.items() for part in argument(name, text)]


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host on which everything that is named is there."""
    monkeypatch.setattr("drumbeat.agent.runtime.preflight.check_metrics", lambda _config: None)
    monkeypatch.setattr(
        "drumbeat.agent.runtime.preflight.check_restart_rules", lambda config: config
    )
    monkeypatch.setattr(
        "drumbeat.agent.workers.output.logs.installed", lambda *_groups: {"mine": None}
    )


def test_every_setting_has_a_case_and_programs_say_what_a_command_line_can() -> None:
    assert set(CASES) == set(settings_of(AgentConfig))
    assert set(settings_of(LaunchConfig)) == set(IN_PROGRAMS)


def test_defaults_are_those_that_are_declared() -> None:
    config, program = join(), agent_config(LaunchConfig(1, 1, 1, max_restarts=0))
    for name, declared in settings_of(AgentConfig).items():
        if name != "run_id":  # made up
            assert getattr(config, name) == getattr(program, name) == declared.default, name
    assert LaunchConfig(1, 1, 1).max_restarts == 3, "as torch, for programs"


@pytest.mark.parametrize("name", CASES)
def test_a_setting_is_read_from_its_option_in_each_spelling_and_from_its_variables(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, declared = CASES[name], SETTINGS[name]
    beside = arguments_beside(case)
    value = str(Path(case.text).absolute()) if name in ABSOLUTE else case.value
    for option in declared.flags:
        spellings = {option, f"--{option[2:].replace('-', '_')}" if option[:2] == "--" else option}
        for spelling in spellings:
            given = (spelling,) if declared.kind is FLAG else (spelling, case.text)
            assert getattr(join(*beside, *given), name) == value, spelling
    for variable in (declared.variable, *declared.variables):
        with monkeypatch.context() as environment:
            environment.setenv(variable, case.text or "1")
            assert getattr(join(*beside), name) == value, variable


@pytest.mark.parametrize("name", IN_PROGRAMS)
def test_a_program_gives_the_same_value(name: str) -> None:
    case = CASES[name]
    for given, value in ((case.value, case.value), *case.more.values()):
        config = agent_config(launch(fields_beside(case) | {name: given}))
        assert getattr(config, name) == value
        assert config.validate() == []


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.bad])
def test_a_text_that_is_refused_is_named_with_what_is_allowed(name: str) -> None:
    declared, case = SETTINGS[name], CASES[name]
    allowed = (
        "allowed",
        "is not a duration",
        "is not an address",
        "the token is empty",
        "give one",
    )
    for text in case.bad:
        said = refused(*arguments_beside(case), f"{declared.option}={text}")
        assert declared.option in said
        assert declared.kind.is_secret or repr(text) in said
        assert any(words in said for words in allowed), said


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.wrong])
def test_a_value_that_breaks_a_rule_is_named_with_what_is_allowed(name: str) -> None:
    is_secret = SETTINGS[name].kind.is_secret
    for value in CASES[name].wrong:
        broken = Violation(name, value, SETTINGS[name].kind.allowed)
        fields: dict[str, Any] = {"run_id": "r", **fields_beside(CASES[name]), name: value}
        (found,) = AgentConfig(program=Program("program", "x"), **fields).validate()
        assert is_secret or str(found) == str(broken)
        if name in IN_PROGRAMS:
            with pytest.raises(InvalidConfiguration) as raised:
                launch(fields)
            assert is_secret or str(raised.value) == str(broken)
            assert isinstance(raised.value, ValueError), "what programs expect of such an argument"
