"""Pure. What the coordinator wants of this agent, told to the user."""

from __future__ import annotations

from agent import effects as fx
from agent.model import Assignment, Desired, Exit, Standby, Stop


def announcement(desired: Desired) -> fx.Tell:
    """Return the line of the log that tells of a new desired state."""
    match desired.state:
        case Standby() as standby:
            tell = fx.Tell(what="standing by", why=standby.reason, time_left_s=standby.time_left_s)
        case Assignment() as assignment:
            tell = fx.Tell(
                what="round assigned", why=assignment.reason, round_id=assignment.round_id
            )
        case Stop() as stop:
            tell = fx.Tell(what="stopping", why=stop.reason)
        case Exit() as end:
            tell = fx.Tell(what="run ended", why=end.reason)
    return tell
