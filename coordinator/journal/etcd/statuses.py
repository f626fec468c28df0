"""Pure. What errors of etcd and gRPC mean for a coordinator, and hints for the user."""

from __future__ import annotations

import re
from enum import Enum

from msgspec import Struct

from drumbeat.command.leader_search import plain_details


class Meaning(Enum):
    """The kind of a failure."""

    OUTAGE = "it may pass, at another member at once"
    FULL = "etcd has no room"
    TOKEN_OVER = "another token is needed"  # noqa: S105 - no secret
    NOT_LET_IN = "no member lets us in as long as nothing is changed by hand"
    IMPOSSIBLE = "the same request never succeeds"
    NO_LEASE = "there is no such lease"
    COMPACTED = "what was asked for is forgotten"


class Failure(Struct, frozen=True):
    """A call that failed."""

    meaning: Meaning
    text: str
    hint: str = ""


_USER = "check the user in --journal, and --journal-password-file"
_PERMIT = (
    "let the user read and write all keys below the prefix: "
    "etcdctl role grant-permission ROLE --prefix=true readwrite PREFIX/"
)
_TRUST = (
    "give the authorities of etcd's certificates with --journal-ca, and the names or "
    "addresses that are in them in --journal"
)
_LIMITS = "give etcd no less than its defaults: --max-request-bytes 1572864, --max-txn-ops 128"
_SEE_ETCD = "etcdctl endpoint status --cluster shows how its members are"
_ROOM = (
    "compact and defragment etcd or raise its --quota-backend-bytes, then `etcdctl alarm disarm`; "
    "every run is still in the journal"
)
OUTAGE_HINT = (
    f"etcd needs a majority of its members, reachable from here; {_SEE_ETCD}; "
    "every run is still in the journal"
)
# Parts of messages, the first that fits counts: etcd's messages have no codes of their own.
_KNOWN = (
    ("invalid auth token", Meaning.TOKEN_OVER, _USER),
    ("revision of auth store is old", Meaning.TOKEN_OVER, _USER),
    ("authentication failed", Meaning.NOT_LET_IN, _USER),
    ("user name is empty", Meaning.NOT_LET_IN, "name its user: --journal etcd://USER@HOST..."),
    ("user name not found", Meaning.NOT_LET_IN, _USER),
    ("authentication is not enabled", Meaning.NOT_LET_IN, "leave the user out of --journal"),
    (
        "permission denied",
        Meaning.NOT_LET_IN,
        _PERMIT,
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        Meaning.NOT_LET_IN,
        _TRUST,
    ),
    (
        "Hostname Verification Check failed",
        Meaning.NOT_LET_IN,
        "use the names or addresses in --journal that are in etcd's certificates",
    ),
    ("WRONG_VERSION_NUMBER", Meaning.NOT_LET_IN, "etcd there does not encrypt: no --journal-ca"),
    (
        "CERTIFICATE_REQUIRED",
        Meaning.NOT_LET_IN,
        "etcd asks for a certificate: give --journal-cert and --journal-key",
    ),
    (
        "BAD_CERTIFICATE",
        Meaning.NOT_LET_IN,
        "etcd asks for a certificate that it knows: check --journal-cert and --journal-key",
    ),
    (
        "handshake read failed",
        Meaning.OUTAGE,
        f"if etcd there does not encrypt, leave --journal-ca out; else: {OUTAGE_HINT}",
    ),
    (
        "socket closed",
        Meaning.OUTAGE,
        f"if etcd there encrypts, give --journal-ca; else: {OUTAGE_HINT}",
    ),
    ("database space exceeded", Meaning.FULL, _ROOM),
    ("request is too large", Meaning.IMPOSSIBLE, _LIMITS),
    ("too many operations", Meaning.IMPOSSIBLE, _LIMITS),
    ("requested lease not found", Meaning.NO_LEASE, ""),
    ("has been compacted", Meaning.COMPACTED, ""),
)
_IMPOSSIBLE = frozenset({"INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE", "UNIMPLEMENTED"})
# The address is named already, as the user gave it.
_ADDRESS = re.compile(r"^UNKNOWN: |ipv[46]:\S+: ")
# Characters of a message that are shown: gRPC repeats everything that it tried.
_SHOWN_MAX = 240


def failure(status: str, details: str) -> Failure:
    """Return the failure that a status of gRPC and its details describe."""
    details = plain_details(details)
    shown = _ADDRESS.sub("", details.rpartition("last error: ")[2]).strip() or status
    if len(shown) > _SHOWN_MAX:
        shown = f"{shown[: _SHOWN_MAX // 2]}…{shown[-_SHOWN_MAX // 2 :]}"
    for part, meaning, hint in _KNOWN:
        if part.lower() in details.lower():
            return Failure(meaning, shown, hint)
    if status == "DEADLINE_EXCEEDED":
        return Failure(Meaning.OUTAGE, "it did not answer in time", OUTAGE_HINT)
    meaning = Meaning.IMPOSSIBLE if status in _IMPOSSIBLE else Meaning.OUTAGE
    return Failure(meaning, shown, "" if meaning is Meaning.IMPOSSIBLE else OUTAGE_HINT)
