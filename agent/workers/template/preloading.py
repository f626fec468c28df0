"""Shell. Imports modules for workers, and notes what each import leaves behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from importlib import _bootstrap as _importlib
from importlib import import_module
from typing import Any, Self

from . import traces
from .differences.exit_callbacks import callbacks_dropped
from .differences.import_tree import ImportTree
from .differences.import_values import MAPPINGS, ImportValues
from .differences.random_state import RandomStates
from .differences.sources import Sources

IMPORTED_WITH = {
    # What DistributedDataParallel and FSDP import when they are first used; found by listing what
    # a step of each, a data loader with processes and a checkpoint add to ``sys.modules``.
    "torch": (
        "torch._dynamo",
        "torch.distributed",
        "torch.distributed.checkpoint",
        "torch.distributed.device_mesh",
        "torch.distributed.fsdp",
        "torch.nn.parallel",
        "torch.profiler._cupti_monitor",
        "torch.utils.data",
        "torch.utils.serialization",
        "multiprocessing.popen_fork",
        "multiprocessing.queues",
        "multiprocessing.synchronize",
    )
}
"""Modules that come with one that is named, as far as they exist in its version."""
_BOOTSTRAP: Any = _importlib  # what loads modules
SCRIPT_NAME = "__preload__"  # that a script for preloading has as ``__name__``
REASON_MAX = 500  # characters of what an import says of its failure


class Unfit(Exception):
    """Workers can't be forked from this process, for a reason with the module that caused it."""


