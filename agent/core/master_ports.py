"""Pure. Which ports this agent holds for the stores of rank 0, and for how long."""

from __future__ import annotations

from agent.core import effects as fx
from agent.core.model import Assignment, DesiredState


class MasterPorts:
    """One port for the next round or iteration that this agent leads, and those in use.

    A port is used once. That of a round is held until the next round this agent leads,
    that of an iteration until the next iteration or round it leads: by then all have
    left it. ``next`` is 0 while none is held, ``spent`` what the coordinator says is used.
    """

    def __init__(self) -> None:
        self.next = self.spent = 0
        self._in_use: set[int] = set()

    def replace_spent(self, desired: DesiredState) -> list[fx.Effect]:
        """Reserve another port once the one held is used; release those that are used no more."""
        spent = self.spent
        if not spent or spent != self.next:
            return []
        kept = {spent}
        if isinstance(desired, Assignment):
            kept.add(desired.master_port)
        gone = sorted(self._in_use - kept)
        self._in_use = (self._in_use & kept) | {spent}
        self.next = 0
        return [*(fx.ReleasePort(port=port) for port in gone), fx.ReservePort()]

    def check_invariants(self) -> None:
        """Assert what must hold between events; for tests."""
        assert self.next not in self._in_use, "one port twice"
