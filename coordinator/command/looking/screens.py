"""Shell. Documents as text: tables that are coloured on a terminal, plain and aligned elsewhere.

Whatever agents said is written out so that it can't act on a terminal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from drumbeat.command.table import CELL_CHARACTERS_MAX, short
from drumbeat.coordinator.api.documents import Document
from drumbeat.coordinator.api.explanation import how, last_failure, progress_line, repeated
from drumbeat.coordinator.command.columns import Columns, cells
from drumbeat.text.format import count, format_size, listed, one_line

# So that the lines of events that come later are below those before.
_EVENT_WIDTHS = (5, 24, 5, 21, 2, 6)
_PLAIN_WIDTH = 4_000  # wider than any line: what is piped is not folded
_REASON_CHARACTERS_MAX = 1_000
# Columns that a narrow terminal cuts, beside the last one: names, and no figures.
_NARROWED = frozenset({"RUN", "AGENT", "HOST", "BY"})
_WAITING_SHOWN = 8  # reasons of agents without a place
_NOTHING = "-"
# From the last progress to the decision: after a hang, but also after a failure or a loss.
_PARTS = {"hanging": "no progress"}
_GOODPUT_MIN_S = 1.0  # of a run that was shorter, parts are the delays of messages
_HOSTS_SHOWN = 10  # of those that time was lost for
_BAR, _BAR_CELLS = "\u2588", 30
_STYLES = {
    "healthy": "green",
    "degraded": "yellow",
    "crash loop": "red",
    "crash_loop": "red",
    "no progress": "red",
    "no_progress": "red",
    "hanging": "red",
    "waiting": "yellow",
    "succeeded": "bold",
    "stopped": "bold",
    "running": "green",
    "gathering": "yellow",
    "training": "green",
    "away": "green",
    "ending": "red",
    "ended": "bold",
    "failed": "red",
    "stopping": "yellow",
    "drained": "yellow",
    "starting": "yellow",
    "run_failing": "red",
    "run_failed": "red",
    "agent_removed": "yellow",
    "round_ended": "yellow",
    "access_refused": "yellow",
    "straggler_found": "yellow",
}


def text_of(*parts: RenderableType) -> str:
    """Return what to write to standard output."""
    is_terminal = sys.stdout.isatty()
    console = Console(
        file=sys.stdout,
        width=None if is_terminal else _PLAIN_WIDTH,
        markup=False,
        highlight=False,
        emoji=False,
    )
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def show_live(statuses: Iterable[Document]) -> Document:
    """Show each in the place of the one before, on a screen of its own; return the last."""
    last: Document = {}
    console = Console(file=sys.stdout, markup=False, highlight=False, emoji=False)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        for last in statuses:
            live.update(status_screen(last), refresh=True)
    return last


def runs_screen(documents: Document) -> RenderableType:
    """Show all runs, a line each, in the order that they have."""
    columns = dict(_RUNS)
    if not any("owner" in run["labels"] for run in documents["runs"]):
        del columns["OWNER"]
    return _table(columns, [{**_NO_RUN, **row} for row in documents["rows"]], styled="HEALTH")


def job_screen(job: Document) -> RenderableType:
    """Show a job with its replica groups, a line each."""
    first = Text.assemble("job ", (_line(job["run_id"]), "bold"), " is ")
    first.append(job["phase"], style=_STYLES.get(job["phase"], ""))
    first.append(f": {_line(job['reason'])}")
    trained = _percent(job["goodput"]["effective_ratio"])
    facts = [
        f"at least {count(job['groups_min'], 'group')} needed",
        f"restarts {job['restarts_used']} of {job['restarts_max']} used",
        count(job["agents_count"], "agent"),
        f"trained {trained} of the hosts' time" if trained else "",
        f"ended {_ago(job['ended_age_s'])} ago" if job["ended_age_s"] is not None else "",
    ]
    columns = dict(_GROUPS)
    if not any(group["unhealthy_count"] for group in job["groups"]):
        del columns["UNHEALTHY"]
    table = _table(columns, job["groups"], styled="HEALTH")
    return Group(first, Text("; ".join(filter(None, facts))), Text(), table)


def _percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * ratio:.1f}%"


def status_screen(status: Document) -> RenderableType:
    """Show one run with its agents, workers and last events, from an ``overview_document``."""
    rows = [(agent, worker) for agent in status["agents"] for worker in agent["workers"] or [{}]]
    parts: list[RenderableType] = [*_head(status), Text()]
    if rows:
        parts.append(_workers(rows))
    if status["left_out"]:
        parts.append(Text(f"{status['left_out']} more are not shown; -o json has all"))
    parts += _waiting(status["agents"])
    if status["events"]:
        parts += [Text(), events_screen(status["events"])]
    return Group(*parts)


def status_line(status: Document, *, now: float) -> Text:
    """Show how a run is in one line, with the time ``now``, in seconds of the epoch."""
    step = f"; step {status['step']}" if status["step"] is not None else ""
    failed = last_failure(status)
    text = "".join((*how(status), step, "; " * bool(failed), failed))
    run = _line(_run_name(status))
    return Text(f"{_clock(now)} run {run} {_line(text, _REASON_CHARACTERS_MAX)}")


def events_screen(
    events: Iterable[Document], *, has_heads: bool = True, now: float | None = None
) -> RenderableType:
    """Show decisions, a line each; with ``now``, seconds of the epoch, when they were taken."""
    if now is None:
        when: Columns = {"AGE": "age_s"}
    else:
        when = {"WHEN": lambda event: _clock(now - event["age_s"])}
    documents = list(events)
    of_groups = bool(documents) and "run_id" in documents[0]
    columns: Columns = {
        **({"RUN": "run_id"} if of_groups else {}),
        "EVENT": "sequence",
        **when,
        "ROUND": "round_id",
        "WHAT": "kind",
        "BY": "caller",
        "REASON": "reason",
    }
    widths = _EVENT_WIDTHS if now is not None else ()
    return _table(columns, documents, styled="WHAT", has_heads=has_heads, widths=widths)


def host_screen(host: Document) -> RenderableType:
    """Show a host over all runs."""
    agents = [agent for run in host["runs"] for agent in run["agents"]]
    parts: list[RenderableType] = [Text.assemble("host ", (_line(host["name"]), "bold"))]
    for agent in agents:
        health = f"{agent['health'] or 'not checked'} {agent['health_reason'] or ''}".strip()
        devices = agent["devices"] or "no devices told"
        parts.append(Text(_line(f"{agent['name']}: {health}; {devices}", _REASON_CHARACTERS_MAX)))
        if agent["gpus"]:
            parts.append(_table(_GPUS, gpu_rows(agent["gpus"])))
    for drain in host["drains"]:
        which = f"drained from {drain['run_id'] or 'all runs'} by {drain['caller']}"
        parts.append(Text(_line(f"{which}: {drain['reason']}", _REASON_CHARACTERS_MAX), "yellow"))
    if host["runs"]:
        rows = [{**_NO_RUN, **run} for run in host["runs"]]
        parts += [Text(), _table(_HOST_RUNS, rows, styled="HEALTH")]
    for run in host["runs"]:
        for group in run["failure_groups"]:
            what = f"{run['run_id']}: {group['cause']}, {count(group['count'], 'time')}"
            advice = "; ".join(filter(None, (what, group["advice"])))
            parts.append(Text(_line(advice, _REASON_CHARACTERS_MAX), "yellow"))
    return Group(*parts)


def gpu_rows(use: Document) -> list[Document]:
    """Return what each GPU does, a row each."""
    columns = ("utilization", "memory_used_bytes", "memory_bytes", "power_watts")
    values = zip(*(use[name] for name in columns), strict=True)
    return [{"gpu": i, **dict(zip(columns, row, strict=True))} for i, row in enumerate(values)]


def explanation_screen(explanation: Document) -> RenderableType:
    """Show why a run is as it is."""
    parts = [
        Text(_line(line, _REASON_CHARACTERS_MAX), style="bold") for line in explanation["what"]
    ]
    for head, name in (
        ("Root cause", "root_cause"),
        ("Done", "done"),
        ("Cost", "cost"),
        ("To try", "advice"),
    ):
        if lines := explanation[name]:
            parts += [Text(), Text(f"{head}:", style="bold")]
            parts += [Text(f"  {_line(line, _REASON_CHARACTERS_MAX)}") for line in lines]
    return Group(*parts)


def goodput_screen(goodput: Document) -> RenderableType:
    """Show what the time of a run went into, from a ``goodput_document``."""
    whole_s, ratio = goodput["whole_s"], goodput["effective_ratio"]
    first = Text.assemble("run ", (_line(goodput["run_id"]), "bold"))
    if not goodput["is_running"] and whole_s < _GOODPUT_MIN_S:
        return first.append(
            f" ended after {_ago(whole_s)}: too soon to tell what its time went into"
        )
    trained = "nothing is known yet" if ratio is None else f"trained {100 * ratio:.1f}%"
    first.append(f" {trained} of {_ago(whole_s)}{' so far' if goodput['is_running'] else ''}")
    mean_s = goodput["mean_time_between_failures_s"]
    failures = count(goodput["failures_count"], "failure")
    between = f", one in {_ago(mean_s)} on average" if mean_s is not None else ""
    parts: list[RenderableType] = [first, Text(f"{failures}{between}"), Text()]
    shares: Columns = {
        "TIME": "time_s",
        "SHARE": lambda row: f"{100 * _share(row, whole_s):.1f}%",
        "HOST TIME": "host_s",
    }
    bar: Columns = {"": lambda row: _BAR * round(_BAR_CELLS * _share(row, whole_s))}
    parts.append(_table({"PART": _part, **shares, **bar}, goodput["parts"]))
    if goodput["causes"]:
        columns = {"LOST FOR": "cause", **shares, "RESTARTS": "restarts"}
        parts += [Text(), _table(columns, goodput["causes"])]
    if goodput["hosts"]:
        columns = {"HOST": lambda row: row["name"] or "others", **shares, **bar}
        parts += [Text(), _table(columns, goodput["hosts"][:_HOSTS_SHOWN])]
    if "segments" in goodput:
        parts += [Text(), _table(_SEGMENTS, goodput["segments"])]
    return Group(*parts)


def totals_screen(totals: Document) -> RenderableType:
    """Show the goodput of all runs, from a ``totals_document``."""
    columns: Columns = {
        totals["by"].upper(): lambda row: row["name"] or "",
        "RUNS": "runs_count",
        "GPU HOURS": lambda row: f"{row['gpu_s'] / 3600:,.1f}",
        "TRAINED": lambda row: _percent(row["effective_ratio"]),
        "FAILURES": "failures_count",
    }
    return _table(columns, [*totals["rows"], {**totals["total"], "name": "all"}])


def _part(row: Document) -> str:
    part: str = row["part"]
    return _PARTS.get(part, part)


def _share(row: Document, whole_s: float) -> float:
    return row["time_s"] / whole_s if whole_s else 0.0


def _head(status: Document) -> list[Text]:
    first = Text("run ")
    first.append(_line(_run_name(status)), style="bold")
    health, reason = how(status)
    first.append(f" {health}", style=_STYLES.get(status["health"] or status["phase"], ""))
    first.append(_line(reason, _REASON_CHARACTERS_MAX))
    used = f"restarts {status['restarts_used']} of {status['restarts_max']} used"
    if launcher := status["launcher"]:
        used = f"restarts are counted by {_line(launcher)}"
    if status["restarts_in_process"]:
        used += f", {status['restarts_in_process']} in process"
    facts = [
        f"round {_number(status['round_id']) or 'none yet'}",
        used,
        count(status["agents_count"], "agent"),
        f"{status['lost_count']} lost" if status["lost_count"] else "",
        f"world size {status['world_size']}" if status["world_size"] else "",
        count(status["failed_count"], "failure") if status["failed_count"] else "",
        f"began {_ago(status['age_s'])} ago" if status["age_s"] is not None else "",
    ]
    failed = filter(None, (last_failure(status), *repeated(status)))
    lines = [first, *(Text(_line(line, _REASON_CHARACTERS_MAX), "yellow") for line in failed)]
    if progress := progress_line(status["progress"]):
        lines.append(Text(progress))
    lines.append(Text("; ".join(filter(None, facts))))
    lines += [Text(f"{_line(link['name'])}: {link['url']}") for link in status["links"]]
    if status["behind"]:
        lines.append(Text(f"behind: {_line(status['behind'], 1000)}", style="yellow"))
    if status["stragglers"]:
        lines.append(Text(f"stragglers: {_line(_stragglers(status), 1000)}", style="yellow"))
    return lines


def _stragglers(status: Document) -> str:
    """Name those that are slow, and say how many more there are."""
    shown = status["stragglers"]
    names = [
        f"rank {slow['rank']} on {slow['name']} ({_ago(slow['step_time_s'])} a step, "
        f"median {_ago(slow['median_s'])})"
        for slow in shown
    ]
    more = status["stragglers_count"] - len(shown)
    return f"{', '.join(names)}{f' and {more} more' if more > 0 else ''}"


def _workers(rows: Iterable[tuple[Document, Document]]) -> RenderableType:
    documents = [{**worker, **agent, "state": _state(agent)} for agent, worker in rows]
    columns = dict(_WORKERS)
    if sys.stdout.isatty() and all(row["host"] == row["name"] for row in documents):
        del columns["HOST"]  # names are those of the hosts, and room is scarce
    return _table(columns, documents, styled="STATE")


def _state(agent: Document) -> str:
    if agent["is_drained"]:
        return "drained"
    if agent["group_rank"] is None and agent["state"] == "idle" and agent["is_connected"]:
        return "standby"
    return agent["state"] or ("" if agent["is_connected"] else "not connected")


def _waiting(agents: Iterable[Document]) -> list[Text]:
    """Say why agents have no place, a line for each reason."""
    waiting: dict[str, list[str]] = {}
    for agent in agents:
        if agent["waiting_reason"] and agent["group_rank"] is None:
            waiting.setdefault(agent["waiting_reason"], []).append(agent["name"])
    return [
        Text(f"waiting: {_line(listed(names))}: {_line(why, _REASON_CHARACTERS_MAX)}")
        for why, names in list(waiting.items())[:_WAITING_SHOWN]
    ]


def _table(
    columns: Columns,
    documents: Iterable[Document],
    *,
    styled: str = "",
    has_heads: bool = True,
    widths: Sequence[int] = (),
) -> RenderableType:
    """Return aligned columns, the first or the ``styled`` one with colours.

    No cell is empty, so that scripts can count them.
    """
    table = Table(box=None, pad_edge=False, show_header=has_heads, header_style="bold")
    heads = list(columns)
    for head, width in zip_longest(heads, widths):
        overflow: Any = "fold" if head == heads[-1] else "ellipsis"
        is_narrowed = head in _NARROWED or head == heads[-1]
        table.add_column(head, no_wrap=not is_narrowed, overflow=overflow, min_width=width)
    most = [CELL_CHARACTERS_MAX] * (len(heads) - 1) + [_REASON_CHARACTERS_MAX]
    number = heads.index(styled) if styled else 0
    for row in cells(columns, documents):
        texts = [Text(_line(cell, room)) for cell, room in zip(row, most, strict=True)]
        texts[number].stylize(_STYLES.get(row[number], ""))
        table.add_row(*texts)
    return table


def _line(text: str, characters_max: int = CELL_CHARACTERS_MAX) -> str:
    return one_line(text, characters_max) or _NOTHING


def _run_name(run: Document) -> str:
    """Name a run by its id, and its generation if it is not the first."""
    name: str = run["run_id"]
    return name if run["generation"] == 1 else f"{name} (generation {run['generation']})"


def _scope(worker: Document) -> str:
    if not worker.get("scope"):
        return ""
    age_s = worker["scope_age_s"]
    return worker["scope"] if age_s is None else f"{worker['scope']} for {_ago(age_s)}"


def _clock(instant: float) -> str:
    """Return an instant on this host's clock, in ISO 8601 with the zone."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(instant))


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _ago(seconds: float | None) -> str:
    return "" if seconds is None else short(seconds)


