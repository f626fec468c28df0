"""Shell. The command line of ``agent``: options to a checked configuration.

The options are torchrun's in meaning and spelling wherever drumbeat has the same thing.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

import click
from msgspec import Struct

from drumbeat.access import arguments
from drumbeat.agent.compat.torchrun_options import (
    TORCHRUN_ONLY,
    translate,
    unsupported,
    with_variables,
)
from drumbeat.agent.errors import AgentError, InvalidConfiguration, UsageError
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.settings.doctor import DoctorSettings
from drumbeat.agent.settings.kinds import NNODES
from drumbeat.agent.settings.run_ids import make_up_run_id
from drumbeat.command import loading, options
from drumbeat.command.settings import FLAG, QUIET, Setting, by_option, read_settings, settings_of
from worker_sdk import context

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
  2  usage, or the coordinator refused the agent or its token
  3  the coordinator could not be reached, or was away for too long
  4  an operator stopped the run
  5  the run failed and a restart rule or --no-progress-limit says that a new job would fail, too
"""

# In the order of the help: what every command line has to say comes first.
_DECLARED = sorted(settings_of(AgentConfig).items(), key=lambda item: item[1].section != "Run")
SETTINGS = with_variables(**dict(_DECLARED))
_MODULE = "SCRIPT is the name of a Python module, as for python -m."
_NO_PYTHON = "SCRIPT is a program; do not run it with Python."
_STANDALONE = "Train on this machine alone, without a coordinator."
COMMAND_LINE_ONLY = with_variables(
    standalone=Setting(False, FLAG, "Run", _STANDALONE),
    nnodes=Setting("1:1", NNODES, "Run", "Number of machines, or a range."),
    module=Setting(False, FLAG, "Workers", _MODULE, flags=("-m", "--module")),
    no_python=Setting(False, FLAG, "Workers", _NO_PYTHON),
    quiet=QUIET,
)
"""What only a command line can say; a program says it in other ways."""


@click.group(
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=options.DOCUMENTATION,
)
@options.version_option("agent")
def agent() -> None:
    """Run this machine's part of a distributed training job."""


@agent.command(
    cls=options.SectionedCommand,
    epilog=_EPILOG,
    options_metavar="[OPTIONS]",
    context_settings={"allow_interspersed_args": False},
    params=options.options_of(SETTINGS, COMMAND_LINE_ONLY, TORCHRUN_ONLY),
)
@click.argument("script", required=False, metavar="SCRIPT")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
@click.pass_context
def join(ctx: click.Context, /, **params: Any) -> AgentConfig:
    """Join a training run with this machine and start its workers.

    SCRIPT and everything after it belong to the workers. Options may be spelled with '_' in place
    of '-', and cut short while they stay unique. A DURATION is a number of seconds, or has a unit:
    500ms, 30s, 1.5m, 2h. Without --coordinator and with one machine, --standalone is understood.
    Command lines of torchrun and its PET_* variables work, too; ours count first.
    """
    # Imported here: neither --help nor a mistake of spelling needs it.
    with loading.without_collections():
        loading.load_structlog_alone()
        from drumbeat.agent.runtime import preflight  # noqa: PLC0415

    notes = (*translate(ctx, params), *unsupported(os.environ))
    arguments.settle(ctx, params, is_needed=params["coordinator"] is not None)
    params["min_nodes"], params["max_nodes"] = params["nnodes"]
    given = _run_id_of(ctx, params)
    params["log_level"] = options.log_level(params["log_level"], is_quiet=params["quiet"])
    if isinstance(params["nproc_per_node"], str):
        params["nproc_per_node"] = preflight.count_workers(params["nproc_per_node"])
    program = _program_of(params)
    params["run_id"] = make_up_run_id(program.target) if given is None else given
    config = AgentConfig(
        **{name: params[name] for name in SETTINGS},
        is_run_id_made_up=given is None,
        program=program,
        python=os.environ.get(preflight.PYTHON_VARIABLE) or sys.executable,
        notes=notes,
    )
    if violations := by_option(config.validate(), AgentConfig):
        raise InvalidConfiguration(violations)
    return preflight.check_host(config)


class StatusRequest(Struct, frozen=True):
    """``agent status``."""

    is_json: bool


_OF_DOCTOR = settings_of(DoctorSettings).items()
DOCTOR_SETTINGS = with_variables(
    **dict(sorted(_OF_DOCTOR, key=lambda item: item[1].section != "Options"))
)
_STATUS_EPILOG = """\b
Examples:
  agent status
  agent status -o json

\b
Exit codes:
  0  at least one agent of this user runs here
  1  none does
  2  usage
"""


