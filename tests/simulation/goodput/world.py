"""Worlds whose account is compared with another one, and with what their hosts really did."""

from __future__ import annotations

from collections import defaultdict
from itertools import zip_longest
from typing import TYPE_CHECKING

import pytest

from drumbeat.coordinator.observe.goodput.ledger import Ledger
from drumbeat.coordinator.observe.goodput.stretches import MEASURED, Cause, Part
from tests.simulation.goodput.log import Log
from tests.simulation.goodput.reference import account_of, spans_of
from tests.simulation.goodput.training import Training
from tests.simulation.goodput.truth import Truth
from tests.simulation.plan import RUN, Kind, Plan
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.goodput.reference import Account

# How often a reader asks of each world while it lives.
LOOKS = 4


def compare(account: Ledger, expected: Account) -> None:
    """Check that both say the same of every nanosecond."""
    told, at = [], account.until - sum(each.time for each in account.segments)
    for each in account.segments:
        place = each.round_id, each.iteration
        told.append((at, at + each.time, each.part, each.cause, each.host, *place))
        at += each.time
    for mine, other in zip_longest(told, map(tuple, expected.pieces)):
        assert mine == other, f"the account says\n{mine}\nand not\n{other}"
    times: dict[Part, int] = defaultdict(int)
    causes: dict[Cause | None, int] = defaultdict(int)
    hosts_lost: dict[str, int] = defaultdict(int)
    for piece in expected.pieces:
        time = piece.end - piece.start
        times[piece.part] += time
        causes[piece.cause] += time
        hosts_lost[piece.host] += time
    parts = {part: (time.run, time.hosts) for part, time in account.parts.items()}
    others = {part: (times[part], hosts) for part, hosts in expected.hosts.items()}
    assert parts == others, f"{parts} and not {others}"
    causes.pop(None, 0)
    hosts_lost.pop("", 0)
    lost = {cause: time.run for cause, time in account.causes.items()}
    assert lost == causes, f"{lost} and not {causes}"
    lost_by = {host: time.run for host, time in account.hosts_lost.items()}
    assert lost_by == hosts_lost, f"{lost_by} and not {hosts_lost}"
    why = account.failures, account.restarts
    assert why == (expected.failures, expected.restarts), f"{why} and not {expected[2:]}"


class AccountedWorld(World):
    """Any world, with workers that train."""

    account: Account
    compared = 0
    """How many borders were compared with the truth."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._training, self._log = Training(self), Log(self)
        random = self.clock.random("readers")
        for _ in range(LOOKS):
            instant = self.clock.now + random.uniform(0.0, plan.chaos_s + 10.0)
            self.clock.at(instant, None, self._look)

    def live(self) -> None:
        """Live, and compare the account on the way and at the end."""
        with pytest.MonkeyPatch.context() as patch:
            self._training.begin()
            self._log.attach(patch)
            super().live()
        shadow = self.checker.shadow
        assert shadow is not None, "the run was created"
        spans = spans_of(self._log)
        self.account = account_of(spans)
        compare(shadow.observed.ledger, self.account)
        is_prompt = self.plan.kind is Kind.WORKERS and self.plan.several is None
        truth = Truth(self.plan, self._training, self._log, is_prompt=is_prompt)
        truth.check(spans)
        self.compared = truth.compared

    def _look(self) -> None:
        """Compare what a reader would be shown now."""
        state, life, log = self.checker.shadow, self.head.life, self._log
        run = life.registry.runs.get(RUN) if life is not None else None
        if run is None or state is None or state.observed.ledger.stretch is None:
            return
        if log.life_of(run.members) is not log.lives[-1]:
            return  # a coordinator that stands still, while another one leads
        known, meter = state.observed.ledger, run.members.observer.meter
        is_current = meter.number == known.number
        marks = meter.marks if is_current else known.marks
        if known.end is not None or (marks is None and known.stretch in MEASURED):
            return  # what a core was about to decide when it was lost
        now = self.clock.now
        spans = spans_of(log, now=now, life=log.life_of(run.members) if is_current else None)
        compare(known.as_of(now, marks), account_of(spans))
