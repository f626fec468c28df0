"""Pure. Where etcd is and how it is reached: ``etcd://…`` and the settings beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from drumbeat.command.settings import Kind, Setting, text
from drumbeat.text.addresses import HostPort, is_loopback, parse_host_port
from drumbeat.text.violation import Violation

SCHEME = "etcd://"
PORT_DEFAULT = 2379  # of clients of etcd
PREFIX_DEFAULT = "drumbeat"
# More than any cluster of etcd has members.
ENDPOINTS_MAX = 16
_PREFIX_CHARACTERS_MAX = 128

_ALLOWED = "etcd://[USER@]HOST[:PORT][,HOST[:PORT]...][/PREFIX]"
_PREFIX = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*", re.ASCII)
_USER = re.compile(r"[^\s:@/,]{1,128}")


class EtcdAddress(Struct, frozen=True, kw_only=True):
    """A cluster of etcd, what of it is ours, and how one gets in. Files are paths, or empty."""

    endpoints: tuple[HostPort, ...]
    prefix: str = PREFIX_DEFAULT
    user: str = ""
    password_file: str = ""
    ca_file: str = ""  # authorities of etcd's certificates; with it the connection is encrypted
    cert_file: str = ""
    key_file: str = ""

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        return f"{SCHEME}{user}{','.join(map(str, self.endpoints))}/{self.prefix}"

    @property
    def is_exposed(self) -> bool:
        """Whether others may read on the way what etcd is told, secrets among it."""
        return not self.ca_file and self.is_remote

    @property
    def is_remote(self) -> bool:
        """Whether a member of the cluster is on another host."""
        return not all(is_loopback(endpoint.host) for endpoint in self.endpoints)


def parse_etcd_address(given: str) -> EtcdAddress:
    """Read an address. Raises ``ValueError``, which says what is wrong and shows no password."""
    if not given.startswith(SCHEME):
        raise ValueError(f"it does not begin with {SCHEME}; allowed is {_ALLOWED}")
    # A password may hold anything, so nothing of what stands before the last @ is shown.
    user, has_user, place = given.removeprefix(SCHEME).rpartition("@")
    if ":" in user or "/" in user:
        problem = "a password in the address would be visible to all users of this host"
        raise ValueError(f"{problem}: give it with --journal-password-file")
    if has_user and not _USER.fullmatch(user):
        raise ValueError("the user before the @ has to have 1 to 128 characters without spaces")
    hosts, _, prefix = place.partition("/")
    parsed = (parse_host_port(host, PORT_DEFAULT) for host in hosts.split(","))
    endpoints = tuple(dict.fromkeys(parsed))
    if len(endpoints) > ENDPOINTS_MAX:
        raise ValueError(f"{len(endpoints)} hosts are given, allowed are {ENDPOINTS_MAX} at most")
    prefix = prefix.strip("/") or PREFIX_DEFAULT
    if len(prefix) > _PREFIX_CHARACTERS_MAX or not _PREFIX.fullmatch(prefix):
        allowed = f"up to {_PREFIX_CHARACTERS_MAX} letters, digits, '.', '_', '-', parted by '/'"
        raise ValueError(f"the prefix {prefix!r} is given, allowed are {allowed}")
    return EtcdAddress(endpoints=endpoints, prefix=prefix, user=user)


def _read(given: Any) -> EtcdAddress:
    return given if isinstance(given, EtcdAddress) else parse_etcd_address(given)


# Messages do not show what was given: it may have a password where none should be.
ETCD_ADDRESS = Kind(_ALLOWED, _read, parse_etcd_address, metavar=_ALLOWED, is_secret=True)

_SECTION = "High availability"
_PATH = text("the path of a file", len, metavar="FILE")

JOURNAL = Setting(
    None,
    ETCD_ADDRESS,
    _SECTION,
    "Keep the journal on etcd, for several coordinators of which one leads; one prefix for each "
    "such cluster.",
    shown_default="a file in the state directory",
)
JOURNAL_PASSWORD_FILE = Setting(
    None, _PATH, _SECTION, "Password of etcd's user, in a file for its owner alone."
)
JOURNAL_CA = Setting(
    None,
    _PATH,
    _SECTION,
    "Authorities of etcd's certificates, in PEM; with them the connection is encrypted.",
    shown_default="not encrypted",
)
JOURNAL_CERT = Setting(
    None, _PATH, _SECTION, "Certificate to show to etcd, in PEM, if it asks for one."
)
JOURNAL_KEY = Setting(None, _PATH, _SECTION, "Its key, for its owner alone.")


def address_of(settings: Any) -> EtcdAddress | None:
    """Return where a journal is on etcd, with the files that the settings beside it name."""
    address: EtcdAddress | None = settings.journal
    return address and replace(
        address,
        password_file=settings.journal_password_file or "",
        ca_file=settings.journal_ca or "",
        cert_file=settings.journal_cert or "",
        key_file=settings.journal_key or "",
    )


def broken_rules(settings: Any) -> list[Violation]:
    """Return which of the settings beside an address need others that are not given."""
    names = ("journal_password_file", "journal_ca", "journal_cert", "journal_key")
    given = {name: value for name in names if (value := getattr(settings, name))}
    if (address := settings.journal) is None:
        allowed = "this only together with --journal"
        return [Violation(name, value, allowed) for name, value in given.items()]
    needs = [("cert", "ca"), ("cert", "key"), ("key", "cert")]
    violations = lonely(given, [(f"journal_{name}", f"journal_{other}") for name, other in needs])
    if "journal_password_file" in given and not address.user:
        allowed = "this only with the user it is of: --journal etcd://USER@HOST..."
        violations.append(
            Violation("journal_password_file", given["journal_password_file"], allowed)
        )
    if address.user and "journal_password_file" not in given:
        allowed = "a user only together with --journal-password-file"
        violations.append(Violation("journal", address, allowed))
    return violations


def lonely(given: Mapping[str, object], needs: Iterable[tuple[str, str]]) -> list[Violation]:
    """Return which settings are given without another one that each of them needs."""
    return [
        Violation(name, given[name], f"this only together with --{needed.replace('_', '-')}")
        for name, needed in needs
        if name in given and needed not in given
    ]
