"""The component of TorchX: roles and command lines, as each scheduler gets them."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from torchx.components import dist
from torchx.runner import get_runner
from torchx.schedulers.kubernetes_scheduler import app_to_resource
from torchx.schedulers.slurm_scheduler import create_scheduler
from torchx.specs import macros
from torchx.specs.builders import materialize_appdef
from torchx.specs.finder import get_components

from drumbeat.coordinator.command.cli import serve
from drumbeat.torchx import ddp
from tests.support.command_line import join

if TYPE_CHECKING:
    from torchx.specs import AppDef, Role

    from drumbeat.agent.settings.config import AgentConfig


def argv(line: str, **environment: str) -> list[str]:
    """Return the words that the shell makes of a role's command line."""
    assert line.startswith("exec ")
    shown = ["bash", "-c", line.replace("exec ", "printf '%s\\0' ", 1)]
    path = {"PATH": "/usr/bin:/bin"}
    found = subprocess.run(shown, env=path | environment, capture_output=True, check=True)
    return found.stdout.decode().split("\0")[:-1]


def config(line: str, **environment: str) -> AgentConfig:
    """Return what an agent is told by a role's command line."""
    filled = line.replace(macros.app_id, "job").replace(macros.replica_id, "0")
    command, verb, *rest = argv(filled, **environment)
    assert (command, verb) == ("agent", "join")
    return join(*rest, script=None)


def line_of(role: Role) -> str:
    assert role.entrypoint == "bash"
    option, line = role.args
    assert option == "-c"
    return str(line)


@pytest.fixture
def script(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "train it.py").touch()
    monkeypatch.chdir(tmp_path)
    for name in ("LOG_DIR", "RUN_ID"):
        monkeypatch.delenv(f"PET_{name}", raising=False)
    return "train it.py"


@pytest.mark.parametrize("name", ["drumbeat.ddp", "dist.ddp", "utils.echo"])
def test_torchx_finds_it_beside_its_own_components(name: str) -> None:
    assert name in get_components()


def test_one_machine_trains_alone(script: str) -> None:
    (role,) = ddp("--epochs", "a b", script=script, j="1x4", insecure=True).roles
    found = config(line_of(role))
    assert found.coordinator is None
    assert found.nproc_per_node == 4
    assert found.program.args == ("--epochs", "a b")


def test_several_machines_get_a_coordinator_as_their_first_role(script: str) -> None:
    head, agents = ddp(script=script, j="2:4x8", port=29555, max_restarts=3).roles
    assert (head.name, head.num_replicas) == ("coordinator", 1)
    assert (agents.num_replicas, agents.min_replicas) == (4, 2)
    command, verb, *options = argv(line_of(head))
    assert (command, verb) == ("coordinator", "serve")
    served = serve.main(options, standalone_mode=False)
    assert (served.host, served.port, served.once) == ("0.0.0.0", 29555, True)
    assert (served.insecure, served.state_dir) == (False, None)


def test_a_coordinator_that_runs_already_is_used_with_its_token(script: str) -> None:
    app = ddp(script=script, j="2x1", coordinator="a,b:29401", token_file="/run/token")
    (role,) = app.roles
    found = config(line_of(role))
    assert (found.coordinator, found.token_file) == ("a:29400,b:29401", "/run/token")


def test_more_options_of_agents_come_before_the_script(script: str) -> None:
    (role,) = ddp("--preload", script=script, options="--preload 'json,csv'").roles
    found = config(line_of(role))
    assert (found.preload, found.program.args) == (("json", "csv"), ("--preload",))


def test_a_module_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PET_LOG_DIR", raising=False)
    app = ddp(m="json.tool")
    assert config(line_of(app.roles[0])).program.target == "json.tool"
    assert app.name == "tool"


def test_a_script_and_a_module_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="one of --script and -m"):
        ddp(script="a.py", m="a")


def test_no_secret_is_in_an_app(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRUMBEAT_TOKEN", "drumbeat1.join.secret")
    assert "secret" not in repr(ddp(script=script, j="2x1"))


def test_slurm_passes_the_coordinators_host_and_the_job_id(script: str) -> None:
    request = create_scheduler("test").submit_dryrun(ddp(script=script, j="2x1"), {}).request
    assert list(request.replicas) == ["coordinator-0", "agent-0", "agent-1"]
    agent = request.replicas["agent-1"]
    _, words = agent.materialize()
    # The batch script's shell fills in the id, that of the node the host.
    shell = ["bash", "-c", f"printf '%s\\0' {words[-1]}"]
    environment = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "4711"}
    made = subprocess.run(shell, env=environment, capture_output=True, check=True)
    line = made.stdout.decode().rstrip("\0")
    found = config(line, SLURM_JOB_NODELIST_HET_GROUP_0="node7")
    assert (found.run_id, found.name, found.coordinator) == ("4711", "agent-1", "node7:29400")


def pods(app: AppDef) -> dict[str, Any]:
    spec: Any = app_to_resource(app, queue="default", service_account=None)["spec"]
    return {task["name"]: task["template"].spec.containers[0] for task in spec["tasks"]}


@pytest.mark.slow
def test_kubernetes_passes_the_coordinators_host(script: str) -> None:
    found = pods(ddp(script=script, j="2x1", image="registry.example.org/train:1"))
    assert list(found) == ["coordinator-0", "agent-0", "agent-1"]
    bash, option, line = found["agent-0"].command
    assert (bash, option) == ("bash", "-c")
    agent = config(line, VC_COORDINATOR_0_HOSTS="coordinator.example")
    assert (agent.coordinator, agent.name) == ("coordinator.example:29400", "agent-0")
    assert agent.run_id.startswith("train")


def test_a_dry_run_parses_the_command_line_of_the_docs(script: str) -> None:
    line = shlex.split(f"-j 2x1 --max_restarts 3 --script '{script}' -- --epochs 3")
    with get_runner() as runner:
        dry_run = runner.dryrun_component("drumbeat.ddp", line, "local_cwd")
    agents = dry_run.request.role_params["agent"]
    assert [params.args[0] for params in agents] == ["bash", "bash"]
    found = config(agents[1].args[2], TORCHX_RANK0_HOST="localhost")
    assert (found.coordinator, found.max_restarts) == ("localhost:29400", 3)
    assert found.program.args == ("--epochs", "3")
    assert found.run_id.startswith("train-it-")


def command_lines() -> list[list[str]]:
    """Return what the docs say after the component's name."""
    page = (Path(__file__).parents[3] / "docs/torchx.md").read_text()
    lines = re.findall(r"(?m)^torchx run .*? drumbeat\.ddp (.*)$", page.replace("\\\n", ""))
    return [shlex.split(line) for line in lines]


def test_the_docs_have_command_lines() -> None:
    assert len(command_lines()) == 3


@pytest.mark.parametrize("words", command_lines(), ids=lambda words: words[-3])
def test_the_docs_have_options_that_there_are(words: list[str]) -> None:
    app = materialize_appdef(ddp, words)
    assert app.roles[-1].name == "agent"


def test_the_docs_name_every_option_of_their_own() -> None:
    page = (Path(__file__).parents[3] / "docs/torchx.md").read_text()
    ours = set(inspect.signature(ddp).parameters) - set(inspect.signature(dist.ddp).parameters)
    assert {f"--{name}" for name in ours} <= set(re.findall(r"--\w+", page))
