"""Shell. The private directory of an agent or a launch, for its own files.

Its name is made up anew, so no other user can take it first. It belongs to the process that holds
a lock on it (flock on the directory itself, which also tells systemd-tmpfiles to leave it alone).
One that has no lock is what a dead process left, and goes with the next agent of this user.
"""

import errno
import fcntl
import glob
import hashlib
import os
import shutil
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path

from drumbeat.agent.errors import PrivateDirectoryUnusable
from drumbeat.agent.host.leftovers import PREFIX, kill_leftovers

SOCKET_PATH_BYTES_MAX = 107  # of a unix socket on Linux
SOCKET_NAME_BYTES_MAX = 8  # of those in a private directory

MEMORY = "/dev/shm"  # noqa: S108 - a private directory is made in it
# Where paths of sockets are short enough, if no other place has such; then memory, for a container
# without a writable disk.
SPARE_PLACES = ("/tmp", MEMORY)  # noqa: S108 - a private directory is made in it
# What of a dead agent's directory may be kept for another one; see `drumbeat.agent.session.spool`.
SPOOL = "spool"

SHOWN_MAX = 1024  # directories that one look at this user's agents takes in
ABANDONED_MAX = 256  # looked at by one agent; the next one takes the rest
ATTEMPTS_MAX = 100  # one that collects may take a directory before it is locked, but not so often


class PrivateDirectory:
    """A directory that this user alone can read, and this process alone owns, until ``close``.

    Of ``places``, the best first, those come later that others can replace what is in, and those
    last where the path of a socket would be too long. Raises `PrivateDirectoryUnusable` if it can
    be made in none of them.
    """

    def __init__(self, places: Sequence[str] | None = None) -> None:
        self._prefix = _prefix()
        left = SOCKET_PATH_BYTES_MAX - len(f"/{self._prefix}{'x' * 8}/") - SOCKET_NAME_BYTES_MAX
        self._places = sorted(
            dict.fromkeys((*(places or private_places()), *SPARE_PLACES)),
            key=lambda place: (len(os.fsencode(place)) > left, is_exposed(place)),
        )
        # Where it is. It may have been removed by a cleaner; see `ensure`.
        self.path, self._lock = self._make_somewhere()
        self._guard = threading.Lock()

    def ensure(self, *names: str) -> Path:
        """Return it, or a directory below it, made again if a cleaner has removed it.

        Where it was, if it can be there, for processes that know it by its path. Raises
        `PrivateDirectoryUnusable`, or ``OSError`` for what is below it.
        """
        with self._guard:  # files are made by a thread of their own
            if not _is_locked_there(self.path, self._lock):
                held = self._lock
                self.path, self._lock = self._make_again()
                os.close(held)
            path = self.path
        for name in names:
            path /= name
            path.mkdir(mode=0o700, exist_ok=True)
        return path

    def collect(self, is_wanted: Callable[[Path], bool]) -> None:
        """Remove what dead processes have left in the same places, and kill what outlived them.

        ``is_wanted`` says whether the spool in a directory, which is held meanwhile, has to stay.
        """
        with ExitStack() as held:
            abandoned: list[Path] = []
            for path in islice(_candidates(self._places, self._prefix), ABANDONED_MAX):
                if path != self.path and (lock := _hold(path, is_own=False)) is not None:
                    held.callback(os.close, lock)
                    abandoned.append(path)
            if abandoned:
                kill_leftovers(abandoned)
            for path in abandoned:
                _remove(path, is_spool_kept=is_wanted(path))

    def close(self) -> None:
        """Remove it with all that is in it; a spool that is not empty stays for another agent."""
        _remove(self.path, is_spool_kept=(self.path / SPOOL).exists())
        os.close(self._lock)

    def _make_somewhere(self) -> tuple[Path, int]:
        problems: list[str] = []
        for place in self._places:
            why = "another process removes it every time"
            try:
                for _ in range(ATTEMPTS_MAX):
                    path = Path(tempfile.mkdtemp(prefix=self._prefix, dir=place))
                    if (lock := _hold(path, is_own=True)) is None:
                        continue
                    if _is_private(os.fstat(lock)):
                        return path, lock
                    os.close(lock)
                    path.rmdir()
                    why = "other users can access directories that are made there"
                    break
            except OSError as error:
                why = error.strerror or str(error)
            problems.append(f"{place}: {why}")
        raise PrivateDirectoryUnusable("; ".join(problems))

    def _make_again(self) -> tuple[Path, int]:
        # What has made it meanwhile is at most a worker of ours that had something to say.
        with suppress(OSError):
            self.path.mkdir(mode=0o700, exist_ok=True)
            if _is_ours(self.path) and (lock := _hold(self.path, is_own=True)) is not None:
                return self.path, lock
        return self._make_somewhere()


