"""A reserved port belongs to no other process, and still takes the store of rank 0."""

import errno
import socket
from collections.abc import Iterator

import pytest

from drumbeat.agent.workers.ports import Ports, address_towards


@pytest.fixture
def ports() -> Iterator[Ports]:
    reserved = Ports()
    yield reserved
    reserved.keep_only()


def tcp(family: socket.AddressFamily = socket.AF_INET, *, reuse: bool = False) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
    return made


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_reserved_port_refuses_a_plain_bind(ports: Ports, address: str) -> None:
    port = ports.reserve()
    with tcp() as intruder, pytest.raises(OSError, match="in use") as caught:
        intruder.bind((address, port))
    assert caught.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_the_store_of_rank_0_can_listen_on_a_reserved_port(ports: Ports, address: str) -> None:
    port = ports.reserve()
    with tcp(reuse=True) as store:
        store.bind((address, port))
        store.listen()
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            connection, _ = store.accept()
            with connection:
                connection.sendall(b"hello")
                assert client.recv(5) == b"hello"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 on this host")
def test_a_reserved_port_is_held_for_both_families(ports: Ports) -> None:
    port = ports.reserve()
    with tcp(socket.AF_INET6) as intruder, pytest.raises(OSError, match="in use"):
        intruder.bind(("::", port))
    with tcp(socket.AF_INET6, reuse=True) as store:
        store.bind(("::", port))
        store.listen()


def test_reserved_ports_differ_and_the_system_gives_out_none_of_them(ports: Ports) -> None:
    reserved = {ports.reserve() for _ in range(50)}
    assert len(reserved) == 50
    given: list[socket.socket] = []
    try:
        for _ in range(200):
            given.append(tcp())
            given[-1].bind(("", 0))
        assert not reserved & {made.getsockname()[1] for made in given}
    finally:
        for made in given:
            made.close()


def free_range() -> range:
    """Return ports that are free now, as far as one can see."""
    with tcp() as probe:
        probe.bind(("", 0))
        first = min(probe.getsockname()[1], 65_436)
    return range(first, first + 100)


def test_ports_of_a_range_are_taken_in_turn_and_never_by_two() -> None:
    allowed = free_range()
    one, other = Ports(allowed), Ports(allowed)
    try:
        taken = [holder.reserve() for _ in range(20) for holder in (one, other)]
        assert len(set(taken)) == 40
        assert set(taken) <= set(allowed)
        one.keep_only()
        again = [one.reserve() for _ in range(20)]
        assert not set(again) & set(taken), "a port was used again at once"
    finally:
        one.keep_only()
        other.keep_only()


def test_a_range_without_a_free_port_is_named() -> None:
    with tcp() as taken:
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"no port of --port-range {port}-{port} is free"):
            Ports(range(port, port + 1)).reserve()


def test_a_port_that_is_let_go_is_free_again(ports: Ports) -> None:
    port, kept = ports.reserve(), ports.reserve()
    ports.keep_only(frozenset({kept, 1}))
    with tcp() as newcomer:
        newcomer.bind(("", port))
    with tcp() as other, pytest.raises(OSError, match="in use"):
        other.bind(("", kept))


def test_a_connection_to_a_reserved_port_is_refused(ports: Ports) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", ports.reserve()), timeout=10)


def test_the_address_towards_a_host_is_the_one_it_is_reached_from() -> None:
    assert address_towards("127.0.0.1", 29400) == "127.0.0.1"
    with pytest.raises(socket.gaierror):
        address_towards("no such host", 29400)
