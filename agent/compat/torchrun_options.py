"""Shell. Options of torchrun that ``agent join`` takes, although it needs less of them or nothing.

A command line of torchrun shall run as it is. What has no meaning here is ignored where
that does no harm, and said in a line.
"""

from collections.abc import Mapping
from typing import Any

import click

from drumbeat.agent.errors import UsageError
from drumbeat.command.options import Source, source_of
from drumbeat.command.settings import FLAG, Kind, Setting, named
from drumbeat.text.addresses import parse_addresses
from drumbeat.text.durations import parse_duration

_SAME = frozenset((
    "duplicate_stderr_filters", "duplicate_stdout_filters", "event_log_handler", "local_addr",
    "local_ranks_filter", "log_dir", "master_addr", "master_port", "max_restarts", "module",
    "nnodes", "no_python", "nproc_per_node", "rdzv_backend", "rdzv_conf", "rdzv_endpoint",
    "redirects", "role", "run_path", "shutdown_timeout", "signals_to_handle", "standalone", "tee",
    "virtual_local_rank",
))  # fmt: skip
"""Options that torchrun has by the same name, and reads from the variable ``PET_<NAME>``."""

_UNNEEDED = {
    "rdzv_backend": "agents meet at the coordinator",
    "node_rank": "the coordinator assigns the ranks of machines",
    "monitor_interval": "the end of a worker is noticed at once",
    "start_method": "workers are processes of their own, started with exec",
    "run_path": "each script is run by an interpreter of its own",
}
"""By parameter: why its value decides nothing."""

# Seconds in uninterruptible sleep after which torchrun restarts a worker group.
D_STATE_TIMEOUT = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"

_OF_CONF = {"join_timeout": "join_timeout", "last_call_timeout": "last_call"}
"""Keys of ``--rdzv-conf`` that mean something here: the setting that each stands for."""


def with_variables(**settings: Setting) -> dict[str, Setting]:
    """Have settings read from the variables of torchrun, too."""
    for name in _SAME & settings.keys():
        variables = (f"PET_{name.upper()}", *settings[name].variables)
        settings[name] = settings[name]._replace(variables=variables)
    return named(settings)


_TEXT = Setting(None, Kind("a text", str), "Torchrun", "", is_hidden=True)
_FLAG = _TEXT._replace(default=False, kind=FLAG)
TORCHRUN_ONLY = with_variables(
    **dict.fromkeys((*_UNNEEDED, "rdzv_endpoint", "rdzv_conf"), _TEXT) | {"run_path": _FLAG}
)


def translate(ctx: click.Context, params: dict[str, Any]) -> tuple[str, ...]:
    """Put what torchrun's options say into ours where ours are not given.

    Returns notes for the user on what was given and is not needed. Raises ``UsageError`` if the
    options contradict each other, or say too little.
    """
    notes = [
        f"--{name.replace('_', '-')} is not needed: {why}"
        for name, why in _UNNEEDED.items()
        if source_of(ctx, name) is Source.ARGUMENT
    ]
    durations, unneeded = _read_conf(params["rdzv_conf"] or "")
    if unneeded:
        notes.append(f"--rdzv-conf: {', '.join(unneeded)} not needed")
    params |= {
        name: value for name, value in durations.items() if source_of(ctx, name) is Source.DEFAULT
    }
    for name in ("master_addr", "master_port"):
        # A cluster's template names rank 0. Where agents of several machines meet, any of them
        # may get it, and torchrun too leaves it open then.
        if params["nnodes"][1] > 1 and source_of(ctx, name) is Source.VARIABLE_OF_TORCHRUN:
            params[name] = type(params[name])()
    params["coordinator"] = _coordinator_of(ctx, params, notes)
    return tuple(notes)


def unsupported(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return notes for the user on variables of torchrun that are set and have no effect here."""
    given = environment.get(D_STATE_TIMEOUT, "")
    try:
        is_on = float(given) > 0
    except ValueError:
        return ()  # torchrun takes it for unset, too
    if not is_on:
        return ()
    note = (
        f"{D_STATE_TIMEOUT}={given} is not supported: no limit counts the time of a worker in "
        "uninterruptible sleep (D state) alone; --progress-timeout kills a worker that makes no "
        "progress, whatever its state"
    )
    return (note,)


def _coordinator_of(ctx: click.Context, params: dict[str, Any], notes: list[str]) -> str | None:
    """The coordinator's address, None for standalone; an argument beats the environment."""
    address: str | None = params["coordinator"]
    is_standalone, endpoint = params["standalone"], params["rdzv_endpoint"]
    if address is not None and is_standalone:
        of_address, of_standalone = source_of(ctx, "coordinator"), source_of(ctx, "standalone")
        if of_address == of_standalone:
            raise UsageError(
                "--coordinator and --standalone exclude each other",
                "--standalone trains on this machine alone and brings its own coordinator",
            )
        is_standalone = of_standalone > of_address
    if is_standalone or address is not None:
        if endpoint and source_of(ctx, "rdzv_endpoint") is Source.ARGUMENT:
            option = "--standalone" if is_standalone else "--coordinator"
            notes.append(f"--rdzv-endpoint is not needed beside {option}")
        return None if is_standalone else address
    if params["nnodes"][1] == 1:
        if endpoint:
            notes.append(
                f"--rdzv-endpoint {endpoint} is not needed: one machine trains alone; "
                "--coordinator HOST:PORT joins a coordinator that runs elsewhere"
            )
        return None
    hint = "start 'coordinator serve' on any host and name it to all: --coordinator HOST:PORT"
    if not endpoint:
        problem = "--coordinator is missing: several machines (--nnodes) meet at a coordinator"
        raise UsageError(problem, hint)
    if (params["rdzv_backend"] or "").startswith("etcd"):
        problem = f"--rdzv-endpoint {endpoint} is that of etcd, which is not used here"
        raise UsageError(problem, hint)
    try:
        address = ",".join(parse_addresses(endpoint))
    except ValueError as error:
        raise UsageError(f"--rdzv-endpoint: {error}", hint) from None
    where = f"--coordinator {address}, where 'coordinator serve' has to run"
    notes.append(f"--rdzv-endpoint is taken for {where}")
    return address


def _read_conf(text: str) -> tuple[dict[str, float], list[str]]:
    """Return the durations that ``--rdzv-conf`` sets, by setting, and its other keys."""
    durations, unneeded = dict[str, float](), list[str]()
    for part in filter(None, map(str.strip, text.split(","))):
        key, _, value = map(str.strip, part.partition("="))
        if not key or not value:
            raise UsageError(
                f"--rdzv-conf: {part!r} is given, allowed is KEY=VALUE, separated by commas",
                "or leave it out, and use --join-timeout and --last-call",
            )
        if key not in _OF_CONF:
            unneeded.append(key)
            continue
        try:
            durations[_OF_CONF[key]] = parse_duration(value)
        except ValueError as error:
            raise UsageError(f"--rdzv-conf: {key}: {error}", "for example: 30, 30s, 5m") from None
    return durations, unneeded
