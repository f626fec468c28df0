"""Shell. Where an agent keeps its workers' files, and its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from agent.errors import LogDirectoryUnusable
from worker_sdk.context import FAULT_FILE_SUFFIX


class WorkerFiles:
    """The tree ``<log_dir>/<run_id>_<unique>/attempt_<round>/<local_rank>/``.

    Without a log directory it is a private temporary one that ends with the agent.
    """

    def __init__(self, log_dir: str | None, run_id: str) -> None:
        self._is_kept = log_dir is not None
        try:
            self._root = Path(tempfile.mkdtemp(prefix=f"{run_id}_", dir=log_dir))
        except OSError as error:
            where = log_dir or tempfile.gettempdir()
            raise LogDirectoryUnusable(where, error.strerror or str(error)) from error

    def prepare(self, round_id: int, local_world_size: int) -> dict[int, str]:
        """Make the directories of a round; return each worker's error file by local rank.

        The file for the stacks of a crash is made beside it: it tells the worker to use it.
        """
        files: dict[int, str] = {}
        for local_rank in range(local_world_size):
            path = self.error_file(round_id, local_rank)
            path.parent.mkdir(parents=True, exist_ok=True)
            Path(f"{path}{FAULT_FILE_SUFFIX}").touch()
            files[local_rank] = str(path)
        return files

    def error_file(self, round_id: int, local_rank: int) -> Path:
        """Return where a worker leaves its error."""
        return self._root / f"attempt_{round_id}" / str(local_rank) / "error.json"

    def close(self) -> None:
        """Remove the files, unless the user asked for them; then only those without content."""
        if not self._is_kept:
            shutil.rmtree(self._root, ignore_errors=True)
            return
        for path in self._root.rglob(f"*{FAULT_FILE_SUFFIX}"):
            with suppress(OSError):
                if not path.stat().st_size:
                    path.unlink()


def spool_directory(run_id: str) -> Path:
    """Return this user's private directory for undelivered failure records of a run.

    On the host's own temporary file system, so that a later agent of the same run
    on the same host finds what an earlier one could not deliver.
    Raises ``LogDirectoryUnusable`` if somebody else made it.
    """
    base = Path(tempfile.gettempdir()) / f"drumbeat-{os.getuid()}"
    try:
        base.mkdir(mode=0o700, exist_ok=True)
        found = base.lstat()
        if found.st_uid != os.getuid() or found.st_mode & 0o077 or base.is_symlink():
            raise LogDirectoryUnusable(str(base), "it is not a private directory of this user")
        directory = base / "spool" / run_id
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LogDirectoryUnusable(str(base), error.strerror or str(error)) from error
    return directory
