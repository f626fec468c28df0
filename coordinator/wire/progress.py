"""Shell. What workers say of themselves, between messages and values: progress, hangs, limits.

Ages in here are hearsay of a worker and for people only, so one that can't be is
put right; what decides something is refused, field by field, as in ``convert``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from google.protobuf.duration_pb2 import Duration

from coordinator.core.model import DURATION_MAX_S, Hang, HangKind
from coordinator.core.progress.adaptive_timeouts import NAMES_MAX, LearnedLimit, Observation
from coordinator.core.progress.worker_progress import SCOPE_BYTES_MAX, Standing, WorkerProgress
from coordinator.errors import InvalidRequest
from coordinator.wire.duration import duration, duration_or_none, seconds_of
from drumbeat.v1 import failure_pb2, session_pb2

SCOPE_CHARACTERS_MAX = 512
"""Of the name of the timer or section that ran out."""

_HANG_KINDS = {failure_pb2.HangKind.Value(f"HANG_KIND_{kind}"): kind for kind in HangKind}


# From the network.


def workers_of(beat: session_pb2.Beat, local_world_size: int) -> tuple[WorkerProgress, ...]:
    """Read where the workers of an agent with so many of them stand."""
    messages = beat.workers
    if not messages:
        return ()
    if len(messages) > local_world_size:
        raise InvalidRequest("beat.workers", len(messages), f"at most {local_world_size}")
    workers = tuple([_progress(message) for message in messages])
    ranks = {worker.local_rank for worker in workers}
    if len(ranks) < len(workers) or max(ranks) >= local_world_size:
        raise _wrong_rank(workers, local_world_size)
    return workers


def observations_of(beat: session_pb2.Beat) -> tuple[Observation, ...]:
    """Read the longest times of a host."""
    messages = beat.observations
    if not messages:
        return ()
    if len(messages) > NAMES_MAX:
        raise InvalidRequest("beat.observations", len(messages), f"at most {NAMES_MAX}")
    found: dict[str, Observation] = {}
    for index, message in enumerate(messages):
        field, section = f"beat.observations[{index}]", message.section
        if section in found:
            raise InvalidRequest(f"{field}.section", section, "each name once")
        if len(section.encode()) > SCOPE_BYTES_MAX:
            allowed = f"at most {SCOPE_BYTES_MAX} bytes"
            raise InvalidRequest(f"{field}.section", section, allowed)
        longest_s = _checked_s(f"{field}.longest", message.longest)
        found[section] = Observation(section=section, longest_s=longest_s, samples=message.samples)
    return tuple(found.values())


def hang_of(record: failure_pb2.FailureRecord, *, text_characters_max: int) -> Hang | None:
    """Read why an agent ended a worker, if it did; over-long texts are cut."""
    if not record.HasField("hang"):
        return None
    hang = record.hang
    if hang.kind not in _HANG_KINDS:
        raise InvalidRequest("record.hang.kind", hang.kind, " ".join(HangKind))
    return Hang(
        kind=_HANG_KINDS[hang.kind],
        scope=hang.scope[:SCOPE_CHARACTERS_MAX],
        limit_s=_checked_s("record.hang.limit", hang.limit),
        elapsed_s=_checked_s("record.hang.elapsed", hang.elapsed),
        progress=_progress(hang.progress) if hang.HasField("progress") else None,
        stacks=hang.stacks[:text_characters_max],
        evidence=hang.evidence[:text_characters_max],
    )


def _progress(message: failure_pb2.WorkerProgress) -> WorkerProgress:
    has, scope = message.HasField, message.scope
    return WorkerProgress(
        local_rank=message.local_rank,
        step=message.step if has("step") else None,
        step_time_s=_age_s(message.step_time) if has("step_time") else None,
        heartbeat_age_s=_age_s(message.heartbeat_age) if has("heartbeat_age") else None,
        runtime_age_s=_age_s(message.runtime_age) if has("runtime_age") else None,
        scope=_cut(scope) if scope else "",
        scope_age_s=_age_s(message.scope_age) if has("scope_age") else None,
        scopes_open=message.scopes_open,
    )


def _age_s(message: Duration) -> float:
    seconds = message.seconds + message.nanos / 1e9
    return seconds if 0 <= seconds <= DURATION_MAX_S else max(0.0, min(seconds, DURATION_MAX_S))


def _cut(scope: str) -> str:
    """Return no more of a name than people need, cut at a whole character."""
    return scope.encode()[:SCOPE_BYTES_MAX].decode(errors="ignore")


def _checked_s(field: str, message: Duration) -> float:
    seconds = seconds_of(message)
    if not 0 <= seconds <= DURATION_MAX_S:
        raise InvalidRequest(field, seconds, f"0 to {DURATION_MAX_S:g} seconds")
    return seconds


def _wrong_rank(workers: Sequence[WorkerProgress], local_world_size: int) -> InvalidRequest:
    """Return what is wrong with the first local rank that is out of range or comes again."""
    seen: set[int] = set()
    for index, worker in enumerate(workers):
        rank = worker.local_rank
        if rank >= local_world_size or rank in seen:
            allowed = f"0 to {local_world_size - 1}, each once"
            return InvalidRequest(f"beat.workers[{index}].local_rank", rank, allowed)
        seen.add(rank)
    raise AssertionError("all local ranks are in order")


# To the network.


def progress_message(progress: WorkerProgress) -> failure_pb2.WorkerProgress:
    """Write where a worker stands."""
    return failure_pb2.WorkerProgress(
        local_rank=progress.local_rank,
        step=progress.step,
        step_time=duration_or_none(progress.step_time_s),
        heartbeat_age=duration_or_none(progress.heartbeat_age_s),
        runtime_age=duration_or_none(progress.runtime_age_s),
        scope=progress.scope,
        scope_age=duration_or_none(progress.scope_age_s),
        scopes_open=progress.scopes_open,
    )


def standing_message(standing: Standing) -> failure_pb2.Standing:
    """Write where a worker of a round stood."""
    return failure_pb2.Standing(
        rank=standing.rank, host=standing.host, progress=progress_message(standing.progress)
    )


def hang_message(hang: Hang) -> failure_pb2.Hang:
    """Write why a worker was ended."""
    progress = hang.progress
    return failure_pb2.Hang(
        kind=failure_pb2.HangKind.Value(f"HANG_KIND_{hang.kind}"),
        scope=hang.scope,
        limit=duration(hang.limit_s),
        elapsed=duration(hang.elapsed_s),
        progress=None if progress is None else progress_message(progress),
        stacks=hang.stacks,
        evidence=hang.evidence,
    )


def limits_message(limits: Iterable[LearnedLimit]) -> session_pb2.LearnedLimits:
    """Write learned limits."""
    return session_pb2.LearnedLimits(
        limits=[
            session_pb2.LearnedLimit(section=limit.section, limit=duration(limit.limit_s))
            for limit in limits
        ]
    )
