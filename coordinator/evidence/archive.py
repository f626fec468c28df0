"""Shell. Writes an archive of evidence: all of it or nothing, for this user alone."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from drumbeat.access.redactor import Redactor
from drumbeat.coordinator.evidence.contents import Evidence, files_of

UNFINISHED = ".drumbeat-evidence-"  # how names of files begin that are being written


def stamp() -> str:
    """Return the time of day for names of archives; later ones sort behind."""
    now_ms = time.time_ns() // 1_000_000
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(now_ms / 1000))}.{now_ms % 1000:03d}Z"


def packed(evidence: Evidence) -> bytes:
    """Return evidence as one compressed archive, below one folder, without secrets."""
    archive, redact = io.BytesIO(), Redactor(os.environ, os.path.exists)
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for file in files_of(evidence, redact):
            entry = tarfile.TarInfo(f"{evidence.name}/{file.name}")
            entry.size, entry.mode, entry.mtime = len(file.content), 0o600, int(time.time())
            tar.addfile(entry, io.BytesIO(file.content))
    return archive.getvalue()


@contextmanager
def new_file(path: Path, *, may_replace: bool = False) -> Iterator[Callable[[bytes], None]]:
    """Yield what writes a file, of which nothing is left if it fails. Raises ``OSError``.

    That the directory can be written, and that the file is not there, is known before the yield.
    """
    _check(path, may_replace=may_replace)
    descriptor, unfinished = tempfile.mkstemp(prefix=UNFINISHED, dir=path.parent)

    def write(content: bytes) -> None:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
        _check(path, may_replace=may_replace)
        Path(unfinished).replace(path)

    try:
        with os.fdopen(descriptor, "wb") as file:
            yield write
    finally:
        with suppress(FileNotFoundError):  # it has its name
            Path(unfinished).unlink()


def _check(path: Path, *, may_replace: bool) -> None:
    if not may_replace and os.path.lexists(path):
        raise FileExistsError(str(path))
