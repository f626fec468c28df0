"""Whichever mistake a rank makes in its collectives: it is named, or no rank is."""

import os
from collections import Counter

from drumbeat.coordinator.core.failures.collective_diagnosis import diagnose_collectives
from drumbeat.coordinator.core.failures.collective_evidence import SeenCalls
from drumbeat.coordinator.core.failures.collective_hang import (
    CollectiveDiagnosis,
    CollectiveKind,
    describe_diagnosis,
)
from tests.simulation.collectives import STILL_S, Schedule

SCHEDULES = int(os.environ.get("DRUMBEAT_SCHEDULES", "300"))


def diagnose(schedule: Schedule) -> CollectiveDiagnosis:
    seen = SeenCalls(range(schedule.size))
    for rank, groups in schedule.answers().items():
        seen.add(rank, groups)
    return diagnose_collectives(seen, waiting=schedule.waiting(), fresh_s=STILL_S / 2)


def test_the_cause_is_named_or_no_rank_is() -> None:
    outcomes: Counter[tuple[str, str]] = Counter()
    wrong: dict[int, str] = {}
    for seed in range(SCHEDULES):
        schedule = Schedule(seed)
        found = diagnose(schedule)
        lines = "\n".join(describe_diagnosis(found))
        named = {each.rank for each in found.causes}
        if not schedule.is_hung():
            assert found.kind is CollectiveKind.NONE or schedule.silent, f"{seed}: {lines}"
            outcome = "does not hang"
        elif not named:
            outcome = f"not named: {found.kind}"
        elif named == {schedule.culprit} and schedule.mistake != "network":
            outcome = f"named: {found.kind}"
        else:
            outcome = f"WRONG: {found.kind}"
            # Of two ranks, one that makes a call too many looks like one that waits for the other.
            if schedule.mistake != "extra":
                wrong[seed] = lines
        outcomes[schedule.mistake, outcome] += 1
    for (mistake, outcome), number in sorted(outcomes.items()):
        print(f"{mistake:8} {outcome:32} {number}")
    count_named = sum(n for (_, outcome), n in outcomes.items() if outcome.startswith("named"))
    assert len(wrong) <= count_named / 100, wrong
    assert count_named > SCHEDULES / 3
