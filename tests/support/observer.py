# ruff: noqa: E402, PTH109, PTH123, PTH208, ANN - what it imports it must not find imported
"""A worker's program that writes down what it finds of itself as it begins."""

import sys

MODULES = sorted(sys.modules)

import faulthandler
import gc
import inspect
import json
import locale
import multiprocessing
import os
import resource
import signal
import threading
import warnings
from typing import Any

REAL_TIME = range(32, 34)  # signals of the C library, which tells nothing of them


def stream(which: Any) -> list[object]:
    kinds = type(which).__name__, type(which.buffer).__name__
    modes = which.line_buffering, which.write_through, which.isatty(), which.name, which.mode
    return [*kinds, which.fileno(), which.encoding, which.errors, *modes]


def process() -> dict[str, object]:
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file)
    names = ("Sig", "Shd", "Cap", "NoNew", "Seccomp", "Threads", "Uid", "Gid", "Groups", "Cpus_a")
    found: dict[str, Any] = {
        name: value.strip() for name, value in status.items() if name.startswith(names)
    }
    found.pop("SigQ", None)  # how much of a limit the user's processes have used
    for name in ("cmdline", "comm", "oom_score_adj", "cgroup"):
        with open(f"/proc/self/{name}") as file:
            found[name] = file.read()
    with open("/proc/self/environ") as file:
        found["environ"] = sorted(file.read().split("\0"))
    umask = os.umask(0)
    os.umask(umask)
    limits = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    return found | {
        "umask": umask,
        "nice": os.nice(0),
        "affinity": sorted(os.sched_getaffinity(0)),
        "limits": [resource.getrlimit(getattr(resource, name)) for name in limits],
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "leads its session": os.getsid(0) == os.getpgid(0) == os.getpid(),
        "directory": os.getcwd(),
        "environment": dict(os.environ),
        "threads": len(os.listdir("/proc/self/task")),
    }


def interpreter() -> dict[str, object]:
    main = sys.modules["__main__"]
    numbers = sorted(signal.valid_signals() - set(REAL_TIME))
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "flags": str(sys.flags),
        "main": {
            name: str(value)
            for name, value in vars(main).items()
            if name.startswith("__") and "0x" not in str(value)
        },
        "main is this": vars(main) is globals(),
        "signals": [str(signal.getsignal(number)) for number in numbers],
        "streams": [stream(which) for which in (sys.stdin, sys.stdout, sys.stderr)],
        "threads": [thread.name for thread in threading.enumerate()],
        "main thread": threading.main_thread().ident == threading.get_ident(),
        "multiprocessing": multiprocessing.current_process().name,
        "parent process": str(multiprocessing.parent_process()),
        "faulthandler": faulthandler.is_enabled(),
        "hook": sys.excepthook is sys.__excepthook__,
        "warnings": [str(each) for each in warnings.filters],
        "collector": [gc.isenabled(), gc.get_threshold()],
        "finders": [getattr(each, "__name__", type(each).__name__) for each in sys.meta_path],
        "stack": [frame.function for frame in inspect.stack()],
        "error": str(sys.exc_info()),
        "locale": [locale.getlocale(), sys.getfilesystemencoding()],
        "limits": [sys.getrecursionlimit(), sys.getswitchinterval()],
        "traced": [str(sys.gettrace()), str(sys.getprofile()), sys.dont_write_bytecode],
        "reading variables": type(os.environ).__getitem__.__code__.co_filename,
    }


if __name__ == "__main__":
    print(json.dumps({"process": process(), "interpreter": interpreter(), "modules": MODULES}))
