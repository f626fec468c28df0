"""Pure. Why a run is as it is, in sentences, from its documents."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from drumbeat.text.durations import format_duration
from drumbeat.text.format import count, format_pace, format_size, listed, one_line

Document = dict[str, Any]

# Beyond a usual stall of a host, and half a usual lease.
SILENCE_S = 2.5
# A run hangs, as `why` says, if ranks wait so long in one collective.
HANGING_S = 5.0
# A worker is stuck if it made no step for so long, and for so many times as a step takes.
STUCK_S, STUCK_STEPS = 30.0, 5.0
_STARTED = "round_started"
_ASKED = frozenset({"stop_asked", "restart_asked"})
_CARRIED_OUT = frozenset(
    {"round_ended", "run_stopping", "run_stopped", "run_failed", "run_succeeded"}
)
_ENDINGS = frozenset({"run_failing", "run_stopping"})
_STEPS_SHOWN = 5  # the latest decisions that are told
_STRAGGLERS_SHOWN = 4
_GROWING_SHOWN = 4
_STEPS = frozenset(
    {
        "agent_removed",
        "round_started",
        "round_ended",
        "iteration_interrupted",
        "run_failing",
        "run_stopping",
        "note_added",
    }
)
_HOW = {"succeeded": "succeeded", "stopped": "was stopped"}
# What comes between the name of a run and `health_reason`, by its health.
_HEALTH = {
    "healthy": "is healthy: ",
    "degraded": "is degraded: ",
    "crash_loop": "is in a crash loop: ",
    "no_progress": "makes no progress: ",
    "hanging": "is ",  # hanging for 1 min: …
    "waiting": "is ",  # waiting for its next round: …
}
_GROUPS_SHOWN = 3
_ADVICE = {
    "agents_missing": "start the agents that are missing, or lower --nnodes; with a longer "
    "--join-timeout the run waits longer",
    "start_impossible": "correct the command or install its program on that host, then start again",
    "port_missing": "free ports on the host of group rank 0, or give another --master-port",
    "superseded": "use another --run-id if both jobs are wanted",
    "failed_by_rule": "correct the cause and start again, or change the rule (--restart-rule)",
    "no_progress": "correct the cause and start again: restarts got no further",
    "groups_missing": "correct the cause of the groups that failed and start all again; with a "
    "lower --min-groups the others go on",
    "internal": "this is an error of the coordinator: its log has the details",
}


def explanation(
    status: Document,
    verdict: Document | None,
    workers: Sequence[Document] = (),
    hang_now: Document | None = None,
) -> Document:
    """Return what is to be said of a run; each part is a list of sentences.

    ``status`` has all events that are known, ``verdict`` is that of a run that has ended, and
    ``workers`` are those that tell most, with the names of their agents. ``hang_now`` says which
    rank the others wait for now, if they do.
    """
    causes = verdict["root_causes"] if verdict else []
    hang = verdict["hang"] if verdict else _latest_hang(status)
    is_mute, is_stuck = _tells_nothing(status, workers), _is_stuck(workers)
    return {
        "run_id": status["run_id"],
        "phase": status["phase"],
        "what": [
            *_waits(status, hang_now),
            *_what(status, is_mute=is_mute),
            *_stopped(workers),
        ],
        "root_cause": [*_root_cause(status, causes), *_hang(hang)],
        "done": list(_done(status["run_id"], status["events"])),
        "cost": list(_cost(status, verdict)),
        "advice": list(dict.fromkeys(_advice(status, causes, is_mute=is_mute, is_stuck=is_stuck))),
    }


def how(run: Document) -> tuple[str, str]:
    """Return how a run is, in a word or two that follow its name, and why: "is healthy: ", …."""
    if run["phase"] == "ended":
        ended = _HOW.get(run["cause"] or "", "failed")
        return f"{ended} {_ago(run['ended_age_s'])}: ", run["health_reason"] or run["reason"]
    if run["phase"] == "ending":
        ends = [event["kind"] for event in run.get("events", ()) if event["kind"] in _ENDINGS]
        is_stopped = run["health"] == "stopped" or ends[-1:] == ["run_stopping"]
        doing = "is being stopped" if is_stopped else "has failed"
        return f"{doing}; it waits for its workers to end: ", run["reason"]
    if run["health"] not in _HEALTH:  # of an earlier or later version
        return f"is {run['phase']}: ", run["reason"]
    return _HEALTH[run["health"]], run["health_reason"]


def last_failure(run: Document) -> str:
    """Say what failed last in a run that goes on; empty: nothing did."""
    if (failure := run["last_failure"]) is None or run["phase"] in ("ending", "ended"):
        return ""
    return f"last failure {_ago(failure['age_s'])}: {failure['reason']}"


def repeated(run: Document) -> list[str]:
    """Return a line for each cause of several failures, and what that says."""
    return [
        f"{group['cause']}, {group['count']} times{': ' * bool(group['advice'])}{group['advice']}"
        for group in run["failure_groups"]
        if group["count"] > 1
    ][:_GROUPS_SHOWN]


def progress_line(progress: Document | None) -> str:
    """Say how far training is; empty if nothing is known of it."""
    if progress is None:
        return ""
    step, farthest, total = progress["step"], progress["step_farthest"], progress["steps_total"]
    shown = farthest if step is None else step
    now = [] if shown is None else [f"{'farthest ' * (step is None)}step {shown:,}"]
    if now and total:
        now[0] += f" of {total:,} ({100 * shown / total:.0f} %)"
    if rate := progress["steps_per_second"]:
        now.append(format_pace(rate))
    if (left_s := progress["time_left_s"]) is not None:
        now.append(f"{format_duration(left_s)} left")
    parts = [", ".join(now)]
    if step is not None and step != farthest:
        parts.append(f"farthest step {farthest:,}")
    if (saved := progress["checkpoint_step"]) is not None:
        age = _ago(progress["checkpoint_age_s"])
        parts.append(f"last checkpoint at step {saved:,}, {age}")
    return "; ".join(filter(None, parts))


def _waits(status: Document, hang: Document | None) -> Iterator[str]:
    """Say in which collective ranks wait now, and for which rank."""
    if hang is None or not hang["collective"] or _hangs(status):
        return
    verb = "is hanging" if (hang["age_s"] or 0.0) >= HANGING_S else "waits"
    yield f"Run {status['run_id']} {verb}: {hang['collective']}."
    for cause in hang["causes"]:
        deed = f"{cause['collective']} and" if cause["collective"] else ""
        place = f"is {cause['place']}"
        who = f"Rank {cause['rank']} ({cause['name']})"
        yield f"{' '.join(filter(None, (who, deed, place)))}."
    if (more := hang["causes_count"] - len(hang["causes"])) > 0:
        yield f"{count(more, 'more rank')} likewise."
    if not hang["causes"] and (why := hang["summary"].removeprefix(hang["collective"])):
        yield f"{why.removeprefix('; ').capitalize()}."


def _what(status: Document, *, is_mute: bool) -> Iterator[str]:
    name = status["run_id"]
    if _hangs(status):
        hang = status["hang"]
        yield f"Run {name} has hung for {format_duration(hang['age_s'])}: {hang['summary']}."
        yield (
            "A worker exceeded its limit and is being killed; then the run restarts or ends."
            if hang["is_ending"]
            else f"It is only reported: nothing is killed. {_to_kill(hang)} kills and restarts."
        )
    else:
        yield f"Run {name} {''.join(how(status))}."
    if status["phase"] == "running" and status["world_size"]:
        agents = sum(agent["group_rank"] is not None for agent in status["agents"])
        yield f"It has {count(status['world_size'], 'worker')} on {count(agents, 'agent')}."
    if line := progress_line(status["progress"]):
        yield f"Training: {line}."
    if latest := last_failure(status):
        yield f"{latest[0].upper()}{latest[1:]}."
    yield from (f"{line}." for line in repeated(status))
    if status["phase"] == "ended":
        return
    if status["phase"] == "gathering" and status["events"]:
        yield f"It has waited for {format_duration(_waits_since_s(status['events']))}."
    yield from _planned(status["events"])
    if status["behind"]:
        yield f"Behind the others: {status['behind']}."
    if is_mute:
        yield "No worker tells its progress: none has called worker_sdk.heartbeat() in this round."
    for slow in status["stragglers"][:_STRAGGLERS_SHOWN]:
        took, median = format_duration(slow["step_time_s"]), format_duration(slow["median_s"])
        who = f"Rank {slow['rank']} on {slow['name']}"
        yield f"{who} takes {took} for a step, the median of its peers is {median}."
    yield from map(_growing, status["memory_growth"][:_GROWING_SHOWN])
    yield from _absent(status)


def _to_kill(hang: Document) -> str:
    """Return the option that ends a worker for what is only reported by default."""
    return "`--exit-timeout 5m`" if hang["limit"] == "exit" else "`--progress-timeout auto`"


def _growing(worker: Document) -> str:
    """Say that a worker's memory grows, and how much there is."""
    pace, size = format_size(worker["memory_growth_bytes"]), format_size(worker["memory_bytes"])
    text = f"Rank {worker['rank']} on {worker['name']} uses {size} of memory, {pace} more a minute"
    if not worker["limit_bytes"] or not worker["used_bytes"]:
        return f"{text}."
    whose = "cgroup" if worker["is_cgroup"] else "host"
    used, limit = format_size(worker["used_bytes"]), format_size(worker["limit_bytes"])
    return f"{text}; its {whose} is at {used} of {limit}."


