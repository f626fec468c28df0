"""Pure. Which agents and hosts take no part in rounds until the operator lets them in again."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from drumbeat.coordinator.core.effects import Effect, KeepDrain
from drumbeat.coordinator.core.model import AgentIdentity, KeptDrain
from drumbeat.text.durations import format_duration

# Calls of one name whose repetition is recognized.
CALLS_KNOWN_MAX = 8


class Drains:
    """All that are known, by run id and name; those that were lifted recognize late repetitions."""

    def __init__(self, *, most: int) -> None:
        self.kept: dict[tuple[str, str], KeptDrain] = {}
        self.most = most
        # How many hosts all runs have together: a part of them may be excluded at once.
        self.count_hosts: Callable[[], int] = lambda: 0

    def restore(self, kept: Iterable[KeptDrain]) -> None:
        """Take over what a journal held."""
        self.kept = {drain.key: drain for drain in kept}

    @property
    def active(self) -> list[KeptDrain]:
        """Those that hold, oldest first."""
        return [drain for drain in self.kept.values() if not drain.is_lifted]

    def find(self, run_id: str, agent: AgentIdentity) -> KeptDrain | None:
        """Return what holds an agent of a run, by its name or its host."""
        for name in (agent.name, agent.host):
            for key in (("", name), (run_id, name)):
                drain = self.kept.get(key)
                if drain is not None and drain.holds(agent):
                    return drain
        return None

    @property
    def exclusions(self) -> list[KeptDrain]:
        """Those that hold and end by themselves."""
        return [drain for drain in self.active if drain.until_s is not None]

    def exclusions_of(self, run_id: str) -> list[KeptDrain]:
        """Return those from one run."""
        return [drain for drain in self.exclusions if drain.run_id == run_id]

    def is_known(self, key: tuple[str, str], call_id: str) -> bool:
        """Return whether a call came before."""
        drain = self.kept.get(key)
        return drain is not None and bool(call_id) and call_id in drain.calls

    def put(self, drain: KeptDrain, call_id: str) -> list[tuple[KeptDrain, bool]]:
        """Keep what an operator asked for; return what to journal, and whether it is kept."""
        before = self.kept.pop(drain.key, None)
        calls = (*(before.calls if before is not None else ()), *((call_id,) if call_id else ()))
        drain = self.kept[drain.key] = replace(drain, calls=calls[-CALLS_KNOWN_MAX:])
        lifted = [kept for kept in self.kept.values() if kept.is_lifted]
        surplus = lifted[: max(0, len(lifted) - self.most)]
        for old in surplus:
            del self.kept[old.key]
        return [(drain, True), *((old, False) for old in surplus)]

    def take_back(self, effects: Iterable[Effect]) -> None:
        """Undo what was decided and is not journaled any more."""
        for effect in effects:
            if isinstance(effect, KeepDrain) and effect.is_kept:
                self.kept.pop(effect.drain.key, None)
            elif isinstance(effect, KeepDrain):
                self.kept[effect.drain.key] = effect.drain


def who_and_why(drain: KeptDrain) -> str:
    """Say who drained, and why if that was said."""
    who = f"drained by {drain.caller or 'the operator'}"
    if drain.until_s is not None:
        who = f"excluded for {format_duration(drain.until_s - drain.at_s)}"
    return f"{who}: {drain.reason}" if drain.reason else who
