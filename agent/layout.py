"""Shell. Where an agent keeps files of its own."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from agent.errors import LogDirectoryUnusable


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
