"""Shell. What installed packages offer to an agent, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def installed(*groups: str) -> dict[str, EntryPoint]:
    """Return the entry points of these groups; of two with one name, that of the later group."""
    # Imported here: it costs more than the rest, and only foreign code needs it.
    from importlib.metadata import entry_points  # noqa: PLC0415

    return {point.name: point for group in groups for point in entry_points(group=group)}
