"""Shell. ``drumbeat.launch``: a function or a command as an elastic job, called like a function.

The agent runs in a process of its own. So nothing of the program that launches is changed or waited
for: its signal handlers, its event loop, its other children.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

from drumbeat.agent import errors
from drumbeat.agent.failures.exit_status import describe_ending
from drumbeat.agent.failures.process_failure import ProcessFailure
from drumbeat.agent.host.environment import inherited_environment
from drumbeat.agent.host.private_directory import PrivateDirectory, write_whole
from drumbeat.agent.launching import pickling
from drumbeat.agent.runtime import exchange, preflight
from drumbeat.agent.runtime.exchange import AgentOutcome
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.settings.launch_config import LaunchConfig
from drumbeat.agent.settings.run_ids import make_up_run_id
from drumbeat.agent.workers.output import logs
from drumbeat.agent.workers.output.logs import LogsSpecs
from drumbeat.command.own_process import own_process
from drumbeat.text.format import describe
from drumbeat.text.violation import Violation
from worker_sdk import context
from worker_sdk.errors import NO_ERROR_FILE
from worker_sdk.interpreter.signal_wakeup import wait_readable

WORKER = "drumbeat.agent.launching.worker"
NAME_LENGTH_MAX = 128


def launch(
    config: LaunchConfig, entrypoint: Callable[..., Any] | str
) -> Callable[..., dict[int, Any]]:
    """Return what runs ``entrypoint`` as an elastic job when it is called.

    The call blocks until the job is over, on all its hosts, and returns what this
    host's workers returned in the last round, by global rank; None for a command.
    Its positional arguments are those of every worker, a command's as texts.

    The call raises:
        ChildFailedError: Workers failed, of whatever host; it has the root cause.
        KeyboardInterrupt: After the workers were stopped.
        AgentError: Everything else that ends an agent; see ``drumbeat.agent.errors``.
    """
    return lambda *args: launch_agent(config, entrypoint, args)


elastic_launch = launch
"""Its name in ``torch.distributed.launcher``."""


def launch_agent(
    config: LaunchConfig, entrypoint: Callable[..., Any] | str, args: Sequence[Any]
) -> dict[int, Any]:
    """Run an elastic job: ``launch(config, entrypoint)(*args)`` by its other name in torch."""
    with closing(PrivateDirectory()) as private:
        directory = private.path
        if isinstance(entrypoint, str):
            name = entrypoint
            program = Program("program", name, tuple(map(str, args)))
        else:
            name = str(getattr(entrypoint, "__qualname__", type(entrypoint).__qualname__))
            name = name[:NAME_LENGTH_MAX]
            write_whole(directory / exchange.CALL, *_pack(name, entrypoint, tuple(args)))
            program = Program("function", name, (WORKER, str(directory)))
        more: dict[str, Any] = {
            "run_id": config.run_id or make_up_run_id(program.target),
            "is_run_id_made_up": not config.run_id,
            "python": sys.executable,
            "outcome_file": str(directory / exchange.OUTCOME),
            "preload_path": () if isinstance(entrypoint, str) else tuple(sys.path),
        }
        if config.logs_specs is not None and not isinstance(config.logs_specs, str):
            more["logs_specs"] = logs.pickled(cast("LogsSpecs", config.logs_specs))
        agent_config = preflight.check_host(config.agent_config(program, **more))
        outcome = _run(agent_config, directory)
        if outcome.exit_code == 0:
            values = directory / exchange.VALUES / str(outcome.round_id)
            return {rank: _value(values / str(rank), rank) for rank in outcome.ranks}
        if not outcome.root_causes:
            raise errors.RunFailed(agent_config.run_id, outcome.reason)
        error_files = outcome.error_files
        failures = {
            cause.rank: ProcessFailure.of(cause, error_files.get(cause.rank, NO_ERROR_FILE))
            for cause in outcome.root_causes
        }
        raise errors.ChildFailedError(name, failures)


def _pack(name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[bytes, bytes]:
    """Return where a worker looks for modules, and then what it does with them."""
    if not callable(function):
        allowed = "a function, or the program of a command"
        raise errors.InvalidConfiguration((Violation("entrypoint", repr(function), allowed),))
    try:
        call = pickling.dumps((function, args))
    except Exception as error:
        # Whatever the user's types raise.
        raise errors.FunctionNotPortable(name, describe(error)) from error
    return pickle.dumps((list(sys.path), list(sys.argv))), call


def _run(config: AgentConfig, directory: Path) -> AgentOutcome:
    """Run the agent in a process of its own, and return how it ended.

    Whatever interrupts this ends the agent first: a KeyboardInterrupt by SIGINT, else by SIGTERM.
    """
    write_whole(directory / exchange.AGENT, pickle.dumps(config))
    env = inherited_environment()
    # Of this process. The program is told of failures by an error, not in a file.
    env.pop(context.ERROR_FILE, None)
    lifeline, held = os.pipe2(os.O_CLOEXEC)
    try:
        process = subprocess.Popen(  # noqa: S603 - our own module
            own_process(
                "drumbeat.agent.launching.process", str(directory), str(lifeline), str(os.getpid())
            ),
            env=env,
            pass_fds=(lifeline,),
            # Ctrl-C is for the program; the agent hears of it from here.
            start_new_session=True,
        )
        _wait(process)
    finally:
        os.close(held)
        os.close(lifeline)
    outcome = exchange.read_outcome(directory)
    if outcome is None or (outcome.error is None and not outcome.is_verdict):
        code = process.returncode
        raise errors.AgentProcessLost("has ended" if code is None else describe_ending(code))
    if outcome.error is not None:
        raise outcome.error
    return outcome


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Wait until the process has ended; then raise what came in between, the first of it."""
    interruption: BaseException | None = None
    while process.returncode is None:
        try:
            # Unlike `Popen.wait`, this lets an interrupt through at once.
            with (
                suppress(ProcessLookupError),  # the program has reaped it
                os.fdopen(os.pidfd_open(process.pid), "rb", 0) as pidfd,
            ):
                while not wait_readable(pidfd.fileno(), None):
                    pass  # after a signal whose handler did not raise
            process.wait()
        except BaseException as error:  # noqa: BLE001 - of the program's signal handlers
            is_interrupt = isinstance(error, KeyboardInterrupt)
            process.send_signal(signal.SIGINT if is_interrupt else signal.SIGTERM)
            interruption = interruption or error
    if interruption is not None:
        raise interruption


def _value(path: Path, rank: int) -> Any:
    try:
        return exchange.read(path)
    except FileNotFoundError:
        return None  # also that of a worker that left by `os._exit(0)`
    except Exception as error:
        # Whatever the constructors of the user's types raise.
        raise errors.ValueNotReadable(rank, describe(error)) from error