def _stopped(workers: Iterable[Document]) -> Iterator[str]:
    """Name workers that a signal or a debugger has stopped."""
    stopped = [
        f"rank {worker['rank']} on {worker['name']}, pid {worker['pid']}"
        for worker in workers
        if worker.get("is_stopped")
    ]
    if stopped:
        what = "SIGSTOP, a similar signal or a debugger; SIGCONT continues a process"
        yield f"Stopped ({what}): {listed(stopped)}."


def _latest_hang(status: Document) -> Document | None:
    """Return the hang of the round that runs, or of the one before: it is why this one runs."""
    hang: Document | None = status["hang"]
    round_id = status["round_id"] or 0
    return hang if hang is not None and hang["round_id"] >= round_id - 1 else None


def _hangs(status: Document) -> bool:
    """Return whether the round that runs hangs."""
    hang = status["hang"]
    is_current = bool(hang) and hang["round_id"] == status["round_id"] and not hang["is_over"]
    return is_current and status["phase"] == "running"


def _hang(hang: Document | None) -> Iterator[str]:
    """Tell where all ranks were when a round hung, with the stack of one rank of each group."""
    if hang is None:
        return
    when = f", {_ago(hang['age_s'])}" if hang["age_s"] is not None else ""
    over = "; then training went on" if hang["is_over"] else ""
    yield f"Round {hang['round_id']} hung{when}{over}: {hang['summary']}."
    for group in hang["groups"]:
        what = "the cause" if group["is_cause"] else group["activity"]
        are = "is" if group["count"] == 1 else "are"
        who = f"{count(group['count'], 'rank')} ({group['ranks']})"
        yield f"{who} {are} {group['place']}: {what}"
        if group["collective"]:
            yield f"in {group['collective']}"
        for line in group["stack"].splitlines():
            yield f"at {line.strip()}"


