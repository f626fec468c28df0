"""Command lines and variables of torchrun, as ``agent join`` takes them."""

import argparse
import sys

import pytest

from drumbeat.agent import cli
from drumbeat.agent.compat.torchrun_options import D_STATE_TIMEOUT
from drumbeat.command.options import CommandOption
from tests.support.command_line import join, refused


def test_one_machine_needs_no_mode() -> None:
    config = join("--nproc-per-node", "2")
    assert (config.is_standalone, config.coordinator, config.nproc_per_node) == (True, None, 2)
    assert config.notes == ()


@pytest.mark.parametrize(
    ("argv", "note"),
    [
        (("--node-rank", "1"), "--node-rank is not needed: the coordinator assigns"),
        (("--monitor_interval", "5"), "--monitor-interval is not needed: the end of a worker"),
        (("--start-method", "fork"), "--start-method is not needed"),
        (("--run-path",), "--run-path is not needed"),
        (("--rdzv-backend=c10d",), "--rdzv-backend is not needed: agents meet at the coordinator"),
        (("--rdzv_conf", "timeout=900,is_host=1"), "--rdzv-conf: timeout, is_host not needed"),
        (("--rdzv-endpoint", "localhost:0"), "--rdzv-endpoint localhost:0 is not needed"),
    ],
)
def test_what_is_not_needed_is_taken_and_said_once(
    argv: tuple[str, ...], note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = join(*argv)
    assert config.is_standalone
    assert config.command == (sys.executable, "-u", "train.py")
    assert capsys.readouterr().err.count(note) == 1


@pytest.mark.parametrize("given", ["60", "0.5"])
def test_the_limit_on_uninterruptible_sleep_is_refused_with_a_line(
    given: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", given)
    join()
    said = capsys.readouterr().err
    assert said.count(f"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT={given} is not supported") == 1
    assert "--progress-timeout" in said


@pytest.mark.parametrize("given", ["", "0", "-1", "soon", "nan"])
def test_a_limit_on_uninterruptible_sleep_that_torchrun_takes_for_none_is_not_told_of(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", given)
    assert join().notes == ()


@pytest.mark.slow
@pytest.mark.torch
def test_torch_knows_the_variable_by_this_name() -> None:
    from torch.distributed.elastic.agent.server import local_elastic_agent

    name = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
    if not hasattr(local_elastic_agent, name):
        pytest.skip("this version of torch has no such limit")
    assert getattr(local_elastic_agent, name) == D_STATE_TIMEOUT


def test_the_endpoint_is_where_the_coordinator_is_expected() -> None:
    argv = ("--nnodes", "2", "--rdzv-id", "r7", "--rdzv-backend", "c10d")
    config = join(*argv, "--rdzv-endpoint", "head")
    assert (config.coordinator, config.run_id) == ("head:29400", "r7")
    assert "--rdzv-endpoint is taken for --coordinator head:29400" in config.notes[1]
    assert join(*argv, "--rdzv-endpoint", "[::1]:7").coordinator == "[::1]:7"
    assert join(*argv, "--rdzv-endpoint", "a,b:7").coordinator == "a:29400,b:7"
    ours = join(*argv, "--rdzv-endpoint", "head", "--coordinator", "other:1")
    assert ours.coordinator == "other:1"
    assert "--rdzv-endpoint is not needed beside --coordinator" in ours.notes


def test_the_waits_of_the_rendezvous_are_ours_unless_ours_are_given() -> None:
    conf = ("--rdzv-conf", "join_timeout=60, last_call_timeout=2,")
    config = join(*conf)
    assert (config.join_timeout, config.last_call, config.notes) == (60.0, 2.0, ())
    config = join(*conf, "--last-call", "3")
    assert (config.join_timeout, config.last_call) == (60.0, 3.0)


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("--rdzv-conf", "join_timeout"), "--rdzv-conf: 'join_timeout' is given, allowed is KEY="),
        (("--rdzv-conf", "join_timeout=soon"), "--rdzv-conf: join_timeout: 'soon' is not"),
        (("--rdzv-conf", "join_timeout=0"), "--join-timeout: 0"),
        (("--nnodes", "2", "--rdzv-endpoint", "localhost:0"), "'localhost:0' is not an address"),
        (
            ("--nnodes", "2", "--rdzv-backend", "etcd-v2", "--rdzv-endpoint", "e:2379"),
            "--rdzv-endpoint e:2379 is that of etcd",
        ),
    ],
)
def test_what_can_not_be_meant_is_refused(argv: tuple[str, ...], named: str) -> None:
    assert named in refused(*argv)


