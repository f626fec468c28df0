"""Pure. Which hosts are blamed for failed rounds, and which are excluded from their run for it."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from drumbeat.coordinator.core.effects import KeepDrain
from drumbeat.coordinator.core.failures.root_cause import describe, failed_alike, root_causes
from drumbeat.coordinator.core.failures.verdict import known_failures
from drumbeat.coordinator.core.membership.drains import Drains, who_and_why
from drumbeat.coordinator.core.model import Accusation, AgentIdentity, KeptDrain
from drumbeat.coordinator.core.phases.phase import RunContext
from drumbeat.coordinator.core.run import records as rec
from drumbeat.coordinator.core.run.state import ACCUSATIONS_MAX
from drumbeat.text.durations import format_duration
from drumbeat.text.format import are, count, one_line

# Unless the run says otherwise.
EXCLUDE_WINDOW_S = EXCLUDE_FOR_S = 3600.0
# Hosts that are blamed for one round; of more, the first by rank.
BLAMED_MAX = 64
# Who excludes, where operators are named.
CALLER = "coordinator"

# How long hosts have to fail with one that would be excluded: then it is none of theirs.
SETTLED_S = 1.0

_Host = tuple[str, str]  # name and identity


class _Counted(NamedTuple):
    """Hosts with the times at which they were blamed, and agents whose hosts are to be excluded."""

    rows: dict[_Host, tuple[float, ...]]
    due: dict[str, tuple[_Host, str]]


class Exclusions:
    """Those of one run. Whatever asks for one, caps and minimum hold.

    ``due_at`` is when the next one ends, ``None``: no host is excluded.
    """

    def __init__(self, run: RunContext, drains: Drains) -> None:
        self._run, self._drains, self._run_id = run, drains, run.state.run_id
        self.due_at: float | None = None
        self._settled_at: float | None = None  # when it is known which hosts failed
        self.look()

    def look(self) -> None:
        """Take in that drains have changed."""
        alive = self._drains.exclusions_of(self._run_id) if self._run.state.verdict is None else ()
        ends = (drain.until_s for drain in alive if drain.until_s is not None)
        self.due_at = min(ends, default=None)

    def accuse(
        self, accuser: str, round_id: int | None, accusation: Accusation, *, now: float
    ) -> None:
        """Take in that a worker of this agent accuses a host; each pair of ranks counts once."""
        state, seat = self._run.state, self._run.state.seats.get(accuser)
        if seat is None or round_id != state.round_id or state.verdict is not None:
            return
        by = seat.rank_first + accusation.local_rank
        rank = by if accusation.rank is None else accusation.rank
        is_known = (by, rank) in state.accusations or len(state.accusations) >= ACCUSATIONS_MAX
        if is_known or accusation.local_rank >= seat.agent.local_world_size:
            return
        for incarnation, accused in state.seats.items():
            if 0 <= rank - accused.rank_first < accused.agent.local_world_size:
                who, why = f"rank {by} on {seat.agent.name}", one_line(accusation.reason)
                noted = rec.HostNoted(
                    kind=rec.HostEvent.ACCUSED,
                    reason=f"{who} accuses rank {rank} on {accused.agent.name}: {why}",
                    at_s=now,
                    incarnation=incarnation,
                    blame=f"accused by {who}: {why}",
                    ranks=(by, rank),
                )
                self._run.decide(noted)
                return

    def unsettled_until(self, now: float) -> float | None:
        """Return until when more hosts may fail with one that is to be excluded.

        To be asked, as ``count_blame`` is, when the next round could start: by then it is known
        who was lost with the last one.
        """
        if self._settled_at is not None:  # to count is linear
            return self._settled_at if now < self._settled_at else None
        counted = self._count(now)
        agents = map(self._agent, counted.due if counted is not None else ())
        if any(agent and not self._obstacle(self._drain(agent, "", now)) for agent in agents):
            self._settled_at = now + SETTLED_S
        return self._settled_at

    def count_blame(self, *, now: float) -> bool:
        """Count who is to blame for the round that ended; return whether a host is excluded now."""
        self._settled_at = None
        if (counted := self._count(now)) is None:
            return False
        rows, before = counted.rows, len(self._drains.exclusions)
        for incarnation, (host, reason) in counted.due.items():
            if self.exclude(incarnation, reason, now):
                del rows[host]
        kept = tuple(rec.BlameRow(name=name, host_id=i, at_s=at) for (name, i), at in rows.items())
        self._run.commit(rec.BlameCounted(rows=kept))
        return len(self._drains.exclusions) > before

    def exclude(self, incarnation: str, reason: str, now: float) -> str:
        """Exclude this agent's host; return what that means in words, empty if it can't be."""
        run, drains, state = self._run, self._drains, self._run.state
        agent = self._agent(incarnation)
        if agent is None or state.verdict is not None:
            return ""
        if (known := drains.find(self._run_id, agent)) is not None:
            return f"host {known.name} takes no part already, {who_and_why(known)}"
        drain = self._drain(agent, reason, now)
        if obstacle := self._obstacle(drain):
            kind, why = obstacle
            known_as = f"{drain.name} {drain.host_id} {kind}"
            if known_as not in state.obstacles:
                outcome = f"host {drain.name} is not excluded, {why}; it was {reason}"
                self._note(rec.HostEvent.NOT_EXCLUDED, outcome, now, obstacle=known_as)
            return ""
        run.effects += [KeepDrain(drain=d, is_kept=kept) for d, kept in drains.put(drain, "")]
        outcome = f"host {drain.name} is excluded for {format_duration(self._exclude_for_s)}"
        self._note(rec.HostEvent.EXCLUDED, f"{outcome}: {reason}", now)
        self.look()
        return outcome

    def readmit(self, *, now: float) -> bool:
        """End the exclusions whose time is over; return whether there were any."""
        if self.due_at is None or now < self.due_at:
            return False
        if self._run.state.verdict is not None:  # they have ended with the run
            self.due_at = None
            return False
        for drain in self._drains.exclusions_of(self._run_id):
            if drain.until_s is not None and now >= drain.until_s:
                del self._drains.kept[drain.key]
                self._run.effects.append(KeepDrain(drain=drain, is_kept=False))
                lasted = format_duration(drain.until_s - drain.at_s)
                outcome = f"host {drain.name} may take part again: it was excluded for {lasted}"
                self._note(rec.HostEvent.READMITTED, outcome, now)
        self.look()
        return True

    def _note(self, kind: rec.HostEvent, reason: str, now: float, *, obstacle: str = "") -> None:
        noted = rec.HostNoted(kind=kind, reason=reason, at_s=now, obstacle=obstacle)
        self._run.decide(noted)

    @property
    def _exclude_for_s(self) -> float:
        return self._run.state.spec.exclude_for_s or EXCLUDE_FOR_S

    def _agent(self, incarnation: str) -> AgentIdentity | None:
        seat = self._run.state.seats.get(incarnation)
        return self._run.state.members.get(incarnation) or (seat.agent if seat else None)

    def _drain(self, agent: AgentIdentity, reason: str, now: float) -> KeptDrain:
        return KeptDrain(
            name=_host_name(agent),
            run_id=self._run_id,
            reason=reason,
            caller=CALLER,
            at_s=now,
            until_s=now + self._exclude_for_s,
            host_id=agent.host_id,
        )

    def _count(self, now: float) -> _Counted | None:
        """Return what follows from the round that ended; ``None``: nothing, or it is counted."""
        state, spec = self._run.state, self._run.state.spec
        if not spec.exclude_after or (ended := state.uncounted) is None:
            return None
        blamed = self._blamed(ended)
        has_failed = ended is rec.RoundEnd.WORKER_FAILED or (
            ended is rec.RoundEnd.AGENT_LOST and bool(state.blamed)
        )
        if not blamed and not has_failed:
            return None
        window_s = spec.exclude_window_s or EXCLUDE_WINDOW_S
        before = {(row.name, row.host_id): row.at_s for row in state.blame_rows}
        counted = _Counted(rows={} if has_failed else dict(before), due={})
        for host, (incarnation, why) in blamed.items():
            at_s = counted.rows[host] = (*before.get(host, ()), now)[-spec.exclude_after :]
            if len(at_s) == spec.exclude_after and now - at_s[0] <= window_s:
                in_a_row = " in a row" if len(at_s) > 1 else ""
                reason = f"blamed for {count(len(at_s), 'round')}{in_a_row}: {why}"
                counted.due[incarnation] = host, reason
        return counted

    def _blamed(self, ended: rec.RoundEnd) -> dict[_Host, tuple[str, str]]:
        """Return the hosts that are to blame, each with an agent and the reason; linear.

        None if they are most of the round: what hits many at once has a cause elsewhere.
        """
        state, members = self._run.state, self._run.members
        reasons, round_id = dict(state.blamed), state.round_id
        hit = set(reasons)
        if ended is rec.RoundEnd.WORKER_FAILED and round_id is not None:
            records = known_failures(state, members)
            causes = root_causes(records, round_id, state.hang)
            reasons |= {record.incarnation: describe([record]) for record in causes}
            hit |= reasons.keys() | failed_alike(records, round_id, causes)
        if is_most(len(hit), len(state.seats)):
            return {}
        of_round = ((i, seat.agent) for i, seat in state.seats.items() if i in reasons)
        blamed = {
            (_host_name(agent), agent.host_id): (i, reasons[i])
            for i, agent in of_round
            if self._drains.find(self._run_id, agent) is None
        }
        return dict(islice(blamed.items(), BLAMED_MAX))

    def _obstacle(self, drain: KeptDrain) -> tuple[str, str] | None:
        """Return what keeps a host from being excluded, as a word and in words. Linear."""
        run, drains, state = self._run, self._drains, self._run.state
        remaining = sum(
            run.members.is_available(i)
            and not drain.holds(agent)
            and drains.find(self._run_id, agent) is None
            for i, agent in state.members.items()
        )
        if remaining < state.spec.agents_min:
            there = f"{count(remaining, 'other agent')} {are(remaining)} present"
            return "minimum", f"{there} and the run needs {state.spec.agents_min}"
        excluded = {(exclusion.name, exclusion.host_id) for exclusion in drains.exclusions}
        most = excluded_max(drains.count_hosts() + len(excluded), run.policy.exclude_max_percent)
        if len(excluded) >= most:
            limit = f"--exclude-max allows {most} at once"
            return "cap", f"{count(len(excluded), 'host')} {are(len(excluded))} and {limit}"
        if len(drains.active) >= drains.most:
            return "drains_max", f"the limit of {count(drains.most, 'drain')} is reached"
        return None


def is_most(hosts: int, of_round: int) -> bool:
    """Return whether a failure that hit so many hosts of a round has its cause elsewhere."""
    return 2 * hosts > of_round


def excluded_max(hosts: int, percent: float) -> int:
    """Return how many of so many hosts may be excluded at once: a part, but one in any case."""
    return max(1, int(hosts * percent / 100)) if percent else 0


def _host_name(agent: AgentIdentity) -> str:
    """Return its name without the number that the coordinator may have added to its host's."""
    return agent.host if agent.name.startswith(f"{agent.host}#") else agent.name
