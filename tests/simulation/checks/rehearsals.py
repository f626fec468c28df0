"""What rehearsals promise: how many faults at once, whom they may hit, and what they cost."""

from collections import Counter

from drumbeat.agent.core import effects as agent_fx
from drumbeat.coordinator.core.rehearsal.model import Fault, Outcome, RehearsalNoted
from drumbeat.coordinator.core.run.records import AgentRemoved, Record, RoundEnd, RoundEnded
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.model import FaultKind


class RehearsalChecker:
    """Watches the records of a run, before they are folded in, and the effects of its agents."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[FaultKind, Outcome]] = Counter()
        self._latest_orders: dict[str, int] = {}  # by agent

    def check(self, shadow: RunState, record: Record) -> None:
        """Check a record."""
        before = shadow.rehearsal
        match record:
            case RehearsalNoted(rehearsal=after):
                known = {f.order.number: f for f in before.faults} if before is not None else {}
                assert len(after.faults) <= after.plan.at_most, "more faults than asked for"
                for fault in after.faults:
                    earlier = known.get(fault.order.number)
                    if earlier is None:
                        self._check_new(shadow, fault)
                    else:
                        is_open = earlier.outcome is Outcome.OPEN
                        assert is_open or earlier == fault, "a fault changes that was over"
                    if fault.outcome is not Outcome.OPEN and earlier != fault:
                        self.outcomes[fault.order.kind, fault.outcome] += 1
                is_one = len(after.open_faults) <= 1 or after.plan.may_overlap
                assert is_one, "two faults at once"
            case RoundEnded(cause=RoundEnd.REHEARSED):
                assert before is not None, "rehearsed by nobody"
                ours = [f for f in before.faults if f.order.round_id == shadow.round_id]
                assert [f for f in ours if f.outcome is not Outcome.NOT_INJECTED], "by no fault"
                assert not record.is_charged, "a rehearsal costs a restart"
            case AgentRemoved(is_lost=True):
                assert not shadow.is_killed(record.incarnation), "lost, and it was killed"
            case _:
                pass

    def _check_new(self, shadow: RunState, fault: Fault) -> None:
        if fault.outcome is not Outcome.OPEN:
            return
        assert shadow.round is not None
        assert fault.order.round_id == shadow.round.round_id, "a fault of another round"
        assert fault.incarnation in shadow.seats, "a fault of nobody"
        if fault.order.kind is FaultKind.AGENT:
            left = [i for i in shadow.members if i != fault.incarnation]
            left = [i for i in left if not shadow.is_killed(i)]
            assert len(left) >= shadow.spec.agents_min, "an agent is killed that is needed"

    def check_effect(self, name: str, effect: agent_fx.Effect) -> None:
        """Check that an agent injects faults in their order, each once."""
        if isinstance(effect, agent_fx.SendBeat) and (fault := effect.beat.fault) is not None:
            assert fault.number >= self._latest_orders.get(name, 0), "an older fault"
            self._latest_orders[name] = fault.number
