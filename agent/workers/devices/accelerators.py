"""Shell. Counts the devices of a type that torch sees, in a process that loads torch."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

ASK_TIMEOUT_S = 120.0  # to import torch from a slow file system, and to wake the driver
DEVICES = Path("/dev")
# Of AMD, Intel, Habana and Ascend; on a host without any of them torch is not asked.
_FILES = ("kfd", "dri/renderD*", "accel/accel*", "accel[0-9]*", "davinci[0-9]*")

# "auto" and "gpu" as in ``torch/distributed/run.py`` (2.13.0); other names are modules of torch.
_ASK = """
import sys, torch
name = sys.argv[1]
found = getattr(torch, {"auto": "accelerator", "gpu": "cuda"}.get(name, name), None)
print(found.device_count() if hasattr(found, "device_count") and found.is_available() else 0)
"""


class AcceleratorUnknown(Exception):
    """torch could not be asked; the message says why."""


def has_other_accelerators(device_dir: Path = DEVICES) -> bool:
    """Return whether the host has device files of accelerators that are not NVIDIA's."""
    return any(any(device_dir.glob(pattern)) for pattern in _FILES)


def count_accelerators(name: str, python: str, environment: Mapping[str, str]) -> int:
    """Return how many devices of this type torch sees in ``python``; 0 if it knows no such type.

    Blocks for as long as torch takes to import. Raises ``AcceleratorUnknown``.
    """
    answer = ask_torch(_ASK, name, python=python, environment=environment)
    if not answer.isdecimal():
        raise AcceleratorUnknown("torch gave no answer")
    return int(answer)


def ask_torch(
    program: str,
    *arguments: str,
    python: str,
    environment: Mapping[str, str],
    timeout_s: float = ASK_TIMEOUT_S,
) -> str:
    """Return the last line that a program, run by ``python``, writes.

    Blocks for as long as that takes. Raises ``AcceleratorUnknown``.
    """
    try:
        asked = subprocess.run(  # noqa: S603 - the interpreter of the workers
            [python, "-c", program, *arguments],
            env={**environment, "PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise AcceleratorUnknown(f"torch did not answer within {timeout_s:g} s") from None
    except OSError as error:
        raise AcceleratorUnknown(f"{python}: {error.strerror}") from None
    lines = (asked.stderr if asked.returncode else asked.stdout).strip().splitlines()
    if asked.returncode or not lines:
        raise AcceleratorUnknown(lines[-1] if lines else "torch gave no answer")
    return lines[-1]
