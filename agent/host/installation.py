"""Shell. Finds entry points of other packages."""

from typing import Any


def installed(*groups: str) -> dict[str, Any]:
    """Return the entry points of these groups; of two with one name, that of the later group."""
    # Imported here: it costs more than the rest, and only foreign code needs it.
    from importlib.metadata import entry_points  # noqa: PLC0415

    return {point.name: point for group in groups for point in entry_points(group=group)}
