"""Whether a worker's memory grows, of what is read of it."""

from collections.abc import Callable

import pytest

from drumbeat.agent.host.memory.growth import RISE_LEAST_BYTES, SPAN_S, SPANS, Growth

MIB = 2**20
LONG_S = 20 * SPAN_S


def followed(size_at: Callable[[float], int], until_s: float) -> list[int]:
    growth = Growth()
    return [growth.take(size_at(now), now=float(now)) for now in range(int(until_s) + 1)]


def test_a_steady_rise_is_growth_and_its_pace_is_told_per_minute() -> None:
    told = followed(lambda now: int(1000 * MIB + 2 * MIB * now), LONG_S)
    assert told[-1] == pytest.approx(120 * MIB, rel=0.01)


def test_growth_is_told_only_after_all_spans_rose() -> None:
    told = followed(lambda now: int(1000 * MIB + 2 * MIB * now), LONG_S)
    known_from = int((SPANS + 1) * SPAN_S)
    assert not any(told[:known_from])
    assert all(told[known_from:])


@pytest.mark.parametrize(
    "size_at",
    [
        lambda _: 9000 * MIB,
        lambda now: int(5000 * MIB if now > 3 * SPAN_S else 100 * MIB),  # a model was loaded
        lambda now: int(1000 * MIB + 4000 * MIB * (now % 7 > 3)),  # allocated and freed in steps
        lambda now: int(1000 * MIB + MIB * (now // SPAN_S) + 4000 * MIB * (now % 7 > 3)),
        lambda now: int(9000 * MIB - MIB * now),
        lambda now: int(1000 * MIB + RISE_LEAST_BYTES / LONG_S * now),  # next to nothing
    ],
)
def test_what_does_not_rise_for_long_is_no_growth(size_at: Callable[[float], int]) -> None:
    assert not any(followed(size_at, LONG_S))


def test_growth_that_has_stopped_is_told_no_more() -> None:
    told = followed(lambda now: int(1000 * MIB + 2 * MIB * min(now, LONG_S)), LONG_S + 3 * SPAN_S)
    assert told[int(LONG_S)]
    assert not told[-1]