def _tells_nothing(status: Document, workers: Iterable[Document]) -> bool:
    """Return whether a round runs of which no worker has told a heartbeat, but could have."""
    if status["phase"] != "running" or status["launcher"] or status["heartbeat_age_s"] is not None:
        return False
    # A coordinator of an earlier version does not tell the age.
    return all(worker["heartbeat_age_s"] is None for worker in workers)


def _waits_since_s(events: Sequence[Document]) -> float:
    """Return how long ago the last round ended, or the run began."""
    ends = [event["age_s"] for event in events if event["kind"] == "round_ended"]
    return ends[-1] if ends else events[0]["age_s"] or 0.001


def _planned(events: Sequence[Document]) -> Iterator[str]:
    """Tell of a change that is to come, and who asked for it."""
    notice = _pending(events, {"notice_given"}, {"notice_over"})
    asked = _pending(events, _ASKED, _CARRIED_OUT)
    if notice:
        yield f"A change is to come: {notice['reason']}{_by(notice)}; training saves before it."
        if asked and asked["sequence"] < notice["sequence"]:
            return  # it is this one, and its reason says who asked for it
    if asked:
        what = asked["kind"].removesuffix("_asked")
        yield f"A {what} is under way{_by(asked)}: {asked['reason'] or 'no reason given'}."


