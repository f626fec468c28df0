"""Shell. What workers run with: GPUs, Python, torch, variables; and what was left here."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys

from drumbeat import VERSION
from drumbeat.agent.doctor.model import Findings, Host, fail, ok, warn
from drumbeat.agent.health.probes import GpuProbe
from drumbeat.agent.host.leftovers import find_leftovers
from drumbeat.agent.host.private_directory import private_directories
from drumbeat.agent.workers.devices import nvml
from drumbeat.agent.workers.devices.gpus import VISIBLE_DEVICES, entries, visible, visible_count
from drumbeat.format import count, listed, one_line

TORCH_S = 20.0  # from a slow file system; a healthy host takes 2 s
# The options of torchrun, and what the agent sets for workers, whatever the shell has.
_CHANGING = re.compile(
    r"PET_\w+|TORCHELASTIC_\w+|MASTER_(ADDR|PORT)|((LOCAL|GROUP|ROLE)_)?(RANK|WORLD_SIZE)"
)
_HIDING = ("-1", "none", "void", "NoDevFiles")  # all GPUs, on purpose
_ASK = """
import json, torch
build = torch.version.cuda or torch.version.hip or "CPU only"
print(json.dumps([str(torch.__version__), build, torch.cuda.is_available()]))
"""


def check_gpus(host: Host) -> Findings:
    """NVIDIA GPUs, their driver, and what `CUDA_VISIBLE_DEVICES` names."""
    present = nvml.visible_gpus(None, device_dir=host.root / "dev")
    library = nvml.load_nvml()
    gpus = nvml.read_gpus(library) if library is not None else ()
    if present and library is None:
        yield warn("nvidia-ml-py is not installed", "pip install 'drumbeat[gpu]'")
    elif present and not gpus:
        advice = "`nvidia-smi` says why; reload the driver, or restart this host"
        yield fail(f"{count(present, 'GPU')}, but the driver does not answer", advice)
    elif gpus and (problem := GpuProbe(library, gpus).look()):
        yield fail(problem, "reset the GPU or restart this host; `nvidia-smi` and `dmesg` say more")
    setting = host.environment.get(VISIBLE_DEVICES)
    named = [] if setting in _HIDING else entries(setting or "")
    seen = len(visible(gpus, setting)) if gpus else visible_count(present, setting)
    if not any(name.upper().startswith("MIG-") for name in named) and seen < len(named):
        text = f"{VISIBLE_DEVICES}={setting} names {named[seen]}, which is missing"
        yield fail(text, f"unset {VISIBLE_DEVICES}, or name devices of `nvidia-smi -L`")
    yield ok(listed(f"GPU {gpu.index} {gpu.name}" for gpu in gpus) if gpus else f"{present} GPUs")


def check_torch(host: Host) -> Findings:
    """Python, drumbeat, and whether torch can be imported and sees the GPUs."""
    yield ok(f"drumbeat {VERSION}, Python {platform.python_version()}")
    python = host.environment.get("PYTHON_EXEC") or sys.executable
    try:
        asked = subprocess.run(  # noqa: S603 - the interpreter of the workers
            [python, "-c", _ASK],
            env={**host.environment, "PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TORCH_S,
            check=True,
        )
        version, build, has_cuda = json.loads(asked.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        text = f"torch takes longer than {TORCH_S:g} s to import"
        yield warn(text, "put the environment on a local disk, or use --preload torch")
    except subprocess.CalledProcessError as error:
        last = one_line(error.stderr.strip().rpartition("\n")[2])
        problem = warn if "No module named 'torch'" in last else fail  # some workers need none
        yield problem(f"torch cannot be imported: {last}", f"install torch for {python}")
    except (OSError, ValueError, IndexError) as error:
        yield fail(f"{python} cannot be asked: {error}", "set PYTHON_EXEC to the workers' Python")
    else:
        setting, device_dir = host.environment.get(VISIBLE_DEVICES), host.root / "dev"
        if nvml.visible_gpus(setting, device_dir=device_dir) and not has_cuda:
            text = f"torch {version} ({build}) cannot use the GPUs"
            yield fail(text, "install a torch for the CUDA of this driver")
        else:
            yield ok(f"torch {version} ({build})")


def check_variables(host: Host) -> Findings:
    """Variables that change `agent join` (`PET_*`), or that it overwrites (`MASTER_ADDR` …)."""
    names = sorted(name for name in host.environment if _CHANGING.fullmatch(name))
    if names:
        text = f"{listed(names)}: set by hand, or left from another job"
        yield warn(text, f"unset {' '.join(names)}, unless they are meant")


def check_leftovers(_: Host) -> Findings:
    """Processes and files of agents of this user that were killed."""
    dead = [path for path, is_alive in private_directories() if not is_alive]
    if pids := sorted(find_leftovers(dead)) if dead else []:
        text = f"processes of a dead agent still run: pid {listed(map(str, pids))}"
        yield warn(text, "the next `agent join` of this user kills them, or you: kill -9 PID")
    elif dead:
        yield ok(f"files of {count(len(dead), 'dead agent')}, which the next agent removes")
