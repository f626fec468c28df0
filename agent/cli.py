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

from agent import preflight
from agent.config import (
    RESTARTS_MAX,
    SIGNALS_HANDLED,
    AgentConfig,
    count_workers,
    parse_nnodes,
    parse_signals,
    worker_command,
)
from agent.devices.numa import NumaMode
from agent.devices.visible import VISIBLE_DEVICES, entries
from agent.errors import AgentError, InvalidConfiguration, UsageError
from agent.hang_options import OPTION_OF_FIELD as HANG_OPTION_OF_FIELD
from agent.hang_options import hang_options, watchdog_of
from agent.log_options import log_options, output_of
from agent.telemetry import catalog
from drumbeat import options
from worker_sdk import context

_OPTION_OF_FIELD = {
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


class NnodesType(options.ParamType):
    """How many agents a round has, as (minimum, maximum)."""

    name = "min[:max]"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Read "N" or "MIN:MAX"."""
        try:
            return parse_nnodes(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


class WorkersType(options.ParamType):
    """How many workers this host has, a word for its devices resolved."""

    name = "workers"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read a number, "auto", "gpu" or "cpu"."""
        # To ask the driver takes up to seconds; a number needs no GPUs.
        is_gpu_counted = value.strip().lower() in {"auto", "gpu"}
        gpus = preflight.count_gpus(os.environ.get(VISIBLE_DEVICES)) if is_gpu_counted else 0
        try:
            return count_workers(value, cores=preflight.usable_cores(), gpus=gpus)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


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
    is_flag=True,
    help="Train on this machine alone, without a coordinator elsewhere.",
)
@options.option(
    "--run-id",
    "--rdzv-id",
    "run_id",
    section="Run",
    metavar="NAME",
    help="Name of the training job, the same on all its machines: up to 128 characters of "
    "A-Z, a-z, 0-9, '.', '_' and '-'. Made up for a job of one machine.",
)
@options.option(
    "--nnodes",
    section="Run",
    type=NnodesType(),
    metavar="MIN[:MAX]",
    default="1:1",
    help="Machines that train together, or their range.",
)
@options.option(
    "--max-restarts",
    section="Run",
    type=options.CountType(0, RESTARTS_MAX),
    metavar="N",
    default=0,
    help="Restarts of all workers after one failed, in the whole run. Machines that come "
    "and go cost none.",
)
@options.option(
    "--nproc-per-node",
    section="Workers",
    type=WorkersType(),
    metavar="N|auto|gpu|cpu",
    default="1",
    help="Workers on this machine; auto: one per GPU, or per core if there is none.",
)
@options.option("--role", section="Workers", metavar="NAME", default="default", help="Their role.")
@options.option(
    "-m",
    "--module",
    section="Workers",
    is_flag=True,
    help="SCRIPT is the name of a Python module, as for python -m.",
)
@options.option(
    "--no-python",
    section="Workers",
    is_flag=True,
    help="SCRIPT is a program of its own, not to be run by Python.",
)
@options.option(
    "--virtual-local-rank",
    section="Workers",
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
    metavar="NAME,...",
    default=",".join(SIGNALS_HANDLED),
    help="Signals that end this agent, and with it its workers, who get the same. "
    "SIGUSR1 and SIGUSR2 go to the workers alone if they are not among them.",
)
@options.option(
    "--local-addr",
    section="Network",
    metavar="ADDR",
    help="Address at which the other machines reach this one; found if not given.",
)
@options.option(
    "--master-addr",
    section="Network",
    metavar="ADDR",
    default="",
    show_default="the machine of rank 0",
    help="MASTER_ADDR of the workers.",
)
@options.option(
    "--master-port",
    section="Network",
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
    help="How long machines that are done wait for the others.",
)
@options.option(
    "--coordinator-grace",
    section="Waiting",
    type=options.DURATION,
    metavar="DURATION",
    default="10m",
    help="How long training goes on while the coordinator is away.",
)
@options.option(
    "--log-format",
    section="Log",
    type=click.Choice(["auto", "console", "json"]),
    default="auto",
    help="auto: for people on a terminal, JSON lines elsewhere.",
)
@options.option(
    "--event-log-handler",
    section="Log",
    metavar="null|console|jsonl|NAME",
    show_default="jsonl with --event-log-file, else null",
    help="Who takes structured events and metrics; NAME is that of an installed handler.",
)
@options.option(
    "--event-log-file",
    section="Log",
    metavar="FILE",
    help="File to which the handler jsonl appends; created if needed.",
)
@options.replaced_option(
    "--rdzv-backend", hint="leave it out: the backend is the coordinator; see --coordinator"
)
@options.replaced_option("--rdzv-endpoint", hint="use --coordinator HOST:PORT")
@options.replaced_option(
    "--rdzv-conf", hint="use --join-timeout and --last-call; the rest needs no settings"
)
@options.replaced_option(
    "--node-rank", hint="leave it out: the coordinator assigns the ranks of machines"
)
@options.replaced_option(
    "--monitor-interval", hint="leave it out: the end of a worker is noticed at once"
)
@options.replaced_option(
    "--start-method", hint="leave it out: workers are processes of their own, started with exec"
)
@click.argument("script", required=False, metavar="SCRIPT")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
@click.pass_context
def join(ctx: click.Context, /, **params: Any) -> AgentConfig:
    """Join a training run with this machine and start its workers.

    SCRIPT and everything after it belong to the workers. Options may be spelled
    with '_' in place of '-'. A DURATION is a number of seconds, or has a unit:
    500ms, 30s, 1.5m, 2h.
    """
    return config_of(ctx, params)


