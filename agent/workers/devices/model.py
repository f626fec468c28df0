"""Pure. The values of this package, and the texts in which the system writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

CPUS_MAX = 65_536
"""Highest CPU number taken seriously; Linux itself ends at 8,192."""

_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)
_PCI_ADDRESS = re.compile(
    r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """One logical CPU that this process may use, and what it is a part of."""

    index: int
    node: int
    """NUMA node; 0 on a kernel without NUMA."""
    socket: int
    """Physical package; 0 if the kernel does not say."""
    core: int
    """Lowest CPU of its physical core, allowed or not: hyperthreads have it in common."""
    cache: int
    """Lowest CPU that shares its last-level cache, allowed or not; -1 if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as its driver describes it."""

    index: int
    """Its number among all GPUs of the host, in the driver's order."""
    uuid: str
    name: str
    memory_bytes: int
    memory_used_bytes: int
    """When it was looked at, by any process."""
    pci_address: str
    """As in sysfs, e.g. "0000:3b:00.0"; empty if the driver's was not understood."""


def parse_cpu_list(text: str) -> frozenset[int]:
    """Read the kernel's list of CPUs or nodes, such as "0-3,8"; it may be empty.

    Raises:
        ValueError: ``text`` is anything else.
    """
    found: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < CPUS_MAX:
            raise ValueError(f"{text!r} is not a list of CPUs")
        found.update(range(first, last + 1))
    return frozenset(found)


def format_cpu_list(cpus: Iterable[int]) -> str:
    """Write CPUs as the kernel does; the inverse of ``parse_cpu_list``."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def sysfs_pci_address(text: str) -> str:
    """Write a PCI address as sysfs does, with a domain of four digits; empty if it is none."""
    match = _PCI_ADDRESS.fullmatch(text.strip())
    if match is None:
        return ""
    domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"
