"""Shell. Imports what workers are to find imported, and sees what each import leaves behind."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from importlib import _bootstrap as _importlib
from importlib import import_module
from typing import Any, Self

from . import traces
from .modules import IMPORTED_WITH

_BOOTSTRAP: Any = _importlib  # what loads modules
SCRIPT_NAME = "__preload__"  # that a script for preloading has as ``__name__``
SOURCES_MAX = 10_000  # files that are watched for changes; those beyond are not
SOURCES_LOOK_S = 0.5  # that a look at them may take, on a slow file system
REASON_MAX = 500  # characters of what an import says of its failure
_LIBRARY = os.path.dirname(os.__file__)  # noqa: PTH120


class Unfit(Exception):
    """Workers can't be forked from this process, for a reason with the module that caused it."""


class Preloading:
    """Imports modules, with what they read and leave noted; a context, during the imports.

    ``reads`` has the variables of the environment that were read, and by which module. This
    process is to have no more open than ``own`` descriptors.
    """

    def __init__(self, own: Collection[str]) -> None:
        self.reads: dict[str, str] = {}
        self._seen = {*traces.threads(), *self._open()}
        # What is there already was left by what Python imports before any program.
        self._causes = dict.fromkeys(self._seen, "sitecustomize")
        self._own = {key for key in self._open() if key.split()[0] in own}
        self._stamps: dict[str, tuple[int, ...] | None] = {}
        self._glance = traces.glance()
        self._load: Callable[[Any], Any] = _BOOTSTRAP._load_unlocked  # noqa: SLF001
        self._environment: Any = type(os.environ)
        self._read: Callable[[Any, str], str] = self._environment.__getitem__

    def __enter__(self) -> Self:
        """Begin to watch."""

        def load(spec: Any) -> Any:
            self._note_source(spec.origin)
            try:
                return self._load(spec)
            finally:
                self._look(spec.name)

        def read(environment: Any, name: str) -> str:
            if name not in self.reads:
                self.reads[name] = _reader(sys._getframe(1))  # noqa: SLF001
            return self._read(environment, name)

        _BOOTSTRAP._load_unlocked = load  # noqa: SLF001
        self._environment.__getitem__ = read
        return self

    def __exit__(self, *_: object) -> None:
        """Leave Python as it was."""
        _BOOTSTRAP._load_unlocked = self._load  # noqa: SLF001
        self._environment.__getitem__ = self._read

    def load(self, names: Iterable[str], script: str) -> None:
        """Import these modules with what they stand for, and run a script unless it is ""."""
        for name in names:
            self._import(name)
            for other in IMPORTED_WITH.get(name, ()):
                try:
                    import_module(other)
                except ImportError:
                    continue  # not in this version
        if script:
            from runpy import run_path  # noqa: PLC0415 - few have a script

            self._note_source(script)
            try:
                run_path(script, run_name=SCRIPT_NAME)
            except BaseException as error:
                raise Unfit(f"running {script} failed: {describe(error)}") from error
            self._look(script)

    def _import(self, name: str) -> None:
        try:
            import_module(name)
        except BaseException as error:  # SystemExit is none of ours either
            raise Unfit(f"importing {name} failed: {describe(error)}") from error
        self._look(name)

    def _note_source(self, path: Any) -> None:
        """Note what a file is before it is read: it may be written meanwhile."""
        if isinstance(path, str) and _is_changed_by_users(path):
            self._stamps.setdefault(path, _stamp(path))

    def sources(self, script: str) -> dict[str, tuple[int, ...]]:
        """Return what tells a change of the files that modules came from and that users change."""
        files = [script] if script else []
        files += [getattr(module, "__file__", None) or "" for module in [*sys.modules.values()]]
        found = {}
        for path in files[:SOURCES_MAX]:
            if isinstance(path, str) and _is_changed_by_users(path):
                stamp = self._stamps[path] if path in self._stamps else _stamp(path)
                if stamp is not None:
                    found[path] = stamp
        return found

    def check(self) -> None:
        """Raise `Unfit` if something must not be forked; after the fork that was tried."""
        for number in traces.threads():
            name = traces.thread_name(number)
            raise Unfit(f"{self._cause(number)} started a thread ({name}), which forks lose")
        found = traces.descriptors()
        if lost := self._own - {_key(fd, target) for fd, target in found.items()}:
            number = min(lost).split()[0]
            raise Unfit(f"preloading closed descriptor {number}, or led it elsewhere")
        for fd, target in found.items():
            if _key(fd, target) not in self._own and (why := traces.sharing(target)):
                raise Unfit(f"{self._cause(_key(fd, target))} {why}, which forks would share")
        if place := traces.shared_memory():
            raise Unfit(
                f"preloading left shared memory ({place}), as a lock or value of multiprocessing "
                "has, which forks would share"
            )
        if traces.has_child():
            raise Unfit(f"{self._cause('child')} started a process, which forks could not wait for")
        if why := traces.accelerator():
            raise Unfit(f"{self._cause('accelerator')} {why}, which does not survive a fork")

    def _look(self, name: str) -> None:
        """Note that what is new was caused by this module."""
        glance = traces.glance()
        if glance == self._glance:
            return
        self._glance = glance
        found = {*traces.threads(), *self._open()} - self._seen
        if traces.has_child():
            found.add("child")
        if "accelerator" not in self._seen and traces.accelerator():
            found.add("accelerator")
        for each in found - self._seen:
            self._seen.add(each)
            self._causes[each] = name

    @staticmethod
    def _open() -> Iterator[str]:
        return (_key(fd, target) for fd, target in traces.descriptors().items())

    def _cause(self, key: str) -> str:
        return f"importing {self._causes[key]}" if key in self._causes else "preloading"


def changed(known: dict[str, tuple[int, ...]]) -> str:
    """Return a file that is not what it was, "" if none is found that is."""
    until = time.monotonic() + SOURCES_LOOK_S
    for path, stamp in known.items():
        if _stamp(path) != stamp:
            return path
        if time.monotonic() > until:
            break
    return ""


def describe(error: BaseException) -> str:
    """Return what is wrong in one line, whatever the error says of itself."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - of code that is not ours
        text = ""
    return f"{type(error).__name__}: {text[:REASON_MAX]}".splitlines()[0]


def _is_changed_by_users(path: str) -> bool:
    return not path.startswith(_LIBRARY) and {"site-packages", "dist-packages"}.isdisjoint(
        path.split("/")
    )


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    # The last is of what is copied with the time that it had elsewhere.
    return found.st_mtime_ns, found.st_size, found.st_ctime_ns


def _key(fd: str, target: str) -> str:
    return f"{fd} {target}"


def _reader(frame: Any) -> str:
    """Return the module that reads a variable, behind what reads it on behalf of others."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name not in ("os", "_collections_abc", "collections.abc"):
            return str(name)
        frame = frame.f_back
    return ""