@agent.command(
    "status",
    cls=options.SectionedCommand,
    epilog=_STATUS_EPILOG,
    params=options.options_of({"output": DOCTOR_SETTINGS["output"]}),
)
def status(*, output: str) -> StatusRequest:
    """Show this user's agents on this host, and their workers.

    No coordinator is asked: each agent keeps it in its private directory, in XDG_RUNTIME_DIR or
    TMPDIR. Where an agent has another TMPDIR than this shell, e.g. that of its job, set the same
    one. Directories of agents that died are listed below the others; the next agent removes them.
    """
    return StatusRequest(output == "json")


_DOCTOR_EPILOG = """\b
Examples:
  agent doctor --coordinator head:29400 --run-id mt5
  agent doctor --with gpu1,gpu2:29500
  agent doctor --listen 29500

\b
Exit codes:
  0  no failures
  1  failures
  2  usage
"""


@agent.command(
    "doctor",
    cls=options.SectionedCommand,
    epilog=_DOCTOR_EPILOG,
    params=options.options_of(DOCTOR_SETTINGS),
)
@click.pass_context
def doctor(ctx: click.Context, /, **params: Any) -> DoctorSettings:
    """Check this host before a job: coordinator, network, limits, space, GPUs, torch.

    Joins no run and changes nothing. Each problem comes with what to do about it; docs/doctor.md
    lists the checks.
    """
    arguments.settle(ctx, params, is_needed=params["coordinator"] is not None)
    config = DoctorSettings(**params)
    if violations := read_settings(config)[1] or config.access_violations():
        raise InvalidConfiguration(by_option(violations, DoctorSettings))
    return config


def _run_id_of(ctx: click.Context, params: dict[str, Any]) -> str | None:
    """Return the run id that was given; ``None`` if one is to be made up."""
    # DRUMBEAT_RUN_ID is an option for agents and a fact for workers. An agent within a worker
    # finds the fact, unless it was changed on the way.
    source, variable = options.source_of(ctx, "run_id"), os.environ.get(context.RUN_ID)
    is_outer = context.ROUND in os.environ and variable == os.environ.get(context.TORCH_RUN_ID)
    if source is options.Source.ARGUMENT or (source is not options.Source.DEFAULT and not is_outer):
        return str(params["run_id"])
    is_one_of_several = params["max_nodes"] > 1 or params["replica_group"] is not None
    if is_one_of_several and params["coordinator"] is not None:
        raise UsageError(
            "--run-id is missing: it is needed with --coordinator and several machines or "
            "--replica-group",
            "give all machines of this training job the same name, and no other job: --run-id NAME",
        )
    return None


def _program_of(params: dict[str, Any]) -> Program:
    if not params["script"]:
        raise UsageError(
            "there is nothing to run: SCRIPT is missing",
            "name the script, its arguments after it: agent join [OPTIONS] train.py --epochs 3",
        )
    kind: Literal["script", "module", "program"] = "script"
    if not params["run_path"]:  # as in torchrun it counts before the others
        if params["module"] and params["no_python"]:
            raise UsageError(
                "--module and --no-python exclude each other",
                "--module runs a Python module, --no-python a program of its own",
            )
        kind = "module" if params["module"] else "program" if params["no_python"] else "script"
    return Program(kind, params["script"], params["arguments"])


def _ask(config: StatusRequest | DoctorSettings) -> int:
    """Show what is asked for, and return the exit code."""
    code = 1
    try:
        with options.writing_output(AgentError):
            if isinstance(config, DoctorSettings):
                loading.load_grpc_quietly()
                from drumbeat.agent.doctor.checks import diagnose  # noqa: PLC0415

                code = diagnose(config, dict(os.environ))
            else:
                from drumbeat.agent.runtime.status_file import show  # noqa: PLC0415

                code = show(is_json=config.is_json)
    except KeyboardInterrupt:
        return options.EXIT_INTERRUPTED
    return code


def main(
    argv: Sequence[str] | None = None, *, run: Callable[[AgentConfig], int], path: str = "agent"
) -> int:
    """Read the command line, set up the log and ``run`` to the end; return its exit code."""

    def execute(config: AgentConfig | StatusRequest | DoctorSettings) -> int:
        if not isinstance(config, AgentConfig):
            return _ask(config)
        # Imported here: it costs more than all of --help, which needs no log.
        import structlog  # noqa: PLC0415

        from drumbeat.command.logs import configure_logs  # noqa: PLC0415

        configure_logs(config.log_format, level=config.log_level)
        for note in config.notes:
            structlog.get_logger().info("option of torchrun", message=note)
        return run(config)

    return options.run(agent, argv, execute, program="agent", path=path, errors=AgentError)
