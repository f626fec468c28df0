"""Shell. Where the output of each worker goes, and the folders for it."""

import logging
import os
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

from agent.workers.output.std import Std, StdOrMap, to_map
from worker_sdk import context

_LOGGER = logging.getLogger(__name__)

CONSOLE = ""
"""In place of a path: the stream stays what it is in the launcher."""


@dataclass
class LogsDest:
    """Files of each worker, by local rank."""

    stdouts: dict[int, str] = field(default_factory=dict)
    """File that takes the standard output; "" leaves it on the console."""
    stderrs: dict[int, str] = field(default_factory=dict)
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    """Those of `stdouts` that are shown on the console as well."""
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    """Where a worker records the error it dies of."""
    filtered_stdout: str = ""
    """File for the selected lines of all `tee_stdouts`."""
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
        """Return the files of the workers with these environments, by local rank.

        May add to `envs` what a worker has to know of its files.
        """

    @property
    @abstractmethod
    def root_log_dir(self) -> str:
        """Folder that holds everything."""


class DefaultLogsSpecs(LogsSpecs):
    """Gives each worker a folder of its own.

    ::

        <log_dir>/<run_id>_<unique>/attempt_<n>/filtered_stdout.log, filtered_stderr.log
        <log_dir>/<run_id>_<unique>/attempt_<n>/<local_rank>/stdout.log, stderr.log, error.json

    `n` is the round where an agent tells it, because two rounds may have the same restart count;
    else it is the restart count.

    `log_dir` is made if missing; NotADirectoryError is raised if it is a file. None: a new private
    folder among the temporary ones. `os.devnull`: no files at all; whatever is redirected stays on
    the console. An empty `local_ranks_filter` means all.
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
        self._log_dir = log_dir
        self._run_dir: Path | None = None
        super().__init__(log_dir, redirects, tee, local_ranks_filter)

    @property
    def root_log_dir(self) -> str:
        """The given folder, or the private one."""
        return self._log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Make the folders, emptied if they exist, and return the files in them.

        Sets ``TORCHELASTIC_ERROR_FILE`` in each of `envs`.
        """
        shown = dict.fromkeys(range(len(envs)), CONSOLE)
        if self._log_dir == os.devnull:
            for env in envs.values():
                env[context.ERROR_FILE] = ""
            none = dict.fromkeys(shown, os.devnull)
            both = (dict(none), dict(none))
            return LogsDest(shown, dict(shown), *both, none, os.devnull, os.devnull)
        attempt_dir = self._make_attempt_dir(envs.get(0, {}))
        filtered = [str(attempt_dir / f"filtered_{name}.log") for name in ("stdout", "stderr")]
        dest = LogsDest(shown, dict(shown))
        dest.filtered_stdout, dest.filtered_stderr = filtered
        redirects, tee = to_map(self._redirects, len(envs)), to_map(self._tee, len(envs))
        for rank in shown:
            worker_dir = attempt_dir / str(rank)
            worker_dir.mkdir()
            stdout, stderr = str(worker_dir / "stdout.log"), str(worker_dir / "stderr.log")
            is_shown = not self._local_ranks_filter or rank in self._local_ranks_filter
            for stream, path, paths, tees in (
                (Std.OUT, stdout, dest.stdouts, dest.tee_stdouts),
                (Std.ERR, stderr, dest.stderrs, dest.tee_stderrs),
            ):
                if stream & (redirects[rank] | tee[rank]):
                    paths[rank] = path
                elif not is_shown:
                    paths[rank] = os.devnull
                if stream & tee[rank] and is_shown:
                    tees[rank] = path
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
        if not isinstance(other, DefaultLogsSpecs):
            return NotImplemented
        names = ("_log_dir", "_redirects", "_tee", "_local_ranks_filter")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment]  # equal by value, and it may hold maps
