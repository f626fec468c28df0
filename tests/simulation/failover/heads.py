"""All coordinators of a world, where others know one; and what must hold of their journal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from coordinator.core import effects as fx
from coordinator.journal.etcd.model import Delete, Put
from tests.simulation.failover.coordinator import KEYS, Coordinator
from tests.simulation.failover.etcd import EtcdService
from tests.simulation.machines.disk import read_record
from tests.simulation.plan import RUN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coordinator.core.model import KeptDrain
    from coordinator.core.policy import Policy
    from coordinator.core.registry.registry import Registry
    from coordinator.journal.etcd.model import Outcome, Transaction
    from tests.simulation.checks.checker import Checker
    from tests.simulation.clock import Clock
    from tests.simulation.failover.coordinator import TermLife
    from tests.simulation.machines.network import Network


class JournalWatcher:
    """Sees what etcd does for the journal, at the instant at which it does it."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker
        self.latest_term = 0  # that has written anything
        self.terms: set[int] = set()  # that were taken over
        self._written: list[Sequence[fx.Effect]] = []
        self._drains: dict[tuple[str, str], KeptDrain] = {}

    def on_commit(
        self, life: TermLife, batch: Sequence[fx.Effect], asked: Transaction, outcome: Outcome
    ) -> None:
        """Etcd has done a transaction of a term, or found that its conditions do not hold."""
        changed = [each for each in asked.then if isinstance(each, Put | Delete)]
        if not outcome.is_done or not changed:
            return
        who = f"the leader of term {life.term}"
        assert life.term >= self.latest_term, f"{who} writes after that of {self.latest_term}"
        assert any(each.key == KEYS.head for each in changed), f"{who} leaves no mark"
        self.latest_term = life.term
        if not batch:
            return
        assert not self._is_written(batch), f"{who} writes a batch twice"
        self._written.append(batch)
        before = self._drained()
        changes = life.journal.changes(batch)
        for change in changes:
            if isinstance(change, fx.KeepDrain):
                self._drains.pop(change.drain.key, None)
                if change.is_kept:
                    self._drains[change.drain.key] = change.drain
        self.checker.drained = before & self._drained()
        for change in changes:
            if isinstance(change, fx.Persist):
                self.checker.on_journaled(read_record(change))

    def on_readers(self, life: TermLife, batch: Sequence[fx.Effect]) -> None:
        """A leader takes a batch for written; its readers see it now."""
        assert self._is_written(batch), "told, and not written"
        self._compare(life, "readers see something else than what is written")

    def on_taken_over(self, life: TermLife) -> None:
        """A leader has read everything."""
        assert life.term not in self.terms, f"term {life.term} begins twice"
        assert self.latest_term >= life.term, "taken over without a mark"
        self.terms.add(life.term)
        self._compare(life, "what was read back is not what was written")

    def _compare(self, life: TermLife, problem: str) -> None:
        if self.latest_term == life.term:  # else another one has written meanwhile
            assert life.journal.runs.find(RUN) == self.checker.shadow, problem
            assert life.journal.drains == self._drains, problem

    def _is_written(self, batch: Sequence[fx.Effect]) -> bool:
        return any(batch is each for each in self._written)

    def _drained(self) -> set[str]:
        return {drain.name for drain in self._drains.values() if not drain.is_lifted}


class Heads:
    """The coordinators, and etcd between them."""

    def __init__(
        self,
        clock: Clock,
        network: Network,
        checker: Checker,
        *,
        policy: Policy,
        make_registry: Callable[[Policy], Registry],
        count: int,
        ttl_s: float,
        sloppiness: float,
    ) -> None:
        self.clock, self.network, self.checker = clock, network, checker
        self.policy, self.make_registry = policy, make_registry
        self.etcd = EtcdService(clock, sloppiness=sloppiness)
        self.watcher = JournalWatcher(checker)
        self.machines = [Coordinator(self, f"c{number + 1}", ttl_s) for number in range(count)]
        self.asked = 0  # calls of the operator
        self.disk: Any = SimpleNamespace(is_lost=False, slow_until=0.0, full_until=0.0)  # none

    @property
    def addresses(self) -> str:
        """What agents are told."""
        return ",".join(machine.address for machine in self.machines)

    def at(self, address: str) -> Coordinator:
        """Return the coordinator of an address."""
        return next(machine for machine in self.machines if machine.address == address)

    @property
    def leader(self) -> Coordinator | None:
        """The one that leads in the latest term, as far as they know themselves."""
        leading = [machine for machine in self.machines if machine.is_leading]
        return max(leading, key=lambda each: each.term, default=None)

    @property
    def life(self) -> TermLife | None:
        """What serves in the latest term."""
        leader = self.leader
        life = leader.process.life if leader is not None and leader.process is not None else None
        return life if life is not None and life.is_serving else None

    def start(self) -> None:
        """Start those that do not run."""
        for machine in self.machines:
            machine.start()

    def resume(self) -> None:
        """Let those go on that were stopped."""
        for machine in self.machines:
            machine.resume()
