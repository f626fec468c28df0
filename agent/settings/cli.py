"""Shell. The command line of ``agent``: options to a checked configuration.

The options are torchrun's in meaning and spelling wherever drumbeat has the
same thing. Everything from the first argument that is not an option on belongs
to the workers.
"""

import dataclasses
import os
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource

from agent.errors import AgentError, InvalidConfiguration, UsageError
from agent.runtime import preflight
from agent.settings.config import (
    RESTARTS_MAX,
    SIGNALS_HANDLED,
    AgentConfig,
    parse_signals,
    worker_command,
)
from agent.settings.hang_options import OPTION_OF_FIELD as HANG_OPTION_OF_FIELD
from agent.settings.hang_options import hang_options, watchdog_of
from agent.settings.log_options import event_log_options, log_options, output_of
from agent.settings.option_types import NnodesType, WorkersType
from agent.settings.torchrun_options import meeting_of, torchrun_options
from agent.telemetry import handlers
from agent.workers.devices.numa import NumaMode
from agent.workers.devices.visible import VISIBLE_DEVICES, entries
from drumbeat import options
from worker_sdk import context

PYTHON_VARIABLE = "PYTHON_EXEC"
"""Variable by which torchrun takes the interpreter of the workers."""

_OPTION_OF_FIELD = {
    "agent_name": "--name",
    "agents_max": "--nnodes",
    "agents_min": "--nnodes",
    "command": "SCRIPT",
    "coordinator": "--coordinator",
    "coordinator_grace_s": "--coordinator-grace",
    "event_log_file": "--event-log-file",
    "event_log_handler": "--event-log-handler",
    "exit_barrier_timeout_s": "--exit-barrier-timeout",
    "gpu_memory_wait_s": "--gpu-memory-wait",
    "join_timeout_s": "--join-timeout",
    "last_call_s": "--last-call",
    "local_addr": "--local-addr",
    "local_world_size": "--nproc-per-node",
    "log_dir": "--log-dir",
    "log_format": "--log-format",
    "log_level": "--log-level",
    "master_addr": "--master-addr",
    "master_port": "--master-port",
    "restarts_max": "--max-restarts",
    "role": "--role",
    "run_id": "--run-id",
    "shutdown_timeout_s": "--shutdown-timeout",
    "signals_to_handle": "--signals-to-handle",
} | HANG_OPTION_OF_FIELD

_EPILOG = """\b
Examples:
  agent join --standalone --nproc-per-node gpu train.py --epochs 3
  agent join --coordinator head:29400 --run-id mt5 --nnodes 4 \\
      --nproc-per-node 8 --max-restarts 3 train.py --epochs 3
  agent join --coordinator head:29400 --run-id mt5 --nnodes 2:4 \\
      -m trainer.main

\b
Exit codes:
  0  the run succeeded
  1  the run failed
  2  usage, or the coordinator refused the agent
  3  the coordinator could not be reached, or was away for too long
"""


@click.group(no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]})
@options.version_option("agent")
def agent() -> None:
    """Run this machine's part of a distributed training job."""


