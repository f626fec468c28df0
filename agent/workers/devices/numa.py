"""Pure. Which CPUs each worker shall run on, so that it is near its GPU.

Worker i is the one of GPU i, as scripts that read ``LOCAL_RANK`` have it.
Source of the four modes and their meaning: torchrun's ``--numa-binding``
(``torch/numa/binding.py``, 2.13.0); differs: docs/devices.md#binding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from agent.settings.kinds import NumaMode
from agent.workers.devices.model import Cpu


class Bindings(NamedTuple):
    """The CPUs of each bound worker, by rising local rank; ``notes`` tell why others are not.

    Invariant: no worker is bound to nothing.
    """

    cpus: Mapping[int, tuple[int, ...]]
    notes: tuple[str, ...] = ()


def bind_workers(
    cpus: Sequence[Cpu],
    gpu_nodes: Sequence[int | None],
    *,
    local_world_size: int,
    mode: NumaMode,
) -> Bindings:
    """Choose the CPUs of every worker, of those that this process may use.

    ``gpu_nodes`` are the NUMA nodes of the visible GPUs; None where the system does not know.
    """
    if not gpu_nodes:
        return Bindings({})
    notes: list[str] = []
    ranks_of: dict[int, list[int]] = {}
    for rank in range(local_world_size):
        node = _node_of(rank, cpus, gpu_nodes)
        if isinstance(node, str):
            notes.append(node)
        else:
            ranks_of.setdefault(node, []).append(rank)
    found: dict[int, tuple[int, ...]] = {}
    for node, ranks in ranks_of.items():
        shares = _share(cpus, node, len(ranks), mode)
        if isinstance(shares, str):
            notes.append(f"{_workers(ranks)} not bound: {shares}")
        else:
            for rank, share in zip(ranks, shares, strict=True):
                found[rank] = tuple(sorted(cpu.index for cpu in share))
    return Bindings(cpus=dict(sorted(found.items())), notes=tuple(notes))


def _node_of(rank: int, cpus: Sequence[Cpu], gpu_nodes: Sequence[int | None]) -> int | str:
    """Return the NUMA node of a worker's GPU, or a note that there is none."""
    if rank >= len(gpu_nodes):
        return f"worker {rank} not bound: it has no GPU of its own ({len(gpu_nodes)} visible)"
    node = gpu_nodes[rank]
    if node is not None:
        return node
    # Systems with one node often do not care to say so.
    nodes = {cpu.node for cpu in cpus}
    if len(nodes) == 1:
        return nodes.pop()
    return f"worker {rank} not bound: the system does not know the NUMA node of GPU {rank}"


def _share(cpus: Sequence[Cpu], node: int, count: int, mode: NumaMode) -> list[list[Cpu]] | str:
    """Return the CPUs of each of a node's workers, or why there are none."""
    local = [cpu for cpu in cpus if cpu.node == node]
    if not local:
        return f"this process may use no CPU of NUMA node {node}"
    match mode:
        case NumaMode.NODE:
            return [local] * count
        case NumaMode.SOCKET:
            return [_socket_of(cpus, local)] * count
        case NumaMode.EXCLUSIVE:
            return _exclusive(local, count)
        case NumaMode.CORE_COMPLEX:
            return _core_complexes(local, count)


def _socket_of(cpus: Sequence[Cpu], local: list[Cpu]) -> list[Cpu]:
    """Return the CPUs of all nodes that are on the same socket as these of one node."""
    sockets = {cpu.socket for cpu in local}
    nodes = {cpu.node for cpu in cpus if cpu.socket in sockets}
    return [cpu for cpu in cpus if cpu.node in nodes]


def _exclusive(local: list[Cpu], count: int) -> list[list[Cpu]] | str:
    """Part the physical cores evenly, the first workers with one more if it does not go up."""
    cores = sorted(_groups(local, lambda cpu: cpu.core).items())
    if len(cores) < count:
        # One core for two would break the promise to both of them.
        return (
            f"NUMA node {local[0].node} has {len(cores)} physical cores "
            f"for {count} workers, which is not one for each alone"
        )
    least, more = divmod(len(cores), count)
    shares, start = [], 0
    for position in range(count):
        end = start + least + (position < more)
        shares.append([cpu for _, core in cores[start:end] for cpu in core])
        start = end
    return shares


def _core_complexes(local: list[Cpu], count: int) -> list[list[Cpu]]:
    """Deal the caches out in turn, those with the most CPUs first."""
    caches = _groups(local, lambda cpu: cpu.cache)
    dealt = [caches[key] for key in sorted(caches, key=lambda key: (-len(caches[key]), key))]
    return [dealt[position % len(dealt)] for position in range(count)]


def _groups(cpus: list[Cpu], key: Callable[[Cpu], int]) -> dict[int, list[Cpu]]:
    found: dict[int, list[Cpu]] = {}
    for cpu in cpus:
        found.setdefault(key(cpu), []).append(cpu)
    return found


def _workers(ranks: list[int]) -> str:
    names = ", ".join(str(rank) for rank in ranks)
    return f"worker {names}" if len(ranks) == 1 else f"workers {names}"
