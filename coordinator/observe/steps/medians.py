"""Pure. Medians of what many ranks say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

# The median is that of so many peers, spread evenly over all: its error is below that of a beat.
PEERS_MAX = 1_000


def spread(ranks: Sequence[Any]) -> Sequence[Any]:
    """Return as many of them as a median needs, at an odd distance: of all places on a host."""
    return ranks[:: math.ceil(len(ranks) / PEERS_MAX) | 1]


def lower_median(times: Iterable[float], *, of_none: float) -> float:
    """Return the lower median; what is NaN does not count."""
    known = sorted(time for time in times if time >= 0)
    return known[(len(known) - 1) // 2] if known else of_none
