"""Shell. The component `drumbeat.ddp` of TorchX: a coordinator and agents as roles of one app.

TorchX reads the types of the arguments from the source, and knows those of `typing` alone.
"""

# ruff: noqa: UP006, UP035, UP045

import re
import shlex
from typing import Dict, List, NamedTuple, Optional

from torchx import specs
from torchx.components.dist import parse_nnodes
from torchx.components.structured_arg import StructuredNameArgument
from torchx.specs import macros

from drumbeat.text.addresses import PORT_DEFAULT

COORDINATOR, TRAINER = "coordinator", "agent"
"""Names of the roles; schedulers make names of hosts and variables of them."""


def ddp(  # noqa: PLR0913 - the arguments are the options of the command line
    *script_args: str,
    script: Optional[str] = None,
    m: Optional[str] = None,
    image: str = "",
    name: str = "/",
    h: Optional[str] = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,  # noqa: N803 - its name in `dist.ddp`
    j: str = "1x1",
    env: Optional[Dict[str, str]] = None,
    max_retries: int = 0,
    max_restarts: int = 0,
    mounts: Optional[List[str]] = None,
    coordinator: Optional[str] = None,
    token_file: Optional[str] = None,
    port: int = PORT_DEFAULT,
    insecure: bool = False,
    options: str = "",
) -> specs.AppDef:
    """Train with drumbeat: elastic, with restarts and one failure report for all machines.

    Several machines meet at the coordinator of --coordinator, or at one that the app brings.

    Args:
        script_args: arguments of the script or module
        script: script to run
        m: Python module to run
        image: image of the containers, which has drumbeat; a directory for local schedulers
        name: name of the job, {experiment}/{run}, as for dist.ddp
        h: a registered named resource; takes precedence over cpu, gpu, memMB
        cpu: CPUs of each machine that trains
        gpu: GPUs of each machine that trains
        memMB: memory of each machine that trains, in MB
        j: [{min_nnodes}:]{nnodes}x{nproc_per_node}
        env: variables of the environment (ENV1=v1,ENV2=v2)
        max_retries: how often the scheduler may start the app again
        max_restarts: how often all workers may restart after a failure
        mounts: mounts of the containers, as for dist.ddp
        coordinator: HOST[:PORT],... of a coordinator that runs already
        token_file: file with the token, on every machine
        port: port of the coordinator that the app brings
        insecure: no encryption and no tokens, for closed test networks
        options: more options of agent join, e.g. "--preload torch"
    """
    if (script is None) == (m is None):
        raise ValueError("one of --script and -m is needed, and not both")
    app = StructuredNameArgument.parse_from(name=name, m=m, script=script)
    access = _Access(coordinator, token_file, port, insecure)
    program = [*(["--module", m] if m is not None else [script or ""]), *script_args]
    join = ["--max-restarts", str(max_restarts), *shlex.split(options), *program]
    resource = specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h)
    roles = _roles(j, access, join, resource)
    for role in roles:
        role.image, role.max_retries = image, max_retries
        role.env = {"TORCHX_TRACKING_EXPERIMENT_NAME": app.experiment_name, **(env or {})}
        role.mounts = specs.parse_mounts(mounts) if mounts else []
    # Schedulers make the run's id of the name.
    return specs.AppDef(name=re.sub(r"[^A-Za-z0-9._-]", "-", app.run_name), roles=roles)


class _Access(NamedTuple):
    """How agents reach a coordinator."""

    coordinator: Optional[str]
    token_file: Optional[str]
    port: int
    is_insecure: bool

    def options(self) -> List[str]:
        # The first host: schedulers pass its name in a variable.
        own = _Expression(f"$${{{macros.rank0_env}:=localhost}}:{self.port}")
        token = ["--token-file", self.token_file] if self.token_file else []
        return ["--coordinator", self.coordinator or own, *token, *self.insecure()]

    def insecure(self) -> List[str]:
        return ["--insecure"] * self.is_insecure


def _roles(j: str, access: _Access, join: List[str], resource: specs.Resource) -> List[specs.Role]:
    """Return the role of the agents, after that of the coordinator if the app brings one."""
    least, most, nproc_per_node, nnodes = parse_nnodes(j)
    is_alone = most == 1 and access.coordinator is None
    command = [
        *("agent", "join", "--nnodes", nnodes, "--nproc-per-node", str(nproc_per_node)),
        *("--run-id", macros.app_id, "--name", f"{TRAINER}-{macros.replica_id}"),
        *(["--standalone"] if is_alone else access.options()),
    ]
    agents = specs.Role(
        name=TRAINER,
        image="",
        min_replicas=least,
        num_replicas=most,
        entrypoint="bash",
        args=["-c", _exec([*command, *join])],
        resource=resource,
        retry_policy=specs.RetryPolicy.REPLICA,
    )
    is_brought = access.coordinator is None and not is_alone
    # It comes first: the host of the first role is the one that schedulers pass to all.
    return [_coordinator(access), agents] if is_brought else [agents]


def _coordinator(access: _Access) -> specs.Role:
    command = ["coordinator", "serve", "--once", "--host", "0.0.0.0"]  # noqa: S104 - for all hosts
    command += ["--port", str(access.port), *access.insecure()]
    return specs.Role(
        name=COORDINATOR,
        image="",
        num_replicas=1,
        entrypoint="bash",
        args=["-c", _exec(command)],
        resource=specs.resource(cpu=1, gpu=0, memMB=1024),
        port_map={"drumbeat": access.port},
    )


class _Expression(str):
    """Text that the shell evaluates."""

    __slots__ = ()


def _exec(command: List[str]) -> str:
    """Return the line that replaces the shell by a command, so that signals reach it."""
    words = (word if isinstance(word, _Expression) else shlex.quote(word) for word in command)
    return f"exec {' '.join(words)}"
