"""Pure. Whether an agent may take part in a run, and what it is called there."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from msgspec.structs import replace

from drumbeat.coordinator import errors
from drumbeat.coordinator.core.events import SessionOpened
from drumbeat.coordinator.core.model import AgentIdentity, Beat, RunSpec, VerdictCause
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.model import DURATION_MAX_S, exit_code_of
from drumbeat.restart_rules import ALLOWED, WINDOWED_RESTARTS_MAX, parse_rules

# How far above what is known here a newcomer may have held a round. All rounds to come
# are above its own, so this bounds how much of the numbers one message may use up: far
# more rounds than any run has, and far less than there are numbers (`ROUND_ID_MAX`).
ROUNDS_AHEAD_MAX = 1_000_000


def refusal(
    state: RunState, event: SessionOpened, policy: Policy, *, workers: int
) -> errors.CoordinatorError | None:
    """Return why the agent can't be let in, ``None`` if it can.

    A member comes back whatever the run does: an ended run still owes it the verdict.
    A stranger is let in if the run lives, the specs agree and there is room in the table, where
    members have so many ``workers`` now.
    """
    known = state.members.get(event.agent.incarnation)
    if known is not None:
        # Its name is as it was made unique when it came first; earlier versions told no program.
        names = ("program", "arguments_digest", "host_id")
        unchanged = {name: getattr(known, name) for name in names}
        if known == replace(event.agent, name=known.name, **unchanged):
            return rounds_error(event.beat, next_round_id=state.next_round_id)
        return errors.InvalidRequest("hello", event.agent, f"as before: {known}")
    if state.verdict is not None:
        return run_closed(state.run_id, state)
    if event.is_id_made_up and state.members:
        return errors.RunIdTaken(state.run_id)
    mismatches = differences(theirs=event.spec, ours=state.spec)
    if mismatches := mismatches + _command_differences(event.agent, state):
        return errors.SpecMismatch(state.run_id, mismatches)
    workers += event.agent.local_world_size
    error = _room_error(len(state.members) + 1, workers, policy)
    return error or rounds_error(event.beat, next_round_id=state.next_round_id)


def _command_differences(agent: AgentIdentity, state: RunState) -> tuple[errors.Difference, ...]:
    """Return in what an agent would run something else than those of its role.

    Arguments may differ, for hosts may be told a path or a number of their own. But an agent for
    which the run has no place ends with the run's success, so it must be able to stand in.
    """
    if not agent.program:
        return ()  # before the search, which is linear if none of its role tells a program
    members, role = state.members.values(), agent.role
    # From the latest on, for agents of a role tend to come one after the other.
    latest = (member for member in reversed(members) if member.role == role and member.program)
    if (peer := next(latest, None)) is None:
        return ()
    peers = (member for member in members if member.role == role and member.program)
    if agent.program != peer.program and all(member.program != agent.program for member in peers):
        theirs, ours = repr(agent.program), repr(peer.program)
        return (errors.CommandDifference(field="program", theirs=theirs, ours=ours),)
    is_full = len(state.members) >= state.spec.agents_max
    if is_full and agent.arguments_digest != peer.arguments_digest and _are_all_like(peer, members):
        ours = f"those of {peer.name}"
        return (errors.CommandDifference(field="arguments", theirs="these", ours=ours),)
    return ()


def _are_all_like(one: AgentIdentity, members: Iterable[AgentIdentity]) -> bool:
    """Whether all agents of its role have its arguments; else each host has some of its own."""
    digests = (member.arguments_digest for member in members if member.role == one.role)
    return all(digest in ("", one.arguments_digest) for digest in digests)


def _room_error(agents: int, workers: int, policy: Policy) -> errors.LimitReached | None:
    """Return why a run can't have so many agents, with so many workers."""
    if agents > policy.agents_max:
        return errors.LimitReached("agents_per_run_max", policy.agents_max)
    if workers > policy.workers_max:
        return errors.LimitReached("workers_per_run_max", policy.workers_max)
    return None


def rounds_error(beat: Beat, *, next_round_id: int) -> errors.InvalidRequest | None:
    """Return why a newcomer can't have held the round it names, ``None`` if it can.

    What it has held is above what is known here if a journal was lost.
    """
    highest = next_round_id + ROUNDS_AHEAD_MAX
    if beat.round_id is None or beat.round_id < highest:
        return None
    return errors.InvalidRequest("fence.round_id", beat.round_id, f"less than {highest}")


