"""Deliberate mistakes in the product that only several coordinators can show."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from drumbeat.command.leader_search import LeaderSearch
from drumbeat.coordinator.cluster import transactions
from drumbeat.coordinator.cluster.candidacy import Candidacy
from drumbeat.coordinator.cluster.model import EtcdCall
from drumbeat.coordinator.core.registry.registry import Registry
from drumbeat.coordinator.errors import JournalOutage
from drumbeat.coordinator.journal.etcd import journal
from drumbeat.coordinator.journal.etcd.journal import EtcdJournal
from drumbeat.coordinator.journal.etcd.model import IsCreated
from tests.simulation.checks.mistakes import (
    has_no_patience_with_itself,
    speaks_before_it_writes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from drumbeat.coordinator.cluster.model import Member
    from drumbeat.coordinator.core.effects import Effect
    from drumbeat.coordinator.journal.etcd.model import Transaction
    from drumbeat.coordinator.journal.layout import Head
    from tests.simulation.checks.mistakes import Mistake


def _holds_anyway(*_: object) -> IsCreated:
    return IsCreated("nothing", 0)


def writes_without_its_term(patch: pytest.MonkeyPatch) -> None:
    """A write is the next one after the last, under any leader."""
    patch.setattr(journal, "IsCreated", _holds_anyway)


def writes_again_whenever_it_arrives(patch: pytest.MonkeyPatch) -> None:
    """A write holds as long as the one leads that asked for it, however late it is."""
    patch.setattr(journal, "IsModified", _holds_anyway)


def leaves_no_mark(patch: pytest.MonkeyPatch) -> None:
    """A leader that takes over reads, and fences nothing that is under way."""

    async def take_over(self: EtcdJournal) -> Head:
        commit = self._commit

        async def pass_over(*_: Any, **__: Any) -> None:
            self._head = self._head

        self._commit = pass_over  # type: ignore[method-assign]
        try:
            return await original(self)
        finally:
            self._commit = commit  # type: ignore[method-assign]

    original = EtcdJournal._take_over
    patch.setattr(EtcdJournal, "_take_over", take_over)


def writes_twice_what_was_not_answered(patch: pytest.MonkeyPatch) -> None:
    """What may have arrived is written again behind what there is."""

    async def write(self: EtcdJournal, effects: Sequence[Effect], *, now: float) -> None:
        try:
            await original(self, effects, now=now)
        except JournalOutage:
            reading = await self._etcd.read(self._keys.head, "")
            self._under_way, self._head = None, self._decoded(reading.pairs[0])
            self._revision = reading.pairs[0].mod_revision
            raise

    original = EtcdJournal.write
    patch.setattr(EtcdJournal, "write", write)


def leads_on_after_its_lease(patch: pytest.MonkeyPatch) -> None:
    """A leader that does not reach etcd waits for it to say that the lease is over."""

    def keep(self: Candidacy, asked_at: float, ttl_s: float) -> None:
        original(self, asked_at, ttl_s)
        self._lease_until = math.inf

    original = Candidacy._keep
    patch.setattr(Candidacy, "_keep", keep)


def leads_beside_another(patch: pytest.MonkeyPatch) -> None:
    """A campaign is won although another one leads."""

    def campaign(keys: Any, member: Member, lease_id: int) -> Transaction:
        asked = original(keys, member, lease_id)
        return type(asked)((), asked.then, asked.otherwise)

    original = transactions.campaign
    patch.setattr(transactions, "campaign", campaign)


def campaigns_once(patch: pytest.MonkeyPatch) -> None:
    """Who has led does not try again."""
    original = Candidacy._wanted

    def wanted(self: Candidacy) -> Any:
        return (
            step
            for step in original(self)
            if not self._given_up or step.call is not EtcdCall.CAMPAIGN
        )

    patch.setattr(Candidacy, "_wanted", wanted)


def takes_its_own_silence_for_theirs(patch: pytest.MonkeyPatch) -> None:
    """A leader that stood still gives those up that went to look for another one."""
    patch.setattr(Registry, "was_deaf", lambda _self, now: False)  # noqa: ARG005


def never_looks_elsewhere(patch: pytest.MonkeyPatch) -> None:
    """An agent asks the first of its addresses again and again."""

    def failed(self: LeaderSearch, *args: Any, **named: Any) -> bool:
        original(self, *args, **named)
        self.address = self._given[0]
        return False

    original = LeaderSearch.failed
    patch.setattr(LeaderSearch, "failed", failed)


# Of hosts that are excluded.


FAILOVER_MISTAKES: list[Mistake] = [
    writes_without_its_term,
    writes_again_whenever_it_arrives,
    leaves_no_mark,
    writes_twice_what_was_not_answered,
    leads_on_after_its_lease,
    leads_beside_another,
    campaigns_once,
    takes_its_own_silence_for_theirs,
    never_looks_elsewhere,
    speaks_before_it_writes,
    has_no_patience_with_itself,
]
