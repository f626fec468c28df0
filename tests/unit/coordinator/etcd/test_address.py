"""Addresses of etcd: what they say, and what is refused without showing a password."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from drumbeat.coordinator.journal.etcd.address import (
    ENDPOINTS_MAX,
    ETCD_ADDRESS,
    EtcdAddress,
    address_of,
    broken_rules,
    parse_etcd_address,
)
from drumbeat.text.addresses import HostPort

NO_FILES = dict.fromkeys(
    ("journal_password_file", "journal_ca", "journal_cert", "journal_key"), None
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("etcd://a", EtcdAddress(endpoints=(HostPort("a", 2379),))),
        ("etcd://a/", EtcdAddress(endpoints=(HostPort("a", 2379),))),
        (
            "etcd://a:1,b.example:2,[::1]:3,[fe80::1]/prod/eu/",
            EtcdAddress(
                endpoints=(
                    HostPort("a", 1),
                    HostPort("b.example", 2),
                    HostPort("::1", 3),
                    HostPort("fe80::1", 2379),
                ),
                prefix="prod/eu",
            ),
        ),
        ("etcd://me@a,a:2379", EtcdAddress(endpoints=(HostPort("a", 2379),), user="me")),
    ],
)
def test_an_address_is_read(given: str, expected: EtcdAddress) -> None:
    assert parse_etcd_address(given) == expected
    assert parse_etcd_address(str(expected)) == expected


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("a:2379", "does not begin with etcd://"),
        ("http://a", "does not begin with etcd://"),
        ("etcd://", "'' is not an address"),
        ("etcd://a,,b", "'' is not an address"),
        ("etcd://a:0", "a:0"),
        ("etcd://a:x", "a:x"),
        ("etcd://@a", "the user before the @"),
        ("etcd://a/b c", "the prefix 'b c'"),
        ("etcd://a/b//c", "the prefix 'b//c'"),
        (f"etcd://a/{'x' * 129}", "the prefix"),
        (f"etcd://{','.join(f'h{i}' for i in range(ENDPOINTS_MAX + 1))}", "at most"),
    ],
)
def test_what_is_none_is_refused(given: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem.replace("(", "\\(")):
        parse_etcd_address(given)


@pytest.mark.parametrize("password", ["hush", "hu/sh", "hu@sh", ":", "hu,sh"])
def test_a_password_in_an_address_is_refused_and_not_shown(password: str) -> None:
    with pytest.raises(ValueError, match="--journal-password-file") as refused:
        ETCD_ADDRESS.parse(f"etcd://me:{password}@a/x")
    assert "hu" not in str(refused.value)
    assert "sh" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "ca", "is_exposed"),
    [
        ("etcd://127.0.0.1,[::1],localhost", "", False),
        ("etcd://127.0.0.1,head2", "", True),
        ("etcd://head2", "ca.pem", False),
    ],
)
def test_what_is_neither_encrypted_nor_on_this_host_is_exposed(
    url: str, ca: str, is_exposed: bool
) -> None:
    given = NO_FILES | {"journal": parse_etcd_address(url), "journal_ca": ca}
    address = address_of(SimpleNamespace(**given))
    assert address is not None
    assert address.is_exposed is is_exposed


@pytest.mark.parametrize(
    ("url", "files", "fields"),
    [
        (None, {}, []),
        (None, {"journal_ca": "ca"}, ["journal_ca"]),
        ("etcd://a", {"journal_ca": "ca", "journal_cert": "c", "journal_key": "k"}, []),
        ("etcd://a", {"journal_cert": "c"}, ["journal_cert", "journal_cert"]),
        ("etcd://a", {"journal_key": "k"}, ["journal_key"]),
        ("etcd://a", {"journal_password_file": "p"}, ["journal_password_file"]),
        ("etcd://u@a", {}, ["journal"]),
        ("etcd://u@a", {"journal_password_file": "p"}, []),
    ],
)
def test_settings_that_need_others_are_named(
    url: str | None, files: dict[str, str], fields: list[str]
) -> None:
    address = parse_etcd_address(url) if url else None
    found = broken_rules(SimpleNamespace(**NO_FILES | {"journal": address, **files}))
    assert [violation.field for violation in found] == fields