@agent.command(
    cls=options.SectionedCommand,
    epilog=_EPILOG,
    options_metavar="[OPTIONS]",
    context_settings={"allow_interspersed_args": False},
)
@options.option(
    "--coordinator",
    section="Run",
    type=options.HOST_PORT,
    metavar="HOST[:PORT]",
    help="Where the coordinator listens; port 29400 if none is given.",
)
@options.proxy_option(section="Run")
@options.option(
    "--standalone",
    section="Run",
    variables=["PET_STANDALONE"],
    is_flag=True,
    help="Train on this machine alone, without a coordinator elsewhere.",
)
@options.option(
    "--run-id",
    "--rdzv-id",
    "run_id",
    section="Run",
    variables=["PET_RDZV_ID"],
    metavar="NAME",
    help="Name of the training job, the same on all its machines: up to 128 characters of "
    "A-Z, a-z, 0-9, '.', '_' and '-'. Made up for a job of one machine.",
)
@options.option(
    "--name",
    section="Run",
    metavar="NAME",
    default="",
    show_default="the host's, numbered if another agent has it",
    help="What reasons and reports call this agent, e.g. to tell several on one host apart.",
)
@options.option(
    "--nnodes",
    section="Run",
    variables=["PET_NNODES"],
    type=NnodesType(),
    metavar="MIN[:MAX]",
    default="1:1",
    help="Machines that train together, or their range.",
)
@options.option(
    "--max-restarts",
    section="Run",
    variables=["PET_MAX_RESTARTS"],
    type=options.CountType(0, RESTARTS_MAX),
    metavar="N",
    default=0,
    help="Restarts of all workers after one failed, in the whole run. Machines that come "
    "and go cost none.",
)
@options.option(
    "--nproc-per-node",
    section="Workers",
    variables=["PET_NPROC_PER_NODE"],
    type=WorkersType(),
    metavar="N|auto|gpu|cpu",
    default="1",
    help="Workers on this machine; auto: one per GPU, or per core if there is none.",
)
@options.option(
    "--role",
    section="Workers",
    variables=["PET_ROLE"],
    metavar="NAME",
    default="default",
    help="Their role.",
)
@options.option(
    "-m",
    "--module",
    section="Workers",
    variables=["PET_MODULE"],
    is_flag=True,
    help="SCRIPT is the name of a Python module, as for python -m.",
)
@options.option(
    "--no-python",
    section="Workers",
    variables=["PET_NO_PYTHON"],
    is_flag=True,
    help="SCRIPT is a program of its own, not to be run by Python.",
)
@options.option(
    "--virtual-local-rank",
    section="Workers",
    variables=["PET_VIRTUAL_LOCAL_RANK"],
    is_flag=True,
    help="Let each worker see its own GPU only, as device 0, and LOCAL_RANK=0.",
)
@options.option(
    "--numa-binding",
    section="Workers",
    type=click.Choice([mode.value for mode in NumaMode]),
    show_default="workers may run on any core",
    help="Run each worker on cores near its GPU: all of its NUMA node or socket, or an "
    "exclusive part or one core complex of its node.",
)
@options.option(
    "--gpu-memory-wait",
    section="Workers",
    type=options.DURATION,
    metavar="DURATION",
    default="50s",
    help="How long a restart waits for the GPU memory of the workers before it, at most.",
)
@options.option(
    "--shutdown-timeout",
    section="Workers",
    variables=["PET_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"],
    type=options.DURATION,
    metavar="DURATION",
    default="30s",
    help="Time that workers have between SIGTERM and SIGKILL.",
)
@hang_options
@log_options
@options.option(
    "--signals-to-handle",
    section="Workers",
    variables=["PET_SIGNALS_TO_HANDLE"],
    metavar="NAME,...",
    default=",".join(SIGNALS_HANDLED),
    help="Signals that end this agent, and with it its workers, who get the same. "
    "SIGUSR1 and SIGUSR2 go to the workers alone if they are not among them.",
)
@options.option(
    "--local-addr",
    section="Network",
    variables=["PET_LOCAL_ADDR"],
    metavar="ADDR",
    help="Address at which the other machines reach this one; found if not given.",
)
@options.option(
    "--master-addr",
    section="Network",
    variables=["PET_MASTER_ADDR"],
    metavar="ADDR",
    default="",
    show_default="the machine of rank 0",
    help="MASTER_ADDR of the workers.",
)
@options.option(
    "--master-port",
    section="Network",
    variables=["PET_MASTER_PORT"],
    type=options.PORT_OR_ZERO,
    metavar="PORT",
    default=0,
    help="MASTER_PORT of the workers; 0: a free one, reserved for each round.",
)
@options.option(
    "--join-timeout",
    section="Waiting",
    type=options.DurationType(min_s=0.1),
    metavar="DURATION",
    default="10m",
    help="How long to wait for the coordinator, and for the minimum of machines.",
)
@options.option(
    "--last-call",
    section="Waiting",
    type=options.DURATION,
    metavar="DURATION",
    default="30s",
    help="How long to wait for more machines than the minimum, at most.",
)
@options.option(
    "--exit-barrier-timeout",
    section="Waiting",
    type=options.DurationType(min_s=0.1),
    metavar="DURATION",
    show_default="no limit while they are alive",
    help="How long a machine that is done waits for the others; then it ends with success, "
    "and they train on.",
)
@options.option(
    "--coordinator-grace",
    section="Waiting",
    type=options.DURATION,
    metavar="DURATION",
    default="10m",
    help="How long training goes on while the coordinator is away.",
)
@options.console_options
@event_log_options
@torchrun_options
@click.argument("script", required=False, metavar="SCRIPT")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
@click.pass_context
def join(ctx: click.Context, /, **params: Any) -> AgentConfig:
    """Join a training run with this machine and start its workers.

    SCRIPT and everything after it belong to the workers. Options may be spelled
    with '_' in place of '-', and cut short while they stay unique. A DURATION is a
    number of seconds, or has a unit: 500ms, 30s, 1.5m, 2h. Without --coordinator
    and with one machine, --standalone is understood. Command lines of torchrun and
    its PET_* variables work, too; ours count first.
    """
    return config_of(ctx, params)


