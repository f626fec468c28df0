"""Shell. Imports what workers are to find imported, and sees what each import leaves behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import _bootstrap as _importlib
from importlib import import_module
from typing import Any, Self

from . import traces
from .modules import IMPORTED_WITH

_BOOTSTRAP: Any = _importlib  # what loads modules
SCRIPT_NAME = "__preload__"  # that a script for preloading has as ``__name__``
SOURCES_MAX = 10_000  # files that are watched for changes; those beyond are not


class Unfit(Exception):
    """Workers can't be forked from this process, for a reason with the module that caused it."""


class Preloading:
    """Imports modules, with what they read and leave noted; a context, during the imports.

    ``reads`` has the variables of the environment that were read, and by which module.
    """

    def __init__(self) -> None:
        self.reads: dict[str, str] = {}
        self._causes: dict[str, str] = {}
        self._seen = {*traces.threads(), *self._open()}
        self._before = frozenset(self._seen)
        self._glance = traces.glance()
        self._load: Callable[[Any], Any] = _BOOTSTRAP._load_unlocked  # noqa: SLF001
        self._read: Callable[[Any, str], str] = type(os.environ).__getitem__

    def __enter__(self) -> Self:
        """Begin to watch."""

        def load(spec: Any) -> Any:
            try:
                return self._load(spec)
            finally:
                self._look(spec.name)

        def read(environment: Any, name: str) -> str:
            if name not in self.reads:
                self.reads[name] = _reader(sys._getframe(1))  # noqa: SLF001
            return self._read(environment, name)

        _BOOTSTRAP._load_unlocked = load  # noqa: SLF001
        type(os.environ).__getitem__ = read  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        """Leave Python as it was."""
        _BOOTSTRAP._load_unlocked = self._load  # noqa: SLF001
        type(os.environ).__getitem__ = self._read  # type: ignore[method-assign]

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

            try:
                run_path(script, run_name=SCRIPT_NAME)
            except BaseException as error:
                raise Unfit(f"running {script} failed: {_describe(error)}") from error
            self._look(script)

    def _import(self, name: str) -> None:
        try:
            import_module(name)
        except BaseException as error:  # SystemExit is none of ours either
            raise Unfit(f"importing {name} failed: {_describe(error)}") from error
        self._look(name)

    def check(self) -> None:
        """Raise `Unfit` if something must not be forked; after the fork that was tried."""
        for number in traces.threads():
            if number not in self._before:
                name = traces.thread_name(number)
                raise Unfit(f"{self._cause(number)} started a thread ({name}), which forks lose")
        for fd, target in traces.descriptors().items():
            if _key(fd, target) not in self._before and (why := traces.sharing(target)):
                raise Unfit(f"{self._cause(_key(fd, target))} {why}, which forks would share")
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


def sources(script: str) -> dict[str, tuple[int, int]]:
    """Return time and size of the files that modules came from and that users change."""
    library = os.path.dirname(os.__file__)  # noqa: PTH120
    files = [script] if script else []
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and not path.startswith(library):
            files.append(path)
    return {
        path: stamp
        for path in files[:SOURCES_MAX]
        if not {"site-packages", "dist-packages"}.intersection(path.split("/"))
        and (stamp := _stamp(path)) is not None
    }


def changed(known: dict[str, tuple[int, int]]) -> str:
    """Return a file that is not what it was, "" if all are."""
    return next((path for path, stamp in known.items() if _stamp(path) != stamp), "")


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


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


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
