"""The account of a run against another one, and against what its hosts really did."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

import pytest

from drumbeat.coordinator.core.model import Beat
from drumbeat.coordinator.observe.goodput import Ledger
from drumbeat.coordinator.observe.meter import Meter
from drumbeat.coordinator.observe.stretches import MEASURED, Cause, Part
from tests.simulation.clock import readable
from tests.simulation.cluster import Cluster
from tests.simulation.failover.world import FailoverCluster
from tests.simulation.goodput.log import Log
from tests.simulation.goodput.reference import account_of, spans_of
from tests.simulation.goodput.training import Training
from tests.simulation.goodput.truth import Truth
from tests.simulation.plan import RUN, Kind, Plan
from tests.simulation.test_simulation import MISTAKE_SEEDS_MAX, SEEDS, SEEDS_PER_TEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.goodput.reference import Account

# How often a reader asks of each world while it lives.
LOOKS = 4
# A fifth of them with several coordinators; `make soak` lives them all.
WORLDS = SEEDS if SEEDS > 200 else SEEDS // 2
FAILOVER_WORLDS = WORLDS // 5

# Seeds that once failed, and what they found.
REGRESSIONS = [
    56,  # a host that never came back to a new coordinator had hung from the first second
    70,  # what interrupted an iteration for good was no cause of the round that followed
    521,  # a drained agent was told to leave by a core that broke, and never again
    1349,  # a rank that had ended was waited for, though it had told a heartbeat
]


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


def look(cluster: Cluster, log: Log) -> None:
    """Compare what a reader would be shown now."""
    state, life = cluster.checker.shadow, cluster.head.life
    run = life.registry.runs.get(RUN) if life is not None else None
    if run is None or state is None or state.observed.ledger.stretch is None:
        return
    if log.life_of(run.members) is not log.lives[-1]:
        return  # a coordinator that stands still, while another one leads
    known, meter = state.observed.ledger, run.members.observer.meter
    is_current = meter.number == known.number
    marks = meter.marks() if is_current else known.marks
    if known.found is not None or (marks is None and known.stretch in MEASURED):
        return  # what a core was about to decide when it was lost
    now = cluster.clock.now
    spans = spans_of(log, now=now, life=log.life_of(run.members) if is_current else None)
    compare(known.as_of(now, marks), account_of(spans))


def live(cluster: Cluster) -> tuple[Account, int]:
    """Live one world, and compare its account on the way and at its end.

    Return it, and how many borders were compared with the truth.
    """
    training, log = Training(cluster), Log(cluster)
    random, is_failover = cluster.clock.random("readers"), isinstance(cluster, FailoverCluster)
    for _ in range(LOOKS):
        instant = cluster.clock.now + random.uniform(0.0, cluster.plan.chaos_s + 10.0)
        cluster.clock.at(instant, None, partial(look, cluster, log))
    with pytest.MonkeyPatch.context() as patch:
        training.attach(patch)
        log.attach(patch)
        try:
            cluster.run()
            shadow = cluster.checker.shadow
            assert shadow is not None, "the run was created"
            spans = spans_of(log)
            expected = account_of(spans)
            compare(shadow.observed.ledger, expected)
            is_prompt = cluster.plan.kind is Kind.WORKERS and not is_failover
            truth = Truth(cluster.plan, training, log, is_prompt=is_prompt)
            truth.check(spans)
        except AssertionError as error:
            story = readable(cluster.clock)
            pytest.fail(f"{story}\n\nseed {cluster.plan.seed}: {error}", pytrace=False)
    return expected, truth.compared


@pytest.mark.parametrize("first", range(0, WORLDS - FAILOVER_WORLDS, SEEDS_PER_TEST))
def test_the_account_is_what_was_heard_and_decided(first: int) -> None:
    seeds = range(first, min(first + SEEDS_PER_TEST, WORLDS - FAILOVER_WORLDS))
    lives = [live(Cluster(Plan.draw(seed))) for seed in seeds]
    if first == 0 and len(lives) == SEEDS_PER_TEST:  # else they would prove nothing
        pieces = [piece for account, _ in lives for piece in account.pieces]
        assert {piece.part for piece in pieces} == set(Part) - {Part.UNKNOWN}
        assert {piece.cause for piece in pieces} == {None, *Cause}
        assert sum(compared for _, compared in lives) > 100


@pytest.mark.parametrize("first", range(0, FAILOVER_WORLDS, SEEDS_PER_TEST))
def test_the_account_is_the_same_with_several_coordinators(first: int) -> None:
    for seed in range(first, min(first + SEEDS_PER_TEST, FAILOVER_WORLDS)):
        live(FailoverCluster(seed))


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_worlds_that_once_failed(seed: int) -> None:
    live(Cluster(Plan.draw(seed)))


def _loses_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Meter, "lost", lambda *_, **__: None)


def _mistakes_ages(patch: pytest.MonkeyPatch) -> None:
    after = Beat.after
    patch.setattr(Beat, "after", lambda beat, before, **_: after(beat, before))


def _forgets_causes(patch: pytest.MonkeyPatch) -> None:
    note = Meter.note
    patch.setattr(Meter, "note", lambda meter, *, now, found=None: note(meter, now=now))  # noqa: ARG005


@pytest.mark.soak
@pytest.mark.parametrize("mistake", [_loses_nobody, _mistakes_ages, _forgets_causes])
def test_a_mistake_is_found(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def live_many() -> None:
        for seed in range(MISTAKE_SEEDS_MAX):
            live(Cluster(Plan.draw(seed)))

    mistake(monkeypatch)
    with pytest.raises(pytest.fail.Exception):
        live_many()
