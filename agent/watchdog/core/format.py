"""Pure. A hang in a sentence."""

from __future__ import annotations

from agent.watchdog.core.model import Hang, HangKind

_HOW = {
    HangKind.TIMER: "timer {scope!r} expired: not released within {elapsed}",
    HangKind.SECTION: "section {scope!r} took too long: not left within {elapsed}",
    HangKind.STARTUP: "no first heartbeat within {elapsed} of its start",
    HangKind.RUNTIME: (
        "no sign of life for {elapsed}: no thread of its interpreter runs, "
        "because one holds the lock or the process is stopped"
    ),
    HangKind.PROGRESS: "no further heartbeat within {elapsed}",
    HangKind.EXIT: "the interpreter began to end and did not within {elapsed}",
}


def describe_hang(hang: Hang) -> str:
    """Say which limit a worker broke, and where it last stood."""
    elapsed = seconds(hang.elapsed_s)
    parts = [_HOW[hang.kind].format(scope=hang.scope, elapsed=elapsed)]
    parts[0] += f" (limit {seconds(hang.limit_s)})"
    standing = hang.standing
    if standing.heartbeat_at is not None:
        step = f" step {standing.step}," if standing.step is not None else ""
        ago = seconds(max(0.0, hang.noticed_at - standing.heartbeat_at))
        parts.append(f"last heartbeat{step} {ago} before")
    if standing.scope and standing.scope != hang.scope:
        parts.append(f"in {standing.scope!r}")
    return "; ".join(parts)


def seconds(value: float) -> str:
    """Write a duration to the tenth of a second, below ten seconds to the hundredth."""
    text = f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    return f"{text.rstrip('0').rstrip('.')} s"
