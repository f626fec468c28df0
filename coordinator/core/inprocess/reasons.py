"""Pure. The sentences that say why an iteration waits, begins, ends or is given up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import islice

from coordinator.core.inprocess.model import FAULTS_NAMED_MAX, Fault, InprocessSpec
from coordinator.core.run.reasons import NAMES_SHOWN_MAX


def faults_named(faults: Sequence[Fault]) -> str:
    """Say what went wrong with the first few."""
    return _first([str(fault) for fault in faults[:FAULTS_NAMED_MAX]], len(faults), sep="; ")


def hosts_named(names: Iterable[str], count: int) -> str:
    """Name the first few of ``count`` hosts."""
    return _first(list(islice(names, NAMES_SHOWN_MAX)), count, sep=", ")


def without(text: str, known: Sequence[Fault], others: Sequence[Fault], count: int) -> str:
    """Add who takes no part any more, ``count`` in all; of the ``known`` the text says why."""
    if not count:
        return text
    names = [*(fault.who() for fault in known), *(str(fault) for fault in others)]
    return f"{text}; without {_first(names[:FAULTS_NAMED_MAX], count, sep=', ')}"


def spec_differs(host: str, found: InprocessSpec, whose: str, expected: InprocessSpec) -> str:
    """Name the fields in which two specs differ."""
    pairs = [(f.name, getattr(found, f.name), getattr(expected, f.name)) for f in fields(found)]
    differing = [
        f"{name} {_value(one)} on {host}, {_value(other)} {whose}"
        for name, one, other in pairs
        if one != other
    ]
    return f"workers disagree on how to restart in process: {'; '.join(differing)}"


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(str(rule) for rule in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _first(shown: list[str], count: int, *, sep: str) -> str:
    if hidden := count - len(shown):
        shown.append(f"{hidden} more")
    return sep.join(shown)