def config_of(ctx: click.Context, params: dict[str, Any]) -> AgentConfig:
    """Build the configuration from the options, by their names, and check it and the host.

    Raises:
        UsageError: What was given cannot be carried out; see the tree below it.
    """
    meeting = meeting_of(ctx, params)
    coordinator = meeting.coordinator
    agents_min, agents_max = params["nnodes"]
    event_log = str(Path(params["event_log_file"]).absolute()) if params["event_log_file"] else None
    if not params["script"]:
        raise UsageError(
            "there is nothing to run: SCRIPT is missing",
            "name the script, its arguments after it: agent join [OPTIONS] train.py --epochs 3",
        )
    config = AgentConfig(
        coordinator=coordinator,
        is_standalone=coordinator is None,
        is_proxied=params["use_proxy"],
        run_id=_run_id_of(
            None if _is_outer_run_id(ctx) else params["run_id"],
            agents_max,
            is_standalone=coordinator is None,
        ),
        agent_name=params["name"],
        agents_min=agents_min,
        agents_max=agents_max,
        local_world_size=params["nproc_per_node"],
        restarts_max=params["max_restarts"],
        role=params["role"],
        local_addr=params["local_addr"],
        master_addr=meeting.master_addr,
        master_port=meeting.master_port,
        join_timeout_s=meeting.join_timeout_s,
        last_call_s=meeting.last_call_s,
        exit_barrier_timeout_s=params["exit_barrier_timeout"],
        coordinator_grace_s=params["coordinator_grace"],
        shutdown_timeout_s=params["shutdown_timeout"],
        signals_to_handle=parse_signals(params["signals_to_handle"]),
        numa_binding=NumaMode(params["numa_binding"]) if params["numa_binding"] else None,
        is_local_rank_virtual=params["virtual_local_rank"],
        gpu_memory_wait_s=params["gpu_memory_wait"],
        watchdog=watchdog_of(params),
        output=output_of(params),
        **options.log_settings(params),
        event_log_handler=params["event_log_handler"] or ("jsonl" if event_log else "null"),
        event_log_file=event_log,
        notes=meeting.notes,
        command=worker_command(
            params["script"],
            params["arguments"],
            launch=_launch_of(params),
            python=os.environ.get(PYTHON_VARIABLE) or sys.executable,
        ),
    )
    return _prepared(config, params)


def _prepared(config: AgentConfig, params: dict[str, Any]) -> AgentConfig:
    """Check the configuration and the host, and make the files and directories it names."""
    _check(config)
    _check_devices(config, os.environ.get(VISIBLE_DEVICES))
    handlers.check_name(config.event_log_handler)
    _check_launch(params["script"], _launch_of(params))
    # Last, so that a command line with another mistake leaves no file or directory behind.
    if config.event_log_handler == handlers.JSON_LINES:
        preflight.prepare_event_log(str(config.event_log_file))
    if params["log_dir"] is None:
        return config
    return dataclasses.replace(config, log_dir=preflight.prepare_log_dir(params["log_dir"]))