def _health(run: Document) -> str:
    """Name how a run is; that it has ended by how, and its phase if a coordinator tells no more."""
    return str(run["health"] or run["phase"]).replace("_", " ")


def _why(run: Document) -> str:
    return "; ".join(filter(None, (run["health_reason"] or run["reason"], last_failure(run))))


_RUNS: Columns = {
    "RUN": _run_name,
    "HEALTH": _health,
    "ROUND": "round_id",
    "STEP": "step",
    "RESTARTS": lambda run: (
        f"by {run['launcher']}"
        if run["launcher"]
        else f"{run['restarts_used']}/{run['restarts_max']}"
    ),
    "AGENTS": "agents_count",
    "AGE": "age_s",
    "TRAINED": lambda run: _percent(run["effective_ratio"]),
    "OWNER": lambda run: run["labels"].get("owner", ""),
    "WHY": _why,
}
_HOST_RUNS: Columns = {
    "RUN": _run_name,
    "HEALTH": _health,
    "LOST": "lost_s",
    "AGE": "age_s",
    "WHY": _why,
}
_GPUS: Columns = {
    "GPU": "gpu",
    "WORKS": lambda gpu: _percent(gpu["utilization"]),
    "MEMORY": lambda gpu: format_size(gpu["memory_used_bytes"]),
    "OF": lambda gpu: format_size(gpu["memory_bytes"]),
    "WATTS": lambda gpu: f"{gpu['power_watts']:.0f}" if gpu["power_watts"] else "",
}
# What a job has not.
_NO_RUN: Document = {
    "generation": 1,
    "round_id": None,
    "launcher": None,
    "labels": {},
    "step": None,
    "last_failure": None,
    "effective_ratio": None,
    "age_s": None,
    "health_reason": "",
}
_GROUPS: Columns = {
    **{name: column for name, column in _RUNS.items() if name not in ("AGENTS", "OWNER", "WHY")},
    "HOSTS": "agents_count",
    "UNHEALTHY": "unhealthy_count",
    "STEP": "step",
    "TRAINED": lambda group: _percent(group["goodput"]["effective_ratio"]),
    "WHY": _why,
}
_WORKERS: Columns = {
    "RANK": "rank",
    "AGENT": "name",
    "HOST": "host",
    "STATE": "state",
    "SILENCE": "silence_s",
    "STEP": "step",
    "STEP TIME": "step_time_s",
    "BEAT": "heartbeat_age_s",
    "PID": "pid",
    "IN": _scope,
}
_SEGMENTS: Columns = {
    "AGO": "age_s",
    "TIME": "time_s",
    "PART": _part,
    "LOST FOR": "cause",
    "HOST": "host",
    "ROUND": "round_id",
    "ITERATION": "iteration",
}
