"""Pure. Which of several coordinators to ask next, until the one that leads has been found.

An address that failed is followed by the next one at once, until each was asked: that is a round
of the search. Between two rounds the client waits, as it does with a single address.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from drumbeat.text.format import listed

# Of one round. More of them, and the coordinators name each other.
REDIRECTS_MAX = 3

# How a coordinator that does not lead says that it knows of none that does, before the reason.
NOT_LEADING = "this coordinator does not lead"
NONE_LEADS = f"{NOT_LEADING}, none does: "
NO_LEADER = "no coordinator leads"

REASONS_MAX = 32  # that are kept, more than a round has
_NOT_CONNECTED = "Failed to connect to remote host: "
_SILENT = re.compile("(?:keepalive|ping|watchdog) timeout|connection timed out", re.IGNORECASE)
# What gRPC, the kernel and we say of a host from which no packet came.
_UNREACHED = re.compile(
    "timed out|timeout|unreachable|no route to host|resolving|resolution|fd shutdown|no answer",
    re.IGNORECASE,
)
_CORE = "Internal error from Core"  # gRPC could not write; the status of the call is lost then
_GRPC = re.compile(r"^[A-Z_]+: (?:ipv[46]:\S+: )?")


class Outcome(StrEnum):
    """How asking a coordinator ended, short of success."""

    NO_ANSWER = "no answer"
    """It could not be reached, or does not know this client: another one may lead."""
    SILENT = "silent"
    """Nothing was heard any more, of what it had been asked: another one may lead."""
    NOT_LEADER = "not the leader"
    """It said so, and perhaps which one is."""
    REFUSED = "refused"
    """It leads, and refuses for now: no other one would say anything else."""
    BROKEN = "broken"
    """It had let this client in, and what they had broke off: it may be there."""


class _Answer(NamedTuple):
    outcome: Outcome
    reason: str
    leader: str


class LeaderSearch:
    """The addresses of a cluster, and what was learned of them. Of one address it is that one."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._given = tuple(addresses)
        self.address = self._given[0]
        # The last that let this client in, or was named since; whether it was named.
        self._leader, self._is_leader_named = "", False
        self._last_found = ""
        self._round: list[str] = list(self._given)  # that are still to be asked
        self._silent: set[str] = set()  # of this round
        self._redirects = 0
        self._reasons: dict[str, _Answer] = {}

    @property
    def has_others(self) -> bool:
        """Whether there is more than one address."""
        return len({*self._given, *self._reasons, self.address}) > 1

    @property
    def given(self) -> frozenset[str]:
        """The addresses that the client was told of."""
        return frozenset(self._given)

    @property
    def is_named(self) -> bool:
        """Whether another coordinator said that the one to ask leads."""
        return self._is_leader_named and self.address == self._leader

    def note_leader(self) -> None:
        """Note that the one that was asked leads, and let this client in."""
        self._leader, self._is_leader_named = self.address, False
        self._last_found = self.address
        self._reasons.clear()
        self._begin_round()

    def failed(
        self, outcome: Outcome, reason: str = "", *, leader: str = "", is_news: bool = False
    ) -> bool:
        """Choose the next address; return whether to ask it at once.

        ``is_news``: that one leads is known by now, and not from before it gave no answer.
        """
        asked = self.address
        self._reasons.pop(asked, None)
        self._reasons[asked] = _Answer(outcome, reason, leader)
        if len(self._reasons) > REASONS_MAX:
            del self._reasons[next(iter(self._reasons))]
        if outcome in (Outcome.REFUSED, Outcome.BROKEN):
            self._leader, self._is_leader_named = asked, self.is_named
            self._begin_round()
            return False
        if asked in self._round:
            self._round.remove(asked)
        if asked == self._leader:
            self._leader = ""
        if outcome is not Outcome.NOT_LEADER:
            self._silent.add(asked)
        elif leader not in ("", asked) and (is_news or leader not in self._silent):
            self._leader, self._is_leader_named = leader, True
            if self._redirects < REDIRECTS_MAX:
                self._redirects += 1
                self.address = leader
                return True
        if self._round:
            self.address = self._round[0]
            return True
        self._begin_round()
        return False

    def why(self) -> str:
        """Say why none was found: what each address said last, those that say the same together."""
        answers = self._reasons.items()
        is_plain = all(said.outcome is not Outcome.NOT_LEADER for _, said in answers)
        if is_plain and not self.has_others:
            return next((said.reason for _, said in answers), "")
        away, failures = dict[str, list[str]](), dict[str, list[str]]()
        for address, (_, reason, _) in answers:
            is_away, said = reason.startswith(NONE_LEADS), reason.removeprefix(NONE_LEADS)
            if not is_away:
                said = short_reason(reason).removeprefix(_NOT_CONNECTED)
            (away if is_away else failures).setdefault(said, []).append(address)
        reasons = [
            f"{why} ({listed(addresses)} {'says' if len(addresses) == 1 else 'say'} so)"
            for why, addresses in away.items()
        ]
        if reasons:
            reasons[0] = f"{NO_LEADER}: {reasons[0]}"
        return "; ".join(
            [*reasons, *(f"{listed(addresses)}: {why}" for why, addresses in failures.items())]
        )

    @property
    def is_leader_dead(self) -> bool:
        """Whether one that was asked names one that gave no answer: another one is to follow."""
        heard = {Outcome.NOT_LEADER, Outcome.REFUSED}
        dead = {where for where, said in self._reasons.items() if said.outcome not in heard}
        return any(said.leader in dead for said in self._reasons.values())

    def check_invariants(self) -> None:
        """Assert what must hold between calls; for tests."""
        assert self._redirects <= REDIRECTS_MAX, "redirected without end"
        assert not self._silent & set(self._round), "asked again in the same round"

    def _begin_round(self) -> None:
        """Ask the leader first, then the others: at last those that gave no answer.

        If none did it may be this client's network, and the one that led before may lead still.
        """

        def rank(address: str) -> tuple[bool, bool, bool]:
            is_leader, was_leader = address == self._leader, address == self._last_found
            return not is_leader, address in self._silent, not was_leader

        known = dict.fromkeys([self._leader, *self._given] if self._leader else self._given)
        self._round = sorted(known, key=rank)
        self.address, self._silent, self._redirects = self._round[0], set(), 0


def is_silence(details: str) -> bool:
    """Whether a connection was given up because nothing came back, by gRPC or by the kernel."""
    return _SILENT.search(details) is not None


def is_unreached(outcome: Outcome, reason: str) -> bool:
    """Whether no host answered; one that refused a connection did. In doubt one did."""
    if outcome in (Outcome.NOT_LEADER, Outcome.REFUSED):
        return False
    return outcome is Outcome.SILENT or _UNREACHED.search(reason) is not None


def plain_details(details: str) -> str:
    """Return what gRPC says of a failure, in words that name what happened."""
    return "the connection broke while a message was sent" if details == _CORE else details


def short_reason(reason: str) -> str:
    """Return what gRPC met last; before it stands text of its own, and the address once more."""
    return _GRPC.sub("", reason.rpartition("last error: ")[2])
