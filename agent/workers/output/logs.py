"""Shell. Logs specs: which files the output of each worker goes to; ours, or a package's."""

from __future__ import annotations

import logging
import os
import pickle
import re
import shutil
import sys
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from drumbeat.agent.errors import LogDirectoryUnusable, LogsSpecsUnusable, UnknownLogsSpecs
from drumbeat.agent.host.installation import installed
from drumbeat.agent.settings.std import Std, StdOrMap, to_map
from drumbeat.text.format import describe
from worker_sdk import context

if TYPE_CHECKING:
    from drumbeat.agent.settings.config import AgentConfig

_LOGGER = logging.getLogger(__name__)

CONSOLE = ""  # in place of a path: the stream stays what it is in the launcher
GROUPS = ("torchrun.logs_specs", "drumbeat.logs_specs")  # of two with one name the later is meant
_TORCH = "torch.distributed.elastic.multiprocessing"


@dataclass
class LogsDest:
    """Files of each worker, by local rank; "" leaves an output on the console.

    ``tee_stdouts`` are those of ``stdouts`` that are shown on the console as well,
    ``filtered_stdout`` takes the selected lines of all of them; so for standard error.
    """

    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    filtered_stdout: str = ""
    filtered_stderr: str = ""


class LogsSpecs(ABC):
    """Decides where the output of workers goes.

    ``log_dir`` is the folder for the files; what None means is up to the subclass. ``redirects``
    are streams that go to a file instead of the console, ``tee`` those that go to both. Only the
    workers of ``local_ranks_filter`` may write to the console; None means all.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: StdOrMap = Std.NONE,
        tee: StdOrMap = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter

    @abstractmethod
    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the files of workers with these environments, by local rank; may add to `envs`."""

    @property
    @abstractmethod
    def root_log_dir(self) -> str:
        """Folder that holds everything."""


class DefaultLogsSpecs(LogsSpecs):
    """Gives each worker a folder, ``<log_dir>/<run_id>_<unique>/attempt_<n>/<local_rank>``.

    `n` is the round where an agent tells it, because two rounds may have the same restart count;
    else it is the restart count. `log_dir` is made if missing; NotADirectoryError is raised if it
    is a file. None: a new private folder among the temporary ones. `os.devnull`: no files at all;
    whatever is redirected stays on the console. An empty `local_ranks_filter` means all.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: StdOrMap = Std.NONE,
        tee: StdOrMap = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        self._mode = 0o777 if log_dir else 0o700
        if not log_dir:
            log_dir = tempfile.mkdtemp(prefix="drumbeat_")
        elif log_dir != os.devnull:
            if Path(log_dir).exists() and not Path(log_dir).is_dir():
                raise NotADirectoryError(f"log_dir: {log_dir} is a file, must be a directory")
            Path(log_dir).mkdir(parents=True, exist_ok=True)
        super().__init__(log_dir, redirects, tee, local_ranks_filter)
        self._log_dir = log_dir
        self._run_dir: Path | None = None

    @property
    def root_log_dir(self) -> str:
        """The given folder, or the private one."""
        return self._log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Make the folders, emptied if they exist; set ``TORCHELASTIC_ERROR_FILE`` in `envs`."""
        shown = dict.fromkeys(range(len(envs)), CONSOLE)
        if self._log_dir == os.devnull:
            for env in envs.values():
                env[context.ERROR_FILE] = ""
            out, err, errors = (dict.fromkeys(shown, os.devnull) for _ in range(3))
            return LogsDest(shown, dict(shown), out, err, errors, os.devnull, os.devnull)
        attempt_dir = self._make_attempt_dir(envs.get(0, {}))
        filtered = [str(attempt_dir / f"filtered_{name}.log") for name in ("stdout", "stderr")]
        dest = LogsDest(shown, dict(shown), {}, {}, {}, *filtered)
        redirects, tee = to_map(self._redirects, len(envs)), to_map(self._tee, len(envs))
        for rank in shown:
            worker_dir = attempt_dir / str(rank)
            worker_dir.mkdir()
            is_shown = not self._local_ranks_filter or rank in self._local_ranks_filter
            for stream, name, paths, tees in (
                (Std.OUT, "stdout.log", dest.stdouts, dest.tee_stdouts),
                (Std.ERR, "stderr.log", dest.stderrs, dest.tee_stderrs),
            ):
                if stream & (redirects[rank] | tee[rank]):
                    paths[rank] = str(worker_dir / name)
                elif not is_shown:
                    paths[rank] = os.devnull
                if stream & tee[rank] and is_shown:
                    tees[rank] = paths[rank]
            dest.error_files[rank] = str(worker_dir / "error.json")
            envs[rank][context.ERROR_FILE] = dest.error_files[rank]
        return dest

    def _make_attempt_dir(self, env: dict[str, str]) -> Path:
        if self._run_dir is None or not self._run_dir.is_dir():
            # The folder above goes too where a cleaner takes what is old.
            Path(self._log_dir).mkdir(self._mode, parents=True, exist_ok=True)
            # A run id may hold what a file name may not, above all a slash.
            name = re.sub(r"[^\w.+@=-]", "_", env.get(context.TORCH_RUN_ID, "run"))
            self._run_dir = Path(tempfile.mkdtemp(prefix=f"{name}_", dir=self._log_dir))
            _LOGGER.info("files of the workers are in %s", self._run_dir)
        attempt = env.get(context.ROUND) or env.get(context.RESTART_COUNT) or "0"
        attempt_dir = self._run_dir / f"attempt_{attempt}"
        shutil.rmtree(attempt_dir, ignore_errors=True)
        attempt_dir.mkdir()
        return attempt_dir

    def __repr__(self) -> str:
        return (
            f"DefaultLogsSpecs(root_log_dir={self._log_dir}, redirects={self._redirects!r}, "
            f"tee={self._tee!r}, local_ranks_filter={self._local_ranks_filter})"
        )

    def __eq__(self, other: object) -> bool:
        names = ("_log_dir", "_redirects", "_tee", "_local_ranks_filter")
        return isinstance(other, DefaultLogsSpecs) and all(
            getattr(self, name) == getattr(other, name) for name in names
        )

    __hash__ = None  # type: ignore[assignment]  # equal by value, and it may hold maps


