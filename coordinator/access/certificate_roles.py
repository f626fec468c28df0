"""Pure. What clients may do whose certificates are of the operator's own PKI: names and rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from drumbeat.access.token import Role
from drumbeat.command.settings import Kind
from drumbeat.coordinator import errors
from drumbeat.coordinator.core.tokens.caller import Caller
from drumbeat.text.format import one_line

# Of a certificate; what it has beyond them counts for nothing.
NAMES_MAX = 64
# Of a name, where it is shown.
NAME_CHARACTERS_MAX = 256
_ALLOWED = (
    "PATTERN=ROLE[:RUN],... with the roles join, view and admin, a run for join only; "
    "in a pattern * and ? stand for other characters"
)
_RULE = re.compile(r"(.+)=(join|view|admin)(?::(?!\.{1,2}\Z)([A-Za-z0-9._-]{1,128}))?", re.ASCII)


class RoleRule(NamedTuple):
    """Certificates with a name that fits ``pattern`` have a role, for one run if it says which.

    Upper and lower case differ; ``*`` stands for dots and slashes too.
    """

    pattern: str
    role: Role
    run_id: str = ""

    def __str__(self) -> str:
        return f"{self.pattern}={self.role}{':' if self.run_id else ''}{self.run_id}"


EVERY = RoleRule("*", Role.JOIN)
"""The rule where an operator gives none."""


def parse_roles(given: str) -> tuple[RoleRule, ...]:
    """Read rules, in the order in which they count. Raises ``ValueError`` with what is wrong."""
    return tuple(_rule(part.strip()) for part in given.split(","))


def _rule(given: str) -> RoleRule:
    if (match := _RULE.fullmatch(given)) is None:
        raise ValueError(f"{one_line(given)!r} is given, allowed is {_ALLOWED}")
    pattern, role, run_id = match.groups()
    if run_id and role != Role.JOIN:
        raise ValueError(f"{one_line(given)!r} is given, but only join may be for one run")
    return RoleRule(pattern, Role(role), run_id or "")


def _rules(given: Any) -> tuple[RoleRule, ...]:
    return parse_roles(given) if isinstance(given, str) else tuple(map(_rule, map(str, given)))


TLS_ROLES = Kind(
    _ALLOWED,
    _rules,
    parse_roles,
    lambda rules: ",".join(map(str, rules)),
    "PATTERN=ROLE[:RUN],...",
)


def names_of(auth_context: Mapping[str, Iterable[bytes]]) -> list[str]:
    """Return the names in a client's certificate, from what gRPC says of a connection.

    DNS names and URIs, or the common name if there are none; empty without a certificate.
    """
    names = (*auth_context.get("peer_dns", ()), *auth_context.get("peer_uri", ()))
    shown = names or auth_context.get("x509_common_name", ())
    return [name.decode(errors="backslashreplace") for name in shown if name][:NAMES_MAX]


def caller_of_names(names: Sequence[str], rules: Sequence[RoleRule] | None) -> Caller:
    """Return who has a certificate, by the first rule that fits. Raises ``Unauthenticated``."""
    if not names:
        raise errors.Unauthenticated("its certificate has no DNS name, URI or common name")
    for rule in (EVERY,) if rules is None else rules:
        for name in names:
            if fnmatchcase(name, rule.pattern):
                return Caller(one_line(name, NAME_CHARACTERS_MAX), rule.role, rule.run_id)
    shown = one_line(", ".join(names))
    raise errors.Unauthenticated(f"no rule of --tls-roles is for its certificate: {shown}")