def write_whole(path: Path, *parts: bytes) -> None:
    """Put parts into a file that this user alone can read, all or none. Raises ``OSError``."""
    draft = path.with_name(f"{path.name}.new")
    try:
        draft.touch(mode=0o600)
        with draft.open("wb") as file:
            file.writelines(parts)
        draft.replace(path)
    except OSError:  # the disk may be full
        with suppress(OSError):
            draft.unlink()
        raise


def private_directories() -> list[tuple[Path, bool]]:
    """Return this user's private directories on this host, and whether each has a living owner.

    Only those in the places that this process would choose from.
    """
    directories: list[tuple[Path, bool]] = []
    places = dict.fromkeys((*private_places(), *SPARE_PLACES))
    for path in islice(_candidates(places, _prefix()), SHOWN_MAX):
        lock = _hold(path, is_own=False)
        if lock is not None:
            os.close(lock)
        if lock is not None or path.exists():  # else it was removed meanwhile
            directories.append((path, lock is None))
    return directories


def private_places() -> list[str]:
    """Return where a private directory may be, the best first."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    places = [str(runtime)] if runtime.is_absolute() and _is_ours(runtime) else []
    with suppress(FileNotFoundError):  # none can be written
        places.append(tempfile.gettempdir())
    # While the disk of the first of these is full, Python names another one. What dead agents left
    # is there all the same.
    named = (os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP"))
    places += [path for path in named if Path(path).is_absolute()]
    return list(dict.fromkeys(places))


def is_exposed(place: str) -> bool:
    """Return whether another user than root can put something else where a directory of ours is.

    Who may write to a directory may rename what is in it, unless that is sticky as /tmp is.
    """
    try:
        path = Path(place).resolve()
        above = [folder.stat() for folder in (path, *path.parents)]
    except OSError:
        return True
    return any(
        status.st_uid not in (0, os.getuid())
        or (status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX)
        for status in above
    )


def _prefix() -> str:
    """Return how names of this user's directories begin; hosts may share a file system."""
    host = hashlib.blake2s(socket.gethostname().encode(), digest_size=4).hexdigest()
    return f"{PREFIX}{os.getuid()}-{host}-"


def _candidates(places: Iterable[str], prefix: str) -> Iterator[Path]:
    """Yield this user's directories; those of others, who may make any number, do not count."""
    starts = [glob.escape(f"{place}/{prefix}") for place in places]
    paths = (path for start in starts for path in glob.iglob(f"{start}*"))  # noqa: PTH207
    return filter(_is_ours, map(Path, paths))


def _is_ours(path: Path) -> bool:
    """Return whether it is a directory, and no link to one, that this user alone can use."""
    try:
        return _is_private(path.lstat())
    except OSError:
        return False


def _is_private(status: os.stat_result) -> bool:
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return is_own and not status.st_mode & 0o077


def _is_locked_there(path: Path, lock: int) -> bool:
    """Return whether a path still leads to what was locked."""
    try:
        return os.path.samestat(os.fstat(lock), path.lstat())
    except OSError:
        return False


def _hold(path: Path, *, is_own: bool) -> int | None:
    """Return a descriptor that holds a directory; None if it is held, gone or of another user.

    Our own one needs no lock where the file system has none: no agent collects there then.
    """
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if is_own and not isinstance(error, FileNotFoundError):
            raise
        return None
    with suppress(OSError):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if not is_own or error.errno == errno.EWOULDBLOCK:
                raise
        if (is_own or _is_ours(path)) and _is_locked_there(path, lock):
            return lock
    os.close(lock)
    return None


def _remove(path: Path, *, is_spool_kept: bool) -> None:
    if not is_spool_kept:
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        for child in path.iterdir():
            if child.is_symlink() or not child.is_dir():
                child.unlink()
            elif child.name != SPOOL:
                shutil.rmtree(child, ignore_errors=True)
