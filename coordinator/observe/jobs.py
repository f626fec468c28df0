"""Shell. Jobs with their replica groups, as messages."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from drumbeat.coordinator.core.model import VerdictCause
from drumbeat.coordinator.core.registry.jobs import newest
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.coordinator.observe.health import ATTENTION, health_of, outcome
from drumbeat.coordinator.observe.health import HealthState as Health
from drumbeat.coordinator.observe.messages import goodput_message
from drumbeat.coordinator.wire.run_status import AnyRun, run_message
from drumbeat.model import HealthState
from drumbeat.v1 import failure_pb2
from drumbeat.v1 import query_pb2 as pb
from drumbeat.wire.mapping import duration, seconds_of

SEGMENTS_MAX, SEGMENTS_LEAST = 8_192, 8  # of a whole job, and of a group in any case
# The phase of a job is the first that one of its groups is in.
_PHASES = (Phase.RUNNING, Phase.GATHERING, Phase.ENDING, Phase.ENDED)
_UNHEALTHY = HealthState.UNHEALTHY
_EFFECTIVE = (pb.PART_KIND_TRAINING, pb.PART_KIND_AWAY)


def job_message(
    groups: Mapping[int, RunState], runs: Mapping[str, AnyRun], *, now: float
) -> pb.Job:
    """Write a job in short."""
    states, group = list(groups.values()), newest(groups)
    phase = min((state.phase for state in states), key=_PHASES.index)
    counts = Counter(_word(state) for state in states)
    if missing := group.count - len(states):
        counts["not there yet"] = missing
    message = pb.Job(
        run_id=group.job,
        phase=pb.RunPhase.Value(f"RUN_PHASE_{phase}"),
        reason=f"{group.count} groups: " + ", ".join(f"{n} {word}" for word, n in counts.items()),
        groups_count=group.count,
        groups_min=group.groups_min,
        agents_count=sum(len(state.members) for state in states),
        restarts_used=sum(state.restarts_used_at(now) for state in states),
        restarts_max=sum(state.spec.restarts_max for state in states),
        age=duration(max(0.0, now - min(state.created_at for state in states))),
    )
    healths = [(health_of(s, runs.get(s.key), now=now), s.run_id) for s in states]
    worst, run_id = min(healths, key=lambda one: ATTENTION.index(one[0].state))
    is_healthy = worst.state is Health.HEALTHY
    health = Health.DEGRADED if is_healthy and missing else worst.state
    message.health.reason = message.reason + f"; {run_id}: {worst.reason}" * (not is_healthy)
    if phase is Phase.ENDED:
        ended = sorted((state.ended_at or 0.0, state.run_id, state) for state in states)
        causes = [state.verdict.cause for *_, state in ended if state.verdict is not None]
        has_succeeded = causes.count(VerdictCause.SUCCEEDED) >= group.groups_min
        failed = [cause for cause in causes if cause is not VerdictCause.SUCCEEDED]
        cause = VerdictCause.SUCCEEDED if has_succeeded or not failed else failed[0]
        health, message.health.reason = outcome(cause), message.reason
        message.cause = failure_pb2.VerdictCause.Value(f"VERDICT_CAUSE_{cause}")
        message.ended_age.CopyFrom(duration(max(0.0, now - ended[-1][0])))
    message.health.state = pb.RunHealthState.Value(f"RUN_HEALTH_STATE_{health}")
    return message


def _word(state: RunState) -> str:
    """Say what a group does, or how it ended."""
    word = state.phase if state.verdict is None else state.verdict.cause
    return word.lower().replace("_", " ")


def job_response(
    groups: Mapping[int, RunState],
    runs: Mapping[str, AnyRun],
    *,
    now: float,
    with_segments: bool = False,
) -> pb.GetJobResponse:
    """Write a job with its groups. Linear in workers."""
    response = pb.GetJobResponse(job=job_message(groups, runs, now=now))
    most = max(SEGMENTS_LEAST, SEGMENTS_MAX // len(groups))
    accounts = []
    for index, state in groups.items():
        run = runs.get(state.key)
        account = goodput_message(state, run, now=now, with_segments=with_segments)
        accounts.append(account)
        row = response.groups.add(
            index=index,
            run=run_message(state, run, pb.VIEW_BASIC, now=now),
            goodput=account,
        )
        row.goodput.ClearField("causes")
        row.goodput.ClearField("hosts")
        del row.goodput.segments[:-most]
        if run is None or state.verdict is not None:
            continue
        presences = run.members.presences.values()
        steps = [presence.whereabouts.highest_step(state.round_id) for presence in presences]
        if known := [step for step in steps if step is not None]:
            row.step = max(known)
        healths = (presence.beat.health for presence in presences)
        unhealthy = (health for health in healths if health and health.state is _UNHEALTHY)
        row.unhealthy_count = len(list(unhealthy))
    response.goodput.CopyFrom(merged_goodput(accounts))
    return response


def merged_goodput(accounts: Iterable[pb.GetGoodputResponse]) -> pb.GetGoodputResponse:
    """Return the account of several runs at once, in which the time of a host counts the same.

    Their time is the longest of theirs; it has the parts that the hosts' time has.
    """
    whole_s, merged, restarts = 0.0, pb.GetGoodputResponse(), Counter[pb.LossCause.ValueType]()
    parts = defaultdict[pb.PartKind.ValueType, float](float)
    causes = defaultdict[pb.LossCause.ValueType, float](float)
    hosts = defaultdict[str, float](float)
    for account in accounts:
        whole_s = max(whole_s, seconds_of(account.whole))
        merged.failures_count += account.failures_count
        merged.is_running |= account.is_running
        for part in account.parts:
            parts[part.kind] += part.host_seconds
        for lost in account.causes:
            causes[lost.cause] += lost.host_seconds
            restarts[lost.cause] += lost.restarts_count
        for host in account.hosts:
            hosts[host.name] += host.host_seconds
    host_s = sum(parts.values())
    merged.whole.CopyFrom(duration(whole_s))

    def spent(seconds: float) -> dict[str, Any]:
        share = seconds / host_s if host_s else 0.0
        return {"time": duration(whole_s * share), "host_seconds": seconds}

    for kind, seconds in sorted(parts.items()):
        merged.parts.add(kind=kind, **spent(seconds))
    for cause, seconds in sorted(causes.items()):
        merged.causes.add(cause=cause, restarts_count=restarts[cause], **spent(seconds))
    for name, seconds in sorted(hosts.items(), key=lambda host: (-host[1], host[0])):
        merged.hosts.add(name=name, **spent(seconds))
    if known := host_s - parts[pb.PART_KIND_UNKNOWN]:
        merged.effective_ratio = sum(parts[kind] for kind in _EFFECTIVE) / known
    if merged.failures_count:
        merged.mean_time_between_failures.CopyFrom(duration(whole_s / merged.failures_count))
    return merged
