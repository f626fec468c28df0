"""What the names in a client's certificate allow."""

import pytest

from drumbeat.access.token import Role
from drumbeat.coordinator import errors
from drumbeat.coordinator.access.certificate_roles import (
    NAMES_MAX,
    TLS_ROLES,
    RoleRule,
    caller_of_names,
    names_of,
    parse_roles,
)
from drumbeat.coordinator.core.tokens.caller import Caller

RULES = "spiffe://td/ops/*=admin, gpu?.train=join:exp1, *.train=view, CN=*=join"


def test_rules_are_read_in_their_order_and_written_as_they_were() -> None:
    rules = parse_roles(RULES)
    assert rules == (
        RoleRule("spiffe://td/ops/*", Role.ADMIN),
        RoleRule("gpu?.train", Role.JOIN, "exp1"),
        RoleRule("*.train", Role.VIEW),
        RoleRule("CN=*", Role.JOIN),
    )
    assert TLS_ROLES.text(rules) == RULES.replace(", ", ",")
    assert TLS_ROLES.read(rules) == TLS_ROLES.read(RULES) == rules


@pytest.mark.parametrize(
    "given",
    [
        "",
        "*",
        "=join",
        "*=",
        "*=Join",
        "*=root",
        "*=join:",
        "*=join:a/b",
        "*=join:..",
        "*=join,",
        "*=join:" + "x" * 129,
        "*=join:\u0663",
        "a=join\nb=admin:",
    ],
)
def test_what_is_no_rule_says_what_is_allowed(given: str) -> None:
    with pytest.raises(ValueError, match=r"allowed is PATTERN=ROLE\[:RUN\]"):
        parse_roles(given)


def test_a_run_is_for_join_only() -> None:
    with pytest.raises(ValueError, match="only join may be for one run"):
        parse_roles("*=admin:exp1")


@pytest.mark.parametrize(
    ("names", "caller"),
    [
        (["spiffe://td/ops/anna"], Caller("spiffe://td/ops/anna", Role.ADMIN)),
        (["gpu7.train"], Caller("gpu7.train", Role.JOIN, "exp1")),
        (["gpu77.train"], Caller("gpu77.train", Role.VIEW)),
        (["x.train", "gpu7.train"], Caller("gpu7.train", Role.JOIN, "exp1")),
        (["CN=gpu"], Caller("CN=gpu", Role.JOIN)),
    ],
)
def test_the_first_rule_that_fits_a_name_counts(names: list[str], caller: Caller) -> None:
    assert caller_of_names(names, parse_roles(RULES)) == caller


@pytest.mark.parametrize("name", ["GPU7.TRAIN", "gpu7.train.org", "spiffe://td/ops", "[g]pu7"])
def test_a_name_that_fits_no_rule_is_refused_by_name(name: str) -> None:
    with pytest.raises(errors.Unauthenticated) as raised:
        caller_of_names([name], parse_roles("gpu7.train=join,spiffe://td/ops/*=admin,[g]pu7=view"))
    assert str(raised.value).endswith(f"no rule of --tls-roles is for its certificate: {name}")


def test_without_rules_each_certificate_may_join() -> None:
    assert caller_of_names(["gpu7.train", "x"], None) == Caller("gpu7.train", Role.JOIN)


def test_a_certificate_without_a_name_is_refused() -> None:
    with pytest.raises(errors.Unauthenticated, match="no DNS name, URI or common name"):
        caller_of_names([], None)


def test_a_hostile_name_stays_one_short_line() -> None:
    names = ["\x1b[2Jroot\n" * 1_000]
    with pytest.raises(errors.Unauthenticated) as raised:
        caller_of_names(names, parse_roles("a=join"))
    for shown in (str(raised.value), caller_of_names(names, None).name):
        assert shown.isprintable()
        assert len(shown) < 500


def test_the_names_are_dns_names_and_uris_and_only_without_them_the_common_name() -> None:
    context = {
        "transport_security_type": [b"ssl"],
        "x509_common_name": [b"anna"],
        "x509_subject_alternative_name": [b"gpu7.train", b"spiffe://td/a", b"10.0.0.1"],
        "peer_dns": [b"gpu7.train"],
        "peer_uri": [b"spiffe://td/a"],
        "peer_ip": [b"10.0.0.1"],
    }
    assert names_of(context) == ["gpu7.train", "spiffe://td/a"]
    assert names_of({"x509_common_name": [b"an\xffna"], "peer_ip": [b"::1"]}) == ["an\\xffna"]
    assert names_of({"x509_common_name": [b""]}) == names_of({}) == []


def test_of_many_names_the_first_count() -> None:
    many = [b"%d" % number for number in range(NAMES_MAX + 1)]
    assert names_of({"peer_dns": many}) == [name.decode() for name in many[:-1]]
