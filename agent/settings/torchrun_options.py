"""Shell. Options of torchrun that ``agent join`` takes, although it needs less of them or nothing.

A command line of torchrun shall run as it is. What has no meaning here is ignored where
that does no harm, and said in a line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from agent.errors import UsageError
from drumbeat import options
from drumbeat.durations import parse_duration

F = TypeVar("F", bound=Callable[..., Any])

_UNNEEDED = {
    "rdzv_backend": ("--rdzv-backend", "agents meet at the coordinator"),
    "node_rank": ("--node-rank", "the coordinator assigns the ranks of machines"),
    "monitor_interval": ("--monitor-interval", "the end of a worker is noticed at once"),
    "start_method": ("--start-method", "workers are processes of their own, started with exec"),
    "run_path": ("--run-path", "each script is run by an interpreter of its own"),
}
"""By parameter: the option, and why its value decides nothing."""

_CONF_ALLOWED = "KEY=VALUE, separated by commas"
_DURATION_OF_CONF = {"join_timeout": "join_timeout", "last_call_timeout": "last_call"}
"""Keys of ``--rdzv-conf`` that mean something here: the parameter that each stands for."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the agents of a run meet, as the command line says."""

    coordinator: str | None
    """Its address; None: there is one machine, which brings its own."""

    join_timeout_s: float
    last_call_s: float

    master_addr: str
    """That of the workers, if it is fixed."""
    master_port: int

    notes: tuple[str, ...]
    """What was given and is not needed, for people."""


def torchrun_options(function: F) -> F:
    """Declare all of them; help does not show them."""
    for name in ("backend", "endpoint", "conf"):
        variable = f"PET_RDZV_{name.upper()}"
        function = options.option(f"--rdzv-{name}", hidden=True, variables=[variable])(function)
    for name in ("--node-rank", "--monitor-interval", "--start-method"):
        function = options.option(name, hidden=True)(function)
    flag = options.option("--run-path", is_flag=True, hidden=True, variables=["PET_RUN_PATH"])
    return flag(function)


def meeting_of(ctx: click.Context, params: Mapping[str, Any]) -> Meeting:
    """Return where the agents meet: torchrun's words count where ours are not given.

    Raises:
        UsageError: The words contradict each other, or say too little.
    """
    notes = [
        f"{option} is not needed: {why}"
        for name, (option, why) in _UNNEEDED.items()
        if _is_typed(ctx, name)
    ]
    durations, unneeded = _read_conf(params["rdzv_conf"] or "")
    if unneeded:
        notes.append(f"--rdzv-conf: {', '.join(unneeded)} not needed")
    for name in ("join_timeout", "last_call"):
        if name not in durations or ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            durations[name] = params[name]
    return Meeting(
        coordinator=_coordinator_of(ctx, params, notes),
        join_timeout_s=durations["join_timeout"],
        last_call_s=durations["last_call"],
        master_addr="" if _is_others(ctx, params, "master_addr") else params["master_addr"],
        master_port=0 if _is_others(ctx, params, "master_port") else params["master_port"],
        notes=tuple(notes),
    )


def _coordinator_of(ctx: click.Context, params: Mapping[str, Any], notes: list[str]) -> str | None:
    """The coordinator's address, None for standalone; an argument beats the environment."""
    address, is_standalone = params["coordinator"], params["standalone"]
    if address is not None and is_standalone:
        of_address, of_standalone = _weight(ctx, "coordinator"), _weight(ctx, "standalone")
        if of_address == of_standalone:
            raise UsageError(
                "--coordinator and --standalone exclude each other",
                "--standalone trains on this machine alone and brings its own coordinator",
            )
        is_standalone = of_standalone > of_address
    endpoint = params["rdzv_endpoint"]
    if is_standalone or address is not None:
        if endpoint and _is_typed(ctx, "rdzv_endpoint"):
            option = "--standalone" if is_standalone else "--coordinator"
            notes.append(f"--rdzv-endpoint is not needed beside {option}")
        return None if is_standalone else str(address)
    if params["nnodes"][1] == 1:
        if endpoint:
            notes.append(
                f"--rdzv-endpoint {endpoint} is not needed: one machine trains alone; "
                "--coordinator HOST:PORT joins a coordinator that runs elsewhere"
            )
        return None
    if not endpoint:
        raise UsageError(
            "--coordinator is missing: several machines (--nnodes) meet at a coordinator",
            "start 'coordinator serve' on any host, and give its address to all of them: "
            "--coordinator HOST:PORT",
        )
    address = _endpoint(endpoint, backend=params["rdzv_backend"] or "")
    notes.append(
        f"--rdzv-endpoint is taken for --coordinator {address}, "
        "where 'coordinator serve' has to run"
    )
    return address


def _endpoint(text: str, *, backend: str) -> str:
    """Read the address in ``--rdzv-endpoint``, at which torchrun's agents would meet."""
    hint = "start 'coordinator serve' on any host and name it: --coordinator HOST:PORT"
    if backend.startswith("etcd"):
        raise UsageError(f"--rdzv-endpoint {text} is that of etcd, which is not used here", hint)
    try:
        return str(options.parse_host_port(text))
    except ValueError as error:
        raise UsageError(f"--rdzv-endpoint: {error}", hint) from None


def _read_conf(text: str) -> tuple[dict[str, float], list[str]]:
    """Return the durations that ``--rdzv-conf`` sets, by parameter, and its other keys."""
    found, unneeded = dict[str, float](), list[str]()
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or not value:
            raise UsageError(
                f"--rdzv-conf: {part!r} is given, allowed is {_CONF_ALLOWED}",
                "or leave it out, and use --join-timeout and --last-call",
            )
        if key not in _DURATION_OF_CONF:
            unneeded.append(key)
            continue
        try:
            found[_DURATION_OF_CONF[key]] = parse_duration(value)
        except ValueError as error:
            raise UsageError(f"--rdzv-conf: {key}: {error}", "for example: 30, 30s, 5m") from None
    return found, unneeded


def _is_typed(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _weight(ctx: click.Context, name: str) -> int:
    """Order the sources of a value: a default, torchrun's variable, ours, the command line."""
    source = ctx.get_parameter_source(name)
    if source is not ParameterSource.ENVIRONMENT:
        return 3 if source is ParameterSource.COMMANDLINE else 0
    return 1 if _is_from_torchruns_variable(ctx, name) else 2


def _is_others(ctx: click.Context, params: Mapping[str, Any], name: str) -> bool:
    """Return whether a cluster's template names rank 0, which torchrun too then leaves open.

    Where agents of several machines meet, any of them may get rank 0.
    """
    is_alone = params["nnodes"][1] == 1
    return not is_alone and _weight(ctx, name) == 1


def _is_from_torchruns_variable(ctx: click.Context, name: str) -> bool:
    for param in ctx.command.params:
        if param.name == name and isinstance(param, options.CommandOption):
            found = param.found(ctx)
            return found is not None and found[0] in param.variables
    return False
