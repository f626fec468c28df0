"""What is read of a machine's CPUs, on machines made of files."""

import os
from pathlib import Path

import pytest

from drumbeat.agent.workers.devices.binding import Cpu
from drumbeat.agent.workers.devices.host import read_gpu_node, read_topology
from tests.support.sysfs import FakeSysfs, a_machine

ALL = frozenset(range(32))


def test_threads_cores_nodes_sockets_and_caches_are_read(tmp_path: Path) -> None:
    """Two sockets of two nodes of four cores with two threads each."""
    a_machine(tmp_path, cores_per_cache=2)
    topology = read_topology(ALL, root=tmp_path)
    assert [cpu.index for cpu in topology] == list(range(32))
    assert topology[0] == Cpu(index=0, node=0, socket=0, core=0, cache=0)
    assert topology[7] == Cpu(index=7, node=1, socket=0, core=7, cache=6)
    assert topology[23] == Cpu(index=23, node=1, socket=0, core=7, cache=6)
    assert topology[31] == Cpu(index=31, node=3, socket=1, core=15, cache=14)


def test_only_allowed_cpus_are_seen_but_groups_keep_their_names(tmp_path: Path) -> None:
    """A cgroup may leave the second thread of a core without the first."""
    a_machine(tmp_path)
    topology = read_topology(frozenset({17, 4}), root=tmp_path)
    assert topology == (
        Cpu(index=4, node=1, socket=0, core=4, cache=4),
        Cpu(index=17, node=0, socket=0, core=1, cache=0),
    )


def test_a_sibling_that_is_offline_is_not_missed(tmp_path: Path) -> None:
    sysfs = FakeSysfs(root=tmp_path)
    sysfs.add_node(0, [0])
    sysfs.add_cpu(0, socket=0, siblings=[0], sharing=[0])
    (tmp_path / "devices/system/cpu/cpu1").mkdir()  # offline: a folder with nothing in it
    assert [cpu.index for cpu in read_topology(frozenset({0}), root=tmp_path)] == [0]


def test_without_any_file_every_cpu_is_a_core_of_one_node(tmp_path: Path) -> None:
    topology = read_topology(frozenset({2, 5}), root=tmp_path / "missing")
    assert topology == (
        Cpu(index=2, node=0, socket=0, core=2, cache=-1),
        Cpu(index=5, node=0, socket=0, core=5, cache=-1),
    )


@pytest.mark.parametrize(
    ("file", "field", "value"),
    [
        ("devices/system/cpu/cpu5/topology/physical_package_id", "socket", 0),
        ("devices/system/cpu/cpu5/topology/thread_siblings_list", "core", 5),
        ("devices/system/cpu/cpu5/cache/index2/shared_cpu_list", "cache", -1),
        ("devices/system/cpu/cpu5/cache/index2/level", "cache", 5),
        ("devices/system/node/online", "node", 0),
        ("devices/system/node/node1/cpulist", "node", 0),
    ],
)
@pytest.mark.parametrize("text", [None, "", "no sense", "3-1"])
def test_a_bad_file_costs_only_its_own_grouping(
    tmp_path: Path, file: str, field: str, value: int, text: str | None
) -> None:
    a_machine(tmp_path, nodes_per_socket=1)  # CPU 5 is on node 1, socket 1
    good = read_topology(frozenset({5}), root=tmp_path)[0]
    assert good == Cpu(index=5, node=1, socket=1, core=5, cache=4)
    path = tmp_path / file
    path.unlink() if text is None else path.write_text(text)
    bad = read_topology(frozenset({5}), root=tmp_path)[0]
    assert getattr(bad, field) == value
    others = {"socket", "core", "cache", "node"} - {field}
    assert all(getattr(bad, name) == getattr(good, name) for name in others)


def test_a_node_without_cpus_is_passed_over(tmp_path: Path) -> None:
    sysfs = a_machine(tmp_path)
    sysfs.add_node(9, [])
    assert {cpu.node for cpu in read_topology(ALL, root=tmp_path)} == {0, 1, 2, 3}


@pytest.mark.parametrize(("text", "node"), [("1", 1), ("0", 0), ("-1", None), ("x", None)])
def test_the_node_of_a_gpu_is_read(tmp_path: Path, text: str, node: int | None) -> None:
    FakeSysfs(root=tmp_path).add_gpu("0000:3b:00.0", text)
    assert read_gpu_node("0000:3b:00.0", root=tmp_path) == node


def test_a_gpu_that_the_system_does_not_show_has_no_node(tmp_path: Path) -> None:
    assert read_gpu_node("0000:3b:00.0", root=tmp_path) is None
    assert read_gpu_node("", root=tmp_path) is None


def test_this_machine_can_be_read() -> None:
    allowed = frozenset(os.sched_getaffinity(0))
    topology = read_topology(allowed)
    assert {cpu.index for cpu in topology} == allowed
    assert all(cpu.core <= cpu.index for cpu in topology)
