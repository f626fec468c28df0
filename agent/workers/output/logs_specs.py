"""Shell. Finds and makes what decides on the files of workers: ours, or an installed package's."""

import pickle
import sys
import tempfile
from typing import Any, cast

from agent.errors import LogDirectoryUnusable, LogsSpecsUnusable, UnknownLogsSpecs
from agent.runtime.installation import installed
from agent.settings.config import AgentConfig
from agent.workers.output.logs import DefaultLogsSpecs, LogsSpecs
from agent.workers.output.std import Std, StdOrMap
from drumbeat.format import describe

GROUPS = ("torchrun.logs_specs", "drumbeat.logs_specs")
"""Of two with one name the later is meant."""

_TORCH = "torch.distributed.elastic.multiprocessing"


def check_name(name: str) -> None:
    """Raise `UnknownLogsSpecs` unless there are such logs specs, without loading them."""
    if name not in (found := installed(*GROUPS)):
        raise UnknownLogsSpecs(name, tuple(sorted(found)))


def make_logs_specs(log_dir: str | None, config: AgentConfig) -> LogsSpecs:
    """Return what decides on the files of the workers, made as torchrun makes it.

    Raises `UnknownLogsSpecs`, `LogsSpecsUnusable` or `LogDirectoryUnusable`.
    """
    if isinstance(config.logs_specs, bytes):
        return _unpickled(config.logs_specs)
    ranks = set(config.local_ranks_filter) if config.local_ranks_filter is not None else None
    redirects, tee = Std.from_str(str(config.redirects)), Std.from_str(str(config.tee))
    if config.logs_specs is not None:
        return _make_foreign(str(config.logs_specs), log_dir, (redirects, tee), ranks)
    try:
        return DefaultLogsSpecs(log_dir, redirects, tee, ranks)
    except OSError as error:
        where = log_dir or tempfile.gettempdir()
        raise LogDirectoryUnusable(where, error.strerror or str(error)) from error


def pickled(specs: LogsSpecs) -> bytes:
    """Return logs specs for the process of an agent; may raise `LogsSpecsUnusable`."""
    import cloudpickle  # noqa: PLC0415 - only programs that launch bring their own

    try:
        content = cloudpickle.dumps(specs)
    except Exception as error:
        # Whatever the user's types raise.
        raise LogsSpecsUnusable(type(specs).__name__, describe(error)) from error
    return pickle.dumps((type(specs).__name__, list(sys.path), content))


def _unpickled(data: bytes) -> LogsSpecs:
    name, path, content = pickle.loads(data)  # noqa: S301 - from the program that launched us
    # Last: what is ours is found where it was.
    sys.path.extend(entry for entry in path if entry not in sys.path)
    try:
        return cast("LogsSpecs", pickle.loads(content))  # noqa: S301 - the same
    except Exception as error:
        raise LogsSpecsUnusable(name, describe(error)) from error


def _make_foreign(
    name: str, log_dir: str | None, streams: tuple[StdOrMap, StdOrMap], ranks: set[int] | None
) -> LogsSpecs:
    check_name(name)
    try:
        factory = installed(*GROUPS)[name].load()
        redirects, tee = (_as_expected_by(factory, each) for each in streams)
        specs = factory(log_dir=log_dir, redirects=redirects, tee=tee, local_ranks_filter=ranks)
    except Exception as error:
        raise LogsSpecsUnusable(name, describe(error)) from error
    if not callable(getattr(specs, "reify", None)):
        raise LogsSpecsUnusable(name, f"{type(specs).__name__} has no method reify")
    return cast("LogsSpecs", specs)


def _as_expected_by(factory: Any, streams: StdOrMap) -> Any:
    """Return `streams` in torch's own type for a class derived from torch's."""
    for base in getattr(factory, "__mro__", ()):
        if base.__module__.startswith(_TORCH) and (
            std := getattr(sys.modules.get(base.__module__), "Std", None)
        ):
            if isinstance(streams, Std):
                return std(int(streams))
            return {rank: std(int(stream)) for rank, stream in streams.items()}
    return streams
