"""Which CPUs each worker gets."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumbeat.agent.settings.kinds import NumaMode
from drumbeat.agent.workers.devices.binding import Cpu, bind_workers
from drumbeat.agent.workers.devices.host import read_topology
from drumbeat.text.format import ranges
from tests.support.sysfs import a_machine


def bound(
    topology: tuple[Cpu, ...], nodes: list[int | None], mode: NumaMode, workers: int | None = None
) -> list[str]:
    """The CPUs of each worker as the kernel writes them; there are no notes."""
    size = len(nodes) if workers is None else workers
    cpus_of, notes = bind_workers(topology, nodes, local_world_size=size, mode=mode)
    assert notes == []
    return [ranges(cpus) for cpus in cpus_of.values()]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cpu, ...]:
    """Two sockets of two nodes of four cores with two threads, two cores to a cache."""
    root = tmp_path_factory.mktemp("machine")
    a_machine(root, cores_per_cache=2)
    return read_topology(frozenset(range(32)), root=root)


def test_node_is_all_cpus_of_the_gpus_node(machine: tuple[Cpu, ...]) -> None:
    assert bound(machine, [0, 0, 3], NumaMode.NODE) == ["0-3,16-19", "0-3,16-19", "12-15,28-31"]


def test_socket_is_all_nodes_of_the_gpus_socket(machine: tuple[Cpu, ...]) -> None:
    assert bound(machine, [1, 2], NumaMode.SOCKET) == ["0-7,16-23", "8-15,24-31"]


def test_exclusive_parts_the_physical_cores(machine: tuple[Cpu, ...]) -> None:
    assert bound(machine, [1, 0, 1], NumaMode.EXCLUSIVE) == [
        "4-5,20-21",
        "0-3,16-19",
        "6-7,22-23",
    ]


def test_exclusive_gives_the_rest_to_the_first(machine: tuple[Cpu, ...]) -> None:
    shares = bound(machine, [0, 0, 0], NumaMode.EXCLUSIVE)
    assert shares == ["0-1,16-17", "2,18", "3,19"]


def test_core_complexes_are_dealt_in_turn(machine: tuple[Cpu, ...]) -> None:
    shares = bound(machine, [0, 0, 0, 2], NumaMode.CORE_COMPLEX)
    assert shares == ["0-1,16-17", "2-3,18-19", "0-1,16-17", "8-9,24-25"]


def test_the_core_complex_with_the_most_allowed_cpus_comes_first(tmp_path: Path) -> None:
    a_machine(tmp_path, cores_per_cache=2)
    topology = read_topology(frozenset({0, 2, 3, 19}), root=tmp_path)
    assert bound(topology, [0, 0], NumaMode.CORE_COMPLEX) == ["2-3,19", "0"]


def test_without_known_caches_a_node_is_one_core_complex() -> None:
    cpus = tuple(Cpu(index=i, node=0, socket=0, core=i, cache=-1) for i in range(4))
    assert bound(cpus, [0, 0], NumaMode.CORE_COMPLEX) == ["0-3", "0-3"]


def test_only_workers_count_not_gpus_without_one(machine: tuple[Cpu, ...]) -> None:
    assert bound(machine, [0, 0, 0, 0], NumaMode.EXCLUSIVE, workers=2) == [
        "0-1,16-17",
        "2-3,18-19",
    ]


def test_a_node_that_spans_sockets_is_never_cut(tmp_path: Path) -> None:
    """Memory may be interleaved by the firmware: one node, two sockets."""
    sysfs = a_machine(tmp_path, nodes_per_socket=1, threads=1)
    sysfs.add_node(0, range(8))
    sysfs.add_node(1, [])
    topology = read_topology(frozenset(range(8)), root=tmp_path)
    assert bound(topology, [0], NumaMode.SOCKET) == ["0-7"]


def test_where_the_system_knows_one_node_it_is_the_gpus(tmp_path: Path) -> None:
    a_machine(tmp_path, sockets=1, nodes_per_socket=1)
    topology = read_topology(frozenset(range(8)), root=tmp_path)
    assert bound(topology, [None], NumaMode.NODE) == ["0-7"]


def test_a_gpu_whose_node_is_unknown_leaves_its_worker_unbound(machine: tuple[Cpu, ...]) -> None:
    cpus_of, notes = bind_workers(machine, [None, 1], local_world_size=2, mode=NumaMode.NODE)
    assert list(cpus_of) == [1]
    assert notes == ["worker 0 not bound: the system does not know the NUMA node of GPU 0"]


def test_a_worker_without_a_gpu_is_unbound(machine: tuple[Cpu, ...]) -> None:
    cpus_of, notes = bind_workers(machine, [1], local_world_size=2, mode=NumaMode.NODE)
    assert list(cpus_of) == [0]
    assert notes == ["worker 1 not bound: it has no GPU of its own (1 visible)"]


@pytest.mark.parametrize("mode", NumaMode)
def test_a_node_of_which_nothing_is_allowed_leaves_its_workers_unbound(
    tmp_path: Path, mode: NumaMode
) -> None:
    a_machine(tmp_path)
    topology = read_topology(frozenset({0}), root=tmp_path)
    cpus_of, notes = bind_workers(topology, [1, 1, 0], local_world_size=3, mode=mode)
    assert cpus_of == {2: (0,)}
    assert notes == ["workers 0, 1 not bound: this process may use no CPU of NUMA node 1"]


def test_too_few_cores_to_be_alone_on_bind_nobody_of_that_node(tmp_path: Path) -> None:
    """Two threads of one core are not two cores."""
    a_machine(tmp_path)
    topology = read_topology(frozenset({0, 16, 4}), root=tmp_path)
    cpus_of, notes = bind_workers(topology, [0, 0, 1], local_world_size=3, mode=NumaMode.EXCLUSIVE)
    assert cpus_of == {2: (4,)}
    [note] = notes
    assert note.startswith("workers 0, 1 not bound: NUMA node 0 has 1 physical cores for 2 workers")


@pytest.mark.parametrize("mode", NumaMode)
def test_without_gpus_nothing_happens_and_nothing_is_said(
    machine: tuple[Cpu, ...], mode: NumaMode
) -> None:
    assert bind_workers(machine, [], local_world_size=4, mode=mode) == ({}, [])


@st.composite
def topologies(draw: st.DrawFn) -> tuple[Cpu, ...]:
    """Any machine: whatever shares what, as long as threads of a core share all of it."""
    cores = draw(
        st.lists(
            st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(-1, 3), st.integers(1, 3)),
            min_size=1,
            max_size=12,
        )
    )
    cpus: list[Cpu] = []
    for node, socket, cache, threads in cores:
        first = len(cpus)
        cpus += [
            Cpu(index=first + i, node=node, socket=socket, core=first, cache=cache)
            for i in range(threads)
        ]
    kept = draw(st.lists(st.sampled_from(cpus), min_size=1, unique=True))
    return tuple(sorted(kept, key=lambda cpu: cpu.index))


@given(
    topology=topologies(),
    gpu_nodes=st.lists(st.none() | st.integers(0, 4), max_size=10),
    workers=st.integers(1, 12),
    mode=st.sampled_from(NumaMode),
)
def test_whatever_the_machine(
    topology: tuple[Cpu, ...], gpu_nodes: list[int | None], workers: int, mode: NumaMode
) -> None:
    """Goal: every binding is allowed, near and not empty, and every unbound worker is explained."""
    cpus_of, notes = bind_workers(topology, gpu_nodes, local_world_size=workers, mode=mode)
    allowed = {cpu.index for cpu in topology}
    by_index = {cpu.index: cpu for cpu in topology}
    assert set(cpus_of) <= set(range(min(workers, len(gpu_nodes))))
    assert (len(cpus_of) == workers or not gpu_nodes) == (not notes)
    for rank, cpus in cpus_of.items():
        assert cpus
        assert list(cpus) == sorted(set(cpus))
        assert set(cpus) <= allowed
        if mode is not NumaMode.SOCKET and gpu_nodes[rank] is not None:
            assert {by_index[cpu].node for cpu in cpus} == {gpu_nodes[rank]}
    if mode is NumaMode.EXCLUSIVE:
        cores = [{by_index[cpu].core for cpu in cpus} for cpus in cpus_of.values()]
        assert sum(map(len, cores)) == len(set().union(*cores))
    if mode is NumaMode.CORE_COMPLEX:
        assert all(len({by_index[c].cache for c in cpus}) == 1 for cpus in cpus_of.values())


@given(topology=topologies(), node=st.integers(0, 3), workers=st.integers(1, 6))
def test_narrower_modes_stay_within_wider_ones(
    topology: tuple[Cpu, ...], node: int, workers: int
) -> None:
    of = {
        mode: bind_workers(topology, [node] * workers, local_world_size=workers, mode=mode)[0]
        for mode in NumaMode
    }
    assert set(of[NumaMode.NODE]) == set(of[NumaMode.SOCKET]) == set(of[NumaMode.CORE_COMPLEX])
    for rank, cpus in of[NumaMode.NODE].items():
        assert set(of[NumaMode.CORE_COMPLEX][rank]) <= set(cpus) <= set(of[NumaMode.SOCKET][rank])
    if of[NumaMode.EXCLUSIVE]:
        parts = [set(cpus) for cpus in of[NumaMode.EXCLUSIVE].values()]
        assert set().union(*parts) == set(of[NumaMode.NODE][0])