def test_torchruns_variables_count_after_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PET_NNODES": "1:3",
        "PET_NPROC_PER_NODE": "5",
        "PET_RDZV_ID": "theirs",
        "PET_RDZV_ENDPOINT": "head:7",
        "PET_RDZV_BACKEND": "c10d",
        "PET_MAX_RESTARTS": "4",
        "PET_SHUTDOWN_TIMEOUT": "11",
        "PET_TEE": "3",
        "PET_LOG_DIR": "",
        "PET_NODE_RANK": "1",
        "PET_MODULE": "0",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "12",
        "DRUMBEAT_MAX_RESTARTS": "2",
    }.items():
        monkeypatch.setenv(name, value)
    config = join("--nproc-per-node", "6")
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (1, 3, 6)
    assert (config.run_id, config.coordinator) == ("theirs", "head:7")
    assert (config.max_restarts, config.shutdown_timeout) == (2, 11.0)
    assert (config.tee, config.log_dir) == ("3", None)
    assert len(config.notes) == 1  # what is only in the environment is nobody's mistake
    monkeypatch.delenv("PET_SHUTDOWN_TIMEOUT")
    assert join().shutdown_timeout == 12.0


def test_a_template_does_not_fix_the_master_of_several_machines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any of them may get rank 0; torchrun ignores these with an endpoint, too."""
    monkeypatch.setenv("PET_MASTER_ADDR", "worker-0")
    monkeypatch.setenv("PET_MASTER_PORT", "23456")
    alone = join()
    assert (alone.master_addr, alone.master_port) == ("worker-0", 23456)
    several = ("--nnodes", "2", "--run-id", "r", "--coordinator", "head")
    assert (join(*several).master_addr, join(*several).master_port) == ("", 0)
    typed = join(*several, "--master-addr", "10.0.0.1", "--master-port", "7")
    assert (typed.master_addr, typed.master_port) == ("10.0.0.1", 7)
    monkeypatch.setenv("DRUMBEAT_MASTER_ADDR", "ours")
    assert join(*several).master_addr == "ours"


def test_our_mode_beats_torchruns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_STANDALONE", "1")
    assert join().is_standalone
    monkeypatch.setenv("DRUMBEAT_COORDINATOR", "head")
    assert join().coordinator == "head:29400"


def test_a_variable_of_torchrun_that_is_wrong_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PET_MAX_RESTARTS", "many")
    shown = refused()
    assert "PET_MAX_RESTARTS" in shown
    assert "'many'" in shown


def test_the_interpreter_may_be_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHON_EXEC", "/bin/sh")
    assert join().command == ("/bin/sh", "-u", "train.py")
    assert join("--module").command == ("/bin/sh", "-u", "-m", "train.py")
    monkeypatch.setenv("PYTHON_EXEC", "/no/such/python")
    shown = refused()
    assert "cannot run /no/such/python: there is no such file (of PYTHON_EXEC)" in shown


@pytest.mark.slow
@pytest.mark.torch
def test_every_option_of_torchrun_is_taken() -> None:
    """In each of its spellings, and with its variable where it has one."""
    run = pytest.importorskip("torch.distributed.run")
    argparse_util = pytest.importorskip("torch.distributed.argparse_util")
    options = [param for param in cli.join.params if isinstance(param, CommandOption)]
    known = {name: option for option in options for name in option.opts}
    for action in run.get_args_parser()._actions:
        if not action.option_strings or isinstance(action, argparse._HelpAction):
            continue
        for name in action.option_strings:
            assert name.replace("_", "-") in known, name
        if isinstance(action, argparse_util.env | argparse_util.check_env):
            variable = f"PET_{action.dest.upper()}"
            unused = ("PET_NODE_RANK", "PET_MONITOR_INTERVAL", "PET_START_METHOD")
            declared = known[action.option_strings[0].replace("_", "-")].declared
            assert variable in (*declared.variables, *unused)
