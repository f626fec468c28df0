"""Shell. Reads from sysfs how CPUs belong together, and which NUMA node a GPU hangs on.

A file that is missing or makes no sense costs the grouping it stands for, never
more: containers and old kernels hide some of them.
"""

from __future__ import annotations

from pathlib import Path

from agent.workers.devices.model import Cpu, parse_cpu_list

SYSFS = Path("/sys")

# Instructions have caches of their own; placement is about data.
_DATA_CACHES = frozenset({"Data", "Unified"})


def read_topology(allowed: frozenset[int], *, root: Path = SYSFS) -> tuple[Cpu, ...]:
    """Read what is known of the CPUs in ``allowed``, below the ``root`` of a sysfs.

    Allowed is the affinity of this process, which the kernel keeps within its cgroup and the
    CPUs that are online.
    """
    node_of = _read_nodes(root)
    cpus = []
    for index in sorted(allowed):
        folder = root / "devices/system/cpu" / f"cpu{index}"
        siblings = _read_cpu_list(folder / "topology/thread_siblings_list")
        sharing = _read_last_level_cache(folder / "cache")
        cpus.append(
            Cpu(
                index=index,
                node=node_of.get(index, 0),
                socket=_read_number(folder / "topology/physical_package_id", default=0),
                core=min(siblings | {index}),
                cache=min(sharing, default=-1),
            )
        )
    return tuple(cpus)


def read_gpu_node(pci_address: str, *, root: Path = SYSFS) -> int | None:
    """Return the NUMA node of the device at this address; None if the system does not know."""
    if not pci_address:
        return None
    node = _read_number(root / "bus/pci/devices" / pci_address / "numa_node", default=-1)
    return node if node >= 0 else None


def _read_nodes(root: Path) -> dict[int, int]:
    """Return the NUMA node of each CPU."""
    folder = root / "devices/system/node"
    nodes = _read_cpu_list(folder / "online")
    return {cpu: node for node in nodes for cpu in _read_cpu_list(folder / f"node{node}/cpulist")}


def _read_last_level_cache(folder: Path) -> frozenset[int]:
    """Return the CPUs that share the cache of the highest level; empty if unknown."""
    level, sharing = 0, frozenset[int]()
    try:
        caches = sorted(folder.glob("index[0-9]*"))
    except OSError:
        return sharing
    for cache in caches:
        found = _read_number(cache / "level", default=0)
        if found > level and _read_text(cache / "type") in _DATA_CACHES:
            level, sharing = found, _read_cpu_list(cache / "shared_cpu_list")
    return sharing


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _read_number(path: Path, *, default: int) -> int:
    try:
        return int(_read_text(path))
    except ValueError:
        return default


def _read_cpu_list(path: Path) -> frozenset[int]:
    try:
        return parse_cpu_list(_read_text(path))
    except ValueError:
        return frozenset()