def config_of(ctx: click.Context, params: dict[str, Any]) -> AgentConfig:
    """Build the configuration from the options, by their names, and check it and the host.

    Raises:
        UsageError: What was given cannot be carried out; see the tree below it.
    """
    coordinator = _coordinator_of(ctx, params)
    agents_min, agents_max = params["nnodes"]
    launch = _launch_of(params)
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
        agents_min=agents_min,
        agents_max=agents_max,
        local_world_size=params["nproc_per_node"],
        restarts_max=params["max_restarts"],
        role=params["role"],
        local_addr=params["local_addr"],
        master_addr=params["master_addr"],
        master_port=params["master_port"],
        join_timeout_s=params["join_timeout"],
        last_call_s=params["last_call"],
        exit_barrier_timeout_s=params["exit_barrier_timeout"],
        coordinator_grace_s=params["coordinator_grace"],
        shutdown_timeout_s=params["shutdown_timeout"],
        signals_to_handle=parse_signals(params["signals_to_handle"]),
        numa_binding=NumaMode(params["numa_binding"]) if params["numa_binding"] else None,
        is_local_rank_virtual=params["virtual_local_rank"],
        gpu_memory_wait_s=params["gpu_memory_wait"],
        watchdog=watchdog_of(params),
        output=output_of(params),
        log_format=params["log_format"],
        event_log_handler=params["event_log_handler"] or ("jsonl" if event_log else "null"),
        event_log_file=event_log,
        command=worker_command(
            params["script"], params["arguments"], launch=launch, python=sys.executable
        ),
    )
    _check(config)
    _check_devices(config, os.environ.get(VISIBLE_DEVICES))
    catalog.check_name(config.event_log_handler)
    _check_launch(params["script"], launch)
    # Last, so that a command line with another mistake leaves no file or directory behind.
    if config.event_log_handler == catalog.JSON_LINES:
        preflight.prepare_event_log(str(event_log))
    if params["log_dir"] is None:
        return config
    return dataclasses.replace(config, log_dir=preflight.prepare_log_dir(params["log_dir"]))


def _coordinator_of(ctx: click.Context, params: dict[str, Any]) -> str | None:
    """The coordinator's address, None for standalone; an argument beats the environment."""
    address, is_standalone = params["coordinator"], params["standalone"]
    if address is not None and is_standalone:
        is_address_typed = _is_typed(ctx, "coordinator")
        if is_address_typed == _is_typed(ctx, "standalone"):
            raise UsageError(
                "--coordinator and --standalone exclude each other",
                "--standalone trains on this machine alone and brings its own coordinator",
            )
        is_standalone = not is_address_typed
    if is_standalone:
        return None
    if address is None:
        raise UsageError(
            "neither --coordinator nor --standalone is given",
            "--coordinator HOST:PORT joins a run of several machines, "
            "--standalone trains on this one alone",
        )
    return str(address)


def _is_typed(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


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
    # A module is left to Python: to look for it would run its package's code.
    if launch == "script":
        preflight.check_script(script)
    elif launch == "program":
        preflight.check_program(script, search_path=os.environ.get("PATH"))


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
        _configure_logs(parsed)
        return run(parsed)
    except AgentError as error:
        fallback = "try 'agent join --help'" if isinstance(error, UsageError) else ""
        options.write_error("agent", str(error), error.hint or fallback)
        return error.exit_code


def _configure_logs(config: AgentConfig) -> None:
    # Imported here: it costs more than all of --help, which needs no log.
    from drumbeat.logs import configure_logs  # noqa: PLC0415

    configure_logs(config.log_format)
