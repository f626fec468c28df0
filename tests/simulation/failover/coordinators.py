"""All coordinators of a world, where others know one; and what must hold of their journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drumbeat.coordinator.core.effects import Persist
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.coordinator.journal.etcd.model import Delete, Put
from drumbeat.coordinator.journal.layout import (
    Head,
    Item,
    PlacedDrain,
    decode_entries,
    decode_head,
    opened,
    unseal,
)
from tests.simulation.failover.etcd import KEYS, EtcdService
from tests.simulation.failover.process import Coordinator
from tests.simulation.machines.coordinator import Coordinators
from tests.simulation.plan import RUN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drumbeat.coordinator.journal.etcd.model import (
        RangeReading,
        Transaction,
        TransactionOutcome,
    )
    from tests.simulation.checks.checker import Checker
    from tests.simulation.clock import Clock
    from tests.simulation.failover.process import TermLife
    from tests.simulation.machines.network import Network
    from tests.simulation.plan import Plan


class JournalWatcher:
    """Sees what etcd does for the journal, at the instant at which it does it.

    What a batch brings counts when it is there for readers, and is read from its keys.
    """

    def __init__(self, checker: Checker, etcd: EtcdService) -> None:
        self.checker, self._etcd = checker, etcd
        self.takeovers = self.refused = 0
        self._head: Head | None = None
        self._was_drained: set[tuple[str, int]] = set()

    def on_commit(self, life: TermLife, asked: Transaction, outcome: TransactionOutcome) -> None:
        """Etcd has done a transaction of a term, or found that its conditions do not hold."""
        changed = [each for each in asked.then if isinstance(each, Put | Delete)]
        self.refused += not outcome.is_done
        if not outcome.is_done or not changed:
            return
        who, before = f"the leader of term {life.term}", self._head
        leader = self._etcd.state.read(KEYS.leader, "").pairs
        assert leader, f"{who} writes, and none leads"
        assert leader[0].create_revision == life.term, f"{who} writes, and another one leads"
        heads = [each.value for each in changed if isinstance(each, Put) and each.key == KEYS.head]
        assert heads, f"{who} leaves no mark"
        self._head = head = decode_head(KEYS, heads[0])
        assert head.term == life.term, f"{who} writes for another"
        if before is not None:
            assert before.term <= head.term, f"{who} writes after that of term {before.term}"
            assert before.sequence < head.sequence, f"{who} writes twice"
            assert before.batch <= head.batch <= before.batch + 1, "batches have gaps"
        if head.batch > (before.batch if before is not None else 0):
            self._on_batch(head.batch, life)

    def _on_batch(self, number: int, life: TermLife) -> None:
        """A batch is there. Of a run that has ended it has a snapshot, and no records."""
        drained = self._drained()
        # Of one that was lifted and set anew in this batch the calls are others.
        self.checker.drained = {name for name, _ in self._was_drained & drained}
        self._was_drained = drained
        values: dict[str, bytes] = {}
        for pair in self._etcd.state.read(*KEYS.runs).pairs:
            item = Item.parse(KEYS, pair.key)
            if item.batch == number:
                values[item.home] = values.get(item.home, b"") + pair.value
        for value in values.values():
            for entry in decode_entries(unseal(value)):
                if isinstance(entry, RunState):
                    if entry.phase is Phase.ENDED:
                        under_way = life.journal._under_way
                        assert under_way is not None
                        assert under_way.batch is not None
                        for change in under_way.batch.changes:
                            if isinstance(change, Persist):
                                self.checker.on_journaled(change.record)
                    assert entry == self.checker.shadow, "a snapshot is something else"
                else:
                    self.checker.on_journaled(entry)

    def on_readers(self, life: TermLife) -> None:
        """A leader takes a batch for written; its readers see it now."""
        self._compare(life, "readers see something else than what is written")

    def on_taken_over(self, life: TermLife) -> None:
        """A leader has read everything."""
        self.takeovers += 1
        assert self._head is not None, "taken over without a mark"
        assert self._head.term >= life.term, "taken over without a mark"
        self._compare(life, "what was read back is not what was written")

    def on_expired(self, term: int, machines: Sequence[Coordinator]) -> None:
        """The lease of a leader is over, for etcd: it has to have known that before."""
        for machine in machines:
            is_late = machine.term == term and not machine.is_excused
            assert not is_late, f"{machine.name} leads on in term {term} after its lease"

    def _compare(self, life: TermLife, problem: str) -> None:
        if self._head is not None and self._head.term == life.term:  # else another one writes now
            assert life.journal.runs.find(RUN) == self.checker.shadow, problem

    def _drained(self) -> set[tuple[str, int]]:
        """Return the hosts that are to take part in no round, with how often that was changed."""
        placed = (
            opened(unseal(pair.value), PlacedDrain).drain
            for pair in self._etcd.state.read(*KEYS.drains).pairs
        )
        return {(drain.name, len(drain.calls)) for drain in placed if not drain.is_lifted}


class ElectedCoordinators(Coordinators[Coordinator]):
    """Several coordinators, and etcd."""

    def __init__(self, clock: Clock, network: Network, checker: Checker, plan: Plan) -> None:
        super().__init__(clock, network, checker, plan.policy)
        several = plan.several
        assert several is not None, "there is one"
        self.etcd = EtcdService(clock, sloppiness=several.sloppiness)
        self.watcher = JournalWatcher(checker, self.etcd)
        self.etcd.on_expired = self._on_expired
        self.machines = [
            Coordinator(self, f"c{number + 1}", several.ttl_s)
            for number in range(several.coordinators)
        ]

    def _on_expired(self, before: RangeReading) -> None:
        """Leases are over; ``before`` is what the leader's key was."""
        after = self.etcd.state.read(KEYS.leader, "")
        if before.pairs and not after.pairs:
            self.watcher.on_expired(before.pairs[0].create_revision, self.machines)

    @property
    def leader(self) -> Coordinator | None:
        """The one that leads in the latest term, as far as they know themselves."""
        leading = [machine for machine in self.machines if machine.is_leading]
        return max(leading, key=lambda machine: machine.term, default=None)

    @property
    def life(self) -> TermLife | None:
        """What serves in the latest term."""
        leader = self.leader
        life = leader.process.life if leader is not None and leader.process is not None else None
        return life if life is not None and life.is_serving else None

    def heal(self) -> None:
        """Let coordinators and etcd be well again."""
        self.etcd.heal()
        super().heal()
        for machine in self.machines:
            machine.disarm()
