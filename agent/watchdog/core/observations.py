"""Pure. How long things took at most, of all workers of a round together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Tally = tuple[int, float]
"""How many there were, and the longest, seconds."""

# What fits in a beat; see ``drumbeat.v1.Beat``. Further names are left out.
NAMES_MAX = 65


def merged(observed: Iterable[Mapping[str, Tally]]) -> dict[str, Tally]:
    """Return the sums of the counts and the longest times, by name, "" first."""
    totals: dict[str, Tally] = {}
    for each in observed:
        for name, (count, longest) in each.items():
            counted, so_far = totals.get(name, (0, 0.0))
            totals[name] = (counted + count, max(so_far, longest))
    return {name: totals[name] for name in sorted(totals)[:NAMES_MAX]}
