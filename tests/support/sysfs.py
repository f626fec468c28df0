"""A sysfs made of plain files, for machines that nobody has on the desk."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from drumbeat.text.format import ranges


@dataclass(kw_only=True)
class FakeSysfs:
    """Writes below ``root`` what Linux shows of a machine."""

    root: Path
    nodes: set[int] = field(default_factory=set)
    folders: set[Path] = field(default_factory=set)

    def add_node(self, node: int, cpus: Iterable[int]) -> None:
        self.nodes.add(node)
        folder = self.root / "devices/system/node"
        self.write(folder / f"node{node}/cpulist", ranges(cpus))
        self.write(folder / "online", ranges(self.nodes))

    def add_cpu(
        self, index: int, *, socket: int, siblings: Iterable[int], sharing: Iterable[int]
    ) -> None:
        """Add a CPU with the caches of a usual one: two levels of its own, one shared."""
        folder = self.root / f"devices/system/cpu/cpu{index}"
        self.write(folder / "topology/physical_package_id", str(socket))
        self.write(folder / "topology/thread_siblings_list", ranges(siblings))
        caches = (
            (1, "Data", siblings),
            (1, "Instruction", siblings),
            (3, "Unified", sharing),
            (2, "Unified", siblings),
        )
        for number, (level, kind, cpus) in enumerate(caches):
            cache = folder / f"cache/index{number}"
            self.write(cache / "level", str(level))
            self.write(cache / "type", kind)
            self.write(cache / "shared_cpu_list", ranges(cpus))

    def add_gpu(self, address: str, node: int | str) -> None:
        self.write(self.root / "bus/pci/devices" / address / "numa_node", str(node))

    def write(self, path: Path, text: str) -> None:
        if path.parent not in self.folders:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.folders.add(path.parent)
        path.write_text(f"{text}\n")


def a_machine(
    root: Path,
    *,
    sockets: int = 2,
    nodes_per_socket: int = 2,
    cores_per_node: int = 4,
    threads: int = 2,
    cores_per_cache: int | None = None,
) -> FakeSysfs:
    """Write a regular machine.

    Cores are numbered through all nodes; the second threads follow after the first ones of all
    cores, as Linux numbers them on x86. By default all cores of a node share a cache.
    """
    sysfs = FakeSysfs(root=root)
    cores = sockets * nodes_per_socket * cores_per_node
    group = cores_per_cache or cores_per_node

    def threads_of(these: Sequence[int]) -> list[int]:
        return [core + thread * cores for thread in range(threads) for core in these]

    for node in range(sockets * nodes_per_socket):
        local = range(node * cores_per_node, (node + 1) * cores_per_node)
        sysfs.add_node(node, threads_of(local))
        for core in local:
            first = core - (core - local.start) % group
            sharing = threads_of(range(first, min(first + group, local.stop)))
            for cpu in threads_of([core]):
                sysfs.add_cpu(
                    cpu,
                    socket=node // nodes_per_socket,
                    siblings=threads_of([core]),
                    sharing=sharing,
                )
    return sysfs