def spec_error(spec: RunSpec, policy: Policy) -> errors.InvalidRequest | None:
    """Return what is impossible about a spec, ``None`` if nothing is."""
    least, most, port = spec.agents_min, spec.agents_max, spec.master_port
    size, check_s = spec.block_size or 1, spec.preflight_timeout_s
    join_s, join_max_s = spec.join_timeout_s, policy.join_timeout_max_s
    barrier, factor, steps = (
        spec.exit_barrier_timeout_s,
        spec.straggler_factor,
        spec.straggler_steps,
    )
    window_s = spec.restart_window_s
    rules: list[tuple[str, object, bool, str]] = [
        ("agents_min", least, least >= 1, "at least 1"),
        ("agents_min", least, least <= policy.agents_max, f"at most {policy.agents_max}"),
        ("agents_max", most, most >= least, f"at least agents_min ({least})"),
        ("join_timeout", join_s, join_s <= join_max_s, f"at most {join_max_s:g} seconds"),
        ("master_port", port, 0 <= port <= 65535, "0 to 65535"),
        ("straggler_factor", factor, factor == 0 or 1 < factor <= 100, "0, or above 1 to 100"),
        ("exclude_after", spec.exclude_after, spec.exclude_after <= 100, "0 to 100"),
        ("straggler_steps", steps, steps >= (factor > 0), "at least 1 with a straggler_factor"),
        ("exit_barrier_timeout", barrier, barrier != 0, "above 0, or unset for no limit"),
        ("restart_window", window_s, window_s != 0, "above 0, or unset for the whole run"),
        (
            "restarts_max",
            spec.restarts_max,
            window_s is None or spec.restarts_max <= WINDOWED_RESTARTS_MAX,
            f"at most {WINDOWED_RESTARTS_MAX} with a restart_window",
        ),
        ("agents_min", least, least % size == 0, f"a multiple of block_size ({size})"),
        ("agents_max", most, most % size == 0, f"a multiple of block_size ({size})"),
        ("preflight_timeout", check_s, check_s > 0 or not spec.preflight, "above 0"),
    ]
    try:
        parse_rules(spec.restart_rules)
    except ValueError as error:
        rules.append(("restart_rules", f"{error}", False, ALLOWED))
    for name in spec.__struct_fields__:
        if name.endswith("_s") and (value := getattr(spec, name)) is not None:
            is_possible = 0 <= value <= DURATION_MAX_S
            allowed = f"0 to {DURATION_MAX_S:g} seconds"
            rules.append((name.removesuffix("_s"), value, is_possible, allowed))
    for name, value, is_possible, allowed in rules:
        if not is_possible:
            return errors.InvalidRequest(f"spec.{name}", value, allowed)
    return None


def missed_run(state: RunState, event: SessionOpened) -> errors.RunMissed | None:
    """Return the error for a host that missed a run which succeeded: it does not train it again.

    The run had room for it, and it took no part. This holds while the run's members are remembered,
    for ``coordinator_grace_s`` after the end. A host that took part begins a new run.
    """
    verdict, hosts = state.verdict, {member.host for member in state.members.values()}
    if verdict is None or not verdict.is_success or not hosts or event.agent.host in hosts:
        return None
    if event.spec != state.spec or len(state.members) >= state.spec.agents_max:
        return None
    return errors.RunMissed(state.run_id, f"it succeeded: {verdict.reason}")


def run_closed(run_id: str, state: RunState | None) -> errors.RunClosed:
    """Return the error that tells an agent how its run ended; ``None``: it was forgotten."""
    verdict = state.verdict if state is not None else None
    why = "after this agent began, and another one of that name runs now"
    if verdict is None:
        return errors.RunClosed(run_id, why)
    what = "it succeeded:" if verdict.is_success else "it failed:"
    what = "it was" if verdict.cause is VerdictCause.STOPPED else what
    return errors.RunClosed(run_id, f"{what} {verdict.reason}", exit_code_of(verdict.cause))


class Names:
    """The names of a run's members, no two alike.

    Of equal names each further one has the lowest free number: "node7#2". No member costs more
    than the one before. What is kept beside the names saves a search, and decides nothing.
    """

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        # By name: below this one all numbers are taken, or in the heap of those that came free.
        self._next: dict[str, int] = {}
        self._freed: dict[str, list[int]] = {}

    def numbered(self, agent: AgentIdentity) -> AgentIdentity:
        """Return the agent with the name that it would have as a member."""
        return replace(agent, name=self._free(agent.name))

    def add(self, agent: AgentIdentity) -> AgentIdentity:
        """Return the agent with its name as a member, which is taken from now on."""
        name, freed = self._free(agent.name), self._freed.get(agent.name)
        self._taken.add(name)
        if freed and name == f"{agent.name}#{freed[0]}":
            heappop(freed)
        return replace(agent, name=name)

    def discard(self, name: str) -> None:
        """Take in that the member of this name is gone."""
        self._taken.discard(name)
        base, _, number = name.rpartition("#")
        if base in self._next and number.isdecimal() and int(number) < self._next[base]:
            heappush(self._freed.setdefault(base, []), int(number))
            if len(self._freed[base]) > len(self._taken):
                del self._next[base], self._freed[base]

    def _free(self, name: str) -> str:
        if name not in self._taken:
            return name
        freed = self._freed.get(name)
        while freed and f"{name}#{freed[0]}" in self._taken:
            heappop(freed)
        if freed:
            return f"{name}#{freed[0]}"
        if len(self._next) > len(self._taken):  # of members that are gone
            self._next, self._freed = {}, {}
        number = self._next.get(name, 2)
        while f"{name}#{number}" in self._taken:
            number += 1
        self._next[name] = number
        return f"{name}#{number}"


def differences(*, theirs: RunSpec, ours: RunSpec) -> tuple[errors.Difference, ...]:
    """Return the fields in which an agent's spec differs from the run's, both values shown."""
    return tuple(
        # Without the unit, as the protocol calls it.
        errors.Difference(field=name.removesuffix("_s"), theirs=_shown(their), ours=_shown(our))
        for name in RunSpec.__struct_fields__
        if (their := getattr(theirs, name)) != (our := getattr(ours, name))
    )


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(value) or "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
