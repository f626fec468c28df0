"""Pure. What is told of what repeats: once in so many seconds, and then how often it was."""

from __future__ import annotations

from collections.abc import Hashable


class Throttle:
    """Tells of a key once within ``interval_s``, and of no more than ``keys_max`` in that time."""

    def __init__(self, interval_s: float, *, keys_max: int) -> None:
        self._interval_s, self._keys_max = interval_s, keys_max
        # When each was told, the latest last, and how often it was not since.
        self._shown: dict[Hashable, tuple[float, int]] = {}
        self.crowded_out = 0  # how often there was no room for one more key

    def __len__(self) -> int:
        return len(self._shown)

    def take(self, key: Hashable, *, now: float) -> int | None:
        """Return how often the key was left out since it was told; ``None``: leave it out now."""
        shown = self._shown.get(key)
        if shown is not None and now - shown[0] < self._interval_s:
            self._shown[key] = (shown[0], shown[1] + 1)
            return None
        if shown is not None:
            del self._shown[key]
        elif len(self._shown) >= self._keys_max:
            oldest = next(iter(self._shown))
            if now - self._shown[oldest][0] < self._interval_s:
                self.crowded_out += 1
                return None
            del self._shown[oldest]
        self._shown[key] = (now, 0)
        return shown[1] if shown is not None else 0