def check_name(name: str) -> None:
    """Raise `UnknownLogsSpecs` unless there are such logs specs, without loading them."""
    if name not in (names := installed(*GROUPS)):
        raise UnknownLogsSpecs(name, tuple(sorted(names)))


def make_logs_specs(log_dir: str | None, config: AgentConfig) -> LogsSpecs:
    """Return what decides on the files of the workers, made as torchrun makes it.

    Names were checked; see `check_name`. Raises `LogsSpecsUnusable` or `LogDirectoryUnusable`.
    """
    name: Any = config.logs_specs
    ranks = set(config.local_ranks_filter) if config.local_ranks_filter is not None else None
    redirects, tee = Std.from_str(str(config.redirects)), Std.from_str(str(config.tee))
    if name is None:
        try:
            return DefaultLogsSpecs(log_dir, redirects, tee, ranks)
        except OSError as error:
            where = log_dir or "for temporary files"
            raise LogDirectoryUnusable(where, error.strerror or str(error)) from error
    try:
        if isinstance(name, bytes):
            name, path, content = pickle.loads(name)  # noqa: S301 - from the program that launched us
            # Last: what is ours is found where it was.
            sys.path.extend(entry for entry in path if entry not in sys.path)
            return cast("LogsSpecs", pickle.loads(content))  # noqa: S301 - the same
        factory = installed(*GROUPS)[name].load()
        specs = factory(
            log_dir=log_dir,
            redirects=_as_expected_by(factory, redirects),
            tee=_as_expected_by(factory, tee),
            local_ranks_filter=ranks,
        )
    except Exception as error:
        raise LogsSpecsUnusable(name, describe(error)) from error
    if not callable(getattr(specs, "reify", None)):
        raise LogsSpecsUnusable(name, f"{type(specs).__name__} has no method reify")
    return cast("LogsSpecs", specs)


def pickled(specs: LogsSpecs) -> bytes:
    """Return logs specs for the process of an agent; may raise `LogsSpecsUnusable`."""
    import cloudpickle  # noqa: PLC0415 - only programs that launch bring their own

    try:
        content = cloudpickle.dumps(specs)
    except Exception as error:
        # Whatever the user's types raise.
        raise LogsSpecsUnusable(type(specs).__name__, describe(error)) from error
    return pickle.dumps((type(specs).__name__, list(sys.path), content))


def _as_expected_by(factory: Any, streams: StdOrMap) -> Any:
    """Return `streams` in torch's own type for a class derived from torch's."""
    for base in getattr(factory, "__mro__", ()):
        std = getattr(sys.modules.get(base.__module__), "Std", None)
        if std and base.__module__.startswith(_TORCH):
            if isinstance(streams, Std):
                return std(int(streams))
            return {rank: std(int(stream)) for rank, stream in streams.items()}
    return streams
