"""Whichever rank makes a synchronous round hang, and however: it is named, or no rank is."""

import itertools
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from drumbeat.coordinator.core.failures.hang_diagnosis import diagnose
from drumbeat.coordinator.core.failures.hang_evidence import RankEvidence, SeenRanks
from drumbeat.coordinator.core.model import ExpiredLimit
from drumbeat.model import HangKind
from tests.support.hangs import (
    ALL_REDUCE,
    BACKWARD,
    COPY,
    LOADER,
    LOCK,
    STILL_S,
    a_limit,
    causes,
    seen,
    unreached,
)
from tests.support.orders import IS_LONG

PER_HOST = 2
# Hosts with one rank and with two. There are five times as many cases with five hosts as below.
SIZES = (2, 3, 4, 5, 6, *([9] if IS_LONG else []))
# What the cause does, as evidence of it: its stack and what else is seen.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "asleep in its loader": (LOADER, {}),
    "in a lock": (LOCK, {}),
    "in a C call with the lock, asked": ("", {"runtime_age_s": STILL_S}),
    "in a C call with the lock, signalled": (COPY, {"runtime_age_s": STILL_S}),
    "in a C call with the lock, found by its runtime limit": ("", {"kind": HangKind.RUNTIME}),
    "stopped": ("", {"is_stopped": True}),
    "its host does not answer": ("", {"is_reached": False}),
    "in another collective": ("BARRIER", {}),
    "in the same collective": ("WAITS", {}),
}
INNOCENT = {"all_reduce": ALL_REDUCE, "backward": BACKWARD, "item": COPY}


@cache
def evidence(rank: int, stacks: str, **more: Any) -> RankEvidence:
    host = rank // PER_HOST
    found = seen(rank, stacks, host=host, local_rank=rank % PER_HOST, **more)
    assert isinstance(found, RankEvidence)
    return found


def a_round(
    way: str, size: int, culprit: int, waits: str, unheard: set[int], step: int | None
) -> list[RankEvidence]:
    """Return what is seen of the ranks of a round; hosts in ``unheard`` did not answer."""
    text, more = WAYS[way]
    line = {"source_line": "loss.item()"} if waits == "item" else {}
    if not more.get("is_reached", True):
        unheard = unheard | {culprit // PER_HOST}
    ranks = []
    for rank in range(size):
        if rank // PER_HOST in unheard:
            ranks.append(unreached(rank, host=rank // PER_HOST))
        elif rank != culprit:
            # The others are as far as the cause, or have gone on as far as its next collective.
            ranks.append(evidence(rank, INNOCENT[waits], step=step, **line))
        elif text == "WAITS":
            ranks.append(evidence(rank, INNOCENT[waits], step=step, **line))
        elif text == "BARRIER":
            other = BACKWARD if waits == "all_reduce" else ALL_REDUCE
            ranks.append(evidence(rank, other, step=step))
        else:
            fields = {k: v for k, v in more.items() if k not in ("kind", "is_reached")}
            at = None if step is None else step - 1
            ranks.append(evidence(rank, text, step=at, **fields))
    return ranks


def limits_of(way: str, culprit: int, expired: tuple[int, ...]) -> dict[int, ExpiredLimit]:
    kind = WAYS[way][1].get("kind", HangKind.PROGRESS)
    return {
        rank: a_limit(
            local_rank=rank % PER_HOST, kind=kind if rank == culprit else HangKind.PROGRESS
        )
        for rank in expired
    }


def is_open(way: str, size: int, culprit: int, unheard: set[int]) -> bool:
    """Return whether what was seen of the cause is true of other ranks as well, or of too few."""
    if way == "in the same collective":
        return True
    if way == "its host does not answer":
        return bool(unheard - {culprit // PER_HOST}) or size <= PER_HOST
    silent = {rank for rank in range(size) if rank // PER_HOST in unheard}
    if culprit in silent or len(silent) == size - 1:  # or of no other rank anything is seen
        return True
    if way == "in another collective":
        return size == 2 or bool(silent)
    return way == "in a C call with the lock, asked" and bool(silent)


def cases(way: str) -> Iterator[tuple[int, str, int | None, int, set[int]]]:
    """Yield rounds: sizes, where others wait, steps, the cause, and hosts that are not heard."""
    for size, waits, step in itertools.product(SIZES, INNOCENT, (None, 7)):
        hosts = range(-(-size // PER_HOST))
        for culprit, gone in itertools.product(range(size), range(len(hosts))):
            for unheard in map(set, itertools.combinations(hosts, gone)):
                is_culprit_seen = culprit // PER_HOST not in unheard
                seen_of = size - sum(rank // PER_HOST in unheard for rank in range(size))
                # A rank that waits like all that are seen is no cause that anybody could find.
                is_alike = way == "in the same collective" or not is_culprit_seen or seen_of == 1
                if way.endswith("collective") and unheard and is_alike:
                    continue
                yield size, waits, step, culprit, unheard


def expiries(way: str, size: int, culprit: int) -> list[tuple[int, ...]]:
    """Return the ranks whose limits may have expired."""
    return [
        expired
        for expired in sorted({(0,), (culprit,), (size - 1,), tuple(range(size))})
        if culprit in expired or not way.endswith("its runtime limit")
    ]


@pytest.mark.parametrize("way", WAYS)
def test_the_cause_is_named_or_no_rank_is(way: str) -> None:
    outcomes: Counter[str] = Counter()
    for size, waits, step, culprit, unheard in cases(way):
        ranks = a_round(way, size, culprit, waits, unheard, step)
        evidence_of_all = SeenRanks.of(ranks)
        for expired in expiries(way, size, culprit):
            diagnosis = diagnose(0, evidence_of_all, limits_of(way, culprit, expired), now=100.0)
            named = set(causes(diagnosis))
            case = f"{size=} {waits=} {step=} {culprit=} {unheard=} {expired=}"
            if not named:
                assert is_open(way, size, culprit, unheard), f"{case}: {diagnosis.summary}"
                outcomes["cannot tell"] += 1
                continue
            # Of a host that does not answer all ranks are named.
            is_host = not any(rank.is_reached for rank in ranks if rank.rank in named)
            host = {rank.rank for rank in ranks if rank.seat.group_rank == culprit // PER_HOST}
            allowed = host if is_host else {culprit}
            assert culprit in named <= allowed, f"an innocent rank: {case}: {diagnosis.summary}"
            outcomes["named"] += 1
    assert (outcomes["named"] > 0) == (way != "in the same collective")
