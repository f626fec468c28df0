"""Pure. What is written to a journal: what the core wants kept, and snapshots of runs."""

from __future__ import annotations

from msgspec import Struct

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.run.state import RunState


class Compact(Struct, frozen=True):
    """Replace all records of a run by the state they fold into."""

    state: RunState


Change = fx.Kept | Compact
