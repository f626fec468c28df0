"""Pure. The history of a run: many decisions of one kind in a row are one entry of it.

When it is full, failures and rounds are kept longest.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from drumbeat.coordinator.core.run.records import CallKind, HistoryEntry
from drumbeat.coordinator.observe.observations import HEALTHY_AGAIN, UNHEALTHY
from drumbeat.text.format import listed

# Of one reason; hosts are named in it, and their names are their own.
REASON_CHARACTERS_MAX = 512
# Decisions of one kind in a row that stay entries of their own.
SINGLE_MAX = 8
# Of an entry that stands for more: the first names that are kept, and the latest ones.
NAMES_MAX = 5
ADMITTED, REMOVED = "agent admitted", "agent removed"
# What is forgotten first, unless it is among the latest tenth.
_FORGOTTEN_FIRST = frozenset(
    {
        *(ADMITTED, REMOVED, "notice given", "notice over", UNHEALTHY, HEALTHY_AGAIN),
        *(CallKind.AGENT_DRAINED, CallKind.AGENT_UNDRAINED, CallKind.CHECKPOINT_ASKED),
    }
)


def add(history: list[HistoryEntry], entry: HistoryEntry, most: int) -> None:
    """Add a decision, the latest. Linear in ``most``, however many there were."""
    entry = replace(entry, reason=_cut(entry.reason))
    if row := _row_before(history, entry):
        history[-len(row) :] = [_merged(row, entry)]
    else:
        history.append(entry)
    if len(history) > most:
        older = range(len(history) - 1 - len(history) // 10)
        del history[next((i for i in older if history[i].decision in _FORGOTTEN_FIRST), 0)]


def entry_after(entry: HistoryEntry, sequence: int) -> HistoryEntry:
    """Return what an entry tells to a reader that knows the decisions up to ``sequence``."""
    number = entry.sequence - sequence
    if number >= entry.count:
        return entry
    reason = entry.latest
    if number > 1:
        names = entry.names[NAMES_MAX:][-number:]
        reason = _sentence(entry.decision, number, names, entry.tail)
    return replace(entry, count=number, reason=_cut(reason))


def _row_before(history: list[HistoryEntry], entry: HistoryEntry) -> list[HistoryEntry]:
    """Return the entries that become one with this, if there are enough of them."""
    row = history[-SINGLE_MAX:]
    row = row[-1:] if row and row[-1].count > 1 else row
    number = sum(earlier.count for earlier in row)
    if not entry.names or number < SINGLE_MAX:
        return []
    of = (entry.decision, entry.round_id, entry.caller)
    is_row = all((e.decision, e.round_id, e.caller) == of and e.names for e in row)
    # None between them was forgotten.
    return row if is_row and row[0].sequence - row[0].count + number + 1 == entry.sequence else []


def _merged(row: list[HistoryEntry], entry: HistoryEntry) -> HistoryEntry:
    first, names = row[0], [name for e in [*row, entry] for name in e.names]
    tails = {e.tail if e.count > 1 else e.reason[len(e.names[0]) :] for e in [*row, entry]}
    count, tail = sum(e.count for e in row) + 1, tails.pop() if len(tails) == 1 else ""
    return replace(
        entry,
        count=count,
        names=(*names[:NAMES_MAX], *names[-NAMES_MAX:]),
        tail=tail,
        latest=entry.reason,
        reason=_cut(_sentence(first.decision, count, names[:NAMES_MAX], tail)),
    )


def _sentence(decision: str, number: int, names: Collection[str], tail: str) -> str:
    """Say "9 agents joined: a, b and 7 more"; ``tail`` is what the reasons have behind names."""
    verb = " joined" if decision == ADMITTED else decision.removeprefix("agent")
    verb, why = (tail, "") if tail.startswith(" ") else (verb, tail)
    more = [f"{number - len(names):,} more"] * (number > len(names))
    return f"{number:,} agents{verb}: {listed([*names, *more], NAMES_MAX + 1)}{why}"


def _cut(reason: str) -> str:
    is_short = len(reason) <= REASON_CHARACTERS_MAX
    return reason if is_short else f"{reason[: REASON_CHARACTERS_MAX - 1]}…"
