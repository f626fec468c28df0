"""Shell. Variables that a program sets after preloaded modules have read them.

In a new process they would be read after that. Some can be applied; the others are reported. What a
program sets after it has imported the reader itself has no effect in a new process either.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any

from .import_values import namespace

# What C code reads while a package is imported; found by watching ``getenv`` with torch 2.13.0
# and numpy 2.4. Names that end with "_" stand for all that begin so.
_READ_BY_C = {
    "torch": (
        *("OMP_", "GOMP_", "KMP_", "MKL_", "MKLDNN_", "ONEDNN_", "DNNL_", "KINETO_USE_DAEMON"),
        *("TORCH_CPP_LOG_LEVEL", "TORCH_SHOW_CPP_STACKTRACES", "TORCH_DISTRIBUTED_DEBUG"),
        *("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_BLAS_PREFER_", "TORCH_LINALG_PREFER_"),
        *("TORCH_CUSTOM_TERMINATE", "PYTORCH_API_USAGE_STDERR", "TORCH_ROCM_FA_PREFER_CK"),
    ),
    "numpy": ("OMP_NUM_THREADS", "OPENBLAS_", "GOTO_NUM_THREADS", "NPY_"),
    "tqdm": ("TQDM_",),  # which it picks while it goes through all variables
}
_THREADS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")  # the first one that is set counts


def _set_threads(torch: Any) -> None:
    values = [os.environ[name] for name in _THREADS if os.environ.get(name)]
    wanted = int(values[0].partition(",")[0])
    if torch.backends.mkl.is_available():  # which takes no more than there are
        wanted = min(wanted, len(os.sched_getaffinity(0)))
    torch.set_num_threads(wanted)


def _set_logs(torch: Any) -> None:
    torch._logging._internal._init_logs()  # noqa: SLF001 - as torch does when it is imported


_APPLIED: dict[str, Callable[[Any], None]] = {
    **dict.fromkeys(_THREADS, _set_threads),
    **dict.fromkeys(("TORCH_LOGS", "TORCH_LOGS_OUT", "TORCH_LOGS_FORMAT"), _set_logs),
    "TORCH_DISTRIBUTED_DEBUG": lambda torch: torch.distributed.set_debug_level_from_env(),
}


class LateSettings:
    """Notices in a worker what it sets too late; costs nothing but when a variable is set.

    ``readers`` has the variables that preloading has read, and which modules did; ``seen`` the
    values that they may have seen.
    """

    def __init__(
        self, readers: Mapping[str, Collection[str]], seen: Collection[Mapping[str, str]]
    ) -> None:
        self._readers = readers
        self._seen = seen
        self._modules = frozenset(sys.modules) - {"__main__"}
        self._packages = [name for name in _READ_BY_C if name in sys.modules]
        self._reported: set[str] = set()
        self._tell: Callable[[str, str], None] = lambda _name, _reader: None

    def watch(self, tell: Callable[[str, str], None] | None) -> None:
        """Begin to notice; ``tell`` takes a variable and its reader, once each."""
        if tell is not None:
            self._tell = tell
        environment: Any = type(os.environ)
        owner, set_item, delete = os.getpid(), environment.__setitem__, environment.__delitem__

        def __setitem__(mapping: Any, name: Any, value: Any) -> None:  # noqa: N807
            set_item(mapping, name, value)
            if os.getpid() == owner:
                self._note(os.fsdecode(name), os.fsdecode(value), sys._getframe(1))  # noqa: SLF001

        def __delitem__(mapping: Any, name: Any) -> None:  # noqa: N807
            delete(mapping, name)
            if os.getpid() == owner:
                self._note(os.fsdecode(name), None, sys._getframe(1))  # noqa: SLF001

        # A traceback shows them as what they stand for.
        for new, old in ((__setitem__, set_item), (__delitem__, delete)):
            code = old.__code__
            new.__code__ = new.__code__.replace(
                co_filename=code.co_filename, co_qualname=code.co_qualname
            )
        environment.__setitem__, environment.__delitem__ = __setitem__, __delitem__

    def _note(self, name: str, value: str | None, frame: Any) -> None:
        with suppress(Exception):  # of modules that are not ours; the program set the variable
            self._compare(name, value, frame)

    def _compare(self, name: str, value: str | None, frame: Any) -> None:
        readers = [*self._readers.get(name, ()), *self._readers_in_c(name)]
        if not readers or any(seen.get(name) == value for seen in self._seen):
            return
        held = self._held(frame)
        readers = [reader for reader in readers if reader.partition(".")[0] not in held]
        if not readers:
            return
        apply = _APPLIED.get(name)
        if apply is not None and value is not None and "torch" in self._packages:
            with suppress(Exception):  # a value that torch refuses: it is reported
                apply(sys.modules["torch"])
                return
        if name not in self._reported:
            self._reported.add(name)
            self._tell(name, readers[0])

    def _readers_in_c(self, name: str) -> list[str]:
        return [
            package
            for package in self._packages
            if any(
                name == pattern or (pattern.endswith("_") and name.startswith(pattern))
                for pattern in _READ_BY_C[package]
            )
        ]

    def _held(self, frame: Any) -> set[str]:
        """Return the packages that the worker's own code has imported by now."""
        own = sys.modules.keys() - self._modules
        places = [namespace(sys.modules[name]) for name in own]
        while frame is not None:
            if frame.f_globals.get("__name__") not in self._modules:
                places.append(frame.f_locals)
            frame = frame.f_back
        packages = {package for place in places for package in _packages(place)}
        while (
            more := {
                package
                for name in [*sys.modules]
                if name.partition(".")[0] in packages and name in self._modules
                for package in _packages(namespace(sys.modules[name]))
            }
            - packages
        ):
            packages |= more
        return packages


def _packages(place: Mapping[str, Any]) -> set[str]:
    """Return the packages that a module has imported something from, as its globals show."""
    names = set()
    for name, value in [*place.items()]:
        kind = type(value)  # `isinstance` would ask objects that load what they stand for
        if issubclass(kind, ModuleType):
            names.add(namespace(value).get("__name__"))
        elif issubclass(kind, type | FunctionType) and not str(name).startswith("__"):
            names.add(value.__module__)
    return {str(name).partition(".")[0] for name in names}