class Preloading:
    """Imports modules, with what they read and leave noted; a context, during the imports.

    ``reads`` has the variables of the environment that were read, and by which module. ``own``
    are those that each worker has for itself. This process is to have no more open than ``fds``.
    """

    def __init__(self, fds: Collection[str], own: Collection[str], tree: ImportTree) -> None:
        self.reads: dict[str, str] = {}
        self.tree = tree
        self.sources = Sources()
        self.values = ImportValues(tree, self.sources)
        self.random = RandomStates()
        self._chains: dict[str, dict[tuple[str, ...], None]] = {}  # that have read each variable
        self._own = own
        self._seen = {*traces.threads(), *self._open()}
        # What is there already was left by what Python imports before any program.
        self._causes: dict[str, tuple[str, ...]] = dict.fromkeys(self._seen, ("sitecustomize",))
        self._fds = {key for key in self._open() if key.split()[0] in fds}
        self._glance = traces.glance()
        self._load: Callable[[Any], Any] = _BOOTSTRAP._load_unlocked  # noqa: SLF001
        self._environment: Any = type(os.environ)
        self._read: Callable[[Any, str], str] = self._environment.__getitem__

    def __enter__(self) -> Self:
        """Begin to watch."""

        def load(spec: Any) -> Any:
            self.sources.note(spec.origin)
            self.tree.begin(spec.name)
            module = None
            try:
                module = self._load(spec)
                return module
            finally:
                self.random.note_import(spec.name)
                self.values.note_import(spec.name)
                self._look(self.tree.loading)
                self.tree.end(is_done=module is not None)

        def read(environment: Any, name: str) -> str:
            self._note_read(name, sys._getframe(1))  # noqa: SLF001
            return self._read(environment, name)

        _BOOTSTRAP._load_unlocked = load  # noqa: SLF001
        self._environment.__getitem__ = read
        self.values.begin()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave Python as it was."""
        self.values.end()
        _BOOTSTRAP._load_unlocked = self._load  # noqa: SLF001
        self._environment.__getitem__ = self._read

    def load(self, names: Iterable[str], script: str, instead: Iterable[str]) -> None:
        """Import these modules with what they stand for, and run a script unless it is "".

        ``instead`` are modules that stand for those which are left out; they may fail.
        """
        names = list(names)
        for name in [*instead, *names]:
            self._import(name, is_wanted=name in names)
            for other in IMPORTED_WITH.get(name, ()):
                if not self.tree.is_left_out(other):
                    with suppress(ImportError):  # not in this version
                        import_module(other)
        if script:
            from runpy import run_path  # noqa: PLC0415 - few have a script

            self.sources.note(os.path.abspath(script))  # noqa: PTH100
            self.tree.begin(script)
            try:
                with callbacks_dropped(SCRIPT_NAME):
                    run_path(script, run_name=SCRIPT_NAME)
            except BaseException as error:  # noqa: BLE001 - SystemExit is none of ours either
                self.tree.leave_out([script], f"running {script} failed: {describe(error)}")
            finally:
                self._look((script,))
                self.tree.end(is_done=False)
        for module in [*sys.modules.values()]:  # also those from before imports were watched
            self.sources.note(getattr(module, "__file__", None))
        self.sources.finish()

    def _import(self, name: str, *, is_wanted: bool) -> None:
        try:
            import_module(name)
        except BaseException as error:  # noqa: BLE001 - SystemExit is none of ours either
            if is_wanted:
                self.tree.leave_out([name], f"importing {name} failed: {describe(error)}")
        self._look((name,))

    def _note_read(self, name: str, frame: Any) -> None:
        if not self.values.is_copying(frame):
            chain = self.tree.loading
            self.reads.setdefault(name, chain[-1] if chain else _reader(frame))
            self._chains.setdefault(name, {})[chain] = None
            if name in self._own:
                self.leave_out_readers(name)

    def readers(self) -> dict[str, tuple[str, ...]]:
        """Return which modules have read each variable."""
        return {
            name: tuple({chain[-1]: None for chain in chains if chain})
            for name, chains in self._chains.items()
        }

    def leave_out_readers(self, name: str) -> bool:
        """Leave out what has read a variable; whether it was a module that did."""
        chains = [chain for chain in self._chains.get(name, ()) if chain]
        for chain in chains:
            self.tree.leave_out(
                chain,
                f"{chain[-1]} read {name} when it was imported, and each worker has its own",
            )
        return bool(chains)

    def check(self) -> None:
        """Leave out what must not be forked; after the fork that was tried.

        Raises `Unfit` where it is unknown which module did it.
        """
        for number in traces.threads():
            name = traces.thread_name(number)
            self._refuse(number, f"started a thread ({name}), which forks lose")
        open_now = traces.descriptors()
        if lost := self._fds - {_key(fd, target) for fd, target in open_now.items()}:
            number = min(lost).split()[0]
            raise Unfit(f"preloading closed or redirected descriptor {number}")
        for fd, target in open_now.items():
            if _key(fd, target) not in self._fds and (why := traces.sharing(target)):
                self._refuse(_key(fd, target), f"{why}, which forks would share")
        if traces.has_child():
            self._refuse("child", "started a process, which forks could not wait for")
        if why := traces.accelerator():
            self._refuse("accelerator", f"{why}, which does not survive a fork")
        self.values.check()
        if not self.tree.has_grown and (place := traces.shared_memory()):
            raise Unfit(
                f"preloading left shared memory ({place}), as a lock or value of multiprocessing "
                "has, which forks would share"
            )

    def _refuse(self, key: str, what: str) -> None:
        """Leave out the modules that have caused something, if they are known."""
        chain = self._causes.get(key, ())
        if not chain or chain[-1] == "sitecustomize":
            raise Unfit(f"{f'importing {chain[-1]}' if chain else 'preloading'} {what}")
        self.tree.leave_out(chain, f"importing {chain[-1]} {what}")

    def _look(self, chain: tuple[str, ...]) -> None:
        """Note that what is new was caused by the last of these modules."""
        glance = traces.glance()
        if glance == self._glance:
            return
        self._glance = glance
        new = {*traces.threads(), *self._open()} - self._seen
        if traces.has_child():
            new.add("child")
        if "accelerator" not in self._seen and traces.accelerator():
            new.add("accelerator")
        for trace in new - self._seen:
            self._seen.add(trace)
            self._causes[trace] = chain

    @staticmethod
    def _open() -> Iterator[str]:
        return (_key(fd, target) for fd, target in traces.descriptors().items())


def describe(error: BaseException) -> str:
    """Return what is wrong in one line, whatever the error says of itself."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - of code that is not ours
        text = ""
    return f"{type(error).__name__}: {text[:REASON_MAX]}".splitlines()[0]


def _key(fd: str, target: str) -> str:
    return f"{fd} {target}"


def _reader(frame: Any) -> str:
    """Return the module that reads a variable, behind what reads it on behalf of others."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name not in MAPPINGS:
            return str(name)
        frame = frame.f_back
    return ""