def _is_outer_run_id(ctx: click.Context) -> bool:
    """Whether the run id is only there because an outer agent told this worker its own.

    ``DRUMBEAT_RUN_ID`` is an option for agents and a fact for workers; an agent within a
    worker finds the fact, unless somebody changed it on the way.
    """
    if ctx.get_parameter_source("run_id") is not ParameterSource.ENVIRONMENT:
        return False
    outer = os.environ.get(context.TORCH_RUN_ID)
    return context.ROUND in os.environ and os.environ.get(context.RUN_ID) == outer


def _run_id_of(text: str | None, agents_max: int, *, is_standalone: bool) -> str:
    if text is not None:
        return text
    if agents_max > 1 and not is_standalone:
        raise UsageError(
            "--run-id is missing: it is needed with --coordinator and several machines",
            "give all machines of this training job the same name, and no other job: --run-id NAME",
        )
    return uuid.uuid4().hex


def _launch_of(params: dict[str, Any]) -> Literal["script", "module", "program"]:
    if params["run_path"]:
        return "script"  # as in torchrun it counts before the others
    if params["module"] and params["no_python"]:
        raise UsageError(
            "--module and --no-python exclude each other",
            "--module runs a Python module, --no-python a program of its own",
        )
    return "module" if params["module"] else "program" if params["no_python"] else "script"


def _check(config: AgentConfig) -> None:
    violations = tuple(
        dataclasses.replace(found, field=_OPTION_OF_FIELD.get(found.field, found.field))
        for found in config.validate()
    )
    if violations:
        raise InvalidConfiguration(violations)


def _check_devices(config: AgentConfig, visible_devices: str | None) -> None:
    named = entries(visible_devices or "")
    if config.is_local_rank_virtual and 0 < len(named) < config.local_world_size:
        raise UsageError(
            f"--virtual-local-rank: {config.local_world_size} workers need a GPU each, but "
            f"{VISIBLE_DEVICES} is {visible_devices!r}",
            f"name more devices in {VISIBLE_DEVICES}, or start fewer workers: --nproc-per-node",
        )


def _check_launch(script: str, launch: Literal["script", "module", "program"]) -> None:
    search_path, python = os.environ.get("PATH"), os.environ.get(PYTHON_VARIABLE)
    if launch == "program":
        preflight.check_program(script, search_path=search_path)
        return
    if launch == "script":
        preflight.check_script(script)
    elif not python:  # another Python has places of its own
        preflight.check_module(script)
    if python:
        preflight.check_program(python, search_path=search_path, named_by=PYTHON_VARIABLE)


def main(argv: Sequence[str] | None = None, *, run: Callable[[AgentConfig], int]) -> int:
    """Read the command line, set up the log and run; return the exit code.

    Args:
        argv: Arguments after the program's name; None stands for those of this process.
        run: Takes part in the run until it is over, and returns the exit code.
    """
    try:
        parsed = options.parse(agent, None if argv is None else list(argv), program="agent")
        if not isinstance(parsed, AgentConfig):
            return int(parsed)
        return _run_logged(parsed, run)
    except AgentError as error:
        options.write_error("agent", str(error), _hint_of(error))
        return error.exit_code


def _run_logged(config: AgentConfig, run: Callable[[AgentConfig], int]) -> int:
    # Imported here: it costs more than all of --help, which needs no log.
    import structlog  # noqa: PLC0415

    from drumbeat import logs  # noqa: PLC0415

    logs.configure_logs(config.log_format, level=config.log_level)
    for note in config.notes:
        structlog.get_logger().info("option of torchrun", message=note)
    try:
        return run(config)
    except AgentError as error:
        # Behind what was logged, and not for ever if the console is stalled.
        logs.write_text(options.error_text("agent", str(error), _hint_of(error)))
        return error.exit_code
    finally:
        logs.close_logs()


def _hint_of(error: AgentError) -> str:
    return error.hint or ("try 'agent join --help'" if isinstance(error, UsageError) else "")
