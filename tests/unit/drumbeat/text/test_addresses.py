"""Addresses of coordinators, as users write them."""

import pytest

from drumbeat.command.settings import ADDRESSES
from drumbeat.text.addresses import COORDINATORS_MAX, HostPort, parse_addresses, parse_host_port


@pytest.mark.parametrize(
    ("text", "address", "written"),
    [
        ("head:1234", HostPort("head", 1234), "head:1234"),
        ("head", HostPort("head", 29400), "head:29400"),
        ("10.0.0.1", HostPort("10.0.0.1", 29400), "10.0.0.1:29400"),
        ("a_b.example-1.org:65535", HostPort("a_b.example-1.org", 65535), None),
        ("[::1]:1", HostPort("::1", 1), "[::1]:1"),
        ("[::1]", HostPort("::1", 29400), "[::1]:29400"),
    ],
)
def test_address_is_read(text: str, address: HostPort, written: str | None) -> None:
    assert parse_host_port(text) == address
    assert str(address) == (written or text)


@pytest.mark.parametrize(
    "text",
    [
        "", ":", ":29400", "head:", "head:0", "head:65536", "head:-1", "head: 80", "head:٣",
        "::1", "[::1", "[::1]x", "[head]:1", "[]:1", "http://head:1", "a b", "head:1:2", "-x:1",
    ],
)  # fmt: skip
def test_a_malformed_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address: give HOST:PORT"):
        parse_host_port(text)


def test_addresses_of_a_cluster_stand_between_commas() -> None:
    assert parse_addresses("head") == ("head:29400",)
    assert ADDRESSES.parse("head1, head2:7,[::1]") == "head1:29400,head2:7,[::1]:29400"
    most = ",".join(f"head{number}" for number in range(COORDINATORS_MAX))
    assert len(parse_addresses(most)) == COORDINATORS_MAX
    assert ADDRESSES.read(most) == ADDRESSES.parse(most)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a,,b", "'a,,b' has an empty address"),
        ("a,", "'a,' has an empty address"),
        (",", "',' has an empty address"),
        ("", "'' is not an address"),
        ("a,b:x", "'b:x' is not an address"),
        ("a,b,a:29400", "a:29400 is given twice"),
        (",".join(map(str, range(17))), "17 addresses are given, allowed are up to 16"),
    ],
)
def test_addresses_that_cannot_be_meant_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ADDRESSES.parse(text)