def _pending(
    events: Sequence[Document], begins: Collection[str], ends: Collection[str]
) -> Document | None:
    """Return the latest event that begins something, unless one that ends it came after."""
    latest = [event for event in events if event["kind"] in begins or event["kind"] in ends]
    return latest[-1] if latest and latest[-1]["kind"] in begins else None


def _absent(status: Document) -> Iterator[str]:
    away = [
        f"{agent['name']}{_for(agent['silence_s'])}"
        for agent in status["agents"]
        if not agent["is_connected"]
    ]
    silent = [
        f"{agent['name']} ({format_duration(agent['silence_s'])})"
        for agent in status["agents"]
        if agent["is_connected"] and (agent["silence_s"] or 0.0) > SILENCE_S
    ]
    unhealthy = [
        f"{agent['name']} ({agent['health_reason']})"
        for agent in status["agents"]
        if agent.get("health") == "unhealthy"
    ]
    for what, names in (("Not connected", away), ("Silent", silent), ("Unhealthy", unhealthy)):
        if names:
            yield f"{what}: {listed(names)}."
    outside: dict[str, list[str]] = {}
    for agent in status["agents"]:
        if agent["is_drained"]:
            outside.setdefault(agent["waiting_reason"], []).append(agent["name"])
    for why, names in outside.items():
        yield f"Waiting outside: {listed(names)}, {why}."


def _root_cause(status: Document, causes: Sequence[Document]) -> Iterator[str]:
    if len(causes) > 1:
        yield f"One of {len(causes)}, too close in time to be told apart:"
    for cause in causes:
        yield f"{_who(cause)} {_how(cause)}."
        if cause["explanation"]:
            yield f"Likely why: {one_line(cause['explanation'])}"
        if cause["message"]:
            yield f"It said: {one_line(cause['message'].strip().splitlines()[-1])}"
        elif cause["stderr_tail"].strip():
            last = cause["stderr_tail"].strip().splitlines()[-1]
            yield f"Last line of its standard error: {one_line(last)}"
        if cause["evidence"]:
            yield f"Seen: {one_line(cause['evidence'])}"
        if cause["output_files"]:
            yield f"All its output: {' and '.join(cause['output_files'])} on {cause['host']}."
    if causes or status["cause"] in _HOW:
        return
    for event in reversed(status["events"]):
        if event["kind"] in ("round_ended", "run_failing", "run_failed", "iteration_interrupted"):
            yield f"Latest, {_ago(event['age_s'])}: {event['reason']}."
            return


def _done(run_id: str, events: Sequence[Document]) -> Iterator[str]:
    decisions = [event for event in events if event["kind"] in _STEPS or event["caller"]]
    if (more := len(decisions) - _STEPS_SHOWN) > 0:
        yield f"{count(more, 'decision')} before that: `coordinator events {run_id}`."
    for event in decisions[-_STEPS_SHOWN:]:
        what = event["kind"].replace("_", " ")
        yield f"{_ago(event['age_s'])}, {what}{_by(event)}: {event['reason']}."


