"""An environment with NVIDIA's resiliency extension, made on demand: ``.venv-nvrx``.

It has that package and what it imports, and sees all of ours: torch is not there twice.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from bench.harness import BenchmarkError
from bench.ways import ROOT

VERSION = "0.4.1"
DIRECTORY = ROOT / ".venv-nvrx"
PYTHON = DIRECTORY / "bin" / "python"
PACKAGES = (
    f"nvidia-resiliency-ext=={VERSION}",
    *("pyyaml", "nvidia-ml-py", "defusedxml"),  # what it imports; torch is ours
)
PROBE = "import nvidia_resiliency_ext.inprocess"


def python() -> str:
    """Return the interpreter of the environment, which is made if there is none yet.

    Raises:
        BenchmarkError: The package can't be installed, or not be imported.
    """
    if not PYTHON.exists():
        venv.create(DIRECTORY, with_pip=True)
    (site,) = DIRECTORY.glob("lib/python*/site-packages")
    ours = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "ours.pth").write_text("\n".join(ours) + "\n")
    if _run("-c", PROBE) is not None:
        failure = _run("-m", "pip", "install", "--quiet", "--no-deps", *PACKAGES)
        failure = failure or _run("-c", PROBE)
        if failure is not None:
            raise BenchmarkError(f"{PACKAGES[0]} is not to be had: {failure}")
    return str(PYTHON)


def _run(*arguments: str) -> str | None:
    """Return why a command of the environment's Python failed, None if it did not."""
    done = subprocess.run([str(PYTHON), *arguments], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr[-500:]
