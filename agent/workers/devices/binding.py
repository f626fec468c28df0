"""Pure. Chooses the CPUs that each worker runs on, near its GPU.

Worker i is the one of GPU i, as scripts that read ``LOCAL_RANK`` have it.
Source of the four modes and their meaning: torchrun's ``--numa-binding``
(``torch/numa/binding.py``, 2.13.0); differs: docs/devices.md#binding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise

from msgspec import Struct

from drumbeat.agent.model.messages import CPUS_MAX
from drumbeat.agent.settings.kinds import NumaMode

_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)


class Cpu(Struct, frozen=True, kw_only=True):
    """One logical CPU that this process may use, and what it is a part of."""

    index: int
    node: int  # NUMA node; 0 on a kernel without NUMA
    socket: int  # physical package; 0 if the kernel does not say
    core: int  # lowest CPU of its physical core, allowed or not: hyperthreads have it in common
    cache: int  # lowest CPU that shares its last-level cache, allowed or not; -1 if unknown


def bind_workers(
    cpus: Sequence[Cpu],
    gpu_nodes: Sequence[int | None],
    *,
    local_world_size: int,
    mode: NumaMode,
) -> tuple[dict[int, tuple[int, ...]], list[str]]:
    """Choose the CPUs of workers by rising local rank, of those that this process may use.

    ``gpu_nodes`` are the NUMA nodes of the visible GPUs; None where the system does not know. No
    worker is bound to nothing; notes tell why some are not bound.
    """
    if not gpu_nodes:
        return {}, []
    notes: list[str] = []
    ranks_of: dict[int, list[int]] = {}
    for rank in range(local_world_size):
        node = _node_of(rank, cpus, gpu_nodes)
        if isinstance(node, str):
            notes.append(f"worker {rank} not bound: {node}")
        else:
            ranks_of.setdefault(node, []).append(rank)
    bound: dict[int, tuple[int, ...]] = {}
    for node, ranks in ranks_of.items():
        shares = _shares(cpus, node, len(ranks), mode)
        if isinstance(shares, str):
            names = ", ".join(str(rank) for rank in ranks)
            plural = "s" if len(ranks) > 1 else ""
            notes.append(f"worker{plural} {names} not bound: {shares}")
        else:
            bound |= {
                rank: tuple(sorted(cpu.index for cpu in share))
                for rank, share in zip(ranks, shares, strict=True)
            }
    return dict(sorted(bound.items())), notes


def _node_of(rank: int, cpus: Sequence[Cpu], gpu_nodes: Sequence[int | None]) -> int | str:
    """Return the NUMA node of a worker's GPU, or why there is none."""
    if rank >= len(gpu_nodes):
        return f"it has no GPU of its own ({len(gpu_nodes)} visible)"
    node, nodes = gpu_nodes[rank], {cpu.node for cpu in cpus}
    if node is None and len(nodes) == 1:  # Such systems often do not care to say so.
        return nodes.pop()
    return f"the system does not know the NUMA node of GPU {rank}" if node is None else node


def _shares(cpus: Sequence[Cpu], node: int, count: int, mode: NumaMode) -> list[list[Cpu]] | str:
    """Return the CPUs of each of a node's workers, or why there are none."""
    local = [cpu for cpu in cpus if cpu.node == node]
    if not local:
        return f"this process may use no CPU of NUMA node {node}"
    match mode:
        case NumaMode.NODE:
            return [local] * count
        case NumaMode.SOCKET:
            sockets = {cpu.socket for cpu in local}
            nodes = {cpu.node for cpu in cpus if cpu.socket in sockets}
            return [[cpu for cpu in cpus if cpu.node in nodes]] * count
        case NumaMode.EXCLUSIVE:
            return _exclusive(local, count)
        case NumaMode.CORE_COMPLEX:
            # The caches in turn, those with the most CPUs first.
            caches = sorted(_groups(local, lambda cpu: cpu.cache), key=len, reverse=True)
            return [caches[position % len(caches)] for position in range(count)]


def _exclusive(local: list[Cpu], count: int) -> list[list[Cpu]] | str:
    """Part the physical cores evenly, the first workers with one more if it does not go up."""
    cores = _groups(local, lambda cpu: cpu.core)
    if len(cores) < count:
        # One core for two would break the promise to both of them.
        return (
            f"NUMA node {local[0].node} has {len(cores)} physical cores "
            f"for {count} workers, which is not one for each alone"
        )
    least, more = divmod(len(cores), count)
    bounds = [position * least + min(position, more) for position in range(count + 1)]
    return [[cpu for core in cores[start:end] for cpu in core] for start, end in pairwise(bounds)]


def _groups(cpus: list[Cpu], key: Callable[[Cpu], int]) -> list[list[Cpu]]:
    return [list(group) for _, group in groupby(sorted(cpus, key=key), key)]


def parse_cpu_list(text: str) -> frozenset[int]:
    """Read the kernel's list of CPUs or nodes, such as "0-3,8" or "". Raises ``ValueError``."""
    cpus: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < CPUS_MAX:
            raise ValueError(f"{text!r} is not a list of CPUs")
        cpus.update(range(first, last + 1))
    return frozenset(cpus)