def _cost(status: Document, verdict: Document | None) -> Iterator[str]:
    used = f"{status['restarts_used']} of {count(status['restarts_max'], 'restart')} used"
    if launcher := status["launcher"]:
        used = f"Restarts are counted by {launcher}"
    if status["restarts_in_process"]:
        used += f", {status['restarts_in_process']} more in process"
    yield f"{used}."
    if verdict is not None and verdict["goodput"]:
        yield f"Goodput: {verdict['goodput']}."
    steps = [event for event in status["events"] if event["kind"] in ("round_ended", _STARTED)]
    pauses = [
        before["age_s"] - after["age_s"]
        for before, after in pairwise(steps)
        if before["kind"] == "round_ended" and after["kind"] == _STARTED
    ]
    if pauses:
        between = format_duration(sum(pauses))
        yield f"{between} without a round, {count(len(pauses), 'time')}, as far as it is known."
    if steps := status["steps_repeated"]:
        yield f"At least {count(steps, 'step')} computed again after restarts."
    if verdict is not None and status["cause"] != "succeeded" and verdict["step"] is not None:
        reached = f"The furthest worker was at step {verdict['step']}"
        yield f"{reached}; what it computed after its last checkpoint is lost."


def _is_stuck(workers: Iterable[Document]) -> bool:
    """Return whether one has made no step for much longer than a step takes."""
    return any(
        (worker["heartbeat_age_s"] or 0.0)
        > max(STUCK_S, STUCK_STEPS * (worker["step_time_s"] or 0))
        for worker in workers
    )


def _advice(
    status: Document, causes: Sequence[Document], *, is_mute: bool, is_stuck: bool
) -> Iterator[str]:
    name = status["run_id"]
    if status["cause"] in _ADVICE:
        yield _ADVICE[status["cause"]]
    for cause in causes:
        if cause["hang"]:
            yield f"see where {_who(cause)} stood: its stacks are in the report of its agents"
        elif cause["signal_name"] == "SIGKILL":
            yield f"look for lack of memory or for an operator's kill on {cause['host']}"
        elif cause["traceback"]:
            yield "the traceback is in the report of its agents"
    is_over = status["restarts_used"] >= status["restarts_max"]
    if causes and status["cause"] == "worker_failed" and is_over and not status["launcher"]:
        yield "correct the cause and start again; --max-restarts gives a run more tries"
    if any(event["kind"] == "access_refused" for event in status["events"]):
        yield f"callers were refused: `coordinator events {name}` names them"
    yield from _where_to_look(status, is_mute=is_mute, is_stuck=is_stuck)
    if status["phase"] == "gathering" and status["reason"].startswith(
        ("restart ", "free restart ")
    ):
        yield f"it waits before it restarts: `coordinator restart {name}` skips the wait"
    elif status["phase"] == "gathering":
        program = status["launcher"] or "`agent join`"
        yield f"see on the hosts that are missing whether {program} runs and what it logs"


def _where_to_look(status: Document, *, is_mute: bool, is_stuck: bool) -> Iterator[str]:
    name = status["run_id"]
    if _hangs(status):
        yield from map(_look_at, status["hang"]["causes"])
    elif status["behind"] and status["phase"] == "running":
        yield f"look at {status['behind'].partition(' at step')[0]} first"
    if is_mute or (status["phase"] == "running" and (status["behind"] or is_stuck)):
        yield f"`coordinator stacks {name}` shows where all ranks are now"
    if is_mute:
        yield (
            "call worker_sdk.heartbeat(step=…) after each step: steps, their times and the ranks "
            "that are behind are then shown here"
        )


def _look_at(cause: Document) -> str:
    pid = f", pid {cause['pid']}" if cause["pid"] else ""
    return f"look at rank {cause['rank']} on {cause['name']}{pid}"


def _who(cause: Document) -> str:
    pid = f", pid {cause['pid']}" if cause["pid"] else ""
    return f"Rank {cause['rank']} on {cause['name'] or cause['host']}{pid}"


def _how(cause: Document) -> str:
    if cause["hang"]:
        return f"hung ({cause['hang']}) and was ended after {format_duration(cause['hang_s'])}"
    if cause["signal_name"]:
        return f"was ended by {cause['signal_name']}"
    return f"exited with {cause['exit_code']}"


def _by(event: Document) -> str:
    return f" (asked for by {event['caller']})" if event["caller"] else ""


def _for(seconds: float | None) -> str:
    return "" if seconds is None else f" (last heard {_ago(seconds)})"


def _ago(seconds: float | None) -> str:
    return f"{format_duration(seconds or 0.001)} ago"
